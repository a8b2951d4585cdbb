"""Deployment forms of whole learning processes, and fused rounds."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tff_ocs import compression
from tff_ocs import execution
from tff_ocs import secure_sums
from tff_ocs import simple_fedavg
from tff_ocs.runtime import forms

NUM_CLIENTS = 6
# A cohort without a client, and one that is not of the size that is expected.
COHORT_SIZES = (NUM_CLIENTS, NUM_CLIENTS, 0, 3, NUM_CLIENTS)
ONE_TRIP = {
  'full': tff_ocs.FullParticipation(),
  'uniform': tff_ocs.UniformSampling(2, cohort_size=NUM_CLIENTS),
  'threshold': tff_ocs.ThresholdSampling(2, first_cohort_size=NUM_CLIENTS),
}
SEVERAL_TRIPS = {
  'uniform': tff_ocs.UniformSampling(2),
  'ocs': tff_ocs.OptimalSampling(2),
  'aocs': tff_ocs.ApproximateOptimalSampling(2, max_iterations=1),
}

MODEL = models.build_linear_model(3)
SGD = tff.learning.optimizers.build_sgdm(0.05)
ALGORITHMS = tff.learning.algorithms


def _keras_model():
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(
      [
        tf.keras.layers.InputLayer(input_shape=[3]),
        tf.keras.layers.Dense(1, kernel_initializer='zeros'),
      ]
    ),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=MODEL.input_spec,
  )


# From a `ClientSamplingFactory`, or what is built around one.
PROCESSES = {
  'fed_avg': lambda aggregator: ALGORITHMS.build_weighted_fed_avg(
    MODEL, SGD, model_aggregator=aggregator
  ),
  'fed_prox': lambda aggregator: ALGORITHMS.build_weighted_fed_prox(
    MODEL, 0.1, SGD, model_aggregator=aggregator
  ),
  'fed_sgd': lambda aggregator: ALGORITHMS.build_fed_sgd(
    _keras_model, model_aggregator=aggregator
  ),
  'own_fed_avg': lambda aggregator: tff_ocs.build_federated_averaging_process(
    MODEL, aggregator, client_learning_rate=0.05, batch_size=2
  ),
  'own_dsgd': lambda aggregator: tff_ocs.build_distributed_sgd_process(
    MODEL, aggregator, learning_rate=0.05
  ),
}


def build(kind, scheme, around=lambda factory: factory, **arguments):
  """A process whose coins repeat."""
  return PROCESSES[kind](
    around(tff_ocs.ClientSamplingFactory(scheme, seed=1, **arguments))
  )


@functools.cache
def plain(kind, scheme):
  return build(kind, ONE_TRIP[scheme])


@functools.cache
def fused(kind, scheme):
  return forms.fuse(plain(kind, scheme))


@functools.cache
def client(kind, round_num, index):
  rng = np.random.default_rng([round_num, index])
  x = rng.normal(size=[1 + index, 3]).astype('f')
  y = x @ np.float32([[1], [2], [-1]]) + np.float32(index)
  if not kind.startswith('own'):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
  return collections.OrderedDict(
    x=x, y=y, seed=simple_fedavg.client_seed(0, round_num, str(index))
  )


def train(next_fn, initialize, kind, sizes=COHORT_SIZES):
  """The output of each round, flat: the state and the metrics."""
  state, outputs = initialize(), []
  for round_num, size in enumerate(sizes):
    if has_cohort_weight(state):
      total_weight = max(1, sum(range(1, size + 1)))
      state = tff_ocs.set_cohort_weight(state, total_weight)
    cohort = [client(kind, round_num, index) for index in range(size)]
    output = next_fn(state, cohort)
    state = output[0]
    outputs.append(leaves(output))
  return outputs


def has_cohort_weight(state):
  try:
    tff_ocs.set_cohort_weight(state, 1)
  except ValueError:
    return False
  return True


def leaves(structure):
  return tff.structure.flatten(
    tff.structure.from_container(structure, recursive=True)
  )


def check_equal(found, expected):
  assert len(found) == len(expected)
  for of_round, expected_of_round in zip(found, expected):
    assert len(of_round) == len(expected_of_round)
    for leaf, expected_leaf in zip(of_round, expected_of_round):
      np.testing.assert_array_equal(leaf, expected_leaf)


def check_fused_is_the_same(process, kind):
  found = forms.fuse(process)
  check_equal(
    train(found.next, found.initialize, kind),
    train(process.next, process.initialize, kind),
  )


@functools.cache
def expected_outputs(kind, scheme):
  process = plain(kind, scheme)
  outputs = train(process.next, process.initialize, kind)
  # Something is learnt, and not by chance the same in each round.
  assert any(np.any(a != b) for a, b in zip(outputs[0], outputs[-1]))
  return outputs


CASES = [
  *((kind, 'threshold') for kind in PROCESSES),
  ('fed_avg', 'full'),
  ('fed_avg', 'uniform'),
  ('own_fed_avg', 'full'),
]
each_case = pytest.mark.parametrize('kind, scheme', CASES)


@each_case
def test_fused_process_is_the_same_bit_for_bit(kind, scheme):
  process, found = plain(kind, scheme), fused(kind, scheme)
  assert isinstance(found, type(process))
  assert found.next.type_signature.is_identical_to(process.next.type_signature)
  check_equal(
    train(found.next, found.initialize, kind), expected_outputs(kind, scheme)
  )


def test_fused_process_gives_the_containers_of_the_plain_one():
  for kind, container in (
    ('fed_avg', tff.learning.templates.LearningProcessOutput),
    ('own_fed_avg', tuple),
  ):
    process = plain(kind, 'threshold')
    state = process.initialize()
    output = fused(kind, 'threshold').next(state, [client(kind, 0, 0)])
    assert type(output) is container
    assert type(output[0]) is type(state)
  weights = fused('fed_avg', 'full').get_model_weights(
    plain('fed_avg', 'full').initialize()
  )
  assert isinstance(weights, tff.learning.models.ModelWeights)


def test_fused_process_keeps_hyperparameters():
  process, found = plain('fed_avg', 'full'), fused('fed_avg', 'full')
  state = found.initialize()
  hparams = found.get_hparams(state)
  assert hparams == process.get_hparams(state)
  check_equal(
    [leaves(found.set_hparams(state, hparams))],
    [leaves(process.set_hparams(state, hparams))],
  )


@pytest.mark.parametrize(
  'build',
  [
    forms.map_reduce_form,
    forms.distribute_aggregate_form,
    forms.mergeable_form,
    forms.fuse,
  ],
)
def test_aggregation_alone_has_no_form(build):
  process = tff_ocs.ClientSamplingFactory(tff_ocs.FullParticipation()).create(
    tff.TensorType(np.float32), tff.TensorType(np.float32)
  )
  with pytest.raises(TypeError, match="take a state and the clients' data"):
    build(process)


def test_map_reduce_form_needs_no_server_before_the_clients():
  # `fuse` runs this form of all processes.
  form = forms.map_reduce_form(plain('fed_avg', 'threshold'))
  assert isinstance(form, tff.backends.mapreduce.MapReduceForm)
  assert not form.securely_aggregates_tensors


@each_case
def test_distribute_aggregate_form(kind, scheme):
  process = build(
    kind, ONE_TRIP[scheme], value_sum_factory=tff.aggregators.SumFactory()
  )
  form = forms.distribute_aggregate_form(process)
  assert isinstance(form, tff.backends.mapreduce.DistributeAggregateForm)
  next_fn = (
    tff.backends.mapreduce.get_computation_for_distribute_aggregate_form(form)
  )
  initialize = tff.backends.mapreduce.get_state_initialization_computation(
    process.initialize
  )
  check_equal(train(next_fn, initialize, kind), expected_outputs(kind, scheme))


@pytest.fixture(scope='module')
def two_workers():
  with execution.use_distributed_context(workers=2) as context:
    yield context


@each_case
def test_mergeable_form(kind, scheme, two_workers):
  process = plain(kind, scheme)
  assert isinstance(
    forms.mergeable_form(process), tff.framework.MergeableCompForm
  )
  expected = expected_outputs(kind, scheme)
  # The context compiles the process to this form and runs it.
  with tff.framework.get_context_stack().install(two_workers):
    check_equal(train(process.next, process.initialize, kind), expected)


@pytest.mark.parametrize(
  'kind, scheme',
  [('fed_avg', 'aocs'), *(('own_fed_avg', s) for s in SEVERAL_TRIPS)],
)
def test_several_round_trips_are_refused(kind, scheme):
  process = build(kind, SEVERAL_TRIPS[scheme])
  for compile_form in (
    forms.map_reduce_form,
    forms.distribute_aggregate_form,
    forms.mergeable_form,
    forms.fuse,
  ):
    with pytest.raises(forms.FormError, match='ThresholdSampling') as info:
      compile_form(process)
    assert '--sampling=threshold' in str(info.value)
    assert 'aggregate' in str(info.value.__cause__)


def test_improvement_factors_are_refused_but_norms_are_not():
  scheme = ONE_TRIP['threshold']
  with pytest.raises(forms.FormError, match='improvement factors'):
    forms.fuse(build('own_fed_avg', scheme, improvement_expected_clients=2))
  process = build('own_fed_avg', scheme, measure_norms=True)
  check_fused_is_the_same(process, 'own_fed_avg')
  forms.mergeable_form(process)


def test_default_sum_has_no_distribute_aggregate_form():
  # A fault of TFF 0.87, which refuses each `federated_aggregate`.
  with pytest.raises(forms.FormError, match='SumFactory'):
    forms.distribute_aggregate_form(plain('fed_avg', 'threshold'))


# Factories around `ClientSamplingFactory`, and its own sums.


def _clipped(factory):
  adaptive = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
    initial_estimate=1.0, target_quantile=0.5, learning_rate=0.2
  )
  return tff.aggregators.zeroing_factory(
    100.0, tff.aggregators.clipping_factory(adaptive, factory)
  )


@functools.cache
def _secure(scheme):
  bounds = secure_sums.propose_bounds(
    max_update_norm=100.0,
    max_weight=NUM_CLIENTS,
    cohort_size=NUM_CLIENTS,
    expected_clients=2,
  )
  return build(
    'fed_avg',
    ONE_TRIP[scheme],
    value_sum_factory=tff.aggregators.SecureSumFactory(bounds.value),
    weight_sum_factory=tff.aggregators.SecureSumFactory(bounds.weight, 0.0),
    scalar_sum_factory=secure_sums.SecureScalarSumFactory(bounds.norm),
  )


def test_zeroing_and_clipping_around_it_have_all_forms():
  process = build('fed_avg', ONE_TRIP['threshold'], _clipped)
  found = forms.fuse(process)
  check_equal(
    *(train(p.next, p.initialize, 'fed_avg') for p in (process, found))
  )
  forms.mergeable_form(process)
  forms.distribute_aggregate_form(
    build(
      'fed_avg',
      ONE_TRIP['threshold'],
      _clipped,
      value_sum_factory=tff.aggregators.SumFactory(),
    )
  )


def test_compression_has_all_forms_but_one():
  process = build(
    'fed_avg',
    ONE_TRIP['threshold'],
    value_sum_factory=compression.NaturalCompressionFactory(seed=3),
  )
  found = forms.fuse(process)
  check_equal(
    *(train(p.next, p.initialize, 'fed_avg') for p in (process, found))
  )
  forms.mergeable_form(process)
  with pytest.raises(forms.FormError):
    forms.distribute_aggregate_form(process)


def test_secure_sums_have_all_forms_but_one():
  process = _secure('threshold')
  form = forms.map_reduce_form(process)
  assert form.securely_aggregates_tensors
  forms.distribute_aggregate_form(process)
  with pytest.raises(forms.FormError, match='secure sums'):
    forms.mergeable_form(process)


def test_secure_sums_can_be_fused_in_a_simulation():
  process = _secure('threshold')
  of_fused = forms.fuse(process)
  found = train(of_fused.next, of_fused.initialize, 'fed_avg')
  with execution.use_secure_test_context():
    expected = train(process.next, process.initialize, 'fed_avg')
  check_equal(found, expected)
