import collections
import functools
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tests import oracles
from tff_ocs import execution
from tff_ocs import probabilities
from tff_ocs import schemes

# The threshold of the first round; the others follow from it.
THRESHOLD = 3.0
SCHEMES = {
  'full': schemes.FullParticipation(),
  'uniform': schemes.UniformSampling(2),
  'ocs': schemes.OptimalSampling(2),
  'aocs': schemes.ApproximateOptimalSampling(2),
  'threshold': schemes.ThresholdSampling(2, initial_threshold=THRESHOLD),
}
each_scheme = pytest.mark.parametrize('scheme', SCHEMES)

WEIGHT_TYPE = tff.TensorType(np.float32)
MAX_CLIENTS = 8
# In `kernel` client i has its own coordinate, so that the aggregate shows who
# sent, and with what factor.
VALUE_TYPE = tff.to_type(
  collections.OrderedDict(
    kernel=(np.float32, [MAX_CLIENTS]),
    dense=[(np.float32, [2, 1]), np.float32],
  )
)
NUM_PARAMETERS = MAX_CLIENTS + 3


def _value(index, entry):
  """The update of client `index`; all its entries are `entry`, or 0."""
  kernel = np.zeros(MAX_CLIENTS, np.float32)
  kernel[index] = entry
  return collections.OrderedDict(
    kernel=kernel,
    dense=[np.full([2, 1], entry, np.float32), np.float32(entry)],
  )


def _process(scheme, value_type=VALUE_TYPE, weight_type=WEIGHT_TYPE, seed=None):
  return _build_process(scheme, value_type, weight_type, seed)


@functools.cache
def _build_process(scheme, value_type, weight_type, seed):
  scheme = SCHEMES[scheme] if isinstance(scheme, str) else scheme
  return tff_ocs.ClientSamplingFactory(scheme, seed=seed).create(
    value_type, weight_type
  )


def _expected_probabilities(scheme, norms, m=2, threshold=THRESHOLD):
  norms = np.asarray(norms, np.float64)
  if scheme == 'full':
    return np.ones(norms.size), 0
  if scheme == 'uniform':
    return probabilities.uniform_probabilities(norms.size, m), 0
  if scheme == 'ocs':
    return probabilities.optimal_probabilities(norms, m), 0
  if scheme == 'threshold':
    return probabilities.threshold_probabilities(norms, threshold), 0
  return probabilities.approximate_probabilities(norms, m)


def _check_round(scheme, entries, weights, output, threshold=THRESHOLD):
  """Checks result and measurements of a round, whatever the coins were.

  Args:
    scheme: The scheme's name, with m = 2.
    entries: The clients' entries, see `_value`.
    weights: The clients' weights.
    output: What `next` returned.
    threshold: That before the round, of threshold sampling.

  Returns:
    Which clients sent something that is not zero.
  """
  n = len(entries)
  entries = np.asarray(entries, np.float64)
  weights = np.asarray(weights, np.float64)
  with np.errstate(invalid='ignore'):
    norms = weights * np.abs(entries) * 2  # Four entries: sqrt(4).
  finite = np.isfinite(norms)
  norms = np.where(finite, norms, 0)
  p, num_iterations = _expected_probabilities(
    scheme, norms, threshold=threshold
  )
  total = np.sum(weights[np.isfinite(weights)])

  result = output.result
  for tensor in tf.nest.flatten(result):
    assert np.all(np.isfinite(tensor))
  sent = result['kernel'][:n] != 0
  assert not np.any(sent & ~finite)
  assert np.all(sent[finite & (p == 1) & (norms > 0)])
  with np.errstate(all='ignore'):
    scaled = np.where(sent, weights / p * entries / total, 0)
  np.testing.assert_allclose(result['kernel'][:n], scaled, rtol=2e-6)
  np.testing.assert_array_equal(result['kernel'][n:], 0)
  largest = np.max(np.abs(scaled), initial=0)
  for tensor in tf.nest.flatten(result['dense']):
    np.testing.assert_allclose(
      tensor, np.full_like(tensor, scaled.sum()), rtol=1e-5, atol=1e-6 * largest
    )

  measured = output.measurements
  participants = measured['participants']
  assert measured['cohort_size'] == n
  assert measured['non_finite_clients'] == np.sum(~finite)
  assert measured['num_iterations'] == num_iterations
  assert measured['expected_participants'] == pytest.approx(
    p[finite].sum(), rel=1e-6
  )
  # Where an update is all zero, sending it does not show.
  unseen = np.sum(finite & (norms == 0) & (p > 0))
  assert sent.sum() <= participants <= sent.sum() + unseen
  scalars = {
    'full': 0,
    'uniform': 0,
    'ocs': 1,
    'aocs': 1 + 2 * num_iterations,
    'threshold': 3,
  }
  assert measured['uplink_bits'] == (
    participants * 32 * NUM_PARAMETERS + n * 32 * scalars[scheme]
  )
  assert measured['uplink_bits'].dtype == np.int64
  for name in ('cohort_size', 'participants', 'non_finite_clients'):
    assert measured[name].dtype == np.int32
  return sent


def _run(process, entries, weights, *coin_seeds):
  return process.next(
    process.initialize(),
    [_value(i, entry) for i, entry in enumerate(entries)],
    list(weights),
    *coin_seeds,
  )


# The weighted mean, in regular and irregular rounds.

