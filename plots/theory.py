"""Draws the results of `experiments.quadratic`.

  python -m plots.theory --results_dir=quadratic --output_dir=figures

There are three figures: theory_bounds (the quantities that the convergence
theorems bound, by round), theory_neighbourhood (the distance from the minimiser
that DSGD settles at, by m) and theory_step_sizes (the largest stable step size,
by heterogeneity).
"""

import contextlib
import json
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any
from typing import Optional

import numpy as np
import pandas as pd
from absl import app
from absl import flags
from absl import logging
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import panels
from programs import entry
from programs import paths
from tff_ocs.records import runs

_SAMPLINGS = ('full', 'uniform', 'ocs')
_MARKER = {'markersize': 3.2, 'markerfacecolor': 'white'}
_BOUND = {'linestyle': (0, (3, 1.2)), 'linewidth': 0.9, 'marker': ''}
# In inches.
_SIZE_OF_PANELS = (7.0, 2.2)
_SIZE_OF_ONE = (3.4, 2.4)
_PANELS = {
  13: 'DSGD, strongly convex',
  15: 'DSGD, non-convex',
  17: 'FedAvg, strongly convex',
  18: 'FedAvg, non-convex',
}
_DISTANCE = r'$\mathrm{E}\,\|x^k - x^\star\|^2$'
_VALUE = r'$\mathrm{E}\,f(x^k) - f^\star$'


class TheoryError(ValueError):
  """Raised if results are missing."""


def read(path: pathlib.Path) -> pd.DataFrame:
  """Reads a CSV file of `experiments.quadratic`; empty cells are NaN or ''."""
  try:
    table = pd.read_csv(path, dtype={'step': str, 'global_step': str})
  except FileNotFoundError as error:
    raise TheoryError(
      f'there is no {path.name} in {path.parent}; python -m'
      ' experiments.quadratic writes it, at its end.'
    ) from error
  return table.fillna({'global_step': ''})


def plot_bounds(
  rows: pd.DataFrame,
  expected_clients: float,
  paths: Sequence[pathlib.Path],
  *,
  caption: str,
) -> None:
  """Draws the quantity that each theorem bounds, and the bound, by round.

  The step sizes are the largest that the theorem allows. The bound is the
  repaired one, or the stated one where the repaired one does not apply.

  Args:
    rows: The table bounds.csv.
    expected_clients: m.
    paths: The files to write; their endings decide the formats.
    caption: The beginning of the caption. An explanation of the lines follows.
  """
  rows = rows[
    (rows['step'] == '1') & rows['global_step'].isin(['', 'smallest'])
  ]
  rows = rows.assign(
    bound=rows['repaired_from_start'].fillna(rows['stated_from_start'])
  )
  numbers = [number for number in _PANELS if number in set(rows['theorem'])]
  caption += (
    ' Solid: measured. Dashed: the repaired bound, applied in each round to the'
    ' bound of the round before; where fewer lines are dashed, some coincide.'
  )
  with _figure(_SIZE_OF_PANELS, len(numbers), caption, paths) as (
    fig,
    all_axes,
  ):
    for axis, number in zip(all_axes, numbers):
      methods = _draw(
        axis,
        rows[rows['theorem'] == number],
        ('round', 'measured', 'bound'),
        _looks(expected_clients),
      )
      _format_log(axis)
      axis.xaxis.set_major_locator(
        ticker.MaxNLocator(5, integer=True, min_n_ticks=1)
      )
      axis.set_xlabel('Communication round')
      axis.set_ylabel(_DISTANCE if number in (13, 17) else _VALUE)
      axis.set_title(f'Theorem {number}\n{_PANELS[number]}')
    panels.add_legend(fig, methods)


def plot_neighbourhood(
  rows: pd.DataFrame, paths: Sequence[pathlib.Path], *, caption: str
) -> None:
  """Draws neighbourhood.csv: the distance that DSGD settles at, by m."""
  numbers = sorted(set(rows['expected_clients']))
  # Full participation does not depend on m: a level line.
  full = rows[rows['sampling'] == 'full']
  rows = pd.concat([full.assign(expected_clients=numbers[0]), rows])
  caption += (
    f' DSGD with the constant step size {rows["step_size"].iloc[0]:.3g}. Solid:'
    ' measured. Dashed: repaired bound of Theorem 13.'
  )
  with _figure(_SIZE_OF_ONE, 1, caption, paths) as (fig, (axis,)):
    looks = _looks(None, with_markers=('uniform', 'ocs'))
    columns = ('expected_clients', 'measured', 'repaired')
    panels.add_legend(fig, _draw(axis, rows, columns, looks))
    _format_log(axis)
    axis.set_xscale('log', base=2)
    axis.set_xticks(numbers, [f'{number:g}' for number in numbers])
    axis.set_xlabel('Expected participants m')
    axis.set_ylabel(_DISTANCE)


