"""Tests of what dropouts do to the aggregate, by going through all outcomes."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from experiments.theory import dropouts
from tff_ocs import probabilities

M = 1.5
# Their probability of a false alarm is 2e-10 for a normal variable. The seed is
# fixed, so that a test that passes once passes always.
STANDARD_ERRORS = 6.4
POOL = dropouts.Pool(
  np.array([3.0, 1.0, 7.0, 2.0]),
  np.array([[1.0, 0.5], [-2.0, 1.0], [0.5, 0.5], [1.0, -3.0]]),
)
RATES = np.array([0.2, 0.0, 0.7, 0.4])


def outcomes(chances):
  """All outcomes of independent events, with their probabilities."""
  for happens in itertools.product([False, True], repeat=len(chances)):
    happens = np.array(happens)
    yield happens, np.prod(np.where(happens, chances, 1 - chances))


def probabilities_of(method, u, reported):
  """The p_i, computed from those that reported alone; 0 for the others."""
  p = np.zeros(u.size)
  if not reported.any():
    return p
  if method == 'full':
    p[reported] = 1
  elif method == 'uniform':
    p[reported] = probabilities.uniform_probabilities(reported.sum(), M)
  elif method == 'OCS':
    p[reported] = probabilities.optimal_probabilities(u[reported], M)
  elif method == 'AOCS':
    p[reported] = probabilities.approximate_probabilities(
      u[reported], M
    ).probabilities
  else:
    tau = probabilities.sampling_threshold(u, M)
    p[reported] = probabilities.threshold_probabilities(u[reported], tau)
  return p


def follow_the_protocol(row, rates):
  """The mean, and E ||estimate - mean||^2, by all dropouts and coins."""
  n, updates = POOL.weights, POOL.updates
  u = n * np.linalg.norm(updates, axis=-1)
  one_message = row['method'] not in ('OCS', 'AOCS')
  mean, square = 0.0, 0.0
  for here, chance in outcomes(1 - rates):
    reported = here if row['lost'] == 'before' else np.ones(4, bool)
    p = probabilities_of(row['method'], u, reported)
    in_denominator = reported
    if one_message or row['variant'] == dropouts.ACKNOWLEDGED:
      in_denominator = here
    if row['variant'] == dropouts.OVER_KNOWN_WEIGHT:
      in_denominator = np.ones(4, bool)
    for coins, chance_of_coins in outcomes(p):
      total = np.zeros(2)
      for i in np.flatnonzero(here & coins):
        scale = 1 / p[i]
        if row['variant'] == dropouts.SCALED:
          scale /= 1 - rates[i]
        total += n[i] * scale * updates[i]
      weight = n[in_denominator].sum()
      estimate = total / weight if weight else total
      mean = mean + chance * chance_of_coins * estimate
      square += chance * chance_of_coins * estimate @ estimate
  return mean, square - mean @ mean


@pytest.mark.parametrize(
  'rates', [RATES, RATES[::-1], np.full(4, 0.3)], ids=['a', 'b', 'equal']
)
def test_every_case_has_the_moments_of_all_outcomes(rates):
  rows = list(dropouts.measure(POOL, rates, M, 20000, 0))
  assert len(rows) == 15
  wanted = POOL.weights @ POOL.updates / POOL.weights.sum()
  size = np.linalg.norm(wanted)
  for row in rows:
    mean, variance = follow_the_protocol(row, rates)
    bias = np.linalg.norm(mean - wanted) / size
    assert row['bias'] == pytest.approx(bias, abs=1e-11), row
    assert row['along'] == pytest.approx(mean @ wanted / size**2), row
    std = np.sqrt(variance) / size
    assert abs(row['std'] - std) <= STANDARD_ERRORS * row['std_error'] + 1e-9, (
      row
    )
    # The error is small enough to see a mistake.
    assert row['std_error'] < 0.01 * std


def test_variance_of_the_arrived_is_exact_given_the_sets():
  # Each set as often as in 4^4 rounds.
  rates = np.array([0.25, 0.5, 0.0, 0.75])
  arrived = np.array(list(itertools.product(range(4), repeat=4))) >= 4 * rates
  for method in dropouts.METHODS:
    p = dropouts.sample(method, POOL.norms, M, arrived)
    moments = dropouts.measure_of_arrived(POOL, rates, arrived, p)
    row = {'method': method, 'lost': 'before', 'variant': ''}
    mean, variance = follow_the_protocol(row, rates)
    np.testing.assert_allclose(moments.mean, mean, atol=1e-11)
    assert moments.variance == pytest.approx(variance), method


@pytest.mark.parametrize('q', [0.05, 0.1, 0.2])
def test_aggregate_of_ocs_and_aocs_is_shorter_by_the_dropout_probability(q):
  pool = dropouts.make_pool(*dropouts.make_unbalanced(32, 0), seed=0)
  rates = dropouts.equal_rates(pool.weights, q)
  rows = {
    (row['method'], row['lost'], row['variant']): row
    for row in dropouts.measure(pool, rates, 3, 1000, 0)
  }
  for method in ('OCS', 'AOCS'):
    row = rows[method, dropouts.BETWEEN, dropouts.UNCHANGED]
    assert row['along'] == pytest.approx(1 - q)
    assert row['bias'] == pytest.approx(q)
    assert rows[method, dropouts.BETWEEN, dropouts.SCALED]['bias'] < 1e-12
  one_trip = rows[dropouts.ONE_TRIP, dropouts.BETWEEN, dropouts.UNCHANGED]
  assert abs(one_trip['along'] - 1) < q / 100
  # It has the bias of plain FedAvg, exactly.
  full = rows['full', dropouts.BETWEEN, dropouts.UNCHANGED]
  assert 0 < one_trip['bias'] == full['bias'] < q / 10


def test_share_is_that_of_rational_arithmetic():
  weights = [1, 10**6, 3, 0, 40, 7]
  rates = [Fraction(1, 2), Fraction(3, 4), 0, Fraction(1, 2), Fraction(7, 8), 0]
  expected = [Fraction(0)] * 6
  for here in itertools.product([False, True], repeat=6):
    chance = Fraction(1)
    for arrives, q in zip(here, rates):
      chance *= 1 - q if arrives else q
    total = sum(n for n, arrives in zip(weights, here) if arrives)
    for i in range(6):
      if here[i] and total:
        expected[i] += chance * weights[i] / total
  np.testing.assert_allclose(
    dropouts.expect_share(np.array(weights, float), np.array(rates, float)),
    np.array(expected, float),
    rtol=1e-11,
  )


def test_share_without_dropouts_is_the_weight():
  weights = np.random.default_rng(0).lognormal(0, 2, 300)
  np.testing.assert_allclose(
    dropouts.expect_share(weights, np.zeros(300)),
    weights / weights.sum(),
    rtol=1e-10,
  )


@pytest.mark.parametrize('mean', [0.0, 0.05, 0.2, 0.8])
def test_growing_rates_have_the_mean_and_the_limit(mean):
  weights = np.array([1.0, 100.0, 2.0, 10.0, 5.0])
  rates = dropouts.growing_rates(weights, mean)
  assert rates.mean() == pytest.approx(mean)
  assert np.all((0 <= rates) & (rates <= dropouts.LARGEST_RATE))
  below = (0 < rates) & (rates < dropouts.LARGEST_RATE)
  if mean:
    assert np.all(np.diff(rates[np.argsort(weights)]) >= 0)
    assert np.ptp((rates / weights)[below]) < 1e-12
    assert rates[1] > 2 * mean or rates[1] == dropouts.LARGEST_RATE


@pytest.mark.parametrize('method', dropouts.METHODS)
def test_small_and_empty_cohorts_all_send(method):
  reported = np.array([[False] * 4, [True, False, False, False]])
  p = dropouts.sample(method, POOL.norms, 1.0, reported)
  assert np.all(np.isfinite(p)) and p.shape == (2, 4)
  if method != dropouts.ONE_TRIP:
    assert p[1, 0] == 1


@pytest.mark.parametrize('method', ['OCS', 'AOCS'])
def test_all_that_report_send_if_they_are_at_most_m(method):
  # Norms of which four iterations of Algorithm 2 do not find the probabilities,
  # if the clients that did not report count in n.
  reported = np.arange(8)[np.newaxis] < 6
  p = dropouts.sample(method, 10.0 ** np.arange(8), 6.0, reported)
  np.testing.assert_array_equal(p, reported)


def test_made_up_cohort_is_unbalanced_and_has_a_common_direction():
  weights, norms = dropouts.make_unbalanced(32, 0)
  pool = dropouts.make_pool(weights, norms, seed=0)
  assert weights.max() > 10 * weights.min()
  np.testing.assert_allclose(pool.norms, weights * norms)
  # Otherwise the bias of G would be that of noise.
  assert np.linalg.norm(pool.terms.sum(axis=0)) > 0.4 * (
    pool.norms.sum() / weights.sum()
  )