COHORTS = {
  'regular': ([1, 2, -3, 0.5, 0.1], [1, 1, 2, 4, 8]),
  'one-diverged-nan': ([1, math.nan, 3, 0.5, 2], [1, 2, 1, 4, 1]),
  'one-diverged-inf': ([1, 2, -3, math.inf, 2], [1, 2, 1, 4, 1]),
  'one-diverged-minus-inf': ([-math.inf, 2, 3, 1, 2], [1, 2, 1, 4, 1]),
  'two-diverged': ([math.nan, 2, 3, 1, math.inf], [1, 2, 1, 4, 1]),
  'all-diverged': ([math.nan, math.inf, math.nan], [1, 2, 1]),
  'diverged-and-empty': ([1, 2, 3, math.nan], [1, 1, 1, 0]),
  'nan-weight': ([1, 2, 3, 4], [1, math.nan, 1, 1]),
  'inf-weight': ([1, 2, 3, 4], [1, 1, math.inf, 1]),
  'one-empty': ([1, 2, 0, 3], [1, 3, 0, 2]),
  'only-empty': ([0, 0, 0], [0, 0, 0]),
  'only-weights-zero': ([1, 2, 3], [0, 0, 0]),
  'one-client': ([3], [7]),
  'one-client-empty': ([0], [0]),
  'one-client-diverged': ([math.nan], [3]),
  'all-norms-zero': ([0, 0, 0, 0], [1, 2, 3, 4]),
  'one-nonzero': ([0, 0, 5, 0], [1, 2, 3, 4]),
  'two-nonzero': ([0, 1, 5, 0], [1, 2, 3, 4]),
  'ties': ([2, 2, 2, 2, 2], [1, 1, 1, 1, 1]),
  'ties-at-the-threshold': ([3, 3, 2, 2, 1, 1], [1, 1, 1, 1, 1, 1]),
  'ratio-1e10': ([1e-5, 1e5, 1, 1e-5, 1e5, 2], [1, 1, 1, 1, 1, 1]),
  'one-giant': ([100, 1, 1, 1], [1, 1, 1, 1]),
  'two-giants': ([1e8, 1e8, 1, 1], [1, 1, 1, 1]),
  'n-equals-m': ([1, 1000], [3, 1]),
  'eight-clients': ([1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]),
}


# Cohorts of different sizes meet the same process: n is not a constant. A
# change of the size is slow, though.
@each_scheme
@pytest.mark.parametrize(
  'cohort', sorted(COHORTS, key=lambda name: len(COHORTS[name][0]))
)
def test_round(scheme, cohort):
  entries, weights = COHORTS[cohort]
  output = _run(_process(scheme), entries, np.float32(weights))
  _check_round(scheme, entries, weights, output)
  assert output.measurements['invalid_probabilities'] == 0


@each_scheme
def test_rounds_with_changing_cohort_size(scheme):
  process = _process(scheme)
  state, threshold = process.initialize(), THRESHOLD
  for n in (5, 8, 1, 2, 3):
    entries = [3.0, 1.0, 0.5, 2.0, 1.0, 7.0, 0.1, 0.2][:n]
    weights = np.arange(1, n + 1, dtype=np.float32)
    output = process.next(
      state, [_value(i, x) for i, x in enumerate(entries)], list(weights)
    )
    state = output.state
    _check_round(scheme, entries, weights, output, threshold)
    if scheme == 'threshold':
      assert state['scheme']['controller']['threshold'] != threshold
      threshold = state['scheme']['controller']['threshold']


@pytest.mark.parametrize('scheme', ['ocs', 'aocs'])
def test_with_one_giant_client_the_giant_always_sends(scheme):
  process = _process(scheme)
  for _ in range(5):
    output = _run(process, [100, 1, 1, 1], [1.0] * 4)
    sent = _check_round(scheme, [100, 1, 1, 1], [1] * 4, output)
    assert sent[0]


def test_one_diverged_value_among_finite_ones_is_enough():
  value = _value(1, 2.0)
  value['dense'][0][1, 0] = np.nan
  process = _process('full')
  output = process.next(
    process.initialize(), [_value(0, 1.0), value], [1.0, 3.0]
  )
  assert output.measurements['non_finite_clients'] == 1
  assert output.result['kernel'][0] == 0.25
  np.testing.assert_array_equal(output.result['kernel'][1:], 0)


# The updates that clients send depend on the types; norms are float32 for all.
@pytest.mark.parametrize(
  ('scheme', 'dtype'),
  [
    *((scheme, np.int32) for scheme in SCHEMES),
    ('aocs', np.int64),
    ('aocs', np.float64),
  ],
)
def test_weights_may_be_integers(scheme, dtype):
  process = _process(scheme, weight_type=tff.TensorType(dtype))
  entries, weights = COHORTS['regular']
  output = _run(process, entries, np.array(weights, dtype))
  _check_round(scheme, entries, weights, output)


@pytest.mark.parametrize(
  ('scheme', 'dtype'),
  [
    *((scheme, np.float16) for scheme in SCHEMES),
    ('aocs', np.float32),
    ('aocs', np.float64),
  ],
)
def test_values_may_be_of_any_float_type(scheme, dtype):
  # Half the sum of squares, 9e4, is above the largest float16, 65504; the norm
  # is not.
  process = _process(scheme, value_type=tff.TensorType(dtype, [2]))
  output = process.next(
    process.initialize(), [np.array([300, -300], dtype)] * 2, [1.0, 1.0]
  )
  assert output.measurements['non_finite_clients'] == 0
  assert output.result.dtype == dtype
  np.testing.assert_array_equal(output.result, [300, -300])


@pytest.mark.parametrize('entry', [1e-25, 1e-20, 1e18, 1e25])
@each_scheme
def test_finite_norms_with_squares_out_of_range(scheme, entry):
  entries = [entry, entry]
  output = _run(_process(scheme), entries, [1.0, 1.0])
  sent = _check_round(scheme, entries, [1, 1], output)
  # All send with m = n, and those above the threshold.
  if scheme != 'threshold' or entry > THRESHOLD:
    assert np.all(sent)


def test_full_participation_equals_mean_factory():
  rng = np.random.default_rng(0)
  values = [
    collections.OrderedDict(
      kernel=rng.normal(size=MAX_CLIENTS).astype(np.float32),
      dense=[
        rng.normal(size=[2, 1]).astype(np.float32),
        np.float32(rng.normal()),
      ],
    )
    for _ in range(7)
  ]
  weights = list(rng.uniform(0, 5, 7).astype(np.float32))
  mean = tff.aggregators.MeanFactory().create(VALUE_TYPE, WEIGHT_TYPE)
  expected = mean.next(mean.initialize(), values, weights).result
  full = _process('full')
  found = full.next(full.initialize(), values, weights).result
  for x, y in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
    np.testing.assert_allclose(x, y, rtol=1e-6)


