"""Draws figures from the folders of runs, the paper's and others.

  python -m plots.figures --results_dir=runs --figure=3

Figure 2 shows the sizes of the clients of the FEMNIST training sets; 3, 4, 5
(FEMNIST sets 1, 2, 3), 6, 7 (Shakespeare with n = 32, 128) and 13 (CIFAR100)
validation accuracy and training loss; 8 to 12 the best validation accuracy so
far, for the experiments of 3 to 7. All finished runs are drawn, and a line
names those of the paper that are missing. Three figures are not the paper's:
'compression' shows runs with --compression next to the same methods without,
'improvement' the improvement factor alpha^k of the runs with AOCS, and 'others'
is a figure for each experiment that the paper does not have.
"""

import pathlib
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

import numpy as np
from absl import app
from absl import flags
from absl import logging

from plots import captions
from plots import improvement_curves
from plots import inputs
from plots import panels
from plots import sizes
from programs import entry
from programs import paths
from tff_ocs.records import runs


class _Figure(NamedTuple):
  """One of the paper's figures of training: its experiment and the m's."""

  experiment: str
  clients_per_round: int
  expected_clients: tuple[int, ...]
  best_so_far: bool = False


_TRAINING = (
  _Figure('FEMNIST set 1', 32, (3, 6)),
  _Figure('FEMNIST set 2', 32, (3, 6)),
  _Figure('FEMNIST set 3', 32, (3, 6)),
  _Figure('Shakespeare', 32, (2, 6)),
  _Figure('Shakespeare', 128, (4, 12)),
)
_OF_PAPER = {
  **{str(number): of for number, of in enumerate(_TRAINING, start=3)},
  **{
    str(number): of._replace(best_so_far=True)
    for number, of in enumerate(_TRAINING, start=8)
  },
  '13': _Figure('CIFAR100', 32, (3,)),
}
_COMPRESSION = 'compression'
_IMPROVEMENT = 'improvement'
_OTHERS = 'others'


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
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
  inputs.define_flags()
  flags.DEFINE_enum(
    'figure',
    'all',
    ['2', *_OF_PAPER, _COMPRESSION, _IMPROVEMENT, _OTHERS, 'all'],
    "The figure's number in the paper, or what it shows.",
  )
  paths.define_path(
    'output_dir', 'figures', 'The folder to write figure_N.png and .pdf to.'
  )
  paths.define_path(
    'cache_dir',
    None,
    'For figure 2 of runs with --data_source=tff: the folder of'
    ' emnist_all.sqlite. Nothing is downloaded.',
  )


def draw_figures(
  *,
  results_dir: str,
  figure: str,
  output_dir: str,
  data: Optional[str] = None,
  cache_dir: Optional[str] = None,
) -> None:
  """Draws one or all figures; ends the program with a line if it cannot."""
  try:
    groups = inputs.find_groups(results_dir, data)
    if not groups and cache_dir is None:
      raise inputs.no_runs(results_dir, data)
  except runs.RunsError as error:
    sys.exit(f'error: {error}')
  selected = _select(groups)
  if figure == _OTHERS:
    names = [name for name in selected if name.startswith(_PREFIX_OF_OTHERS)]
  elif figure == 'all':
    names = _figures_with_runs(selected, groups, cache_dir)
  else:
    names = [figure]
  if not names:
    sys.exit(f'error: no other figure shows {_describe(groups)}.')
  failed = []
  for name in names:
    try:
      _draw(name, selected, groups, pathlib.Path(output_dir), cache_dir)
    except (ImportError, OSError, ValueError) as error:
      if figure == name:
        sys.exit(f'error: figure {name} cannot be drawn: {error}')
      _report(f'figure {name} is not drawn: {error}')
      failed.append(name)
  if failed:
    sys.exit(f'error: not drawn: figures {", ".join(failed)}.')


def _figures_with_runs(selected, groups, cache_dir) -> list[str]:
  """The figures that can be drawn; a line names those that cannot."""
  names = [name for name, of_figure in selected.items() if of_figure]
  if sizes.find_source(groups, cache_dir) is None:
    _report(f'figure 2 is not drawn: {sizes.NO_SOURCE}')
  else:
    names.insert(0, '2')
  missing = [name for name in _OF_PAPER if name not in names]
  if missing:
    _report(f'figures without runs: {", ".join(missing)}')
  return names


