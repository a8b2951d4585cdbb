"""Tests of the cohort samplers, by enumeration and by numerical optimisers."""

import copy
import itertools
import math

import numpy as np
import pytest
import tensorflow_federated as tff
from scipy import optimize

from tests import oracles
from tff_ocs import cohorts

WEIGHTS = {'a': 1, 'b': 5, 'c': 2, 'd': 4, 'e': 4}
NAMES = list('abcde')
SHARES = np.array([1, 5, 2, 4, 4]) / 16
VALUES = np.array([3.0, -1.0, 0.5, 2.0, 7.0])  # The updates U_i.


def _learned_osmd(clients_per_round=2):
  sampler = cohorts.OsmdCohorts(
    WEIGHTS, clients_per_round, 3, eta=0.1, alpha=0.3
  )
  sampler.restore({'p': np.array([1, 8, 2, 2, 3]) / 16, 'largest': 0.0})
  return sampler


def _learned_kvib(omega=(0.0, 3.0, 8.0, 0.0, 1.0), m=2):
  sampler = cohorts.KVibCohorts(WEIGHTS, m, 3, total_rounds=40, gamma=1.0)
  sampler.restore({'omega': np.array(omega), 'largest': 0.0})
  return sampler


class _Own(cohorts.CohortSampler):
  """A sampler with these results."""

  def __init__(self, expected_draws, draws=(0, 1)):
    super().__init__(WEIGHTS, 2, 0)
    self._expected_draws, self._draws = expected_draws, draws

  def expected_draws(self):
    return self._expected_draws

  def draw(self, round_num):
    return np.array(self._draws)


BUILDERS = {
  'uniform': lambda m=2: cohorts.UniformCohorts(WEIGHTS, m, 3),
  'multinomial': lambda m=2: cohorts.MultinomialCohorts(WEIGHTS, m, 3),
  'clustered': lambda m=2: cohorts.ClusteredCohorts(WEIGHTS, m, 3),
  'osmd': lambda m=2: _learned_osmd(m),
  'kvib': lambda m=2: _learned_kvib(m=m),
}
WITHOUT_REPLACEMENT = ('uniform', 'kvib')
each_unbiased = pytest.mark.parametrize('name', BUILDERS)


class _Uniforms:
  """Stands for a generator: returns given numbers."""

  def __init__(self, numbers):
    self._numbers = np.array(numbers)

  def random(self, shape):
    return self._numbers.reshape(shape)


def _outcomes(name, sampler, monkeypatch):
  """Yields each outcome of a round, as (probability, cohort)."""
  if name == 'uniform':
    # `choice` draws each set with the same probability.
    sets = list(itertools.combinations(range(5), 2))
    for places in sets:
      monkeypatch.setattr(
        sampler, 'draw', lambda r, places=places: np.array(places)
      )
      yield 1 / len(sets), sampler.sample(0)
    return
  if name == 'kvib':
    pi = sampler.expected_draws()
    cells = [[(p, p / 2), (1 - p, (1 + p) / 2)] for p in pi]
  else:
    # All probabilities are multiples of 1/16, those in a bin of 1/8.
    cells = [[(1 / 16, (k + 0.5) / 16) for k in range(16)]] * 2
  for outcome in itertools.product(*cells):
    numbers = [number for _, number in outcome]
    monkeypatch.setattr(sampler, 'generator', lambda r, n=numbers: _Uniforms(n))
    yield math.prod(p for p, _ in outcome), sampler.sample(0)


def _estimate(cohort):
  """The estimate of the pool's update."""
  places = [NAMES.index(i) for i in cohort.client_ids]
  return np.sum(cohort.scales * SHARES[places] * VALUES[places])


def _moments(name, monkeypatch):
  """The mean of s_i, the mean and the variance of the estimate."""
  scales, estimates, weights = [], [], []
  for probability, cohort in _outcomes(name, BUILDERS[name](), monkeypatch):
    scale = dict(zip(cohort.client_ids, cohort.scales))
    scales.append([scale.get(i, 0.0) for i in NAMES])
    estimates.append(_estimate(cohort))
    weights.append(probability)
  assert sum(weights) == pytest.approx(1)
  mean = np.dot(weights, estimates)
  return (
    np.dot(weights, scales),
    mean,
    np.dot(weights, (np.array(estimates) - mean) ** 2),
  )


def _variance_of_draws(p, k, terms):
  """Of the mean over k draws with replacement of the terms over p."""
  return (np.sum(terms**2 / p) - np.sum(terms) ** 2) / k


