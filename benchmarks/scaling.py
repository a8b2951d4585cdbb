"""Seconds and memory of a round by the size n of the cohort.

The paper's FEMNIST CNN and AOCS with m = n / 10; a tenth of the clients has 300
examples, the others 7. Each n is measured in a process of its own, with a
worker of its own. Memory is the largest seen of both together, with what they
share counted once (PSS); "MB/client" is without what was there before the first
round. A client's update is 6.7 MB, and AOCS has to hold all of them until the
coins are tossed.
"""

import os
import time

import numpy as np
import tensorflow_federated as tff
from absl import app
from absl import flags

import tff_ocs  # noqa: I001, first: it quietens TensorFlow.
from benchmarks import digits
from benchmarks import processes
from tff_ocs.tasks import femnist

_COHORT_SIZES = flags.DEFINE_list(
  'cohort_sizes', ['32', '64', '128', '256', '512'], 'The n.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'The rounds, with the first.', 2)
_ONE = flags.DEFINE_integer('one', None, 'Measures this n in this process.')


def main(argv):
  del argv
  if _ONE.value is not None:
    print(*_measure(_ONE.value, _ROUNDS.value))
    return
  print(
    f'{"n":>5}{"s/round":>9}{"ms/client":>11}{"x first":>9}'
    f'{"GB":>7}{"MB/client":>11}{"x first":>9}'
  )
  first = None
  for n in map(int, _COHORT_SIZES.value):
    output = processes.output_of(
      '-m', 'benchmarks.scaling', f'--one={n}', f'--rounds={_ROUNDS.value}'
    )
    seconds, before, peak = map(float, output.split())
    of_client = seconds / n, (peak - before) / n
    first = first or of_client
    print(
      f'{n:5}{seconds:9.2f}{1e3 * of_client[0]:11.2f}'
      f'{of_client[0] / first[0]:9.2f}{peak / 1e3:7.2f}{of_client[1]:11.1f}'
      f'{of_client[1] / first[1]:9.2f}'
    )


def _measure(n, num_rounds):
  """Median seconds of a round, megabytes before the first, and their peak."""
  num_large = n // 10
  clients = digits.draw_clients([300] * num_large + [7] * (n - num_large))
  process = tff_ocs.build_federated_averaging_process(
    femnist.build_model(seed=0),
    tff_ocs.ApproximateOptimalSampling(n / 10),
    client_learning_rate=2**-3,
  )
  with tff_ocs.execution.use_local_context():
    state = process.initialize()
    tff.tensorflow.computation(lambda: True)()
    before = _megabytes()
    seconds = []
    with processes.Peak() as peak:
      for _ in range(num_rounds):
        start = time.perf_counter()
        state, _ = process.next(state, clients)
        seconds.append(time.perf_counter() - start)
  return np.median(seconds[1:]), before, peak.total


def _megabytes():
  return sum(map(processes.megabytes, processes.process_tree(os.getpid())))


if __name__ == '__main__':
  app.run(main)
