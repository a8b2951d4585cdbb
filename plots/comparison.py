"""The tables of `experiments.compare`, from its runs.

compare_curves.csv has a row for each evaluation of each run, compare_runs.csv
one for each run, and compare.csv and compare.md one for each method.
"""

import pathlib
from typing import Any

import numpy as np
import pandas as pd

from plots import measures
from plots import tables
from tff_ocs.records import clients
from tff_ocs.records import files
from tff_ocs.records import runs
from tff_ocs.records import settings
from tff_ocs.records import units

TARGET = 0.85
# The costs of a run.
COSTS = ('bits', 'examples', 'seconds', 'uplink_seconds')
_RUNS = 'compare_runs.csv'
_CURVES = 'compare_curves.csv'
_WHEN = ('to_target', 'at_first_hit')
_STATISTICS = {'median': 'median', 'low': 'min', 'high': 'max'}
_NUMBERS = (
  'accuracy',
  'worst_clients',
  'std_over_clients',
  'seconds_a_round',
  'uplink_seconds_a_round',
)


def read_costs(run: runs.Run) -> pd.DataFrame:
  """The `COSTS` of a run up to and including each round, by its number.

  Raises:
    RunsError: If the run was not made with --simulate_devices.
  """
  metrics = run.metrics
  if 'simulated_examples' not in metrics:
    raise runs.RunsError(
      f'{run.path} has no simulated_examples; remove this folder to run it'
      ' again.'
    )
  return pd.DataFrame(
    {
      'bits': metrics['cumulative_uplink_bits'].astype(float),
      'examples': metrics['simulated_examples'].cumsum(),
      'seconds': metrics['simulated_seconds'].cumsum(),
      'uplink_seconds': metrics['simulated_uplink_seconds'].cumsum(),
    }
  )


def read_curve(experiment: str, run: runs.Run) -> pd.DataFrame:
  """The rows of a run in compare_curves.csv.

  Args:
    experiment: The name of the experiment.
    run: The run.

  Returns:
    The accuracy and the `COSTS` so far, for each evaluation.
  """
  costs = read_costs(run)
  costs.insert(0, 'accuracy', run.metrics['validation_accuracy'])
  curve = costs.dropna().reset_index(names='round')
  for name, value in (
    ('seed', run.settings.seed),
    ('method', run.settings.method),
    ('experiment', experiment),
  ):
    curve.insert(0, name, value)
  return curve


def measure(
  experiment: str,
  step_size: float,
  run: runs.Run,
  of_clients: pd.DataFrame,
) -> dict[str, Any]:
  """The row of a run in compare_runs.csv.

  Args:
    experiment: The name of the experiment.
    step_size: The client step size.
    run: The run.
    of_clients: Its clients, as of `clients.read_clients`.

  Returns:
    The row. The `COSTS` to the target are those up to the round from which on
    no accuracy is below 85 %, and those at the first hit up to the round in
    which one reaches it; NaN if there is no such round.
  """
  (group,) = runs.group_runs([run])
  costs = read_costs(run)
  rounds = (
    measures.lasting_round(run, TARGET),
    runs.round_of_accuracy(run, TARGET),
  )
  of_clients = clients.describe(of_clients)
  _, environment = settings.read_config(run.path)
  return {
    'experiment': experiment,
    'data': group.experiment.title,
    'method': run.settings.method,
    'step_size': step_size,
    'seed': run.settings.seed,
    'rounds': len(costs),
    'expected_clients': run.config['expected_clients'],
    'accuracy': measures.final_accuracy(run),
    'worst_clients': of_clients.worst,
    'std_over_clients': of_clients.std,
    'seconds_a_round': costs['seconds'].iloc[-1] / len(costs),
    'uplink_seconds_a_round': costs['uplink_seconds'].iloc[-1] / len(costs),
    **{
      f'{cost}_{when}': costs.reindex([found]).iloc[0][cost]
      for found, when in zip(rounds, _WHEN)
      for cost in COSTS
    },
    'git_commit': environment.get('git_commit'),
  }


