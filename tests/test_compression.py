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
from tff_ocs import compression
from tff_ocs import execution
from tff_ocs import message_bits

FACTORIES = {
  'random-k': functools.partial(compression.RandomKFactory, 0.25),
  'natural': compression.NaturalCompressionFactory,
  'dithering': functools.partial(compression.RandomDitheringFactory, 4, 8),
}
each_factory = pytest.mark.parametrize('name', FACTORIES)
# These round each client's value by itself.
each_rounding = pytest.mark.parametrize('name', ['natural', 'dithering'])

# The names are not sorted, and the types not all the same.
MIXED_TYPE = tff.to_type(
  collections.OrderedDict(
    kernel=(np.float32, [7, 3]),
    dense=[(np.float64, [2]), np.float16],
    bias=(np.float32, [5]),
    empty=(np.float32, [0, 3]),
  )
)


def _mixed_value(seed):
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    kernel=rng.normal(size=[7, 3]).astype(np.float32),
    dense=[rng.normal(size=2), np.float16(rng.normal())],
    bias=rng.normal(size=5).astype(np.float32),
    empty=np.zeros([0, 3], np.float32),
  )


@functools.cache
def _process(name, size, seed=None):
  return FACTORIES[name](seed=seed).create(tff.TensorType(np.float32, [size]))


def _sum_of(process, *values, state=None):
  """The compressed sum of vectors, in one round."""
  state = process.initialize() if state is None else state
  return process.next(state, [np.float32(v) for v in values]).result


def _random_k(size, fraction, **arguments):
  return compression.RandomKFactory(fraction, **arguments).create(
    tff.TensorType(np.float32, [size])
  )


# Random-k.


@functools.cache
def _kept(rounds=400, size=8, fraction=0.25):
  """Which entries each round keeps of a vector of ones; 2 of 8."""
  process = _random_k(size, fraction, seed=1)
  state = process.initialize()
  results = []
  for _ in range(rounds):
    output = process.next(state, [np.ones(size, np.float32)])
    state = output.state
    results.append(output.result)
  results = np.array(results)
  assert set(np.unique(results)) == {0, 1 / fraction}
  return results != 0


def test_random_k_keeps_k_entries_times_d_over_k():
  assert np.all(_kept().sum(axis=1) == 2)
  value = np.arange(1, 11)
  result = _sum_of(_random_k(10, 0.21), value)  # Rounded up: 3 of 10.
  assert np.count_nonzero(result) == 3
  kept = result != 0
  np.testing.assert_allclose(result[kept], value[kept] * 10 / 3, rtol=1e-6)


def test_random_k_keeps_k_though_the_fraction_is_rounded():
  # 7 / 100 x 100 is a little above 7 in floating point.
  for k in range(1, 101):
    factory = compression.RandomKFactory(k / 100)
    bits = factory.bits_per_update(tff.TensorType(np.float32, [100]))
    assert bits == 32 * k
  tiny = compression.RandomKFactory(1e-12)
  assert tiny.bits_per_update(tff.TensorType(np.float32, [100])) == 32


def test_random_k_error_is_omega_times_the_squared_norm():
  # Of entries of equal size in each round; in general on average.
  size, omega = 8, 8 / 2 - 1
  errors = np.sum((np.where(_kept(), 4.0, 0.0) - 1) ** 2, axis=1)
  np.testing.assert_array_equal(errors, omega * size)


def test_random_k_draws_all_sets_alike():
  # False alarms: see FALSE_ALARM_RATE; each pair is one check. With 2 of 8
  # entries the pairs are all sets there are, each with a chance of 1 / 28.
  kept = _kept()
  low, high = oracles.count_bounds([1 / math.comb(8, 2)] * len(kept))
  assert low > 0 or high < len(kept) / 8  # The check means something.
  for i, j in itertools.combinations(range(8), 2):
    assert low <= np.sum(kept[:, i] & kept[:, j]) <= high
  low, high = oracles.count_bounds([1 / 4] * len(kept))
  for i in range(8):
    assert low <= np.sum(kept[:, i]) <= high


def test_random_k_clients_share_the_mask_of_a_round():
  process = _random_k(40, 0.25)
  first, second = np.random.default_rng(0).normal(size=[2, 40])
  state = process.initialize()
  total = _sum_of(process, first, second, state=state)
  parts = [_sum_of(process, v, state=state) for v in (first, second)]
  np.testing.assert_allclose(total, parts[0] + parts[1], rtol=1e-5)
  assert np.count_nonzero(total) == 10