VARIANCES = {
  # Cochran, Sampling Techniques, Theorem 2.2, for the total of lambda_i U_i.
  'uniform': lambda: 25 / 2 * (1 - 2 / 5) * np.var(SHARES * VALUES, ddof=1),
  'multinomial': lambda: _variance_of_draws(SHARES, 2, SHARES * VALUES),
  'clustered': lambda: (
    sum(
      r @ VALUES**2 - (r @ VALUES) ** 2
      for r in cohorts.ClusteredCohorts(WEIGHTS, 2, 3).bins()
    )
    / 4
  ),
  'osmd': lambda: _variance_of_draws(
    np.array([1, 8, 2, 2, 3]) / 16, 2, SHARES * VALUES
  ),
  # Eq. (6) of optimal client sampling.
  'kvib': lambda: np.sum(
    (1 / _learned_kvib().expected_draws() - 1) * (SHARES * VALUES) ** 2
  ),
}


@each_unbiased
def test_estimate_is_unbiased_with_the_known_variance(name, monkeypatch):
  scales, mean, variance = _moments(name, monkeypatch)
  np.testing.assert_allclose(scales, 1, rtol=1e-12)
  assert mean == pytest.approx(SHARES @ VALUES, rel=1e-12)
  assert variance == pytest.approx(VARIANCES[name](), rel=1e-12)


@each_unbiased
@pytest.mark.parametrize('m', [1, 2, 3, 5])
def test_pi_sum_to_m(name, m):
  pi = BUILDERS[name](m).expected_draws()
  assert pi.sum() == pytest.approx(m, rel=1e-12)
  assert (pi > 0).all()
  if name in WITHOUT_REPLACEMENT:
    assert (pi <= 1).all()


@each_unbiased
def test_draws_have_their_probabilities(name):
  sampler = BUILDERS[name](3)
  rounds = 4000
  draws = np.zeros((rounds, 5))
  for round_num in range(rounds):
    cohort = sampler.sample(round_num)
    places = [NAMES.index(i) for i in cohort.client_ids]
    draws[round_num, places] = cohort.scales * cohort.probabilities
    np.testing.assert_allclose(
      cohort.probabilities, sampler.expected_draws()[places]
    )
  np.testing.assert_allclose(draws, np.round(draws), rtol=1e-15)
  draws = np.round(draws)
  bound = oracles.mean_bound(variance=9 / 4, largest=3, num_samples=rounds)
  assert abs(draws.mean(axis=0) - sampler.expected_draws()).max() < bound
  if name != 'kvib':
    assert (draws.sum(axis=1) == 3).all()
  if name in WITHOUT_REPLACEMENT:
    assert draws.max() == 1


def test_uniform_cohorts_are_those_of_tff():
  names = sorted(f'writer_{k}' for k in range(40))
  for seed in (0, 7, 2**32 - 1):
    draw = tff.simulation.build_uniform_sampling_fn(names, random_seed=seed)
    sampler = cohorts.UniformCohorts(dict.fromkeys(names, 1), 8, seed)
    for round_num in range(5):
      assert sorted(draw(round_num, 8)) == list(
        sampler.sample(round_num).client_ids
      )


def test_multinomial_and_clustered_aggregates_are_plain_means():
  for sampler in (
    cohorts.MultinomialCohorts(WEIGHTS, 3, 0),
    cohorts.ClusteredCohorts(WEIGHTS, 3, 0),
    _learned_power_of_choice(),
  ):
    for round_num in range(20):
      cohort = sampler.sample(
        round_num, sampler.candidates(round_num) and [1] * 4
      )
      counts = np.round(cohort.scales * 3 * _shares(cohort))
      assert counts.sum() == 3
      mean = sum(
        count * VALUES[NAMES.index(i)] / 3
        for i, count in zip(cohort.client_ids, counts)
      )
      assert _estimate(cohort) == pytest.approx(mean)


def _shares(cohort):
  return SHARES[[NAMES.index(i) for i in cohort.client_ids]]


# Clustered sampling.


def test_bins_are_those_of_the_papers_algorithm_1():
  # In units of examples: bins of 16, and 3 n_i = 15, 12, 12, 6, 3.
  expected = np.zeros((3, 5))
  expected[0, 1], expected[0, 3] = 15, 1
  expected[1, 3], expected[1, 4] = 11, 5
  expected[2, 4], expected[2, 2], expected[2, 0] = 7, 6, 3
  bins = cohorts.ClusteredCohorts(WEIGHTS, 3, 0).bins()
  np.testing.assert_allclose(bins, expected / 16, atol=1e-15)


