"""Seconds and memory of a round by the size n of the cohort.

The paper's FEMNIST CNN; a tenth of the clients has 300 examples, the others 7,
and 12 are expected to send. The methods are AOCS, which has to hold all
updates, of 6.7 MB each, until the coins are tossed; and threshold sampling in
fused rounds, see `tff_ocs.runtime.forms`. Each n is measured in a process of
its own, with a worker of its own. Memory is the largest seen, with what
processes share counted once (PSS): of the program and the worker together, and
of the worker alone. "MB/client" is what the worker takes beyond the smallest n,
less the clients' data, for each client beyond it.
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
from tff_ocs.runtime import forms
from tff_ocs.tasks import femnist

_COHORT_SIZES = flags.DEFINE_list(
  'cohort_sizes',
  ['32', '128', '512', '4096'],
  'The n, from the smallest; AOCS is measured up to 512.',
)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'The rounds, with the first.', 2)
_ONE = flags.DEFINE_list('one', None, 'Measures METHOD,N in this process.')

_METHODS = ('AOCS', 'threshold')
_LARGEST_OF_AOCS = 512
_EXPECTED_CLIENTS = 12


def main(argv):
  del argv
  if _ONE.value is not None:
    method, n = _ONE.value
    print(*_measure(method, int(n), _ROUNDS.value))
    return
  print(
    f'{"method":10}{"n":>5}{"s/round":>9}{"ms/client":>11}{"GB":>7}'
    f'{"worker, MB":>12}{"data, MB":>10}{"MB/client":>11}'
  )
  for method in _METHODS:
    first = None
    for n in map(int, _COHORT_SIZES.value):
      if method == 'AOCS' and n > _LARGEST_OF_AOCS:
        continue
      output = processes.output_of(
        '-m',
        'benchmarks.scaling',
        f'--one={method},{n}',
        f'--rounds={_ROUNDS.value}',
      )
      seconds, peak, of_worker, data = map(float, output.split())
      more = ''
      if first is None:
        first = n, of_worker - data
      else:
        more = f'{(of_worker - data - first[1]) / (n - first[0]):11.2f}'
      print(
        f'{method:10}{n:5}{seconds:9.2f}{1e3 * seconds / n:11.2f}'
        f'{peak / 1e3:7.2f}{of_worker:12.0f}{data:10.0f}{more}',
        flush=True,
      )


def _measure(method, n, num_rounds):
  """The median seconds of a round, and the megabytes of the docstring."""
  num_large = n // 10
  clients = digits.draw_clients([300] * num_large + [7] * (n - num_large))
  process = tff_ocs.build_federated_averaging_process(
    femnist.build_model(seed=0),
    tff_ocs.ApproximateOptimalSampling(_EXPECTED_CLIENTS)
    if method == 'AOCS'
    else tff_ocs.ThresholdSampling(_EXPECTED_CLIENTS, first_cohort_size=n),
    client_learning_rate=2**-3,
  )
  if method != 'AOCS':
    process = forms.fuse(process)
  total_weight = sum(len(client['y']) for client in clients)
  with tff_ocs.execution.use_local_context():
    state = process.initialize()
    tff.tensorflow.computation(lambda: True)()
    seconds = []
    with processes.Peak() as peak:
      for _ in range(num_rounds):
        start = time.perf_counter()
        if method != 'AOCS':
          state = tff_ocs.set_cohort_weight(state, total_weight)
        state, _ = process.next(state, clients)
        seconds.append(time.perf_counter() - start)
  data = sum(array.nbytes for client in clients for array in client.values())
  of_worker = sum(
    megabytes
    for pid, megabytes in peak.of_process.items()
    if pid != os.getpid()
  )
  return np.median(seconds[1:]), peak.total, of_worker, data / 1e6


if __name__ == '__main__':
  app.run(main)
