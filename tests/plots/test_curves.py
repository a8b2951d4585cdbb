"""Tests of curves against values computed by hand."""

import numpy as np

from plots import curves


def test_mean_and_deviation_on_the_common_grid():
  curve = curves.average(
    [
      (np.array([1.0, 3.0, 5.0]), np.array([0.0, 20.0, 40.0])),
      (np.array([2.0, 4.0, 9.0]), np.array([20.0, 40.0, 90.0])),
    ]
  )
  # Not before 2, where the second curve starts, nor after 5, where the first
  # ends. First curve: 10 x - 10; second: 10 x; standard deviation of two values
  # that are 10 apart: 5 sqrt(2).
  np.testing.assert_allclose(curve.x, [2, 3, 4, 5])
  np.testing.assert_allclose(curve.mean, [15, 25, 35, 45])
  np.testing.assert_allclose(curve.deviation, np.full(4, 5 * np.sqrt(2)))


def test_single_curve_is_returned_as_it_is():
  x, y = np.array([1.0, 2.0, 7.0]), np.array([3.0, 1.0, 2.0])
  curve = curves.average([(x, y)])
  np.testing.assert_array_equal(curve.x, x)
  np.testing.assert_array_equal(curve.mean, y)
  np.testing.assert_array_equal(curve.deviation, np.zeros(3))


def test_last_of_several_values_at_one_place_counts():
  # Rounds in which nobody sent.
  x, y = np.array([0.0, 0.0, 1.0, 1.0]), np.array([5.0, 4.0, 3.0, 2.0])
  curve = curves.average([(x, y)])
  np.testing.assert_array_equal(curve.x, [0, 1])
  np.testing.assert_array_equal(curve.mean, [4, 2])


def test_no_points_where_no_place_is_common():
  curve = curves.average(
    [
      (np.array([1.0, 2.0]), np.array([0.0, 1.0])),
      (np.array([3.0, 4.0]), np.array([0.0, 1.0])),
    ]
  )
  assert curve.x.size == curve.mean.size == curve.deviation.size == 0


def test_best_so_far():
  values = np.array([0.1, 0.4, 0.3, 0.5, 0.2])
  np.testing.assert_array_equal(
    curves.best_so_far(values), [0.1, 0.4, 0.4, 0.5, 0.5]
  )
