import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize

from tests import oracles
from tff_ocs import probabilities


def _random_norms():
  rng = np.random.default_rng(20220716)
  for n in (1, 2, 3, 5, 8, 32, 128, 1000):
    yield f'uniform-{n}', rng.uniform(0, 1, n)
    yield f'lognormal-{n}', rng.lognormal(0, 3, n)
    yield f'integer-{n}', rng.integers(0, 4, n).astype(float)
    yield f'ratio-1e12-{n}', 10.0 ** rng.uniform(-6, 6, n)
    yield f'half-zero-{n}', rng.uniform(0, 1, n) * rng.integers(0, 2, n)


ADVERSARIAL = {
  'one-client': [2.0],
  'one-client-zero': [0.0],
  'all-zero': [0.0] * 5,
  'one-nonzero': [0.0, 0.0, 7.0, 0.0],
  'two-nonzero': [0.0, 1e-9, 7.0, 0.0],
  'equal': [0.1] * 10,
  'two-levels': [5.0, 5.0, 1.0, 1.0],
  'one-giant': [100.0, 1.0, 1.0, 1.0],
  'two-giants': [1e8, 1e8, 1.0, 1.0],
  'giant-1e12': [1e12] + [1.0] * 20,
  'dwarf-1e-12': [1e-12] + [1.0] * 20,
  'powers-of-10': [10.0**k for k in range(-6, 7)],
  'powers-of-3': [3.0**k for k in range(16)],
  'powers-of-2': [2.0**k for k in range(10)],
  'powers-of-2-and-zeros': [0.0, 0.0] + [2.0**k for k in range(10)],
  # m u_i / u is exactly 1 for some i and an integer m.
  'at-the-threshold': [3.0, 3.0, 2.0, 2.0, 1.0, 1.0],
  'at-the-threshold-decimal': [0.3, 0.3, 0.2, 0.2, 0.1, 0.1],
  'ulps-apart': [1.0 + k * 2.0**-52 for k in range(20)],
  'huge': [1e300, 2e300, 3e300, 1.5e308, 1e299],
  'tiny': [1e-300, 2e-300, 3e-300, 1e-299, 1e-306],
  'thousand-with-few-giants': [1e12, 1e9, 1e6, 1e3] + [1.0] * 996,
}
ALL_NORMS = {
  **{name: np.array(norms) for name, norms in ADVERSARIAL.items()},
  **dict(_random_norms()),
}
SMALL_NORMS = {name: u for name, u in ALL_NORMS.items() if 2 <= u.size <= 8}

each_norms = pytest.mark.parametrize(
  'norms', ALL_NORMS.values(), ids=ALL_NORMS.keys()
)
each_small_norms = pytest.mark.parametrize(
  'norms', SMALL_NORMS.values(), ids=SMALL_NORMS.keys()
)


def _budgets(num_clients):
  """Values of m for n clients: whole and not, from below 1 to above n."""
  candidates = {0.01, 0.5, 1, 2, 2.5, 3, 0.1 * num_clients, num_clients / 2}
  candidates |= {num_clients - 1, num_clients - 0.5, num_clients}
  candidates |= {num_clients + 0.5, 2 * num_clients, 10**9}
  return sorted(m for m in candidates if m > 0)


def _floats(fractions):
  return np.array([float(x) for x in fractions])


# Eq. (7) against independent optimisers.


@each_norms
def test_optimal_equals_kkt_solution_in_rational_arithmetic(norms):
  for m in _budgets(norms.size):
    np.testing.assert_allclose(
      probabilities.optimal_probabilities(norms, m),
      _floats(oracles.optimal_probabilities(norms, m)),
      rtol=1e-12,
      err_msg=f'm = {m}',
    )


@each_norms
def test_optimal_equals_bisection_on_the_kkt_multiplier(norms):
  scaled = norms / norms.max() if norms.max() > 0 else norms
  positive = scaled[scaled > 0]

  def expected_participants(log_s):
    # Stationarity: u^2 / p^2 = s^2 wherever p < 1.
    return math.fsum(np.minimum(positive / math.exp(log_s), 1))

  for m in _budgets(norms.size):
    if m >= positive.size:
      continue
    # One client above 1 / m of the total makes the root flat to the left.
    log_s = optimize.bisect(
      lambda x, m=m: expected_participants(x) - m,
      math.log(positive.min()) - 1e-9,
      math.log(positive.sum() / m) + 1e-9,
      xtol=1e-14,
      rtol=1e-15,
    )
    np.testing.assert_allclose(
      probabilities.optimal_probabilities(norms, m),
      np.minimum(scaled / math.exp(log_s), 1),
      rtol=1e-10,
      err_msg=f'm = {m}',
    )


