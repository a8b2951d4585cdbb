"""The paper's figures of training: accuracy and loss, by rounds and by bits."""

import math
import os
import pathlib
import textwrap
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Optional
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
  'threshold': {'color': '#D55E00'},
}
# For all other methods.
_OTHER_COLORS = ('#009E73', '#CC79A7', '#999999', '#882255')
# By m, the smallest first. Full participation and AOCS often coincide, so that
# black has to be seen through the gaps.
_SOLID = '-'
_DASHED = (0, (3, 1.2))
_DOTTED = (0, (1, 1))
_DASH_DOTTED = (0, (4, 1.2, 1, 1.2))
_LINESTYLES = (_SOLID, _DASHED, _DOTTED, _DASH_DOTTED)
_LINESTYLES_OF = {
  'uniform': (_SOLID, _DOTTED, _DASHED, _DASH_DOTTED),
  'aocs': (_DASHED, _DOTTED, _DASH_DOTTED, _SOLID),
  'threshold': (_DASH_DOTTED, _DOTTED, _DASHED, _SOLID),
}
MARKERS = {'full': 'o', 'uniform': 's', 'ocs': 'D', 'aocs': '^'}
MARKERS['threshold'] = 'v'
OTHER_MARKER = 'P'
# The looks of compressed methods, by compression; a figure of them shows the
# same sampling with each.
_COLORS_OF_COMPRESSIONS = ('#009E73', '#CC79A7', '#882255', '#999999')
_MARKERS_OF_COMPRESSIONS = ('s', 'D', '^', 'v')
_MARKER_SIZE = 1.9
# Of more evaluations than these, about as many are marked as the second number
# says. Their numbers grow by a factor, so that their bits are evenly spaced on
# the logarithmic axis.
_MOST_MARKERS = 40
_NUM_MARKED = 14
_PAPERS_UNIT = 10**8
# A figure over both columns, in inches, with one row in the legend.
# Under which name the formats record when a file was written.
_DATES = {'.pdf': 'CreationDate', '.svg': 'Date'}
_WIDTH = 7.0
_HEIGHT = 2.25
_HEIGHT_OF_ROW = 0.14
# Of the caption, which makes the figure higher, not the panels smaller.
_HEIGHT_OF_LINE = 0.1
_CHARACTERS_PER_INCH = 20
# Of an entry of the legend, in inches.
_WIDTH_OF_HANDLE = 0.45
_WIDTH_OF_CHARACTER = 0.051


def plot_panels(
  by_label: Mapping[str, Sequence[runs.Run]],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
  best_so_far: bool = False,
  methods: Optional[Mapping[str, runs.Method]] = None,
) -> pd.DataFrame:
  """Draws validation accuracy and training loss of several methods.

  Lines are means over the runs of a method, and bands reach one standard
  deviation up and down, see `curves.average`; a single run has no band. By
  bits, a mean stands at the mean of the bits that were sent up to its round,
  from the first round on in which a client has sent its update. Markers are at
  evaluations, or at some if there are many. Runs without an accuracy have the
  validation loss in its place.

  Args:
    by_label: Each method's runs, which differ in their seeds, by its name in
      the legend.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure, which names the data.
    best_so_far: Whether to draw the best validation accuracy so far, without
      the training loss.
    methods: The method of each name, if it is another than that of the runs'
      settings.

  Returns:
    A row for each line: its panel, name, number of points, last place, and the
    mean and the deviation there, and the mean of all points.

  Raises:
    OSError: If the figure cannot be written.
  """
  columns = [_score_column(by_label)] + ['training_loss'] * (not best_so_far)
  methods = methods or {
    label: runs.method_of(of_method[0].settings)
    for label, of_method in by_label.items()
  }
  looks = line_looks(methods.values())
  unit, unit_size = _choose_unit(by_label)
  drawn = []
  with style.context(STYLE):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    all_axes = fig.subplots(1, 2 * len(columns))
    for axis, column in zip(all_axes, columns * 2):
      is_by_bits = axis in all_axes[len(columns) :]
      averages = {}
      for label, of_method in by_label.items():
        average = curves.average(
          [_curve(run, column, best_so_far) for run in of_method]
        )
        if is_by_bits:
          average = _by_bits(average, of_method, unit_size)
        averages[label] = average
      is_loss = column == 'training_loss'
      markers = {} if is_loss else _markers(methods.values())
      draw_lines(axis, averages, methods, looks, markers)
      if is_by_bits:
        _format_bits(axis, unit)
      else:
        axis.set_xlabel('Communication round')
      if is_loss:
        axis.set_ylabel('Training loss')
        limit_loss(axis, _loss_limit(by_label))
      elif column == 'validation_loss':
        axis.set_ylabel('Validation loss')
        limit_loss(axis, _loss_limit(by_label))
      else:
        name = 'Best accuracy so far' if best_so_far else 'Validation accuracy'
        axis.set_ylabel(f'{name} [%]')
        axis.set_ylim(0, _accuracy_limit(by_label))
        if not is_by_bits:
          _magnify(axis, averages, methods, looks)
      panel = f'{axis.get_ylabel()} by {axis.get_xlabel()}'
      drawn += [
        {'panel': panel, 'line': label, **describe_line(average)}
        for label, average in averages.items()
      ]
    lines = {line.get_label(): line for line in all_axes[0].lines}
    add_legend(fig, {lines[label]: methods[label] for label in methods})
    add_caption(fig, caption)
    save(fig, paths)
  return pd.DataFrame(drawn)


