"""Sums up runs in a table: accuracy, and rounds and bits to reach it.

  python -m plots.summary --results_dir=runs --accuracies=0.8,0.9

Means are over seeds, +- the standard deviation of a sample. The rounds and the
bits that it takes to reach an accuracy are means over the seeds that reach it
at one of their evaluations; the table says how many do, if not all. Rounds are
counted from 0, as in metrics.csv and in figures. The last column compares the
mean bits with those of full participation. Runs of regression targets have a
validation loss in the place of the accuracies.
"""

import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Optional

import pandas as pd
from absl import app
from absl import flags

from plots import inputs
from plots import tables
from programs import entry
from programs import paths
from tff_ocs.records import runs
from tff_ocs.records import units


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
  write_summary(
    results_dir=flags.FLAGS.results_dir,
    accuracies=[float(value) for value in flags.FLAGS.accuracies],
    output_dir=flags.FLAGS.output_dir,
    data=flags.FLAGS.data,
  )


def _define_flags():
  inputs.define_flags()
  flags.DEFINE_list(
    'accuracies',
    ['0.8', '0.85', '0.9'],
    'The validation accuracies to reach, each in (0, 1].',
  )
  paths.define_path(
    'output_dir',
    None,
    'The folder to write summary.md and summary.csv to. If not given, the table'
    ' is only printed.',
  )
  flags.register_validator(
    'accuracies', _are_accuracies, message='must be numbers in (0, 1]'
  )


def _are_accuracies(values):
  try:
    return all(0 < float(value) <= 1 for value in values)
  except ValueError:
    return False


def write_summary(
  *,
  results_dir: str,
  accuracies: Sequence[float],
  output_dir: Optional[str] = None,
  data: Optional[str] = None,
) -> None:
  """Prints the table; ends the program with a line if it cannot."""
  try:
    groups = inputs.find_groups(results_dir, data)
    if not groups:
      raise inputs.no_runs(results_dir, data)
    table = summarize(groups, accuracies)
    text = format_tables(table, accuracies)
    print(text, end='')
    if output_dir is None:
      return
    folder = pathlib.Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    tables.write(folder / 'summary', table, text)
  except (OSError, runs.RunsError) as error:
    sys.exit(f'error: {error}')


def summarize(
  groups: Sequence[runs.Group], accuracies: Sequence[float]
) -> pd.DataFrame:
  """Sums up each group in a row.

  Args:
    groups: The groups of runs.
    accuracies: The validation accuracies to reach, in [0, 1].

  Returns:
    A row for each group, in their order. Accuracies are fractions, rounds are
    counted from 0, and cells without a value are NaN.
  """
  of_runs = pd.DataFrame(
    {'group': index, **_measure(run, accuracies)}
    for index, group in enumerate(groups)
    for run in group.runs
  ).groupby('group')
  mean, std, count = of_runs.mean(), of_runs.std(), of_runs.count()
  table = pd.DataFrame(
    {
      **group.experiment._asdict(),
      'method': _label(group, groups),
      'client_learning_rate': group.settings.get('client_learning_rate'),
      'server_learning_rate': group.settings.get('server_learning_rate'),
      'seeds': len(group.runs),
    }
    for group in groups
  )
  table['rounds'] = mean['rounds']
  scores = ['final_accuracy', 'best_accuracy']
  if mean['final_accuracy'].isna().any():
    scores += ['final_loss', 'best_loss']
  for name in scores:
    table[f'{name}_mean'], table[f'{name}_std'] = mean[name], std[name]
  for name in ('participants_per_round', 'uplink_bits'):
    table[name] = mean[name]
  of_full = [_full_participation(group, groups) for group in groups]
  for target in accuracies:
    bits = mean[f'bits_to_{target:g}']
    table[f'seeds_reaching_{target:g}'] = count[f'bits_to_{target:g}']
    table[f'round_of_{target:g}'] = mean[f'round_of_{target:g}']
    table[f'bits_to_{target:g}'] = bits
    table[f'bits_to_{target:g}_of_full'] = bits / [
      math.nan if index is None else bits[index] for index in of_full
    ]
  return table