# SLSQP may step an ulp across a bound, and warns.
@pytest.mark.filterwarnings('ignore:Values in x were outside bounds')
@pytest.mark.parametrize('m', [0.7, 1, 2, 3.3, 5])
@pytest.mark.parametrize('seed', range(4))
def test_optimal_equals_sequential_quadratic_programming(seed, m):
  norms = np.random.default_rng(seed).lognormal(0, 1.5, 8)
  norms /= norms.max()
  solution = optimize.minimize(
    lambda p: np.sum(norms**2 / p),
    x0=np.full(8, m / 8),
    jac=lambda p: -(norms**2) / p**2,
    bounds=[(1e-9, 1)] * 8,
    constraints={
      'type': 'ineq',
      'fun': lambda p: m - p.sum(),
      'jac': lambda p: -np.ones(8),
    },
    method='SLSQP',
    options={'ftol': 1e-15, 'maxiter': 1000},
  )
  found = np.clip(solution.x, 0, 1)
  p = probabilities.optimal_probabilities(norms, m)
  np.testing.assert_allclose(p, found, atol=1e-5)
  assert probabilities.sampling_variance(norms, p) == pytest.approx(
    probabilities.sampling_variance(norms, found), rel=1e-8
  )


@each_small_norms
def test_optimal_equals_brute_force_over_all_sets_of_sure_clients(norms):
  exact = [Fraction(u) for u in norms]
  for m in _budgets(norms.size):
    if m >= np.count_nonzero(norms):
      continue
    least, best = math.inf, None
    for size in range(math.ceil(m)):
      for sure in itertools.combinations(range(norms.size), size):
        total = sum(u for i, u in enumerate(exact) if i not in sure)
        p = [
          Fraction(1) if i in sure else (Fraction(m) - size) * u / total
          for i, u in enumerate(exact)
        ]
        if max(p) <= 1:
          variance = sum((1 - q) / q * u**2 for q, u in zip(p, exact) if u)
          if variance < least:
            least, best = variance, p
    np.testing.assert_allclose(
      probabilities.optimal_probabilities(norms, m), _floats(best), rtol=1e-12
    )


@each_small_norms
def test_optimal_takes_the_largest_l_of_eq_7_with_norms_from_the_smallest(
  norms,
):
  n = norms.size
  ascending = [Fraction(u) for u in np.sort(norms)]
  for m in _budgets(n):
    if m >= n:
      continue
    l = max(  # noqa: E741 (the paper's name)
      l
      for l in range(1, n + 1)  # noqa: E741
      if 0 < Fraction(m) + l - n
      and (Fraction(m) + l - n) * ascending[l - 1] <= sum(ascending[:l])
    )
    total = sum(ascending[:l])
    expected = [
      (Fraction(m) + l - n) * u / total if total else 0 for u in ascending[:l]
    ] + [1] * (n - l)
    np.testing.assert_allclose(
      np.sort(probabilities.optimal_probabilities(norms, m)),
      _floats(expected),
      rtol=1e-12,
    )


