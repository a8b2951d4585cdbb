"""Tests of the drawn estimate."""

import numpy as np
import pandas as pd
from matplotlib import figure

from plots import estimates

TABLE = pd.DataFrame(
  {
    'expected_clients': [1, 2, 3, 4],
    'uniform_variance': [9.0, 3.0, 1.0, 0.0],
    'optimal_variance': [2.0, 0.5, 0.05, 0.0],
    'uplink_of_full': [0.3, 0.55, 0.8, 1.0],
  }
)


def draw(monkeypatch, tmp_path):
  """Draws the table; returns the figure."""
  made = []
  original = figure.Figure

  def record(*args, **kwargs):
    made.append(original(*args, **kwargs))
    return made[-1]

  monkeypatch.setattr(figure, 'Figure', record)
  paths = [tmp_path / 'estimate.png', tmp_path / 'estimate.pdf']
  estimates.plot_estimate(TABLE, paths, tolerance=0.1, caption='costs $5')
  assert all(path.stat().st_size > 1000 for path in paths)
  return made[0]


def test_lines_show_the_variances_by_m_and_by_uplink(monkeypatch, tmp_path):
  by_m, by_bits = draw(monkeypatch, tmp_path).axes
  for axis, uniform_x, optimal_x in (
    (by_m, [1, 2, 3, 4], [1, 2, 3, 4]),
    # Uniform sampling sends updates only: m / n of full participation.
    (by_bits, [25, 50, 75, 100], [30, 55, 80, 100]),
  ):
    uniform, optimal, limit = axis.lines
    np.testing.assert_allclose(uniform.get_xdata(), uniform_x)
    np.testing.assert_allclose(uniform.get_ydata(), [900, 300, 100, 0])
    np.testing.assert_allclose(optimal.get_xdata(), optimal_x)
    np.testing.assert_allclose(optimal.get_ydata(), [200, 50, 5, 0])
    assert set(limit.get_ydata()) == {10}
    assert axis.get_yscale() == 'log'
