"""Draws what `experiments.quadratic` measured.

  python -m plots.theory --results_dir=quadratic --output_dir=figures

Three figures: theory_bounds (what the convergence theorems bound, by rounds),
theory_neighbourhood (how near to the minimiser a constant step size comes, by
m) and theory_step_sizes (the largest stable step size, by heterogeneity).
"""

import csv
import json
import math
import os
import pathlib
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Union

import numpy as np
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
# With colours, tell the samplings apart in grey too.
_MARKERS = {'full': 'o', 'uniform': 's', 'ocs': 'D'}
_MARKER = {'markersize': 3.2, 'markerfacecolor': 'white'}
_BOUND = {'linestyle': (0, (3, 1.2)), 'linewidth': 0.9}
# Two columns and one, in inches, with one row in the legend.
_WIDTHS = (7.0, 3.4)
_HEIGHTS = (2.2, 2.4)
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


def read(path: Union[str, os.PathLike]) -> list[dict[str, str]]:
  """Reads a CSV file of `experiments.quadratic`.

  Args:
    path: The file.

  Returns:
    Its rows.

  Raises:
    TheoryError: If there is none.
  """
  try:
    with open(path, newline='', encoding='utf-8') as file:
      return list(csv.DictReader(file))
  except FileNotFoundError as error:
    path = pathlib.Path(path)
    raise TheoryError(
      f'there is no {path.name} in {path.parent}; python -m'
      ' experiments.quadratic writes it, at its end.'
    ) from error