@pytest.mark.parametrize('seed', range(5))
def test_bins_have_the_sums_of_the_paper_and_a_smaller_variance(seed):
  rng = np.random.default_rng(seed)
  sizes = rng.lognormal(3, 2, 30).astype(int) + 1
  weights = {f'{k:02}': n for k, n in enumerate(sizes)}
  sampler = cohorts.ClusteredCohorts(weights, 7, 0)
  bins = sampler.bins()
  assert bins.min() >= 0
  np.testing.assert_allclose(bins.sum(axis=1), 1, rtol=1e-12)
  np.testing.assert_allclose(bins.sum(axis=0), 7 * sizes / sizes.sum())
  # Theorem 1: for the weight of each client in the aggregate.
  clustered = np.sum(bins * (1 - bins), axis=0)
  multinomial = 7 * sampler.shares * (1 - sampler.shares)
  assert (clustered <= multinomial + 1e-12).all()


def test_a_draw_of_a_bin_is_one_of_its_clients():
  sampler = cohorts.ClusteredCohorts(WEIGHTS, 3, 0)
  inside = sampler.bins() > 0
  for round_num in range(200):
    for k, place in enumerate(sampler.draw(round_num)):
      assert inside[k, place]


# Power-of-Choice.


def _learned_power_of_choice(num_candidates=4):
  return cohorts.PowerOfChoiceCohorts(WEIGHTS, 3, 0, num_candidates)


def test_candidates_are_drawn_in_proportion_to_the_weights():
  weights = {'a': 1, 'b': 2, 'c': 5, 'empty': 0}
  sampler = cohorts.PowerOfChoiceCohorts(weights, 1, 0, num_candidates=2)
  total, expected = 8, {}
  for first, second in itertools.permutations('abc', 2):
    pair = ''.join(sorted(first + second))
    chance = weights[first] / total * weights[second]
    chance /= total - weights[first]
    expected[pair] = expected.get(pair, 0) + chance
  rounds = 4000
  found = [''.join(sampler.candidates(r)) for r in range(rounds)]
  bound = oracles.mean_bound(variance=0.25, largest=1, num_samples=rounds)
  assert set(found) == set(expected)
  for pair, chance in expected.items():
    assert abs(found.count(pair) / rounds - chance) < bound


def test_highest_losses_train():
  sampler = _learned_power_of_choice(num_candidates=5)
  assert not sampler.is_unbiased
  assert sampler.candidates(4) == tuple(NAMES)
  for losses, expected in (
    ([0.1, 0.5, 0.2, 0.9, 0.8], 'bde'),
    ([math.nan, math.inf, 0.2, 0.1, 0.0], 'bcd'),
    ([math.nan, math.nan, 3.0, math.nan, 2.0], None),
  ):
    cohort = sampler.sample(4, losses)
    assert len(cohort.client_ids) == 3
    assert expected is None or ''.join(cohort.client_ids) == expected
    assert np.isnan(cohort.probabilities).all()
  assert set('ce') < set(cohort.client_ids)
  assert np.isnan(sampler.expected_draws()).all()


def test_highest_losses_of_the_candidates_train():
  sampler = _learned_power_of_choice(num_candidates=4)
  loss_of = dict(zip(NAMES, [0.3, 0.1, 0.5, 0.2, 0.4]))
  seen = set()
  for round_num in range(20):
    candidates = sampler.candidates(round_num)
    losses = [loss_of[name] for name in candidates]
    found = sampler.sample(round_num, losses).client_ids
    assert set(found) == set(sorted(candidates, key=loss_of.get)[-3:])
    seen.add(candidates)
  assert len(seen) > 1


def test_equal_losses_are_broken_at_random():
  sampler = _learned_power_of_choice(num_candidates=5)
  cohorts_of_rounds = {sampler.sample(r, [1.0] * 5)[0] for r in range(300)}
  # All 10 sets; one is missing with a probability below 10 x 0.9^300 = 2e-13.
  assert len(cohorts_of_rounds) == 10


def test_ties_do_not_depend_on_how_the_candidates_were_drawn():
  sampler = cohorts.PowerOfChoiceCohorts(WEIGHTS, 1, 0, num_candidates=2)
  rounds = range(4000)
  candidates = [sampler.candidates(round_num) for round_num in rounds]
  trained = [
    sampler.sample(round_num, [1.0, 1.0])[0][0] for round_num in rounds
  ]
  for name in NAMES:
    of_name = [name in of_round for of_round in candidates]
    low, high = oracles.count_bounds(np.full(sum(of_name), 0.5))
    assert low <= trained.count(name) <= high


# OSMD.


