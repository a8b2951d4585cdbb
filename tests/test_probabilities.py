"""Tests of the reference probabilities, against independent derivations."""

import decimal
import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import optimize

from tests import oracles
from tff_ocs import probabilities


def _random_norms():
  rng = np.random.default_rng(20220716)
  for n in (1, 2, 3, 5, 8, 32, 128):
    yield f'uniform-{n}', rng.uniform(0, 1, n)
    yield f'lognormal-{n}', rng.lognormal(0, 3, n)
    yield f'integer-{n}', rng.integers(0, 4, n).astype(float)
    yield f'ratio-1e12-{n}', 10.0 ** rng.uniform(-6, 6, n)
    yield f'half-zero-{n}', rng.uniform(0, 1, n) * rng.integers(0, 2, n)


NORMS = {
  'one-client': [2.0],
  'one-client-zero': [0.0],
  'all-zero': [0.0] * 5,
  'one-nonzero': [0.0, 0.0, 7.0, 0.0],
  'two-nonzero': [0.0, 1e-9, 7.0, 0.0],
  'equal': [0.1] * 10,
  'two-levels': [5.0, 5.0, 1.0, 1.0],
  'one-giant': [100.0, 1.0, 1.0, 1.0],
  'two-giants': [1e10, 1e10, 1.0, 1.0],
  'giant-1e12': [1e12] + [1.0] * 20,
  'dwarf-1e-12': [1e-12] + [1.0] * 20,
  'powers-of-10': [10.0**k for k in range(-6, 7)],
  'powers-of-3': [3.0**k for k in range(16)],
  'powers-of-2-and-zeros': [0.0, 0.0] + [2.0**k for k in range(10)],
  # m u_i / u is exactly 1 for some i and an integer m.
  'at-the-threshold': [3.0, 3.0, 2.0, 2.0, 1.0, 1.0],
  'at-the-threshold-decimal': [0.3, 0.3, 0.2, 0.2, 0.1, 0.1],
  'ulps-apart': [1.0 + k * 2.0**-52 for k in range(20)],
  'huge': [1e300, 2e300, 3e300, 1.5e308, 1e299],
  'tiny': [1e-300, 2e-300, 3e-300, 1e-299, 1e-306],
  'subnormal': [5e-324, 1e-323, 3e-323, 5e-321],
  'three-hundred-with-few-giants': [1e12, 1e9, 1e6, 1e3] + [1.0] * 296,
  **dict(_random_norms()),
}
each_norms = pytest.mark.parametrize(
  'norms', [np.array(norms) for norms in NORMS.values()], ids=list(NORMS)
)


def _budgets(n):
  """Values of m for n clients: whole and not, from far below 1 to above n."""
  candidates = {0.01, 0.5, 1, 2, 2.5, 3, 0.1 * n, n / 2, n - 1, n - 0.5, n}
  return sorted(m for m in candidates | {n + 0.5, 10**9} if m > 0)


def _check_close(actual, expected, rtol, m):
  np.testing.assert_allclose(
    actual, [float(x) for x in expected], rtol=rtol, err_msg=f'm = {m}'
  )


# Eq. (7).


@pytest.mark.parametrize(
  'm, expected', [(2, [1, 0.5, 0.5, 0]), (3, [1, 1, 1, 0]), (4, [1, 1, 1, 0])]
)
def test_norms_beyond_the_range_of_a_ratio_are_above_0(m, expected):
  norms = [1e300, 5e-324, 5e-324, 0]
  costs = np.ones(4)
  for p in (
    probabilities.optimal_probabilities(norms, m),
    probabilities.optimal_probabilities(norms, m, costs),
    probabilities.approximate_probabilities(norms, m).probabilities,
    probabilities.approximate_probabilities(norms, m, 4, costs).probabilities,
  ):
    np.testing.assert_allclose(p, expected, rtol=1e-15)


@each_norms
def test_optimal_solves_the_kkt_conditions_in_rational_arithmetic(norms):
  num_positive = np.count_nonzero(norms)
  for m in _budgets(norms.size):
    p = probabilities.optimal_probabilities(norms, m)
    expected = oracles.optimal_probabilities(norms, m)
    _check_close(p, expected, 1e-15, m)
    assert p.dtype == np.float64
    # Exactly 1 where Eq. (7) says 1, and exactly 0 for zero norms only.
    assert [q == 1 for q in p] == [q == 1 for q in map(float, expected)]
    np.testing.assert_array_equal(p > 0, norms > 0)
    assert math.fsum(p) == pytest.approx(min(m, num_positive), rel=1e-15)