def plot_bounds(
  rows: Sequence[Mapping[str, str]],
  expected_clients: float,
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws what each theorem bounds, and the bound, by rounds.

  The steps are the longest that the theorem allows. The bound is the repaired
  one, from the start on, or the paper's where the repaired one says nothing.

  Args:
    rows: Of bounds.csv.
    expected_clients: m.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure; what the lines mean is added.

  Raises:
    OSError: If the figure cannot be written.
  """
  numbers = [n for n in _PANELS if any(int(r['theorem']) == n for r in rows)]
  looks = _looks(expected_clients)
  with style.context(pathlib.Path(__file__).with_name('paper.mplstyle')):
    fig = figure.Figure(figsize=(_WIDTHS[0], _HEIGHTS[0]), layout='constrained')
    axes = np.atleast_1d(fig.subplots(1, len(numbers)))
    for axis, number in zip(axes, numbers):
      in_legend = {}
      for method, look in looks.items():
        of_method = [
          row
          for row in rows
          if int(row['theorem']) == number
          and row['sampling'] == method.sampling
          and row['step'] == '1'
          and row['global_step'] in ('', 'smallest')
        ]
        rounds = [int(row['round']) for row in of_method]
        values = [float(row['measured']) for row in of_method]
        limits = [
          float(row['repaired_from_start'] or row['stated_from_start'])
          for row in of_method
        ]
        (line,) = axis.plot(rounds, values, label=method.label, **look)
        axis.plot(rounds, limits, **{**look, **_BOUND})
        in_legend[line] = method
      _format_log(axis)
      axis.xaxis.set_major_locator(
        ticker.MaxNLocator(5, integer=True, min_n_ticks=1)
      )
      axis.set_xlabel('Communication round')
      axis.set_ylabel(_DISTANCE if number in (13, 17) else _VALUE)
      axis.set_title(f'Theorem {number}\n{_PANELS[number]}')
    panels.add_legend(fig, in_legend)
    panels.add_caption(
      fig,
      f'{caption} Solid: measured; dashed: bound, carried on from the start,'
      ' with its derivation repaired.',
    )
    for path in paths:
      panels.save(fig, path)


def plot_neighbourhood(
  rows: Sequence[Mapping[str, str]],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws how near to the minimiser DSGD comes, by m.

  Args:
    rows: Of neighbourhood.csv.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure; what the lines mean is added.

  Raises:
    OSError: If the figure cannot be written.
  """
  numbers = sorted({float(row['expected_clients']) for row in rows})
  _plot_lines(
    rows,
    'expected_clients',
    'measured',
    'repaired',
    paths,
    caption=(
      f'{caption} DSGD with the constant step size'
      f' {float(rows[0]["step_size"]):.3g}. Solid: measured; dashed: bound of'
      ' Theorem 13, repaired.'
    ),
    labels=('Expected participants m', _DISTANCE),
    numbers=numbers,
  )


def plot_step_sizes(
  rows: Sequence[Mapping[str, str]],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws the largest stable step size of DSGD by heterogeneity.

  Args:
    rows: Of step_sizes.csv.
    paths: Where to write the figure; the endings decide the formats.
    caption: The line below the figure; what the lines mean is added.

  Raises:
    OSError: If the figure cannot be written.
  """
  _plot_lines(
    rows,
    'heterogeneity',
    'largest_stable',
    'limit',
    paths,
    caption=(
      f'{caption} Solid: with which a round of DSGD, from afar, still brings'
      r' $x$ nearer to $x^\star$ on average; dashed: allowed by Theorem 13.'
    ),
    labels=('Heterogeneity', r'Largest step size $\times L$'),
    numbers=None,
  )


def _plot_lines(rows, x, solid, dashed, paths, *, caption, labels, numbers):
  ms = {float(row['expected_clients']) for row in rows}
  looks = _looks(ms.pop() if numbers is None else None)
  with style.context(pathlib.Path(__file__).with_name('paper.mplstyle')):
    fig = figure.Figure(figsize=(_WIDTHS[1], _HEIGHTS[1]), layout='constrained')
    axis = fig.subplots()
    in_legend = {}
    for method, look in looks.items():
      of_method = [row for row in rows if row['sampling'] == method.sampling]
      points = [float(row[x]) for row in of_method]
      ys = [[float(row[name]) for row in of_method] for name in (solid, dashed)]
      marker = {'marker': _MARKERS[method.sampling], **_MARKER}
      if len(points) == 1:  # Full participation, whatever m is.
        points, ys, marker = [numbers[0], points[0]], [2 * y for y in ys], {}
      (line,) = axis.plot(points, ys[0], label=method.label, **look, **marker)
      axis.plot(points, ys[1], **{**look, **_BOUND})
      in_legend[line] = method
    if numbers is None:
      axis.set_ylim(0, None)
    else:
      _format_log(axis)
      axis.set_xscale('log', base=2)
      axis.set_xticks(numbers, [f'{number:g}' for number in numbers])
    axis.set_xlabel(labels[0])
    axis.set_ylabel(labels[1])
    panels.add_legend(fig, in_legend)
    panels.add_caption(fig, caption)
    for path in paths:
      panels.save(fig, path)


def _format_log(axis):
  """A logarithmic axis of whole decades, so that two ticks have labels."""
  axis.set_yscale('log')
  low, high = axis.dataLim.intervaly
  axis.set_ylim(
    10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
  )
  axis.yaxis.set_minor_formatter(ticker.NullFormatter())


def _looks(expected_clients) -> dict[runs.Method, dict[str, Any]]:
  methods = [
    runs.Method(sampling, None if sampling == 'full' else expected_clients)
    for sampling in _SAMPLINGS
  ]
  # All with solid lines: dashes tell bounds. The broad one lies below.
  return {
    method: {
      **look,
      'linestyle': '-',
      'zorder': 1.9 if method.sampling == 'ocs' else 2,
    }
    for method, look in panels.line_looks(methods).items()
  }


def draw(results_dir: str, output_dir: str) -> None:
  """Draws the three figures.

  Args:
    results_dir: The folder that `experiments.quadratic` wrote.
    output_dir: The folder to write the figures to.

  Raises:
    TheoryError: If results are missing.
    OSError: If a figure cannot be written.
  """
  results, output = pathlib.Path(results_dir), pathlib.Path(output_dir)
  tables = {
    name: read(results / f'{name}.csv')
    for name in ('bounds', 'neighbourhood', 'step_sizes')
  }
  config = json.loads((results / 'config.json').read_text())
  shape = (
    f'Quadratics and tilted wells, n={config["num_clients"]},'
    f' d={config["dimension"]}, M={config["noise_slope"]:g},'
    f' $\\sigma^2$={config["noise_variance"]:g}'
  )
  caption = (
    f'{shape}, heterogeneity {config["heterogeneity"]:g}; mean over'
    f' {config["repeats"]} repeats.'
  )
  output.mkdir(parents=True, exist_ok=True)

  def paths(name):
    return [output / f'theory_{name}.{ending}' for ending in ('png', 'pdf')]

  plot_bounds(
    tables['bounds'],
    config['expected_clients'],
    paths('bounds'),
    caption=caption,
  )
  quadratics = caption.replace(' and tilted wells', '')
  plot_neighbourhood(
    tables['neighbourhood'],
    paths('neighbourhood'),
    caption=quadratics.replace(
      f'{config["repeats"]} repeats', f'{config["repeats"] // 10} repeats'
    ),
  )
  plot_step_sizes(
    tables['step_sizes'],
    paths('step_sizes'),
    caption=shape.replace(' and tilted wells', '') + '.',
  )
  print(f'Figures: {output}')


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
  # Otherwise every font that goes into a PDF is reported at length.
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


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
