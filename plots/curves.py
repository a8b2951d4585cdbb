"""Curves of single runs, and their mean and deviation over seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Curve(NamedTuple):
  """A curve over several seeds, float64 arrays of shape [num_points].

  Attributes:
    x: Where.
    mean: The mean over the seeds.
    deviation: The standard deviation over the seeds, that of a sample (divided
      by the number of seeds - 1); zeros for a single seed.
  """

  x: np.ndarray
  mean: np.ndarray
  deviation: np.ndarray


def average(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> Curve:
  """The mean and the deviation of curves with points at different places.

  Between its points a curve is taken as straight, as it is drawn. The grid is
  made of the points of all curves, where all of them are known: from the last
  of their starts to the first of their ends. So the mean is exact, nothing is
  extrapolated, and a single curve is returned as it is. Where a curve jumps,
  with several points at one place, the last counts.

  Args:
    curves: For each seed the places, not decreasing, and the values.

  Returns:
    The `Curve`; without points if there is no place where all are known.
  """
  curves = [_last_of_each_place(np.asarray(x), y) for x, y in curves]
  grid = np.unique(np.concatenate([x for x, _ in curves]))
  start = max(x[0] for x, _ in curves)
  end = min(x[-1] for x, _ in curves)
  grid = grid[(start <= grid) & (grid <= end)]
  values = np.stack([np.interp(grid, x, y) for x, y in curves])
  if len(curves) == 1:
    return Curve(grid, values[0], np.zeros_like(grid))
  return Curve(grid, values.mean(axis=0), values.std(axis=0, ddof=1))


def best_so_far(values: np.ndarray) -> np.ndarray:
  """The largest of all values up to each."""
  return np.maximum.accumulate(values)


def _last_of_each_place(x, y):
  is_last = np.append(x[1:] > x[:-1], True)
  return x[is_last], np.asarray(y)[is_last]
