"""Draws the paper's figures from the folders of runs.

  python -m plots.figures --results_dir=runs --figure=3

Figure 2 shows the sizes of the clients of the FEMNIST training sets; 3, 4, 5
(FEMNIST sets 1, 2, 3), 6, 7 (Shakespeare with n = 32, 128) and 13 (CIFAR100)
validation accuracy and training loss; 8 to 12 the best validation accuracy so
far, for the experiments of 3 to 7. All runs that are there are drawn; those of
the paper that are not, are named. Two figures are not the paper's:
'compression' shows runs with --compression beside the same methods without, and
'improvement' the improvement factor alpha^k of the runs with AOCS.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

import numpy as np
from absl import app
from absl import flags
from absl import logging

from plots import improvement_curves
from plots import panels
from plots import sizes
from tff_ocs.records import runs


class _Figure(NamedTuple):
  """What the paper's figure shows."""

  name: str
  clients_per_round: int
  expected_clients: tuple[int, ...]


_FIGURES = {
  3: _Figure('FEMNIST set 1', 32, (3, 6)),
  4: _Figure('FEMNIST set 2', 32, (3, 6)),
  5: _Figure('FEMNIST set 3', 32, (3, 6)),
  6: _Figure('Shakespeare', 32, (2, 6)),
  7: _Figure('Shakespeare', 128, (4, 12)),
  13: _Figure('CIFAR100', 32, (3,)),
}
_BEST_SO_FAR = {number + 5: _FIGURES[number] for number in range(3, 8)}
_NUMBERS = range(2, 14)
_COMPRESSION = 'compression'
_IMPROVEMENT = 'improvement'


def main(argv):
  if len(argv) > 1:
    sys.exit(f'error: unexpected argument {argv[1]!r}; flags start with --.')
  # Otherwise every font that goes into a PDF is reported at length.
  logging.set_verbosity(logging.WARNING)
  draw_figures(
    results_dir=flags.FLAGS.results_dir,
    figure=flags.FLAGS.figure,
    output_dir=flags.FLAGS.output_dir,
    data=flags.FLAGS.data,
    cache_dir=flags.FLAGS.cache_dir,
  )


def _define_flags():
  flags.DEFINE_string(
    'results_dir', None, 'The folder below which the folders of the runs are.'
  )
  flags.DEFINE_enum(
    'figure',
    'all',
    [*map(str, _NUMBERS), _COMPRESSION, _IMPROVEMENT, 'all'],
    "The figure's number in the paper, or what it shows.",
  )
  flags.DEFINE_string(
    'output_dir', 'figures', 'The folder to write figure_N.png and .pdf to.'
  )
  flags.DEFINE_string(
    'data',
    None,
    'Use only runs whose data, as in the line below a figure, has this in its'
    ' name or is of this source.',
  )
  flags.DEFINE_string(
    'cache_dir',
    None,
    'For figure 2 of runs with --data_source=tff: the folder of'
    ' emnist_all.sqlite. Nothing is downloaded.',
  )
  flags.mark_flag_as_required('results_dir')


def draw_figures(
  *,
  results_dir: str,
  figure: str,
  output_dir: str,
  data: Optional[str] = None,
  cache_dir: Optional[str] = None,
) -> None:
  """Draws one or all figures; ends the program with a line if it cannot.

  Args:
    results_dir: The folder below which the runs are.
    figure: The figure's number or name, or 'all' of which there are runs.
    output_dir: The folder of the figures.
    data: Part of the name, or the source, of the data to use; `None` is all.
    cache_dir: The folder of TFF's file, for figure 2.
  """
  try:
    groups, left_out = runs.find_groups(results_dir)
  except runs.RunsError as error:
    sys.exit(f'error: {error}')
  for line in left_out:
    _tell(line)
  if data is not None:
    groups = [
      group
      for group in groups
      if data == group.experiment.data_source or data in group.experiment.data
    ]
  if not groups and cache_dir is None:
    of_data = '' if data is None else f' with --data={data}'
    sys.exit(
      'error: there is no finished run of experiments.femnist, shakespeare or'
      f' cifar100 below --results_dir={results_dir}{of_data}.'
    )
  output_dir = pathlib.Path(output_dir)
  if figure == 'all':
    _draw_all(groups, output_dir, cache_dir)
    return
  try:
    if figure == _COMPRESSION:
      _draw_compression(groups, output_dir)
    elif figure == _IMPROVEMENT:
      _draw_improvement(groups, output_dir)
    else:
      _draw(int(figure), groups, output_dir, cache_dir)
  except (ImportError, OSError, ValueError) as error:
    sys.exit(f'error: figure {figure} cannot be drawn: {error}')