def draw_lines(
  axis,
  averages: Mapping[str, pd.DataFrame],
  methods: Mapping[str, runs.Method],
  looks: Mapping[runs.Method, Mapping[str, Any]],
  markers: Mapping[runs.Method, str],
) -> None:
  """Draws the mean of each method with its band.

  Args:
    axis: Where to.
    averages: The mean and the deviation of each method, see `curves.average`.
    methods: The methods by the same names.
    looks: As of `line_looks`.
    markers: The markers of evaluations; none for methods that are not there.
  """
  ms = sorted({of.expected_clients for of in methods.values()} - {None})
  for label, average in averages.items():
    method = methods[label]
    look = dict(looks[method])
    if method in markers:
      # Markers of the second m are open.
      if method.expected_clients in ms[1::2] and method.compression is None:
        look['markerfacecolor'] = 'white'
      look.update(
        marker=markers[method],
        markersize=_MARKER_SIZE,
        markeredgewidth=0.4,
        markevery=_marked(len(average)),
      )
    draw_with_band(axis, average, label=label, **look)


def _marked(num_evaluations: int) -> list[int]:
  """The places of the evaluations that are marked; the last is one."""
  if num_evaluations <= _MOST_MARKERS:
    return list(range(num_evaluations))
  places = np.geomspace(1, num_evaluations, _NUM_MARKED).round().astype(int) - 1
  return np.unique(places).tolist()


def _markers(methods: Iterable[runs.Method]) -> dict[runs.Method, str]:
  """The marker of each method."""
  methods = list(methods)
  compressions = _compressions(methods)
  markers = {}
  for method in methods:
    markers[method] = MARKERS.get(family(method), OTHER_MARKER)
    if method.compression is not None:
      rank = compressions.index(method.compression)
      markers[method] = _MARKERS_OF_COMPRESSIONS[
        rank % len(_MARKERS_OF_COMPRESSIONS)
      ]
  return markers


def _compressions(methods):
  return list(dict.fromkeys(m.compression for m in methods if m.compression))


def describe_line(average: pd.DataFrame) -> dict[str, float]:
  """The row that `plot_panels` returns for a line, without its names."""
  finite = average.dropna()
  if finite.empty:
    return {'points': 0}
  return {
    'points': len(finite),
    'last_place': finite.index[-1],
    'last_mean': finite['mean'].iloc[-1],
    'last_deviation': finite['std'].iloc[-1],
    'mean_of_points': finite['mean'].mean(),
  }


def _by_bits(average, of_method, unit_size):
  """A curve by rounds, placed at the mean of the bits up to each round.

  It begins with the first update that a run has sent. The few bits of scalars
  before it would take up most of a logarithmic axis.
  """
  rounds = average.index
  bits, updates = (
    np.mean([values[rounds] for values in of_runs], axis=0)
    for of_runs in (
      [run.metrics['cumulative_uplink_bits'] for run in of_method],
      [run.metrics['participants'].cumsum() for run in of_method],
    )
  )
  average = average.set_axis(bits / unit_size)
  return average[updates > 0] if updates.any() else average


