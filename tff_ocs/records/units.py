"""Bits in the unit in which they are easiest to read."""

import math

_UNITS = ('bit', 'kbit', 'Mbit', 'Gbit', 'Tbit', 'Pbit')


def bit_unit(bits: float) -> tuple[str, float]:
  """Chooses the unit for a number of bits.

  Args:
    bits: The number of bits, at least 0; of several numbers the largest.

  Returns:
    The name of the largest unit, in powers of 1000 from 'bit' to 'Pbit', of
    which there is at least one; and its size in bits.
  """
  power = 0
  while power < len(_UNITS) - 1 and 1000 ** (power + 1) <= bits < math.inf:
    power += 1
  return _UNITS[power], float(1000**power)


def format_bits(bits: float) -> str:
  """Formats a number of bits with three significant digits and its unit.

  Args:
    bits: The number of bits, at least 0.

  Returns:
    The text, for example '1.23 Gbit'.
  """
  unit, size = bit_unit(bits)
  return f'{bits / size:#.3g} {unit}' if bits else '0 bit'