def _measure(run, accuracies):
  """The numbers of one run; NaN for accuracies that it does not reach."""
  column = runs.score_column(run.metrics)
  _, score = run.evaluated(column)
  is_loss = column == 'validation_loss'
  numbers = {
    'rounds': len(run.metrics),
    'final_accuracy': math.nan if is_loss else score[-1],
    'best_accuracy': math.nan if is_loss else score.max(),
    'final_loss': score[-1] if is_loss else math.nan,
    'best_loss': score.min() if is_loss else math.nan,
    'participants_per_round': run.metrics['participants'].mean(),
    'uplink_bits': run.metrics['cumulative_uplink_bits'].iloc[-1],
  }
  for target in accuracies:
    numbers[f'round_of_{target:g}'] = runs.round_of_accuracy(run, target)
    numbers[f'bits_to_{target:g}'] = runs.bits_to_accuracy(run, target)
  return {k: math.nan if v == math.inf else v for k, v in numbers.items()}


def format_tables(table: pd.DataFrame, accuracies: Sequence[float]) -> str:
  """Formats a table for each experiment."""
  names = list(runs.Experiment._fields)
  return '\n'.join(
    _format_table(runs.Experiment(*experiment), of_experiment, accuracies)
    for experiment, of_experiment in table.groupby(names, sort=False)
  )


def _format_table(experiment, table, accuracies):
  unit = units.choose_bits_unit(table['uplink_bits'].max())
  is_loss = table['final_accuracy_mean'].isna().all()
  if is_loss:
    accuracies = ()
  header = [
    'Method',
    'Client step size',
    'Seeds',
    'Rounds',
    'Final loss' if is_loss else 'Final accuracy [%]',
    'Best loss' if is_loss else 'Best accuracy [%]',
    'Participants a round',
    f'Uplink [{unit.name}]',
  ]
  for target in accuracies:
    header += [
      f'Round of {100 * target:g} % (from 0)',
      f'{unit.name} to {100 * target:g} %',
      'Of full',
    ]
  rows = [
    _format_row(row, unit, accuracies) for row in table.to_dict('records')
  ]
  return tables.format_markdown(str(experiment), header, rows)


def _format_row(row, unit, accuracies):
  step_size = row['client_learning_rate']
  cells = [
    row['method'],
    tables.NONE if pd.isna(step_size) else units.format_step_size(step_size),
    str(row['seeds']),
    f'{row["rounds"]:g}',
    _format_score(row, 'final'),
    _format_score(row, 'best'),
    f'{row["participants_per_round"]:.2f}',
    unit.format(row['uplink_bits']),
  ]
  for target in accuracies:
    reached = row[f'seeds_reaching_{target:g}']
    ratio = row[f'bits_to_{target:g}_of_full']
    if not reached:
      cells += [tables.NONE] * 3
      continue
    is_all = reached == row['seeds']
    of_seeds = '' if is_all else f' ({reached} of {row["seeds"]})'
    cells += [
      f'{row[f"round_of_{target:g}"]:.4g}{of_seeds}',
      f'{unit.format(row[f"bits_to_{target:g}"])}{of_seeds}',
      tables.NONE if pd.isna(ratio) else f'{ratio:.3f}',
    ]
  return cells


def _format_score(row, which) -> str:
  """An accuracy in per cent; the loss where there is no accuracy."""
  if not pd.isna(row[f'{which}_accuracy_mean']):
    return tables.format_percent(
      row[f'{which}_accuracy_mean'], row[f'{which}_accuracy_std']
    )
  std = row[f'{which}_loss_std']
  deviation = '' if pd.isna(std) else f' ± {std:.2g}'
  return f'{row[f"{which}_loss_mean"]:.4g}{deviation}'


def _label(group, groups):
  """The method, with the settings in which groups of the method differ."""
  names = dict.fromkeys(
    name
    for other in groups
    if (other.experiment, other.method) == (group.experiment, group.method)
    for name in runs.differing(group.settings, other.settings)
    # It has a column of its own.
    if name != 'client_learning_rate'
  )
  return ', '.join(
    [group.method.label, *(f'{n}={group.settings.get(n)}' for n in names)]
  )


def _full_participation(group, groups) -> Optional[int]:
  """The index of the group to compare with, if there is exactly one."""
  candidates = [
    index
    for index, other in enumerate(groups)
    if other.experiment == group.experiment
    and other.method == runs.Method('full')
    and runs.common_settings(other) == runs.common_settings(group)
  ]
  return candidates[0] if len(candidates) == 1 else None


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