@pytest.mark.parametrize('seed', range(6))
def test_projection_minimises_the_divergence(seed):
  rng = np.random.default_rng(seed)
  values = rng.lognormal(0, 2, 6)
  floor = [0.01, 0.1, 0.16][seed % 3]
  p = cohorts.project_onto_floor(values, floor)
  best = optimize.minimize(
    lambda x: np.sum(x * np.log(x / values)),
    np.full(6, 1 / 6),
    jac=lambda x: np.log(x / values) + 1,
    bounds=[(floor, 1)] * 6,
    constraints={'type': 'eq', 'fun': lambda x: x.sum() - 1},
    method='SLSQP',
    options={'ftol': 1e-14, 'maxiter': 500},
  )
  assert best.success
  np.testing.assert_allclose(p, best.x, atol=1e-6)
  assert p.sum() == pytest.approx(1, rel=1e-14)
  assert p.min() >= floor


def test_projection_of_extreme_values():
  floor = 0.1
  for values in ([1e-300, 0.0, 1.0], [1.0, 1.0, 1.0], [1e300, 1e-300, 1e300]):
    p = cohorts.project_onto_floor(np.array(values), floor)
    assert p.sum() == pytest.approx(1)
    assert p.min() >= floor
  np.testing.assert_allclose(
    cohorts.project_onto_floor(np.array([5.0, 1.0, 2.0]), 1 / 3), 1 / 3
  )


def test_osmd_takes_the_step_of_mirror_descent():
  eta, alpha, k = 0.05, 0.3, 2
  sampler = cohorts.OsmdCohorts(WEIGHTS, k, 0, eta=eta, alpha=alpha)
  for round_num in range(40):
    before = sampler.expected_draws() / k
    cohort = sampler.sample(round_num)
    places = [NAMES.index(i) for i in cohort.client_ids]
    norms = np.abs(VALUES[places])
    counts = np.round(cohort.scales * cohort.probabilities)
    gradient = np.zeros(5)
    gradient[places] = (
      -counts * (SHARES[places] * norms) ** 2 / (k**2 * before[places] ** 3)
    )
    sampler.observe(round_num, cohort.client_ids, norms)
    after = sampler.expected_draws() / k

    def objective(x, g=gradient, b=before):
      return eta * g @ x + np.sum(x * np.log(x / b))

    best = optimize.minimize(
      objective,
      np.full(5, 1 / 5),
      jac=lambda x, g=gradient, b=before: eta * g + np.log(x / b) + 1,
      bounds=[(alpha / 5, 1)] * 5,
      constraints={'type': 'eq', 'fun': lambda x: x.sum() - 1},
      method='SLSQP',
      options={'ftol': 1e-14, 'maxiter': 500},
    )
    # At a corner the optimiser ends without success, at the optimum.
    assert objective(after) <= best.fun + 1e-9 * (1 + abs(best.fun))
    np.testing.assert_allclose(after, best.x, atol=1e-5)


def test_osmd_approaches_the_probabilities_of_the_least_variance():
  sampler = cohorts.OsmdCohorts(WEIGHTS, 2, 0, eta=2e-3, alpha=0.3)
  mean = np.zeros(5)
  for round_num in range(4000):
    cohort = sampler.sample(round_num)
    norms = [abs(VALUES[NAMES.index(i)]) for i in cohort.client_ids]
    sampler.observe(round_num, cohort.client_ids, norms)
    if round_num >= 1000:
      mean += sampler.expected_draws() / 2 / 3000
  best = optimize.minimize(
    lambda p: np.sum((SHARES * VALUES) ** 2 / p),
    np.full(5, 1 / 5),
    bounds=[(0.3 / 5, 1)] * 5,
    constraints={'type': 'eq', 'fun': lambda p: p.sum() - 1},
    method='SLSQP',
  )
  np.testing.assert_allclose(mean, best.x, atol=0.03)


def test_osmd_estimates_the_gradient_without_bias(monkeypatch):
  # From the steps themselves, without a floor that binds: log(after / before)
  # differs from eta times the estimated gradient by a constant.
  eta, k = 1e-4, 2
  p = np.array([2, 5, 2, 3, 4]) / 16
  mean = np.zeros(5)
  for draws in itertools.product(range(5), repeat=k):
    sampler = cohorts.OsmdCohorts(WEIGHTS, k, 0, eta=eta, alpha=0.1)
    sampler.restore({'p': p, 'largest': 0.0})
    monkeypatch.setattr(sampler, 'draw', lambda r, d=draws: np.array(d))
    cohort = sampler.sample(0)
    places = [NAMES.index(i) for i in cohort.client_ids]
    sampler.observe(0, cohort.client_ids, np.abs(VALUES[places]))
    step = np.log(sampler.expected_draws() / k / p) / eta
    mean += math.prod(p[i] for i in draws) * step
  gradient = -((SHARES * VALUES) ** 2) / (k * p**2)
  # Up to the constant, and to the order of eta.
  np.testing.assert_allclose(
    mean - mean[0], gradient[0] - gradient, atol=2e-2 * abs(gradient).max()
  )


