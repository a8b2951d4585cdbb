import functools

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_ocs

VALUE_TYPE = tff.TensorType(np.float32, [4])
VALUES = list(np.random.default_rng(0).normal(size=[3, 5, 4]).astype('f'))


@functools.cache
def _process(scheme):
  return tff_ocs.as_unweighted_aggregator(
    tff_ocs.ClientSamplingFactory(scheme, seed=1)
  ).create(VALUE_TYPE)


FULL = tff_ocs.FullParticipation()
AOCS = tff_ocs.ApproximateOptimalSampling(2)


def test_full_participation_equals_the_unweighted_mean_bit_for_bit():
  process = _process(FULL)
  stock = tff.aggregators.UnweightedMeanFactory().create(VALUE_TYPE)
  state, stock_state = process.initialize(), stock.initialize()
  for values in VALUES:
    output = process.next(state, list(values))
    expected = stock.next(stock_state, list(values))
    state, stock_state = output.state, expected.state
    np.testing.assert_array_equal(output.result, expected.result)


def test_process_is_the_weighted_one_with_weights_of_one():
  weighted = tff_ocs.ClientSamplingFactory(AOCS, seed=1).create(
    VALUE_TYPE, tff.TensorType(np.float32)
  )
  process = _process(AOCS)
  assert process.initialize() == weighted.initialize()
  state = process.initialize()
  for values in VALUES:
    expected = weighted.next(state, list(values), [1.0] * 5)
    output = process.next(state, list(values))
    np.testing.assert_array_equal(output.result, expected.result)
    assert output.state == expected.state
    assert output.measurements == expected.measurements
    state = output.state
  assert state['coin'] == 3


def test_type_signature():
  factory = tff_ocs.as_unweighted_aggregator(
    tff_ocs.ClientSamplingFactory(AOCS)
  )
  assert isinstance(factory, tff.aggregators.UnweightedAggregationFactory)
  assert not isinstance(factory, tff.aggregators.WeightedAggregationFactory)
  process = _process(AOCS)
  assert isinstance(process, tff.templates.AggregationProcess)
  assert not process.is_weighted
  signature = process.next.type_signature
  assert len(signature.parameter) == 2
  assert signature.parameter[1] == tff.FederatedType(VALUE_TYPE, tff.CLIENTS)
  assert signature.result.result == tff.FederatedType(VALUE_TYPE, tff.SERVER)
  assert signature.result.state == process.initialize.type_signature.result


def test_any_weighted_factory_and_back():
  # As `build_unweighted_fed_avg` does; weights are then ignored.
  process = tff.aggregators.as_weighted_aggregator(
    tff_ocs.as_unweighted_aggregator(tff.aggregators.MeanFactory())
  ).create(VALUE_TYPE, tff.TensorType(np.float32))
  output = process.next(
    process.initialize(), list(VALUES[0]), [1.0, 0.0, 9.0, 2.0, 5.0]
  )
  np.testing.assert_allclose(
    output.result, VALUES[0].mean(axis=0), rtol=1e-5, atol=1e-7
  )


@pytest.mark.parametrize(
  'factory',
  [
    None,
    AOCS,
    tff_ocs.ClientSamplingFactory,
    tff.aggregators.UnweightedMeanFactory(),
  ],
)
def test_not_a_weighted_factory(factory):
  with pytest.raises(
    TypeError, match=r'factory must be a .*WeightedAggregationFactory, such as'
  ):
    tff_ocs.as_unweighted_aggregator(factory)
