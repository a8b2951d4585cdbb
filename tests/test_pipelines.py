"""`ClientSamplingFactory` in the pipelines of `tff.learning`.

What goes around the factory, such as clipping, sees the clients' updates U_i
before norms are computed; what goes inside, as `value_sum_factory`, sees the
scaled values (n_i / p_i) U_i of the clients that send, and zeros of the others.
"""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp
import tree

import tff_ocs
from tests import models
from tff_ocs import execution
from tff_ocs import message_bits
from tff_ocs import secure_sums

NUM_CLIENTS = 16
# For any norms, all of 16 clients send with a probability of at most (m / n)^n,
# below 1e-11 for m = 3 and each round.
SCHEMES = {
  'full': tff_ocs.FullParticipation(),
  'uniform': tff_ocs.UniformSampling(3),
  'ocs': tff_ocs.OptimalSampling(3),
  # With fewer iterations the tests need less time.
  'aocs': tff_ocs.ApproximateOptimalSampling(3, max_iterations=2),
}


def _leaves(structure):
  return dict(tree.flatten_with_path(structure))


def _check_contains(found, expected):
  """Checks that all leaves of a structure are in another, bit for bit."""
  found = _leaves(found)
  for path, leaf in _leaves(expected).items():
    np.testing.assert_array_equal(found[path], leaf, err_msg=str(path))


def _find(measurements, name):
  """The one measurement of this name, however deep."""
  (found,) = [
    leaf for path, leaf in _leaves(measurements).items() if path[-1] == name
  ]
  return found


def _check_fewer_send(measurements, update_bits):
  """Checks a round of AOCS with m = 3 of 16 clients."""
  participants = _find(measurements, 'participants')
  assert _find(measurements, 'cohort_size') == NUM_CLIENTS
  assert participants < NUM_CLIENTS
  assert 0 < _find(measurements, 'expected_participants') < 3.001
  scalars = 1 + 2 * _find(measurements, 'num_iterations')
  assert _find(measurements, 'uplink_bits') == (
    participants * update_bits + NUM_CLIENTS * 32 * scalars
  )


# Whole learning processes. The model has 4 parameters.

UPDATE_BITS = 4 * 32
INPUT_SPEC = (
  tf.TensorSpec([None, 3], tf.float32),
  tf.TensorSpec([None, 1], tf.float32),
)


def _keras_model():
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(input_shape=[3]),
      tf.keras.layers.Dense(1, kernel_initializer='zeros'),
    ]
  )


def _functional_keras_model():
  return tff.learning.models.functional_model_from_keras(
    _keras_model(), tf.keras.losses.MeanSquaredError(), INPUT_SPEC
  )


def _variable_model():
  return tff.learning.models.from_keras_model(
    _keras_model(),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=INPUT_SPEC,
    metrics=[tf.keras.metrics.MeanSquaredError()],
  )


def _unweighted(aggregator):
  return aggregator and tff_ocs.as_unweighted_aggregator(aggregator)


def _robust(aggregator):
  if aggregator is None:
    return tff.learning.robust_aggregator()
  return tff.learning.robust_aggregator(
    # It takes no aggregator, but this may replace the mean that it is given.
    debug_measurements_fn=lambda mean: aggregator
  )


SGD = tff.learning.optimizers.build_sgdm(0.05)
MOMENTUM = tff.learning.optimizers.build_sgdm(0.05, 0.9)
ALGORITHMS = tff.learning.algorithms
# From an aggregator, or `None` for the algorithm's own.
PIPELINES = {
  'weighted_fed_avg': lambda aggregator: ALGORITHMS.build_weighted_fed_avg(
    models.build_linear_model(3), SGD, model_aggregator=aggregator
  ),
  'weighted_fed_avg-robust': lambda aggregator: (
    ALGORITHMS.build_weighted_fed_avg(
      models.build_linear_model(3), SGD, model_aggregator=_robust(aggregator)
    )
  ),
  'unweighted_fed_avg': lambda aggregator: ALGORITHMS.build_unweighted_fed_avg(
    models.build_linear_model(3), SGD, model_aggregator=_unweighted(aggregator)
  ),
  'weighted_fed_prox': lambda aggregator: ALGORITHMS.build_weighted_fed_prox(
    _functional_keras_model(), 0.1, SGD, model_aggregator=aggregator
  ),
  'fed_sgd': lambda aggregator: ALGORITHMS.build_fed_sgd(
    _variable_model, model_aggregator=aggregator
  ),
  'weighted_mime_lite': lambda aggregator: ALGORITHMS.build_weighted_mime_lite(
    models.build_linear_model(3),
    MOMENTUM,
    model_aggregator=aggregator,
    full_gradient_aggregator=aggregator,
  ),
}
each_pipeline = pytest.mark.parametrize('pipeline', PIPELINES)