def test_inner_factories_are_used_and_measured():
  class Doubled(tff.aggregators.UnweightedAggregationFactory):
    """A sum of which the measurement is 42."""

    def create(self, value_type):
      inner = tff.aggregators.SumFactory().create(value_type)

      @tff.federated_computation(
        inner.initialize.type_signature.result,
        tff.FederatedType(value_type, tff.CLIENTS),
      )
      def next_fn(state, value):
        output = inner.next(state, value)
        return tff.templates.MeasuredProcessOutput(
          output.state, output.result, tff.federated_value(42, tff.SERVER)
        )

      return tff.templates.AggregationProcess(inner.initialize, next_fn)

  process = tff_ocs.ClientSamplingFactory(
    SCHEMES['aocs'],
    value_sum_factory=tff.aggregators.clipping_factory(
      1.0, tff.aggregators.SumFactory()
    ),
    weight_sum_factory=Doubled(),
    scalar_sum_factory=Doubled(),
  ).create(tff.TensorType(np.float32, [2]), WEIGHT_TYPE)
  output = process.next(
    process.initialize(), [np.float32([30, 40])] * 2, [1.0, 3.0]
  )
  # Both send, n_i / p_i U_i clipped to the norm 1, over the sum 4 of weights.
  np.testing.assert_allclose(output.result, [0.3, 0.4], rtol=1e-6)
  assert output.measurements['weight_sum'] == 42
  assert output.measurements['scalar_sum'] == 42
  assert set(tf.nest.flatten(output.measurements['scheme'])) == {42}
  assert output.measurements['value_sum']['clipped_count'] == 2


# Who sends: one round with many clients is as good as many rounds.

BASE_NORMS = np.float32([8, 4, 2, 1, 0.25])
BASE_WEIGHTS = np.float32([1, 4, 2, 1, 2])
REPEATS = 60


@functools.cache
def _many_coins(scheme):
  """Repeats a cohort of 5 clients 360 times, and tosses unseeded coins.

  Sixty repeats are in one round: with 60 m in place of m the probabilities of
  each are those of the cohort alone.

  Args:
    scheme: The scheme's name.

  Returns:
    The repeats' aggregates, in the basis of the 5 orthogonal updates; the
    expected aggregate; and the probabilities.
  """
  size = BASE_NORMS.size
  n = REPEATS * size
  m = 2 * REPEATS
  kind = {
    'uniform': schemes.UniformSampling,
    'ocs': schemes.OptimalSampling,
    'aocs': schemes.ApproximateOptimalSampling,
  }[scheme]
  process = tff_ocs.ClientSamplingFactory(kind(m)).create(
    tff.TensorType(np.float32, [n]), WEIGHT_TYPE
  )
  lengths = np.tile(BASE_NORMS / BASE_WEIGHTS, REPEATS)
  values = list(np.diag(lengths))
  weights = list(np.tile(BASE_WEIGHTS, REPEATS))
  state = process.initialize()
  aggregates = []
  for _ in range(6):
    output = process.next(state, values, weights)
    state = output.state
    assert output.measurements['participants'] == np.count_nonzero(
      output.result
    )
    # Divided by the weights of all repeats.
    aggregates.append(REPEATS * np.float64(output.result).reshape(-1, size))
  p, _ = _expected_probabilities(scheme, BASE_NORMS)
  return np.concatenate(aggregates), BASE_NORMS / BASE_WEIGHTS.sum(), p


each_random_scheme = pytest.mark.parametrize(
  'scheme', ['uniform', 'ocs', 'aocs']
)


@each_random_scheme
def test_each_client_sends_with_its_probability(scheme):
  # False alarms: see FALSE_ALARM_RATE; each client is one check.
  aggregates, _, p = _many_coins(scheme)
  counts = np.count_nonzero(aggregates, axis=0)
  for count, p_i in zip(counts, p):
    low, high = oracles.count_bounds([p_i] * len(aggregates))
    assert low <= count <= high


@each_random_scheme
def test_number_of_participants_has_the_distribution_of_independent_coins(
  scheme,
):
  # False alarms: see FALSE_ALARM_RATE; each bound is one check.
  aggregates, _, p = _many_coins(scheme)
  participants = np.count_nonzero(aggregates, axis=1)
  low, high = oracles.count_bounds(np.tile(p, len(aggregates)))
  assert low <= participants.sum() <= high
  # The whole distribution, not its mean alone: of each number of participants
  # there are as many cohorts as the Poisson binomial law says.
  law = np.ones(1)
  for p_i in p:
    law = np.convolve(law, [1 - p_i, p_i])
  for number, chance in enumerate(law):
    low, high = oracles.count_bounds([min(chance, 1.0)] * len(participants))
    assert low <= np.sum(participants == number) <= high


@each_random_scheme
def test_pairs_of_clients_are_independent(scheme):
  # False alarms: see FALSE_ALARM_RATE; each pair is one check.
  aggregates, _, p = _many_coins(scheme)
  sent = aggregates != 0
  for i, j in itertools.combinations(range(p.size), 2):
    low, high = oracles.count_bounds([p[i] * p[j]] * len(sent))
    assert low <= np.sum(sent[:, i] & sent[:, j]) <= high


@each_random_scheme
def test_aggregate_is_an_unbiased_mean(scheme):
  # False alarms: see FALSE_ALARM_RATE; each coordinate is one check. The
  # coordinates of client i are 0 or u_i / p_i, over the total weight.
  aggregates, expected, p = _many_coins(scheme)
  for i, p_i in enumerate(p):
    bound = oracles.mean_bound(
      expected[i] ** 2 * (1 - p_i) / p_i,
      expected[i] * max(1, (1 - p_i) / p_i),
      len(aggregates),
    )
    # Rounding to float32 is not a false alarm.
    assert abs(aggregates[:, i].mean() - expected[i]) <= bound + 1e-6
  # Where p_i is 1 nothing is random.
  sure = p == 1
  np.testing.assert_allclose(
    aggregates[:, sure] - expected[sure], 0, atol=1e-6 * expected.max()
  )


@each_random_scheme
def test_variance_is_the_sampling_variance(scheme):
  # False alarms: see FALSE_ALARM_RATE; one check. The squared error is bounded
  # and its own variance is known, from all 2^5 outcomes.
  aggregates, expected, p = _many_coins(scheme)
  errors = np.sum((aggregates - expected) ** 2, axis=1)
  mean, second_moment, largest = 0.0, 0.0, 0.0
  for outcome in itertools.product([0, 1], repeat=p.size):
    sent = np.array(outcome)
    chance = np.prod(np.where(sent, p, 1 - p))
    error = np.sum((sent * expected / p - expected) ** 2)
    if chance > 0:
      mean += chance * error
      second_moment += chance * error**2
      largest = max(largest, error)
  assert mean == pytest.approx(
    probabilities.sampling_variance(expected, p), rel=1e-12
  )
  bound = oracles.mean_bound(second_moment - mean**2, largest, len(errors))
  assert bound < mean  # The check means something.
  assert abs(errors.mean() - mean) <= bound


