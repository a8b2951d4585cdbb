"""Checks of arguments. This module does not import TensorFlow."""

import decimal
import math
import numbers
from typing import Any
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
  try:
    number = float(value)
  except OverflowError:  # An integer or a fraction beyond float64.
    number = math.inf
  if not (math.isfinite(number) and number > 0):
    raise ValueError(
      f'{name} must be a finite number above 0, found {value!r}.'
    )
  return number


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


def check_bool(name: str, value: bool) -> bool:
  """Checks that an argument is `True` or `False`.

  Args:
    name: The argument's name.
    value: The value that the caller gave.

  Returns:
    The value as a Python bool.

  Raises:
    TypeError: If the value is anything else, even a number.
  """
  if not isinstance(value, (bool, np.bool_)):
    raise TypeError(
      f'{name} must be True or False, found {value!r} of type'
      f' {type(value).__name__}.'
    )
  return bool(value)


def check_real_array(name: str, values: Any) -> np.ndarray:
  """Checks that an argument is a number or an array of real numbers.

  Args:
    name: The argument's name.
    values: What the caller gave: a number, an array, or nested sequences.

  Returns:
    The values as a float64 array of the same shape.

  Raises:
    TypeError: If a value is not a real number.
    ValueError: If nested sequences have different lengths.
  """
  try:
    array = np.asarray(values)
  except ValueError:
    raise ValueError(
      f'{name} must be an array, found sequences of different lengths in'
      f' {values!r}.'
    ) from None
  try:
    # NumPy would convert text that looks like a number, None to NaN, and drop
    # the imaginary part of complex numbers.
    is_allowed = array.dtype.kind not in 'cSUmM' and not array.dtype.names
    if array.dtype.kind == 'O':
      is_allowed = all(_is_real(value) for value in array.flat)
    if is_allowed:
      return array.astype(np.float64)
  except (TypeError, ValueError, OverflowError):
    pass
  raise TypeError(
    f'{name} must be real numbers of float64, found {values!r} of the type'
    f' {array.dtype}.'
  )


def _is_real(value: Any) -> bool:
  # A Decimal is no numbers.Real, since it does not mix with floats.
  return isinstance(value, (numbers.Real, decimal.Decimal, np.bool_))


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
