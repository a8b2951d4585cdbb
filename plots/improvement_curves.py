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
  """The runs with AOCS, without compression, in which alpha^k was measured."""
  return [
    group
    for group in groups
    if group.method.sampling == 'aocs'
    and group.method.compression is None
    and group.method.expected_clients is not None
    and all(COLUMN in run.metrics for run in group.runs)
  ]


def plot_improvement(
  groups: Sequence[runs.Group], paths: Sequence[Union[str, os.PathLike]]
) -> pd.DataFrame:
  """Draws the improvement factor alpha^k, Eq. (15), of each group by rounds.

  A line is the mean over the seeds of the running means over ten rounds. A band
  reaches one standard deviation over the seeds up and down.

  Args:
    groups: The groups, which measured the factor.
    paths: Where to write the figure; the endings decide the formats.

  Returns:
    A row for each line, as of `panels.plot_panels`.
  """
  experiments = list(dict.fromkeys(group.experiment for group in groups))
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    axis = fig.subplots()
    ms = sorted({group.method.expected_clients for group in groups})
    drawn = []
    for group in groups:
      experiment = group.experiment
      color = _COLORS[experiments.index(experiment) % len(_COLORS)]
      # The same m has the same dashes in all experiments.
      dashes = ms.index(group.method.expected_clients)
      average = curves.average([_curve(run) for run in group.runs])
      drawn.append(
        {
          'panel': 'Improvement factor',
          'line': _label(group),
          **panels.describe_line(average),
        }
      )
      panels.draw_with_band(
        axis,
        average,
        color=color,
        linestyle=_LINESTYLES[dashes % len(_LINESTYLES)],
        label=captions.escape(_label(group)),
      )
    # Small factors differ by their ratios. A factor of 0 is not drawn, and a
    # band that reaches 0 has no end.
    axis.set_yscale('log')
    factors = np.concatenate([line.get_ydata() for line in axis.lines])
    axis.set_ylim(np.min(factors[factors > 0], initial=0.5) / 1.5, 1.1)
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
    axis.yaxis.set_minor_formatter(ticker.NullFormatter())
    axis.set_xlabel('Communication round')
    axis.set_ylabel(
      'Improvement factor $\\alpha^k$\n(0: as full, 1: as uniform)'
    )
    fig.legend(loc='outside upper center', ncols=3)
    data = captions.escape(
      # Those with another n have the same data.
      '; '.join(dict.fromkeys(map(_describe_data, experiments)))
    )
    step_sizes = captions.describe_step_sizes(
      groups, lambda group: group.experiment.title, _label
    )
    caption = f'Data: {data}. {step_sizes}Running mean over {_WINDOW} rounds.'
    numbers = sorted({len(group.runs) for group in groups})
    if numbers[-1] > 1:
      seeds = ' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
      caption += f' Bands: standard deviation over {seeds} seeds.'
    panels.add_caption(fig, caption)
    panels.save(fig, paths)
  return pd.DataFrame(drawn)


def _describe_data(experiment):
  if experiment.is_stand_in:
    return f'{experiment.title}, in place of {experiment.name}'
  return f'{experiment.name}: {experiment.data}'


def _label(group):
  n, m = group.experiment.clients_per_round, group.method.expected_clients
  return f'{group.experiment.title}, m={m:g} of {n}'


def _curve(run):
  # A round in which no client was available has none.
  values = run.metrics[COLUMN].dropna()
  window = max(1, min(_WINDOW, len(values)))
  means = values.rolling(window).mean().iloc[window - 1 :]
  # In the middle of the rounds that it is the mean of.
  first = values.index[: len(means)]
  return means.set_axis((first + means.index) / 2)