def test_random_k_of_all_is_the_value_itself():
  process = compression.RandomKFactory(1.0).create(MIXED_TYPE)
  value = _mixed_value(0)
  result = process.next(process.initialize(), [value]).result
  for x, y in zip(tf.nest.flatten(result), tf.nest.flatten(value)):
    np.testing.assert_array_equal(x, y)


def test_random_k_of_one_half_precision_entry_of_many():
  # The scale, 70000, is beyond float16; the values are not.
  process = compression.RandomKFactory(1e-9).create(
    tff.TensorType(np.float16, [70_000])
  )
  value = np.full(70_000, 2.0**-10, np.float16)
  result = process.next(process.initialize(), [value]).result
  assert np.count_nonzero(result) == 1
  assert result.sum(dtype=np.float64) == pytest.approx(70_000 / 2**10, rel=1e-3)


def test_random_k_over_an_inner_factory():
  process = compression.RandomKFactory(
    0.5, tff.aggregators.clipping_factory(1.0, tff.aggregators.SumFactory())
  ).create(tff.TensorType(np.float32, [2]))
  output = process.next(process.initialize(), [np.float32([30, 30])])
  # Clipped to 1, then times 2.
  assert sorted(output.result) == pytest.approx([0, 2])
  assert output.measurements['clipped_count'] == 1


# Natural compression. One vector with many equal entries is as good as many
# rounds.

REPEATS = 40_000


def _repeated(name, value, seed=None):
  """Compresses a vector REPEATS times; returns [REPEATS, len(value)]."""
  value = np.float32(value)
  process = _process(name, REPEATS * value.size, seed)
  return _sum_of(process, np.tile(value, REPEATS)).reshape(-1, value.size)


NATURAL_VALUES = np.float32(
  [1.25, -1.25, 4 / 3, 3e-5, -7e20, 1.0000001, 1.9999999, 1.0]
)


@pytest.mark.parametrize('seed', [None, 3])
def test_natural_compression_rounds_to_powers_of_two_without_bias(seed):
  # False alarms: see FALSE_ALARM_RATE; each value is one check.
  results = _repeated('natural', NATURAL_VALUES, seed)
  for value, column in zip(np.float64(NATURAL_VALUES), results.T):
    below = 2.0 ** np.floor(np.log2(abs(value)))
    assert set(np.abs(column)) <= {below, 2 * below}
    assert np.all(np.sign(column) == np.sign(value))
    low, high = oracles.count_bounds([abs(value) / below - 1] * REPEATS)
    assert low <= np.sum(np.abs(column) == 2 * below) <= high


def test_natural_compression_has_a_relative_variance_of_one_eighth_at_most():
  # False alarms: see FALSE_ALARM_RATE; one check. The worst value is 4/3.
  errors = (_repeated('natural', NATURAL_VALUES)[:, 2] - 4 / 3) ** 2
  variance = 2 / 3 * (1 / 9 - 2 / 9) ** 2 + 1 / 3 * (4 / 9 - 2 / 9) ** 2
  bound = oracles.mean_bound(variance, 2 / 9, REPEATS)
  assert bound < 0.03 * 2 / 9
  assert abs(errors.mean() - (4 / 3) ** 2 / 8) <= bound
  x = np.linspace(1, 2, 1001)
  assert np.max((x - 1) * (2 - x) / x**2) <= 1 / 8 + 1e-12


def test_natural_compression_of_extreme_values():
  largest = np.finfo(np.float32).max
  value = np.float32(
    [largest, -largest, 2.0**127, 2.0**-126, 1.5 * 2.0**126, -0.0]
  )
  result = _sum_of(_process('natural', 6), value)
  np.testing.assert_array_equal(
    result[:4], [2.0**127, -(2.0**127), 2.0**127, 2.0**-126]
  )
  assert result[4] in (2.0**126, 2.0**127)
  assert result[5] == 0


# Random dithering. Each repeat is a bucket of its own.

DITHERED = np.float32([7.0, -3.3, 0.4, -6.999, 0.0, 1.0, 2.5, -1e-9])


