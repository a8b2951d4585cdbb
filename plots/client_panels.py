"""The figure of single clients: their accuracies and their participations."""

import os
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Union

import numpy as np
import pandas as pd
from matplotlib import figure
from matplotlib import lines as matplotlib_lines
from matplotlib import style
from matplotlib import ticker

from plots import captions
from plots import curves
from plots import panels
from tff_ocs.records import clients
from tff_ocs.records import runs

# A figure over both columns, in inches, with one row in the legend.
_WIDTH = 7.0
_HEIGHT = 2.35
_GREY = '#777777'
_LIGHT_GREY = '#D0D0D0'
# Of clients by size, each of which is a point of a line.
_NUM_SIZES = 8
_WORST_PERCENT = 100 * clients.WORST_FRACTION
_WORST_MARKER = 'v'
_MARKER_SIZE = 2.4
_UNSEEN = (
  ' These numbers are of a simulation: a real server does not see the accuracy'
  ' or the participations of single clients.'
)


class Recorded(NamedTuple):
  """The runs of a method that recorded single clients.

  Attributes:
    group: The runs.
    tables: The clients of each run, as of `clients.read_clients`.
    accuracies: Their evaluations, as of `clients.read_accuracies`.
  """

  group: runs.Group
  tables: list[pd.DataFrame]
  accuracies: list[pd.DataFrame]


def plot(
  recorded: Sequence[Recorded], paths: Sequence[Union[str, os.PathLike]]
) -> None:
  """Draws the clients' accuracies, in the end and by rounds, and their counts.

  Left, the accuracies in ascending order, of which the worst 10 % are shaded.
  In the middle, the mean and the mean of the worst 10 % by rounds, if there are
  several evaluations. Right, how often clients were drawn and sent their
  update, by their number of training examples, if that was recorded.

  Args:
    recorded: The methods, in the order of the legend; all of one experiment.
    paths: Where to write the figure; the endings decide the formats.

  Raises:
    OSError: If the figure cannot be written.
  """
  methods = [of.group.method for of in recorded]
  looks = panels.line_looks(methods)
  drawers: list[Callable] = [_draw_distribution]
  caption = (
    f'{captions.describe_runs([of.group for of in recorded])} Accuracy on each'
    " client's own validation examples: of the final weights, in ascending"
    f' order, the worst {_WORST_PERCENT:g} % shaded'
  )
  if any(len(table) > 1 for of in recorded for table in of.accuracies):
    drawers.append(_draw_rounds)
    caption += '; and by rounds'
  caption += '.'
  if all(
    table['training_examples'].notna().all()
    for of in recorded
    for table in of.tables
  ):
    drawers.append(_draw_participations)
    caption += (
      ' Rounds in which a client was drawn and sent, by its size: means of up'
      f' to {_NUM_SIZES} groups of clients (lines), and the rounds in which'
      ' each client sent (points).'
    )
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    all_axes = fig.subplots(1, len(drawers), squeeze=False)[0]
    for axis, draw in zip(all_axes, drawers):
      draw(axis, recorded, looks)
    by_line = dict(zip(all_axes[0].lines, methods))
    panels.add_legend(fig, by_line)
    panels.add_caption(fig, caption + _UNSEEN)
    panels.save(fig, paths)


def _draw_distribution(axis, recorded, looks):
  """The accuracies in ascending order, a mean over the seeds by rank."""
  axis.axvspan(0, _WORST_PERCENT, color='#EEEEEE', linewidth=0, zorder=0)
  for of in recorded:
    average = curves.average([_ascending(table) for table in of.tables])
    panels.draw_with_band(
      axis,
      average,
      label=captions.legend_label(of.group),
      **looks[of.group.method],
    )
  axis.text(
    0.65 * _WORST_PERCENT,
    0.05,  # Below most curves.
    f'worst {_WORST_PERCENT:g} %',
    transform=axis.get_xaxis_transform(),
    rotation='vertical',
    ha='center',
    va='bottom',
    fontsize=6,
    color=_GREY,
  )
  axis.set_xlim(0, 100)
  # A band may reach below.
  axis.set_ylim(0, 101)
  axis.set_xlabel('Clients, worst first [%]')
  axis.set_ylabel("Accuracy on a client's data [%]")


