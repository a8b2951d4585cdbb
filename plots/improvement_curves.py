"""The figure of the improvement factor: where a task lies, round by round."""

import os
import pathlib
from collections.abc import Sequence
from typing import Union

import numpy as np
from matplotlib import figure
from matplotlib import style

from plots import curves
from plots import panels
from tff_ocs.records import runs

COLUMN = 'improvement_factor'
# A running mean over so many rounds: the cohorts differ, and so does alpha^k.
_WINDOW = 10
# Of Okabe and Ito's palette, by experiment, and dashes by m.
_COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#000000')
_LINESTYLES = ('-', (0, (3, 1.2)), (0, (1, 1)))
# A figure over one column, in inches.
_WIDTH = 3.4
_HEIGHT = 3.1


def select(groups: Sequence[runs.Group]) -> list[runs.Group]:
  """The runs with AOCS, without compression, in which alpha^k was measured."""
  return [
    group
    for group in groups
    if group.method.sampling == 'aocs'
    and group.method.compression is None
    and all(COLUMN in run.metrics for run in group.runs)
  ]


def plot_improvement(
  groups: Sequence[runs.Group], paths: Sequence[Union[str, os.PathLike]]
) -> None:
  """Draws the improvement factor alpha^k, Eq. (15), of each group by rounds.

  A line is a running mean over ten rounds, and its mean over the seeds; a band
  reaches one standard deviation over the seeds up and down.

  Args:
    groups: The groups, at least one, as `select` gives them.
    paths: Where to write the figure; the endings decide the formats.

  Raises:
    OSError: If the figure cannot be written.
  """
  experiments = list(dict.fromkeys(group.experiment for group in groups))
  with style.context(pathlib.Path(__file__).with_name('paper.mplstyle')):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    axis = fig.subplots()
    num_of_experiment = dict.fromkeys(experiments, 0)
    for group in groups:
      experiment = group.experiment
      color = _COLORS[experiments.index(experiment) % len(_COLORS)]
      dashes = num_of_experiment[experiment] % len(_LINESTYLES)
      num_of_experiment[experiment] += 1
      curve = curves.average([_curve(run) for run in group.runs])
      axis.plot(
        curve.x,
        curve.mean,
        color=color,
        linestyle=_LINESTYLES[dashes],
        label=(
          f'{experiment.name}, m={group.method.expected_clients:g} of'
          f' {experiment.clients_per_round}'
        ),
      )
      if curve.deviation.any():
        axis.fill_between(
          curve.x,
          curve.mean - curve.deviation,
          curve.mean + curve.deviation,
          color=color,
          alpha=0.18,
          linewidth=0,
        )
    axis.set_ylim(0, 1)
    axis.set_xlabel('Communication round')
    axis.set_ylabel(r'Improvement factor $\alpha^k$')
    ends = axis.secondary_yaxis('right')
    ends.set_yticks([0, 1], ['as full', 'as uniform'])
    ends.spines['right'].set_visible(False)
    fig.legend(loc='outside upper center', ncols=2)
    data = '; '.join(f'{e.name}: {e.data}' for e in experiments)
    caption = f'Data: {data}. Running mean over {_WINDOW} rounds.'
    if any(len(group.runs) > 1 for group in groups):
      caption += ' Bands: standard deviation over seeds.'
    panels.add_caption(fig, caption)
    for path in paths:
      panels.save(fig, path)


def _curve(run):
  values = run.metrics[COLUMN]
  window = min(_WINDOW, len(values))
  means = np.convolve(values, np.full(window, 1 / window), mode='valid')
  return np.arange(len(means)) + (window - 1) / 2, means
