"""The figure of accuracy against m, which shows how many clients are enough."""

import math
import os
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import panels
from tff_ocs.records import runs

_FULL = runs.Method('full')
_AOCS = runs.Method('aocs')
_MARKER_SIZE = 3.4
_CHOSEN_SIZE = 5
# In inches: one panel fills a column, three fill both.
_HEIGHT = 2.1
_WIDTH_OF_PANEL = 2.2
_LEAST_WIDTH = 3.4
_KEY = 'Filled: the smallest m within one standard deviation of full.'


class Panel(NamedTuple):
  """The accuracies for one size of the cohort.

  Attributes:
    clients_per_round: n.
    full_accuracy: That of full participation, as a mean over the seeds, in
      [0, 1].
    full_deviation: Its standard deviation over the seeds.
    expected_clients: m, increasing, of shape [num].
    accuracy: The mean accuracy of AOCS with each m.
    deviation: Its standard deviation.
    smallest: The smallest m that is enough; `None` if none is.
  """

  clients_per_round: int
  full_accuracy: float
  full_deviation: float
  expected_clients: np.ndarray
  accuracy: np.ndarray
  deviation: np.ndarray
  smallest: Optional[int]


def plot_participation(
  shown: Sequence[Panel],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws the accuracy of AOCS against m, and that of full participation.

  Bars and the band reach one standard deviation up and down. A vertical line
  stands at the square root of n, the order that the paper conjectures.

  Args:
    shown: The accuracies for each n, at least one.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure, which names the data.

  Raises:
    OSError: If the figure cannot be written.
  """
  looks = panels.line_looks([_FULL, _AOCS])
  width = max(_LEAST_WIDTH, _WIDTH_OF_PANEL * len(shown))
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(width, _HEIGHT), layout='constrained')
    axes = fig.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axis, panel in zip(axes, shown):
      _draw(axis, panel, looks)
    axes[0].set_ylabel('Validation accuracy [%]')
    fig.legend(
      *axes[0].get_legend_handles_labels(),
      loc='outside upper center',
      ncols=3,
    )
    panels.add_caption(fig, f'{caption} {_KEY}')
    for path in paths:
      panels.save(fig, path)


def _draw(axis, panel, looks):
  n, m = panel.clients_per_round, panel.expected_clients
  full, aocs = looks[_FULL], looks[_AOCS]
  axis.axhline(100 * panel.full_accuracy, label='full participation', **full)
  axis.axhspan(
    100 * (panel.full_accuracy - panel.full_deviation),
    100 * (panel.full_accuracy + panel.full_deviation),
    color=full['color'],
    alpha=0.15,
    linewidth=0,
  )
  y = 100 * panel.accuracy
  axis.errorbar(
    m,
    y,
    100 * panel.deviation,
    marker='^',
    markersize=_MARKER_SIZE,
    markerfacecolor='white',
    elinewidth=0.7,
    label='AOCS',
    **aocs,
  )
  if panel.smallest is not None:
    axis.plot(
      panel.smallest,
      y[list(m).index(panel.smallest)],
      marker='^',
      markersize=_CHOSEN_SIZE,
      color=aocs['color'],
      zorder=3,
    )
  axis.axvline(
    math.sqrt(n),
    color='#777777',
    linestyle=(0, (1, 1)),
    label=r'm = $\sqrt{n}$',
  )
  axis.set_title(f'n = {n}')
  axis.set_xscale('log')
  axis.xaxis.set_major_locator(ticker.FixedLocator(m))
  axis.xaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
  axis.xaxis.set_minor_locator(ticker.NullLocator())
  axis.set_xlabel('Expected participants m')
