"""The figure of a search for the step size: accuracy against step size."""

import os
from collections.abc import Sequence
from typing import NamedTuple
from typing import Union

import numpy as np
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import panels
from tff_ocs.records import runs

# Markers, colours and dashes tell the samplings apart, in grey too.
_MARKERS = {'full': 'o', 'uniform': 's', 'ocs': 'D', 'aocs': '^'}
_OTHER_MARKER = 'P'
_MARKER_SIZE = 3.4
_CHOSEN_SIZE = 5
# Between the first and the last method's point of a step size, as a part of the
# distance between two step sizes: the markers of equal methods are all seen.
_SPREAD = 0.45
# A figure over one column, in inches, with one row in the legend.
_WIDTH = 3.4
_HEIGHT = 2.5
# So many powers of two can have a label without touching.
_MAX_LABELS = 11
_KEY = (
  "Filled: chosen; ▼: the paper's choice; ×: diverged. Points are set apart"
  ' sideways.'
)


class Line(NamedTuple):
  """The accuracies of one method.

  Attributes:
    method: Who sent its update.
    step_sizes: The step sizes, increasing, float64 of shape [num].
    accuracy: The mean accuracy of each over the seeds, in [0, 1]; NaN where
      training diverged.
    deviation: The standard deviation over the seeds; zeros for a single seed.
    chosen: The index of the chosen step size.
    published: The paper's step size.
  """

  method: runs.Method
  step_sizes: np.ndarray
  accuracy: np.ndarray
  deviation: np.ndarray
  chosen: int
  published: float


def plot_tuning(
  lines: Sequence[Line],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws the accuracy on the holdout set against the clients' step size.

  Bars reach one standard deviation up and down.

  Args:
    lines: The methods, in the legend's order.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure, which names the data. The meaning of the
      markers is added.

  Raises:
    OSError: If the figure cannot be written.
  """
  looks = panels.line_looks(line.method for line in lines)
  step_sizes = np.unique(np.concatenate([line.step_sizes for line in lines]))
  gap = np.diff(np.log(step_sizes)).min()
  order = (np.arange(len(lines)) - (len(lines) - 1) / 2) / len(lines)
  shifts = np.exp(_SPREAD * gap * order)
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    axis = fig.subplots()
    in_legend = {
      _draw(axis, line, shift, looks[line.method]): line.method
      for line, shift in zip(lines, shifts)
    }
    _format(axis, step_sizes)
    panels.add_legend(fig, in_legend)
    panels.add_caption(fig, f'{caption} {_KEY}')
    for path in paths:
      panels.save(fig, path)


def _draw(axis, line, shift, look):
  """Draws a method; returns what stands for it in the legend."""
  x, y = shift * line.step_sizes, 100 * line.accuracy
  color, marker = (
    look['color'],
    _MARKERS.get(line.method.sampling, _OTHER_MARKER),
  )
  (drawn,) = axis.plot(
    x,
    y,
    label=line.method.label,
    marker=marker,
    markersize=_MARKER_SIZE,
    markerfacecolor='white',
    **look,
  )
  if line.deviation.any():
    axis.errorbar(
      x,
      y,
      100 * line.deviation,
      fmt='none',
      ecolor=color,
      elinewidth=0.7,
      zorder=1,
    )
  axis.plot(
    x[line.chosen],
    y[line.chosen],
    marker=marker,
    markersize=_CHOSEN_SIZE,
    color=color,
    zorder=3,
  )
  # At the height of the frame, whatever the accuracies are.
  at_frame = {
    'transform': axis.get_xaxis_transform(),
    'color': color,
    'linestyle': 'none',
    'markersize': _MARKER_SIZE,
  }
  diverged = x[np.isnan(y)]
  axis.plot(diverged, np.full_like(diverged, 0.03), marker='x', **at_frame)
  axis.plot(shift * line.published, 0.97, marker='v', **at_frame)
  return drawn


def _format(axis, step_sizes):
  axis.set_xlabel('Client step size')
  axis.set_ylabel('Holdout accuracy [%]')
  # With room at the top for the triangles.
  axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
  if np.all(np.log2(step_sizes) % 1 == 0):
    axis.set_xscale('log', base=2)
    axis.xaxis.set_major_locator(
      ticker.LogLocator(base=2, numticks=_MAX_LABELS)
    )
  else:
    axis.set_xscale('log')