@functools.cache
def _scalar_process(seed=None, with_coin_seeds=False, m=100):
  factory = tff_ocs.ClientSamplingFactory(schemes.UniformSampling(m), seed=seed)
  create = factory.create_with_coin_seeds if with_coin_seeds else factory.create
  return create(tff.TensorType(np.float32), WEIGHT_TYPE)


def _coin_seeds(*seed, n=200):
  rng = np.random.default_rng(seed)
  limits = np.iinfo(np.int64)
  return list(rng.integers(limits.min, limits.max, [n, 2], np.int64))


def test_unseeded_clients_with_identical_updates_toss_different_coins():
  # False alarms: see FALSE_ALARM_RATE; each round is one check.
  process = _scalar_process()
  low, high = oracles.count_bounds([0.5] * 200)
  counts = []
  state = process.initialize()
  for _ in range(3):
    output = process.next(state, [1.0] * 200, [1.0] * 200)
    state = output.state
    counts.append(int(output.measurements['participants']))
    assert low <= counts[-1] <= high


def test_clients_with_coin_seeds_and_identical_updates_toss_different_coins():
  # Seeds are fixed and the test repeats exactly.
  process = _scalar_process(with_coin_seeds=True)
  low, high = oracles.count_bounds([0.5] * 200)
  # Both words of a seed matter.
  for seeds in (
    _coin_seeds(0),
    [np.array([7, i]) for i in range(200)],
    [np.array([i, 7]) for i in range(200)],
  ):
    output = process.next(process.initialize(), [1.0] * 200, [1.0] * 200, seeds)
    assert low <= output.measurements['participants'] <= high


# One-hot values that show who sent.
CROWD = 64
CROWD_TYPE = tff.TensorType(np.float32, [CROWD])


@functools.cache
def _crowd_process(scheme=None, seed=None, with_coin_seeds=False):
  factory = tff_ocs.ClientSamplingFactory(
    scheme or schemes.UniformSampling(CROWD / 2), seed=seed
  )
  create = factory.create_with_coin_seeds if with_coin_seeds else factory.create
  return create(CROWD_TYPE, WEIGHT_TYPE)


def _who_sends(process, num_rounds, coin_seeds=None, scale=1.0):
  """Runs rounds on the same updates; returns [num_rounds, CROWD] booleans."""
  values = list(scale * np.eye(CROWD, dtype=np.float32))
  state = process.initialize()
  sent = []
  for round_num in range(num_rounds):
    seeds = () if coin_seeds is None else (coin_seeds[round_num],)
    output = process.next(state, values, [1.0] * CROWD, *seeds)
    state = output.state
    sent.append(output.result != 0)
    assert output.measurements['participants'] == sent[-1].sum()
  return np.array(sent)


def test_unseeded_rounds_differ():
  # Two rounds agree with a probability of 2^-64.
  process = _crowd_process()
  first, second = _who_sends(process, 2)
  assert np.any(first != second)
  assert np.any(_who_sends(process, 1)[0] != first)


def test_seeded_runs_repeat_exactly():
  first = _who_sends(_crowd_process(seed=5), 2)
  built_again = _crowd_process.__wrapped__(seed=5)
  np.testing.assert_array_equal(_who_sends(built_again, 2), first)


def test_seeded_coins_differ_by_round_seed_and_value():
  # Deterministic: the seeds are fixed. Independent coins differ for about half
  # of the clients.
  low, high = oracles.count_bounds([0.5] * CROWD)
  process = _crowd_process(seed=5)
  first, second, third = _who_sends(process, 3)
  other_seed = _who_sends(_crowd_process(seed=6), 1)[0]
  other_values = _who_sends(process, 1, scale=2.0)[0]
  for sent in (first, second, third, other_seed, other_values):
    # Clients with different updates toss different coins ...
    assert low <= sent.sum() <= high
  for sent in (second, third, other_seed, other_values):
    # ... and so does one client in different circumstances.
    assert low <= np.sum(sent != first) <= high
  assert low <= np.sum(third != second) <= high


def test_seeded_clients_with_equal_values_and_weights_share_a_coin():
  process = _scalar_process(seed=3)
  state = process.initialize()
  counts = []
  for _ in range(12):
    output = process.next(state, [1.0] * 200, [1.0] * 200)
    state = output.state
    counts.append(int(output.measurements['participants']))
  # As documented; and the coin is another one in each round.
  assert set(counts) == {0, 200}


def test_seeded_coins_depend_on_the_weight():
  process = _scalar_process(seed=3)
  output = process.next(
    process.initialize(), [1.0] * 200, list(np.arange(1, 201, dtype=np.float32))
  )
  low, high = oracles.count_bounds([0.5] * 200)
  assert low <= output.measurements['participants'] <= high


def test_coin_seeds_repeat_and_decide_alone():
  seeds = [_coin_seeds(0, n=CROWD), _coin_seeds(1, n=CROWD)]
  process = _crowd_process(with_coin_seeds=True)
  first = _who_sends(process, 2, seeds)
  np.testing.assert_array_equal(_who_sends(process, 2, seeds), first)
  # Neither the round nor the value matters.
  np.testing.assert_array_equal(
    _who_sends(process, 2, seeds[::-1], scale=2.0), first[::-1]
  )
  low, high = oracles.count_bounds([0.5] * CROWD)
  assert low <= np.sum(first[0] != first[1]) <= high
  for sent in first:
    assert low <= sent.sum() <= high


def test_schemes_share_the_randomness_of_coins():
  seeds = [_coin_seeds(2, n=CROWD)]
  half = _who_sends(_crowd_process(with_coin_seeds=True), 1, seeds)[0]
  for scheme in (
    schemes.OptimalSampling(CROWD / 2),
    schemes.ApproximateOptimalSampling(CROWD / 2),
  ):
    # Equal norms have equal probabilities with every scheme.
    process = _crowd_process(scheme, with_coin_seeds=True)
    np.testing.assert_array_equal(_who_sends(process, 1, seeds)[0], half)
  # With larger probabilities the same clients send, and more.
  process = _crowd_process(
    schemes.UniformSampling(CROWD * 3 / 4), with_coin_seeds=True
  )
  more = _who_sends(process, 1, seeds)[0]
  assert np.all(more[half])
  assert more.sum() > half.sum()


