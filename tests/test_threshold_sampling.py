"""Tests of ThresholdSampling: the computation against the NumPy reference."""

import functools
import itertools
import math

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_ocs
from tests import oracles
from tests import test_schemes
from tff_ocs import execution
from tff_ocs import probabilities
from tff_ocs import schemes
from tff_ocs import secure_sums

M = 2.5


def random_cohorts(sizes, seed=3):
  """Norms of cohorts of the given sizes, whose level drifts and jumps."""
  rng = np.random.default_rng(seed)
  level = np.exp(np.cumsum(rng.normal(0, 0.3, len(sizes))))
  level[len(sizes) // 2 :] *= 1e4
  return [
    np.float32(x * rng.lognormal(0, 1.5, size)) for x, size in zip(level, sizes)
  ]


# Edge cases between ordinary rounds, so that each meets a threshold that is
# known, and is followed by a round that shows the threshold that it left.
_EDGE_CASES = [
  *test_schemes.COHORTS.values(),
  np.float32([np.nan, 2, 1, np.inf, 3, -np.inf, -1]),
  np.float32([np.nan, np.inf]),
  np.float32([1e-5, 1e5, 1, 1e-5, 1e5, 2]),
]
CASES = [
  cohort
  for pair in zip(
    _EDGE_CASES,
    # A change of the size is slow.
    random_cohorts(list(map(len, _EDGE_CASES))),
  )
  for cohort in pair
]


def first_probability(first_cohort_size, norms):
  if first_cohort_size is None:
    return np.zeros(norms.size)
  return np.where(norms > 0, min(M / first_cohort_size, 1.0), 0.0)


def reference_probabilities(threshold, norms, first_cohort_size):
  """Those of the reference, as clients send them: rounded to float32."""
  if threshold > 0:
    p = probabilities.threshold_probabilities(norms, threshold)
  else:
    p = first_probability(first_cohort_size, norms)
  return p.astype(np.float32).astype(np.float64)


@functools.cache
def build(secure=False, **arguments):
  factory = secure_sums.SecureScalarSumFactory(1e5) if secure else None
  return schemes.ThresholdSampling(M, **arguments).create(factory)


def controller(state):
  return state['scheme']['controller']


def valid(norms):
  return np.where(np.isfinite(norms) & (norms > 0), norms, 0).astype(np.float64)


@pytest.mark.parametrize(
  'knows_weights, arguments',
  [
    (False, {}),
    (True, {'first_cohort_size': 32}),
    (True, {'initial_threshold': 0.5}),
    (False, {'first_cohort_size': 2, 'eta': 0.05, 'c': 1.5}),
  ],
  ids=str,
)
def test_rounds_equal_reference(knows_weights, arguments):
  process = build(**arguments)
  state = process.initialize()
  reference = probabilities.ThresholdState(
    arguments.get('initial_threshold', 0.0)
  )
  parameters = {k: v for k, v in arguments.items() if k in ('eta', 'c')}
  weights = np.random.default_rng(0).lognormal(3, 1, len(CASES))
  for cohort, weight in zip(CASES, weights):
    if knows_weights:
      state = tff_ocs.set_cohort_weight(state, weight)
    norms = valid(cohort) / (weight if knows_weights else 1)
    p = reference_probabilities(
      reference.threshold, norms, arguments.get('first_cohort_size')
    )
    reference = probabilities.update_threshold(
      reference, norms, p, M, **parameters
    )
    output = process.next(state, list(cohort))
    state = output.state
    np.testing.assert_allclose(output.result, p, rtol=1e-6, atol=1e-45)
    assert np.array(output.result).dtype == np.float32
    assert controller(state)['threshold'] == pytest.approx(
      reference.threshold, rel=1e-6
    )
    assert controller(state)['num_rounds'] == reference.num_rounds
    measured = output.measurements
    assert measured['num_iterations'] == 0
    assert measured['scalars_per_client'] == 3
    assert measured['expected_participants'] == pytest.approx(p.sum(), rel=1e-6)
  assert reference.num_rounds > 20


@pytest.mark.parametrize(
  'm, cohorts',
  [
    # Nobody can send: p_i is below the range of float32.
    (2.0, [[3e-20, 1e-20, 0], [3e-20, 1e-20, 0]]),
    # As many as m are sure, whatever the threshold.
    (2.0, [[1e31, 2e31, 0], [3e31, 2e31, 0]]),
  ],
)
def test_learning_at_its_limits_equals_reference(m, cohorts):
  process = schemes.ThresholdSampling(m, initial_threshold=1e30).create()
  state = process.initialize()
  reference = probabilities.ThresholdState(1e30)
  for cohort in map(np.float32, cohorts):
    p = reference_probabilities(reference.threshold, valid(cohort), None)
    reference = probabilities.update_threshold(reference, valid(cohort), p, m)
    output = process.next(state, list(cohort))
    state = output.state
    np.testing.assert_allclose(output.result, p, rtol=1e-6)
    found = controller(state)
    assert found['threshold'] == pytest.approx(reference.threshold, rel=1e-6)
    assert found['num_rounds'] == reference.num_rounds


def test_threshold_is_one_round_late():
  # A cohort cannot influence its own probabilities.
  process = build(initial_threshold=0.5)
  state = process.initialize()
  for norms in ([0.25, 0.5, 1.0], [0.25, 1e9, 1e9]):
    output = process.next(state, list(np.float32(norms)))
    assert output.result[0] == 0.5


def test_first_round_listens_or_is_uniform():
  norms = np.float32([4, 0, 3, 2, 1])
  expected = {None: np.zeros(5), 32: M / 32 * np.array([1, 0, 1, 1, 1])}
  for size, p in expected.items():
    process = build(**({} if size is None else {'first_cohort_size': size}))
    output = process.next(process.initialize(), list(norms))
    np.testing.assert_allclose(output.result, p, rtol=1e-6)
    # At least the threshold of Eq. (7), which is 10 / M for no sure client.
    assert controller(output.state)['threshold'] == pytest.approx(10 / M)
    assert controller(output.state)['num_rounds'] == 0
    # The threshold is known from then on.
    output = process.next(output.state, list(norms))
    np.testing.assert_allclose(output.result, norms * M / 10, rtol=1e-6)
    assert controller(output.state)['num_rounds'] == 1


@pytest.mark.parametrize('norms', [[0.0] * 4, [math.nan, math.inf], [7, 0, 0]])
def test_threshold_stays_if_there_is_nothing_to_learn(norms):
  # All norms are 0; or all who have something to send are sure to.
  process = build(initial_threshold=0.5)
  state = process.initialize()
  for _ in range(3):
    state = process.next(state, list(np.float32(norms))).state
    assert controller(state)['threshold'] == 0.5
    assert controller(state)['num_rounds'] == 0


def test_more_sure_clients_than_m_raise_the_threshold():
  process = build(initial_threshold=0.5)
  state = process.next(process.initialize(), [np.float32(9)] * 5).state
  # x = 5 / M = 2, and the first step of the controller is 1.
  assert controller(state)['threshold'] == pytest.approx(0.5 * math.e)


def test_burst_raises_the_threshold_by_c_x_at_most():
  process = build(initial_threshold=0.5)
  state = process.next(process.initialize(), [np.float32(9)] * 25).state
  assert controller(state)['threshold'] == pytest.approx(0.5 * 3 * 10)


def test_secure_sums_give_nearly_the_same():
  plain, secure = build(), build(secure=True)
  cohorts = random_cohorts([5] * 4 + [12] * 4 + [32] * 4)
  cohorts = [1e3 * norms / norms.max() for norms in cohorts]
  with execution.use_secure_test_context():
    states = plain.initialize(), secure.initialize()
    for norms in cohorts:
      outputs = [
        process.next(state, list(np.float32(norms)))
        for process, state in zip((plain, secure), states)
      ]
      states = [output.state for output in outputs]
      # Norms are rounded to steps of 1e5 / 2^32.
      np.testing.assert_allclose(
        outputs[1].result, outputs[0].result, rtol=2e-6
      )
  assert controller(states[0])['num_rounds'] == 11
  assert controller(states[1])['num_rounds'] == 11


# Coins.

BASE_NORMS = np.array([8, 4, 2, 1, 0.25])
BASE_WEIGHTS = np.array([1, 4, 2, 1, 2])
REPEATS = 60
# By which the norms change from round to round, so that tau lags behind.
LEVELS = (1, 1, 4, 1.5, 1, 1, 2, 5, 2, 1)


@functools.cache
def tossed():
  """Rounds with a carried threshold and unseeded coins.

  Sixty repeats of a cohort of 5 clients are in one round, with 60 m in place of
  m.

  Returns:
    For each round the repeats' aggregates, in the basis of the 5 orthogonal
    updates; their expectation; and the probabilities of the reference.
  """
  m = 1.5 * REPEATS
  n = REPEATS * BASE_NORMS.size
  process = tff_ocs.ClientSamplingFactory(
    schemes.ThresholdSampling(m, first_cohort_size=n), measure_norms=True
  ).create(tff.TensorType(np.float32, [n]), np.float32)
  weights = np.tile(BASE_WEIGHTS, REPEATS)
  lengths = np.tile(BASE_NORMS / BASE_WEIGHTS, REPEATS)
  state, reference = process.initialize(), probabilities.ThresholdState()
  rounds = []
  for level in LEVELS:
    state = tff_ocs.set_cohort_weight(state, weights.sum())
    output = process.next(
      state,
      list(np.diag(np.float32(level * lengths))),
      list(map(float, weights)),
    )
    state = output.state
    np.testing.assert_allclose(
      np.sort(output.measurements['norms']),
      np.sort(level * lengths * weights),
      rtol=1e-6,
    )
    norms = level * lengths * weights / weights.sum()
    if reference.threshold == 0:
      p = np.full(n, m / n)
    else:
      p = probabilities.threshold_probabilities(norms, reference.threshold)
    reference = probabilities.update_threshold(reference, norms, p, m)
    assert output.measurements['expected_participants'] == pytest.approx(
      p.sum(), rel=1e-5
    )
    aggregates = REPEATS * np.float64(output.result).reshape(REPEATS, -1)
    expected = level * BASE_NORMS / BASE_WEIGHTS.sum()
    rounds.append((aggregates, expected, p[: BASE_NORMS.size]))
  return rounds


def test_probabilities_differ_between_the_rounds():
  spent = [p.sum() for _, _, p in tossed()]
  assert min(spent) < 0.75 and max(spent) > 3


def test_clients_send_with_their_probabilities():
  # False alarms: see FALSE_ALARM_RATE; each client is one check.
  counts = sum(np.count_nonzero(a, axis=0) for a, _, _ in tossed())
  of_rounds = np.stack([p for _, _, p in tossed()])
  for count, p in zip(counts, of_rounds.T):
    low, high = oracles.count_bounds(np.repeat(p, REPEATS))
    assert low <= count <= high


def test_aggregate_is_unbiased_with_a_carried_threshold():
  # False alarms: see FALSE_ALARM_RATE; each coordinate is one check.
  for i in range(BASE_NORMS.size):
    errors = np.concatenate([a[:, i] / e[i] - 1 for a, e, _ in tossed()])
    p = np.array([p[i] for _, _, p in tossed()])
    bound = oracles.mean_bound(
      np.mean((1 - p) / p), np.max(np.maximum(1, (1 - p) / p)), errors.size
    )
    # Rounding to float32 is not a false alarm.
    assert abs(errors.mean()) <= bound + 1e-6


def test_variance_is_the_sampling_variance():
  # False alarms: see FALSE_ALARM_RATE; one check. The squared error is bounded
  # and its own variance is known, from all 2^5 outcomes. It is divided by the
  # squared level of the round's norms, so that all rounds count.
  errors, means, variances, largest = [], [], [], 0.0
  for aggregates, expected, p in tossed():
    mean, second_moment, scale = 0.0, 0.0, np.sum(expected**2)
    for outcome in itertools.product([0, 1], repeat=p.size):
      sent = np.array(outcome)
      chance = np.prod(np.where(sent, p, 1 - p))
      error = np.sum((sent * expected / p - expected) ** 2) / scale
      if chance > 0:
        mean += chance * error
        second_moment += chance * error**2
        largest = max(largest, error)
    assert mean * scale == pytest.approx(
      probabilities.sampling_variance(expected, p), rel=1e-12
    )
    errors.append(np.sum((aggregates - expected) ** 2, axis=1) / scale)
    means.append(mean)
    variances.append(second_moment - mean**2)
  errors = np.concatenate(errors)
  bound = oracles.mean_bound(np.mean(variances), largest, errors.size)
  assert bound < np.mean(means) / 2  # The check means something.
  assert abs(errors.mean() - np.mean(means)) <= bound


# The interface.


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ({'expected_clients': 0}, ValueError, 'expected_clients must .*found 0'),
    ({'expected_clients': '3'}, TypeError, "expected_clients must .*found '3'"),
    ({'eta': 0}, ValueError, 'eta must be .* above 0, found 0'),
    ({'eta': None}, TypeError, 'eta must be .* above 0, found None'),
    ({'c': 1}, ValueError, 'c must be above 1, found 1'),
    ({'c': math.inf}, ValueError, 'c must be .* finite .* found inf'),
    ({'first_cohort_size': 0}, ValueError, 'first_cohort_size must .*found 0'),
    ({'first_cohort_size': '2'}, TypeError, 'first_cohort_size must be a num'),
    (
      {'initial_threshold': -1},
      ValueError,
      'initial_threshold must be .* above 0, found -1',
    ),
    (
      {'initial_threshold': 1, 'first_cohort_size': 4},
      ValueError,
      'At most one of first_cohort_size and initial_threshold .* found 4 and 1',
    ),
  ],
  ids=str,
)
def test_bad_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    schemes.ThresholdSampling(**{'expected_clients': 3, **arguments})


def test_repr():
  assert repr(schemes.ThresholdSampling(3)) == (
    'ThresholdSampling(expected_clients=3, eta=0.3, c=3)'
  )
  assert repr(schemes.ThresholdSampling(2.5, eta=0.1, c=2)) == (
    'ThresholdSampling(expected_clients=2.5, eta=0.1, c=2)'
  )
