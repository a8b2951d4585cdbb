"""Tests of the drawn step sizes."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from plots import tuning
from tff_ocs.records import runs

_NAN = float('nan')


class Line(NamedTuple):
  """The accuracies of one method with increasing step sizes."""

  method: runs.Method
  step_sizes: tuple = (0.125, 0.25, 0.5)
  accuracy: tuple = (0.6, 0.9, _NAN)
  deviation: tuple = (0.1, 0.05, _NAN)
  loss: tuple = (0.8, 0.3, _NAN)
  chosen: int = 1
  published: float = 0.125

  def table(self):
    """The rows of tuning.csv."""
    return pd.DataFrame(
      {
        'method': self.method.label,
        'step_size': self.step_sizes,
        'holdout_accuracy_mean': self.accuracy,
        'holdout_accuracy_std': self.deviation,
        'holdout_loss_mean': np.resize(self.loss, len(self.step_sizes)),
        'best': np.arange(len(self.step_sizes)) == self.chosen,
      }
    )


FULL = Line(runs.Method('full'))
AOCS = Line(
  runs.Method('aocs', 3.0), accuracy=(0.5, 0.7, 0.6), deviation=(_NAN,) * 3
)


def plot(lines, paths, caption=''):
  tuning.plot_tuning(
    pd.concat([line.table() for line in lines]),
    {line.method: line.published for line in lines},
    paths,
    caption=caption,
  )


@pytest.fixture
def draw(drawn, tmp_path):
  """A function that draws lines and returns the figure."""

  def draw_lines(lines, caption=''):
    plot(lines, [tmp_path / 'x.png'], caption)
    return drawn[-1]

  return draw_lines


def lines_with(axis, marker, size=None):
  return [
    line
    for line in axis.lines
    if line.get_marker() == marker and size in (None, line.get_markersize())
  ]


def test_figure_is_written_in_the_asked_formats(tmp_path):
  paths = [tmp_path / 'figure.png', tmp_path / 'figure.pdf']
  plot([FULL, AOCS], paths)
  assert paths[1].read_bytes().startswith(b'%PDF')
  pixels = image.imread(paths[0])
  assert pixels.shape[1] == round(3.4 * 200)
  rgb = [int('0072B2'[i : i + 2], 16) / 255 for i in (0, 2, 4)]
  assert np.any(np.all(np.abs(pixels[..., :3] - rgb) < 0.02, axis=-1))


def test_points_stand_at_their_step_sizes_but_for_a_shift(draw):
  (axis,) = draw([FULL, AOCS]).axes
  full, aocs = (lines_with(axis, marker)[0] for marker in 'o^')
  np.testing.assert_allclose(full.get_ydata(), [60, 90, _NAN])
  np.testing.assert_allclose(aocs.get_ydata(), [50, 70, 60])
  shifts = full.get_xdata() / FULL.step_sizes
  # Both by the same factor, towards the other side, by less than a quarter of
  # the distance.
  np.testing.assert_allclose(shifts, shifts[0])
  np.testing.assert_allclose(aocs.get_xdata() * shifts, AOCS.step_sizes)
  for line in lines_with(axis, 'v')[:1] + lines_with(axis, 'x')[:1]:
    assert line.get_xdata()[0] in full.get_xdata()
  assert 2**-0.25 < shifts[0] < 1


def test_single_method_is_not_shifted(draw):
  line = lines_with(draw([AOCS]).axes[0], '^')[0]
  np.testing.assert_array_equal(line.get_xdata(), AOCS.step_sizes)


def test_chosen_published_and_diverged_are_marked(draw):
  (axis,) = draw([FULL]).axes
  _, chosen = lines_with(axis, 'o')
  assert (*chosen.get_xdata(), *chosen.get_ydata()) == (0.25, 90)
  assert chosen.get_markerfacecolor() != 'white'
  (published,) = lines_with(axis, 'v')
  np.testing.assert_array_equal(published.get_xdata(), [0.125])
  (diverged,) = lines_with(axis, 'x')
  np.testing.assert_array_equal(diverged.get_xdata(), [0.5])
  # Inside of the frame, which has room for the best.
  for line in (published, diverged):
    assert 0 < line.get_ydata()[0] < 1
  assert axis.get_ylim()[0] == 0
  assert axis.get_ylim()[1] > 95


def test_deviation_is_drawn_where_there_is_one(draw):
  (bars,) = draw([FULL]).axes[0].collections
  ends = [segment[:, 1] for segment in bars.get_segments()[:2]]
  np.testing.assert_allclose(ends, [[50, 70], [85, 95]])
  assert not draw([AOCS]).axes[0].collections


def tick_labels(fig):
  (axis,) = fig.axes
  fig.canvas.draw()
  low, high = axis.get_xlim()
  return [
    label.get_text()
    for label in axis.get_xticklabels()
    if low <= label.get_position()[0] <= high
  ]


def test_powers_of_two_and_other_step_sizes_have_labels(draw):
  labels = tick_labels(draw([AOCS]))
  assert labels == [rf'$\mathdefault{{2^{{{k}}}}}$' for k in (-3, -2, -1)]
  of_ten = AOCS._replace(step_sizes=(1e-4, 3e-4, 1e-3), published=1e-3)
  labels = tick_labels(draw([of_ten]))
  assert labels == [rf'$\mathdefault{{10^{{{k}}}}}$' for k in (-4, -3)]
  # Of many powers of two not all have.
  steps = 2.0 ** np.arange(-15, 0)
  many = AOCS._replace(step_sizes=steps, accuracy=steps, deviation=(_NAN,) * 15)
  assert 5 <= len(tick_labels(draw([many]))) <= 11


def test_all_diverged_is_still_drawn(tmp_path):
  path = tmp_path / 'figure.png'
  plot([FULL._replace(accuracy=(_NAN,) * 3, deviation=(_NAN,) * 3)], [path])
  assert path.exists()


def test_legend_and_caption(draw):
  fig = draw([FULL, AOCS], caption='Made-up numbers.')
  (legend,) = fig.legends
  texts = [text.get_text() for text in legend.get_texts()]
  assert texts == ['full participation', 'AOCS, m=3']
  assert fig.get_supxlabel().startswith('Made-up numbers. Filled: chosen')


def test_loss_is_drawn_where_there_is_no_accuracy(draw):
  line = FULL._replace(
    accuracy=(_NAN,) * 3, deviation=(_NAN,) * 3, published=None
  )
  fig = draw([line])
  (axis,) = fig.axes
  assert axis.get_ylabel() == 'Holdout loss' and axis.get_yscale() == 'log'
  drawn, chosen = lines_with(axis, 'o')
  np.testing.assert_allclose(drawn.get_ydata(), [0.8, 0.3, _NAN])
  assert list(chosen.get_ydata()) == [0.3]
  assert not lines_with(axis, 'v')
  assert "the paper's choice" not in fig._supxlabel.get_text()