@pytest.mark.parametrize('bits', [2, 4, 8])
@pytest.mark.parametrize('seed', [None, 3])
def test_dithering_rounds_to_levels_without_bias(bits, seed):
  # False alarms: see FALSE_ALARM_RATE; each value is one check.
  process = compression.RandomDitheringFactory(bits, 8, seed=seed).create(
    tff.TensorType(np.float32, [8 * REPEATS])
  )
  results = _sum_of(process, np.tile(DITHERED, REPEATS)).reshape(-1, 8)
  levels = 2 ** (bits - 1) - 1
  step = 7.0 / levels
  total_error = 0.0
  for value, column in zip(np.float64(DITHERED), np.float64(results).T):
    below = math.floor(value / step)
    rounded = np.rint(column / step)
    np.testing.assert_allclose(column, rounded * step, rtol=1e-6)
    assert set(rounded) <= {below, below + 1}
    low, high = oracles.count_bounds([value / step - below] * REPEATS)
    assert low <= np.sum(rounded == below + 1) <= high
    total_error += (value - below * step) * ((below + 1) * step - value)
  np.testing.assert_allclose(results[:, 0], 7, rtol=3e-7)
  np.testing.assert_array_equal(results[:, 4], 0)
  # The variance is what the literature promises.
  omega = min(8 / (4 * levels**2), math.sqrt(8) / levels)
  assert total_error <= omega * np.sum(np.float64(DITHERED) ** 2)
  squares = np.sum((np.float64(results) - DITHERED) ** 2, axis=1)
  bound = oracles.mean_bound((8 * step**2) ** 2, 8 * step**2, REPEATS)
  assert abs(squares.mean() - total_error) <= bound


@pytest.mark.parametrize('size', [1, 7, 8, 9, 20])
@pytest.mark.parametrize('bits', [2, 4, 8])
def test_dithering_fills_up_the_last_bucket(bits, size):
  process = compression.RandomDitheringFactory(bits, 8).create(
    tff.TensorType(np.float32, [size])
  )
  # Zeros are exact, maxima up to rounding.
  value = np.float32([3.0, 0.0, -3.0] * 7)[:size]
  result = _sum_of(process, value)
  np.testing.assert_allclose(result, value, rtol=3e-7)


def test_dithering_of_extreme_values():
  process = _process('dithering', 16)
  for entry in (3.4e38, 1e-36):
    value = np.float32([entry, -entry, 0] + [0] * 13)
    np.testing.assert_allclose(_sum_of(process, value), value, rtol=3e-7)


# All of them.


@each_factory
@pytest.mark.parametrize('seed', [None, 3])
def test_zeros_stay_exact_zeros(name, seed):
  process = FACTORIES[name](seed=seed).create(MIXED_TYPE)
  zeros = tf.nest.map_structure(np.zeros_like, _mixed_value(0))
  value = _mixed_value(1)
  state = process.initialize()
  # Signs of zeros don't matter.
  minus = tf.nest.map_structure(np.negative, zeros)
  for tensor in tf.nest.flatten(process.next(state, [zeros, minus]).result):
    np.testing.assert_array_equal(tensor, 0)
  if seed is not None:
    alone = process.next(state, [value]).result
    result = process.next(state, [zeros, value, minus]).result
    for x, y in zip(tf.nest.flatten(result), tf.nest.flatten(alone)):
      np.testing.assert_array_equal(x, y)


@each_factory
def test_values_of_any_structure_and_float_type(name):
  process = FACTORIES[name]().create(MIXED_TYPE)
  signature = process.next.type_signature
  assert not process.is_weighted
  assert signature.result.result == tff.FederatedType(MIXED_TYPE, tff.SERVER)
  assert signature.result.state == process.initialize.type_signature.result
  value = _mixed_value(0)
  result = process.next(process.initialize(), [value]).result
  largest = max(np.max(np.abs(x)) for x in tf.nest.flatten(value) if x.size)
  for x, y in zip(tf.nest.flatten(result), tf.nest.flatten(value)):
    if name == 'random-k':  # 8 of 29.
      close = np.isclose(x, np.float64(y) * 29 / 8, rtol=1e-3) | (x == 0)
    elif name == 'natural':
      close = (np.abs(y) / 2 <= np.abs(x)) & (np.abs(x) <= 2 * np.abs(y))
      close &= np.sign(x) == np.sign(y)
    else:
      close = np.abs(x - y) <= largest / 7 * 1.001
    assert np.all(close)


@each_factory
def test_seeded_runs_repeat_and_depend_on_seed_and_round(name):
  value = np.random.default_rng(0).normal(size=64)

  def run(seed):
    process = FACTORIES[name](seed=seed).create(
      tff.TensorType(np.float32, [64])
    )
    state = process.initialize()
    results = []
    for _ in range(2):
      output = process.next(state, [np.float32(value)])
      state = output.state
      results.append(output.result)
    return results

  first = run(5)
  np.testing.assert_array_equal(run(5), first)
  assert np.any(first[0] != first[1])
  assert np.any(run(6)[0] != first[0])