def _ascending(table: pd.DataFrame) -> pd.Series:
  """The accuracies in per cent, by the middle of a client's share."""
  accuracies = np.sort(table['accuracy'].dropna())
  shares = 100 * (np.arange(accuracies.size) + 0.5) / accuracies.size
  return pd.Series(100 * accuracies, index=shares)


def _draw_rounds(axis, recorded, looks):
  """The mean and the mean of the worst clients after each evaluation."""
  for of in recorded:
    for column, others in (
      ('mean', {}),
      (
        'worst_10_percent',
        {'marker': _WORST_MARKER, 'markersize': _MARKER_SIZE},
      ),
    ):
      average = curves.average(
        [100 * table.set_index('round')[column] for table in of.accuracies]
      )
      panels.draw_with_band(axis, average, **looks[of.group.method], **others)
  axis.set_ylim(0, 101)
  axis.set_xlabel('Communication round')
  axis.set_ylabel('Accuracy over clients [%]')
  _explain(
    axis,
    {
      'mean': {},
      f'worst {_WORST_PERCENT:g} %': {
        'marker': _WORST_MARKER,
        'markersize': _MARKER_SIZE,
      },
    },
    'lower right',
  )


def _draw_participations(axis, recorded, looks):
  """How often clients of each size were drawn and sent."""
  pools = [_pool(of.tables) for of in recorded]
  drawn = [pool['simulated_draws'] for pool in pools]
  if all(of.equals(drawn[0]) for of in drawn):
    # The methods share their cohorts, as those of the paper do.
    _draw_means(axis, pools[0], 'simulated_draws', _drawn_look(_LIGHT_GREY))
  else:
    for of, pool in zip(recorded, pools):
      look = _drawn_look(looks[of.group.method]['color'])
      _draw_means(axis, pool, 'simulated_draws', {**look, 'alpha': 0.3})
  for of, pool in zip(recorded, pools):
    method = of.group.method
    look = looks[method]
    axis.scatter(
      pool['training_examples'],
      pool['simulated_sends'],
      s=1.5,
      alpha=0.35,
      linewidth=0,
      color=look['color'],
    )
    marker = panels.MARKERS.get(panels.family(method), panels.OTHER_MARKER)
    _draw_means(
      axis,
      pool,
      'simulated_sends',
      {**look, 'marker': marker, 'markersize': _MARKER_SIZE},
    )
  sizes = pools[0]['training_examples']
  if sizes.max() > 10 * sizes.min():
    axis.set_xscale('log')
  # With room for the legend.
  most = max(pool['simulated_draws'].max() for pool in pools)
  axis.set_ylim(0, 1.25 * max(most, 1))
  axis.yaxis.set_major_locator(ticker.MaxNLocator(6, integer=True))
  axis.set_xlabel('Training examples of the client')
  axis.set_ylabel('Rounds in which it took part')
  _explain(axis, {'drawn': _drawn_look(_LIGHT_GREY), 'sent': {}}, 'upper left')


def _drawn_look(color) -> Mapping:
  """A broad line, on which that of the updates sent is seen."""
  return {'color': color, 'linewidth': 3.5}


def _pool(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
  """The sizes and mean counts of the clients of the pool, by their ids."""
  everything = pd.concat([table[table['in_pool']] for table in tables])
  columns = ['training_examples', 'simulated_draws', 'simulated_sends']
  return everything.groupby('client_id')[columns].mean()


def _draw_means(axis, pool, column, look):
  """The means of groups of clients of about the same size."""
  edges = np.unique(
    np.quantile(
      pool['training_examples'],
      np.arange(1, _NUM_SIZES) / _NUM_SIZES,
    )
  )
  means = pool.groupby(np.searchsorted(edges, pool['training_examples'])).mean()
  axis.plot(means['training_examples'], means[column], **look)


def _explain(axis, looks, place):
  """A legend in the panel, of what is not a matter of the method."""
  handles = [
    matplotlib_lines.Line2D([], [], label=label, **{'color': _GREY, **look})
    for label, look in looks.items()
  ]
  axis.legend(
    handles=handles,
    loc=place,
    fontsize=6,
    handlelength=1.8,
    frameon=True,
    framealpha=0.8,
    edgecolor='none',
    borderpad=0.2,
  )
