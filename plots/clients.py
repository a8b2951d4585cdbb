"""Draws single clients of runs with --evaluate_clients, and tabulates them.

  python -m plots.clients --results_dir=runs --output_dir=figures

A figure for each experiment shows, for each method, the distribution of the
validation accuracy over the clients; its mean and that of the worst 10 % by
rounds, for runs with --rounds_per_client_eval; and how often clients were drawn
and sent their update, by their number of training examples. The tables
client_summary.csv and client_summary.md have the mean over the clients, that of
the worst 10 %, and the standard deviation. All of this is of a simulation: a
real server does not see it.
"""

import pathlib
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Optional

import numpy as np
import pandas as pd
from absl import app
from absl import flags
from absl import logging

from plots import client_panels
from plots import inputs
from plots import tables
from programs import entry
from programs import paths
from tff_ocs.records import clients
from tff_ocs.records import files
from tff_ocs.records import runs

_NAME = 'clients'
_ENDINGS = ('.png', '.pdf')


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
  # Otherwise every font that goes into a PDF is reported at length.
  logging.set_verbosity(logging.WARNING)
  draw_clients(
    results_dir=flags.FLAGS.results_dir,
    output_dir=flags.FLAGS.output_dir,
    data=flags.FLAGS.data,
  )


def _define_flags():
  inputs.define_flags()
  paths.define_path(
    'output_dir',
    'figures',
    'The folder to write client_summary.csv, client_summary.md and, for each'
    ' experiment, clients_EXPERIMENT.png and .pdf to.',
  )


def draw_clients(
  *, results_dir: str, output_dir: str, data: Optional[str] = None
) -> None:
  """Draws all experiments; ends the program with a line if it cannot."""
  folder = pathlib.Path(output_dir)
  try:
    groups = inputs.find_groups(results_dir, data)
    if not groups:
      raise inputs.no_runs(results_dir, data)
    by_experiment = read(groups)
    if not by_experiment:
      raise runs.RunsError(
        f'no finished run below --results_dir={results_dir} has recorded'
        ' single clients with an accuracy; run with --evaluate_clients.'
      )
    for recorded in by_experiment.values():
      runs.check_comparable([of.group for of in recorded])
    folder.mkdir(parents=True, exist_ok=True)
    everything = [of for recorded in by_experiment.values() for of in recorded]
    table = tabulate(everything)
    text = format_tables(table)
    print(text, end='')
    tables.write(folder / 'client_summary', table, text)
    for name, recorded in inputs.name_files(f'{_NAME}_', by_experiment).items():
      to = [folder / f'{name}{ending}' for ending in _ENDINGS]
      client_panels.plot(recorded, to)
      print(f'Figure: {to[0]}')
  except (OSError, runs.RunsError) as error:
    sys.exit(f'error: {error}')


def read(
  groups: Sequence[runs.Group],
) -> dict[runs.Experiment, list[client_panels.Recorded]]:
  """Reads the clients of the groups that recorded them.

  A group with a run whose clients cannot be read, or have no accuracy, is left
  out, and a line is printed.

  Args:
    groups: The groups of runs.

  Returns:
    The methods that are left, by experiment.
  """
  by_experiment: dict = {}
  for group in groups:
    if not group.settings.get('evaluate_clients'):
      continue
    of_runs, accuracies = [], []
    try:
      for run in group.runs:
        of_runs.append(clients.read_clients(run.path))
        clients.describe(of_runs[-1])
        accuracies.append(_read_accuracies(run))
    except (OSError, files.RecordError) as error:
      print(f'{run.path} is left out: {error}', file=sys.stderr)
      continue
    by_experiment.setdefault(group.experiment, []).append(
      client_panels.Recorded(group, of_runs, accuracies)
    )
  return by_experiment


def _read_accuracies(run) -> pd.DataFrame:
  """The evaluations; of a run of an early version, the last one only."""
  try:
    return clients.read_accuracies(run.path)
  except FileNotFoundError:
    found = clients.describe(clients.read_clients(run.path))
    return pd.DataFrame(
      {
        'round': [run.settings.total_rounds - 1],
        'mean': [found.mean],
        'worst_10_percent': [found.worst],
      }
    )


def tabulate(recorded: Sequence[client_panels.Recorded]) -> pd.DataFrame:
  """A row for each method.

  Args:
    recorded: The methods.

  Returns:
    The mean over the clients, that of the worst 10 %, and the standard
    deviation over the clients: their means over the seeds, as fractions, and
    the standard deviations over the seeds, NaN for a single seed.
  """
  rows: list[Mapping] = []
  for of in recorded:
    found = pd.DataFrame(map(clients.describe, of.tables))
    row = {
      **of.group.experiment._asdict(),
      'method': of.group.method.label,
      'seeds': len(of.tables),
      'clients': found['num_clients'].mean(),
    }
    for name, column in (
      ('mean', 'mean'),
      ('worst_10_percent', 'worst'),
      ('std_over_clients', 'std'),
    ):
      row[name] = found[column].mean()
      is_single = len(found) == 1
      row[f'{name}_std'] = np.nan if is_single else found[column].std()
    rows.append(row)
  return pd.DataFrame(rows)


def format_tables(table: pd.DataFrame) -> str:
  """Formats a table for each experiment."""
  names = list(runs.Experiment._fields)
  return '\n'.join(
    _format(runs.Experiment(*experiment), of_experiment)
    for experiment, of_experiment in table.groupby(names, sort=False)
  )


def _format(experiment, table):
  header = [
    'Method',
    'Seeds',
    'Clients',
    'Mean accuracy [%]',
    'Worst 10 % of clients [%]',
    'Std over clients [points]',
  ]
  rows = [
    [
      row['method'],
      str(row['seeds']),
      f'{row["clients"]:g}',
      *(
        tables.format_percent(row[name], row[f'{name}_std'])
        for name in ('mean', 'worst_10_percent', 'std_over_clients')
      ),
    ]
    for row in table.to_dict('records')
  ]
  title = (
    f'{experiment} Accuracy of the final weights over clients, in a simulation:'
    ' a real server does not see it'
  )
  return tables.format_markdown(title, header, rows)


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