@each_factory
def test_unseeded_runs_differ(name):
  # They are equal with a chance below 2^-50.
  value = np.random.default_rng(0).normal(size=256)
  process = _process(name, 256)
  assert np.any(_sum_of(process, value) != _sum_of(process, value))


@each_rounding
def test_clients_with_equal_values_round_apart_unless_seeded(name):
  value = np.random.default_rng(0).normal(size=256)

  def is_twice_one(process):
    state = process.initialize()
    one = _sum_of(process, value, state=state)
    return np.all(_sum_of(process, value, value, state=state) == 2 * one)

  assert not is_twice_one(_process(name, 256))
  assert is_twice_one(_process(name, 256, seed=4))  # As documented.


@each_rounding
def test_seeded_clients_with_different_values_round_apart(name):
  # Rounded to the next power, or level, of their own, twice as far.
  value = np.random.default_rng(0).normal(size=256)
  process = _process(name, 256, seed=4)
  first = _sum_of(process, value)
  assert np.any(_sum_of(process, 2 * value) != 2 * first)


@each_rounding
@pytest.mark.parametrize('entry', [math.nan, math.inf, -math.inf])
def test_non_finite_entries_stay_non_finite(name, entry):
  process = _process(name, 16)
  for _ in range(3):
    result = _sum_of(process, [entry] + [1.0] * 15)
    assert not np.isfinite(result[0])


# With client sampling.

VALUE_TYPE = tff.TensorType(np.float32, [32])
WEIGHT_TYPE = tff.TensorType(np.float32)


def _quantised():
  return tff.aggregators.EncodedSumFactory.quantize_above_threshold(8, 0)


# Bits that clients send for 32 float32.
COMPOSED = {
  'none': (tff.aggregators.SumFactory, 32 * 32),
  'random-k': (FACTORIES['random-k'], 8 * 32),
  'natural': (FACTORIES['natural'], 32 * 9),
  'dithering': (FACTORIES['dithering'], 32 * 4 + 4 * 32),
  # 32 x 8 bits in ten times 28 bits, each sent as 32; minimum and maximum.
  'quantisation': (_quantised, 10 * 32 + 64),
  'hadamard': (
    lambda: tff.aggregators.HadamardTransformFactory(_quantised()),
    10 * 32 + 64,
  ),
  'dft': (
    lambda: tff.aggregators.DiscreteFourierTransformFactory(_quantised()),
    10 * 32 + 64,
  ),
  'hadamard-dithering': (
    lambda: tff.aggregators.HadamardTransformFactory(FACTORIES['dithering']()),
    32 * 4 + 4 * 32,
  ),
  'random-k-dithering': (
    lambda: compression.RandomKFactory(0.5, FACTORIES['dithering']()),
    16 * 4 + 2 * 32,
  ),
}
each_composed = pytest.mark.parametrize('name', COMPOSED)


@each_composed
def test_sampling_and_compression(name):
  make, bits = COMPOSED[name]
  process = tff_ocs.ClientSamplingFactory(
    tff_ocs.ApproximateOptimalSampling(2, 1), value_sum_factory=make()
  ).create(VALUE_TYPE, WEIGHT_TYPE)
  rng = np.random.default_rng(0)
  values = [np.float32(u) for u in rng.normal(size=[6, 32])]
  values[1][3] = np.nan
  values[4][:] = 0
  state = process.initialize()
  for _ in range(3):
    output = process.next(state, values, [1.0, 2.0, 3.0, 1.0, 1.0, 0.5])
    state = output.state
    assert np.all(np.isfinite(output.result))
    measured = output.measurements
    assert measured['non_finite_clients'] == 1
    scalars = 1 + 2 * measured['num_iterations']
    assert measured['uplink_bits'] == (
      measured['participants'] * bits + 6 * 32 * scalars
    )
  # Where nobody sends, nothing is added.
  output = process.next(state, [np.zeros(32, np.float32)] * 3, [1.0] * 3)
  np.testing.assert_allclose(output.result, 0, atol=1e-30)
  assert output.measurements['uplink_bits'] == 3 * 32 * (
    1 + 2 * output.measurements['num_iterations']
  )