@pytest.mark.parametrize('m', [0.5, 10, 10_000, 30_000.5, 55_000, 59_999])
@pytest.mark.parametrize(
  'draw',
  [
    lambda rng: rng.random(60_000),
    lambda rng: np.exp(3 * rng.standard_normal(60_000)),
    lambda rng: rng.pareto(0.5, 60_000),
    # Few different ones; many zeros; the guess from every 64th norm is 0, or
    # sees the only large ones.
    lambda rng: rng.integers(1, 4, 60_000).astype(float),
    lambda rng: rng.random(60_000) * (rng.random(60_000) < 0.2),
    lambda rng: np.where(np.arange(60_000) % 64 == 0, 0.0, rng.random(60_000)),
    lambda rng: np.where(np.arange(60_000) % 64 == 0, 1e10, rng.random(60_000)),
  ],
)
def test_optimal_of_many_norms_equals_eq_7_by_sorting(draw, m):
  norms = draw(np.random.default_rng(0))
  p = probabilities.optimal_probabilities(norms, m)
  # The p_i of the sorted norms with extended precision.
  ascending = np.sort(norms).astype(np.longdouble)
  sums = np.cumsum(ascending)
  for last in range(len(norms) - 1, -1, -1):
    unsaturated = m - (len(norms) - 1 - last)
    assert unsaturated > 0
    if unsaturated * ascending[last] <= sums[last]:
      break
  threshold = sums[last] / unsaturated
  if np.count_nonzero(norms) <= m:
    expected = norms > 0
  else:
    expected = np.minimum(norms / threshold, 1)
  np.testing.assert_allclose(p, expected.astype(float), rtol=1e-11)
  assert p.sum() == pytest.approx(min(m, np.count_nonzero(norms)), rel=1e-11)


@each_norms
def test_optimal_sums_to_m_or_the_number_of_nonzero_norms(norms):
  for m in _budgets(norms.size):
    p = probabilities.optimal_probabilities(norms, m)
    assert p.shape == norms.shape
    assert p.dtype == np.float64
    assert np.all((p >= 0) & (p <= 1))
    assert math.fsum(p) == pytest.approx(
      min(m, np.count_nonzero(norms)), rel=1e-12
    )
    assert np.all((p > 0) == (norms > 0))


@pytest.mark.parametrize(
  'norms',
  [u for u in ALL_NORMS.values() if 2 <= u.size <= 32],
  ids=[name for name, u in ALL_NORMS.items() if 2 <= u.size <= 32],
)
def test_no_feasible_perturbation_lowers_the_variance(norms):
  if norms.max() > 0:
    norms = norms / norms.max()
  rng = np.random.default_rng(0)
  for m in _budgets(norms.size):
    p = probabilities.optimal_probabilities(norms, m)
    least = probabilities.sampling_variance(norms, p)
    others = []
    # Moves between two clients, which generate all feasible directions ...
    for i, j in itertools.permutations(range(norms.size), 2):
      for share in (1e-3, 0.5):
        step = share * min(p[i], 1 - p[j])
        if step > 0:
          q = p.copy()
          q[i] -= step
          q[j] += step
          others.append(q)
    # ... and feasible points anywhere.
    for _ in range(20):
      q = rng.uniform(0, 1, norms.size)
      others.append(np.minimum(q * m / q.sum(), 1))
    for q in others:
      assert probabilities.sampling_variance(norms, q) >= least * (1 - 1e-9)


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


def test_probability_functions_do_not_change_their_argument():
  norms = np.array([3.0, 2.0, 1.0, 0.0])
  for function in (
    probabilities.optimal_probabilities,
    probabilities.approximate_probabilities,
  ):
    function(norms, 2)
    np.testing.assert_array_equal(norms, [3.0, 2.0, 1.0, 0.0])


def test_sampling_threshold_is_in_the_units_of_the_norms():
  for scale in (1.0, 2.0**-30, 2.0**30):
    norms = scale * np.array([100.0, 1.0, 1.0, 1.0])
    assert probabilities.sampling_threshold(norms, 2) == 3.0 * scale
  assert probabilities.sampling_threshold([1.0, 2.0], 2) == 0
  assert probabilities.sampling_threshold([0.0, 0.0, 0.0], 2) == 0


# Algorithm 2.


@each_norms
@pytest.mark.parametrize('max_iterations', [0, 1, 2, 4, 40])
def test_approximate_equals_algorithm_2_in_rational_arithmetic(
  norms, max_iterations
):
  for m in _budgets(norms.size):
    p, num_iterations = probabilities.approximate_probabilities(
      norms, m, max_iterations
    )
    assert type(num_iterations) is int
    if m >= norms.size:
      # By convention; Algorithm 2 expects m < n.
      np.testing.assert_array_equal(p, norms > 0)
      assert num_iterations == 0
      continue
    if not norms.any():
      np.testing.assert_array_equal(p, norms)
      assert num_iterations == min(max_iterations, 1)
      continue
    expected, factors = oracles.approximate_probabilities(
      norms, m, max_iterations
    )
    np.testing.assert_allclose(
      p, _floats(expected), rtol=1e-12, err_msg=f'm = {m}'
    )
    # A factor that differs from 1 by less than can be computed may end the loop
    # an iteration early; these norms have such a factor nowhere.
    tight = [c for c in factors if c and 1 < c < 1 + Fraction(1, 10**10)]
    assert tight or num_iterations == len(factors), f'm = {m}'


