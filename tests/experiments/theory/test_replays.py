"""Tests of replays on norms that were recorded in training runs.

norm_traces.npz has the norms n_i ||U_i|| of each round, largest first, and the
cohorts' total weights N_t: of FEMNIST set 1 with n = 32 (AOCS with m = 3, two
seeds, and full participation), the same with n = 128, and Shakespeare.
"""

import math
import pathlib

import numpy as np
import pytest

from experiments.theory import replays
from tff_ocs import probabilities

M = 3
ETA, C = 0.3, 3.0
_FILE = np.load(pathlib.Path(__file__).with_name('norm_traces.npz'))


def trace(norms, weights):
  return replays.Trace(
    list(_FILE[norms].astype(np.float64)), _FILE[weights].astype(np.float64)
  )


FEMNIST = {
  'AOCS, seed 0': trace('aocs_0', 'weights_0'),
  'AOCS, seed 1': trace('aocs_1', 'weights_1'),
  'full, seed 0': trace('full_0', 'weights_0'),
}
LARGE = trace('large_0', 'weights_large_0')
SHAKESPEARE = trace('shakespeare_0', 'weights_shakespeare_0')
TRACE = FEMNIST['AOCS, seed 0']


def known(of, **parameters):
  return lambda m: (
    replays.replay_threshold(of.relative_norms, m, **parameters).probabilities
  )


def unknown(of, **parameters):
  return lambda m: (
    replays.replay_threshold(of.norms, m, **parameters).probabilities
  )


def uniform(of):
  return lambda m: [
    probabilities.uniform_probabilities(u.size, m) for u in of.norms
  ]


def variance_over_ocs(of, of_rounds, m=M, first=1):
  """The sum of variances over that of exact OCS of each round."""
  ocs = [probabilities.optimal_probabilities(u, m) for u in of.norms]
  variances = replays.measure_variances(of, of_rounds)
  return variances[first:].sum() / (
    replays.measure_variances(of, ocs)[first:].sum()
  )


def spend(of_rounds, m=M):
  """P / m from round 1 on."""
  return replays.count_participants(of_rounds)[1:] / m


# The table of replays. Columns: V at equal spend, from round 1 and 30 on.


@pytest.mark.parametrize(
  'name, of_known, of_unknown, of_uniform',
  [
    ('AOCS, seed 0', (0.84, 0.88), (1.38, 1.24), 21.9),
    ('AOCS, seed 1', (0.77, 0.86), (1.12, 1.36), 20.9),
    ('full, seed 0', (0.82, 0.88), (1.45, 1.23), 23.5),
  ],
)
def test_femnist(name, of_known, of_unknown, of_uniform):
  of = FEMNIST[name]
  for sampler, expected in ((known(of), of_known), (unknown(of), of_unknown)):
    scaled = replays.scale_to_spend(sampler, M)
    assert spend(scaled).mean() == pytest.approx(1, rel=1e-5)
    assert variance_over_ocs(of, scaled) == pytest.approx(
      expected[0], abs=0.006
    )
    assert variance_over_ocs(of, scaled, first=30) == pytest.approx(
      expected[1], abs=0.006
    )
  assert variance_over_ocs(of, uniform(of)(M)) == pytest.approx(
    of_uniform, abs=0.06
  )
  # The participants without scaling.
  with_weight, without = spend(known(of)(M)), spend(unknown(of)(M))
  assert 0.975 < with_weight.mean() < 0.99
  assert np.percentile(with_weight, 95) < 1.5 and with_weight.max() < 1.85
  assert 0.985 < without.mean() < 1.0
  assert np.percentile(without, 95) < 1.85 and without.max() < 3.5


@pytest.mark.parametrize('eta', [0.2, 0.3, 0.5])
@pytest.mark.parametrize('c', [2, 3, 1e6])
def test_parameters_matter_little_if_the_weight_is_known(eta, c):
  for of in FEMNIST.values():
    of_rounds = known(of, eta=eta, c=c)(M)
    assert 0.97 < spend(of_rounds).mean() < 1.0
    assert 0.77 < variance_over_ocs(of, of_rounds) < 0.91


@pytest.mark.parametrize(
  'm, of_known, of_unknown', [(12, 0.88, 1.12), (4, 0.95, 1.11)]
)
def test_large_cohorts(m, of_known, of_unknown):
  for sampler, expected in (
    (known(LARGE), of_known),
    (unknown(LARGE), of_unknown),
  ):
    assert variance_over_ocs(LARGE, sampler(m), m) == pytest.approx(
      expected, abs=0.006
    )