def test_osmd_counts_a_client_that_is_drawn_twice_twice(monkeypatch):
  # The authors' program gives 0.2 exp(x) here, with x = 0.04 / 4 / 0.2^3.
  sampler = cohorts.OsmdCohorts(
    dict.fromkeys(NAMES, 1), 2, 0, eta=1.0, alpha=0.1
  )
  monkeypatch.setattr(sampler, 'draw', lambda r: np.array([1, 1]))
  sampler.observe(0, ['b'], [1.0])
  grown = 0.2 * math.exp(2 * 0.04 / (4 * 0.2**3))
  assert sampler.expected_draws()[1] / 2 == pytest.approx(grown / (0.8 + grown))


def test_osmd_chooses_eta_from_the_largest_norms_so_far():
  sampler = cohorts.OsmdCohorts(WEIGHTS, 2, 0, alpha=0.5)
  cohort = sampler.sample(0)
  sampler.observe(0, cohort.client_ids, [0.0] * len(cohort.client_ids))
  np.testing.assert_allclose(sampler.expected_draws(), 2 / 5)
  largest = 0
  for round_num, factor in enumerate((1.0, 30.0, 2.0), 1):
    p = sampler.expected_draws() / 2
    cohort = sampler.sample(round_num)
    norms = factor * np.arange(1.0, len(cohort.client_ids) + 1)
    sampler.observe(round_num, cohort.client_ids, norms)
    squares = (_shares(cohort) * norms) ** 2
    largest = max(largest, squares.max())
    eta = 4 * (0.5 / 5) ** 3 / largest
    with_eta = cohorts.OsmdCohorts(WEIGHTS, 2, 0, alpha=0.5, eta=eta)
    with_eta.restore({'p': p, 'largest': 0.0})
    with_eta.observe(round_num, cohort.client_ids, norms)
    np.testing.assert_allclose(
      sampler.expected_draws(), with_eta.expected_draws()
    )


def _learn_norms(sampler, norms, num_rounds):
  for round_num in range(num_rounds):
    ids = sampler.sample(round_num).client_ids
    sampler.observe(round_num, ids, [norms[i] for i in ids])


# The sizes of clients of the paper's set 1: the first cohorts mostly have small
# ones only. With eta and gamma of the first round, the median over 16 seeds of
# sum lambda_i^2 / pi_i is 2.5 times (OSMD) and 1.06 times (K-Vib) as large as
# with uniform pi_i.
@pytest.mark.parametrize('seed', range(8))
@pytest.mark.parametrize('name', ['osmd', 'kvib'])
def test_learned_draws_have_less_variance_than_uniform_ones(name, seed):
  sizes = {f'{i:03d}': 122 if i < 84 else 3 for i in range(837)}
  if name == 'osmd':
    sampler = cohorts.OsmdCohorts(sizes, 3, seed)
  else:
    sampler = cohorts.KVibCohorts(sizes, 3, seed, total_rounds=101)
  _learn_norms(sampler, dict.fromkeys(sizes, 1.0), 101)
  shares, pi = sampler.shares, sampler.expected_draws()

  def variance(pi):
    if name == 'osmd':  # Draws with replacement.
      return _variance_of_draws(pi / 3, 3, shares)
    return np.sum((1 / pi - 1) * shares**2)  # Independent coins.

  assert variance(pi) < variance(np.full(837, 3 / 837))


@pytest.mark.parametrize('name', ['osmd', 'kvib'])
@pytest.mark.parametrize('scale', [1e-160, 1e-30, 1e30, 1e150])
def test_learning_does_not_depend_on_the_unit_of_the_norms(name, scale):
  of_scale = []
  for unit in (1.0, scale):
    if name == 'osmd':
      sampler = cohorts.OsmdCohorts(WEIGHTS, 2, 0)
    else:
      sampler = cohorts.KVibCohorts(WEIGHTS, 2, 0, total_rounds=40)
    _learn_norms(sampler, {i: unit * v for i, v in zip(NAMES, abs(VALUES))}, 40)
    of_scale.append(sampler.expected_draws())
  # The squares of 1e-160 have few digits.
  np.testing.assert_allclose(*of_scale, rtol=1e-2 if scale < 1e-100 else 1e-9)


def test_osmd_survives_a_huge_step():
  sampler = cohorts.OsmdCohorts(WEIGHTS, 2, 0, eta=1e9, alpha=0.2)
  cohort = sampler.sample(0)
  sampler.observe(0, cohort.client_ids, [1e6] * len(cohort.client_ids))
  p = sampler.expected_draws() / 2
  assert p.sum() == pytest.approx(1)
  assert p.min() >= 0.2 / 5