@functools.cache
def _process(pipeline, scheme=None):
  return PIPELINES[pipeline](
    scheme and tff_ocs.ClientSamplingFactory(SCHEMES[scheme])
  )


def _dataset(x, y):
  return tf.data.Dataset.from_tensor_slices((x, y)).batch(2)


@functools.cache
def _clients():
  rng = np.random.default_rng(0)
  clients = []
  for i in range(NUM_CLIENTS):
    x = rng.normal(size=[1 + i % 5, 3]).astype('f')
    y = x @ np.float32([[1], [2], [-1]]) + np.float32(i / 8)
    clients.append(_dataset(x, y))
  return clients


def _rounds(process, cohorts):
  state = process.initialize()
  outputs = []
  for cohort in cohorts:
    outputs.append(process.next(state, cohort))
    state = outputs[-1].state
  return outputs


@each_pipeline
def test_type_of_learning_process(pipeline):
  process, stock = _process(pipeline, 'aocs'), _process(pipeline)
  assert isinstance(process, tff.learning.templates.LearningProcess)
  signature, expected = process.next.type_signature, stock.next.type_signature
  # The state and the clients' data; the state and the metrics.
  state, data = signature.parameter
  assert state == signature.result.state
  assert state == process.initialize.type_signature.result
  assert data == expected.parameter[1]
  for name in ('global_model_weights', 'distributor', 'finalizer'):
    assert state.member[name] == expected.parameter[0].member[name]
  client_work = state.member['client_work']
  expected_work = expected.parameter[0].member['client_work']
  if pipeline == 'weighted_mime_lite':
    # Also has the state of the aggregator of full gradients.
    client_work, expected_work = client_work[0], expected_work[0]
  assert client_work == expected_work
  metrics = signature.result.metrics.member
  expected_metrics = expected.result.metrics.member
  for name in ('distributor', 'client_work', 'finalizer'):
    assert metrics[name] == expected_metrics[name]
  assert (
    process.get_model_weights.type_signature.result
    == stock.get_model_weights.type_signature.result
  )


@each_pipeline
def test_learning_with_full_participation_is_the_stock_process(pipeline):
  # Bit for bit: the same operations in the same order, since dividing a weight
  # by p = 1 does not change it. That includes clipping norms.
  cohorts = [_clients()] * 2 + [_clients()[3:9]]
  found = _rounds(_process(pipeline, 'full'), cohorts)
  expected = _rounds(_process(pipeline), cohorts)
  for output, stock in zip(found, expected):
    _check_contains(output, stock)
    assert _find(output.metrics, 'participants') == _find(
      output.metrics, 'cohort_size'
    )
  weights = found[-1].state.global_model_weights.trainable
  assert all(np.all(w != 0) for w in weights)


@each_pipeline
def test_learning_with_m_equal_n_is_the_stock_process(pipeline):
  # Bit for bit, since all p are exactly 1.
  cohorts = [_clients()[:3]]
  (output,) = _rounds(_process(pipeline, 'aocs'), cohorts)
  (stock,) = _rounds(_process(pipeline), cohorts)
  _check_contains(output, stock)
  assert _find(output.metrics, 'participants') == 3


@each_pipeline
def test_learning_with_fewer_clients(pipeline):
  for output in _rounds(_process(pipeline, 'aocs'), [_clients()] * 2):
    _check_fewer_send(output.metrics, UPDATE_BITS)
    for weight in output.state.global_model_weights.trainable:
      assert np.all(np.isfinite(weight))


def test_other_algorithms_that_want_unweighted_factories():
  factory = _unweighted(tff_ocs.ClientSamplingFactory(SCHEMES['aocs']))
  model = models.build_linear_model(3)
  for process in (
    ALGORITHMS.build_unweighted_fed_prox(
      model, 0.1, SGD, model_aggregator=factory
    ),
    ALGORITHMS.build_unweighted_mime_lite(
      model,
      MOMENTUM,
      model_aggregator=factory,
      full_gradient_aggregator=factory,
    ),
  ):
    metrics = process.next.type_signature.result.metrics.member
    assert metrics['aggregator']['participants'] == tff.TensorType(np.int32)