def plot_step_sizes(
  rows: pd.DataFrame, paths: Sequence[pathlib.Path], *, caption: str
) -> None:
  """Draws step_sizes.csv: the largest stable step size, by heterogeneity."""
  caption += (
    ' Solid: measured; longer steps of DSGD from a distant $x$ lead away from'
    r' $x^\star$ on average. Dashed: allowed by Theorem 13.'
  )
  with _figure(_SIZE_OF_ONE, 1, caption, paths) as (fig, (axis,)):
    looks = _looks(rows['expected_clients'].iloc[0], with_markers=_SAMPLINGS)
    columns = ('heterogeneity', 'largest_stable', 'limit')
    panels.add_legend(fig, _draw(axis, rows, columns, looks))
    axis.set_ylim(0, None)
    axis.set_xlabel('Heterogeneity')
    axis.set_ylabel(r'Largest step size $\times L$')


@contextlib.contextmanager
def _figure(size, num_panels, caption, paths):
  """A figure and its axes; afterwards it is written with the caption."""
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=size, layout='constrained')
    yield fig, np.atleast_1d(fig.subplots(1, num_panels))
    panels.add_caption(fig, caption)
    panels.save(fig, paths)


def _looks(
  expected_clients: Optional[float], with_markers: Sequence[str] = ()
) -> dict[runs.Method, dict[str, Any]]:
  """The arguments of `Axes.plot` for the measured line of each method."""
  methods = [
    runs.Method(sampling, None if sampling == 'full' else expected_clients)
    for sampling in _SAMPLINGS
  ]
  looks = panels.line_looks(methods)
  for method, look in looks.items():
    # Dashes are for bounds. The broad line of OCS lies below the others.
    look['linestyle'] = '-'
    look['zorder'] = 1.9 if method.sampling == 'ocs' else 2
    if method.sampling in with_markers:
      look.update(marker=panels.MARKERS[method.sampling], **_MARKER)
  return looks


def _draw(axis, rows, columns, looks):
  """Draws a solid and a dashed line for each method; returns the solid ones."""
  x, solid, dashed = columns
  methods = {}
  for method, look in looks.items():
    of_method = rows[rows['sampling'] == method.sampling]
    (line,) = axis.plot(
      of_method[x], of_method[solid], label=method.label, **look
    )
    axis.plot(of_method[x], of_method[dashed], **{**look, **_BOUND})
    methods[line] = method
  return methods


def _format_log(axis):
  """Gives a logarithmic axis whole decades, so that two ticks have labels."""
  # Numbers that are 0 have no place on this axis.
  low, high = axis.dataLim.minposy, axis.dataLim.y1
  if high <= 0:
    return
  axis.set_yscale('log')
  axis.set_ylim(
    10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
  )
  axis.yaxis.set_minor_formatter(ticker.NullFormatter())


def draw(results_dir: str, output_dir: str) -> None:
  """Draws the three figures of a folder of `experiments.quadratic`.

  Raises:
    TheoryError: If results are missing.
  """
  results, output = pathlib.Path(results_dir), pathlib.Path(output_dir)
  bounds, neighbourhood, step_sizes = (
    read(results / f'{name}.csv')
    for name in ('bounds', 'neighbourhood', 'step_sizes')
  )
  config = json.loads((results / 'config.json').read_text())
  output.mkdir(parents=True, exist_ok=True)

  def files_of(name):
    return [output / f'theory_{name}.{ending}' for ending in ('png', 'pdf')]

  shape = (
    f'n={config["num_clients"]}, d={config["dimension"]},'
    f' M={config["noise_slope"]:g}, $\\sigma^2$={config["noise_variance"]:g}'
  )
  heterogeneity = f'heterogeneity {config["heterogeneity"]:g}'
  repeats = config['repeats']
  plot_bounds(
    bounds,
    config['expected_clients'],
    files_of('bounds'),
    caption=f'Quadratics and tilted wells, {shape}, {heterogeneity}; mean over'
    f' {repeats} repeats.',
  )
  plot_neighbourhood(
    neighbourhood,
    files_of('neighbourhood'),
    caption=f'Quadratics, {shape}, {heterogeneity}; mean over'
    f' {max(2, repeats // 10)} repeats.',
  )
  plot_step_sizes(
    step_sizes, files_of('step_sizes'), caption=f'Quadratics, {shape}.'
  )
  print(f'Figures: {output}')


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
  # matplotlib logs every font that it embeds into a PDF.
  logging.set_verbosity(logging.WARNING)
  try:
    draw(flags.FLAGS.results_dir, flags.FLAGS.output_dir)
  except (OSError, TheoryError) as error:
    sys.exit(f'error: {error}')


def _define_flags():
  paths.define_path(
    'results_dir', 'quadratic', 'The --output_dir of experiments.quadratic.'
  )
  paths.define_path(
    'output_dir', 'figures', 'The folder to write the figures to.'
  )


# Not at import: other programs define flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
