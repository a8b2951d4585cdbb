"""The figure of how many clients are enough: the loss of accuracy against m."""

import math
import os
from collections.abc import Sequence
from typing import Union

import pandas as pd
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import measures
from plots import panels
from tff_ocs.records import runs

_FULL = runs.Method('full')
_AOCS = runs.Method('aocs')
_MARKER_SIZE = 3.4
_CHOSEN_SIZE = 5
# In inches: one panel fills a column, three fill both.
_HEIGHT = 2.1
_WIDTH_OF_PANEL = 2.2
_LEAST_WIDTH = 3.4
# Up to a point the axis is linear, and beyond it logarithmic: with m = 1
# training may fail, and half a point still decides.
_LINEAR_TO = 1
_TICKS = (-100, -30, -10, -3, -1, -0.5, 0, 0.5, 1, 3, 10, 30, 100)
_KEY = (
  'Filled: the smallest m whose interval is within the grey band or above.'
  ' With n the number of clients with many examples in a cohort grows, too.'
  ' The vertical axis is logarithmic beyond 1 point.'
)


def plot_participation(
  table: pd.DataFrame, paths: Sequence[Union[str, os.PathLike]], *, caption: str
) -> None:
  """Draws the difference of AOCS to full participation against m.

  Bars are intervals of the difference, paired by seed, see `measures`. A band
  reaches down as far as counts as the same accuracy. A vertical line stands at
  the square root of n, the order that the paper conjectures.

  Args:
    table: The table participation.csv, with a panel for each n. Its last row
      for an n is full participation.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure, which names the data.
  """
  by_n = dict(list(table.groupby('clients_per_round', sort=False)))
  width = max(_LEAST_WIDTH, _WIDTH_OF_PANEL * len(by_n))
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(width, _HEIGHT), layout='constrained')
    axes = fig.subplots(1, len(by_n), sharey=True, squeeze=False)[0]
    # Before anything is drawn, for margins on this scale.
    axes[0].set_yscale('symlog', linthresh=_LINEAR_TO)
    for axis, (n, of_n) in zip(axes, by_n.items()):
      _draw(axis, n, of_n)
    axes[0].yaxis.set_major_locator(ticker.FixedLocator(_TICKS))
    axes[0].yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
    axes[0].yaxis.set_minor_locator(ticker.NullLocator())
    axes[0].set_ylabel('Accuracy − full [points]')
    fig.legend(
      *axes[0].get_legend_handles_labels(), loc='outside upper center', ncols=3
    )
    panels.add_caption(fig, f'{caption} {_KEY}')
    panels.save(fig, paths)


def _draw(axis, n, rows):
  looks = panels.line_looks([_FULL, _AOCS])
  axis.axhline(0, label='full participation', **looks[_FULL])
  axis.axhspan(
    -100 * measures.SAME_ACCURACY,
    0,
    color=looks[_FULL]['color'],
    alpha=0.15,
    linewidth=0,
  )
  sampled = rows.iloc[:-1]
  m = sampled['expected_clients'].to_numpy()
  mean, low, high = (
    100 * sampled[f'minus_full_{name}'].to_numpy()
    for name in ('mean', 'low', 'high')
  )
  axis.errorbar(
    m,
    mean,
    (mean - low, high - mean),
    marker='^',
    markersize=_MARKER_SIZE,
    markerfacecolor='white',
    elinewidth=0.7,
    label='AOCS',
    **looks[_AOCS],
  )
  smallest = sampled['is_enough'].to_numpy().nonzero()[0][:1]
  axis.plot(
    m[smallest],
    mean[smallest],
    marker='^',
    markersize=_CHOSEN_SIZE,
    color=looks[_AOCS]['color'],
    zorder=3,
  )
  axis.axvline(
    math.sqrt(n),
    color='#777777',
    linestyle=(0, (1, 1)),
    label=r'm = $\sqrt{n}$',
  )
  axis.set_title(f'n = {n}')
  axis.set_xscale('log')
  axis.xaxis.set_major_locator(ticker.FixedLocator(m))
  axis.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  axis.xaxis.set_minor_locator(ticker.NullLocator())
  axis.set_xlabel('Expected participants m')