# Of the figures of experiments that the paper does not have.
_PREFIX_OF_OTHERS = 'of_'


def _select(groups: Sequence[runs.Group]) -> dict[str, list[runs.Group]]:
  """The groups that each figure shows, by its name; all but figure 2."""
  plain = [group for group in groups if group.method.compression is None]
  selected = {
    number: [group for group in plain if group.experiment[:2] == of[:2]]
    for number, of in _OF_PAPER.items()
  }
  selected[_COMPRESSION] = _select_compressed(groups)
  selected[_IMPROVEMENT] = improvement_curves.select(groups)
  of_paper = {of[:2] for of in _OF_PAPER.values()}
  names = {}
  for group in groups:
    experiment = group.experiment[:2]
    if experiment not in of_paper:
      # Different experiments never share a file.
      name = names.setdefault(experiment, _file_name(*experiment, names))
      selected.setdefault(name, []).append(group)
  return selected


def _file_name(experiment, n, others):
  """A name for the figure of an experiment, other than those given so far."""
  words = re.sub(r'\W+', '_', experiment.lower()).strip('_')
  name = f'{_PREFIX_OF_OTHERS}{words}_n{n}'
  return f'{name}_{len(others) + 1}' if name in others.values() else name


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


def _draw(
  name: str,
  selected: dict[str, list[runs.Group]],
  groups: Sequence[runs.Group],
  output_dir: pathlib.Path,
  cache_dir: Optional[str],
) -> None:
  """Draws a figure."""
  paths = [output_dir / f'figure_{name}.{ending}' for ending in ('png', 'pdf')]
  if name == '2':
    of_set, caption = sizes.find_sizes(groups, cache_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    sizes.plot_sizes(of_set, paths, caption=caption)
    print(paths[0])
    return
  shown = selected[name]
  if not shown:
    raise runs.RunsError(
      f'there are no runs {_describe_needed(name)}, but of {_describe(groups)}.'
    )
  if name != _IMPROVEMENT:
    runs.check_comparable(shown)
    _name_missing(name, shown)
  output_dir.mkdir(parents=True, exist_ok=True)
  if name == _IMPROVEMENT:
    improvement_curves.plot_improvement(shown, paths)
  else:
    panels.plot_panels(
      {_label(group): group.runs for group in shown},
      paths,
      caption=captions.describe_runs(shown),
      best_so_far=name in _OF_PAPER and _OF_PAPER[name].best_so_far,
    )
  print(paths[0])


def _describe_needed(name):
  if name == _COMPRESSION:
    return 'with --compression'
  if name == _IMPROVEMENT:
    return 'with --sampling=aocs that measured the improvement factor'
  of_paper = _OF_PAPER[name]
  return f'of {of_paper.experiment} with n={of_paper.clients_per_round}'


def _name_missing(name, groups):
  """Names the paper's runs that are missing, and runs that diverged."""
  if name in _OF_PAPER:
    shown = {group.method for group in groups}
    methods = _methods(_OF_PAPER[name].expected_clients)
    missing = [method.label for method in methods if method not in shown]
    if missing:
      _report(f'figure {name}: no runs of {"; ".join(missing)}')
  for group in groups:
    for run in group.runs:
      if not np.isfinite(run.metrics['training_loss']).all():
        _report(f'figure {name}: {run.path} diverged, which leaves a gap.')


def _methods(expected_clients: Sequence[int]) -> list[runs.Method]:
  """The methods that the paper compares."""
  return [runs.Method('full')] + [
    runs.Method(sampling, m)
    for sampling in ('uniform', 'aocs')
    for m in expected_clients
  ]


def _label(group):
  num_seeds = len(group.runs)
  label = captions.escape(group.method.label)
  return f'{label} ({num_seeds} seed{"s" * (num_seeds > 1)})'


def _describe(groups):
  names = {
    f'{group.experiment.name} with n={group.experiment.clients_per_round}'
    for group in groups
  }
  return ', '.join(sorted(names)) or 'none'


def _report(message):
  print(message, file=sys.stderr)


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
