"""The figure of `experiments.threshold`: one round trip against exact OCS."""

import os
from collections.abc import Sequence
from typing import Union

import pandas as pd
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import captions
from plots import panels

KNOWN = 'threshold, N_t known'
UNKNOWN = 'threshold, N_t unknown'
CONSTANT = 'constant threshold, in hindsight'
# From Okabe and Ito's palette. In grey, the dashes of the thresholds differ.
_LOOKS = {
  KNOWN: {'color': '#D55E00'},
  UNKNOWN: {'color': '#0072B2', 'linestyle': (0, (3, 1.2)), 'linewidth': 0.9},
  'OCS': {'color': '#56B4E9', 'linewidth': 2.4},
  'uniform': {'color': '#E69F00', 'linestyle': (0, (4, 1.2, 1, 1.2))},
  CONSTANT: {'color': '#000000', 'linestyle': (0, (1, 1))},
}
_LABELS = {
  KNOWN: 'one round trip, $N_t$ known',
  UNKNOWN: '$N_t$ unknown',
  'OCS': 'OCS of each round',
  'uniform': 'uniform',
  CONSTANT: 'constant threshold, in hindsight',
}
# In inches, for both columns, with a row of panels for each kind of runs.
_WIDTH = 7.0
_HEIGHT_OF_ROW = 1.75
_HEIGHT_OF_REST = 0.45


def plot_replays(
  rounds: pd.DataFrame,
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws participants, thresholds and variances by round.

  Args:
    rounds: The columns of `experiments.threshold.replay`, and `title`, of which
      each has a row of panels. The first round is left out.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure. An explanation of the panels follows.
  """
  rounds = rounds[rounds['round'] > 0]
  by_title = dict(list(rounds.groupby('title', sort=False)))
  with style.context(panels.STYLE):
    fig = figure.Figure(
      figsize=(_WIDTH, _HEIGHT_OF_ROW * len(by_title) + _HEIGHT_OF_REST),
      layout='constrained',
    )
    grid = fig.subplots(len(by_title), 3, squeeze=False, sharex='row')
    for axes, (title, of_title) in zip(grid, by_title.items()):
      by_sampling = {
        name: part.set_index('round')
        for name, part in of_title.groupby('sampling', sort=False)
      }
      _draw_participants(axes[0], by_sampling)
      _draw_thresholds(axes[1], by_sampling)
      _draw_variances(axes[2], by_sampling)
      axes[0].set_title(captions.escape(title), loc='left')
    for axis in grid[-1]:
      axis.set_xlabel('Communication round')
    lines = dict(zip(*reversed(grid[0, 2].get_legend_handles_labels())))
    fig.legend(
      lines.values(), lines, loc='outside upper center', ncols=len(lines)
    )
    panels.add_caption(
      fig,
      f'{caption} Left: expected participants over m. Middle: the threshold'
      ' that is used (line), and that of OCS of the same round (dots), for'
      ' norms over $N_t$. Right: the variance that sampling adds, summed up to'
      ' a round, over that of OCS; targets scaled so that m clients send on'
      ' average.',
    )
    panels.save(fig, paths)


def _draw_participants(axis, by_sampling):
  for name in ('OCS', UNKNOWN, KNOWN):
    of_sampling = by_sampling[name]
    ratio = of_sampling['participants'] / of_sampling['expected_clients']
    axis.plot(ratio.index, ratio, **{'linewidth': 0.8, **_LOOKS[name]})
  axis.set_yscale('log', base=2, nonpositive='mask')
  axis.yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  axis.set_ylabel('Participants P / m')


def _draw_thresholds(axis, by_sampling):
  exact = by_sampling['OCS']['threshold']
  axis.plot(
    exact.index,
    exact,
    color=_LOOKS['OCS']['color'],
    linestyle='',
    marker='o',
    markersize=1.6,
  )
  used = by_sampling[KNOWN]['threshold']
  axis.plot(used.index, used, **_LOOKS[KNOWN])
  _format_log(axis)
  axis.set_ylabel(r'Threshold $\tau$ of $n_i\|U_i\| / N_t$')


def _draw_variances(axis, by_sampling):
  of_ocs = by_sampling['OCS']['variance'].cumsum()
  for name, label in _LABELS.items():
    ratio = by_sampling[name]['variance_equal_spend'].cumsum() / of_ocs
    axis.plot(ratio.index, ratio, label=label, **_LOOKS[name])
  _format_log(axis)
  axis.set_ylabel('Variance / that of OCS')


def _format_log(axis):
  axis.set_yscale('log', nonpositive='mask')
  axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  axis.yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  axis.yaxis.set_minor_locator(ticker.NullLocator())
