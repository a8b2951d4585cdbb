"""Tests of the drawn accuracies against m."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from plots import enough_participants


def table_of(n, is_enough=(False, True, True)):
  """The rows of an n: m = 1, 2 and 6, and full participation."""
  return pd.DataFrame(
    {
      'clients_per_round': n,
      'expected_clients': [1, 2, 6, n],
      'minus_full_mean': [-0.2, -0.01, 0.0, 0.0],
      'minus_full_low': [-0.25, -0.02, -0.01, 0.0],
      'minus_full_high': [-0.1, 0.01, 0.02, 0.0],
      'is_enough': [*is_enough, True],
    }
  )


@pytest.fixture
def draw(drawn, tmp_path):
  """A function that draws panels and returns the figure."""

  def draw_panels(*of_n):
    enough_participants.plot_participation(
      pd.concat(of_n), [tmp_path / 'x.png'], caption='Made-up numbers.'
    )
    return drawn[-1]

  return draw_panels


def line_labelled(axis, label):
  (handle,) = [
    handle
    for handle, text in zip(*axis.get_legend_handles_labels())
    if text == label
  ]
  return handle


def test_figure_is_written_in_the_asked_formats(tmp_path):
  paths = [tmp_path / 'figure.png', tmp_path / 'figure.pdf']
  enough_participants.plot_participation(
    pd.concat(map(table_of, (16, 32, 64))), paths, caption='Made up.'
  )
  assert paths[1].read_bytes().startswith(b'%PDF')
  assert image.imread(paths[0]).shape[1] == round(6.6 * 200)


def test_differences_to_full_participation_stand_at_their_m(draw):
  (axis,) = draw(table_of(16)).axes
  points, _, (bars,) = line_labelled(axis, 'AOCS').lines
  np.testing.assert_array_equal(points.get_xdata(), [1, 2, 6])
  np.testing.assert_allclose(points.get_ydata(), [-20, -1, 0])
  ends = [segment[:, 1] for segment in bars.get_segments()]
  np.testing.assert_allclose(ends, [[-25, -10], [-2, 1], [-1, 2]])
  full = line_labelled(axis, 'full participation')
  np.testing.assert_allclose(full.get_ydata(), [0, 0])
  (band,) = axis.patches
  box = band.get_extents().transformed(axis.transData.inverted())
  np.testing.assert_allclose([box.y0, box.y1], [-0.5, 0], atol=1e-9)


def test_smallest_is_filled_and_the_square_root_marked(draw):
  other = table_of(64, is_enough=(False, False, False))
  first, second = draw(table_of(16), other).axes
  (chosen,) = [
    line
    for line in first.lines
    if line.get_marker() == '^' and line.get_markerfacecolor() != 'white'
  ]
  assert (chosen.get_xdata(), chosen.get_ydata()) == ([2], [-1])
  assert not [
    line
    for line in second.lines
    if line.get_marker() == '^'
    and line.get_markerfacecolor() != 'white'
    and len(line.get_xdata())
  ]
  for axis, root in ((first, 4), (second, 8)):
    line = line_labelled(axis, r'm = $\sqrt{n}$')
    np.testing.assert_array_equal(line.get_xdata(), [root, root])
  assert [axis.get_title() for axis in (first, second)] == ['n = 16', 'n = 64']
  assert first.get_ylim() == second.get_ylim()


def test_half_a_point_is_seen_next_to_failures(draw):
  (axis,) = draw(table_of(16)).axes
  low, high = axis.transAxes.inverted().transform(
    axis.transData.transform([(1, -0.5), (1, 0)])
  )[:, 1]
  assert high - low > 0.1
  assert {-10, -1, -0.5, 0} <= set(axis.get_yticks())


def test_caption_says_what_is_filled(draw):
  assert (
    draw(table_of(16))
    .get_supxlabel()
    .startswith('Made-up numbers. Filled: the smallest m')
  )
