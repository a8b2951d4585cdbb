"""The figure of a search for the step size: accuracy against step size."""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Optional
from typing import Union

import numpy as np
import pandas as pd
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import panels
from plots import tables
from tff_ocs.records import runs

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
_KEY = 'Filled: chosen; {}×: diverged. Points are set apart sideways.'
_KEY_OF_PAPER = "▼: the paper's choice; "


def plot_tuning(
  table: pd.DataFrame,
  published: Mapping[runs.Method, Optional[float]],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws the accuracy on the holdout set against the clients' step size.

  Bars reach one standard deviation up and down. A task without an accuracy has
  the loss in its place, on a logarithmic axis.

  Args:
    table: The table tuning.csv.
    published: The paper's step size of each method, `None` if there is none, in
      the legend's order.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure, which names the data. The meaning of the
      markers is added.
  """
  looks = panels.line_looks(published)
  step_sizes = np.unique(table['step_size'])
  gap = np.diff(np.log(step_sizes)).min()
  order = (np.arange(len(looks)) - (len(looks) - 1) / 2) / len(looks)
  shifts = np.exp(_SPREAD * gap * order)
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    axis = fig.subplots()
    in_legend = {}
    for (method, look), shift in zip(looks.items(), shifts):
      rows = table[table['method'] == method.label]
      line = _draw(
        axis, method, _measured(table, rows), shift, published[method], look
      )
      in_legend[line] = method
    _format(axis, step_sizes, tables.shows_loss(table))
    panels.add_legend(fig, in_legend)
    key = _KEY.format(_KEY_OF_PAPER if any(published.values()) else '')
    panels.add_caption(fig, f'{caption} {key}')
    panels.save(fig, paths)


def _measured(table, rows) -> pd.DataFrame:
  """The rows with 'mean' and 'std' of what is drawn: per cent, or the loss."""
  if tables.shows_loss(table):
    mean, std = rows['holdout_loss_mean'], np.nan
  else:
    mean = 100 * rows['holdout_accuracy_mean']
    std = 100 * rows['holdout_accuracy_std']
  return rows.assign(mean=mean, std=std)


def _draw(axis, method, rows, shift, published, look):
  """Draws a method; returns the line that stands for it in the legend."""
  x = shift * rows['step_size'].to_numpy()
  y = rows['mean'].to_numpy(float)
  deviation = rows['std'].to_numpy(float)
  color = look['color']
  marker = panels.MARKERS.get(method.sampling, panels.OTHER_MARKER)
  (drawn,) = axis.plot(
    x,
    y,
    label=method.label,
    marker=marker,
    markersize=_MARKER_SIZE,
    markerfacecolor='white',
    **look,
  )
  if not np.isnan(deviation).all():
    axis.errorbar(
      x, y, deviation, fmt='none', ecolor=color, elinewidth=0.7, zorder=1
    )
  best = rows['best'].to_numpy()
  axis.plot(
    x[best],
    y[best],
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
  if published is not None:
    axis.plot(shift * published, 0.97, marker='v', **at_frame)
  return drawn


def _format(axis, step_sizes, is_loss):
  axis.set_xlabel('Client step size')
  if is_loss:
    axis.set_ylabel('Holdout loss')
    axis.set_yscale('log')
    for formatter in (
      axis.yaxis.set_major_formatter,
      axis.yaxis.set_minor_formatter,
    ):
      formatter(ticker.StrMethodFormatter('{x:g}'))
  else:
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