def _draw_all(groups, output_dir, cache_dir):
  without_runs, failed = [], []
  for number in _NUMBERS:
    if number == 2 and sizes.find_source(groups, cache_dir) is None:
      _tell(f'figure 2 is not drawn: {sizes.NO_SOURCE}')
      continue
    if number != 2 and not _select(number, groups):
      without_runs.append(number)
      continue
    try:
      _draw(number, groups, output_dir, cache_dir)
    except (ImportError, OSError, ValueError) as error:
      _tell(f'figure {number} is not drawn: {error}')
      failed.append(number)
  others = []
  if _select_compressed(groups):
    others.append((_COMPRESSION, _draw_compression))
  if improvement_curves.select(groups):
    others.append((_IMPROVEMENT, _draw_improvement))
  for name, draw in others:
    try:
      draw(groups, output_dir)
    except (OSError, ValueError) as error:
      _tell(f'figure {name} is not drawn: {error}')
      failed.append(name)
  if without_runs:
    _tell(f'figures without runs: {", ".join(map(str, without_runs))}')
  if failed:
    sys.exit(f'error: not drawn: figures {", ".join(map(str, failed))}.')
  if (
    len(without_runs) == len(_NUMBERS) - 1 and cache_dir is None and not others
  ):
    sys.exit(f'error: no figure of the paper shows {_names(groups)}.')


def _draw(
  number: int,
  groups: Sequence[runs.Group],
  output_dir: pathlib.Path,
  cache_dir: Optional[str],
) -> None:
  """Draws a figure.

  Args:
    number: Its number.
    groups: All groups of runs.
    output_dir: The folder of the figures.
    cache_dir: The folder of TFF's file, for figure 2.

  Raises:
    DataError: If the data for figure 2 is missing.
    OSError: If the figure cannot be written.
    RunsError: If the runs are missing or cannot be compared.
  """
  if number == 2:
    found = sizes.find_sizes(groups, cache_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    paths = _paths(output_dir, number)
    sizes.plot_sizes(found, paths)
    print(paths[0])
    return
  selected = _select(number, groups)
  if not selected:
    name, n, _ = _figure(number)
    raise runs.RunsError(
      f'there are no runs of {name} with n={n}, but of {_names(groups)}.'
    )
  runs.check_comparable(selected)
  missing = [
    method.label
    for method in _methods(_figure(number))
    if method not in {group.method for group in selected}
  ]
  if missing:
    _tell(f'figure {number}: no runs of {"; ".join(missing)}')
  _plot(number, selected, output_dir, best_so_far=number in _BEST_SO_FAR)


def _draw_compression(groups, output_dir):
  """Draws compressed runs beside others; raises what `_draw` does."""
  selected = _select_compressed(groups)
  if not selected:
    raise runs.RunsError(
      f'there are no runs with --compression, but of {_names(groups)}.'
    )
  runs.check_comparable(selected)
  _plot(_COMPRESSION, selected, output_dir)


def _draw_improvement(groups, output_dir):
  """Draws the improvement factors; raises what `_draw` does."""
  selected = improvement_curves.select(groups)
  if not selected:
    raise runs.RunsError(
      'there are no runs with --sampling=aocs that measured the improvement'
      f' factor, but of {_names(groups)}.'
    )
  output_dir.mkdir(parents=True, exist_ok=True)
  paths = _paths(output_dir, _IMPROVEMENT)
  improvement_curves.plot_improvement(selected, paths)
  print(paths[0])


def _plot(figure, groups, output_dir, best_so_far=False):
  """Writes a figure of training; names the runs that diverged."""
  for group in groups:
    for run in group.runs:
      if not np.isfinite(run.metrics['training_loss']).all():
        _tell(f'figure {figure}: {run.path} diverged, which leaves a gap.')
  output_dir.mkdir(parents=True, exist_ok=True)
  paths = _paths(output_dir, figure)
  panels.plot_panels(
    {_label(group): group.runs for group in groups},
    paths,
    caption=_caption(groups),
    best_so_far=best_so_far,
  )
  print(paths[0])


def _paths(output_dir, figure):
  return [output_dir / f'figure_{figure}.{ending}' for ending in ('png', 'pdf')]


def _select_compressed(groups):
  """The runs of methods that are there with and without compression."""

  def uncompressed(group):
    return group.experiment, group.method._replace(compression=None)

  compressed = {
    uncompressed(group)
    for group in groups
    if group.method.compression is not None
  }
  return [group for group in groups if uncompressed(group) in compressed]


def _figure(number):
  return {**_FIGURES, **_BEST_SO_FAR}[number]


def _methods(shown: _Figure) -> list[runs.Method]:
  """The methods that the paper compares."""
  return [runs.Method('full')] + [
    runs.Method(sampling, m)
    for sampling in ('uniform', 'aocs')
    for m in shown.expected_clients
  ]


def _select(number, groups):
  name, n, _ = _figure(number)
  return [
    group
    for group in groups
    if group.experiment[:2] == (name, n) and group.method.compression is None
  ]


def _label(group):
  num_seeds = len(group.runs)
  return f'{group.method.label} ({num_seeds} seed{"s" * (num_seeds > 1)})'


def _caption(groups):
  caption = str(groups[0].experiment)
  if any(len(group.runs) > 1 for group in groups):
    caption += ' Mean ± standard deviation over seeds.'
  return caption


def _names(groups):
  names = {
    f'{group.experiment.name} with n={group.experiment.clients_per_round}'
    for group in groups
  }
  return ', '.join(sorted(names)) or 'none'


def _tell(message):
  print(message, file=sys.stderr)


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