def test_diverged_client_of_a_learning_process():
  # TFF's client work makes zeros with weight 0 of an update that is not finite:
  # there is nothing left to count.
  nan = np.full([2, 3], np.nan, 'f')
  cohorts = [_clients()[:4] + [_dataset(nan, nan[:, :1])]]
  (output,) = _rounds(_process('weighted_fed_avg', 'full'), cohorts)
  (stock,) = _rounds(_process('weighted_fed_avg'), cohorts)
  _check_contains(output, stock)
  assert output.metrics['aggregator']['non_finite_clients'] == 0
  (without,) = _rounds(_process('weighted_fed_avg'), [_clients()[:4]])
  np.testing.assert_array_equal(
    output.state.global_model_weights.trainable[0],
    without.state.global_model_weights.trainable[0],
  )


# The aggregator alone, with updates of 8 entries.

VALUE_TYPE = tff.to_type(
  collections.OrderedDict(w=(np.float32, [3, 2]), b=(np.float32, [2]))
)
VALUE_BITS = 8 * 32
WEIGHT_TYPE = tff.TensorType(np.float32)


def _quantile(secure=False):
  return tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
    initial_estimate=1.0,
    target_quantile=0.5,
    learning_rate=0.2,
    secure_estimation=secure,
  )


@tff.tensorflow.computation
def _norm(value):
  return tf.linalg.global_norm(tf.nest.flatten(value))


def _measure_norms(factory):
  """Measures the sum of the norms that come, and the norm that results."""
  return tff.aggregators.add_measurements(
    factory,
    client_measurement_fn=(
      _sum_of_norms
      if isinstance(factory, tff.aggregators.UnweightedAggregationFactory)
      else lambda value, weight: _sum_of_norms(value)
    ),
    server_measurement_fn=lambda result: collections.OrderedDict(
      norm_of_result=tff.federated_map(_norm, result)
    ),
  )


def _sum_of_norms(value):
  return collections.OrderedDict(
    sum_of_norms=tff.federated_sum(tff.federated_map(_norm, value))
  )


# From an aggregation factory, weighted or not.
WRAPPERS = {
  'adaptive-clipping': lambda f: tff.aggregators.clipping_factory(
    _quantile(), f
  ),
  'adaptive-zeroing': lambda f: tff.aggregators.zeroing_factory(_quantile(), f),
  'add_measurements': _measure_norms,
  'add_debug_measurements': tff.learning.add_debug_measurements,
  'concat': tff.aggregators.concat_factory,
  'all': lambda f: tff.aggregators.zeroing_factory(
    4.0,
    tff.aggregators.clipping_factory(
      _quantile(),
      tff.learning.add_debug_measurements(
        _measure_norms(tff.aggregators.concat_factory(f))
      ),
    ),
  ),
}
# These two have all of them, and fewer processes to compile.
each_wrapper = pytest.mark.parametrize('wrapper', ['adaptive-zeroing', 'all'])


def _values(size=1.0):
  rng = np.random.default_rng(1)
  return [
    collections.OrderedDict(
      w=np.float32(norm * rng.normal(size=[3, 2])),
      b=np.float32(norm * rng.normal(size=[2])),
    )
    for norm in size * rng.uniform(0.1, 1, NUM_CLIENTS)
  ]


WEIGHTS = [np.float32(1 + i % 5) for i in range(NUM_CLIENTS)]
# Of different sizes, so that adaptive norms go up and down.
VALUES = [_values(1.0), _values(2.0), _values(0.1)]


def _aggregate(process, rounds=VALUES, weights=WEIGHTS):
  state = process.initialize()
  outputs = []
  for values in rounds:
    outputs.append(process.next(state, values, weights[: len(values)]))
    state = outputs[-1].state
  return outputs


@functools.cache
def _stock(*, around=lambda f: f, inside=None):
  factory = around(tff.aggregators.MeanFactory(value_sum_factory=inside))
  return factory.create(VALUE_TYPE, WEIGHT_TYPE)


def _sampled(scheme, *, around=lambda f: f, inside=None):
  factory = tff_ocs.ClientSamplingFactory(
    SCHEMES[scheme], value_sum_factory=inside
  )
  return around(factory).create(VALUE_TYPE, WEIGHT_TYPE)


@pytest.mark.parametrize('scheme', SCHEMES)
def test_aggregator_with_m_equal_n_is_the_mean(scheme):
  # Bit for bit, since all p are exactly 1.
  rounds = [values[:3] for values in VALUES]
  found = _aggregate(_sampled(scheme), rounds)
  for output, stock in zip(found, _aggregate(_stock(), rounds)):
    _check_contains(output.result, stock.result)


