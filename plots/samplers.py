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

# The panels: a column of the table, its unit, and the axis.
_COSTS = (
  ('bits_to_target', 1e9, 'Uplink to {target}\n[Gbit]'),
  ('examples_to_target', 1e3, 'Compute to {target}\n[1,000 examples]'),
  ('seconds_to_target', 3600, 'Simulated time to {target}\n[h]'),
)
_ACCURACY = ('accuracy', 0.01, 'Final accuracy\n[%]')
# From Okabe and Ito's palette.
_LOOKS = (
  {'color': '#0072B2', 'marker': 'o'},
  {'color': '#D55E00', 'marker': 's'},
  {'color': '#009E73', 'marker': '^'},
)
_NOT_REACHED = '>'
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
  and the final accuracy. A filled marker is the mean over the seeds, and small
  points are single seeds. A method that a seed has not brought to the accuracy
  has no mean, but an open marker at the right edge.

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
    for axis, (column, unit, label) in zip(all_axes, (*_COSTS, _ACCURACY)):
      axis.set_xlabel(label.format(target=f'{100 * target:g} %'))
      if column != _ACCURACY[0]:
        axis.set_xscale('log')
        axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
      for place, name in enumerate(data):
        of_data = of_runs[of_runs['data'] == name]
        offset = (place - (len(data) - 1) / 2) * _DISTANCE
        _draw(
          axis,
          of_data.groupby('method')[column],
          {method: row + offset for row, method in enumerate(methods)},
          unit,
          _LOOKS[place % len(_LOOKS)],
        )
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
      f'{caption} Filled: mean over the seeds; small: single seeds; open, at'
      f' the right edge: {100 * target:g} % was not reached for good with all'
      ' seeds.',
    )
    panels.save(fig, paths)


def _draw(axis, groups, rows, unit, look):
  """The points of one data set in a panel."""
  for method, values in groups:
    row = rows[method]
    reached = values.dropna() / unit
    axis.plot(
      reached,
      np.full(len(reached), row),
      linestyle='none',
      markersize=_SEED_SIZE,
      markeredgewidth=0,
      alpha=0.6,
      **look,
    )
    if len(reached) == len(values):
      axis.plot([reached.mean()], [row], markersize=_MARKER_SIZE, **look)
    else:
      axis.plot(
        [1],
        [row],
        transform=axis.get_yaxis_transform(),
        clip_on=False,
        markersize=_MARKER_SIZE,
        markerfacecolor='white',
        **{**look, 'marker': _NOT_REACHED},
      )


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
