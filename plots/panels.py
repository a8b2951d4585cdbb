"""The paper's four-panel figure: accuracy and loss, by rounds and by bits."""

import os
import pathlib
from collections.abc import Mapping
from typing import Union

import numpy as np
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import runs

# Of Okabe and Ito's palette, told apart by the colour-blind and, through their
# lightness and dashes, in grey.
_LOOKS = {
  'full': {'color': '#000000', 'linestyle': '-'},
  'uniform': {'color': '#E69F00', 'linestyle': (0, (4, 1.5))},
  'ocs': {'color': '#56B4E9', 'linestyle': (0, (1, 1))},
  'aocs': {'color': '#0072B2', 'linestyle': '-'},
}
_STYLE = pathlib.Path(__file__).with_name('paper.mplstyle')
_BITS_UNIT = 1e8


def plot_panels(
  by_label: Mapping[str, runs.Run],
  path: Union[str, os.PathLike],
  *,
  caption: str,
) -> None:
  """Draws validation accuracy and training loss of several runs.

  Args:
    by_label: The runs by their names in the legend.
    path: Where to write the figure; the ending decides the format.
    caption: The line below the figure; says what the data is.

  Raises:
    OSError: If the figure cannot be written.
  """
  with style.context(_STYLE):
    fig = figure.Figure(figsize=(7.0, 2.1), layout='constrained')
    axes = fig.subplots(1, 4)
    for label, run in by_label.items():
      look = {**_LOOKS[run.config['sampling']], 'label': label}
      rounds, accuracy = run.evaluated('validation_accuracy')
      loss = run.metrics['training_loss']
      bits = run.metrics['cumulative_uplink_bits'] / _BITS_UNIT
      axes[0].plot(rounds, 100 * accuracy, **look)
      axes[1].plot(np.arange(len(loss)), loss, **look)
      axes[2].plot(bits[rounds], 100 * accuracy, **look)
      axes[3].plot(bits, loss, **look)
    for axis in axes[:2]:
      axis.set_xlabel('Communication round')
    for axis in axes[2:]:
      axis.set_xlabel(r'Uplink [$10^8$ bits]')
      axis.set_xscale('log', base=2)
      # Every second power at most, so that the labels do not touch.
      axis.xaxis.set_major_locator(ticker.LogLocator(base=2, numticks=6))
    for axis in axes[::2]:
      axis.set_ylabel('Validation accuracy [%]')
      axis.set_ylim(0, 100)
    for axis in axes[1::2]:
      axis.set_ylabel('Training loss')
      axis.set_ylim(bottom=0)
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc='outside upper center', ncols=len(labels))
    fig.text(0.5, -0.02, caption, ha='center', va='top', color='#404040')
    fig.savefig(path, bbox_inches='tight')
