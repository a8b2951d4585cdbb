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
import pandas as pd
from matplotlib import figure
from matplotlib import lines as matplotlib_lines
from matplotlib import style
from matplotlib import ticker

from plots import curves
from tff_ocs.records import files
from tff_ocs.records import runs
from tff_ocs.records import units

STYLE = pathlib.Path(__file__).with_name('paper.mplstyle')

# From Okabe and Ito's palette, whose colours differ for the colour-blind and in
# grey. OCS and AOCS should do the same: OCS is a broad line below that of AOCS,
# so that both are seen.
_LOOKS = {
  'full': {'color': '#000000'},
  'uniform': {'color': '#E69F00'},
  'ocs': {'color': '#56B4E9', 'linewidth': 2.4},
  'aocs': {'color': '#0072B2'},
}
# For all other methods.
_OTHER_COLORS = ('#D55E00', '#009E73', '#CC79A7', '#999999')
# By m, the smallest first.
_LINESTYLES = ('-', (0, (3, 1.2)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)))
# By compression.
_MARKERS = ('o', 's', '^', 'D')
_PAPERS_UNIT = 10**8
# A figure over both columns, in inches, with one row in the legend.
_WIDTH = 7.0
_HEIGHT = 2.05
_HEIGHT_OF_ROW = 0.14
# Of the caption, which makes the figure higher, not the panels smaller.
_HEIGHT_OF_LINE = 0.1
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
  deviation up and down, see `curves.average`; a single run has no band. Runs
  without an accuracy have the validation loss in its place.

  Args:
    by_label: Each method's runs, which differ in their seeds, by its name in
      the legend.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure, which names the data.
    best_so_far: Whether to draw the best validation accuracy so far, without
      the training loss.

  Raises:
    OSError: If the figure cannot be written.
  """
  columns = [_score_column(by_label)] + ['training_loss'] * (not best_so_far)
  methods = {
    label: runs.method_of(of_method[0].settings)
    for label, of_method in by_label.items()
  }
  looks = line_looks(methods.values())
  unit, unit_size = _choose_unit(by_label)
  with style.context(STYLE):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    all_axes = fig.subplots(1, 2 * len(columns))
    for axis, column in zip(all_axes, columns * 2):
      is_by_bits = axis in all_axes[len(columns) :]
      for label, of_method in by_label.items():
        of_seeds = [_curve(run, column, best_so_far) for run in of_method]
        if is_by_bits:
          of_seeds = [
            curve.set_axis(
              run.metrics['cumulative_uplink_bits'][curve.index] / unit_size
            )
            for run, curve in zip(of_method, of_seeds)
          ]
        draw_with_band(
          axis, curves.average(of_seeds), label=label, **looks[methods[label]]
        )
      if is_by_bits:
        _format_bits(axis, unit)
      else:
        axis.set_xlabel('Communication round')
      if column == 'training_loss':
        axis.set_ylabel('Training loss')
        axis.set_ylim(0, _loss_limit(by_label))
      elif column == 'validation_loss':
        axis.set_ylabel('Validation loss')
        axis.set_ylim(0, _loss_limit(by_label))
      else:
        name = 'Best accuracy so far' if best_so_far else 'Validation accuracy'
        axis.set_ylabel(f'{name} [%]')
        axis.set_ylim(0, _accuracy_limit(by_label))
    lines = {line.get_label(): line for line in all_axes[0].lines}
    add_legend(fig, {lines[label]: methods[label] for label in methods})
    add_caption(fig, caption)
    save(fig, paths)


def line_looks(
  methods: Iterable[runs.Method],
) -> dict[runs.Method, dict[str, Any]]:
  """The colour of each method's line, its dashes for m, and its markers.

  Args:
    methods: The methods that are shown together. Those that are not the
      paper's have the remaining colours, in their order.

  Returns:
    The arguments of `Axes.plot`, by method.
  """
  methods = list(methods)
  ranks = sorted({m.expected_clients for m in methods} - {None})
  compressions = list(
    dict.fromkeys(m.compression for m in methods if m.compression)
  )
  families = [family(method) for method in methods]
  others = list(dict.fromkeys(f for f in families if f not in _LOOKS))
  looks = {}
  for method in methods:
    m = method.expected_clients
    rank = 0 if m is None else ranks.index(m)
    if family(method) in _LOOKS:
      look = _LOOKS[family(method)]
    else:
      # When the colours are used up, they come again with other dashes.
      lap, index = divmod(others.index(family(method)), len(_OTHER_COLORS))
      look, rank = {'color': _OTHER_COLORS[index]}, rank + lap
    look = {'linestyle': _LINESTYLES[rank % len(_LINESTYLES)], **look}
    if method.compression is not None:
      rank = compressions.index(method.compression) % len(_MARKERS)
      look.update(marker=_MARKERS[rank], markersize=3, markevery=0.2)
    looks[method] = look
  return looks


def family(method: runs.Method) -> str:
  """The name that methods of one colour share: their sampling, or their own."""
  return method.name or method.sampling


def draw_with_band(axis, curve: pd.DataFrame, *, color: str, **look) -> None:
  """Draws a mean over seeds, and a band of one standard deviation around it."""
  axis.plot(curve.index, curve['mean'], color=color, **look)
  if curve['std'].any():
    axis.fill_between(
      curve.index,
      curve['mean'] - curve['std'],
      curve['mean'] + curve['std'],
      color=color,
      alpha=0.18,
      linewidth=0,
    )


def add_legend(
  fig: figure.Figure, methods: Mapping[matplotlib_lines.Line2D, runs.Method]
) -> None:
  """Adds the legend above the panels, with a column for each colour.

  Args:
    fig: The figure, high enough for a legend of one row; it grows with others.
    methods: Which method each of the lines shows, in the legend's order.
  """
  columns = {}
  for line, method in methods.items():
    columns.setdefault(family(method), []).append(line)
  num_rows = max(len(column) for column in columns.values())
  fig.set_figheight(fig.get_figheight() + _HEIGHT_OF_ROW * (num_rows - 1))
  blank = matplotlib_lines.Line2D([], [], linestyle='none', label='')
  handles = []
  for column in columns.values():
    handles += column + [blank] * (num_rows - len(column))
  fig.legend(handles=handles, loc='outside upper center', ncols=len(columns))


def add_caption(fig: figure.Figure, caption: str) -> None:
  """Adds the line below the figure."""
  width = round(_CHARACTERS_PER_INCH * fig.get_figwidth())
  lines = textwrap.wrap(caption, width)
  fig.set_figheight(fig.get_figheight() + _HEIGHT_OF_LINE * (len(lines) - 1))
  fig.supxlabel('\n'.join(lines))


def save(fig: figure.Figure, paths: Sequence[Union[str, os.PathLike]]) -> None:
  """Writes a figure; the same figure gives the same files."""
  for path in paths:
    is_pdf = pathlib.Path(path).suffix == '.pdf'
    with files.replacing(path) as partial:
      fig.savefig(partial, metadata={'CreationDate': None} if is_pdf else None)


def _score_column(by_label):
  """The accuracy, unless one of the runs has none."""
  columns = {
    runs.score_column(run.metrics)
    for of_method in by_label.values()
    for run in of_method
  }
  return max(columns)  # The loss comes after the accuracy.


def _curve(run, column, best_so_far):
  """A run's curve by rounds, in the units of the panel."""
  values = run.metrics[column]
  if column == 'training_loss':
    # Rounds where it is NaN, after divergence, leave a gap.
    return values
  if column == 'validation_loss':
    return values.dropna()
  values = 100 * values.dropna()
  return values.cummax() if best_so_far else values


def _choose_unit(by_label):
  """The name and the size of the unit of bits: the paper's, unless too large.

  In the paper's unit the tick labels of its experiments are short numbers.
  """
  largest = max(
    run.metrics['cumulative_uplink_bits'].iloc[-1]
    for of_method in by_label.values()
    for run in of_method
  )
  if largest >= _PAPERS_UNIT:
    return r'$10^8$ bits', _PAPERS_UNIT
  return units.choose_bits_unit(largest)


def _accuracy_limit(by_label):
  """The best accuracy in per cent, rounded up to the next ten."""
  best = max(
    run.metrics['validation_accuracy'].max()
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


def _format_bits(axis, unit):
  axis.set_xlabel(f'Uplink [{unit}]')
  if axis.dataLim.x1 <= 0:
    return  # Nobody has sent anything.
  # A point where nothing was sent yet has no place on the axis.
  axis.set_xscale('log', base=2, nonpositive='mask')
  # Every second power at most, so that the labels do not touch.
  axis.xaxis.set_major_locator(ticker.LogLocator(base=2, numticks=6))
