"""The figure of the noise that sampling would add, by m and by uplink."""

import os
from collections.abc import Sequence
from typing import Union

import pandas as pd
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import captions
from plots import panels
from tff_ocs.records import runs

_WIDTH = 5.2
_HEIGHT = 2.2
_LINES = {
  'uniform_variance': ('uniform sampling', runs.Method('uniform')),
  'optimal_variance': ('optimal sampling', runs.Method('aocs')),
}
# In per cent.
_FLOOR = 0.1


def plot_estimate(
  table: pd.DataFrame,
  paths: Sequence[Union[str, os.PathLike]],
  *,
  tolerance: float,
  caption: str,
) -> None:
  """Draws the added variance of uniform and of optimal sampling.

  Args:
    table: The table estimate.csv. Rounds without noise of their own, whose
      variances are infinite, leave the panels empty.
    paths: Where to write the figure; the endings decide the formats.
    tolerance: The part of a round's own noise that a sampling may add.
    caption: The line below the figure, which names the data.

  Raises:
    OSError: If the figure cannot be written.
  """
  looks = panels.line_looks([method for _, method in _LINES.values()])
  by_m = table['expected_clients']
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(_WIDTH, _HEIGHT), layout='constrained')
    by_clients, by_bits = fig.subplots(1, 2, sharey=True)
    uplinks = {
      # Uniform sampling sends nothing but the updates.
      'uniform_variance': by_m / by_m.max(),
      'optimal_variance': table['uplink_of_full'],
    }
    for column, (label, method) in _LINES.items():
      share = 100 * table[column]
      by_clients.plot(by_m, share, label=label, **looks[method])
      by_bits.plot(100 * uplinks[column], share, **looks[method])
    for axis in (by_clients, by_bits):
      axis.axhline(
        100 * tolerance,
        color='#777777',
        linestyle=(0, (1, 1)),
        label=f"{tolerance:.0%} of a round's own noise",
      )
      # With m = n nothing is added.
      axis.set_yscale('log', nonpositive='mask')
      axis.set_ylim(bottom=_FLOOR)
      axis.yaxis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
    by_clients.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    by_clients.set_xlabel('Expected participants m')
    by_clients.set_ylabel('Added variance [%]')
    by_bits.set_xlabel('Uplink [% of full participation]')
    fig.legend(
      *by_clients.get_legend_handles_labels(),
      loc='outside upper center',
      ncols=3,
    )
    panels.add_caption(fig, captions.escape(caption))
    panels.save(fig, paths)