@each_norms
def test_approximate_equals_optimal_where_iterations_suffice(norms):
  for m in _budgets(norms.size):
    p, num_iterations = probabilities.approximate_probabilities(
      norms, m, norms.size + 1
    )
    np.testing.assert_allclose(
      p, probabilities.optimal_probabilities(norms, m), rtol=1e-11
    )
    for limit in (1, 2, 4):
      p, num_iterations = probabilities.approximate_probabilities(
        norms, m, limit
      )
      reached = math.fsum(p) == pytest.approx(
        min(m, np.count_nonzero(norms)), rel=1e-12
      )
      if num_iterations < limit or reached:
        np.testing.assert_allclose(
          p, probabilities.optimal_probabilities(norms, m), rtol=1e-11
        )
      else:
        assert math.fsum(p) < m


def test_approximate_takes_four_iterations_by_default():
  norms = 3.0 ** np.arange(16)
  default = probabilities.approximate_probabilities(norms, 8)
  explicit = probabilities.approximate_probabilities(norms, 8, 4)
  np.testing.assert_array_equal(default.probabilities, explicit.probabilities)
  assert default.num_iterations == explicit.num_iterations == 4


# Uniform sampling, variance and improvement factors.


@pytest.mark.parametrize(
  'n, m, p', [(4, 2, 0.5), (32, 3, 3 / 32), (5, 2.5, 0.5), (3, 3, 1), (3, 7, 1)]
)
def test_uniform_is_m_over_n_and_at_most_1(n, m, p):
  np.testing.assert_array_equal(
    probabilities.uniform_probabilities(n, m), np.full(n, p)
  )


@pytest.mark.parametrize('seed', range(3))
def test_variance_is_that_of_the_estimator_over_all_outcomes(seed):
  # All 2^6 outcomes of the coins, with their probabilities: no randomness.
  rng = np.random.default_rng(seed)
  updates = rng.normal(size=(6, 3)) * rng.lognormal(0, 1, (6, 1))
  weights = rng.integers(1, 20, 6)
  weights = weights / weights.sum()
  norms = weights * np.linalg.norm(updates, axis=1)
  full = weights @ updates
  for p in (
    probabilities.uniform_probabilities(6, 2.5),
    probabilities.optimal_probabilities(norms, 2.5),
    probabilities.approximate_probabilities(norms, 2.5, 1).probabilities,
  ):
    mean, variance = np.zeros(3), 0.0
    for outcome in itertools.product([0, 1], repeat=6):
      sent = np.array(outcome)
      chance = np.prod(np.where(sent, p, 1 - p))
      estimate = (sent * weights / p) @ updates
      mean += chance * estimate
      variance += chance * np.sum((estimate - full) ** 2)
    np.testing.assert_allclose(mean, full, rtol=1e-12)
    assert probabilities.sampling_variance(norms, p) == pytest.approx(
      variance, rel=1e-12
    )


def test_variance_of_zero_norms_is_0_and_of_a_missing_client_infinite():
  assert probabilities.sampling_variance([0.0, 0.0], [0.0, 0.5]) == 0
  assert probabilities.sampling_variance([1.0, 0.0], [1.0, 0.0]) == 0
  assert probabilities.sampling_variance([1.0, 1.0], [1.0, 0.0]) == math.inf
  assert probabilities.sampling_variance([2.0, 3.0], [0.5, 0.25]) == 4 + 27
  # Squares that overflow.
  assert probabilities.sampling_variance([1e200, 1.0], [1.0, 0.5]) == 1


def test_improvement_factor_is_1_for_identical_norms():
  for m in (0.5, 1, 3, 7.5):
    assert probabilities.improvement_factor([0.3] * 8, m) == pytest.approx(1)


