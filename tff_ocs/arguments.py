"""Checks of what the library's functions and factories are given."""

import math
import numbers
from typing import Optional

import numpy as np
import tensorflow_federated as tff


def check_positive(name: str, value: float) -> float:
  """Gives a number back, as a Python float.

  Args:
    name: The argument's name.
    value: What the user gave.

  Returns:
    The number.

  Raises:
    TypeError: If it is not a number.
    ValueError: If it is not finite or not above 0.
  """
  if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
    raise TypeError(
      f'{name} must be a number above 0, found {value!r} of type'
      f' {type(value).__name__}.'
    )
  if not (math.isfinite(value) and value > 0):
    raise ValueError(
      f'{name} must be a finite number above 0, found {value!r}.'
    )
  return float(value)


def check_integer(name: str, value: int, minimum: int = 1) -> int:
  """Checks that an argument is an integer of at least `minimum`.

  Args:
    name: The argument's name.
    value: The value that the caller gave.
    minimum: The smallest allowed value.

  Returns:
    The value as a Python integer.

  Raises:
    TypeError: If the value is not an integer.
    ValueError: If it is below `minimum`.
  """
  if isinstance(value, (bool, np.bool_)) or not isinstance(
    value, numbers.Integral
  ):
    raise TypeError(
      f'{name} must be an integer of at least {minimum}, found {value!r} of'
      f' type {type(value).__name__}.'
    )
  if value < minimum:
    raise ValueError(f'{name} must be at least {minimum}, found {value!r}.')
  return int(value)


def check_seed(seed: Optional[int]) -> Optional[int]:
  """Gives a factory's `seed` back, as a Python integer unless it is `None`.

  Args:
    seed: What the user gave.

  Returns:
    The seed.

  Raises:
    TypeError: If it is not `None` or an integer.
    ValueError: If it does not fit into an int64.
  """
  if seed is None:
    return None
  if isinstance(seed, (bool, np.bool_)) or not isinstance(
    seed, numbers.Integral
  ):
    raise TypeError(
      f'seed must be None or an integer, found {seed!r} of type'
      f' {type(seed).__name__}.'
    )
  limits = np.iinfo(np.int64)
  if not limits.min <= seed <= limits.max:
    raise ValueError(f'seed must fit into 64 bits, found {seed!r}.')
  return int(seed)


def check_sum_factory(
  name: str, factory: Optional[tff.aggregators.UnweightedAggregationFactory]
) -> tff.aggregators.UnweightedAggregationFactory:
  """Gives the factory back, or a `SumFactory` for `None`.

  Args:
    name: The argument's name.
    factory: What the user gave.

  Returns:
    The factory.

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
    value_type: What the user gave.

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
