"""The figure of `experiments.compare`: the accuracy against three costs."""

import os
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Union

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
# From Okabe and Ito's palette, in the order of each kind of methods.
_COLORS = ('#000000', '#E69F00', '#56B4E9', '#0072B2', '#D55E00', '#009E73')
# By the kind of the method.
_LINESTYLES = {
  'scheme': '-',
  'costs': (0, (1, 1)),
  'sampler': (0, (3, 1.2)),
  'combined': (0, (4, 1.2, 1, 1.2)),
}
_KEY = (
  'Solid: schemes; dotted: with costs; dashed: cohort samplers; dash-dotted:'
  ' both.'
)
_COSTS = ', costs'  # The ending of the name of a method with costs.
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
          mean = pd.concat(of_seeds).groupby('round').mean()
          axis.plot(
            mean[column], 100 * mean['accuracy'], label=method, **looks[method]
          )
        axis.set_xscale('log')
        axis.set_xlabel(label)
        axis.set_title(title)
      row[0].set_ylabel('Validation accuracy [%]')
    _finish(fig, axes, paths, caption)


def _figure(num_rows, num_columns):
  fig = figure.Figure(
    figsize=(_WIDTH, _HEIGHT * num_rows + _HEIGHT_OF_LEGEND),
    layout='constrained',
  )
  axes = fig.subplots(num_rows, num_columns, sharey=True, squeeze=False)
  return fig, axes


def _looks(methods):
  """The colour and the line style of each method, by its name."""
  of_kind = {}
  for method in methods:
    plain = method.removesuffix(_COSTS)
    names = of_kind.setdefault(_kind(plain), [])
    if plain not in names:
      names.append(plain)
  colors = {
    name: _COLORS[place % len(_COLORS)]
    for names in of_kind.values()
    for place, name in enumerate(names)
  }
  return {
    method: {
      'color': colors[method.removesuffix(_COSTS)],
      'linestyle': _LINESTYLES[_kind(method)],
    }
    for method in methods
  }


def _kind(method):
  if ' + ' in method:
    return 'combined'
  if method.endswith(_COSTS):
    return 'costs'
  return 'sampler' if ', n=' in method else 'scheme'


def _finish(fig, axes, paths, caption):
  fig.legend(
    *axes[0][0].get_legend_handles_labels(), loc='outside upper center', ncols=4
  )
  panels.add_caption(fig, captions.escape(f'{caption} {_KEY}'))
  panels.save(fig, paths)
