import collections
import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tff_ocs import execution
from tff_ocs import probabilities
from tff_ocs import schemes
from tff_ocs import secure_sums

NORMS = [8.0, 5.0, 3.0, 2.0, 1.0, 1.0, 0.5, 0.25]
M = 3
# Further iterations add the same sums again, which take long to compile.
ITERATIONS = 2
AOCS = schemes.ApproximateOptimalSampling(M, ITERATIONS)
VALUE_TYPE = tff.TensorType(np.float32, [len(NORMS)])
WEIGHT_TYPE = tff.TensorType(np.float32)
# Client i has its own entry.
VALUES = list(np.diag(np.float32(NORMS)))
WEIGHTS = [1.0] * len(NORMS)
STEPS = 2**32 - 1


@pytest.fixture(scope='module', autouse=True)
def secure_context():
  with execution.use_secure_test_context():
    yield


def _process(norm_bound, value_bound=1e3, weight_bound=1.0, scheme=None):
  return tff_ocs.ClientSamplingFactory(
    scheme or AOCS,
    value_sum_factory=tff.aggregators.SecureSumFactory(value_bound),
    weight_sum_factory=tff.aggregators.SecureSumFactory(weight_bound, 0.0),
    scalar_sum_factory=secure_sums.SecureScalarSumFactory(norm_bound),
  ).create_with_coin_seeds(VALUE_TYPE, WEIGHT_TYPE)


def _above(bound):
  return np.array(NORMS) > bound


def _coins(seed):
  return np.array(
    [
      tf.random.stateless_uniform([], [seed, i], dtype=tf.float64)
      for i in range(len(NORMS))
    ]
  )


def _next(process, state=None, values=VALUES, weights=WEIGHTS, seed=0):
  seeds = [np.array([seed, i], np.int64) for i in range(len(values))]
  if state is None:
    state = process.initialize()
  return process.next(state, values, weights, seeds)


def _probabilities_with_clipped_norms(bound):
  """Algorithm 2 where the server's sum is of clipped norms."""
  norms = np.array(NORMS)
  p = np.minimum(M * norms / np.minimum(norms, bound).sum(), 1)
  for _ in range(ITERATIONS):
    unsure = p < 1
    if not p[unsure].any():
      break
    factor = (M - np.sum(~unsure)) / p[unsure].sum()
    if factor <= 1 + schemes.CALIBRATION_TOLERANCE:
      break
    p = np.where(unsure, np.minimum(factor * p, 1), p)
  return p


# The effect on the probabilities.


@functools.cache
def _scheme_with_bound(bound):
  return AOCS.create(secure_sums.SecureScalarSumFactory(bound))


def _probabilities(norms, process):
  output = process.next(process.initialize(), list(np.float32(norms)))
  return np.array(output.result), output.measurements


@pytest.mark.parametrize('share', [1.0, 0.6, 0.3, 0.03])
def test_clipped_norms_make_probabilities_too_large(share):
  bound = share * max(NORMS)
  # The norms are scaled instead of the bound, which would be compiled again.
  process = _scheme_with_bound(max(NORMS))
  p, measured = _probabilities(np.array(NORMS) / share, process)
  expected = _probabilities_with_clipped_norms(bound)
  np.testing.assert_allclose(p, expected, rtol=1e-6)
  assert measured['expected_participants'] == pytest.approx(expected.sum())
  of_norms = measured['scalar_sum']['totals']['norm']
  assert of_norms['secure_upper_clipped_count'] == np.sum(_above(bound))
  if share == 1:
    exact, _ = probabilities.approximate_probabilities(
      np.array(NORMS), M, ITERATIONS
    )
    np.testing.assert_allclose(p, exact, rtol=1e-6)
  else:
    assert p.sum() > M + 0.1