# K-Vib.


@pytest.mark.parametrize('m', [1, 2, 3.0, 4])
def test_kvib_minimises_the_regularised_variance(m):
  sampler = _learned_kvib(m=int(m))
  uniform = m / 5
  p = (sampler.expected_draws() - sampler.theta * uniform) / (1 - sampler.theta)
  cost = np.array([0.0, 3.0, 8.0, 0.0, 1.0]) + 1.0
  best = optimize.minimize(
    lambda x: np.sum(cost / x),
    np.full(5, uniform),
    jac=lambda x: -cost / x**2,
    bounds=[(1e-3, 1)] * 5,
    constraints={'type': 'eq', 'fun': lambda x: x.sum() - m},
    method='SLSQP',
    options={'ftol': 1e-14, 'maxiter': 500},
  )
  assert best.success
  np.testing.assert_allclose(p, best.x, atol=1e-5)


def test_kvib_has_the_square_root_and_no_probability_above_1():
  # The root of omega + gamma is (1, 1, 1, 1, 10). Two public copies of optimal
  # client sampling, one of them K-Vib's own, give the last client 2.5.
  sampler = _learned_kvib(omega=(0.0, 0.0, 0.0, 0.0, 99.0))
  theta = sampler.theta
  np.testing.assert_allclose(
    sampler.expected_draws(),
    (1 - theta) * np.array([0.25, 0.25, 0.25, 0.25, 1.0]) + theta * 0.4,
  )
  # Without the root, the last client of (1, 1, 1, 1, 2) would have 4 / 8.
  sampler = _learned_kvib(omega=(0.0, 0.0, 0.0, 0.0, 3.0), m=1)
  theta = sampler.theta
  np.testing.assert_allclose(
    sampler.expected_draws()[4], (1 - theta) * 2 / 6 + theta * 0.2
  )


def test_kvib_learns_by_its_rule():
  sampler = cohorts.KVibCohorts(WEIGHTS, 2, 0, total_rounds=40)
  assert sampler.theta == pytest.approx((5 / 80) ** (1 / 3))
  omega, largest = np.zeros(5), 0.0
  for round_num in range(30):
    cohort = sampler.sample(round_num)
    places = [NAMES.index(i) for i in cohort.client_ids]
    norms = np.abs(VALUES[places])
    squares = (SHARES[places] * norms) ** 2
    omega[places] += squares / cohort.probabilities
    largest = max([largest, *squares])
    sampler.observe(round_num, cohort.client_ids, norms)
    np.testing.assert_allclose(sampler.state['omega'], omega)
    with_gamma = cohorts.KVibCohorts(
      WEIGHTS, 2, 0, total_rounds=40, gamma=largest * 5 / (2 * sampler.theta)
    )
    with_gamma.restore({'omega': omega, 'largest': 0.0})
    np.testing.assert_allclose(
      sampler.expected_draws(), with_gamma.expected_draws()
    )
  assert np.argmax(sampler.expected_draws()) == np.argmax(omega)
  # As in the paper's experiments, where there are more clients than rounds.
  assert cohorts.KVibCohorts(WEIGHTS, 2, 0, total_rounds=4).theta == 0.3
  assert cohorts.KVibCohorts(WEIGHTS, 1, 0, total_rounds=5).theta == 1


def test_states_of_subclasses_can_have_any_values():
  class Signed(_Own):
    state = {'x': np.zeros(2)}

  Signed(np.full(5, 0.4)).restore({'x': np.array([-1.0, np.nan])})
  with pytest.raises(ValueError, match='state must have arrays of the shapes'):
    Signed(np.full(5, 0.4)).restore({'x': np.zeros(3)})


# Norms.


def test_norms_are_read_in_the_order_of_the_cohort():
  cohort = cohorts.Cohort(
    ('b', 'c', 'a'), np.full(3, np.nan), np.array([2.0, 7.0, 0.5])
  )
  weights = {**WEIGHTS, 'a': 0}
  # n_i s_i ||U_i|| for ||U_i|| = 3, 4; the last has no weight.
  clients = np.array([[1, 2 * 7 * 4, 1], [2, 0, 1], [0, 5 * 2 * 3, 0]])
  np.testing.assert_allclose(
    cohorts.read_norms(clients, cohort, weights), [3, 4, 0]
  )
  nobody = cohorts.Cohort((), np.zeros(0), np.zeros(0))
  assert cohorts.read_norms(np.zeros([0, 3]), nobody, weights).shape == (0,)
  for bad in (clients[:2], clients[:, :2], clients[0], clients[[0, 0, 1]]):
    with pytest.raises(ValueError, match='a row of 3 entries for each of the'):
      cohorts.read_norms(bad, cohort, weights)


