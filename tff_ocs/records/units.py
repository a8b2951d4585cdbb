"""Units that numbers of bits and step sizes are shown in."""

import math
from typing import NamedTuple

_PREFIXES = {'G': 10**9, 'M': 10**6, 'k': 10**3}


class BitsUnit(NamedTuple):
  """A unit of bits.

  Attributes:
    name: The name, for example 'Gbit'.
    size: How many bits it has.
  """

  name: str
  size: int

  def format(self, num_bits: float) -> str:
    """A number of bits in this unit: '23.30'; '0.003' where 0.00 would be."""
    value = num_bits / self.size
    return f'{value:.1g}' if 0 < value < 0.005 else f'{value:.2f}'


def choose_bits_unit(largest: float) -> BitsUnit:
  """The largest of Gbit, Mbit, kbit and bit that a number has one of.

  Args:
    largest: The largest number of bits that is shown with the unit.

  Returns:
    The `BitsUnit`.
  """
  for prefix, size in _PREFIXES.items():
    if largest >= size:
      return BitsUnit(f'{prefix}bit', size)
  return BitsUnit('bit', 1)


def format_step_size(step_size: float) -> str:
  """A step size as a power of two, such as '2^-3', where it is one."""
  exponent = math.log2(step_size) if step_size > 0 else math.nan
  return f'2^{exponent:.0f}' if exponent % 1 == 0 else f'{step_size:.4g}'
