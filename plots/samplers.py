"""The figures of `experiments.compare`: accuracy against costs, and clients."""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Union

import numpy as np
import pandas as pd
from matplotlib import figure
from matplotlib import style

from plots import captions
from plots import panels

_AXES = {
  'bits': 'Uplink [bits]',
  'examples': 'Client compute [examples]',
  'seconds': 'Simulated time [s]',
}
# From Okabe and Ito's palette. Each colour has at most three line styles.
_COLORS = ('#000000', '#E69F00', '#56B4E9', '#0072B2', '#D55E00', '#009E73')
_LINESTYLES = ('-', (0, (3, 1.2)), (0, (1, 1)))
_WIDTH = 7.0
_HEIGHT = 1.9
_HEIGHT_OF_LEGEND = 0.5


def plot_costs(
  by_title: Mapping[str, Mapping[str, Sequence[pd.DataFrame]]],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws the accuracy against bits, examples and simulated seconds.

  Lines are means over the seeds, of the accuracies and of the costs of an
  evaluation.

  Args:
    by_title: The curves of `experiments.compare.read_curve`, one a seed, by
      data set and method.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure.
  """
  with style.context(panels.STYLE):
    fig, axes = _figure(len(by_title), len(_AXES))
    for row, (title, by_method) in zip(axes, by_title.items()):
      looks = _looks(by_method)
      for axis, (column, label) in zip(row, _AXES.items()):
        for method, of_seeds in by_method.items():
          # Several runs may have no evaluation in common only if they differ in
          # their rounds, which they do not.
          mean = pd.concat(of_seeds).groupby('round').mean()
          axis.plot(
            mean[column], 100 * mean['accuracy'], label=method, **looks[method]
          )
        axis.set_xscale('log')
        axis.set_xlabel(label)
        axis.set_title(title)
      row[0].set_ylabel('Validation accuracy [%]')
    _finish(fig, axes, paths, caption)


def plot_clients(
  by_title: Mapping[str, Mapping[str, pd.Series]],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws the distribution of the accuracy over clients.

  Args:
    by_title: The accuracies of the clients, of all seeds, by data set and
      method.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure.
  """
  with style.context(panels.STYLE):
    fig, axes = _figure(1, len(by_title))
    for axis, (title, by_method) in zip(axes[0], by_title.items()):
      looks = _looks(by_method)
      for method, accuracies in by_method.items():
        ascending = 100 * np.sort(accuracies)
        share = 100 * np.arange(1, ascending.size + 1) / ascending.size
        axis.step(ascending, share, where='post', label=method, **looks[method])
      axis.axhline(10, color='#777777', linewidth=0.6)
      axis.set_yscale('log')
      axis.set_xlabel("Accuracy on a client's validation examples [%]")
      axis.set_title(title)
    axes[0][0].set_ylabel('Clients with at most this accuracy [%]')
    _finish(fig, axes, paths, f'{caption} The grey line marks the worst 10 %.')


def _figure(num_rows, num_columns):
  fig = figure.Figure(
    figsize=(_WIDTH, _HEIGHT * num_rows + _HEIGHT_OF_LEGEND),
    layout='constrained',
  )
  axes = fig.subplots(num_rows, num_columns, sharey=True, squeeze=False)
  return fig, axes


def _looks(methods):
  return {
    method: {
      'color': _COLORS[place % len(_COLORS)],
      'linestyle': _LINESTYLES[place // len(_COLORS) % len(_LINESTYLES)],
    }
    for place, method in enumerate(methods)
  }


def _finish(fig, axes, paths, caption):
  fig.legend(
    *axes[0][0].get_legend_handles_labels(), loc='outside upper center', ncols=4
  )
  panels.add_caption(fig, captions.escape(caption))
  panels.save(fig, paths)