def test_rounded_norms_move_the_sum_of_probabilities_within_the_bound():
  bound = 1e8
  process = _scheme_with_bound(max(NORMS))
  p, _ = _probabilities(np.array(NORMS) * max(NORMS) / bound, process)
  # Of the sum of norms at most n / 2 steps; recalibrations only mend it.
  error = len(NORMS) / 2 * bound / STEPS / sum(NORMS)
  assert error > 0.001
  assert abs(p.sum() - M) <= M * (error + 1e-6)


def test_norms_have_bounds_of_their_own():
  norms, bound = 1e9 * np.array(NORMS), 1e10
  exact, _ = probabilities.approximate_probabilities(norms, M, ITERATIONS)
  p, _ = _probabilities(norms, _scheme_with_bound(bound))
  np.testing.assert_allclose(p, exact, rtol=1e-6)
  # With the same bounds for all, a one is less than half a step.
  same = AOCS.create(tff.aggregators.SecureSumFactory(bound, 0.0))
  p, _ = _probabilities(norms, same)
  assert not np.allclose(p, exact, rtol=0.01)


def test_clipped_norms_do_not_bias_the_aggregate():
  bound, value_bound, n = 0.3 * max(NORMS), 1e3, len(NORMS)
  p = _probabilities_with_clipped_norms(bound)
  process, num_sent = _process(bound, value_bound), 0
  for seed in range(15):
    output = _next(process, seed=seed)
    assert output.measurements['clipped'] == {
      'scalars': np.sum(_above(bound)),
      'values': 0,
      'weights': 0,
    }
    # Who tosses below p_i sends, times 1 / p_i, with the p_i above: so only the
    # rounding of values is left, half a step of each client.
    sent = _coins(seed) < p
    num_sent += sent.sum()
    np.testing.assert_allclose(
      output.result,
      np.where(sent, np.array(NORMS) / p, 0) / n,
      rtol=1e-6,
      atol=n * value_bound / STEPS / n,
    )
  assert 0 < num_sent < 15 * n


def test_adaptive_bound_follows_the_norms():
  process = _process(
    tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
      initial_estimate=0.5,
      target_quantile=0.95,
      learning_rate=1.0,
      multiplier=2.0,
      secure_estimation=True,
    )
  )
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  state, clipped, expected = None, [], []
  for _ in range(8):
    output = _next(process, state)
    state = output.state
    clipped.append(output.measurements['clipped']['scalars'])
    expected.append(output.measurements['expected_participants'])
  assert clipped[0] == np.sum(_above(2 * 0.5))
  assert expected[0] > M + 1
  assert clipped[-1] == 0
  assert expected[-1] == pytest.approx(M)


# Bounds within which nothing is clipped.


@pytest.mark.parametrize(
  'scheme',
  [
    schemes.FullParticipation(),
    schemes.UniformSampling(M),
    schemes.OptimalSampling(M),
    AOCS,
  ],
  ids=repr,
)
def test_proposed_bounds_clip_nothing(scheme):
  n = len(NORMS)
  is_full = isinstance(scheme, schemes.FullParticipation)
  bounds = secure_sums.propose_bounds(
    max_update_norm=2.0,
    max_weight=5.0,
    cohort_size=n,
    expected_clients=n if is_full else M,
  )
  process = _process(bounds.norm, bounds.value, bounds.weight, scheme)
  unit = np.eye(n, dtype=np.float32)
  largest = 0
  for norms in (
    [2.0] * n,
    [-2.0] + [1e-3] * (n - 1),
    [2.0] * (M + 1) + [0.0] * (n - M - 1),
    np.linspace(0.1, 2.0, n),
  ):
    for seed in range(4):
      output = _next(
        process,
        values=list(np.float32(norms)[:, np.newaxis] * unit),
        weights=[5.0] * n,
        seed=seed,
      )
      assert output.measurements['clipped'] == {
        'scalars': 0,
        'values': 0,
        'weights': 0,
      }
      largest = max(largest, np.max(np.abs(output.result)) * 5.0 * n)
  # And what is sent comes near to the bound.
  assert 0.99 * bounds.value < largest <= bounds.value