def test_improvement_factor_is_0_with_at_most_m_nonzero_norms():
  assert probabilities.improvement_factor([4.0, 3.0, 0.0, 0.0], 2) == 0
  assert probabilities.improvement_factor([4.0, 0.0, 0.0, 0.0], 2) == 0
  assert probabilities.improvement_factor([0.0, 0.0, 0.0], 2) == 0
  assert probabilities.improvement_factor([4.0, 3.0], 2) == 0
  assert probabilities.improvement_factor([4.0, 3.0], 5) == 0


@each_norms
def test_improvement_factor_is_the_ratio_of_the_variances(norms):
  scaled = norms / norms.max() if norms.max() > 0 else norms
  squares = np.sum(scaled**2)
  for m in _budgets(norms.size):
    alpha = probabilities.improvement_factor(norms, m)
    assert 0 <= alpha <= 1
    if m >= norms.size or squares == 0:
      assert alpha == 0
      continue
    # The appendix' closed forms, with p from the oracle.
    p = _floats(oracles.optimal_probabilities(norms, m))
    unsure = (p < 1) & (p > 0)
    optimal = np.sum(scaled[unsure] ** 2 * (1 / p[unsure] - 1))
    uniform = (norms.size - m) / m * squares
    # 1 - p is known up to a rounding of 1.
    assert alpha == pytest.approx(
      optimal / uniform, rel=1e-9, abs=norms.size * 2.0**-52
    )
    if m * scaled.max() <= scaled.sum():
      assert alpha <= scaled.sum() ** 2 / (norms.size * squares) * (1 + 1e-12)


def test_improvement_factor_of_the_smallest_case_by_hand():
  # p = (3/4, 1/4): (1/3) 9 + 3 x 1 = 6; uniform p = 1/2: 9 + 1 = 10.
  assert probabilities.improvement_factor([3.0, 1.0], 1) == pytest.approx(0.6)


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


# Known values.


@pytest.mark.parametrize(
  'norms, m, expected',
  [
    ([100, 1, 1, 1], 2, [1, 1 / 3, 1 / 3, 1 / 3]),
    ([1, 1, 1, 1], 2, [0.5, 0.5, 0.5, 0.5]),
    ([5, 5, 1, 1], 2, [5 / 6, 5 / 6, 1 / 6, 1 / 6]),
  ],
)
def test_known_values(norms, m, expected):
  np.testing.assert_allclose(
    probabilities.optimal_probabilities(norms, m), expected, rtol=1e-15
  )
  np.testing.assert_allclose(
    probabilities.approximate_probabilities(norms, m).probabilities,
    expected,
    rtol=1e-15,
  )


def test_powers_of_3_need_five_iterations():
  norms = 3.0 ** np.arange(16)
  p, num_iterations = probabilities.approximate_probabilities(norms, 8, 4)
  assert num_iterations == 4
  assert round(p.sum(), 2) == 7.67
  p, num_iterations = probabilities.approximate_probabilities(norms, 8, 5)
  assert num_iterations == 5
  assert p.sum() == pytest.approx(8, rel=1e-14)
  np.testing.assert_allclose(
    p, probabilities.optimal_probabilities(norms, 8), rtol=1e-13
  )


# Faults of public implementations.


def test_sure_clients_are_not_rescaled():
  norms = [1e8, 1e8, 1, 1]
  expected = _floats(oracles.optimal_probabilities(norms, 2))
  assert expected.sum() == pytest.approx(2)
  np.testing.assert_allclose(
    probabilities.approximate_probabilities(norms, 2).probabilities,
    expected,
    rtol=1e-14,
  )
  np.testing.assert_allclose(
    probabilities.optimal_probabilities(norms, 2), expected, rtol=1e-14
  )


@pytest.mark.parametrize(
  'norms, m, expected',
  [
    ([1, 0, 0, 0], 2, [1, 0, 0, 0]),
    ([3, 1, 0, 0], 2, [1, 1, 0, 0]),
    ([3, 2, 1, 0], 3, [1, 1, 1, 0]),
    ([0, 0, 0, 0], 2, [0, 0, 0, 0]),
  ],
)
def test_nothing_left_to_rescale(norms, m, expected):
  np.testing.assert_array_equal(
    probabilities.optimal_probabilities(norms, m), expected
  )
  np.testing.assert_array_equal(
    probabilities.approximate_probabilities(norms, m).probabilities, expected
  )


