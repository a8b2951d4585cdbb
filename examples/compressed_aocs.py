"""AOCS with compression: fewer clients send, and each sends less.

  python examples/compressed_aocs.py

Federated Averaging on digits with full participation, with AOCS, and with AOCS
whose updates are rounded at random to 4 bits an entry.
"""

# Before TensorFlow: it says in one line what is wrong with the environment.
import tff_ocs  # isort: skip
import tensorflow_federated as tff

from tff_ocs import compression
from tff_ocs import execution
from tff_ocs import simple_fedavg
from tff_ocs.tasks import femnist
from tff_ocs.tasks import task as task_lib

NUM_ROUNDS = 12
COHORT_SIZE = 16  # n
EXPECTED_CLIENTS = 3  # m

SAMPLINGS = {
  'full participation': tff_ocs.ClientSamplingFactory(
    tff_ocs.FullParticipation()
  ),
  'AOCS': tff_ocs.ClientSamplingFactory(
    tff_ocs.ApproximateOptimalSampling(EXPECTED_CLIENTS)
  ),
  'AOCS and dithering': tff_ocs.ClientSamplingFactory(
    tff_ocs.ApproximateOptimalSampling(EXPECTED_CLIENTS),
    value_sum_factory=compression.RandomDitheringFactory(bits=4, seed=0),
  ),
}


def train(digits: task_lib.Task, sampling: tff_ocs.ClientSamplingFactory):
  """Trains for some rounds; gives the accuracy and the bits that were sent."""
  process = tff_ocs.build_federated_averaging_process(
    digits.model, sampling, client_learning_rate=2**-3
  )
  # All samplings see the same cohorts, shuffles and coins.
  draw_cohort = tff.simulation.build_uniform_sampling_fn(
    digits.train.client_ids, replace=False, random_seed=0
  )
  state, bits = process.initialize(), 0
  for round_num in range(NUM_ROUNDS):
    cohort = []
    for client_id in draw_cohort(round_num, COHORT_SIZE):
      x, y = digits.train.examples(client_id)
      seed = simple_fedavg.client_seed(0, round_num, client_id)
      cohort.append({'x': x, 'y': y, 'seed': seed})
    state, metrics = process.next(state, cohort)
    bits += int(metrics['aggregator']['uplink_bits'])
  evaluate = task_lib.build_evaluation(digits.model, digits.test)
  return evaluate(state.weights).accuracy, bits


def main():
  digits = femnist.load_bundled(seed=0)
  print(f'After {NUM_ROUNDS} rounds with {COHORT_SIZE} clients each:')
  print(f'{"":20}accuracy  uplink [Gbit]')
  with execution.use_local_context():
    for name, sampling in SAMPLINGS.items():
      accuracy, bits = train(digits, sampling)
      print(f'{name:20}{accuracy:8.1%}{bits / 1e9:15.2f}')


if __name__ == '__main__':
  main()