# With this seed a float32 coin is exactly 0, below every p > 0. That happens
# with one seed in 2^23, so that with float32 coins a client with p = 1e-9 would
# be sent 100 times too often, and one with p = 1e-10 1000 times.
SEED_OF_ZERO = np.array([8, 1708111], np.int64)


def test_tiny_probabilities_are_tossed_in_float64():
  assert tf.random.stateless_uniform([], SEED_OF_ZERO, dtype=tf.float32) == 0
  coin = 4.452839674762288e-07
  assert tf.random.stateless_uniform(
    [], SEED_OF_ZERO, dtype=tf.float64
  ).numpy() == pytest.approx(coin, rel=1e-12)
  for p, sends in ((1e-10, 0), (1e-9, 0), (4.4e-7, 0), (4.5e-7, 2), (1e-5, 2)):
    process = _scalar_process(with_coin_seeds=True, m=2 * p)
    output = process.next(
      process.initialize(), [1.0] * 2, [1.0] * 2, [SEED_OF_ZERO] * 2
    )
    assert output.measurements['participants'] == sends


def _random_nodes(comp):
  """The TensorFlow nodes of a computation that draw uniform numbers."""
  found = []

  def visit(block):
    if isinstance(block, tff.framework.CompiledComputation):
      graph = tf.compat.v1.GraphDef()
      block.proto.tensorflow.graph_def.Unpack(graph)
      nodes = list(graph.node)
      for function in graph.library.function:
        nodes.extend(function.node_def)
      # Folding a fingerprint into a seed draws integers.
      found.extend(
        node
        for node in nodes
        if 'RandomUniform' in node.op and 'Int' not in node.op
      )
    return block, False

  tff.framework.transform_postorder(comp.to_building_block(), visit)
  return found


@pytest.mark.parametrize(
  'arguments',
  [dict(), dict(seed=1), dict(with_coin_seeds=True)],
  ids=['unseeded', 'seeded', 'coin-seeds'],
)
def test_every_coin_is_drawn_in_float64(arguments):
  nodes = _random_nodes(_scalar_process(**arguments).next)
  assert nodes
  for node in nodes:
    assert tf.as_dtype(node.attr['dtype'].type) == tf.float64


def test_unseeded_coins_have_no_seed():
  # With one, each new worker would toss the same sequence.
  (node,) = _random_nodes(_scalar_process().next)
  assert node.op == 'RandomUniform'
  assert node.attr['seed'].i == 0
  assert node.attr['seed2'].i == 0


# Values that the server sees.

# Another iteration adds the same sums again, which take long to compile.
BRIEF_SCHEMES = {
  **SCHEMES,
  'aocs': schemes.ApproximateOptimalSampling(2, max_iterations=1),
}


def _secure_sums():
  return dict(
    value_sum_factory=tff.aggregators.SecureSumFactory(1e3, -1e3),
    weight_sum_factory=tff.aggregators.SecureSumFactory(1e3, 0.0),
    scalar_sum_factory=tff.aggregators.SecureSumFactory(1e3, 0.0),
  )


def _training_process(scheme, secure=False):
  return tff_ocs.build_federated_averaging_process(
    models.build_linear_model(2),
    tff_ocs.ClientSamplingFactory(
      BRIEF_SCHEMES[scheme], **(_secure_sums() if secure else {})
    ),
    client_learning_rate=0.1,
    scalar_sum_factory=(
      tff.aggregators.SecureSumFactory(1e3, 0.0) if secure else None
    ),
  )


def _sizes(type_spec):
  return [
    int(np.prod(t.shape, dtype=np.int64))
    for t in tff.structure.flatten(type_spec)
  ]


def _check_server_sees_sums_only(comp, update_type):
  """Of an update's type there is one sum; all others are of scalars."""
  uplink = oracles.uplink(comp)
  updates = [pair for pair in uplink if max(_sizes(pair[1])) > 1]
  assert {n for n, t in uplink if (n, t) not in updates} == {'federated_sum'}
  ((name, type_spec),) = updates
  if name == 'federated_aggregate':
    # `sum_of_senders`: that the result is a sum, is tested there.
    assert tff.structure.name_list(type_spec) == ['value', 'sends']
    type_spec = type_spec['value']
  else:
    assert name == 'federated_sum'
  assert _sizes(type_spec) == _sizes(update_type)
  # Nor does anything leave the round unsummed.
  for _, part in tff.structure.iter_elements(comp.type_signature.result):
    assert part.placement is tff.SERVER


each_private_scheme = pytest.mark.parametrize(
  'scheme', ['full', 'uniform', 'aocs', 'threshold']
)


@each_private_scheme
def test_server_sees_sums_only(scheme):
  _check_server_sees_sums_only(_process(scheme).next, VALUE_TYPE)
  factory = tff_ocs.ClientSamplingFactory(
    BRIEF_SCHEMES[scheme],
    value_sum_factory=tff.aggregators.SumFactory(),
    seed=1,
  )
  # The coins add no aggregation, whatever the scheme.
  create = (
    factory.create_with_coin_seeds if scheme == 'aocs' else factory.create
  )
  comp = create(VALUE_TYPE, WEIGHT_TYPE).next
  _check_server_sees_sums_only(comp, VALUE_TYPE)
  assert {name for name, _ in oracles.uplink(comp)} == {'federated_sum'}


@each_private_scheme
def test_server_sees_sums_only_in_the_whole_training_round(scheme):
  _check_server_sees_sums_only(
    _training_process(scheme).next,
    tff.to_type([(np.float32, [2, 1]), (np.float32, [1])]),
  )


def test_server_sees_each_norm_with_optimal_sampling():
  # Its known cost; and proof that the tests above can fail.
  for comp, update_type in (
    (_process('ocs').next, VALUE_TYPE),
    (
      _training_process('ocs').next,
      tff.to_type([(np.float32, [2, 1]), (np.float32, [1])]),
    ),
  ):
    with pytest.raises(AssertionError):
      _check_server_sees_sums_only(comp, update_type)
    names = {name for name, _ in oracles.uplink(comp)}
    assert names == {'federated_sum', 'federated_aggregate'}