# The place of an inset in its panel. Below curves that rise, there is room: its
# left is the first where its top and the numbers on its left are below all of
# them.
_LEFTS_OF_INSET = (0.42, 0.5, 0.58)
_RIGHT_OF_INSET = 0.98
_WIDTH_OF_NUMBERS = 0.14
_BOTTOM_OF_INSET = 0.13
_LOWEST_INSET, _HIGHEST_INSET = 0.26, 0.4
# The inset shows the rounds from this part of them on.
_START_OF_INSET = 1 / 3
# Methods coincide whose means are at most so far from those of the one with the
# best last mean, in parts of the panel's height.
_COINCIDING = 0.03


def _magnify(axis, averages, methods, looks) -> None:
  """Adds an inset where methods coincide at the panel's scale, if it fits."""
  height = axis.get_ylim()[1]
  last_round = max(average.index[-1] for average in averages.values())
  start = last_round * _START_OF_INSET
  ends = {
    label: average['mean'][average.index >= start]
    for label, average in averages.items()
  }
  ends = {label: end for label, end in ends.items() if end.notna().any()}
  if not ends or len(ends) < 2:
    return
  best = max(ends.values(), key=lambda end: end.dropna().iloc[-1])
  near = [
    end
    for end in ends.values()
    if (end - best).abs().max() <= _COINCIDING * height
  ]
  if len(near) < 2:
    return
  low = min(end.min() for end in near)
  high = max(end.max() for end in near)
  place = _place_inset(averages, last_round, height)
  if place is None:
    return
  inset = axis.inset_axes(place)
  draw_lines(inset, averages, methods, looks, markers={})
  margin = 0.08 * (high - low) or 0.01 * height
  inset.set_ylim(low - margin, high + margin)
  inset.set_xlim(start, last_round * 1.01)
  inset.tick_params(labelsize=5, width=0.4, length=1.5, pad=1)
  inset.xaxis.set_major_locator(ticker.MaxNLocator(3, integer=True))
  inset.yaxis.set_major_locator(ticker.MaxNLocator(3))
  for label in inset.get_yticklabels():
    # They stand on the curves.
    label.set_bbox(
      {'facecolor': 'white', 'alpha': 0.8, 'edgecolor': 'none', 'pad': 0.2}
    )
  for spine in inset.spines.values():
    spine.set_visible(True)
    spine.set_color('#777777')
    spine.set_linewidth(0.4)


def _place_inset(averages, last_round, height):
  """The left, bottom, width and height of the inset; `None` without room."""

  def room(left):
    start = last_round * (left - _WIDTH_OF_NUMBERS)
    lowest = min(
      average['mean'][average.index >= start].min()
      for average in averages.values()
    )
    return lowest / height - 0.04 - _BOTTOM_OF_INSET

  rooms = {left: room(left) for left in _LEFTS_OF_INSET}
  with_room = [left for left, of in rooms.items() if of >= _LOWEST_INSET]
  if not with_room:
    return None
  left = with_room[0]
  return (
    left,
    _BOTTOM_OF_INSET,
    _RIGHT_OF_INSET - left,
    min(rooms[left], _HIGHEST_INSET),
  )


def line_looks(
  methods: Iterable[runs.Method],
) -> dict[runs.Method, dict[str, Any]]:
  """The colour of each method's line, and its dashes, which differ with m.

  Args:
    methods: The methods that are shown together. Those that are not the
      paper's have the remaining colours, in their order.

  Returns:
    The arguments of `Axes.plot`, by method.
  """
  methods = list(methods)
  ranks = sorted({m.expected_clients for m in methods} - {None})
  compressions = _compressions(methods)
  families = [family(method) for method in methods]
  others = list(dict.fromkeys(f for f in families if f not in _LOOKS))
  looks = {}
  for method in methods:
    m = method.expected_clients
    rank = 0 if m is None else ranks.index(m)
    name = family(method)
    if method.compression is not None:
      rank = compressions.index(method.compression)
      color = _COLORS_OF_COMPRESSIONS[rank % len(_COLORS_OF_COMPRESSIONS)]
      look, linestyles, rank = {'color': color}, _LINESTYLES, rank + 1
    elif name in _LOOKS:
      look = _LOOKS[name]
      linestyles = _LINESTYLES_OF.get(name, _LINESTYLES)
    else:
      # When the colours are used up, they come again with other dashes.
      lap, index = divmod(others.index(name), len(_OTHER_COLORS))
      look, linestyles = {'color': _OTHER_COLORS[index]}, _LINESTYLES
      rank += lap
    looks[method] = {'linestyle': linestyles[rank % len(linestyles)], **look}
  return looks


