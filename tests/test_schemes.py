import functools
import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_ocs
from tests import oracles
from tff_ocs import probabilities
from tff_ocs import schemes


@functools.cache
def _process(kind, *args):
  return kind(*args).create()


def _run(kind, args, norms):
  """One round; returns the probabilities and the measurements."""
  process = _process(kind, *args)
  output = process.next(process.initialize(), list(np.float32(norms)))
  return np.array(output.result), output.measurements


def _floats(fractions):
  return np.array([float(x) for x in fractions])


def _cohorts():
  rng = np.random.default_rng(7)
  yield 'one-client', [3.0]
  yield 'all-zero', [0.0] * 6
  yield 'one-nonzero', [0.0, 0.0, 7.0, 0.0]
  yield 'three-nonzero', [0.0, 1e-5, 7.0, 0.0, 0.25]
  yield 'equal', [0.1] * 10
  yield 'two-levels', [5.0, 5.0, 1.0, 1.0]
  yield 'one-giant', [100.0, 1.0, 1.0, 1.0]
  yield 'two-giants', [1e8, 1e8, 1.0, 1.0]
  yield 'ratio-1e12', [1e-6, 1e6, 1.0, 1e3, 1e-3, 10.0, 20.0]
  yield 'at-the-threshold', [3.0, 3.0, 2.0, 2.0, 1.0, 1.0]
  yield 'powers-of-3', 3.0 ** np.arange(16)
  yield 'ulps-apart', 1 + np.arange(12) * 2.0**-23
  yield 'huge', [1e38, 2e38, 3e38, 3.4e38, 1e37]
  yield 'tiny', [1e-30, 2e-30, 3e-30, 1e-29, 1e-36]
  yield 'lognormal-32', rng.lognormal(0, 1.5, 32)
  yield 'lognormal-32-wide', rng.lognormal(0, 5, 32)
  yield 'uniform-128', rng.uniform(0, 1, 128)
  yield 'half-zero-32', rng.lognormal(0, 1, 32) * rng.integers(0, 2, 32)
  yield 'integer-32', rng.integers(0, 4, 32)


COHORTS = {name: np.float32(norms) for name, norms in _cohorts()}
# A change of the cohort's size is slow.
_BY_SIZE = dict(sorted(COHORTS.items(), key=lambda item: len(item[1])))
each_cohort = pytest.mark.parametrize(
  'norms', _BY_SIZE.values(), ids=_BY_SIZE.keys()
)
each_m = pytest.mark.parametrize('m', [0.5, 2, 3.25, 8])
adaptive = pytest.mark.parametrize(
  'kind', [schemes.OptimalSampling, schemes.ApproximateOptimalSampling]
)


# Against the NumPy reference, on the same float32 norms.


@each_cohort
@each_m
def test_optimal_sampling_equals_reference(norms, m):
  p, measurements = _run(schemes.OptimalSampling, [m], norms)
  assert p.dtype == np.float32
  np.testing.assert_allclose(
    p, probabilities.optimal_probabilities(norms, m), rtol=1e-6
  )
  assert measurements['num_iterations'] == 0
  assert measurements['scalars_per_client'] == 1
  assert measurements['expected_participants'] == pytest.approx(
    min(m, np.count_nonzero(norms)), rel=1e-6
  )


@each_cohort
@each_m
def test_approximate_optimal_sampling_equals_reference(norms, m):
  p, measurements = _run(schemes.ApproximateOptimalSampling, [m], norms)
  expected, num_iterations = probabilities.approximate_probabilities(norms, m)
  assert p.dtype == np.float32
  np.testing.assert_allclose(p, expected, rtol=1e-6)
  assert measurements['num_iterations'] == num_iterations
  assert measurements['scalars_per_client'] == 1 + 2 * num_iterations
  assert measurements['expected_participants'] == pytest.approx(
    math.fsum(expected), rel=1e-6
  )
  nonzero = min(m, np.count_nonzero(norms))
  if num_iterations < 4 or math.fsum(expected) == pytest.approx(nonzero):
    np.testing.assert_allclose(
      p, probabilities.optimal_probabilities(norms, m), rtol=1e-6
    )


