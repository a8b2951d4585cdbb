"""Curves of single runs, and their mean and deviation over seeds."""

from collections.abc import Sequence

import numpy as np
import pandas as pd


def average(curves: Sequence[pd.Series]) -> pd.DataFrame:
  """The mean and the deviation of curves with points at different places.

  Between its points a curve is taken as straight, as it is drawn. The grid is
  made of the points of all curves, where all of them are known: from the last
  of their starts to the first of their ends. So the mean is exact, and nothing
  is extrapolated. Where a curve has several points at one place, the last
  counts.

  Args:
    curves: The values for each seed, by their places, which do not decrease.

  Returns:
    The columns 'mean' and 'std' by place: the mean over the seeds, and the
    standard deviation of a sample, zero for a single seed. It has no rows if
    there is no place where all curves are known.
  """
  curves = [curve[~curve.index.duplicated(keep='last')] for curve in curves]
  if any(curve.empty for curve in curves):
    return pd.DataFrame({'mean': [], 'std': []}, dtype=float)
  grid = np.unique(np.concatenate([curve.index for curve in curves]))
  start = max(curve.index[0] for curve in curves)
  end = min(curve.index[-1] for curve in curves)
  grid = grid[(start <= grid) & (grid <= end)]
  values = pd.DataFrame(
    [np.interp(grid, curve.index, curve) for curve in curves], columns=grid
  )
  # A curve that is NaN somewhere, after divergence, has a gap there.
  return pd.DataFrame(
    {
      'mean': values.mean(skipna=False),
      'std': values.std(skipna=False) if len(curves) > 1 else 0.0,
    },
    index=grid,
  )