@pytest.mark.parametrize(
  'norms',
  [np.array(u) for u in NORMS.values() if 2 <= len(u) <= 6],
  ids=[name for name, u in NORMS.items() if 2 <= len(u) <= 6],
)
def test_optimal_is_the_best_of_all_sets_of_certain_clients(norms):
  # Independent of the KKT conditions. Given the set of clients with p = 1,
  # Cauchy and Schwarz give the best p of the others, if it is at most 1.
  exact = [Fraction(u) for u in norms]
  for m in _budgets(norms.size):
    if m >= np.count_nonzero(norms):
      continue
    least, best = math.inf, None
    for size in range(math.ceil(m)):
      for certain in itertools.combinations(range(norms.size), size):
        total = sum(u for i, u in enumerate(exact) if i not in certain)
        p = [
          Fraction(1) if i in certain else (Fraction(m) - size) * u / total
          for i, u in enumerate(exact)
        ]
        if max(p) <= 1:
          variance = sum((1 - q) / q * u**2 for q, u in zip(p, exact) if u)
          if variance < least:
            least, best = variance, p
    _check_close(probabilities.optimal_probabilities(norms, m), best, 1e-15, m)


@pytest.mark.parametrize('m', [0.5, 1000.3, 500_000, 900_000.5, 999_999])
def test_optimal_of_a_million_norms(m):
  rng = np.random.default_rng(0)
  for norms in (
    rng.lognormal(0, 3, 10**6),
    rng.random(10**6) * (rng.random(10**6) < 0.2),
    # Whole groups of ties at the threshold.
    0.1 * rng.integers(1, 4, 10**6),
  ):
    p = probabilities.optimal_probabilities(norms, m)
    tau = probabilities.sampling_threshold(norms, m)
    num_positive = np.count_nonzero(norms)
    assert math.fsum(p) == pytest.approx(min(m, num_positive), rel=5e-15)
    # KKT: all p below 1 share one multiplier, and no u_i above it has p < 1.
    if num_positive > m:
      np.testing.assert_allclose(p, np.minimum(norms / tau, 1), rtol=1e-15)
      assert np.all(p[norms >= tau] == 1)
    else:
      np.testing.assert_array_equal(p, norms > 0)


def test_optimal_does_not_depend_on_order_or_scale():
  rng = np.random.default_rng(1)
  norms = rng.lognormal(0, 2, 50)
  order = rng.permutation(50)
  p = probabilities.optimal_probabilities(norms, 7)
  np.testing.assert_array_equal(
    probabilities.optimal_probabilities(norms[order], 7), p[order]
  )
  for scale in (2.0**-40, 2.0**40):
    np.testing.assert_array_equal(
      probabilities.optimal_probabilities(scale * norms, 7), p
    )


def test_functions_do_not_change_their_argument():
  norms = np.array([3.0, 2.0, 1.0, 0.0])
  probabilities.optimal_probabilities(norms, 2)
  probabilities.approximate_probabilities(norms, 2)
  np.testing.assert_array_equal(norms, [3.0, 2.0, 1.0, 0.0])


def test_sampling_threshold_is_in_the_units_of_the_norms():
  for scale in (1.0, 2.0**-30, 2.0**30):
    norms = scale * np.array([100.0, 1.0, 1.0, 1.0])
    assert probabilities.sampling_threshold(norms, 2) == 3.0 * scale
  assert probabilities.sampling_threshold([1.0, 2.0], 2) == 0
  assert probabilities.sampling_threshold([0.0, 0.0, 0.0], 2) == 0


def test_order_of_the_appendix_is_not_optimal():
  # Lemma 20 sorts from the largest. With l = n it gives p_1 = 200 / 103.
  descending, m, n = np.array([100.0, 1.0, 1.0, 1.0]), 2, 4
  largest = max(
    j for j in (3, 4) if m + j - n <= descending[:j].sum() / descending[j - 1]
  )
  assert largest == n
  assert m * descending[0] / descending.sum() > 1
  np.testing.assert_allclose(
    probabilities.optimal_probabilities(descending, m), [1, 1 / 3, 1 / 3, 1 / 3]
  )


# Algorithm 2.


@each_norms
def test_approximate_is_algorithm_2_in_rational_arithmetic(norms):
  for m in _budgets(norms.size):
    for limit in (0, 1, 2, 4, 40):
      p, num_iterations = probabilities.approximate_probabilities(
        norms, m, limit
      )
      assert type(num_iterations) is int
      if m >= norms.size:
        # By convention; Algorithm 2 expects m < n.
        np.testing.assert_array_equal(p, norms > 0)
        assert num_iterations == 0
        continue
      if not norms.any():
        np.testing.assert_array_equal(p, norms)
        assert num_iterations == min(limit, 1)
        continue
      expected, factors = oracles.approximate_probabilities(norms, m, limit)
      _check_close(p, expected, 1e-13, m)
      # A factor closer to 1 than rounding may end the loop early.
      tight = [c for c in factors if c and 1 < c < 1 + Fraction(1, 10**10)]
      assert tight or num_iterations == len(factors), f'm = {m}'


