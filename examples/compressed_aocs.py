"""AOCS with compression: fewer clients send, and each of them sends less.

  TF_CPP_MIN_LOG_LEVEL=3 python examples/compressed_aocs.py

Trains with Federated Averaging on digits: with full participation, with AOCS,
and with AOCS whose updates are rounded at random to 4 bits an entry.
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tff_ocs import compression
from tff_ocs import execution
from tff_ocs import simple_fedavg
from tff_ocs.tasks import femnist

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


def train(model, client_data, sampling):
  """Trains for some rounds; returns the weights and the bits that were sent."""
  process = tff_ocs.build_federated_averaging_process(
    model, sampling, client_learning_rate=2**-3
  )
  # All samplings see the same cohorts, shuffles and coins.
  draw_cohort = tff.simulation.build_uniform_sampling_fn(
    client_data.client_ids, replace=False, random_seed=0
  )
  state, bits = process.initialize(), 0
  for round_num in range(NUM_ROUNDS):
    cohort = []
    for client_id in draw_cohort(round_num, COHORT_SIZE):
      x, y = client_data.examples(client_id)
      seed = simple_fedavg.client_seed(0, round_num, client_id)
      cohort.append({'x': x, 'y': y, 'seed': seed})
    state, metrics = process.next(state, cohort)
    bits += int(metrics['aggregator']['uplink_bits'])
  return state.weights, bits


def main():
  digits = femnist.load_bundled(seed=0)
  tf.keras.utils.set_random_seed(0)
  model = tff.learning.models.functional_model_from_keras(
    build_keras_model(),
    loss_fn=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=digits.model.input_spec,
  )
  print(f'After {NUM_ROUNDS} rounds with {COHORT_SIZE} clients each:')
  print(f'{"":20}accuracy  uplink [Mbit]')
  with execution.use_local_context():
    for name, sampling in SAMPLINGS.items():
      weights, bits = train(model, digits.train, sampling)
      keras_model = build_keras_model()
      weights.assign_weights_to(keras_model)
      labels = np.argmax(keras_model(digits.test.x), axis=1)
      accuracy = np.mean(labels == digits.test.y)
      print(f'{name:20}{accuracy:8.1%}{bits / 1e6:15.1f}')


if __name__ == '__main__':
  main()
