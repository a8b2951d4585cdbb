"""FedProx with AOCS under secure aggregation.

  TF_CPP_MIN_LOG_LEVEL=3 python examples/fed_prox_secure.py

The server sees only sums: norms, recalibrations, weights and updates are summed
securely, and the script checks that nothing else leaves the clients. TFF's
open-source runtime has no cryptography, so the sums are computed in the clear
here, with the clipping and rounding of a real protocol.
"""

import logging

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tff_ocs import execution
from tff_ocs import secure_sums
from tff_ocs.tasks import femnist

NUM_ROUNDS = 8
COHORT_SIZE = 16  # n
EXPECTED_CLIENTS = 3  # m
CLIP_NORM = 1.0


def build_aggregator(max_weight: float):
  """Returns AOCS of clipped updates, in which every sum is secure."""
  # Updates are clipped to CLIP_NORM, and a client's weight is its number of
  # examples. With these bounds, the sums clip nothing.
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


def build_keras_model():
  return tf.keras.Sequential(
    [
      # The digits are black on white.
      tf.keras.layers.Rescaling(-1, offset=1, input_shape=[28, 28]),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(64, activation='relu'),
      tf.keras.layers.Dense(10),
    ]
  )


def compute_accuracy(weights, test):
  keras_model = build_keras_model()
  weights.assign_weights_to(keras_model)
  return np.mean(np.argmax(keras_model(test.x), axis=1) == test.y)


def main():
  # TensorFlow warns about checks that it drops from TFF's secure sums.
  logging.getLogger('tensorflow').setLevel(logging.CRITICAL)
  digits = femnist.load_bundled(seed=0)
  tf.keras.utils.set_random_seed(0)
  model = tff.learning.models.functional_model_from_keras(
    build_keras_model(),
    loss_fn=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=digits.model.input_spec,
  )
  process = tff.learning.algorithms.build_weighted_fed_prox(
    model,
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
  print('round  sent  uplink [Mbit]  clipped updates, scalars  accuracy')
  with execution.use_secure_test_context():
    state = process.initialize()
    for round_num in range(NUM_ROUNDS):
      cohort = []
      for client_id in draw_cohort(round_num, COHORT_SIZE):
        x, y = digits.train.examples(client_id)
        cohort.append(tf.data.Dataset.from_tensor_slices((x, y)).batch(20))
      state, metrics = process.next(state, cohort)
      measured = metrics['aggregator']
      sampled = measured['clipping']
      weights = process.get_model_weights(state)
      print(
        f'{round_num:5}{sampled["participants"]:6}'
        f'{sampled["uplink_bits"] / 1e6:15.1f}'
        f'{measured["clipped_count"]:17}{sampled["clipped"]["scalars"]:9}'
        f'{compute_accuracy(weights, digits.test):10.1%}'
      )


if __name__ == '__main__':
  main()
