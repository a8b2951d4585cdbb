"""Federated Averaging with optimal sampling in one round trip, as deployed.

  TF_CPP_MIN_LOG_LEVEL=3 python examples/deployable_ocs.py

The whole round is compiled to TFF's `MapReduceForm`, in which a fleet of
devices runs it: the server broadcasts once, each client trains and decides by
itself whether to send, and all sums are secure. OCS and AOCS cannot be compiled
to it. The script then executes the form. TFF's open-source runtime has no
cryptography, so the sums are computed in the clear here, with the clipping and
rounding of a real protocol.
"""

import logging

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tff_ocs import execution
from tff_ocs import secure_sums
from tff_ocs.tasks import femnist
from tff_ocs.tasks import task

NUM_ROUNDS = 30
COHORT_SIZE = 16  # n
EXPECTED_CLIENTS = 3  # m
CLIP_NORM = 1.0


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


def build_aggregator(max_weight: float):
  """Returns threshold sampling of clipped updates, with secure sums."""
  bounds = secure_sums.propose_bounds(
    max_update_norm=CLIP_NORM,
    max_weight=max_weight,
    cohort_size=COHORT_SIZE,
    expected_clients=EXPECTED_CLIENTS,
  )
  sampling = tff_ocs.ClientSamplingFactory(
    tff_ocs.ThresholdSampling(EXPECTED_CLIENTS, first_cohort_size=COHORT_SIZE),
    # A threshold of earlier rounds scales updates by more than one of this
    # round would; the measurements say whether this clips anything.
    value_sum_factory=tff.aggregators.SecureSumFactory(10 * bounds.value),
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
  # TensorFlow warns about checks that it drops from TFF's secure sums.
  logging.getLogger('tensorflow').setLevel(logging.CRITICAL)
  digits = femnist.load_bundled(seed=0)
  num_examples = digits.train.num_examples
  tf.keras.utils.set_random_seed(0)
  model = tff.learning.models.functional_model_from_keras(
    build_keras_model(),
    loss_fn=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=digits.model.input_spec,
  )
  process = tff.learning.algorithms.build_weighted_fed_avg(
    model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(2**-3),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    model_aggregator=build_aggregator(max(num_examples.values())),
  )
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  form = execution.map_reduce_form(process)
  print(f'MapReduceForm, with secure sums: {form.securely_aggregates_tensors}')

  mapreduce = tff.backends.mapreduce
  run_round = mapreduce.get_computation_for_map_reduce_form(form)
  draw_cohort = tff.simulation.build_uniform_sampling_fn(
    digits.train.client_ids, replace=False, random_seed=0
  )
  evaluate = task.build_evaluation(model, digits.test)
  print('round  sent  uplink [Mbit]  clipped scalars, values  accuracy')
  sent = 0
  with execution.use_secure_test_context():
    state = process.initialize()
    for round_num in range(NUM_ROUNDS):
      client_ids = draw_cohort(round_num, COHORT_SIZE)
      cohort = []
      for client_id in client_ids:
        x, y = digits.train.examples(client_id)
        cohort.append(tf.data.Dataset.from_tensor_slices((x, y)).batch(20))
      # The server knows the clients' numbers of examples since they checked in.
      cohort_weight = sum(num_examples[client_id] for client_id in client_ids)
      state = tff_ocs.set_cohort_weight(state, cohort_weight)
      state, metrics = run_round(state, cohort)
      measured = metrics['aggregator']['clipping']
      sent += measured['participants']
      if (round_num + 1) % 5 == 0:
        weights = tff.learning.models.ModelWeights(
          **state['global_model_weights']
        )
        clipped = measured['clipped']
        print(
          f'{round_num:5}{measured["participants"]:6}'
          f'{measured["uplink_bits"] / 1e6:15.1f}'
          f'{clipped["scalars"]:17}{clipped["values"]:8}'
          f'{evaluate(weights).accuracy:10.1%}'
        )
  mean = np.float64(sent) / NUM_ROUNDS
  print(f'{mean:.2f} of {COHORT_SIZE} clients sent on average.')


if __name__ == '__main__':
  main()