@each_norms
def test_approximate_reaches_the_optimum_with_enough_iterations(norms):
  for m in _budgets(norms.size):
    optimal = probabilities.optimal_probabilities(norms, m)
    for limit in (1, 2, 4, norms.size + 1):
      p, num_iterations = probabilities.approximate_probabilities(
        norms, m, limit
      )
      if limit > norms.size or num_iterations < limit:
        np.testing.assert_allclose(p, optimal, rtol=1e-13)
      else:
        assert math.fsum(p) <= math.fsum(optimal) * (1 + 1e-14)


def test_powers_of_3_need_five_iterations():
  norms = 3.0 ** np.arange(16)
  p, num_iterations = probabilities.approximate_probabilities(norms, 8)
  assert num_iterations == 4
  assert round(p.sum(), 2) == 7.67
  p, num_iterations = probabilities.approximate_probabilities(norms, 8, 5)
  assert num_iterations == 5
  np.testing.assert_allclose(
    p, probabilities.optimal_probabilities(norms, 8), rtol=1e-14
  )


# Known values, and the faults of public implementations.


@pytest.mark.parametrize(
  'norms, m, expected',
  [
    ([100, 1, 1, 1], 2, [1, 1 / 3, 1 / 3, 1 / 3]),
    ([1, 1, 1, 1], 2, [0.5, 0.5, 0.5, 0.5]),
    ([5, 5, 1, 1], 2, [5 / 6, 5 / 6, 1 / 6, 1 / 6]),
    # The authors' code rescales clients with p = 1, and ends with zeros.
    ([1e8, 1e8, 1, 1], 2, np.array([1, 1, 1e-8, 1e-8]) / (1 + 1e-8)),
    # There it divides by P = 0: nobody sends.
    ([1, 0, 0, 0], 2, [1, 0, 0, 0]),
    ([3, 1, 0, 0], 2, [1, 1, 0, 0]),
    ([3, 2, 1, 0], 3, [1, 1, 1, 0]),
    ([0, 0, 0, 0], 2, [0, 0, 0, 0]),
    # FedLab and K-Vib are off by one: p = 50 and 2.5.
    ([1, 1, 1, 1, 100], 3, [0.5, 0.5, 0.5, 0.5, 1]),
    ([1, 1, 1, 1, 10], 2, [0.25, 0.25, 0.25, 0.25, 1]),
    # m >= n: a literal port gives NaN.
    ([1e8, 1, 1, 1e-8], 4, [1, 1, 1, 1]),
    ([3, 0, 2, 0], 4.5, [1, 0, 1, 0]),
    ([0, 0, 0, 0], 100, [0, 0, 0, 0]),
    # n is the length of the norms, not a constant.
    ([9, 3], 1, [0.75, 0.25]),
    ([9, 3, 2, 1, 1], 2, [1, 3 / 7, 2 / 7, 1 / 7, 1 / 7]),
  ],
)
def test_known_values(norms, m, expected):
  np.testing.assert_allclose(
    probabilities.optimal_probabilities(norms, m), expected, rtol=2e-15
  )
  p, num_iterations = probabilities.approximate_probabilities(norms, m)
  np.testing.assert_allclose(p, expected, rtol=2e-15)
  assert num_iterations == 0 or m < len(norms)