def test_a_cohort_of_coins_can_be_empty():
  sampler = cohorts.KVibCohorts(WEIGHTS, 1, 0, total_rounds=40)
  empty = [r for r in range(100) if not sampler.sample(r).client_ids]
  # (4/5)^5 = 33 %; none in 100 rounds has a probability of 5e-18.
  assert empty
  sampler.observe(empty[0], [], [])
  np.testing.assert_array_equal(sampler.state['omega'], 0)


# Reproducibility.

LEARNING = {
  'osmd': lambda seed: cohorts.OsmdCohorts(WEIGHTS, 3, seed),
  'kvib': lambda seed: cohorts.KVibCohorts(WEIGHTS, 3, seed, total_rounds=20),
}


def _learn(sampler, rounds):
  history = []
  for round_num in rounds:
    cohort = sampler.sample(round_num)
    sampler.observe(
      round_num,
      cohort.client_ids,
      [1 + NAMES.index(i) + round_num % 3 for i in cohort.client_ids],
    )
    history.append((cohort.client_ids, cohort.scales.tolist()))
  return history


@pytest.mark.parametrize('name', LEARNING)
def test_restored_sampler_goes_on_bit_for_bit(name):
  build = LEARNING[name]
  whole = _learn(build(5), range(20))
  first = build(5)
  start = _learn(first, range(8))
  state = copy.deepcopy(first.state)
  _learn(first, range(8, 12))  # Lost when the run is killed.
  resumed = build(5)
  resumed.restore(state)
  assert start + _learn(resumed, range(8, 20)) == whole
  assert _learn(build(6), range(20)) != whole


@pytest.mark.parametrize('name', LEARNING)
def test_state_is_a_copy(name):
  sampler = LEARNING[name](5)
  state = sampler.state
  before = {key: np.array(value) for key, value in state.items()}
  _learn(sampler, range(5))
  for key, value in state.items():
    np.testing.assert_array_equal(value, before[key])
  assert any((sampler.state[key] != before[key]).any() for key in before)


@each_unbiased
def test_rounds_do_not_depend_on_their_order_or_on_the_order_of_the_pool(name):
  forward = BUILDERS[name]()
  backward = BUILDERS[name]()
  rounds = [forward.sample(r)[0] for r in range(30)]
  assert rounds == [backward.sample(r)[0] for r in reversed(range(30))][::-1]
  assert len(set(rounds)) > 1


def test_order_of_the_pool_does_not_matter():
  reordered = dict(reversed(WEIGHTS.items()))
  for make in (cohorts.ClusteredCohorts, cohorts.UniformCohorts):
    first, second = make(WEIGHTS, 2, 0), make(reordered, 2, 0)
    assert [first.sample(r)[0] for r in range(9)] == [
      second.sample(r)[0] for r in range(9)
    ]


def test_clients_without_weight_are_never_drawn():
  weights = {'a': 0, 'b': 3, 'c': 0, 'd': 1, 'e': 0}
  for sampler in (
    cohorts.MultinomialCohorts(weights, 3, 0),
    cohorts.ClusteredCohorts(weights, 3, 0),
  ):
    drawn = set().union(*(sampler.sample(r)[0] for r in range(100)))
    assert drawn == {'b', 'd'}
  # At the very ends of [0, 1), too.
  np.testing.assert_array_equal(
    cohorts._clients_at(
      np.array([0.0, 0.75, 1.0]), np.array([0.0, 3.0, 0.0, 1.0, 0.0])
    ),
    [1, 3, 3],
  )


# Bad arguments.


