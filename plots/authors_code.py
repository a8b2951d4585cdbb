"""The figure that compares our runs with curves of the authors' own code."""

import os
from collections.abc import Sequence
from typing import Union

import pandas as pd
from matplotlib import figure
from matplotlib import style

from plots import captions
from plots import curves
from plots import panels
from tff_ocs.records import runs

_COLUMNS = ('method', 'round', 'training_loss', 'validation_accuracy')
# Their name of a sampling, and ours. Their OCS is approximate, as our AOCS.
_SAMPLINGS = {'uniform': 'uniform', 'ocs': 'aocs'}
_M = 3
_WIDTH = 7.0
_HEIGHT = 2.3


def select(groups: Sequence[runs.Group]) -> list[runs.Group]:
  """The runs to compare with: FEMNIST set 1, n = 32, m = 3."""
  return [
    group
    for group in groups
    if group.experiment[:2] == ('FEMNIST set 1', 32)
    and group.method.sampling in _SAMPLINGS.values()
    and group.method.expected_clients == _M
    and group.method.name is None
  ]


def read(path: Union[str, os.PathLike]) -> pd.DataFrame:
  """Reads the curves of the authors' code.

  Args:
    path: A CSV file with a row for each method and round, and the columns
      'method' ('uniform' or 'ocs'), 'round', 'training_loss' and
      'validation_accuracy', which is empty in rounds without an evaluation.

  Returns:
    The table.

  Raises:
    OSError: If the file cannot be read.
    RunsError: If it is not such a table.
  """
  table = pd.read_csv(path)
  missing = [name for name in _COLUMNS if name not in table]
  if missing:
    raise runs.RunsError(f'{path} has no column {missing[0]}')
  unknown = set(table['method']) - set(_SAMPLINGS)
  if unknown:
    raise runs.RunsError(
      f'{path} has the method {min(unknown)}, but may have uniform and ocs only'
    )
  return table


def plot(
  groups: Sequence[runs.Group],
  authors: pd.DataFrame,
  paths: Sequence[Union[str, os.PathLike]],
) -> pd.DataFrame:
  """Draws accuracy and loss by rounds, ours with their band and theirs.

  Args:
    groups: As of `select`.
    authors: As of `read`.
    paths: Where to write the figure; the endings decide the formats.

  Returns:
    A row for each line, as of `panels.plot_panels`.
  """
  drawn = []
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    axes = fig.subplots(1, 2)
    looks = panels.line_looks([group.method for group in groups])
    in_legend = {}
    for axis, column in zip(axes, ('validation_accuracy', 'training_loss')):
      scale = 100 if column == 'validation_accuracy' else 1
      axis.set_xlabel('Communication round')
      for group in groups:
        ours = curves.average(
          [scale * run.metrics[column].dropna() for run in group.runs]
        )
        num = len(group.runs)
        of_authors = _of_authors(authors, group.method.sampling, column) * scale
        theirs = curves.average([of_authors])
        look = {**looks[group.method], 'linestyle': '-'}
        num_seeds = f'{num} seed{"s" * (num > 1)}'
        for average, label, more in (
          (ours, f'{group.method.label} ({num_seeds})', look),
          (
            theirs,
            f"authors' code: {group.method.label} (1 seed)",
            {
              **look,
              'linestyle': (0, (1, 1)),
              'marker': 'x',
              'markersize': 2.4,
            },
          ),
        ):
          if column == 'training_loss':
            more = {**more, 'marker': ''}
          panels.draw_with_band(axis, average, label=label, **more)
          in_legend[label] = group.method
          panel = f'{column} by round'
          drawn.append(
            {'panel': panel, 'line': label, **panels.describe_line(average)}
          )
    axes[0].set_ylabel('Validation accuracy [%]')
    axes[0].set_ylim(0, 100)
    axes[1].set_ylabel('Training loss')
    panels.limit_loss(axes[1], 2.7)
    lines = {line.get_label(): line for line in axes[0].lines}
    panels.add_legend(
      fig, {lines[label]: method for label, method in in_legend.items()}
    )
    panels.add_caption(
      fig,
      f"{captions.describe_runs(groups)} The authors' code ran on TFF 0.16.1,"
      ' with its own seed.',
    )
    panels.save(fig, paths)
  return pd.DataFrame(drawn)


def _of_authors(authors, sampling, column):
  (name,) = (name for name, ours in _SAMPLINGS.items() if ours == sampling)
  rows = authors[authors['method'] == name].set_index('round')
  return rows[column].dropna()
