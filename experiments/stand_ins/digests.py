"""Compares data that is built again with that of the published runs."""

import hashlib
import sys
from collections.abc import Mapping

import numpy as np


def sha256(array: np.ndarray) -> str:
  """The SHA-256 of an array's entries, in C order and little-endian."""
  entries = np.ascontiguousarray(array.astype(array.dtype.newbyteorder('<')))
  return hashlib.sha256(entries.tobytes()).hexdigest()


def compare(
  arrays: Mapping[str, np.ndarray], published: Mapping[str, str]
) -> None:
  """Prints for each array whether it is that of the published runs.

  Args:
    arrays: The arrays, by name.
    published: The `sha256` of those of the published runs, by name.
  """
  for name, array in arrays.items():
    found = sha256(array)
    is_same = found == published[name]
    which = 'that' if is_same else f'NOT that ({published[name]})'
    print(
      f'{name}: SHA-256 {found}, {which} of the published runs',
      file=sys.stderr,
    )