@pytest.mark.parametrize(
  ('call', 'error', 'message'),
  [
    (
      lambda: cohorts.UniformCohorts({'a': -1, 'b': 1}, 1, 0),
      ValueError,
      "at least 0, found -1 for the client 'a'",
    ),
    (
      lambda: cohorts.UniformCohorts({'a': 1, 'b': math.nan}, 1, 0),
      ValueError,
      "found nan for the client 'b'",
    ),
    (
      lambda: cohorts.UniformCohorts({'a': 'x', 'b': 1}, 1, 0),
      TypeError,
      'client_weights must be real numbers',
    ),
    (
      lambda: cohorts.UniformCohorts([1, 2], 1, 0),
      TypeError,
      r'client_weights must be a mapping .* found \[1, 2\]',
    ),
    (
      lambda: cohorts.UniformCohorts({'a': 0}, 1, 0),
      ValueError,
      'client_weights must have a weight above 0, found the sum 0 of 1',
    ),
    (
      lambda: cohorts.UniformCohorts(WEIGHTS, 6, 0),
      ValueError,
      'at most the 5 clients of the pool, found 6',
    ),
    (
      lambda: cohorts.UniformCohorts(WEIGHTS, 1.5, 0),
      TypeError,
      'clients_per_round must be an integer',
    ),
    (
      lambda: cohorts.UniformCohorts(WEIGHTS, 1, 2**32),
      ValueError,
      'seed must be below 2',
    ),
    (
      lambda: cohorts.PowerOfChoiceCohorts(WEIGHTS, 3, 0, 2),
      ValueError,
      'num_candidates must be at least clients_per_round=3 and at most the 5',
    ),
    (
      lambda: _learned_power_of_choice().sample(0, [1.0]),
      ValueError,
      'losses must have one entry for each of the 4 candidates',
    ),
    (
      lambda: cohorts.UniformCohorts(WEIGHTS, 2, 0).sample(0, [1.0]),
      ValueError,
      'UniformCohorts takes no losses, found 1',
    ),
    (
      lambda: cohorts.UniformCohorts(WEIGHTS, 2, 0).sample(-1),
      ValueError,
      'round_num must be at least 0',
    ),
    (
      lambda: _learned_osmd().observe(0, ['a', 'b', 'c'], [1, 1, 1]),
      ValueError,
      'client_ids must be the cohort of round 0',
    ),
    (
      lambda: _learned_osmd().observe(0, _learned_osmd().sample(0)[0], []),
      ValueError,
      'norms must have one entry for each of',
    ),
    (
      lambda: _learned_osmd().observe(
        0,
        _learned_osmd().sample(0)[0],
        [math.nan] * len(_learned_osmd().sample(0)[0]),
      ),
      ValueError,
      'norms must be finite and at least 0',
    ),
    (
      lambda: _learned_osmd().restore({'p': np.ones(4), 'largest': 1.0}),
      ValueError,
      'state must have arrays of the shapes',
    ),
    (
      lambda: _learned_osmd().restore({'p': np.ones(5), 'largest': 1.0}),
      ValueError,
      r"state\['p'\] must sum to 1",
    ),
    (
      lambda: _learned_osmd().restore(
        {'p': np.array([0, 0.25, 0.25, 0.25, 0.25]), 'largest': 1.0}
      ),
      ValueError,
      r"state\['p'\] must .* be at least alpha / N = 0.06",
    ),
    (
      lambda: _learned_kvib(omega=(0.0, -1.0, 0.0, 0.0, 0.0)),
      ValueError,
      r"state\['omega'\] must be finite and at least 0, found -1",
    ),
    (
      lambda: _learned_osmd().observe(
        0,
        _learned_osmd().sample(0)[0],
        [1e200] * len(_learned_osmd().sample(0)[0]),
      ),
      ValueError,
      'squares of lambda_i times norms must be finite',
    ),
    (
      lambda: _Own(np.full(5, 0.2)).sample(0),
      ValueError,
      r'expected_draws\(\) must sum to .* 2, found 1.0',
    ),
    (
      lambda: _Own(np.array([1, 1, 1, 0, -1.0])).sample(0),
      ValueError,
      r'expected_draws\(\) must be finite and at least 0, found -1',
    ),
    (
      lambda: _Own(np.array([1, 0, 1, 0, 0.0])).sample(0),
      ValueError,
      r"expected_draws\(\) must be above 0 .* 'b'",
    ),
    (
      lambda: _Own(np.full(4, 0.5)).sample(0),
      ValueError,
      r'expected_draws\(\) must have the shape \(5,\), found \(4,\)',
    ),
    *(
      (
        lambda draws=draws: _Own(np.full(5, 0.4), draws).sample(0),
        ValueError,
        r'draw\(\) must return a 1-D array of integers from 0 to 4',
      )
      for draws in ([0, 5], [-1, 2], ['a', 'b'], [True] * 5, [[0, 1]], [0.0])
    ),
    (
      lambda: cohorts.UniformCohorts(WEIGHTS, 1, 0).restore({'p': 1}),
      ValueError,
      'state must have arrays of the shapes',
    ),
    (
      lambda: cohorts.OsmdCohorts(WEIGHTS, 1, 0, alpha=1.5),
      ValueError,
      'alpha must be above 0 and at most 1',
    ),
    (
      lambda: cohorts.OsmdCohorts(WEIGHTS, 1, 0, eta=0),
      ValueError,
      'eta must be a finite number above 0',
    ),
    (
      lambda: cohorts.KVibCohorts(WEIGHTS, 1, 0, 10, gamma=-1),
      ValueError,
      'gamma must be a finite number above 0',
    ),
  ],
)
def test_bad_arguments(call, error, message):
  with pytest.raises(error, match=message):
    call()