@pytest.mark.parametrize(
  'm, of_known, of_unknown', [(3, 1.09, 1.39), (6, 1.18, 1.63)]
)
def test_shakespeare(m, of_known, of_unknown):
  # Fifty rounds, in which norms fall most: a little below m is spent.
  for sampler, expected in (
    (known(SHAKESPEARE), of_known),
    (unknown(SHAKESPEARE), of_unknown),
  ):
    of_rounds = sampler(m)
    assert variance_over_ocs(SHAKESPEARE, of_rounds, m) == pytest.approx(
      expected, abs=0.006
    )
    assert 0.93 < spend(of_rounds, m).mean() < 0.97


# Stress: something happens in round 60.


def after(norms, weights, first=60, num_rounds=20):
  """P / m from a round on, without N_t and with it."""
  rounds = [u / weight for u, weight in zip(norms, weights)]
  return [
    (
      replays.count_participants(
        replays.replay_threshold(of_rounds, M).probabilities
      )
      / M
    )[first : first + num_rounds]
    for of_rounds in (norms, rounds)
  ]


def changed(change, num_rounds=None):
  """The trace with the norms of rounds from 60 on changed."""
  end = None if num_rounds is None else 60 + num_rounds
  norms = [u.copy() for u in TRACE.norms]
  norms[60:end] = [change(u) for u in norms[60:end]]
  return norms, TRACE.cohort_weights


def test_norms_that_rise_tenfold_cost_seven_budgets():
  for of_round, first in zip(after(*changed(lambda u: 10 * u)), (3.5, 4.6)):
    assert of_round[0] == pytest.approx(first, abs=0.05)
    assert np.all(of_round[1:] < 2)
    assert (of_round - 1).sum() < 7.5


def test_norms_that_fall_tenfold_are_followed_at_once():
  without, with_weight = after(*changed(lambda u: u / 10))
  assert without[0] < 0.1 and with_weight[0] < 0.2
  # Not by a factor e^-0.3 a round, which would take eight rounds.
  assert np.all(without[1:5] > 0.3) and np.all(with_weight[1:5] > 0.3)
  assert (without - 1).sum() > -4.1 and (with_weight - 1).sum() > -6.3


def test_cohorts_that_grow_fourfold_are_harmless_with_their_weight():
  norms = TRACE.norms[:60] + LARGE.norms[20:]
  weights = [*TRACE.cohort_weights[:60], *LARGE.cohort_weights[20:]]
  without, with_weight = after(norms, weights)
  assert 3 < without[0] < 4.1 and (without - 1).sum() < 4.6
  assert with_weight.max() < 1.6 and abs((with_weight - 1).sum()) < 0.5


def test_cohorts_that_shrink_fourfold_are_harmless_with_their_weight():
  norms = LARGE.norms + TRACE.norms[60:]
  weights = [*LARGE.cohort_weights, *TRACE.cohort_weights[60:]]
  without, with_weight = after(norms, weights, first=50)
  assert without[0] < 0.25 and (without - 1).sum() > -4
  assert 0.7 < with_weight[:8].min() and with_weight.max() < 1.3
  assert abs((with_weight - 1).sum()) < 1


def test_rounds_of_zeros_leave_the_threshold_as_it_is():
  norms, weights = changed(np.zeros_like, num_rounds=5)
  thresholds = replays.replay_threshold(norms, M).thresholds
  np.testing.assert_array_equal(thresholds[60:66], thresholds[60])
  for of_round in after(norms, weights):
    np.testing.assert_array_equal(of_round[:5], 0)
    assert 0.9 < of_round[5] < 1.2


def test_half_of_the_updates_not_finite():
  # They count as norms of 0.
  def halve(u):
    return np.where(np.arange(u.size) % 2 == 0, 0.0, u)

  for of_round in after(*changed(halve, num_rounds=5)):
    assert np.all((of_round[:5] > 0.3) & (of_round[:5] < 0.8))
    assert of_round.max() < 1.8


def test_equal_norms_give_m_from_round_1_on():
  rounds = [np.full(32, 0.7)] * 30
  of_rounds = replays.replay_threshold(rounds, M).probabilities
  np.testing.assert_allclose(
    replays.count_participants(of_rounds), M, rtol=1e-12
  )