@each_wrapper
def test_wrapper_around_full_participation_is_the_wrapper_around_the_mean(
  wrapper,
):
  wrap = WRAPPERS[wrapper]
  found = _aggregate(_sampled('full', around=wrap))
  expected = _aggregate(_stock(around=wrap))
  for output, stock in zip(found, expected):
    # Also the state and the measurements of the wrapper itself.
    _check_contains(output, stock)


@each_wrapper
def test_wrapper_around_approximate_optimal_sampling(wrapper):
  process = _sampled('aocs', around=WRAPPERS[wrapper])
  signature = process.next.type_signature
  assert process.is_weighted
  assert signature.parameter[1] == tff.FederatedType(VALUE_TYPE, tff.CLIENTS)
  assert signature.result.result == tff.FederatedType(VALUE_TYPE, tff.SERVER)
  for output in _aggregate(process, VALUES[:2]):
    _check_fewer_send(output.measurements, VALUE_BITS)
    assert all(np.all(np.isfinite(x)) for x in tree.flatten(output.result))


@each_wrapper
def test_wrapper_inside(wrapper):
  inside = WRAPPERS[wrapper](tff.aggregators.SumFactory())
  found = _aggregate(_sampled('full', inside=inside))
  expected = _aggregate(_stock(inside=inside))
  for output, stock in zip(found, expected):
    _check_contains(output.result, stock.result)
    _check_contains(output.state['value_sum'], stock.state['value_sum_process'])
    _check_contains(
      output.measurements['value_sum'], stock.measurements['mean_value']
    )
  for output in _aggregate(_sampled('aocs', inside=inside), VALUES[:2]):
    # The measurements of wrappers, and values that they adapt to, do not count.
    _check_fewer_send(output.measurements, VALUE_BITS)
    assert all(np.all(np.isfinite(x)) for x in tree.flatten(output.result))


def test_bits_of_adaptive_bounds_and_of_private_sums_inside():
  # Statistics that the result does not depend on do not count; of TFF's
  # adaptive private sum they come along with the values, so they do.
  for inside, bits in (
    (tff.aggregators.SecureSumFactory(_quantile(secure=True)), VALUE_BITS),
    (
      tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(0.0, 4.0),
      VALUE_BITS + 32,
    ),
  ):
    process = inside.create(VALUE_TYPE)
    assert message_bits.message_bits(process.next) == bits


# The effect of the order: 4 clients, each with a coordinate of its own, so that
# the result shows who sent, and with what factor.

COORDINATES = tff.TensorType(np.float32, [4])


def _own_coordinates(*entries):
  return [np.float32(x) for x in np.diag(entries)]


def _one_round(scheme, values, *, around=lambda f: f, inside=None):
  process = around(
    tff_ocs.ClientSamplingFactory(scheme, value_sum_factory=inside, seed=0)
  ).create(COORDINATES, WEIGHT_TYPE)
  return process.next(process.initialize(), values, [1.0] * len(values))


def test_clipping_around_clips_before_norms_are_computed():
  # After clipping all norms are 1, so that p = m / n = 1/2; without, the last
  # would have p = 1, and the others 1/3.
  values = _own_coordinates(1, 1, 1, 100)
  scheme = tff_ocs.ApproximateOptimalSampling(2)
  output = _one_round(
    scheme, values, around=lambda f: tff.aggregators.clipping_factory(1.0, f)
  )
  assert output.measurements['clipped_count'] == 1
  sent = output.result != 0
  assert 0 < sent.sum() == output.measurements['clipping']['participants']
  np.testing.assert_allclose(output.result[sent], 1 / 0.5 / 4, rtol=1e-6)
  output = _one_round(scheme, values)
  assert output.result[3] == pytest.approx(100 / 4)