def test_bounds_where_all_send_do_not_shrink_with_m():
  bounds = [
    secure_sums.propose_bounds(
      max_update_norm=2.0, max_weight=5.0, cohort_size=2, expected_clients=m
    )
    for m in (2, 3, 100)
  ]
  assert bounds[0] == bounds[1] == bounds[2]


def test_values_weights_and_scalars_that_are_clipped_are_counted_apart():
  measured = _next(_process(1e3, value_bound=6.0, weight_bound=0.9))
  assert measured.measurements['clipped']['weights'] == len(NORMS)
  assert measured.measurements['clipped']['scalars'] == 0
  p, _ = probabilities.approximate_probabilities(np.array(NORMS), M, ITERATIONS)
  sent = measured.result > 0
  assert measured.measurements['clipped']['values'] == np.sum(
    sent & (np.array(NORMS) / p > 6)
  )
  assert measured.measurements['clipped']['values'] > 0


def test_counts_of_nested_factories_are_found():
  process = tff_ocs.ClientSamplingFactory(
    tff_ocs.FullParticipation(),
    value_sum_factory=tff.aggregators.clipping_factory(
      1e3,
      tff.aggregators.concat_factory(tff.aggregators.SecureSumFactory(4.0)),
      clipped_count_sum_factory=tff.aggregators.SecureSumFactory(1, 0),
    ),
  ).create(VALUE_TYPE, WEIGHT_TYPE)
  output = process.next(process.initialize(), VALUES, WEIGHTS)
  assert output.measurements['clipped']['values'] == 2


class _ListedFactory(tff.aggregators.UnweightedAggregationFactory):
  """A secure sum with measurements in a container of Python."""

  def __init__(self, container):
    self._container = container

  def create(self, value_type):
    inner = tff.aggregators.SecureSumFactory(4.0).create(value_type)

    @tff.federated_computation(
      inner.initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      output = inner.next(state, value)

      @tff.tensorflow.computation(output.measurements.type_signature.member)
      def listed(measurements):
        return self._container([measurements])

      return tff.templates.MeasuredProcessOutput(
        output.state,
        output.result,
        tff.federated_map(listed, output.measurements),
      )

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


@pytest.mark.parametrize('container', [list, tuple])
def test_counts_within_sequences_are_found(container):
  process = tff_ocs.ClientSamplingFactory(
    tff_ocs.FullParticipation(), value_sum_factory=_ListedFactory(container)
  ).create(VALUE_TYPE, WEIGHT_TYPE)
  output = process.next(process.initialize(), VALUES, WEIGHTS)
  assert output.measurements['clipped']['values'] == 2


def test_plain_sums_count_nothing_as_clipped():
  process = tff_ocs.ClientSamplingFactory(AOCS).create(VALUE_TYPE, WEIGHT_TYPE)
  output = process.next(process.initialize(), VALUES, WEIGHTS)
  assert 'clipped' not in output.measurements


# The whole round.


def test_training_leaves_no_other_aggregation():
  sampling = tff_ocs.ClientSamplingFactory(
    tff_ocs.ApproximateOptimalSampling(2, max_iterations=1),
    value_sum_factory=tff.aggregators.SecureSumFactory(1e2),
    weight_sum_factory=tff.aggregators.SecureSumFactory(1e2, 0.0),
    scalar_sum_factory=secure_sums.SecureScalarSumFactory(1e2),
  )
  process = tff_ocs.build_federated_averaging_process(
    models.build_linear_model(2),
    sampling,
    client_learning_rate=0.1,
    scalar_sum_factory=tff.aggregators.SecureSumFactory(1e2, 0.0),
  )
  tff.test.assert_contains_secure_aggregation(process.next)
  tff.test.assert_not_contains_unsecure_aggregation(process.next)


@pytest.mark.parametrize(
  'build',
  [
    tff_ocs.build_federated_averaging_process,
    tff_ocs.build_distributed_sgd_process,
  ],
)
def test_scalars_of_a_scheme_are_summed_as_asked(build):
  process = build(
    models.build_linear_model(2),
    AOCS,
    **(
      {'client_learning_rate': 0.1}
      if build is tff_ocs.build_federated_averaging_process
      else {'learning_rate': 0.1}
    ),
    scalar_sum_factory=tff.aggregators.SecureSumFactory(1e2, 0.0),
  )
  tff.test.assert_contains_secure_aggregation(process.next)
  text = process.next.to_building_block().compact_representation()
  # The updates and their weights, whose sums are other factories' concern.
  assert text.count('federated_sum(') + text.count('federated_aggregate(') == 2


# Bad input.


def test_losses_need_a_sum_without_a_state():
  bound = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
    initial_estimate=1.0,
    target_quantile=0.5,
    learning_rate=0.2,
    secure_estimation=True,
  )
  with pytest.raises(ValueError, match='scalar_sum_factory must not have a st'):
    tff_ocs.build_federated_averaging_process(
      models.build_linear_model(2),
      tff_ocs.ClientSamplingFactory(AOCS),
      client_learning_rate=0.1,
      scalar_sum_factory=tff.aggregators.SecureSumFactory(bound),
    )