def family(method: runs.Method) -> str:
  """The name that methods of one colour share: their sampling, or their own."""
  return method.name or method.sampling


def draw_with_band(axis, curve: pd.DataFrame, *, color: str, **look) -> None:
  """Draws a mean over seeds, and a band of one standard deviation around it."""
  if len(curve) == 1:
    # A line of one point would not be seen.
    look.setdefault('marker', '.')
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


def limit_loss(axis, limit: Optional[float]) -> None:
  """Cuts the axis off at a limit, and says so where that hides something."""
  peak = max(np.nanmax(line.get_ydata(), initial=0) for line in axis.lines)
  # The limits of the data are those of bands, too, but not of infinite values.
  top_of_bands = axis.dataLim.y1
  axis.set_ylim(0, limit)
  if limit is not None and max(peak, top_of_bands) > limit:
    what = f'mean up to {peak:.3g}' if peak > limit else 'bands'
    axis.text(
      0.98,
      0.98,
      f'cut off: {what}',
      transform=axis.transAxes,
      ha='right',
      va='top',
      fontsize=5.5,
      # It may stand on a line.
      bbox={'facecolor': 'white', 'edgecolor': 'none', 'pad': 0.5},
    )


def add_legend(
  fig: figure.Figure, methods: Mapping[matplotlib_lines.Line2D, runs.Method]
) -> None:
  """Adds the legend above the panels, with a column for each colour.

  Where they are too wide, a column has several colours.

  Args:
    fig: The figure, high enough for a legend of one row; it grows with others.
    methods: Which method each of the lines shows, in the legend's order.
  """
  columns: dict = {}
  num_compressed = 0
  are_compressed = any(method.compression for method in methods.values())
  for line, method in methods.items():
    if not are_compressed:
      key = family(method)
    elif method.compression is None:
      key = 'uncompressed'
    else:
      # The names are long: two of them make a column.
      key = num_compressed // 2
      num_compressed += 1
    columns.setdefault(key, []).append(line)
  columns = _join_columns(list(columns.values()), fig.get_figwidth())
  num_rows = max(len(column) for column in columns)
  fig.set_figheight(fig.get_figheight() + _HEIGHT_OF_ROW * (num_rows - 1))
  blank = matplotlib_lines.Line2D([], [], linestyle='none', label='')
  handles = []
  for column in columns:
    handles += column + [blank] * (num_rows - len(column))
  fig.legend(handles=handles, loc='outside upper center', ncols=len(columns))


def _join_columns(columns, width):
  """Joins columns next to each other until they fit into a width in inches."""

  def width_of(column):
    characters = max(len(line.get_label()) for line in column)
    return _WIDTH_OF_HANDLE + _WIDTH_OF_CHARACTER * characters

  columns = list(columns)
  while len(columns) > 1 and sum(map(width_of, columns)) > width:
    heights = [len(a) + len(b) for a, b in zip(columns, columns[1:])]
    # The last ones of equal height: the first column is that of a reference.
    index = len(heights) - 1 - heights[::-1].index(min(heights))
    columns[index : index + 2] = [columns[index] + columns[index + 1]]
  return columns


def add_caption(fig: figure.Figure, caption: str) -> None:
  """Adds the line below the figure."""
  width = round(_CHARACTERS_PER_INCH * fig.get_figwidth())
  lines = textwrap.wrap(caption, width)
  fig.set_figheight(fig.get_figheight() + _HEIGHT_OF_LINE * (len(lines) - 1))
  fig.supxlabel('\n'.join(lines))


def save(fig: figure.Figure, paths: Sequence[Union[str, os.PathLike]]) -> None:
  """Writes a figure; the same figure gives the same files."""
  for path in paths:
    date = _DATES.get(pathlib.Path(path).suffix)
    with files.replacing(path) as partial:
      fig.savefig(partial, metadata={date: None} if date else None)


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
