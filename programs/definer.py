"""Defines the flags of a program."""

import functools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Optional

from absl import flags

from programs import paths

# Flags count as those of the module that calls a `Definer`.
flags.disclaim_key_flags()


class _FiniteParser(flags.FloatParser):
  """Parses a finite number: NaN would be within any bounds."""

  def convert(self, argument):
    number = super().convert(argument)
    if not math.isfinite(number):
      raise ValueError('must be a finite number')
    return number


def _define_float(
  name: str,
  default: Optional[float],
  help: str,  # noqa: A002, the name that absl uses.
  lower_bound: Optional[float] = None,
  upper_bound: Optional[float] = None,
  flag_values: flags.FlagValues = flags.FLAGS,
) -> flags.FlagHolder:
  return flags.DEFINE(
    _FiniteParser(lower_bound, upper_bound),
    name,
    default,
    help,
    flag_values=flag_values,
    serializer=flags.ArgumentSerializer(),
  )


class Definer:
  """Defines flags in one set of flags.

  The methods take the arguments of `flags.DEFINE_...`, `paths.define_path` and
  `flags.register_validator`. The numbers of `float` must be finite.
  """

  def __init__(self, values: flags.FlagValues):
    def bound(define):
      return functools.partial(define, flag_values=values)

    self.bool = bound(flags.DEFINE_bool)
    self.enum = bound(flags.DEFINE_enum)
    self.float = bound(_define_float)
    self.integer = bound(flags.DEFINE_integer)
    self.list = bound(flags.DEFINE_list)
    self.string = bound(flags.DEFINE_string)
    self.path = bound(paths.define_path)
    self.validate = bound(flags.register_validator)


def are_different(
  texts: Sequence[str],
  parse: Callable[[str], float],
  is_allowed: Callable[[float], bool],
) -> bool:
  """Whether a list has one or more different numbers, all of them allowed."""
  try:
    numbers = [parse(text) for text in texts]
  except ValueError:
    return False
  return len(set(numbers)) == len(numbers) > 0 and all(map(is_allowed, numbers))


def are_positive(texts: Sequence[str]) -> bool:
  """Whether a list has one or more different finite numbers above 0."""
  return are_different(texts, float, lambda number: 0 < number < math.inf)
