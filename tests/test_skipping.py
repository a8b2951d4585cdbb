"""Tests of uniform sampling that leaves silent clients untrained."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import test_simple_fedavg as fedavg
from tff_ocs import aggregator
from tff_ocs import simple_fedavg

SIZES = [10, 4, 0, 7, 5, 9]


def cohort(round_num):
  """Clients of different sizes, with other coins in each round."""
  return [
    {**client, 'seed': simple_fedavg.client_seed(0, round_num, str(i))}
    for i, client in enumerate(fedavg.make_cohort(SIZES))
  ]


def play(process, rounds=5):
  state, outputs = process.initialize(), []
  for round_num in range(rounds):
    state, output = process.next(state, cohort(round_num))
    outputs.append((fedavg.trainable(state), output))
  return outputs


def build_both(build, *args, **kwargs):
  return (
    build(fedavg.linear_model(), *args, **kwargs),
    build(fedavg.linear_model(), *args, **kwargs, skips_silent_clients=True),
  )


@pytest.mark.parametrize(
  'build, options',
  [
    (
      tff_ocs.build_federated_averaging_process,
      {'client_learning_rate': 0.1, 'batch_size': 4, 'client_epochs': 2},
    ),
    (
      tff_ocs.build_distributed_sgd_process,
      {
        'learning_rate': 0.1,
        'client_weighting': tff.learning.ClientWeighting.UNIFORM,
      },
    ),
  ],
)
@pytest.mark.parametrize('m', [2, 9])
def test_weights_are_the_same_bit_for_bit(build, options, m):
  plain, skipping = build_both(build, tff_ocs.UniformSampling(m), **options)
  num_participants = set()
  for (weights, output), (same, of_senders) in zip(play(plain), play(skipping)):
    np.testing.assert_array_equal(weights[0], same[0])
    np.testing.assert_array_equal(weights[1], same[1])
    measured = output['aggregator']
    assert measured == of_senders['aggregator']
    num_participants.add(int(measured['participants']))
    if measured['participants'] < len(SIZES):
      assert of_senders['num_examples'] < output['num_examples']
  # There were rounds with more and with fewer, or always all.
  assert len(num_participants) > 1 or num_participants == {len(SIZES)}


def test_loss_is_that_of_the_clients_that_send():
  scheme = tff_ocs.UniformSampling(2)
  options = {'client_learning_rate': 0.1, 'batch_size': 4}
  process = tff_ocs.build_federated_averaging_process(
    fedavg.linear_model(), scheme, **options, skips_silent_clients=True
  )
  full = tff_ocs.build_federated_averaging_process(
    fedavg.linear_model(), tff_ocs.FullParticipation(), **options
  )
  numbers = []
  for round_num in range(4):
    clients = cohort(round_num)
    _, output = process.next(process.initialize(), clients)
    # Who sends, from the coins; all have p = 2 / 6.
    senders = [
      client
      for client in clients
      if coin(client) < np.float32(2 / len(SIZES)) and len(client['y'])
    ]
    numbers.append(len(senders))
    if senders:
      _, expected = full.next(full.initialize(), senders)
      assert output['training_loss'] == expected['training_loss']
      assert output['num_examples'] == expected['num_examples']
    else:
      assert np.isnan(output['training_loss'])
      assert output['num_examples'] == 0
  assert max(numbers) > 0


def coin(client):
  seed = tf.random.experimental.stateless_split(client['seed'], 2)[1]
  return aggregator.seeded_coin(seed).numpy()


def test_diverged_client_that_is_silent_is_not_noticed():
  scheme = tff_ocs.UniformSampling(1)
  process = tff_ocs.build_federated_averaging_process(
    fedavg.linear_model(),
    scheme,
    client_learning_rate=0.1,
    skips_silent_clients=True,
  )
  seen = set()
  for round_num in range(6):
    clients = cohort(round_num)
    for client in clients:
      client['x'] = np.full_like(client['x'], np.nan)
    state, output = process.next(process.initialize(), clients)
    senders = [
      client
      for client in clients
      if coin(client) < np.float32(1 / len(SIZES)) and len(client['y'])
    ]
    assert output['aggregator']['non_finite_clients'] == len(senders)
    assert np.all(np.isfinite(fedavg.trainable(state)[0]))
    seen.add(len(senders))
  assert len(seen) > 1


@pytest.mark.parametrize(
  'sampling',
  [
    tff_ocs.FullParticipation(),
    tff_ocs.OptimalSampling(2),
    tff_ocs.ApproximateOptimalSampling(2),
    tff_ocs.ClientSamplingFactory(tff_ocs.OptimalSampling(2)),
    tff.aggregators.MeanFactory(),
  ],
  ids=['full', 'ocs', 'aocs', 'factory', 'mean'],
)
def test_only_uniform_sampling_knows_before_the_training(sampling):
  with pytest.raises(
    ValueError, match='skips_silent_clients=True needs.*UniformSampling.*found'
  ):
    tff_ocs.build_federated_averaging_process(
      fedavg.linear_model(),
      sampling,
      client_learning_rate=0.1,
      skips_silent_clients=True,
    )


def test_what_needs_all_updates_is_refused():
  uniform = tff_ocs.UniformSampling(2)
  measuring = tff_ocs.ClientSamplingFactory(
    uniform, improvement_expected_clients=2
  )
  for sampling, options, message in (
    (measuring, {}, 'improvement_expected_clients'),
    (uniform, {'availability': True}, 'availability=True'),
    (
      uniform,
      {'client_weighting': lambda known: known['loss']},
      "num_examples of a client, found that it asks for 'loss'",
    ),
  ):
    with pytest.raises(ValueError, match=message):
      tff_ocs.build_federated_averaging_process(
        fedavg.linear_model(),
        sampling,
        client_learning_rate=0.1,
        skips_silent_clients=True,
        **options,
      )