@each_scheme
def test_secure_sums_leave_no_other_aggregation(scheme):
  aggregation = tff_ocs.ClientSamplingFactory(
    BRIEF_SCHEMES[scheme], **_secure_sums()
  ).create(VALUE_TYPE, WEIGHT_TYPE)
  for comp in (aggregation.next, _training_process(scheme, secure=True).next):
    tff.test.assert_contains_secure_aggregation(comp)
    names = {name for name, _ in oracles.uplink(comp)}
    if scheme == 'ocs':
      with pytest.raises(AssertionError):
        tff.test.assert_not_contains_unsecure_aggregation(comp)
      assert 'federated_aggregate' in names
    else:
      tff.test.assert_not_contains_unsecure_aggregation(comp)
      assert all('secure' in name for name in names)


def test_one_plain_sum_is_an_unsecure_aggregation():
  for name in _secure_sums():
    sums = _secure_sums()
    del sums[name]
    comp = (
      tff_ocs.ClientSamplingFactory(BRIEF_SCHEMES['aocs'], **sums)
      .create(VALUE_TYPE, WEIGHT_TYPE)
      .next
    )
    with pytest.raises(AssertionError):
      tff.test.assert_not_contains_unsecure_aggregation(comp)


@each_scheme
def test_secure_round_equals_plain_round_within_the_quantisation(scheme):
  entries = [4.0, 1.0, -2.0, 0.5, 3.0, 1.0]
  weights = [1.0, 2.0, 1.0, 4.0, 1.0, 1.0]
  values = [_value(i, entry) for i, entry in enumerate(entries)]
  seeds = _coin_seeds(4, n=len(entries))

  def run(**sums):
    process = tff_ocs.ClientSamplingFactory(
      BRIEF_SCHEMES[scheme], **sums
    ).create_with_coin_seeds(VALUE_TYPE, WEIGHT_TYPE)
    return process.next(process.initialize(), values, weights, seeds)

  plain = run()
  sent = _check_round(scheme, entries, weights, plain)
  assert 0 < sent.sum()
  with execution.use_secure_test_context():
    secure = run(**_secure_sums())
  # Six clients, each rounded to 2000 / (2^32 - 1), over the total weight; and
  # the probabilities differ by what the quantised sums of scalars differ.
  for x, y in zip(
    tf.nest.flatten(secure.result), tf.nest.flatten(plain.result)
  ):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=6 * 2000 / 2**32)
  for name in ('cohort_size', 'participants', 'non_finite_clients'):
    assert secure.measurements[name] == plain.measurements[name]
  assert secure.measurements['expected_participants'] == pytest.approx(
    plain.measurements['expected_participants'], rel=1e-5
  )


@pytest.mark.parametrize(
  'scheme',
  [
    schemes.FullParticipation(),
    schemes.UniformSampling(3),
    schemes.ApproximateOptimalSampling(3, max_iterations=1),
  ],
  ids=repr,
)
def test_quantised_counts_do_not_hide_that_m_is_at_least_n(scheme):
  # The quantised sum of n ones is not n.
  process = scheme.create(tff.aggregators.SecureSumFactory(1e3, -7.0))
  norms = list(np.float32([100.0, 1.0, 0.01]))
  with execution.use_secure_test_context():
    for n in (1, 2, 3):
      output = process.next(process.initialize(), norms[:n])
      np.testing.assert_array_equal(output.result, np.ones(n))
      assert output.measurements['num_iterations'] == 0


# Weights and values at the ends of their types.


@pytest.mark.parametrize(
  'dtype, weights',
  [
    # The sum of four times 2^30 is 0 in int32.
    (np.int32, [2**30] * 4),
    # 144 in uint8.
    (np.uint8, [100] * 4),
    (np.int64, [2**60, 2**60, 2**60, 2**60]),
    (np.uint64, [2**63, 2**62, 2**63, 2**62]),
    # Infinite in float16.
    (np.float16, [6e4, 3e4, 6e4, 6e4]),
    # 2^24 + 1 is no float32, and the sum ends where it starts.
    (np.float32, [2**24, 1, 1, 1]),
  ],
)
def test_total_weight_beyond_the_type_of_the_weights(dtype, weights):
  weights = np.array(weights, dtype)
  process = _process(
    'full', tff.TensorType(np.float64, [1]), tff.TensorType(dtype)
  )
  values = np.array([1.0, 2.0, 3.0, 4.0])
  output = process.next(
    process.initialize(), list(values[:, np.newaxis]), list(weights)
  )
  expected = np.average(values, weights=weights.astype(np.float64))
  np.testing.assert_allclose(output.result, [expected], rtol=1e-15)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_total_weight_beyond_the_type_of_the_values(dtype):
  process = _process('full', tff.TensorType(np.float32, [2]), dtype)
  output = process.next(
    process.initialize(),
    [np.array([0.001, 0], np.float32)] * 40,
    [dtype(1e37)] * 40,
  )
  np.testing.assert_allclose(output.result, [0.001, 0], rtol=1e-6)
  assert output.measurements['non_finite_clients'] == 0


def test_weight_beyond_the_type_of_the_values_makes_a_non_finite_client():
  # Its norm is a float32, but 1e39 is none, and infinity x 0 is NaN.
  process = _process('full', tff.TensorType(np.float32, [2]), np.float64)
  output = process.next(
    process.initialize(), [np.array([1e-3, 0], np.float32)] * 2, [1e39, 1.0]
  )
  np.testing.assert_allclose(output.result, [0, 0], atol=1e-30)
  assert output.measurements['non_finite_clients'] == 1
  assert output.measurements['participants'] == 1


def test_norms_of_float16_values_are_computed_in_float32():
  # Squares of 1e-4 are 0 in float16, but a million of them are not.
  value = np.full(10**6, 1e-4, np.float16)
  value[0] = 0.01
  norm = np.linalg.norm(value.astype(np.float64))
  process = tff_ocs.ClientSamplingFactory(
    tff_ocs.OptimalSampling(1), improvement_expected_clients=1
  ).create(tff.TensorType(np.float16, [value.size]), np.float32)
  other = np.zeros_like(value)
  other[0] = norm
  output = process.next(
    process.initialize(),
    [value, other, other],
    [np.float32(1)] * 3,
  )
  # With equal norms, optimal sampling is uniform sampling.
  assert output.measurements['improvement_factor'] == pytest.approx(1, abs=1e-3)


