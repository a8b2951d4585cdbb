"""Tests of the drawn accuracies against m."""

import numpy as np
import pytest
from matplotlib import image

from plots import enough_participants

PANEL = enough_participants.Panel(
  clients_per_round=16,
  full_accuracy=0.9,
  full_deviation=0.02,
  expected_clients=np.array([1, 2, 6]),
  accuracy=np.array([0.7, 0.89, 0.9]),
  deviation=np.array([0.05, 0.02, 0.01]),
  smallest=2,
)


@pytest.fixture
def draw(drawn, tmp_path):
  """A function that draws panels and returns the figure."""

  def draw_panels(shown):
    enough_participants.plot_participation(
      shown, [tmp_path / 'x.png'], caption='Made-up numbers.'
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
  enough_participants.plot_participation([PANEL] * 3, paths, caption='Made up.')
  assert paths[1].read_bytes().startswith(b'%PDF')
  assert image.imread(paths[0]).shape[1] == round(6.6 * 300)


def test_accuracies_stand_at_their_m_beside_full_participation(draw):
  (axis,) = draw([PANEL]).axes
  points, _, (bars,) = line_labelled(axis, 'AOCS').lines
  np.testing.assert_array_equal(points.get_xdata(), [1, 2, 6])
  np.testing.assert_allclose(points.get_ydata(), [70, 89, 90])
  ends = [segment[:, 1] for segment in bars.get_segments()]
  np.testing.assert_allclose(ends, [[65, 75], [87, 91], [89, 91]])
  full = line_labelled(axis, 'full participation')
  np.testing.assert_allclose(full.get_ydata(), [90, 90])
  (band,) = axis.patches
  box = band.get_extents().transformed(axis.transData.inverted())
  np.testing.assert_allclose([box.y0, box.y1], [88, 92])


def test_smallest_is_filled_and_the_square_root_marked(draw):
  other = PANEL._replace(clients_per_round=64, smallest=None)
  first, second = draw([PANEL, other]).axes
  (chosen,) = [
    line
    for line in first.lines
    if line.get_marker() == '^' and line.get_markerfacecolor() != 'white'
  ]
  assert (chosen.get_xdata(), chosen.get_ydata()) == ([2], [89])
  assert not [
    line
    for line in second.lines
    if line.get_marker() == '^' and line.get_markerfacecolor() != 'white'
  ]
  for axis, root in ((first, 4), (second, 8)):
    line = line_labelled(axis, r'm = $\sqrt{n}$')
    np.testing.assert_array_equal(line.get_xdata(), [root, root])
  assert [axis.get_title() for axis in (first, second)] == ['n = 16', 'n = 64']
  assert first.get_ylim() == second.get_ylim()


def test_caption_says_what_is_filled(draw):
  assert (
    draw([PANEL])
    .get_supxlabel()
    .startswith('Made-up numbers. Filled: the smallest m')
  )