def test_unknown_scalars_have_no_bounds():
  with pytest.raises(ValueError, match="found 'loss'.*SecureSumFactory"):
    tff_ocs.build_federated_averaging_process(
      models.build_linear_model(2),
      tff_ocs.ApproximateOptimalSampling(2),
      client_learning_rate=0.1,
      scalar_sum_factory=secure_sums.SecureScalarSumFactory(1.0),
    )


@pytest.mark.parametrize(
  'bound,error',
  [
    (0.0, ValueError),
    (-1.0, ValueError),
    (math.inf, ValueError),
    (math.nan, ValueError),
    ('1', TypeError),
    (True, TypeError),
    (None, TypeError),
  ],
)
def test_bad_bounds(bound, error):
  with pytest.raises(error, match='norm_bound must be'):
    secure_sums.SecureScalarSumFactory(bound)
  good = dict(
    max_update_norm=1.0, max_weight=1.0, cohort_size=4, expected_clients=2
  )
  for name in good:
    with pytest.raises(error, match=f'{name} must be'):
      secure_sums.propose_bounds(**{**good, name: bound})


def test_type_signature():
  process = secure_sums.SecureScalarSumFactory(1.0).create(
    tff.to_type(collections.OrderedDict(norm=np.float64, clients=np.float64))
  )
  result = process.next.type_signature.result
  expected = process.next.type_signature.parameter[1].member
  assert result.result.member == expected
  assert tff.structure.name_list(result.measurements.member) == [
    'norm',
    'others',
  ]


def test_norms_alone_are_summed():
  process = secure_sums.SecureScalarSumFactory(10.0).create(
    tff.to_type(collections.OrderedDict(norm=np.float64))
  )
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  clients = [collections.OrderedDict(norm=x) for x in (1.0, 2.5, 20.0)]
  output = process.next(process.initialize(), clients)
  assert output.result['norm'] == pytest.approx(13.5, rel=1e-6)
  assert tff.structure.name_list(
    process.next.type_signature.result.measurements.member
  ) == ['norm']


def test_norms_that_are_rounded_to_0_leave_uniform_sampling():
  process = _process(1e3 * STEPS)
  output = _next(process)
  assert output.measurements['invalid_probabilities'] == 0
  assert output.measurements['expected_participants'] == pytest.approx(M)
  sends = _coins(0) < M / len(NORMS)
  np.testing.assert_array_equal(output.result > 0, sends)
  assert 0 < sends.sum() < len(NORMS)


@pytest.mark.parametrize(
  'value_type', [np.float64, [np.float64, np.float64]], ids=['scalar', 'list']
)
def test_scalars_without_a_name_are_refused(value_type):
  # Their bounds are not known: [0, 1] would clip a norm in silence.
  with pytest.raises(ValueError, match='knows the bounds'):
    secure_sums.SecureScalarSumFactory(10.0).create(tff.to_type(value_type))
