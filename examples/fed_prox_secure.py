"""FedProx with AOCS under secure aggregation.

  python examples/fed_prox_secure.py

The server learns nothing of a single client: norms, recalibrations, weights and
updates are summed securely, and the script checks that nothing else leaves the
clients. TFF's open-source runtime has no cryptography: here the sums are
computed in the clear, with the clipping and the rounding of a real protocol.
"""

import logging

# Before TensorFlow: it says in one line what is wrong with the environment.
import tff_ocs  # isort: skip
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import execution
from tff_ocs import secure_sums
from tff_ocs.tasks import femnist
from tff_ocs.tasks import task as task_lib

NUM_ROUNDS = 12
COHORT_SIZE = 16  # n
EXPECTED_CLIENTS = 3  # m
CLIP_NORM = 1.0


def build_aggregator(max_weight: float):
  """AOCS of clipped updates, in which every sum is secure."""
  # Updates are clipped to CLIP_NORM, and a client's weight is its number of
  # examples: with these bounds nothing is clipped in the sums.
  bounds = secure_sums.propose_bounds(
    max_update_norm=CLIP_NORM,
    max_weight=max_weight,
    cohort_size=COHORT_SIZE,
    expected_clients=EXPECTED_CLIENTS,
  )
  sampling = tff_ocs.ClientSamplingFactory(
    tff_ocs.ApproximateOptimalSampling(EXPECTED_CLIENTS),
    value_sum_factory=tff.aggregators.SecureSumFactory(bounds.value),
    weight_sum_factory=tff.aggregators.SecureSumFactory(bounds.weight, 0.0),
    scalar_sum_factory=secure_sums.SecureScalarSumFactory(bounds.norm),
    seed=0,
  )
  return tff.aggregators.clipping_factory(
    CLIP_NORM,
    sampling,
    clipped_count_sum_factory=tff.aggregators.SecureSumFactory(1, 0),
  )


def main():
  # TFF's secure sums make TensorFlow complain about checks that it drops.
  logging.getLogger('tensorflow').setLevel(logging.CRITICAL)
  digits = femnist.load_bundled(seed=0)
  process = tff.learning.algorithms.build_weighted_fed_prox(
    digits.model,
    proximal_strength=0.1,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(2**-3),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    model_aggregator=build_aggregator(max(digits.train.num_examples.values())),
  )
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  print('Every sum of the round is secure.')

  draw_cohort = tff.simulation.build_uniform_sampling_fn(
    digits.train.client_ids, replace=False, random_seed=0
  )
  evaluate = task_lib.build_evaluation(digits.model, digits.test)
  print('round  sent  uplink [Mbit]  clipped updates, scalars  accuracy')
  with execution.use_secure_test_context():
    state = process.initialize()
    for round_num in range(NUM_ROUNDS):
      cohort = []
      for client_id in draw_cohort(round_num, COHORT_SIZE):
        x, y = digits.train.examples(client_id)
        cohort.append(tf.data.Dataset.from_tensor_slices((x, y)).batch(20))
      output = process.next(state, cohort)
      state = output.state
      measured = output.metrics['aggregator']
      sampled = measured['clipping']
      accuracy = evaluate(process.get_model_weights(state)).accuracy
      print(
        f'{round_num:5}{sampled["participants"]:6}'
        f'{sampled["uplink_bits"] / 1e6:15.1f}'
        f'{measured["clipped_count"]:17}{sampled["clipped"]["scalars"]:9}'
        f'{accuracy:10.1%}'
      )


if __name__ == '__main__':
  main()