def test_values_may_be_a_structure_without_a_container():
  value_type = tff.StructType(
    [('z', (np.float32, [2])), ('a', (np.float64, [1]))]
  )
  process = _process('full', value_type)
  output = process.next(
    process.initialize(),
    [
      collections.OrderedDict(z=np.float32([1, 2]) * i, a=np.float64([3]) * i)
      for i in (1, 3)
    ],
    [np.float32(1)] * 2,
  )
  np.testing.assert_array_equal(output.result['z'], [2, 4])
  np.testing.assert_array_equal(output.result['a'], [6])


def test_float16_values_with_large_weights():
  # Each client sends 1000 x 100, which is no float16.
  process = _process('full', tff.TensorType(np.float16, [2]))
  output = process.next(
    process.initialize(),
    [np.array([0.01, 100], np.float16)] * 50,
    [np.float32(1000)] * 50,
  )
  assert output.measurements['non_finite_clients'] == 0
  assert output.result.dtype == np.float16
  np.testing.assert_array_equal(output.result, np.float16([0.01, 100]))
  # Clients send float32.
  assert output.measurements['uplink_bits'] == 50 * 2 * 32


def test_float16_mean_beyond_its_range_is_the_end_of_the_range():
  process = tff_ocs.ClientSamplingFactory(
    SCHEMES['uniform']
  ).create_with_coin_seeds(tff.TensorType(np.float16, [2]), WEIGHT_TYPE)
  means, counts = [], []
  for round_num in range(40):
    output = process.next(
      process.initialize(),
      [np.array([6e4, -6e4], np.float16)] * 8,
      [np.float32(1)] * 8,
      [np.array([round_num, i], np.int64) for i in range(8)],
    )
    assert output.measurements['non_finite_clients'] == 0
    means.append(output.result)
    counts.append(output.measurements['participants'])
  means, counts = np.array(means), np.array(counts)
  # With m = 2, the mean is half of 6e4 times the number of those that send.
  is_beyond = counts > 2
  assert 0 < is_beyond.sum() < 40
  for mean in means[is_beyond]:
    np.testing.assert_array_equal(mean, [65504, -65504])
  np.testing.assert_allclose(
    means[~is_beyond], np.outer(counts[~is_beyond] / 2, [6e4, -6e4]), rtol=1e-3
  )


@each_scheme
@pytest.mark.parametrize('dtype', [np.float32, np.int32])
def test_client_with_a_negative_weight_never_sends(scheme, dtype):
  entries, weights = [1, 2, 3, 4], [1, -2, 1, 1]
  process = _process(scheme, weight_type=tff.TensorType(dtype))
  output = _run(process, entries, np.array(weights, dtype))
  assert output.result['kernel'][1] == 0
  assert output.measurements['non_finite_clients'] == 1
  # Its weight counts as 0; so the others are as they are without it.
  _, others = _expected_probabilities(scheme, [2, 0, 6, 8])
  assert output.measurements['num_iterations'] == others
  if scheme == 'full':
    np.testing.assert_allclose(
      output.result['kernel'][:4], [1 / 3, 0, 1, 4 / 3], rtol=1e-6
    )


# Schemes of one's own that are wrong.


class GivenProbabilities(schemes.SamplingScheme):
  """Each client's norm is its probability."""

  def build(self, scalar_sum_factory=None):
    @tff.tensorflow.computation(schemes.CLIENT_TYPE)
    def probability(client):
      return client['norm'] + self.offset

    @tff.federated_computation
    def init_fn():
      return tff.federated_value((), tff.SERVER)

    def next_fn(state, clients):
      return schemes.scheme_output(
        state, tff.federated_map(probability, clients)
      )

    return schemes.SchemeProgram(init_fn, next_fn)

  def __init__(self, offset):
    self.offset = offset


def _run_given(offset, norms):
  process = tff_ocs.ClientSamplingFactory(GivenProbabilities(offset)).create(
    tff.TensorType(np.float32, [1]), WEIGHT_TYPE
  )
  return process.next(
    process.initialize(),
    [np.array([norm], np.float32) for norm in norms],
    [np.float32(1)] * len(norms),
  )


def test_probabilities_above_1_are_held_at_1():
  output = _run_given(1, [0.0, 1.0, 2.0, 7.0])
  # Unscaled: all are sure to send.
  assert output.result == pytest.approx(2.5)
  assert output.measurements['invalid_probabilities'] == 3
  assert output.measurements['expected_participants'] == 4
  assert output.measurements['participants'] == 4


@pytest.mark.parametrize('offset', [-100, -math.inf, math.nan])
def test_probabilities_below_0_and_nan_are_held_at_0(offset):
  output = _run_given(offset, [1.0, 2.0])
  assert output.result == 0
  assert output.measurements['invalid_probabilities'] == 2
  assert output.measurements['expected_participants'] == 0


def test_probability_0_of_a_client_with_a_norm_is_counted():
  output = _run_given(-1, [1.0, 1.5])
  assert output.measurements['invalid_probabilities'] == 1
  output = _run_given(0, [0.0, 0.5])
  assert output.measurements['invalid_probabilities'] == 0


def test_probabilities_of_clients_that_are_not_available_do_not_count():
  process = tff_ocs.ClientSamplingFactory(
    GivenProbabilities(1)
  ).create_with_availability(tff.TensorType(np.float32, [1]), WEIGHT_TYPE)
  output = process.next(
    process.initialize(),
    [np.array([2], np.float32)] * 3,
    [np.float32(1)] * 3,
    [np.array([k, 0], np.int64) for k in range(3)],
    [
      collections.OrderedDict(q=np.float32(0.5), available=is_available)
      for is_available in (True, False, False)
    ],
  )
  assert output.measurements['available'] == 1
  assert output.measurements['invalid_probabilities'] == 1


# The interface.


