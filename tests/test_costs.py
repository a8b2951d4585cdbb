"""Tests of costs that differ between clients, in the TFF computations."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tff_ocs import probabilities
from tff_ocs import schemes

BUDGET = 2.0
SCHEMES = {
  'ocs': schemes.OptimalSampling(BUDGET),
  'aocs': schemes.ApproximateOptimalSampling(BUDGET, 12),
  'threshold': schemes.ThresholdSampling(BUDGET, initial_threshold=3.0),
}
each_scheme = pytest.mark.parametrize('scheme', SCHEMES)
# In the first N entries each client has one of its own, so that the aggregate
# shows who sent, and with what factor.
N = 6
SIZES = [1, 8, 0.5, 3, 2, 0]
VALUES = list((np.eye(N) * SIZES).astype(np.float32))
WEIGHTS = [np.float32(w) for w in (1, 2, 3, 1.5, 1, 4)]
NORMS = np.array(WEIGHTS) * SIZES
COSTS = np.array([1, 0.25, 4, 0.5, 2, 1], np.float32)
SEEDS = [np.array([k, 11]) for k in range(N)]


@functools.cache
def build(scheme, create):
  factory = tff_ocs.ClientSamplingFactory(SCHEMES[scheme], measure_norms=True)
  return getattr(factory, create)(
    tff.TensorType(np.float32, [N]), tff.TensorType(np.float32)
  )


def run(scheme, costs):
  process = build(scheme, 'create_with_costs')
  return process.next(
    process.initialize(), VALUES, WEIGHTS, SEEDS, list(np.float32(costs))
  )


def reference(scheme, costs):
  if scheme == 'ocs':
    return probabilities.optimal_probabilities(NORMS, BUDGET, costs)
  if scheme == 'aocs':
    return probabilities.approximate_probabilities(NORMS, BUDGET, 12, costs)[0]
  return probabilities.threshold_probabilities(NORMS, 3.0, costs)


@each_scheme
def test_probabilities_are_those_of_the_reference(scheme):
  output = run(scheme, COSTS)
  p = reference(scheme, COSTS)
  coins = np.array(
    [tf.random.stateless_uniform([], s, dtype=tf.float64) for s in SEEDS]
  )
  sends = coins < p
  assert 0 < sends.sum() < np.count_nonzero(NORMS)
  np.testing.assert_allclose(
    output.result,
    np.where(sends, NORMS / np.where(p > 0, p, 1), 0) / np.sum(WEIGHTS),
    rtol=1e-5,
  )
  assert output.measurements['expected_participants'] == pytest.approx(
    p.sum(), rel=1e-5
  )
  if scheme != 'threshold':
    assert COSTS @ p == pytest.approx(BUDGET)


@pytest.mark.parametrize('unit', [1e-4, 1e4])
def test_unit_of_the_costs_does_not_matter(unit):
  factory = tff_ocs.ClientSamplingFactory(
    schemes.ApproximateOptimalSampling(BUDGET * unit, 12)
  )
  process = factory.create_with_costs(
    tff.TensorType(np.float32, [N]), tff.TensorType(np.float32)
  )
  output = process.next(
    process.initialize(), VALUES, WEIGHTS, SEEDS, list(COSTS * np.float32(unit))
  )
  assert output.measurements['expected_participants'] == pytest.approx(
    reference('aocs', COSTS).sum(), rel=1e-5
  )


@each_scheme
def test_costs_of_1_equal_no_costs_bit_for_bit(scheme):
  plain = build(scheme, 'create_with_coin_seeds')
  costly = build(scheme, 'create_with_costs')
  states = plain.initialize(), costly.initialize()
  ones = [np.float32(1)] * N
  for round_num in range(3):
    values = [v * np.float32(1 + 0.37 * round_num) for v in VALUES]
    first = plain.next(states[0], values, WEIGHTS, SEEDS)
    second = costly.next(states[1], values, WEIGHTS, SEEDS, ones)
    for part in ('state', 'result', 'measurements'):
      tf.nest.map_structure(
        np.testing.assert_array_equal,
        getattr(first, part),
        getattr(second, part),
      )
    states = first.state, second.state


def test_first_round_of_threshold_keeps_the_budget():
  factory = tff_ocs.ClientSamplingFactory(
    schemes.ThresholdSampling(BUDGET, first_cohort_size=float(COSTS.sum()))
  )
  process = factory.create_with_costs(
    tff.TensorType(np.float32, [N]), tff.TensorType(np.float32)
  )
  output = process.next(
    process.initialize(), VALUES, WEIGHTS, SEEDS, list(COSTS)
  )
  p = BUDGET / COSTS.sum()
  # The last client has the norm 0.
  assert output.measurements['expected_participants'] == pytest.approx(5 * p)


# Sums of the same costs in another order differ in the last digits, by which
# some of these budgets had no threshold.
@pytest.mark.parametrize('code', ['numpy', 'tensorflow'])
def test_budgets_that_are_sums_of_costs(code):
  rng = np.random.default_rng(0)
  for _ in range(600):
    n = rng.integers(20, 60)
    costs = rng.lognormal(0, rng.choice([0.5, 2, 15]), n)
    norms = rng.lognormal(0, rng.choice([0, 0.5, 3]), n)
    keys = norms / np.sqrt(costs)
    from_largest = costs[np.argsort(-keys)]
    budget = rng.choice(
      [costs.sum(), np.sort(costs).sum(), *np.cumsum(from_largest)[-3:]]
    )
    budget *= 1 + rng.integers(-3, 4) * 2.0**-53
    if code == 'numpy':
      p = probabilities.optimal_probabilities(norms, budget, costs)
    else:
      tau = schemes._threshold(tf.constant(keys), tf.constant(costs), budget)
      p = np.minimum(keys / tau, 1) if tau > 0 else np.ones(n)
    assert costs @ p == pytest.approx(min(budget, costs.sum()), rel=1e-9)


def test_threshold_learns_from_costs():
  state = run('threshold', COSTS).state['scheme']['controller']
  expected = probabilities.update_threshold(
    probabilities.ThresholdState(3.0),
    NORMS,
    reference('threshold', COSTS),
    BUDGET,
    client_costs=COSTS,
  )
  assert state['threshold'] == pytest.approx(expected.threshold, rel=1e-6)
  assert state['num_rounds'] == expected.num_rounds


@pytest.mark.parametrize('bad', [0, -1, np.inf, np.nan])
def test_bad_cost(bad):
  with pytest.raises(Exception, match='cost of a client must be finite'):
    run('ocs', [1, 1, bad, 1, 1, 1])


def test_schemes_that_do_not_use_costs():
  factory = tff_ocs.ClientSamplingFactory(schemes.UniformSampling(2))
  with pytest.raises(TypeError, match=r'found UniformSampling\(expected_cl'):
    factory.create_with_costs(np.float32, np.float32)


def test_training_process_takes_costs():
  build_process = functools.partial(
    tff_ocs.build_federated_averaging_process,
    models.build_linear_model(1),
    SCHEMES['ocs'],
    client_learning_rate=0.1,
  )
  x = np.array([[1.0], [2.0]], np.float32)
  data = [
    collections.OrderedDict(
      x=x * scale, y=x, seed=tff_ocs.simple_fedavg.client_seed(0, 0, str(scale))
    )
    for scale in (1, 3, 2, 5)
  ]
  costly = [
    collections.OrderedDict(d, cost=np.float32(c))
    for d, c in zip(data, (1, 4, 0.5, 2))
  ]
  process = build_process(client_costs=True)
  _, output = process.next(process.initialize(), costly)
  of_aggregator = output['aggregator']
  # The budget is of costs, and the mean cost is not 1.
  assert of_aggregator['expected_participants'] != pytest.approx(2, abs=1e-3)
  process = build_process()
  _, output = process.next(process.initialize(), data)
  assert output['aggregator']['expected_participants'] == pytest.approx(2)