@pytest.mark.parametrize('max_iterations', [0, 1, 2])
@each_cohort
def test_fewer_iterations_equal_reference(norms, max_iterations):
  p, measurements = _run(
    schemes.ApproximateOptimalSampling, [2, max_iterations], norms
  )
  expected, num_iterations = probabilities.approximate_probabilities(
    norms, 2, max_iterations
  )
  np.testing.assert_allclose(p, expected, rtol=1e-6)
  assert measurements['num_iterations'] == num_iterations


@pytest.mark.parametrize('n', [1, 2, 5, 40])
@pytest.mark.parametrize('m', [0.5, 2])
def test_uniform_sampling_equals_reference(n, m):
  norms = np.arange(n, dtype=np.float32)
  p, measurements = _run(schemes.UniformSampling, [m], norms)
  np.testing.assert_allclose(
    p, probabilities.uniform_probabilities(n, m), rtol=1e-6
  )
  assert measurements['num_iterations'] == 0
  assert measurements['scalars_per_client'] == 0
  assert measurements['expected_participants'] == pytest.approx(min(m, n))


@pytest.mark.parametrize('m', [0.5, 3, 8])
def test_uniform_sampling_with_a_known_cohort_size_sums_nothing(m):
  scheme = schemes.UniformSampling(m, cohort_size=5)
  process = scheme.create()
  # Also in a cohort of another size.
  for n in (5, 2, 9):
    output = process.next(process.initialize(), [np.float32(1)] * n)
    np.testing.assert_array_equal(output.result, np.full(n, min(m / 5, 1), 'f'))
    assert output.measurements['scalars_per_client'] == 0
  # One sum, of the probabilities, is that of the measurements.
  of_known, of_unknown = (
    len(oracles.uplink(kind.create().next))
    for kind in (scheme, schemes.UniformSampling(m))
  )
  assert (of_known, of_unknown) == (1, 2)


@pytest.mark.parametrize(
  'size, error', [(0, ValueError), (2.0, TypeError), ('3', TypeError)]
)
def test_bad_cohort_size(size, error):
  with pytest.raises(error, match=f'cohort_size must be .* found {size!r}'):
    schemes.UniformSampling(2, cohort_size=size)


@pytest.mark.parametrize('n', [1, 5])
def test_full_participation_is_certain(n):
  p, measurements = _run(schemes.FullParticipation, [], np.arange(n))
  np.testing.assert_array_equal(p, np.ones(n))
  assert measurements['num_iterations'] == 0
  assert measurements['scalars_per_client'] == 0
  assert measurements['expected_participants'] == n


# Known values.


@adaptive
@pytest.mark.parametrize(
  'norms, expected',
  [
    ([100, 1, 1, 1], [1, 1 / 3, 1 / 3, 1 / 3]),
    ([1, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]),
    ([5, 5, 1, 1], [5 / 6, 5 / 6, 1 / 6, 1 / 6]),
  ],
)
def test_known_values(kind, norms, expected):
  p, _ = _run(kind, [2], norms)
  np.testing.assert_allclose(p, expected, rtol=1e-6)


def test_powers_of_3_need_five_iterations():
  norms = 3.0 ** np.arange(16)
  p, four = _run(schemes.ApproximateOptimalSampling, [8], norms)
  assert four['num_iterations'] == 4
  assert round(float(four['expected_participants']), 2) == 7.67
  assert round(float(p.sum()), 2) == 7.67
  p, five = _run(schemes.ApproximateOptimalSampling, [8, 5], norms)
  assert five['num_iterations'] == 5
  assert five['expected_participants'] == pytest.approx(8, rel=1e-6)
  np.testing.assert_allclose(
    p, probabilities.optimal_probabilities(norms, 8), rtol=1e-6
  )


# Faults of public implementations.


@adaptive
def test_sure_clients_are_not_rescaled(kind):
  p, _ = _run(kind, [2], [1e8, 1e8, 1, 1])
  np.testing.assert_allclose(p, [1, 1, 1e-8, 1e-8], rtol=1e-6)


