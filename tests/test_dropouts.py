"""Tests of clients that are lost between their norm and their update."""

import collections
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tff_ocs import probabilities
from tff_ocs import schemes

M = 1.5
N = 4
# In the first N entries each client has one of its own, so that the aggregate
# shows who sent, and with what factor.
SIZES = [1, 5, 0.5, 2]
VALUES = list((np.eye(N) * SIZES).astype(np.float32))
WEIGHTS = [np.float32(w) for w in (1, 3, 2, 1.5)]
NORMS = np.array(WEIGHTS) * SIZES
SEEDS = [np.array([k, 3]) for k in range(N)]
SCHEMES = {
  'full': (schemes.FullParticipation(), np.ones(N)),
  'uniform': (
    schemes.UniformSampling(M),
    probabilities.uniform_probabilities(N, M),
  ),
  'ocs': (
    schemes.OptimalSampling(M),
    probabilities.optimal_probabilities(NORMS, M),
  ),
  'aocs': (
    schemes.ApproximateOptimalSampling(M),
    probabilities.approximate_probabilities(NORMS, M)[0],
  ),
  'threshold': (
    schemes.ThresholdSampling(M, initial_threshold=9.0),
    probabilities.threshold_probabilities(NORMS, 9.0),
  ),
}
each_scheme = pytest.mark.parametrize('scheme', SCHEMES)


@functools.cache
def build(scheme, create):
  factory = tff_ocs.ClientSamplingFactory(
    SCHEMES[scheme][0], measure_norms=True
  )
  return getattr(factory, create)(
    tff.TensorType(np.float32, [N]), tff.TensorType(np.float32)
  )


def run(scheme, lost):
  process = build(scheme, 'create_with_dropouts')
  return process.next(
    process.initialize(), VALUES, WEIGHTS, SEEDS, [bool(x) for x in lost]
  )


@each_scheme
def test_every_set_of_lost_clients_leaves_only_its_updates_out(scheme):
  _, p = SCHEMES[scheme]
  coins = np.array(
    [tf.random.stateless_uniform([], s, dtype=tf.float64) for s in SEEDS]
  )
  assert (coins < p).any()
  before = run(scheme, [False] * N)
  for lost in itertools.product([False, True], repeat=N):
    output = run(scheme, lost)
    sends = (coins < p) & ~np.array(lost)
    np.testing.assert_allclose(
      output.result,
      np.where(sends, NORMS / p, 0) / np.sum(WEIGHTS),
      rtol=1e-5,
    )
    measured = dict(output.measurements)
    assert measured.pop('participants') == sends.sum()
    # All else is as if nobody had been lost: the norms are in the sums.
    for name in ('available', 'expected_participants', 'norms'):
      np.testing.assert_array_equal(measured[name], before.measurements[name])
    tf.nest.map_structure(
      np.testing.assert_array_equal,
      output.state['scheme'],
      before.state['scheme'],
    )
    # The bits are those of one update less for each that is not sent.
    missing = before.measurements['participants'] - sends.sum()
    assert measured['uplink_bits'] == (
      before.measurements['uplink_bits'] - 32 * N * missing
    )


@each_scheme
def test_without_losses_equal_to_no_dropouts_bit_for_bit(scheme):
  plain = build(scheme, 'create_with_coin_seeds')
  with_dropouts = build(scheme, 'create_with_dropouts')
  states = plain.initialize(), with_dropouts.initialize()
  for round_num in range(3):
    values = [v * np.float32(1 + 0.37 * round_num) for v in VALUES]
    first = plain.next(states[0], values, WEIGHTS, SEEDS)
    second = with_dropouts.next(states[1], values, WEIGHTS, SEEDS, [False] * N)
    for part in ('state', 'result', 'measurements'):
      tf.nest.map_structure(
        np.testing.assert_array_equal,
        getattr(first, part),
        getattr(second, part),
      )
    states = first.state, second.state


def test_training_process_takes_losses():
  process = tff_ocs.build_federated_averaging_process(
    models.build_linear_model(1),
    schemes.FullParticipation(),
    client_learning_rate=0.1,
    dropouts=True,
  )
  x = np.array([[1.0], [2.0]], np.float32)

  def train(lost):
    data = [
      collections.OrderedDict(
        x=x * scale,
        y=x,
        seed=tff_ocs.simple_fedavg.client_seed(0, 0, str(scale)),
        lost=is_lost,
      )
      for scale, is_lost in zip((1, 3, 2), lost)
    ]
    state = process.initialize()
    after, output = process.next(state, data)
    step = tf.nest.map_structure(
      lambda new, old: new - old,
      after.weights.trainable,
      state.weights.trainable,
    )
    return np.concatenate([np.ravel(s) for s in tf.nest.flatten(step)]), output

  alone = [train([k != i for k in range(3)])[0] for i in range(3)]
  assert all(np.abs(step).max() > 0 for step in alone)
  step, output = train([False, True, False])
  np.testing.assert_allclose(step, alone[0] + alone[2], rtol=1e-4, atol=1e-7)
  assert output['aggregator']['participants'] == 2
  assert output['num_examples'] == 6


def test_not_combined_with_costs():
  with pytest.raises(ValueError, match='client_costs=True and dropouts=True'):
    tff_ocs.build_federated_averaging_process(
      models.build_linear_model(1),
      schemes.OptimalSampling(1),
      client_learning_rate=0.1,
      client_costs=True,
      dropouts=True,
    )
