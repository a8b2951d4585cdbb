"""Draws figures from the folders of runs, the paper's and others.

  python -m plots.figures --results_dir=runs --figure=3

Figure 2 shows the sizes of the clients of the FEMNIST training sets; 3, 4, 5
(FEMNIST sets 1, 2, 3), 6, 7 (Shakespeare with n = 32, 128) and 13 (CIFAR100)
validation accuracy and training loss; 8 to 12 the best validation accuracy so
far, for the experiments of 3 to 7. All finished runs are drawn, and a line
names those of the paper that are missing. The other figures are not the
paper's:

*   'one_round_trip', for each experiment: sampling in one round trip with AOCS,
    uniform sampling and full participation;
*   'compression', for each sampling: runs with --compression and without;
*   'improvement': the improvement factor alpha^k of the runs with AOCS;
*   'authors': our runs on FEMNIST set 1 and curves of the authors' code, which
    --authors_curves names;
*   'others': a figure for each experiment that the paper does not have.

With --figure=all, figures.csv lists the lines that were drawn.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

import numpy as np
import pandas as pd
from absl import app
from absl import flags
from absl import logging

from plots import authors_code
from plots import captions
from plots import improvement_curves
from plots import inputs
from plots import panels
from plots import sizes
from programs import entry
from programs import paths
from tff_ocs.records import files
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
_IMPROVEMENT = 'improvement'
_AUTHORS = 'authors'
# Several figures each, whose names begin with these prefixes.
_SEVERAL = {
  'compression': 'compression_',
  'one_round_trip': 'one_round_trip_',
  'others': 'of_',
}
_TABLE = 'figures.csv'


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
    authors_curves=flags.FLAGS.authors_curves,
    formats=flags.FLAGS.formats,
  )


def _define_flags():
  inputs.define_flags()
  flags.DEFINE_enum(
    'figure',
    'all',
    ['2', *_OF_PAPER, *_SEVERAL, _IMPROVEMENT, _AUTHORS, 'all'],
    "The figure's number in the paper, or what it shows.",
  )
  paths.define_path(
    'output_dir', 'figures', 'The folder to write figure_N.png and .pdf to.'
  )
  flags.DEFINE_list(
    'formats', ['png', 'pdf'], 'The formats to write, some of png, pdf and svg.'
  )
  flags.register_validator(
    'formats',
    lambda formats: formats and not set(formats) - {'png', 'pdf', 'svg'},
    message='must be some of png, pdf and svg',
  )
  paths.define_path(
    'authors_curves',
    None,
    "For the figure 'authors': the CSV file with the columns method (uniform or"
    ' ocs), round, training_loss and validation_accuracy.',
  )
  paths.define_path(
    'cache_dir',
    None,
    'For figure 2 of runs with --data_source=tff or authors: the folder of'
    " emnist_all.sqlite, or that of the authors' files. Nothing is downloaded.",
  )


def draw_figures(
  *,
  results_dir: str,
  figure: str,
  output_dir: str,
  data: Optional[str] = None,
  cache_dir: Optional[str] = None,
  authors_curves: Optional[str] = None,
  formats: Sequence[str] = ('png', 'pdf'),
) -> None:
  """Draws one or all figures; ends the program with a line if it cannot."""
  try:
    groups = inputs.find_groups(results_dir, data)
    if not groups and cache_dir is None:
      raise inputs.no_runs(results_dir, data)
  except runs.RunsError as error:
    sys.exit(f'error: {error}')
  selected = _select(groups)
  if figure in _SEVERAL:
    names = [name for name in selected if name.startswith(_SEVERAL[figure])]
  elif figure == 'all':
    names = _figures_with_runs(selected, groups, cache_dir)
    if authors_curves is None:
      names = [name for name in names if name != _AUTHORS]
  else:
    names = [figure]
  if not names:
    needed = _describe_needed(figure)
    sys.exit(f'error: there are no runs {needed}, but of {_describe(groups)}.')
  draw = _Drawer(
    selected,
    groups,
    pathlib.Path(output_dir),
    cache_dir,
    authors_curves,
    formats,
  )
  failed = []
  tables = []
  for name in names:
    try:
      tables.append(draw(name))
    except (ImportError, OSError, ValueError) as error:
      if figure == name:
        sys.exit(f'error: figure {name} cannot be drawn: {error}')
      _report(f'figure {name} is not drawn: {error}')
      failed.append(name)
  tables = [table for table in tables if len(table)]
  if figure == 'all' and tables:
    with files.replacing(draw.output_dir / _TABLE) as partial:
      # Digits that do not depend on the order of sums.
      pd.concat(tables).to_csv(
        partial, index=False, float_format='%.8g', lineterminator='\n'
      )
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


def _select(groups: Sequence[runs.Group]) -> dict[str, list[runs.Group]]:
  """The groups that each figure shows, by its name; all but figure 2."""
  plain = [group for group in groups if group.method.compression is None]
  selected = {
    number: [
      group
      for group in plain
      if group.experiment[:2] == of[:2]
      and group.method.sampling != _ONE_ROUND_TRIP
    ]
    for number, of in _OF_PAPER.items()
  }
  selected[_IMPROVEMENT] = improvement_curves.select(groups)
  selected[_AUTHORS] = authors_code.select(plain)
  selected.update(_select_one_round_trip(plain))
  selected.update(_select_compressed(groups))
  of_paper = {of[:2] for of in _OF_PAPER.values()}
  others: dict = {}
  for group in groups:
    if group.experiment[:2] not in of_paper:
      others.setdefault(group.experiment[:2], []).append(group)
  selected.update(inputs.name_files(_SEVERAL['others'], others))
  return selected


_ONE_ROUND_TRIP = 'threshold'


def _select_one_round_trip(groups):
  """By experiment, all methods with the smallest m of sampling in one trip."""
  smallest: dict = {}
  for group in groups:
    if group.method.sampling == _ONE_ROUND_TRIP:
      m = group.method.expected_clients
      key = group.experiment[:2]
      smallest[key] = min(m, smallest.get(key, m))
  of_experiments = {
    key: [
      group
      for group in groups
      if group.experiment[:2] == key
      and group.method.sampling in ('full', 'uniform', 'aocs', _ONE_ROUND_TRIP)
      and group.method.expected_clients in (None, m)
    ]
    for key, m in smallest.items()
  }
  return inputs.name_files(_SEVERAL['one_round_trip'], of_experiments)


def _select_compressed(groups):
  """By sampling, the methods that are there with and without compression.

  Other samplings than full participation are shown with it, uncompressed.
  """

  def uncompressed(group):
    return group.experiment, group.method._replace(compression=None)

  compressed = {
    uncompressed(group)
    for group in groups
    if group.method.compression is not None
  }
  selected = {}
  samplings = [g.method.sampling for g in groups if g.method.compression]
  for sampling in dict.fromkeys(samplings):
    experiments = {
      experiment for experiment, m in compressed if m.sampling == sampling
    }
    selected[_SEVERAL['compression'] + sampling] = [
      group
      for group in groups
      if (
        group.method.sampling == sampling and uncompressed(group) in compressed
      )
      or (
        group.method[:3] == ('full', None, None)
        and group.experiment in experiments
      )
    ]
  return selected


class _Drawer(NamedTuple):
  """Draws a figure by its name.

  Attributes:
    selected: The groups that each figure shows.
    groups: All groups.
    output_dir: The folder to write to.
    cache_dir: For figure 2, see `sizes.find_source`.
    authors_curves: The file of the curves of the authors' code.
    formats: The endings of the files.
  """

  selected: dict[str, list[runs.Group]]
  groups: Sequence[runs.Group]
  output_dir: pathlib.Path
  cache_dir: Optional[str]
  authors_curves: Optional[str]
  formats: Sequence[str]

  def __call__(self, name: str) -> pd.DataFrame:
    """Draws a figure; returns what its lines show."""
    paths = [
      self.output_dir / f'figure_{name}.{ending}' for ending in self.formats
    ]
    if name == '2':  # It has no lines.
      of_set, caption = sizes.find_sizes(self.groups, self.cache_dir)
      self.output_dir.mkdir(parents=True, exist_ok=True)
      sizes.plot_sizes(of_set, paths, caption=caption)
      drawn = pd.DataFrame()
    else:
      drawn = self._draw_runs(name, paths)
    print(paths[0])
    drawn.insert(0, 'figure', name)
    return drawn

  def _draw_runs(self, name, paths) -> pd.DataFrame:
    shown = self.selected.get(name)
    if not shown:
      raise runs.RunsError(
        f'there are no runs {_describe_needed(name)}, but of'
        f' {_describe(self.groups)}.'
      )
    if name == _AUTHORS and self.authors_curves is None:
      raise runs.RunsError('it needs --authors_curves.')
    if name == _IMPROVEMENT:
      for of_experiment in runs.by_experiment(shown).values():
        runs.check_comparable(of_experiment)
    else:
      runs.check_comparable(shown)
      _name_missing(name, shown)
    self.output_dir.mkdir(parents=True, exist_ok=True)
    if name == _IMPROVEMENT:
      return improvement_curves.plot_improvement(shown, paths)
    if name == _AUTHORS:
      curves = authors_code.read(self.authors_curves)
      return authors_code.plot(shown, curves, paths)
    return panels.plot_panels(
      {captions.legend_label(group): group.runs for group in shown},
      paths,
      caption=captions.describe_runs(shown),
      best_so_far=name in _OF_PAPER and _OF_PAPER[name].best_so_far,
      methods={captions.legend_label(group): group.method for group in shown},
    )


def _describe_needed(name):
  """The runs that a figure needs, for a message."""
  if name in _OF_PAPER:
    of_paper = _OF_PAPER[name]
    return f'of {of_paper.experiment} with n={of_paper.clients_per_round}'
  return {
    'compression': 'with --compression',
    'one_round_trip': f'with --sampling={_ONE_ROUND_TRIP}',
    'others': 'of other experiments than the paper',
    _IMPROVEMENT: 'with --sampling=aocs that measured the improvement factor',
    _AUTHORS: 'of FEMNIST set 1 with uniform or aocs, m=3',
  }[name]


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