@pytest.mark.parametrize('m', [4, 4.5, 5, 100])
@pytest.mark.parametrize(
  'norms', [[1e8, 1, 1, 1e-8], [1, 1, 1, 1], [3, 0, 2, 0], [0, 0, 0, 0]]
)
def test_all_nonzero_clients_send_for_m_of_at_least_n(norms, m):
  expected = np.array(norms) > 0
  np.testing.assert_array_equal(
    probabilities.optimal_probabilities(norms, m), expected
  )
  p, num_iterations = probabilities.approximate_probabilities(norms, m)
  np.testing.assert_array_equal(p, expected)
  assert num_iterations == 0


def _rounding_cases(num_cases=400):
  rng = np.random.default_rng(2)
  for _ in range(num_cases):
    n = int(rng.integers(8, 64))
    norms = rng.lognormal(0, 1.5, n).astype(np.float32)
    yield norms.astype(np.float64), int(rng.integers(1, n // 2))


def test_rounding_does_not_cost_an_iteration():
  num_faults = 0
  for norms, m in _rounding_cases():
    _, factors = oracles.approximate_probabilities(norms, m, 20)
    assert probabilities.approximate_probabilities(
      norms, m, 20
    ).num_iterations == len(factors)
    _, literal = oracles.literal_float32_algorithm_2(norms, m, 20)
    num_faults += len(literal) > len(factors)
  # The cases do contain the fault: C = 1.0000001 where it is 1.
  assert num_faults > 20


def test_rounding_does_not_make_a_sure_client_unsure():
  num_faults = 0
  for norms, m in _rounding_cases():
    exact = oracles.optimal_probabilities(norms, m)
    sure = np.array([p == 1 for p in exact])
    p = probabilities.approximate_probabilities(norms, m, 20).probabilities
    np.testing.assert_array_equal(p == 1, sure)
    literal, _ = oracles.literal_float32_algorithm_2(norms, m, 20)
    num_faults += bool(np.any(literal[sure] < 1))
  # The cases do contain the fault: C = 0.9999998 where it is 1.
  assert num_faults > 20


@pytest.mark.parametrize('n', [100, 1000])
@pytest.mark.parametrize('m', [0.01, 0.1, 0.3, 2.3])
def test_cancellation_in_m_minus_n_does_not_cost_an_iteration(n, m):
  norms = np.random.default_rng(3).uniform(1, 2, n)
  p, num_iterations = probabilities.approximate_probabilities(norms, m)
  assert num_iterations == 1
  np.testing.assert_allclose(p, m * norms / norms.sum(), rtol=1e-14)


def test_cohort_size_is_the_length_of_the_norms():
  norms = [9.0, 3.0, 2.0, 1.0, 1.0]
  for n in range(1, 6):
    expected = _floats(oracles.optimal_probabilities(norms[:n], 2))
    np.testing.assert_allclose(
      probabilities.approximate_probabilities(norms[:n], 2).probabilities,
      expected,
      rtol=1e-14,
    )


def test_one_giant_leaves_no_probability_above_1():
  np.testing.assert_allclose(
    probabilities.optimal_probabilities([1, 1, 1, 1, 100], 3),
    [0.5, 0.5, 0.5, 0.5, 1],
    rtol=1e-15,
  )
  np.testing.assert_allclose(
    probabilities.approximate_probabilities([1, 1, 1, 1, 100], 3).probabilities,
    [0.5, 0.5, 0.5, 0.5, 1],
    rtol=1e-15,
  )


def test_largest_first_order_of_the_appendix_is_not_optimal():
  norms, m = np.array([100.0, 1.0, 1.0, 1.0]), 2
  descending, n = norms, norms.size
  l = max(  # noqa: E741
    l
    for l in range(1, n + 1)  # noqa: E741
    if 0 < m + l - n <= descending[:l].sum() / descending[l - 1]
  )
  assert l == n  # So that p_1 = 200 / 103: no probability.
  assert (m + l - n) * descending[0] / descending[:l].sum() > 1
  np.testing.assert_allclose(
    probabilities.optimal_probabilities(norms, m), [1, 1 / 3, 1 / 3, 1 / 3]
  )


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


@pytest.mark.parametrize(
  'call, error, message',
  [
    (
      lambda: probabilities.optimal_probabilities([1.0], '3'),
      TypeError,
      r"expected_clients must be a number above 0, found '3' of type str",
    ),
    (
      lambda: probabilities.optimal_probabilities([1.0], True),
      TypeError,
      r'expected_clients must be a number above 0, found True of type bool',
    ),
    (
      lambda: probabilities.optimal_probabilities([1.0], None),
      TypeError,
      r'expected_clients must be a number above 0, found None',
    ),
    (
      lambda: probabilities.optimal_probabilities([1.0], 0),
      ValueError,
      r'expected_clients must be a finite number above 0, found 0',
    ),
    (
      lambda: probabilities.approximate_probabilities([1.0], -1.5),
      ValueError,
      r'expected_clients must be a finite number above 0, found -1\.5',
    ),
    (
      lambda: probabilities.sampling_threshold([1.0], math.nan),
      ValueError,
      r'expected_clients must be a finite number above 0, found nan',
    ),
    (
      lambda: probabilities.uniform_probabilities(3, math.inf),
      ValueError,
      r'expected_clients must be a finite number above 0, found inf',
    ),
    (
      lambda: probabilities.approximate_probabilities([1.0], 1, -1),
      ValueError,
      r'max_iterations must be at least 0, found -1',
    ),
    (
      lambda: probabilities.approximate_probabilities([1.0], 1, 4.0),
      TypeError,
      r'max_iterations must be an integer of at least 0, found 4\.0 of type',
    ),
    (
      lambda: probabilities.approximate_probabilities([1.0], 1, True),
      TypeError,
      r'max_iterations must be an integer of at least 0, found True',
    ),
    (
      lambda: probabilities.optimal_probabilities([], 1),
      ValueError,
      r'norms must be a 1-D array .* found the shape \(0,\)',
    ),
    (
      lambda: probabilities.optimal_probabilities([[1.0]], 1),
      ValueError,
      r'norms must be a 1-D array .* found the shape \(1, 1\)',
    ),
    (
      lambda: probabilities.batch_probabilities(1.0, 1),
      ValueError,
      r'norms must be an array of shape \[\.\.\., n\] .* the shape \(\)',
    ),
    (
      lambda: probabilities.batch_probabilities([[1.0, math.nan]], 1),
      ValueError,
      r'norms must be finite and at least 0, found nan',
    ),
    (
      lambda: probabilities.batch_sampling_variance([[1.0]], [1.0]),
      ValueError,
      r'shape of norms, \(1, 1\), found \(1,\)',
    ),
    (
      lambda: probabilities.approximate_probabilities([1.0, -2.0], 1),
      ValueError,
      r'norms must be finite and at least 0, found -2\.0',
    ),
    (
      lambda: probabilities.sampling_variance([math.nan], [0.5]),
      ValueError,
      r'norms must be finite and at least 0, found nan',
    ),
    (
      lambda: probabilities.improvement_factor([1.0, math.inf], 1),
      ValueError,
      r'norms must be finite and at least 0, found inf',
    ),
    (
      lambda: probabilities.sampling_variance([1.0], [1.5]),
      ValueError,
      r'probabilities must lie in \[0, 1\], found 1\.5',
    ),
    (
      lambda: probabilities.sampling_variance([1.0], [math.nan]),
      ValueError,
      r'probabilities must lie in \[0, 1\], found nan',
    ),
    (
      lambda: probabilities.sampling_variance([1.0], [0.5, 0.5]),
      ValueError,
      r'shape of norms, \(1,\), found \(2,\)',
    ),
    (
      lambda: probabilities.uniform_probabilities(0, 1),
      ValueError,
      r'num_clients must be at least 1, found 0',
    ),
    (
      lambda: probabilities.uniform_probabilities(3.0, 1),
      TypeError,
      r'num_clients must be an integer of at least 1, found 3\.0 of type float',
    ),
    (
      lambda: probabilities.relative_improvement_factor(1.5, 3, 1),
      ValueError,
      r'alpha must lie in \[0, 1\], found 1\.5',
    ),
    (
      lambda: probabilities.relative_improvement_factor(math.nan, 3, 1),
      ValueError,
      r'alpha must lie in \[0, 1\], found nan',
    ),
  ],
)
def test_bad_arguments(call, error, message):
  with pytest.raises(error, match=message):
    call()
