"""Checks of arguments. This module does not import TensorFlow."""

import math
import numbers
from typing import Optional

import numpy as np


def check_positive(name: str, value: float) -> float:
  """Checks that an argument is a finite number above 0.

  Args:
    name: The argument's name.
    value: The value that the caller gave.

  Returns:
    The value as a Python float.

  Raises:
    TypeError: If the value is not a real number.
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


def check_fraction(name: str, value: float) -> float:
  """Checks that an argument is a number above 0 and at most 1.

  Args:
    name: The argument's name.
    value: The value that the caller gave.

  Returns:
    The value as a Python float.

  Raises:
    TypeError: If the value is not a real number.
    ValueError: If it is out of range.
  """
  if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
    raise TypeError(
      f'{name} must be a number above 0, at most 1, found {value!r} of type'
      f' {type(value).__name__}.'
    )
  if not 0 < value <= 1:
    raise ValueError(f'{name} must be above 0 and at most 1, found {value!r}.')
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
  """Checks the `seed` of a factory.

  Args:
    seed: The value that the caller gave.

  Returns:
    `None`, or the seed as a Python integer.

  Raises:
    TypeError: If the seed is neither `None` nor an integer.
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
