"""The figure of `experiments.compare`: what it takes to reach an accuracy."""

import os
from collections.abc import Sequence
from typing import Union

import numpy as np
import pandas as pd
from matplotlib import figure
from matplotlib import lines as matplotlib_lines
from matplotlib import style
from matplotlib import ticker

from plots import captions
from plots import panels

# The panels: the columns of the table, their unit, and the axis.
_COSTS = (
  ('bits', 1e9, 'Uplink to a lasting\n{target} [Gbit]'),
  ('examples', 1e3, 'Compute to a lasting\n{target} [1,000 examples]'),
  ('seconds', 3600, 'Simulated time to a\nlasting {target} [h]'),
)
# From Okabe and Ito's palette.
_LOOKS = (
  {'color': '#0072B2', 'marker': 'o'},
  {'color': '#D55E00', 'marker': 's'},
  {'color': '#009E73', 'marker': '^'},
)
_NOT_REACHED = '>'
_FIRST_HIT = '|'
_MARKER_SIZE = 4.0
_SEED_SIZE = 2.0
# In rows: from one data set to the next.
_DISTANCE = 0.24
_WIDTH = 7.0
_HEIGHT_OF_ROW = 0.2
_HEIGHT_OF_REST = 1.0


def plot_costs(
  of_runs: pd.DataFrame,
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
  target: float,
) -> None:
  """Draws what each method needs to reach an accuracy for good, in a row each.

  The panels are of the uplink bits, the clients' compute, the simulated time
  and the final error, 1 minus the accuracy: in each of them left is better.
  All axes are logarithmic; an error of zero is not drawn. A filled marker is
  the median over the seeds, and small points are single seeds. A line begins
  with a bar at the median of the first hits. A seed that does not reach the
  accuracy for good is a small open marker at the right edge, and so is the
  median, large, if it is that of such a seed.

  Args:
    of_runs: The table compare_runs.csv of `experiments.compare`.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure.
    target: The accuracy, in [0, 1].
  """
  methods = list(of_runs['method'].unique())
  data = list(of_runs['data'].unique())
  with style.context(panels.STYLE):
    fig = figure.Figure(
      figsize=(_WIDTH, _HEIGHT_OF_REST + _HEIGHT_OF_ROW * len(methods)),
      layout='constrained',
    )
    all_axes = fig.subplots(1, len(_COSTS) + 1, sharey=True)
    *axes_of_costs, axis_of_error = all_axes
    for axis, (_, _, label) in zip(axes_of_costs, _COSTS):
      axis.set_xlabel(label.format(target=f'{100 * target:g} %'))
    axis_of_error.set_xlabel('Final error\n(100 - accuracy) [%]')
    for axis in all_axes:
      axis.set_xscale('log')
      axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
      axis.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
      axis.xaxis.set_minor_formatter(ticker.NullFormatter())
    for place, name in enumerate(data):
      offset = (place - (len(data) - 1) / 2) * _DISTANCE
      look = _LOOKS[place % len(_LOOKS)]
      for row, method in enumerate(methods):
        found = of_runs[
          (of_runs['data'] == name) & (of_runs['method'] == method)
        ]
        if found.empty:
          continue
        for axis, (cost, unit, _) in zip(axes_of_costs, _COSTS):
          lasting = found[f'{cost}_to_target'] / unit
          _draw_first_hit(
            axis,
            found[f'{cost}_at_first_hit'] / unit,
            lasting,
            row + offset,
            look,
          )
          _draw(axis, lasting, row + offset, look)
        errors = 100 * (1 - found['accuracy'])
        _draw(axis_of_error, errors, row + offset, look)
    for axis in all_axes:
      axis.grid(axis='y', visible=False)
      for row in range(1, len(methods)):
        axis.axhline(row - 0.5, color='#E0E0E0', linewidth=0.5, zorder=0)
    all_axes[0].set_ylim(len(methods) - 0.5, -0.5)
    all_axes[0].set_yticks(
      range(len(methods)), [captions.escape(name) for name in methods]
    )
    _add_legend(fig, data)
    panels.add_caption(
      fig,
      f'{caption} Large: median over the seeds; small: single seeds. Bar:'
      f' median of the first hits of {100 * target:g} %. Open, at the right'
      ' edge: not reached for good, by a seed or by the median.',
    )
    panels.save(fig, paths)


def _draw_first_hit(axis, first_hits, lasting, row, look):
  """The line from the first hit of the accuracy to where it lasts."""
  ends = np.array([_median(first_hits), _median(lasting)])
  ends = ends[ends < np.inf]
  if not ends.size:
    return
  axis.plot(
    ends,
    [row] * len(ends),
    linewidth=0.8,
    markersize=_MARKER_SIZE,
    markevery=[0],
    **{**look, 'marker': _FIRST_HIT},
  )


def _draw(axis, values, row, look):
  """The points of a method on a data set in a panel."""
  reached = values.dropna()
  axis.plot(
    reached,
    np.full(len(reached), row),
    linestyle='none',
    markersize=_SEED_SIZE,
    markeredgewidth=0,
    alpha=0.6,
    **look,
  )
  median = _median(values)
  if median < np.inf:
    axis.plot([median], [row], markersize=_MARKER_SIZE, **look)
  if len(reached) < len(values):
    axis.plot(
      [1],
      [row],
      transform=axis.get_yaxis_transform(),
      clip_on=False,
      markersize=_SEED_SIZE if median < np.inf else _MARKER_SIZE,
      markerfacecolor='white',
      **{**look, 'marker': _NOT_REACHED},
    )


def _median(values):
  """The median; an accuracy that is not reached, NaN, counts as infinite."""
  return np.median(values.fillna(np.inf))


def _add_legend(fig, data):
  fig.legend(
    handles=[
      matplotlib_lines.Line2D(
        [],
        [],
        linestyle='none',
        markersize=_MARKER_SIZE,
        label=captions.escape(name),
        **_LOOKS[place % len(_LOOKS)],
      )
      for place, name in enumerate(data)
    ],
    loc='outside upper center',
    ncols=len(data),
  )
