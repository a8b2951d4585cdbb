"""Tests of curves against values computed by hand."""

import numpy as np
import pandas as pd

from plots import curves


def test_mean_and_deviation_on_the_common_grid():
  curve = curves.average(
    [
      pd.Series([0.0, 20.0, 40.0], [1.0, 3.0, 5.0]),
      pd.Series([20.0, 40.0, 90.0], [2.0, 4.0, 9.0]),
    ]
  )
  # Not before 2, where the second curve starts, nor after 5, where the first
  # ends. First curve: 10 x - 10; second: 10 x; standard deviation of two values
  # that are 10 apart: 5 sqrt(2).
  np.testing.assert_allclose(curve.index, [2, 3, 4, 5])
  np.testing.assert_allclose(curve['mean'], [15, 25, 35, 45])
  np.testing.assert_allclose(curve['std'], np.full(4, 5 * np.sqrt(2)))


def test_single_curve_is_returned_as_it_is():
  x, y = [1.0, 2.0, 7.0], [3.0, 1.0, 2.0]
  curve = curves.average([pd.Series(y, x)])
  np.testing.assert_array_equal(curve.index, x)
  np.testing.assert_array_equal(curve['mean'], y)
  np.testing.assert_array_equal(curve['std'], np.zeros(3))


def test_last_of_several_values_at_one_place_counts():
  # Rounds in which nobody sent.
  curve = curves.average([pd.Series([5.0, 4.0, 3.0, 2.0], [0, 0, 1, 1])])
  np.testing.assert_array_equal(curve.index, [0, 1])
  np.testing.assert_array_equal(curve['mean'], [4, 2])


def test_no_points_where_no_place_is_common():
  curve = curves.average(
    [pd.Series([0.0, 1.0], [1.0, 2.0]), pd.Series([0.0, 1.0], [3.0, 4.0])]
  )
  assert curve.empty


def test_gap_of_one_seed_is_a_gap_of_the_mean():
  """One value would not be the mean of both seeds."""
  curve = curves.average(
    [pd.Series([1.0, np.nan, 3.0, 4.0]), pd.Series([1.0, 2.0, 3.0, 6.0])]
  )
  np.testing.assert_array_equal(curve['mean'], [1, np.nan, 3, 5])
  np.testing.assert_allclose(curve['std'], [0, np.nan, 0, 2**0.5])