# Random-k's error is not bounded by a part of the value.
@pytest.mark.parametrize(
  'name', [name for name in COMPOSED if not name.startswith('random-k')]
)
def test_full_participation_equals_the_mean_up_to_the_compression(name):
  make, _ = COMPOSED[name]
  rng = np.random.default_rng(1)
  values = [np.float32(u) for u in rng.normal(size=[5, 32])]
  weights = [1.0, 2.0, 3.0, 1.0, 0.5]
  stock = tff.aggregators.MeanFactory().create(VALUE_TYPE, WEIGHT_TYPE)
  expected = stock.next(stock.initialize(), values, weights).result
  process = tff_ocs.ClientSamplingFactory(
    tff_ocs.FullParticipation(), value_sum_factory=make()
  ).create(VALUE_TYPE, WEIGHT_TYPE)
  result = process.next(process.initialize(), values, weights).result
  size = np.average(np.linalg.norm(values, axis=1), weights=weights)
  # In each entry; natural compression at most doubles or halves.
  tolerance = {
    'none': 1e-6,
    'natural': 0.5,
    'dithering': 1 / 7,
    'hadamard-dithering': math.sqrt(32) / 7,
  }.get(name, 2 * math.sqrt(32) / 255)
  np.testing.assert_allclose(result, expected, atol=tolerance * size)
  assert np.linalg.norm(result - expected) < size


def test_variance_of_sampling_and_random_k_together():
  # False alarms: see FALSE_ALARM_RATE; one check. Two clients send with p = 1/2
  # each, and one of two entries is kept: 8 cases, all alike. The variance is
  # (1 + omega) V + omega || mean ||^2.
  u = np.array([[1.0, 2.0], [3.0, -1.0]])
  mean, omega = u.mean(axis=0), 1.0
  outcomes = [
    np.array([2.0 * (k == 0), 2.0 * (k == 1)])
    * (2 * a * u[0] + 2 * b * u[1])
    / 2
    for a, b, k in itertools.product([0, 1], [0, 1], [0, 1])
  ]
  errors = np.array([np.sum((x - mean) ** 2) for x in outcomes])
  sampling = tff_ocs.probabilities.sampling_variance(
    np.linalg.norm(u, axis=1) / 2, np.array([0.5, 0.5])
  )
  expected = (1 + omega) * sampling + omega * np.sum(mean**2)
  assert errors.mean() == pytest.approx(expected, rel=1e-12)

  process = tff_ocs.ClientSamplingFactory(
    tff_ocs.UniformSampling(1),
    value_sum_factory=compression.RandomKFactory(0.5, seed=7),
    seed=7,
  ).create(tff.TensorType(np.float32, [2]), WEIGHT_TYPE)
  state, measured = process.initialize(), []
  for _ in range(250):
    output = process.next(state, [np.float32(x) for x in u], [1.0, 1.0])
    state = output.state
    measured.append(np.sum((output.result - mean) ** 2))
    assert np.any(np.isclose(measured[-1], errors, rtol=1e-5))
  bound = oracles.mean_bound(errors.var(), errors.max(), len(measured))
  assert abs(np.mean(measured) - expected) <= bound


def test_random_k_goes_with_secure_sums_and_rounding_does_not():
  def create(value_sum_factory):
    return tff_ocs.ClientSamplingFactory(
      tff_ocs.ApproximateOptimalSampling(2, 1),
      value_sum_factory=value_sum_factory,
      weight_sum_factory=tff.aggregators.SecureSumFactory(1e3, 0.0),
      scalar_sum_factory=tff.aggregators.SecureSumFactory(1e3, 0.0),
    ).create(VALUE_TYPE, WEIGHT_TYPE)

  secure = tff.aggregators.SecureSumFactory(1e2, -1e2)
  process = create(compression.RandomKFactory(0.25, secure, seed=1))
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  for name in ('natural', 'dithering'):
    with pytest.raises(AssertionError):
      tff.test.assert_not_contains_unsecure_aggregation(
        create(FACTORIES[name]()).next
      )
  values = [np.ones(32, np.float32)] * 2  # m = n: both send.
  with execution.use_secure_test_context():
    output = process.next(process.initialize(), values, [1.0, 1.0])
  assert np.count_nonzero(output.result) == 8
  np.testing.assert_allclose(output.result[output.result != 0], 4, rtol=1e-5)
  # Entries, and a norm.
  assert output.measurements['uplink_bits'] == 2 * (8 + 1) * 32