def test_rounding_costs_no_iteration_and_lowers_no_probability_of_1():
  rng = np.random.default_rng(2)
  num_extra_iterations = num_lowered = 0
  for _ in range(400):
    n = int(rng.integers(8, 64))
    norms = rng.lognormal(0, 1.5, n).astype(np.float32).astype(np.float64)
    m = int(rng.integers(1, n // 2))
    exact, factors = oracles.approximate_probabilities(norms, m, 20)
    is_certain = np.array([p == 1 for p in exact])
    p, num_iterations = probabilities.approximate_probabilities(norms, m, 20)
    assert num_iterations == len(factors)
    np.testing.assert_array_equal(p == 1, is_certain)
    literal, literal_factors = oracles.literal_float32_algorithm_2(norms, m, 20)
    num_extra_iterations += len(literal_factors) > len(factors)
    num_lowered += bool(np.any(literal[is_certain] < 1))
  # The literal port has the faults C = 1.0000001 and C = 0.9999998.
  assert num_extra_iterations > 20
  assert num_lowered > 20


@pytest.mark.parametrize('n', [100, 1000])
@pytest.mark.parametrize('m', [0.01, 0.1, 0.3, 2.3])
def test_cancellation_in_m_minus_n_does_not_cost_an_iteration(n, m):
  norms = np.random.default_rng(3).uniform(1, 2, n)
  p, num_iterations = probabilities.approximate_probabilities(norms, m)
  assert num_iterations == 1
  np.testing.assert_allclose(p, m * norms / norms.sum(), rtol=1e-14)


# Uniform sampling, variance and improvement factors.


@pytest.mark.parametrize(
  'n, m, p', [(4, 2, 0.5), (32, 3, 3 / 32), (5, 2.5, 0.5), (3, 3, 1), (3, 7, 1)]
)
def test_uniform_is_m_over_n_and_at_most_1(n, m, p):
  np.testing.assert_array_equal(
    probabilities.uniform_probabilities(n, m), np.full(n, p)
  )


def _moments(vectors, p, chances):
  """The mean and the variance of sum_{i sent} vectors_i / p_i.

  Args:
    vectors: The w_i U_i, of shape [n, d].
    p: The probability that each client sends.
    chances: The probability of each of the 2^n outcomes, of shape [2] * n.
  """
  outcomes = np.array(list(np.ndindex(chances.shape)))
  estimates = (outcomes / p) @ vectors
  chances = chances.ravel()
  mean = chances @ estimates
  return mean, chances @ np.sum((estimates - mean) ** 2, axis=-1)


def _independent(p):
  outcomes = np.array(list(np.ndindex((2,) * len(p))))
  return np.prod(np.where(outcomes, p, 1 - p), axis=-1).reshape((2,) * len(p))


@pytest.mark.parametrize('seed', range(3))
def test_variance_is_that_of_the_estimator_over_all_outcomes(seed):
  rng = np.random.default_rng(seed)
  updates = rng.normal(size=(6, 3)) * rng.lognormal(0, 1, (6, 1))
  weights = rng.dirichlet(np.ones(6))
  vectors = weights[:, np.newaxis] * updates
  norms = np.linalg.norm(vectors, axis=1)
  for p in (
    probabilities.uniform_probabilities(6, 2.5),
    probabilities.optimal_probabilities(norms, 2.5),
    probabilities.approximate_probabilities(norms, 2.5, 1).probabilities,
  ):
    mean, variance = _moments(vectors, p, _independent(p))
    np.testing.assert_allclose(mean, vectors.sum(axis=0), rtol=1e-12)
    assert probabilities.sampling_variance(norms, p) == pytest.approx(
      variance, rel=1e-12
    )


def test_independent_sampling_is_not_the_best_of_all_samplings():
  # The paper says so before Eq. (6) and in Appendix B. Two clients have equal
  # vectors and the weight 1/2; each sends with the probability 1/2.
  zeta = np.array([3.0, -4.0])
  vectors, p = np.array([zeta, zeta]) / 2, np.full(2, 0.5)
  mean, variance = _moments(vectors, p, _independent(p))
  np.testing.assert_allclose(mean, zeta)
  assert variance == pytest.approx(0.5 * zeta @ zeta)
  norms = np.linalg.norm(vectors, axis=1)
  assert probabilities.sampling_variance(norms, p) == pytest.approx(variance)
  # Exactly one of them sends, each with the same probability 1/2.
  mean, variance = _moments(vectors, p, np.array([[0.0, 0.5], [0.5, 0.0]]))
  np.testing.assert_allclose(mean, zeta)
  assert variance == 0


def test_variance_of_zero_norms_is_0_and_of_a_missing_client_infinite():
  assert probabilities.sampling_variance([0.0, 0.0], [0.0, 0.5]) == 0
  assert probabilities.sampling_variance([1.0, 0.0], [1.0, 0.0]) == 0
  assert probabilities.sampling_variance([1.0, 1.0], [1.0, 0.0]) == math.inf
  assert probabilities.sampling_variance([2.0, 3.0], [0.5, 0.25]) == 4 + 27
  # Squares that overflow.
  assert probabilities.sampling_variance([1e200, 1.0], [1.0, 0.5]) == 1


@pytest.mark.parametrize(
  'norms, m, alpha',
  [
    # p = (3/4, 1/4): 9 / 3 + 3 = 6; uniform with p = 1/2: 9 + 1 = 10.
    ([3.0, 1.0], 1, 0.6),
    ([0.3] * 8, 7.5, 1),
    ([4.0, 3.0, 0.0, 0.0], 2, 0),
    ([4.0, 0.0, 0.0, 0.0], 2, 0),
    ([0.0, 0.0, 0.0], 2, 0),
    ([4.0, 3.0], 5, 0),
  ],
)
def test_improvement_factor_by_hand(norms, m, alpha):
  assert probabilities.improvement_factor(norms, m) == pytest.approx(alpha)


@each_norms
def test_improvement_factor_is_the_ratio_of_the_variances(norms):
  exact = [Fraction(u) for u in norms]
  for m in _budgets(norms.size):
    alpha = probabilities.improvement_factor(norms, m)
    assert 0 <= alpha <= 1
    if m >= norms.size or not norms.any():
      assert alpha == 0
      continue
    p = oracles.optimal_probabilities(norms, m)
    optimal = sum((1 - q) / q * u**2 for q, u in zip(p, exact) if u)
    uniform = (norms.size / Fraction(m) - 1) * sum(u**2 for u in exact)
    # 1 - p is known up to a rounding of 1.
    assert alpha == pytest.approx(
      float(optimal / uniform), rel=1e-12, abs=norms.size * 2.0**-52
    )


def test_improvement_factor_conditions_on_the_updates():
  # One client's update is 3 or 1, equally likely, the other's is 1. Eq. (15)
  # divides E 6 / 2 + 2 / 2 by E 10 / 2 + 2 / 2.
  rounds = np.array([[3.0, 1.0], [1.0, 1.0]])
  p = probabilities.batch_probabilities(rounds, 1)
  optimal = probabilities.batch_sampling_variance(rounds, p).mean()
  uniform = probabilities.batch_sampling_variance(
    rounds, np.full((2, 2), 0.5)
  ).mean()
  assert optimal / uniform == pytest.approx(8 / 12)
  alphas = [probabilities.improvement_factor(u, 1) for u in rounds]
  assert np.mean(alphas) == pytest.approx((0.6 + 1) / 2)


def test_algorithm_2_without_iterations_can_be_worse_than_uniform_sampling():
  norms = np.repeat([1 / 75, 1 / 150], 50)
  uniform = probabilities.sampling_variance(
    norms, probabilities.uniform_probabilities(100, 95)
  )
  ratios = [
    probabilities.sampling_variance(
      norms,
      probabilities.approximate_probabilities(norms, 95, limit).probabilities,
    )
    / uniform
    for limit in (0, 4)
  ]
  assert ratios == pytest.approx([2.2, 0.42], abs=0.005)
  # alpha^k is of the exact probabilities, whatever the scheme.
  assert probabilities.improvement_factor(norms, 95) == pytest.approx(ratios[1])


@pytest.mark.parametrize(
  'alpha, n, m, gamma',
  [
    (1, 32, 3, 3 / 32),
    (0, 32, 3, 1),
    (0.5, 4, 2, 2 / 3),
    (0.25, 10, 2.5, 2.5 / 4.375),
    (0.7, 3, 3, 1),
    (0.7, 3, 9, 1),
  ],
)
def test_relative_improvement_factor(alpha, n, m, gamma):
  assert probabilities.relative_improvement_factor(
    alpha, n, m
  ) == pytest.approx(gamma, rel=1e-15)


# Many rounds at once.


@pytest.mark.parametrize('m', (0.5, 1, 3, 3.7, 12, 20))
def test_batches_equal_their_rounds(m):
  rng = np.random.default_rng(5)
  norms = rng.lognormal(0, 2, (7, 11, 12)) * rng.integers(0, 2, (7, 11, 12))
  norms[0, 0] = 0
  norms[0, 1] = 1
  norms[0, 2] = [1e100] + [1.0] * 11
  norms[0, 3] = [0.0] * 10 + [2.0, 7.0]
  optimal = probabilities.batch_probabilities(norms, m)
  approximate = probabilities.batch_probabilities(norms, m, 2)
  p = rng.uniform(0.1, 1, norms.shape)
  variances = probabilities.batch_sampling_variance(norms, p)
  assert optimal.shape == approximate.shape == norms.shape
  assert variances.shape == (7, 11)
  for index in np.ndindex(7, 11):
    u = norms[index]
    np.testing.assert_array_equal(
      optimal[index], probabilities.optimal_probabilities(u, m)
    )
    np.testing.assert_array_equal(
      approximate[index],
      probabilities.approximate_probabilities(u, m, 2).probabilities,
    )
    assert variances[index] == probabilities.sampling_variance(u, p[index])


# Arguments.


# Costs that differ between clients.


@each_norms
def test_costs_of_1_change_no_bit(norms):
  ones = np.ones(norms.size)
  for m in _budgets(norms.size):
    np.testing.assert_array_equal(
      probabilities.optimal_probabilities(norms, m, ones),
      probabilities.optimal_probabilities(norms, m),
    )
    with np.errstate(over='ignore'):
      assert probabilities.sampling_threshold(
        norms, m, ones
      ) == probabilities.sampling_threshold(norms, m)
    for limit in (0, 1, 4):
      plain = probabilities.approximate_probabilities(norms, m, limit)
      costly = probabilities.approximate_probabilities(norms, m, limit, ones)
      np.testing.assert_array_equal(costly.probabilities, plain.probabilities)
      assert costly.num_iterations == plain.num_iterations
    tau = max(m, norms.max() / 10)
    p = probabilities.threshold_probabilities(norms, tau)
    np.testing.assert_array_equal(
      probabilities.threshold_probabilities(norms, tau, ones), p
    )
    state = probabilities.ThresholdState(threshold=0.7, num_rounds=3)
    assert probabilities.update_threshold(
      state, norms, p, m, client_costs=ones
    ) == probabilities.update_threshold(state, norms, p, m)


def _costly_rounds():
  for seed in range(8):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    costs = rng.lognormal(0, 1.5, n)
    yield rng.lognormal(0, 1.5, n), costs, costs.sum() * rng.uniform(0.05, 0.9)


@pytest.mark.parametrize(('norms', 'costs', 'budget'), _costly_rounds())
def test_costly_probabilities_minimise_the_variance(norms, costs, budget):
  p = probabilities.optimal_probabilities(norms, budget, costs)
  assert (p > 0).all()
  assert (p <= 1).all()
  assert costs @ p == pytest.approx(budget, rel=1e-12)
  # Over log p, in which the optimiser needs no bound at 0.
  best = optimize.minimize(
    lambda x: np.sum(norms**2 * np.exp(-x)),
    np.full(norms.size, np.log(budget / costs.sum())),
    jac=lambda x: -(norms**2) * np.exp(-x),
    bounds=[(-20, 0)] * norms.size,
    constraints={
      'type': 'ineq',
      'fun': lambda x: 1 - costs @ np.exp(x) / budget,
      'jac': lambda x: -costs * np.exp(x) / budget,
    },
    method='SLSQP',
    options={'ftol': 1e-14, 'maxiter': 1000},
  )
  assert probabilities.sampling_variance(norms, p) <= (
    best.fun - np.sum(norms**2)
  ) * (1 + 1e-9) + 1e-9 * np.sum(norms**2)
  np.testing.assert_allclose(p, np.exp(best.x), atol=1e-4)
  # The same from sums only, and from the threshold.
  np.testing.assert_allclose(
    probabilities.approximate_probabilities(
      norms, budget, norms.size, costs
    ).probabilities,
    p,
    rtol=1e-12,
  )
  tau = probabilities.sampling_threshold(norms, budget, costs)
  np.testing.assert_allclose(
    probabilities.threshold_probabilities(norms, tau, costs), p, rtol=1e-12
  )


def test_costs_by_hand():
  # u / sqrt(c) = (6, 1, 1); the first is certain and costs 1, which leaves 1
  # for the costs 4 and 1 with the same probability.
  norms, costs = [6.0, 2.0, 1.0], [1.0, 4.0, 1.0]
  p = probabilities.optimal_probabilities(norms, 2, costs)
  np.testing.assert_allclose(p, [1, 0.2, 0.2])
  assert probabilities.sampling_threshold(norms, 2, costs) == pytest.approx(5)
  # A client of twice the norm and four times the cost has the same probability.
  p = probabilities.optimal_probabilities([1.0, 2.0], 1, [1.0, 4.0])
  np.testing.assert_allclose(p, 0.2)
  # The budget is enough for all that have something to send.
  p = probabilities.optimal_probabilities([1.0, 0.0], 2, [2.0, 9.0])
  np.testing.assert_array_equal(p, [1, 0])


def test_costly_threshold_settles_at_the_budget():
  rng = np.random.default_rng(0)
  norms, costs = rng.lognormal(0, 1, 40), rng.lognormal(0, 1, 40)
  state = probabilities.ThresholdState()
  for _ in range(200):
    p = np.zeros(40)
    if state.threshold:
      p = probabilities.threshold_probabilities(norms, state.threshold, costs)
    state = probabilities.update_threshold(
      state, norms, p, 5.0, client_costs=costs
    )
  assert state.threshold == pytest.approx(
    probabilities.sampling_threshold(norms, 5.0, costs)
  )


_optimal = probabilities.optimal_probabilities
_approximate = probabilities.approximate_probabilities
_M = 'expected_clients must be a '
_NORMS = 'norms must be finite and at least 0, found '


# The threshold of one round trip.

State = probabilities.ThresholdState


def test_exact_threshold_gives_the_optimal_probabilities():
  norms = np.array([9.0, 4, 3, 1, 0.5, 0])
  tau = probabilities.sampling_threshold(norms, 2)
  np.testing.assert_allclose(
    probabilities.threshold_probabilities(norms, tau),
    probabilities.optimal_probabilities(norms, 2),
    rtol=1e-12,
  )


@pytest.mark.parametrize(
  'state, norms, p, expected',
  [
    # Not known yet: sum of norms over m, whatever was sent.
    (State(), [3, 1, 2], [0, 0, 0], State(3.0, 0)),
    (State(), [3, 1, 2], [1, 1, 1], State(3.0, 0)),
    # Nothing to learn: all norms are 0, or all are sure and not too many.
    (State(0.0, 0), [0, 0], [0, 0], State(0.0, 0)),
    (State(5.0, 7), [0, 0], [0, 0], State(5.0, 7)),
    (State(5.0, 7), [9, 9, 0], [1, 1, 0], State(5.0, 7)),
    # Nobody can send: the threshold is far too high.
    (State(5.0, 7), [3, 1], [0, 0], State(2.0, 7)),
    # But too many sure clients are too many.
    (State(5.0, 7), [9] * 3, [1] * 3, State(5 * math.exp(0.3 * 0.5), 8)),
    # One unsure client is enough to learn from.
    (State(5.0, 7), [9, 1], [1, 0.2], State(5 * math.exp(-0.3 * 0.4), 8)),
    # The first steps are larger than eta: 1, 1/2, 1/3, then 0.3.
    (State(5.0, 0), [1] * 5, [0.2] * 5, State(5 * math.exp(-0.5), 1)),
    (State(5.0, 1), [1] * 5, [0.2] * 5, State(5 * math.exp(-0.25), 2)),
    (State(5.0, 2), [1] * 5, [0.2] * 5, State(5 * math.exp(-0.5 / 3), 3)),
    (State(5.0, 3), [1] * 5, [0.2] * 5, State(5 * math.exp(-0.15), 4)),
    # log(c x) for large and small x.
    (State(5.0, 9), [9] * 40, [1] * 40, State(5 * 3 * 20, 10)),
    (State(5.0, 9), [1] * 2, [0.1] * 2, State(5 * 3 * 0.1, 10)),
    # e^999 is beyond float64, but is not needed.
    (State(5.0, 0), [9] * 2000, [1] * 2000, State(5 * 3 * 1000, 1)),
  ],
)
def test_updates_of_the_threshold(state, norms, p, expected):
  found = probabilities.update_threshold(state, norms, p, 2)
  assert found.threshold == pytest.approx(expected.threshold, rel=1e-12)
  assert found.num_rounds == expected.num_rounds


@pytest.mark.parametrize(
  'function, given, error, message',
  [
    (_optimal, ([1.0], '3'), TypeError, _M + "number above 0, found '3'"),
    (_optimal, ([1.0], True), TypeError, _M + 'number above 0, found True'),
    (_optimal, ([1.0], 0), ValueError, _M + 'finite number above 0, found 0'),
    (_approximate, ([1.0], -1.5), ValueError, _M + r'finite .* found -1\.5'),
    (
      probabilities.sampling_threshold,
      ([1.0], math.nan),
      ValueError,
      _M + 'finite number above 0, found nan',
    ),
    (
      probabilities.uniform_probabilities,
      (3, math.inf),
      ValueError,
      _M + 'finite number above 0, found inf',
    ),
    (
      probabilities.uniform_probabilities,
      (0, 1),
      ValueError,
      'num_clients must be .*at least 1, found 0',
    ),
    (
      probabilities.uniform_probabilities,
      (3.0, 1),
      TypeError,
      r'num_clients must be an integer of at least 1, found 3\.0 of type float',
    ),
    (
      _approximate,
      ([1.0], 1, -1),
      ValueError,
      'max_iterations must be .*at least 0, found -1',
    ),
    (
      _approximate,
      ([1.0], 1, 4.0),
      TypeError,
      r'max_iterations must be an integer of at least 0, found 4\.0 of type',
    ),
    (
      _optimal,
      ([], 1),
      ValueError,
      r'norms must be a 1-D array .* found the shape \(0,\)',
    ),
    (
      _optimal,
      ([[1.0]], 1),
      ValueError,
      r'norms must be a 1-D array .* found the shape \(1, 1\)',
    ),
    (
      probabilities.batch_probabilities,
      (1.0, 1),
      ValueError,
      r'norms must be an array of shape \[\.\.\., n\] .* the shape \(\)',
    ),
    (
      probabilities.batch_probabilities,
      ([[1.0, math.nan]], 1),
      ValueError,
      _NORMS + 'nan',
    ),
    (_approximate, ([1.0, -2.0], 1), ValueError, _NORMS + r'-2\.0'),
    (_optimal, ([1.0, math.inf], 1), ValueError, _NORMS + 'inf'),
    (
      probabilities.sampling_variance,
      ([math.nan], [0.5]),
      ValueError,
      _NORMS + 'nan',
    ),
    (
      probabilities.sampling_variance,
      ([1.0], [1.5]),
      ValueError,
      r'probabilities must lie in \[0, 1\], found 1\.5',
    ),
    (
      probabilities.sampling_variance,
      ([1.0], [math.nan]),
      ValueError,
      r'probabilities must lie in \[0, 1\], found nan',
    ),
    (
      probabilities.sampling_variance,
      ([1.0], [0.5, 0.5]),
      ValueError,
      r'shape of norms, \(1,\), found \(2,\)',
    ),
    (
      probabilities.batch_sampling_variance,
      ([[1.0]], [1.0]),
      ValueError,
      r'shape of norms, \(1, 1\), found \(1,\)',
    ),
    (
      probabilities.optimal_probabilities,
      ([1.0, 2.0], 1, [1.0]),
      ValueError,
      r'client_costs must have the shape of norms, \(2,\), found \(1,\)',
    ),
    (
      probabilities.sampling_threshold,
      ([1.0, 2.0], 1, [1.0, 0.0]),
      ValueError,
      r'client_costs must be finite and above 0, found 0\.0',
    ),
    (
      probabilities.relative_improvement_factor,
      (1.5, 3, 1),
      ValueError,
      r'alpha must lie in \[0, 1\], found 1\.5',
    ),
    (
      probabilities.relative_improvement_factor,
      (math.nan, 3, 1),
      ValueError,
      r'alpha must lie in \[0, 1\], found nan',
    ),
    (
      probabilities.threshold_probabilities,
      ([1.0], 0),
      ValueError,
      'threshold must be a finite number above 0, found 0',
    ),
    (
      probabilities.threshold_probabilities,
      ([1.0, math.nan], 1),
      ValueError,
      _NORMS + 'nan',
    ),
    (
      probabilities.update_threshold,
      (probabilities.ThresholdState(), [1.0], [0.5, 0.5], 3),
      ValueError,
      r'shape of norms, \(1,\), found \(2,\)',
    ),
    (
      probabilities.update_threshold,
      (probabilities.ThresholdState(), [1.0], [1.5], 3),
      ValueError,
      r'probabilities must lie in \[0, 1\], found 1\.5',
    ),
    (
      functools.partial(probabilities.update_threshold, eta=-1),
      (probabilities.ThresholdState(), [1.0], [1.0], 3),
      ValueError,
      'eta must be a finite number above 0, found -1',
    ),
    (
      functools.partial(probabilities.update_threshold, c=1),
      (probabilities.ThresholdState(), [1.0], [1.0], 3),
      ValueError,
      'c must be above 1, found 1',
    ),
    *(
      (
        probabilities.update_threshold,
        (probabilities.ThresholdState(*state), [1.0], [0.5], 1),
        error,
        message,
      )
      for state, error, message in (
        ((-1.0, 0), ValueError, r'state\.threshold must be .* found -1\.0'),
        ((math.nan, 0), ValueError, r'state\.threshold must be .* found nan'),
        (('1', 0), TypeError, r"state\.threshold must be .* found '1'"),
        ((1.0, -1), ValueError, r'state\.num_rounds must be .* found -1'),
        ((1.0, 0.5), ValueError, r'state\.num_rounds must be .* found 0\.5'),
        ((1.0, '1'), TypeError, r"state\.num_rounds must be .* found '1'"),
      )
    ),
    (_optimal, ([1.0], 10**400), ValueError, _M + 'finite number above 0, f'),
    *(
      (_optimal, (norms, 1), error, 'norms must be ' + message)
      for norms, error, message in (
        (['1', '2'], TypeError, r"real numbers of float64, found \['1', '2'\]"),
        ([1j, 2], TypeError, r'real numbers of float64, found \[1j, 2\]'),
        (pd.Series(['1', '2']), TypeError, 'real numbers of float64, found 0 '),
        ([None, 1.0], TypeError, r'real numbers of float64, found \[None, 1'),
        (np.ones(2, [('u', float)]), TypeError, 'real numbers of float64'),
        ([10**400], TypeError, r'real numbers of float64, found \[1000'),
        ([[1], [1, 2]], ValueError, 'an array, found sequences of different'),
      )
    ),
    (
      probabilities.sampling_variance,
      ([1.0, 2.0], ['a', 'b']),
      TypeError,
      'probabilities must be real numbers of float64',
    ),
    (
      probabilities.optimal_probabilities,
      ([1.0, 2.0], 1, ['1', '1']),
      TypeError,
      'client_costs must be real numbers of float64',
    ),
    (
      probabilities.relative_improvement_factor,
      ('x', 3, 2),
      TypeError,
      "alpha must be real numbers of float64, found 'x'",
    ),
    (
      probabilities.relative_improvement_factor,
      ([0.5], 3, 2),
      TypeError,
      r'alpha must be a number, found \[0\.5\]',
    ),
  ],
)
def test_bad_arguments(function, given, error, message):
  with pytest.raises(error, match=message):
    function(*given)


@pytest.mark.parametrize(
  'norms',
  [
    [Fraction(1, 2), 1],
    [decimal.Decimal('0.5'), 1.0],
    pd.Series([0.5, 1.0]),
    np.array([0.5, 1], object),
    np.array([0.5, 1], np.float16),
  ],
)
def test_numbers_of_other_types_are_taken(norms):
  np.testing.assert_array_equal(
    probabilities.optimal_probabilities(norms, 0.75), [0.25, 0.5]
  )


def test_state_can_have_arrays():
  state = probabilities.ThresholdState(np.array(2.0), np.array(3))
  found = probabilities.update_threshold(state, [1.0], [0.5], 1)
  assert found == probabilities.update_threshold(
    probabilities.ThresholdState(2.0, 3), [1.0], [0.5], 1
  )