@pytest.mark.parametrize('index', [0, 5, 31])
def test_one_giant_norm_costs_one_participant(index):
  norms = [u.copy() for u in TRACE.norms]
  norms[60][index] *= 1e6
  before = replays.replay_threshold(TRACE.norms, M)
  giant = replays.replay_threshold(norms, M)
  more = replays.count_participants(
    giant.probabilities
  ) - replays.count_participants(before.probabilities)
  assert 0 < more[60] <= 1
  assert more[61:].max() <= 0
  assert 1 < giant.thresholds[61] / before.thresholds[61] < 1.11


def test_cohorts_below_m_are_not_caught_up():
  norms = [u.copy() for u in TRACE.norms]
  norms[60:80] = [u[:2] for u in norms[60:80]]
  weights = TRACE.cohort_weights
  for of_round in after(norms, weights, first=80):
    # An integral without the exception would ask for 20 x m / 3 more.
    assert of_round[0] < 2 and of_round.max() < 2.2
    assert (of_round - 1).sum() < 3.6


# The statements of docs/theory.md, one round trip.


def steps(of_rounds, replay, m=M):
  """The steps of log tau, both terms of the min, and x - 1, of each round."""
  x = replays.count_participants(of_rounds)[1:] / m
  taus = np.append(replay.thresholds[1:], replay.next_threshold)
  t = np.arange(1, x.size + 1)
  first = np.maximum(ETA, 1 / t) * (x - 1)
  with np.errstate(divide='ignore'):
    second = np.log(C * x)
  return np.diff(np.log(taus)), first, second, x - 1


@pytest.mark.parametrize('name', FEMNIST)
def test_sum_of_excess_participants_telescopes(name):
  of = FEMNIST[name]
  replay = replays.replay_threshold(of.relative_norms, M)
  log_steps, first, second, excess = steps(replay.probabilities, replay)
  assert np.all(first < second)  # The second term is inactive.
  np.testing.assert_allclose(log_steps, first, rtol=1e-9, atol=1e-12)
  settled = math.ceil(1 / ETA) - 1  # From there on the step is eta.
  assert excess[settled:].sum() == pytest.approx(
    log_steps[settled:].sum() / ETA, rel=1e-9
  )


def test_more_is_spent_where_the_second_term_acts_never_less():
  replay = replays.replay_threshold(TRACE.norms, M)
  log_steps, first, second, excess = steps(replay.probabilities, replay)
  assert np.any(second < first)
  np.testing.assert_allclose(
    log_steps, np.minimum(first, second), rtol=1e-9, atol=1e-12
  )
  settled = math.ceil(1 / ETA) - 1
  surplus = np.maximum(first - second, 0)[settled:].sum() / ETA
  assert surplus > 0
  assert excess[settled:].sum() == pytest.approx(
    log_steps[settled:].sum() / ETA + surplus, rel=1e-9
  )
  # It is between these numbers that the second term is inactive.
  for x, is_inactive in ((0.26, 0), (0.27, 1), (13.2, 1), (13.4, 0)):
    assert (ETA * (x - 1) < math.log(C * x)) == is_inactive


def test_norms_that_jump_for_ever_cost_more_than_m():
  # Bounded norms are not enough for a mean of m.
  rounds = [np.full(32, 1.0 if t % 2 else 100.0) for t in range(400)]
  of_rounds = replays.replay_threshold(rounds, M).probabilities
  assert replays.count_participants(of_rounds)[200:].mean() > 1.5 * M


@pytest.mark.parametrize('seed', range(20))
def test_threshold_stays_within_its_bounds(seed):
  rng = np.random.default_rng(seed)
  least, largest, n = 0.1, 50.0, 20
  m = rng.choice([0.5, 1, 3, 8])
  rounds = []
  for _ in range(300):
    u = least * (largest / least) ** rng.beta(0.3, 0.3, rng.integers(1, n + 1))
    rounds.append(u * rng.integers(0, 2, u.size))
  rounds[0] = np.full(n, 1.0)
  replay = replays.replay_threshold(rounds, m, eta=ETA, c=C)
  taus = np.append(replay.thresholds[1:], replay.next_threshold)
  assert taus.max() <= C * n * largest / m
  # Of the first threshold, n / m, as well.
  assert taus.min() >= min(C * least / m, least / math.e, n / m)


