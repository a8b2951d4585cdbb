"""Seconds and memory of a round over several workers, side by side.

The paper's FEMNIST CNN; a tenth of the clients has 300 examples, the others 7,
in random order. All contenders use all cores of the machine, and one
thread for a client in training:

*   one worker, which trains a client on each core, as a run's does;
*   --workers workers, each on its part of the cores;
*   the same with --subrounds shares of the clients, one after the other.

The contenders take turns, round by round. "x one" is the median of the ratios
of the same turn to one worker. Memory is the largest that is seen of each
worker; what it shares with other processes counts in parts (PSS).
"""

import contextlib
import os

import numpy as np
import tensorflow_federated as tff
from absl import app
from absl import flags

import tff_ocs  # noqa: I001, first: it quietens TensorFlow.
from benchmarks import digits
from benchmarks import processes
from benchmarks import timing
from tff_ocs import execution
from tff_ocs.runtime import forms
from tff_ocs.tasks import femnist

_COHORT_SIZES = flags.DEFINE_list('cohort_sizes', ['32', '128'], 'The n.')
_ROUNDS = flags.DEFINE_integer('rounds', 20, 'The rounds.', 1)
_WORKERS = flags.DEFINE_integer('workers', 2, 'The number of workers.', 2)
_SUBROUNDS = flags.DEFINE_integer('subrounds', 8, 'The number of shares.', 2)

_ONE = 'one worker'


def main(argv):
  del argv
  for n in map(int, _COHORT_SIZES.value):
    for scheme in (
      tff_ocs.FullParticipation(),
      tff_ocs.ThresholdSampling(n / 10, first_cohort_size=n),
    ):
      _compare(n, scheme)


def _compare(n, scheme):
  num_large = n // 10
  sizes = np.array([300] * num_large + [7] * (n - num_large))
  clients = digits.draw_clients(np.random.default_rng(0).permutation(sizes))
  process = forms.fuse(
    tff_ocs.build_federated_averaging_process(
      femnist.build_model(seed=0), scheme, client_learning_rate=2**-3
    )
  )
  k, num_subrounds = _WORKERS.value, _SUBROUNDS.value
  contexts = {
    _ONE: execution.use_local_context(),
    f'{k} workers': execution.use_distributed_context(workers=k),
    f'{k} workers, {num_subrounds} shares': execution.use_distributed_context(
      workers=k, num_subrounds=num_subrounds
    ),
  }
  rounds = {}
  workers = {}
  known = processes.process_tree(os.getpid())
  with contextlib.ExitStack() as stack, processes.Peak() as peak:
    for name, context in contexts.items():
      rounds[name] = _Round(process, clients, stack.enter_context(context))
      rounds[name].run()
      tree = processes.process_tree(os.getpid())
      workers[name] = [pid for pid in tree if pid not in known]
      known = tree
    seconds = timing.take_turns(
      {name: round.run for name, round in rounds.items()}, _ROUNDS.value
    )
  print(f'{scheme!r}, {n} clients, {os.cpu_count()} CPUs')
  print(f'{"":28}{"s/round":>9}{"x one":>8}  MB of each worker')
  for name, values in seconds.items():
    ratio = np.median(values / seconds[_ONE])
    megabytes = ', '.join(
      f'{peak.of_process[pid]:.0f}' for pid in workers[name]
    )
    print(f'{name:28}{np.median(values):9.3f}{ratio:8.2f}  {megabytes}')


class _Round:
  """A round in a context, again and again."""

  def __init__(self, process, clients, context):
    self._process, self._clients, self._context = process, clients, context
    with tff.framework.get_context_stack().install(context):
      self._state = process.initialize()

  def run(self):
    with tff.framework.get_context_stack().install(self._context):
      self._state, _ = self._process.next(self._state, self._clients)


if __name__ == '__main__':
  app.run(main)
