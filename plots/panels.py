"""The paper's figures of training: accuracy and loss, by rounds and by bits."""

import math
import os
import pathlib
import textwrap
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Union

import numpy as np
from matplotlib import figure
from matplotlib import lines as matplotlib_lines
from matplotlib import style
from matplotlib import ticker

from plots import curves
from tff_ocs.records import files
from tff_ocs.records import runs

# Of Okabe and Ito's palette, told apart by the colour-blind and, through their
# lightness, in grey. OCS and AOCS should do the same: OCS is a broad line below
# that of AOCS, so that both are seen.
_LOOKS = {
  'full': {'color': '#000000'},
  'uniform': {'color': '#E69F00'},
  'ocs': {'color': '#56B4E9', 'linewidth': 2.4},
  'aocs': {'color': '#0072B2'},
}
# By m, the smallest first.
_LINESTYLES = ('-', (0, (3, 1.2)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)))
# By compression.
_MARKERS = ('o', 's', '^', 'D')
_BITS_UNIT = 1e8
# A figure over both columns, in inches, with one row in the legend.
_WIDTH = 7.0
_HEIGHT = 2.05
_HEIGHT_OF_ROW = 0.14
_CHARACTERS_PER_INCH = 20


def plot_panels(
  by_label: Mapping[str, Sequence[runs.Run]],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
  best_so_far: bool = False,
) -> None:
  """Draws validation accuracy and training loss of several methods.

  Lines are means over the runs of a method, and bands reach one standard
  deviation up and down, see `curves.average`; a single run has no band.

  Args:
    by_label: Each method's runs, which differ in their seeds, by its name in
      the legend.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure; says what the data is.
    best_so_far: Whether to draw the best validation accuracy so far, without
      the training loss.

  Raises:
    OSError: If the figure cannot be written.
  """
  if best_so_far:
    columns = ['validation_accuracy'] * 2
  else:
    columns = ['validation_accuracy', 'training_loss'] * 2
  by_bits = [False] * (len(columns) // 2) + [True] * (len(columns) // 2)
  with style.context(pathlib.Path(__file__).with_name('paper.mplstyle')):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    axes = fig.subplots(1, len(columns))
    methods = {
      label: runs.method_of(of_method[0].config)
      for label, of_method in by_label.items()
    }
    looks = line_looks(methods.values())
    for axis, column, is_by_bits in zip(axes, columns, by_bits):
      by_method = {
        label: curves.average(
          [_curve(run, column, is_by_bits, best_so_far) for run in of_method]
        )
        for label, of_method in by_label.items()
      }
      for label, curve in by_method.items():
        _draw(axis, curve, looks[methods[label]], label)
      if column == 'training_loss':
        axis.set_ylabel('Training loss')
        axis.set_ylim(0, _loss_limit(by_label))
      else:
        axis.set_ylabel(
          'Best accuracy so far [%]'
          if best_so_far
          else 'Validation accuracy [%]'
        )
        axis.set_ylim(0, _accuracy_limit(by_label))
      if is_by_bits:
        _format_bits(axis)
      else:
        axis.set_xlabel('Communication round')
    lines = {line.get_label(): line for line in fig.axes[0].lines}
    add_legend(fig, {lines[label]: methods[label] for label in methods})
    add_caption(fig, caption)
    for path in paths:
      save(fig, path)


def line_looks(
  methods: Iterable[runs.Method],
) -> dict[runs.Method, dict[str, Any]]:
  """How each method's line looks: its colour, dashes for m, and markers.

  Args:
    methods: The methods that are shown together.

  Returns:
    The arguments of `Axes.plot`, by method.
  """
  methods = list(methods)
  ranks = sorted({m.expected_clients for m in methods} - {None})
  compressions = list(
    dict.fromkeys(m.compression for m in methods if m.compression)
  )
  looks = {}
  for method in methods:
    m = method.expected_clients
    rank = 0 if m is None else ranks.index(m) % len(_LINESTYLES)
    look = {'linestyle': _LINESTYLES[rank], **_LOOKS[method.sampling]}
    if method.compression is not None:
      rank = compressions.index(method.compression) % len(_MARKERS)
      look.update(marker=_MARKERS[rank], markersize=3, markevery=0.2)
    looks[method] = look
  return looks


def add_legend(
  fig: figure.Figure, methods: Mapping[matplotlib_lines.Line2D, runs.Method]
) -> None:
  """Adds the legend above the panels, with a column for each sampling.

  Args:
    fig: The figure, high enough for a legend of one row; it grows with others.
    methods: Which method each of the lines shows, in the legend's order.
  """
  columns = {}
  for line, method in methods.items():
    columns.setdefault(method.sampling, []).append(line)
  num_rows = max(len(column) for column in columns.values())
  fig.set_figheight(fig.get_figheight() + _HEIGHT_OF_ROW * (num_rows - 1))
  blank = matplotlib_lines.Line2D([], [], linestyle='none', label='')
  handles = []
  for column in columns.values():
    handles += column + [blank] * (num_rows - len(column))
  fig.legend(handles=handles, loc='outside upper center', ncols=len(columns))


def add_caption(fig: figure.Figure, caption: str) -> None:
  """Adds the line below the figure.

  Args:
    fig: The figure.
    caption: The line; broken where it is too long.
  """
  width = round(_CHARACTERS_PER_INCH * fig.get_figwidth())
  fig.supxlabel('\n'.join(textwrap.wrap(caption, width)))


def save(fig: figure.Figure, path: Union[str, os.PathLike]) -> None:
  """Writes a figure; the same figure gives the same file.

  Args:
    fig: The figure.
    path: Where; the ending decides the format.

  Raises:
    OSError: If it cannot be written.
  """
  is_pdf = pathlib.Path(path).suffix == '.pdf'
  with files.replacing(path) as partial:
    fig.savefig(partial, metadata={'CreationDate': None} if is_pdf else None)


def _curve(run, column, by_bits, best_so_far):
  """A run's curve in the units of the panel."""
  if column == 'training_loss':
    # With the rounds where it is NaN, after divergence: they leave a gap.
    values = run.metrics[column]
    rounds = np.arange(len(values))
  else:
    rounds, values = run.evaluated(column)
    values = 100 * values
  if best_so_far:
    values = curves.best_so_far(values)
  if not by_bits:
    return rounds, values
  return run.metrics['cumulative_uplink_bits'][rounds] / _BITS_UNIT, values


def _draw(axis, curve, look, label):
  axis.plot(curve.x, curve.mean, label=label, **look)
  if curve.deviation.any():
    axis.fill_between(
      curve.x,
      curve.mean - curve.deviation,
      curve.mean + curve.deviation,
      color=look['color'],
      alpha=0.18,
      linewidth=0,
    )


def _accuracy_limit(by_label):
  """The best accuracy in per cent, rounded up to the next ten."""
  best = max(
    run.evaluated('validation_accuracy')[1].max()
    for of_method in by_label.values()
    for run in of_method
  )
  return max(10, 10 * math.ceil(10 * best))


def _loss_limit(by_label):
  """A little above the initial loss, so that spikes do not squeeze the rest.

  The initial loss is the median of the first three rounds' means: on inputs
  that are not scaled, the very first is many times the loss of a guess.
  """
  initial = [
    np.median(np.mean([run.metrics['training_loss'][:3] for run in runs_], 0))
    for runs_ in by_label.values()
  ]
  finite = [value for value in initial if np.isfinite(value)]
  return 1.15 * max(finite) if finite else None


def _format_bits(axis):
  axis.set_xlabel(r'Uplink [$10^8$ bits]')
  # Where nothing was sent yet, there is no place on the axis.
  axis.set_xscale('log', base=2, nonpositive='mask')
  # Every second power at most, so that the labels do not touch.
  axis.xaxis.set_major_locator(ticker.LogLocator(base=2, numticks=6))