def test_mean_is_m_in_the_long_run():
  # Norms that do not jump: |sum of x - 1| stays bounded, so the mean tends to
  # m as 1 / T.
  rng = np.random.default_rng(1)
  rounds = [rng.uniform(0.5, 2, 32) for _ in range(4000)]
  replay = replays.replay_threshold(rounds, M)
  _, first, second, excess = steps(replay.probabilities, replay)
  assert np.all(first < second)
  bound = 2 * math.log(C * 32 * 2 / M / (0.5 / math.e)) / ETA
  assert np.abs(np.cumsum(excess)).max() <= bound
  assert abs(excess.mean()) <= bound / 4000


@pytest.mark.parametrize('seed', range(10))
def test_constant_threshold_has_the_smallest_sum_of_variances(seed):
  rng = np.random.default_rng(seed)
  rounds = [
    rng.lognormal(rng.normal(), 1, rng.integers(4, 12)) for _ in range(15)
  ]
  m = 2
  best = replays.replay_constant_threshold(rounds, m)
  assert replays.count_participants(best).mean() == pytest.approx(m)
  thresholds = [
    u[p < 1] / p[p < 1] for u, p in zip(rounds, best) if np.any(p < 1)
  ]
  np.testing.assert_allclose(np.concatenate(thresholds), thresholds[0][0])

  def total(of_rounds):
    return sum(map(probabilities.sampling_variance, rounds, of_rounds))

  # Exact OCS of each round, and small shifts of probability between clients of
  # any rounds, are no better.
  ocs = [probabilities.optimal_probabilities(u, m) for u in rounds]
  assert total(best) < total(ocs)
  joined = np.concatenate(best)
  ends = np.cumsum([u.size for u in rounds])[:-1]
  for _ in range(200):
    i, j = rng.choice(joined.size, 2, replace=False)
    shift = rng.uniform(0, 1e-2)
    other = joined.copy()
    other[i], other[j] = other[i] + shift, other[j] - shift
    if other[i] <= 1 and other[j] > 0:
      assert total(np.split(other, ends)) >= total(best) * (1 - 1e-12)


def test_weight_is_needed_for_the_constant_threshold_to_be_the_best():
  # The same cohorts, the same mean of P: only norms over N_t are of the units
  # of the aggregate.
  for of in FEMNIST.values():
    later = replays.Trace(of.norms[1:], of.cohort_weights[1:])
    by_weight, without = (
      replays.measure_variances(
        later, replays.replay_constant_threshold(rounds, M)
      ).sum()
      for rounds in (later.relative_norms, later.norms)
    )
    assert by_weight < 0.75 * without


@pytest.mark.parametrize('seed', range(20))
def test_first_threshold_is_at_least_that_of_ocs(seed):
  rng = np.random.default_rng(seed)
  norms = rng.lognormal(0, 2, 32)
  for m in (0.5, 1, 3, 31, 32, 40):
    first = probabilities.update_threshold(
      probabilities.ThresholdState(), norms, np.zeros(32), m
    ).threshold
    # For m <= 1 they are the same but for rounding.
    exact = probabilities.sampling_threshold(norms, m)
    assert first >= exact * (1 - 1e-12)
    p = probabilities.threshold_probabilities(norms, first)
    assert p.sum() <= m * (1 + 1e-12)


# The replays themselves.


def test_first_round_is_uniform_over_norms_above_0():
  replay = replays.replay_threshold([np.array([2.0, 0, 1, 5])], 2)
  np.testing.assert_array_equal(replay.probabilities, [[0.5, 0, 0.5, 0.5]])
  assert replay.thresholds == [0] and replay.next_threshold == 4


def test_variances_are_of_the_aggregate():
  of = replays.Trace([np.array([4.0, 2.0])] * 2, np.array([1.0, 10.0]))
  variances = replays.measure_variances(of, [np.array([0.5, 1.0])] * 2)
  np.testing.assert_allclose(variances, [16, 0.16])


@pytest.mark.parametrize('m', [2, 10**5])
def test_spend_that_cannot_be_reached_is_approached(m):
  rounds = [np.array([1.0, 0, 0, 0])] * 3
  of_rounds = replays.scale_to_spend(
    lambda m: [probabilities.optimal_probabilities(u, m) for u in rounds], m
  )
  np.testing.assert_array_equal(of_rounds, rounds)
  zeros = [np.zeros(4)] * 3
  of_rounds = replays.scale_to_spend(
    lambda m: [probabilities.optimal_probabilities(u, m) for u in zeros], 2
  )
  np.testing.assert_array_equal(of_rounds, zeros)