@pytest.mark.parametrize('name', ['random-k', 'natural', 'dithering'])
def test_training_with_compression(name):
  model = models.build_linear_model(8)
  process = tff_ocs.build_federated_averaging_process(
    model,
    tff_ocs.ClientSamplingFactory(
      tff_ocs.ApproximateOptimalSampling(4),
      value_sum_factory=FACTORIES[name](seed=2),
    ),
    client_learning_rate=0.1,
  )
  rng = np.random.default_rng(0)
  slope = rng.normal(size=[8, 1]).astype(np.float32)
  clients = []
  for i in range(8):
    x = rng.normal(size=[20, 8]).astype(np.float32)
    clients.append(
      collections.OrderedDict(x=x, y=x @ slope, seed=np.array([i, 0]))
    )

  def losses():
    state, found = process.initialize(), []
    for _ in range(20):
      state, metrics = process.next(state, clients)
      found.append(metrics['training_loss'])
    return found

  first = losses()
  assert first[-1] < 0.1 * first[0]
  assert losses() == first  # Bit for bit.


# The interface.


@pytest.mark.parametrize(
  'make, error, message',
  [
    (
      lambda: compression.RandomKFactory(0.0),
      ValueError,
      r'fraction must be above 0 and at most 1, found 0\.0',
    ),
    (
      lambda: compression.RandomKFactory(1.5),
      ValueError,
      r'fraction must be above 0 and at most 1, found 1\.5',
    ),
    (
      lambda: compression.RandomKFactory(math.nan),
      ValueError,
      r'fraction must be above 0 and at most 1, found nan',
    ),
    (
      lambda: compression.RandomKFactory('0.5'),
      TypeError,
      r"fraction must be a number .*found '0\.5' of type str",
    ),
    (
      lambda: compression.RandomKFactory(True),
      TypeError,
      r'fraction must be a number .*found True of type bool',
    ),
    (
      lambda: compression.RandomKFactory(0.5, tff.aggregators.MeanFactory()),
      TypeError,
      r'inner_sum_factory must be a tff\.aggregators\.Unweighted.*, found <',
    ),
    (
      lambda: compression.RandomDitheringFactory(3),
      ValueError,
      r'bits must be 2, 4 or 8, found 3',
    ),
    (
      lambda: compression.RandomDitheringFactory('4'),
      TypeError,
      r"bits must be an integer of at least 1, found '4' of type str",
    ),
    (
      lambda: compression.RandomDitheringFactory(4, 12),
      ValueError,
      r'bucket_size must be a multiple of 8, found 12',
    ),
    (
      lambda: compression.RandomDitheringFactory(4, 0),
      ValueError,
      r'bucket_size must be at least 8, found 0',
    ),
    (
      lambda: compression.RandomDitheringFactory(4, 16.0),
      TypeError,
      r'bucket_size must be an integer of at least 8, found 16\.0 of type',
    ),
    *(
      (
        functools.partial(make, seed=1.5),
        TypeError,
        r'seed must be None or an integer, found 1\.5',
      )
      for make in FACTORIES.values()
    ),
  ],
)
def test_bad_arguments(make, error, message):
  with pytest.raises(error, match=message):
    make()


@each_factory
@pytest.mark.parametrize(
  'value_type, error, message',
  [
    (
      tff.TensorType(np.int32, [2]),
      TypeError,
      r'value_type must be a floating point tensor .*found int32\[2\]',
    ),
    (
      tff.TensorType(np.float32, [None]),
      ValueError,
      r'found the tensor type float32\[\?\]',
    ),
    (
      tff.TensorType(np.float32, [0, 3]),
      ValueError,
      r'value_type has no entries, found float32\[0,3\]',
    ),
  ],
)
def test_bad_types(name, value_type, error, message):
  with pytest.raises(error, match=message):
    FACTORIES[name]().create(value_type)


@pytest.mark.parametrize(
  'make',
  [
    lambda: compression.RandomKFactory(0.3),
    lambda: compression.RandomKFactory(
      0.3, tff.aggregators.EncodedSumFactory.quantize_above_threshold(8, 0)
    ),
    lambda: compression.RandomKFactory(
      0.3, compression.NaturalCompressionFactory()
    ),
    compression.NaturalCompressionFactory,
    compression.RandomDitheringFactory,
    lambda: compression.RandomDitheringFactory(2, 64),
  ],
)
def test_reported_bits_are_those_of_what_clients_send(make):
  value_type = tff.to_type(
    collections.OrderedDict(
      b=(np.float32, [7, 5]), a=[(np.float16, [11]), np.float32]
    )
  )
  sent = message_bits.message_bits(make().create(value_type).next)
  assert make().bits_per_update(value_type) == sent > 0
