"""Megabytes of the worker while the size n of the cohort changes every round.

  python -m benchmarks.cohort_sizes

TFF's worker holds an executor for each cohort size, with all that computations
leave in it. Here n runs through 5, 6, ..., 60 again and again: the paper's
FEMNIST CNN and AOCS with m = 3, on clients of 4 examples. The table has the
worker's memory (PSS) for some n of each cycle, and the largest of all n. In the
end it prints by how much that grew after the first cycle, which should be at
most 10 %.
"""

import os

from absl import app
from absl import flags

import tff_ocs  # noqa: I001, first: it quietens TensorFlow.
from benchmarks import digits
from benchmarks import processes
from tff_ocs.tasks import femnist

_CYCLES = flags.DEFINE_integer('cycles', 4, 'The cycles.', 2)
_SMALLEST = flags.DEFINE_integer('smallest', 5, 'The smallest n.', 1)
_LARGEST = flags.DEFINE_integer('largest', 60, 'The largest n.', 1)

_COLUMNS = 6


def main(argv):
  del argv
  sizes = list(range(_SMALLEST.value, _LARGEST.value + 1))
  shown = sizes[:: -(-len(sizes) // _COLUMNS)]
  process = tff_ocs.build_federated_averaging_process(
    femnist.build_model(seed=0),
    tff_ocs.ClientSamplingFactory(tff_ocs.ApproximateOptimalSampling(3)),
    client_learning_rate=2**-3,
    batch_size=20,
  )
  clients = digits.draw_clients([4] * sizes[-1])
  print(f'{"cycle":>5}', *(f'{f"n={n}":>7}' for n in shown), f'{"largest":>9}')
  largest = []
  with tff_ocs.execution.use_local_context():
    state = process.initialize()
    for cycle in range(_CYCLES.value):
      memory = {}
      for n in sizes:
        state, _ = process.next(state, clients[:n])
        _, worker = processes.process_tree(os.getpid())
        memory[n] = processes.megabytes(worker)
      largest.append(max(memory.values()))
      print(
        f'{cycle:5}',
        *(f'{memory[n]:7.0f}' for n in shown),
        f'{largest[-1]:9.0f}',
        flush=True,
      )
  growth = max(largest[1:]) / largest[0] - 1
  print(f'growth after the first cycle: {growth:+.1%}')


if __name__ == '__main__':
  app.run(main)