@each_scheme
@pytest.mark.parametrize('weight_dtype', [np.float32, np.int64])
def test_type_signature(scheme, weight_dtype):
  process = _process(scheme, weight_type=tff.TensorType(weight_dtype))
  assert isinstance(process, tff.templates.AggregationProcess)
  assert process.is_weighted
  signature = process.next.type_signature
  assert signature.parameter[1] == tff.FederatedType(VALUE_TYPE, tff.CLIENTS)
  assert signature.parameter[2] == tff.FederatedType(weight_dtype, tff.CLIENTS)
  assert signature.result.result == tff.FederatedType(VALUE_TYPE, tff.SERVER)
  assert signature.result.state == process.initialize.type_signature.result
  measurements = signature.result.measurements
  assert measurements.placement is tff.SERVER
  for name, dtype in (
    ('cohort_size', np.int32),
    ('available', np.int32),
    ('participants', np.int32),
    ('expected_participants', np.float32),
    ('num_iterations', np.int32),
    ('non_finite_clients', np.int32),
    ('invalid_probabilities', np.int32),
    ('uplink_bits', np.int64),
  ):
    assert measurements.member[name] == tff.TensorType(dtype)
  names = [name for name, _ in tff.structure.iter_elements(measurements.member)]
  assert names[8:] == ['scheme', 'value_sum', 'weight_sum', 'scalar_sum']


def test_type_signature_with_coin_seeds():
  process = tff_ocs.ClientSamplingFactory(
    SCHEMES['aocs']
  ).create_with_coin_seeds(VALUE_TYPE, WEIGHT_TYPE)
  signature = process.next.type_signature
  assert signature.parameter[3] == tff.FederatedType(
    tff.TensorType(np.int64, [2]), tff.CLIENTS
  )


def test_factory_is_a_weighted_aggregation_factory():
  factory = tff_ocs.ClientSamplingFactory(SCHEMES['aocs'])
  assert isinstance(factory, tff.aggregators.WeightedAggregationFactory)


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    (dict(scheme=3), TypeError, r'scheme must be .*SamplingScheme.*found 3'),
    (
      dict(scheme=schemes.OptimalSampling),
      TypeError,
      r'scheme must be .*SamplingScheme.*found <class',
    ),
    *(
      (
        {name: tff.aggregators.MeanFactory()},
        TypeError,
        name + r' must be a tff\.aggregators\.Unweighted.*, found <',
      )
      for name in (
        'value_sum_factory',
        'weight_sum_factory',
        'scalar_sum_factory',
      )
    ),
    *(
      ({name: value}, TypeError, f'{name} must be True or False, found')
      for name in ('measure_norms', 'reveal_clients')
      for value in ('no', 1, np.array([True, False]))
    ),
    (dict(seed=1.5), TypeError, r'seed must be None or an integer, found 1\.5'),
    (dict(seed='1'), TypeError, r"seed must be None or an integer, found '1'"),
    (dict(seed=True), TypeError, r'seed must be None or an integer, found Tr'),
    (dict(seed=2**63), ValueError, r'seed must fit into 64 bits, found 92'),
    (
      dict(seed=-(2**63) - 1),
      ValueError,
      r'seed must fit into 64 bits, found -92',
    ),
  ],
)
def test_bad_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    tff_ocs.ClientSamplingFactory(
      **{'scheme': schemes.FullParticipation(), **arguments}
    )


def test_extreme_seeds_are_allowed():
  for seed in (-(2**63), 2**63 - 1, np.int32(4)):
    tff_ocs.ClientSamplingFactory(SCHEMES['aocs'], seed=seed)


@pytest.mark.parametrize(
  'value_type, weight_type, error, message',
  [
    (
      tff.TensorType(np.int32, [2]),
      WEIGHT_TYPE,
      TypeError,
      r'value_type must be a floating point tensor .*found int32\[2\]',
    ),
    (
      tff.to_type([np.float32, np.int64]),
      WEIGHT_TYPE,
      TypeError,
      r'value_type must be a floating point tensor .*found <float32,int64>',
    ),
    (
      tff.to_type([]),
      WEIGHT_TYPE,
      TypeError,
      r'value_type must be a floating point tensor .*found <>',
    ),
    (
      tff.TensorType(np.float32, [None]),
      WEIGHT_TYPE,
      ValueError,
      r'found the tensor type float32\[\?\]',
    ),
    (
      VALUE_TYPE,
      tff.TensorType(np.float32, [1]),
      TypeError,
      r'weight_type must be a real numeric scalar, found float32\[1\]',
    ),
    (
      VALUE_TYPE,
      tff.TensorType(np.bool_),
      TypeError,
      r'weight_type must be a real numeric scalar, found bool',
    ),
    (
      VALUE_TYPE,
      tff.to_type([np.float32]),
      TypeError,
      r'weight_type must be a real numeric scalar, found <float32>',
    ),
  ],
)
def test_bad_types(value_type, weight_type, error, message):
  factory = tff_ocs.ClientSamplingFactory(SCHEMES['aocs'])
  for create in (factory.create, factory.create_with_coin_seeds):
    with pytest.raises(error, match=message):
      create(value_type, weight_type)


def test_scaled_value_beyond_float32_makes_a_non_finite_client():
  # The norms are finite, but 40 times as much is not.
  process = tff_ocs.ClientSamplingFactory(
    tff_ocs.UniformSampling(1)
  ).create_with_coin_seeds(tff.TensorType(np.float32), np.float32)
  clients = 40
  output = process.next(
    process.initialize(),
    [np.float32(1e37)] * clients,
    [np.float32(1)] * clients,
    [np.array([0, i], np.int64) for i in range(clients)],
  )
  assert output.result == 0
  assert output.measurements['non_finite_clients'] == clients
  assert output.measurements['participants'] == 0


def test_revealing_clients_changes_no_coin():
  plain, revealing = (
    tff_ocs.ClientSamplingFactory(
      schemes.UniformSampling(2), reveal_clients=reveals, seed=1
    ).create(tff.TensorType(np.float32, [4]), tff.TensorType(np.float32))
    for reveals in (False, True)
  )
  state, other = plain.initialize(), revealing.initialize()
  values, weights = list(np.eye(4, dtype=np.float32)), [np.float32(1)] * 4
  places = [np.float32(k) for k in range(4)]
  senders = set()
  for _ in range(8):
    output = plain.next(state, values, weights)
    revealed = revealing.next(other, values, weights, places)
    np.testing.assert_array_equal(output.result, revealed.result)
    senders.add(tuple(output.result > 0))
    state, other = output.state, revealed.state
  assert len(senders) > 1
