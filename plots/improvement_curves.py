"""The figure of the improvement factor alpha^k by rounds."""

import os
from collections.abc import Sequence
from typing import Union

import numpy as np
import pandas as pd
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import captions
from plots import curves
from plots import panels
from tff_ocs.records import runs

COLUMN = 'improvement_factor'
# The number of rounds of the running mean. alpha^k differs between cohorts.
_WINDOW = 10
# Of Okabe and Ito's palette, with dashes, by experiment.
_COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#000000')
_LINESTYLES = ('-', (0, (5, 1.2)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)))
# A figure over both columns, in inches.
_WIDTH = 7.0
_HEIGHT = 2.6


def select(groups: Sequence[runs.Group]) -> list[runs.Group]:
  """The runs with AOCS, without compression, in which alpha^k was measured.

  Variants of AOCS, whose runs have a name of their own, are left out.
  """
  return [
    group
    for group in groups
    if group.method.sampling == 'aocs'
    and group.method.compression is None
    and group.method.name is None
    and group.method.expected_clients is not None
    and all(COLUMN in run.metrics for run in group.runs)
  ]


def plot_improvement(
  groups: Sequence[runs.Group], paths: Sequence[Union[str, os.PathLike]]
) -> pd.DataFrame:
  """Draws the improvement factor alpha^k, Eq. (15), of each group by rounds.

  A line is the mean over the seeds of the running means over ten rounds. A band
  reaches one standard deviation over the seeds up and down. The left panel has
  the smallest m of each experiment, the right one the others.

  Args:
    groups: The groups, which measured the factor.
    paths: Where to write the figure; the endings decide the formats.

  Returns:
    A row for each line, as of `panels.plot_panels`.
  """
  of_experiment = runs.by_experiment(groups)
  has_several = any(len(of_one) > 1 for of_one in of_experiment.values())
  titles = (
    ('Smallest m', 'Larger m') if has_several else ('Improvement factor',)
  )
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    axes = fig.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    drawn = []
    for index, of_one in enumerate(of_experiment.values()):
      of_one = sorted(of_one, key=lambda group: group.method.expected_clients)
      for rank, group in enumerate(of_one):
        average = curves.average([_curve(run) for run in group.runs])
        smallest = of_one[0].method.expected_clients
        panel = int(group.method.expected_clients > smallest)
        drawn.append(
          {
            'panel': titles[panel],
            'line': _label(of_one[rank : rank + 1]),
            **panels.describe_line(average),
          }
        )
        panels.draw_with_band(
          axes[panel],
          average,
          color=_COLORS[index % len(_COLORS)],
          linestyle=_LINESTYLES[index % len(_LINESTYLES)],
          # Among the larger m, the thinner the larger.
          linewidth=1.6 / max(rank, 1),
          label=captions.escape(_label(of_one)),
        )
    _set_axes(axes, titles if has_several else ('',))
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc='outside upper center', ncols=2)
    panels.add_caption(fig, _caption(groups, of_experiment, axes))
    panels.save(fig, paths)
  return pd.DataFrame(drawn)


def _set_axes(axes, titles) -> None:
  # Small factors differ by their ratios. A factor of 0 is not drawn, and a band
  # that reaches 0 has no end.
  lines = [line for axis in axes for line in axis.lines]
  factors = np.concatenate([line.get_ydata() for line in lines])
  axes[0].set_yscale('log')
  axes[0].set_ylim(np.min(factors[factors > 0], initial=0.5) / 1.5, 1.1)
  axes[0].yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  axes[0].yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  axes[0].yaxis.set_minor_formatter(ticker.NullFormatter())
  axes[0].set_ylabel('Improvement factor $\\alpha^k$\n(1: as uniform sampling)')
  # One long run would leave the others no room.
  end = np.median([line.get_xdata().max(initial=0) for line in lines])
  for axis, title in zip(axes, titles):
    axis.set_title(title)
    axis.set_xlabel('Communication round')
    if end > 0:
      axis.set_xlim(-0.03 * end, 1.03 * end)


def _caption(groups, experiments, axes) -> str:
  data = captions.escape(
    # Those with another n have the same data.
    '; '.join(dict.fromkeys(map(_describe_data, experiments)))
  )
  step_sizes = captions.describe_step_sizes(
    groups,
    lambda group: group.experiment.title,
    lambda group: _label([group]),
  )
  caption = f'Data: {data}. {step_sizes}Running mean over {_WINDOW} rounds.'
  numbers = sorted({len(group.runs) for group in groups})
  if numbers[-1] > 1:
    seeds = ' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    caption += f' Bands: standard deviation over {seeds} seeds.'
  right = axes[0].get_xlim()[1]
  if any(
    line.get_xdata().max(initial=0) > right
    for axis in axes
    for line in axis.lines
  ):
    caption += ' Longer runs are cut off.'
  return caption


def _describe_data(experiment):
  if experiment.is_stand_in:
    return f'{experiment.title}, in place of {experiment.name}'
  return f'{experiment.name}: {experiment.data}'


def _label(of_experiment):
  experiment = of_experiment[0].experiment
  ms = ', '.join(
    dict.fromkeys(f'{g.method.expected_clients:g}' for g in of_experiment)
  )
  return f'{experiment.title}, m={ms} of {experiment.clients_per_round}'


def _curve(run):
  # A round in which no client was available has none.
  values = run.metrics[COLUMN].dropna()
  window = max(1, min(_WINDOW, len(values)))
  means = values.rolling(window).mean().iloc[window - 1 :]
  # In the middle of the rounds that it is the mean of.
  first = values.index[: len(means)]
  return means.set_axis((first + means.index) / 2)