def tabulate(of_runs: pd.DataFrame) -> pd.DataFrame:
  """A row for each method on each experiment, from one for each run.

  Args:
    of_runs: The rows of `measure`.

  Returns:
    The median, the lowest and the highest value over the seeds. The costs of a
    seed that does not reach the target, or hit it, are infinite.
  """
  keys = ['experiment', 'data', 'method', 'step_size']
  costs = [f'{cost}_{when}' for when in _WHEN for cost in COSTS]
  table = of_runs.fillna({name: np.inf for name in costs}).groupby(
    keys, sort=False
  )
  table = table.agg(
    seeds=('seed', 'size'),
    **{
      f'{name}_{which}': (name, statistic)
      for name in (*_NUMBERS, *costs)
      for which, statistic in _STATISTICS.items()
    },
  )
  return table.reset_index()


def format_markdown(table: pd.DataFrame, caption: str) -> str:
  """The table in Markdown, with the caption above it and notes below."""
  header = [
    'data and method',
    'step size',
    'accuracy [%]',
    'worst 10 % of clients [%]',
    'std over clients [%]',
    'uplink [Gbit]',
    'uplink, first hit [Gbit]',
    'examples [1,000]',
    'time [h]',
    'uplinks in use [h]',
    'seconds a round',
    'uplink seconds a round',
  ]
  rows = [
    [
      f'{row["data"]}: {row["method"]}',
      units.format_step_size(row['step_size']),
      _format(row, 'accuracy', 0.01),
      _format(row, 'worst_clients', 0.01),
      _format_number(row['std_over_clients_median'] / 0.01),
      _format(row, 'bits_to_target', 1e9),
      _format(row, 'bits_at_first_hit', 1e9),
      *(
        _format_number(row[f'{name}_median'] / unit)
        for name, unit in (
          ('examples_to_target', 1000),
          ('seconds_to_target', 3600),
          ('uplink_seconds_to_target', 3600),
          ('seconds_a_round', 1),
          ('uplink_seconds_a_round', 1),
        )
      ),
    ]
    for row in table.to_dict('records')
  ]
  return (
    tables.format_markdown(caption, header, rows)
    + f"""
Medians over the seeds, and the lowest and the highest value in parentheses.
Uplink, examples, time and uplinks in use are those to a lasting {TARGET:.0%};
∞ stands for a run that does not get there. Time is simulated.
"""
  )


def _format(row, name, unit):
  """The median, with the range over the seeds if there are several."""
  median, low, high = (
    _format_number(row[f'{name}_{which}'] / unit)
    for which in ('median', 'low', 'high')
  )
  return median if row['seeds'] == 1 else f'{median} ({low} – {high})'


def _format_number(value):
  """Three digits, without an exponent."""
  return '∞' if np.isinf(value) else f'{float(f"{value:.3g}"):,g}'


def read_results(folder: pathlib.Path) -> pd.DataFrame:
  """Reads the rows of `measure` that `write_results` has written."""
  return pd.read_csv(folder / _RUNS, float_precision='round_trip')


def write_curves(output_dir: pathlib.Path, curves: pd.DataFrame) -> None:
  """Writes the rows of `read_curve`."""
  with files.replacing(output_dir / _CURVES) as partial:
    curves.to_csv(partial, index=False, lineterminator='\n')


def write_results(output_dir: pathlib.Path, of_runs: pd.DataFrame) -> None:
  """Writes the tables and the figure.

  Args:
    output_dir: The folder.
    of_runs: The rows of `measure`.
  """
  num_seeds = of_runs['seed'].nunique()
  caption = (
    f'{of_runs["rounds"].iloc[0]} rounds,'
    f' m={of_runs["expected_clients"].iloc[0]:g},'
    f' {num_seeds} seed{"" if num_seeds == 1 else "s"}.'
  )
  table = tabulate(of_runs)
  markdown = format_markdown(table, caption)
  print(markdown)
  tables.write(output_dir / 'compare', table, markdown)
  with files.replacing(output_dir / _RUNS) as partial:
    of_runs.to_csv(partial, index=False, lineterminator='\n')
  from plots import samplers

  paths = [output_dir / f'compare{ending}' for ending in ('.png', '.pdf')]
  samplers.plot_costs(of_runs, paths, caption=caption, target=TARGET)
  print(f'Figure: {paths[0]}')