@pytest.mark.parametrize('piece', ['clipping', 'zeroing'])
def test_clipping_and_zeroing_inside_bias(piece):
  # All norms are 1, below the bound of 1.5. But inside, the scaled value is
  # 1 / p = 2: clipped to 1.5, so that the expectation is 3/4 of the mean, or
  # zeroed, so that nothing is left.
  wrap = {
    'clipping': lambda f: tff.aggregators.clipping_factory(1.5, f),
    'zeroing': lambda f: tff.aggregators.zeroing_factory(1.5, f),
  }[piece]
  left = {'clipping': 1.5, 'zeroing': 0.0}[piece]
  scheme, values = tff_ocs.UniformSampling(2), _own_coordinates(1, 1, 1, 1)
  around = _one_round(scheme, values, around=wrap)
  inside = _one_round(scheme, values, inside=wrap(tff.aggregators.SumFactory()))
  # The seed is the same, and so are the coins.
  sent = around.result != 0
  assert 0 < sent.sum() == inside.measurements['participants']
  np.testing.assert_allclose(around.result, np.where(sent, 2 / 4, 0))
  np.testing.assert_allclose(
    inside.result, np.where(sent, left / 4, 0), rtol=1e-6
  )


def test_adaptive_norms_inside_learn_from_silent_clients():
  # All norms are 2, far above the first estimate of the median, 1. Inside, the
  # median client is silent, and the estimate falls.
  wrap = WRAPPERS['adaptive-clipping']
  nobody = tff_ocs.UniformSampling(1e-6)
  norms = {}
  for name, factory in (
    ('around', wrap(tff_ocs.ClientSamplingFactory(nobody))),
    (
      'inside',
      tff_ocs.ClientSamplingFactory(
        nobody, value_sum_factory=wrap(tff.aggregators.SumFactory())
      ),
    ),
  ):
    outputs = _aggregate(
      factory.create(COORDINATES, WEIGHT_TYPE),
      [_own_coordinates(2, 2, 2, 2)] * 3,
    )
    norms[name] = [
      _find(output.measurements, 'clipping_norm') for output in outputs
    ]
  assert norms['around'][0] < norms['around'][1] < norms['around'][2]
  assert norms['inside'][0] > norms['inside'][1] > norms['inside'][2]


def test_measurements_around_are_of_updates_and_inside_of_what_is_sent():
  scheme, values = tff_ocs.UniformSampling(2), _own_coordinates(1, 1, 1, 1)
  around = _one_round(scheme, values, around=_measure_norms).measurements
  inside = _one_round(
    scheme, values, inside=_measure_norms(tff.aggregators.SumFactory())
  ).measurements
  assert around['sum_of_norms'] == pytest.approx(4)
  assert around['participants'] == inside['participants'] > 0
  sum_of_sent = inside['value_sum']['sum_of_norms']
  assert sum_of_sent == pytest.approx(inside['participants'] * 2)
  # The result of the mean, and of the sum.
  assert inside['value_sum']['norm_of_result'] == pytest.approx(
    4 * around['norm_of_result']
  )


def test_concat_around_leaves_norms_and_probabilities():
  plain = _aggregate(_sampled('aocs'), VALUES[:2])
  concatenated = _aggregate(
    _sampled('aocs', around=WRAPPERS['concat']), VALUES[:2]
  )
  for output, expected in zip(concatenated, plain):
    for name in ('expected_participants', 'num_iterations'):
      assert output.measurements[name] == pytest.approx(
        expected.measurements[name], rel=1e-6
      )


@pytest.mark.parametrize(
  'piece, non_finite, changed', [('clipping', 2, 2), ('zeroing', 1, 2)]
)
def test_diverged_clients_behind_clipping_and_zeroing(
  piece, non_finite, changed
):
  # Clipping makes NaN of infinite entries, and 0 of a norm beyond float32;
  # zeroing makes 0 of both. NaN passes, but is not sent.
  values = _own_coordinates(1, np.nan, np.inf, 1e30)
  wrap = {
    'clipping': lambda f: tff.aggregators.clipping_factory(1.0, f),
    'zeroing': lambda f: tff.aggregators.zeroing_factory(1.0, f),
  }[piece]
  output = _one_round(SCHEMES['aocs'], values, around=wrap)
  np.testing.assert_allclose(output.result, [1 / 4, 0, 0, 0])
  assert _find(output.measurements, 'non_finite_clients') == non_finite
  assert output.measurements[f'{piece[:-3]}ed_count'] == changed


# TFF's compositions.


def test_robust_aggregator_of_unweighted_factories():
  robust = tff.learning.robust_aggregator(
    weighted=False,
    debug_measurements_fn=lambda mean: _unweighted(
      tff_ocs.ClientSamplingFactory(SCHEMES['full'])
    ),
  ).create(VALUE_TYPE)
  stock = tff.learning.robust_aggregator(weighted=False).create(VALUE_TYPE)
  states = [robust.initialize(), stock.initialize()]
  for values in VALUES:
    output, expected = (
      robust.next(states[0], values),
      stock.next(states[1], values),
    )
    _check_contains(output, expected)
    states = [output.state, expected.state]


