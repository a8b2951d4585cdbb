"""Starts the FEMNIST binary on small data, for tests that disturb it."""

import json
import pathlib
import subprocess
import sys
import time

import numpy as np

from tff_ocs.records import runs

ROOT = pathlib.Path(__file__).parents[2]

COMMAND = (
  sys.executable,
  '-m',
  'experiments.femnist',
  '--data_source=synthetic',
  '--clients_per_round=3',
  '--expected_clients=1',
  '--total_rounds=9',
  '--rounds_per_eval=3',
  '--rounds_per_checkpoint=2',
  '--run_name=run',
)


def start(output_dir, *arguments, **kwargs):
  return subprocess.Popen(
    [*COMMAND, f'--output_dir={output_dir}', *arguments],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    **kwargs,
  )


def finish(output_dir, *arguments, **kwargs):
  process = start(output_dir, *arguments, **kwargs)
  output, _ = process.communicate(timeout=300)
  return process.returncode, output


def num_rounds(folder):
  try:
    return len(runs.read_run(folder).metrics.get('round', []))
  except (FileNotFoundError, json.JSONDecodeError):
    return 0


def saved_checkpoints(folder):
  """The whole checkpoints, not what is being written, in the rounds' order."""
  paths = (folder / 'checkpoints').glob('after_round_*')
  whole = [path for path in paths if '_temp' not in path.name]
  return sorted(whole, key=lambda path: int(path.name.split('_')[2]))


def wait_until(process, condition):
  """Waits for something to happen in a run that goes on meanwhile."""
  deadline = time.monotonic() + 300
  while not condition():
    if process.poll() is not None or time.monotonic() > deadline:
      process.kill()
      raise AssertionError(process.communicate())
    time.sleep(0.005)


def kill_when(process, condition):
  wait_until(process, condition)
  process.kill()
  process.communicate()


def read_results(folder):
  """What must not differ: all metrics but the seconds, and the weights."""
  lines = (folder / 'metrics.csv').read_text().splitlines()
  column = lines[0].split(',').index('seconds')
  rows = [line.split(',') for line in lines]
  metrics = [row[:column] + row[column + 1 :] for row in rows]
  with np.load(folder / 'weights.npz') as weights:
    return metrics, [weights[name].tobytes() for name in weights]