@adaptive
@pytest.mark.parametrize(
  'norms, m, expected',
  [
    ([1, 0, 0, 0], 2, [1, 0, 0, 0]),
    ([3, 1, 0, 0], 2, [1, 1, 0, 0]),
    ([3, 2, 1, 0], 3, [1, 1, 1, 0]),
    ([0, 0, 0, 0], 2, [0, 0, 0, 0]),
  ],
)
def test_nothing_left_to_rescale(kind, norms, m, expected):
  p, measurements = _run(kind, [m], norms)
  np.testing.assert_array_equal(p, expected)
  assert measurements['expected_participants'] == sum(expected)


@adaptive
@pytest.mark.parametrize('n', [8, 7, 3, 1])
@pytest.mark.parametrize('norm', [1.0, 0.0, 1e-8])
def test_all_nonzero_clients_send_for_m_of_at_least_n(kind, n, norm):
  norms = np.array([1e8] * (n // 2) + [norm] * (n - n // 2))
  p, measurements = _run(kind, [8], norms)
  np.testing.assert_array_equal(p, norms > 0)
  assert measurements['num_iterations'] == 0
  assert (
    probabilities.approximate_probabilities(norms, 8).num_iterations
    == measurements['num_iterations']
  )


def _find_cases(is_fault, num_cases):
  """Norms on which a literal port to float32 shows a fault.

  Args:
    is_fault: Whether exact and literal (p, factors) show the fault.
    num_cases: How many to find.

  Returns:
    A list of (float32 norms, exact probabilities, exact factors), for m = 8.
  """
  rng = np.random.default_rng(11)
  found = []
  while len(found) < num_cases:
    norms = rng.lognormal(0, 1.5, int(rng.integers(24, 40))).astype(np.float32)
    exact = oracles.approximate_probabilities(norms.tolist(), 8, 4)
    literal = oracles.literal_float32_algorithm_2(norms, 8, 4)
    if is_fault(exact, literal):
      found.append((norms, *exact))
  return found


def test_rounding_does_not_cost_an_iteration():
  # C = 1.0000001 in float32, where it is 1.
  cases = _find_cases(lambda exact, literal: len(literal[1]) > len(exact[1]), 8)
  for norms, _, factors in cases:
    _, measurements = _run(schemes.ApproximateOptimalSampling, [8], norms)
    assert measurements['num_iterations'] == len(factors)


def test_rounding_does_not_make_a_sure_client_unsure():
  # C = 0.9999998 in float32, where it is 1.
  cases = _find_cases(
    lambda exact, literal: any(
      p == 1 and q < 1 for p, q in zip(exact[0], literal[0])
    ),
    8,
  )
  for norms, p, _ in cases:
    found, measurements = _run(schemes.ApproximateOptimalSampling, [8], norms)
    np.testing.assert_array_equal(found == 1, [q == 1 for q in p])
    assert measurements['expected_participants'] == np.float32(8)


@pytest.mark.parametrize('kind', [schemes.OptimalSampling,
                                  schemes.ApproximateOptimalSampling,
                                  schemes.UniformSampling])  # fmt: skip
def test_cohort_size_may_change_from_round_to_round(kind):
  process = _process(kind, 2)
  norms = np.float32([9, 3, 2, 1, 1, 4, 0.5])
  state = process.initialize()
  for n in (5, 7, 1, 2, 3, 5):
    output = process.next(state, list(norms[:n]))
    state = output.state
    expected = (
      probabilities.uniform_probabilities(n, 2)
      if kind is schemes.UniformSampling
      else probabilities.optimal_probabilities(norms[:n], 2)
    )
    np.testing.assert_allclose(output.result, expected, rtol=1e-6)


@adaptive
def test_one_giant_leaves_no_probability_above_1(kind):
  p, _ = _run(kind, [3], [1, 1, 1, 1, 100])
  np.testing.assert_allclose(p, [0.5, 0.5, 0.5, 0.5, 1], rtol=1e-6)


@adaptive
def test_probabilities_follow_eq_7_with_norms_from_the_smallest(kind):
  # With the largest first, as in the appendix, l = 4 and p_1 = 200 / 103.
  p, _ = _run(kind, [2], [1, 100, 1, 1])
  np.testing.assert_allclose(p, [1 / 3, 1, 1 / 3, 1 / 3], rtol=1e-6)


@adaptive
@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf, -1.0])
def test_invalid_norms_count_as_zero(kind, bad):
  p, measurements = _run(kind, [2], [bad, 100, 1, 1, bad, 1])
  np.testing.assert_allclose(p, [0, 1, 1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-6)
  assert measurements['expected_participants'] == pytest.approx(2)


def test_approximate_equals_optimal_on_the_sizes_of_the_paper():
  rng = np.random.default_rng(5)
  for n, m in ((32, 2), (32, 3.25), (128, 8)):
    norms = rng.lognormal(0, 1.2, n).astype(np.float32)
    p, measurements = _run(schemes.ApproximateOptimalSampling, [m], norms)
    # Four iterations are enough for such norms, and this is no accident: an
    # iteration more than the last that changes anything is not needed.
    _, factors = oracles.approximate_probabilities(norms.tolist(), m, 4)
    assert factors[-1] == Fraction(1)
    assert measurements['num_iterations'] == len(factors)
    np.testing.assert_allclose(
      p, _floats(oracles.optimal_probabilities(norms.tolist(), m)), rtol=1e-6
    )


# Values that the server sees.


ALL_SCHEMES = (
  schemes.FullParticipation(),
  schemes.UniformSampling(2),
  schemes.ApproximateOptimalSampling(2),
  schemes.ThresholdSampling(2),
  schemes.OptimalSampling(2),
)


@pytest.mark.parametrize('scheme', ALL_SCHEMES[:4], ids=repr)
def test_server_sees_sums_of_scalars_only(scheme):
  comp = scheme.create().next
  uplink = oracles.uplink(comp)
  assert {name for name, _ in uplink} == {'federated_sum'}
  for _, type_spec in uplink:
    assert all(t.shape == () for t in tff.structure.flatten(type_spec))


def test_server_sees_sums_of_1_plus_2_scalars_for_each_iteration():
  for limit in (0, 1, 4):
    uplink = oracles.uplink(
      schemes.ApproximateOptimalSampling(2, limit).create().next
    )
    sizes = [len(tff.structure.flatten(type_spec)) for _, type_spec in uplink]
    # The norm with a count; (1, p_i) each time; and p_i for the measurements.
    assert sorted(sizes) == [1] + [2] * (limit + 1)


def test_server_sees_each_norm_with_optimal_sampling():
  # Its known cost; and proof that the test above can fail.
  names = [
    name for name, _ in oracles.uplink(schemes.OptimalSampling(2).create().next)
  ]
  assert sorted(names) == ['federated_aggregate', 'federated_sum']


@pytest.mark.parametrize('scheme', ALL_SCHEMES, ids=repr)
def test_secure_sums_take_the_place_of_sums(scheme):
  comp = scheme.create(tff.aggregators.SecureSumFactory(1e3, -1e3)).next
  tff.test.assert_contains_secure_aggregation(comp)
  if isinstance(scheme, schemes.OptimalSampling):
    with pytest.raises(AssertionError):
      tff.test.assert_not_contains_unsecure_aggregation(comp)
  else:
    tff.test.assert_not_contains_unsecure_aggregation(comp)


# The interface.


@pytest.mark.parametrize('scheme', ALL_SCHEMES, ids=repr)
def test_type_signature(scheme):
  process = scheme.create()
  assert isinstance(process, tff.templates.MeasuredProcess)
  signature = process.next.type_signature
  norms_type = tff.FederatedType(np.float32, tff.CLIENTS)
  assert signature.parameter[1] == norms_type
  assert signature.result.result == norms_type
  measurements = signature.result.measurements
  assert measurements.placement is tff.SERVER
  assert measurements.member['num_iterations'] == tff.TensorType(np.int32)
  assert measurements.member['expected_participants'] == tff.TensorType(
    np.float32
  )
  assert measurements.member['scalars_per_client'] == tff.TensorType(np.int32)


def test_schemes_are_public():
  assert tff_ocs.FullParticipation is schemes.FullParticipation
  assert tff_ocs.UniformSampling is schemes.UniformSampling
  assert tff_ocs.OptimalSampling is schemes.OptimalSampling
  assert tff_ocs.ThresholdSampling is schemes.ThresholdSampling
  assert (
    tff_ocs.ApproximateOptimalSampling is schemes.ApproximateOptimalSampling
  )


@pytest.mark.parametrize(
  'scheme, text',
  [
    (schemes.FullParticipation(), 'FullParticipation()'),
    (schemes.UniformSampling(2.5), 'UniformSampling(expected_clients=2.5)'),
    (
      schemes.UniformSampling(2, cohort_size=32),
      'UniformSampling(expected_clients=2, cohort_size=32)',
    ),
    (schemes.OptimalSampling(3), 'OptimalSampling(expected_clients=3)'),
    (
      schemes.ApproximateOptimalSampling(3),
      'ApproximateOptimalSampling(expected_clients=3, max_iterations=4)',
    ),
  ],
)
def test_repr(scheme, text):
  assert repr(scheme) == text


@pytest.mark.parametrize(
  'kind',
  [
    schemes.UniformSampling,
    schemes.OptimalSampling,
    schemes.ApproximateOptimalSampling,
  ],
)
@pytest.mark.parametrize(
  'value, error, message',
  [
    (0, ValueError, 'expected_clients must be .* above 0, found 0'),
    (-2, ValueError, 'expected_clients must be .* above 0, found -2'),
    (math.nan, ValueError, 'expected_clients must be .* above 0, found nan'),
    (math.inf, ValueError, 'expected_clients must be .* above 0, found inf'),
    ('3', TypeError, "expected_clients must be .* above 0, found '3' of type"),
    (None, TypeError, 'expected_clients must be .* above 0, found None'),
    (True, TypeError, 'expected_clients must be .* above 0, found True'),
  ],
)
def test_bad_expected_clients(kind, value, error, message):
  with pytest.raises(error, match=message):
    kind(value)


@pytest.mark.parametrize(
  'value, error, message',
  [
    (-1, ValueError, 'max_iterations must be at least 0, found -1'),
    (2.0, TypeError, r'max_iterations must be an integer .* found 2\.0'),
    ('4', TypeError, "max_iterations must be an integer .* found '4'"),
    (None, TypeError, 'max_iterations must be an integer .* found None'),
  ],
)
def test_bad_max_iterations(value, error, message):
  with pytest.raises(error, match=message):
    schemes.ApproximateOptimalSampling(3, value)


@pytest.mark.parametrize('scheme', ALL_SCHEMES, ids=repr)
@pytest.mark.parametrize('bad', [3, tff.aggregators.MeanFactory()])
def test_bad_scalar_sum_factory(scheme, bad):
  with pytest.raises(
    TypeError, match='scalar_sum_factory must be a.*Unweighted.*, found'
  ):
    scheme.create(bad)


@pytest.mark.parametrize('m', [1e-3, 1e-9, 1e-16])
@pytest.mark.parametrize('n', [3, 32, 1000])
def test_tiny_m_keeps_its_digits(n, m):
  norms = np.linspace(1, 2, n).astype(np.float32)
  for scheme, reference in (
    (
      tff_ocs.OptimalSampling(m),
      tff_ocs.probabilities.optimal_probabilities(norms, m),
    ),
    (
      tff_ocs.ApproximateOptimalSampling(m),
      tff_ocs.probabilities.approximate_probabilities(norms, m).probabilities,
    ),
  ):
    process = scheme.create()
    output = process.next(process.initialize(), list(norms))
    np.testing.assert_allclose(np.array(output.result), reference, rtol=1e-6)