def test_private_mean_inside_divides_twice():
  # `gaussian_fixed`, as `dp_aggregator`, is a mean and not a sum.
  dp = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier=0.0, clients_per_round=4.0, clip=100.0
  )
  values = _own_coordinates(1, 2, 3, 4)
  output = _one_round(SCHEMES['full'], values, inside=dp)
  np.testing.assert_allclose(output.result, np.arange(1, 5) / 4 / 4)
  # A query that only sums does not.
  dp = tff.aggregators.DifferentiallyPrivateFactory(
    tfp.GaussianSumQuery(l2_norm_clip=100.0, stddev=0.0)
  )
  output = _one_round(SCHEMES['full'], values, inside=dp)
  np.testing.assert_allclose(output.result, np.arange(1, 5) / 4)


# Secure sums.

SECURE_COUNT = tff.aggregators.SecureSumFactory(1, 0)


def _secure_sampling(scheme, values=None):
  return tff_ocs.ClientSamplingFactory(
    SCHEMES[scheme],
    value_sum_factory=values or tff.aggregators.SecureSumFactory(1e3, -1e3),
    weight_sum_factory=tff.aggregators.SecureSumFactory(float(2**20 - 1), 0.0),
    scalar_sum_factory=secure_sums.SecureScalarSumFactory(100.0),
  )


def test_secure_wrappers_around_secure_sums():
  factory = tff_ocs.as_unweighted_aggregator(
    tff.aggregators.zeroing_factory(
      _quantile(secure=True),
      tff.aggregators.clipping_factory(
        _quantile(secure=True),
        tff.aggregators.concat_factory(_secure_sampling('aocs')),
        clipped_count_sum_factory=SECURE_COUNT,
      ),
      zeroed_count_sum_factory=SECURE_COUNT,
    )
  )
  tff.test.assert_not_contains_unsecure_aggregation(
    factory.create(VALUE_TYPE).next
  )


@pytest.mark.parametrize(
  'wrapper',
  [
    lambda f: tff.aggregators.clipping_factory(1.0, f),
    lambda f: tff.aggregators.zeroing_factory(1.0, f),
    lambda f: tff.aggregators.clipping_factory(
      _quantile(), f, clipped_count_sum_factory=SECURE_COUNT
    ),
    tff.learning.add_debug_measurements,
    lambda f: tff.learning.robust_aggregator(debug_measurements_fn=lambda _: f),
  ],
)
def test_sums_of_wrappers_are_in_the_clear_by_default(wrapper):
  next_fn = (
    wrapper(_secure_sampling('full')).create(VALUE_TYPE, WEIGHT_TYPE).next
  )
  tff.test.assert_contains_secure_aggregation(next_fn)
  with pytest.raises(AssertionError):
    tff.test.assert_not_contains_unsecure_aggregation(next_fn)


def test_secure_aggregator_from_its_pieces():
  # The numbers are those of `tff.learning.secure_aggregator`, which takes no
  # aggregator.
  quantile = functools.partial(
    tff.aggregators.PrivateQuantileEstimationProcess.no_noise,
    secure_estimation=True,
  )
  values = tff.aggregators.SecureSumFactory(
    quantile(
      initial_estimate=50.0,
      target_quantile=0.95,
      learning_rate=1.0,
      multiplier=2.0,
    )
  )
  process = tff.aggregators.clipping_factory(
    quantile(initial_estimate=1.0, target_quantile=0.8, learning_rate=0.2),
    _secure_sampling('full', values),
    clipped_count_sum_factory=SECURE_COUNT,
  ).create(VALUE_TYPE, WEIGHT_TYPE)
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  stock = tff.learning.secure_aggregator(zeroing=False).create(
    VALUE_TYPE, WEIGHT_TYPE
  )
  rounds = VALUES[:2]
  with execution.use_secure_test_context():
    found, expected = _aggregate(process, rounds), _aggregate(stock, rounds)
  for output, stock_output in zip(found, expected):
    # Quantised alike. But the stock mean divides by the total weight rounded to
    # float32, this one by the total itself.
    leaves = _leaves(stock_output.result)
    for path, leaf in _leaves(output.result).items():
      np.testing.assert_array_max_ulp(leaf, leaves[path], maxulp=1)
    for name in ('clipping_norm', 'clipped_count'):
      assert output.measurements[name] == stock_output.measurements[name]
