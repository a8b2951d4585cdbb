"""Checks of the factories and types that aggregation factories are given."""

from typing import Optional

import numpy as np
import tensorflow_federated as tff


def check_sum_factory(
  name: str, factory: Optional[tff.aggregators.UnweightedAggregationFactory]
) -> tff.aggregators.UnweightedAggregationFactory:
  """Checks an argument that is a factory of sums.

  Args:
    name: The argument's name.
    factory: The value that the caller gave.

  Returns:
    The factory, or a `tff.aggregators.SumFactory` for `None`.

  Raises:
    TypeError: If it is not an unweighted aggregation factory.
  """
  if factory is None:
    return tff.aggregators.SumFactory()
  if not isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
    raise TypeError(
      f'{name} must be a tff.aggregators.UnweightedAggregationFactory, found'
      f' {factory!r}.'
    )
  return factory


def check_value_type(value_type: tff.Type) -> None:
  """Checks the type of the clients' values.

  Args:
    value_type: The type that the caller gave.

  Raises:
    TypeError: If it is not a floating point tensor or a structure of them.
    ValueError: If a tensor's shape is not fully defined.
  """
  tensors = tff.structure.flatten(value_type)
  if not tensors or not all(
    isinstance(t, tff.TensorType) and np.issubdtype(t.dtype, np.floating)
    for t in tensors
  ):
    raise TypeError(
      'value_type must be a floating point tensor or a structure of them,'
      f' found {value_type}.'
    )
  for tensor in tensors:
    if not tff.types.is_shape_fully_defined(tensor.shape):
      raise ValueError(
        f'Shapes must be fully defined, found the tensor type {tensor}.'
      )


def check_weight_type(weight_type: tff.Type) -> None:
  """Checks the type of the clients' weights.

  Args:
    weight_type: The type that the caller gave.

  Raises:
    TypeError: If it is not a scalar of a real numeric type.
  """
  if not (
    isinstance(weight_type, tff.TensorType)
    and weight_type.shape is not None
    and tuple(weight_type.shape) == ()
    and np.issubdtype(weight_type.dtype, np.number)
    and not np.issubdtype(weight_type.dtype, np.complexfloating)
  ):
    raise TypeError(
      f'weight_type must be a real numeric scalar, found {weight_type}.'
    )
