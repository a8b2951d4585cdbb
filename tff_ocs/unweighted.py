"""Weighted aggregation factories where TFF wants unweighted ones."""

import numpy as np
import tensorflow_federated as tff

# As in `tff.learning`.
_WEIGHT_TYPE = tff.TensorType(np.float32)


def as_unweighted_aggregator(
  factory: tff.aggregators.WeightedAggregationFactory,
) -> tff.aggregators.UnweightedAggregationFactory:
  """Converts a weighted factory to one in which all clients have weight 1.

  The opposite of `tff.aggregators.as_weighted_aggregator`. With it,
  `ClientSamplingFactory` replaces `tff.aggregators.UnweightedMeanFactory`:

  ```
  tff.learning.algorithms.build_unweighted_fed_avg(
      model_fn=...,
      client_optimizer_fn=...,
      model_aggregator=tff_ocs.as_unweighted_aggregator(
          tff_ocs.ClientSamplingFactory(
              tff_ocs.ApproximateOptimalSampling(expected_clients=3)
          )
      ),
  )
  ```

  State and measurements are those of the process that `factory` creates.

  Args:
    factory: The `tff.aggregators.WeightedAggregationFactory`.

  Returns:
    A `tff.aggregators.UnweightedAggregationFactory`.

  Raises:
    TypeError: If `factory` is not a weighted aggregation factory.
  """
  if not isinstance(factory, tff.aggregators.WeightedAggregationFactory):
    raise TypeError(
      'factory must be a tff.aggregators.WeightedAggregationFactory, such as'
      f' tff_ocs.ClientSamplingFactory(...), found {factory!r}.'
    )
  return _WeightedAsUnweightedFactory(factory)


class _WeightedAsUnweightedFactory(
  tff.aggregators.UnweightedAggregationFactory
):
  """Gives each client the weight 1."""

  def __init__(self, factory):
    self._factory = factory

  def create(self, value_type):
    process = self._factory.create(value_type, _WEIGHT_TYPE)

    @tff.federated_computation(
      process.initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      weight = tff.federated_value(np.float32(1), tff.CLIENTS)
      return process.next(state, value, weight)

    return tff.templates.AggregationProcess(process.initialize, next_fn)
