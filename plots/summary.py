"""Sums up runs in a table: accuracy, and rounds and bits to reach it.

  python -m plots.summary --results_dir=runs --accuracies=0.8,0.9

Means are over seeds, ± the standard deviation of a sample. Rounds are counted
from 0, as in metrics.csv and in figures. An accuracy is reached in two senses:
at its first hit, the first evaluation that is at least as good, and for good,
from the evaluation on after which none is below it. The first hit flatters
methods whose accuracy goes up and down. Means are over the seeds that reach it;
the table says how many do, if not all.

Comparisons with full participation pair runs by seed. They use the seeds that
both have and, for bits, with which both reach the accuracy. Differences have
an interval, see `plots.measures`. Runs of regression targets have a
validation loss in the place of the accuracies.

Methods are also compared with AOCS with the same m, see `plots.differences`.
"""

import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Optional

import numpy as np
import pandas as pd
from absl import app
from absl import flags

from plots import differences
from plots import inputs
from plots import measures
from plots import tables
from programs import entry
from programs import paths
from tff_ocs.records import runs
from tff_ocs.records import units

_ABOUT_PAIRS = (
  "'Final − full' and 'Of full' are over the seeds that the method and full"
  ' participation both have, all other columns over all seeds of a row. ∞'
  ' stands for a ratio where a seed of the method does not get there.'
)


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
    'The folder to write summary.md, differences.md and their CSV files to. If'
    ' not given, the tables are only printed.',
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
  """Prints the tables; ends the program with a line if it cannot."""
  try:
    groups = inputs.find_groups(results_dir, data)
    if not groups:
      raise inputs.no_runs(results_dir, data)
    table = summarize(groups, accuracies)
    from_aocs = differences.compare(groups, accuracies)
    text = format_tables(table, accuracies)
    text_from_aocs = differences.format_tables(from_aocs, accuracies)
    print('\n'.join(filter(None, [text, text_from_aocs])), end='')
    if output_dir is None:
      return
    folder = pathlib.Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    tables.write(folder / 'summary', table, text)
    if text_from_aocs:
      tables.write(folder / 'differences', from_aocs, text_from_aocs)
    else:
      # Those of other runs.
      for ending in ('csv', 'md'):
        (folder / f'differences.{ending}').unlink(missing_ok=True)
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
  table['rounds_per_eval'] = of_runs.max()['rounds_per_eval']
  scores = ['final_accuracy', 'best_accuracy']
  if mean['final_accuracy'].isna().any():
    scores += ['final_loss', 'best_loss']
  for name in scores:
    table[f'{name}_mean'], table[f'{name}_std'] = mean[name], std[name]
  full = [
    measures.find_reference(group, runs.Method('full'), groups)
    for group in groups
  ]
  differences = [
    _final_difference(group, of_full) for group, of_full in zip(groups, full)
  ]
  for name in ('value', 'low', 'high', 'seeds'):
    table[f'final_accuracy_minus_full_{name}'] = [
      getattr(difference, name) for difference in differences
    ]
  for name in ('participants_per_round', 'rounds_without_sender'):
    table[name] = mean[name]
  table['uplink_bits'] = mean['uplink_bits']
  for target in accuracies:
    for kind in _KINDS:
      seeds, round_num, bits, of_full = _columns(kind, target)
      table[seeds], table[round_num] = count[bits], mean[round_num]
      table[bits] = mean[bits]
      table[of_full] = [
        _ratio_of_bits(group, other, _KINDS[kind], target)
        for group, other in zip(groups, full)
      ]
  return table


# The two senses in which an accuracy is reached.
_KINDS = {
  'first hit': runs.round_of_accuracy,
  'for good': measures.lasting_round,
}


def _columns(kind, target):
  """The columns: seeds that reach it, round, bits, bits relative to full."""
  prefix = '' if kind == 'first hit' else 'lasting_'
  return (
    f'{prefix}seeds_reaching_{target:g}',
    f'{prefix}round_of_{target:g}',
    f'{prefix}bits_to_{target:g}',
    f'{prefix}bits_to_{target:g}_of_full',
  )


def _measure(run, accuracies):
  """The numbers of one run; NaN for accuracies that it does not reach."""
  column = runs.score_column(run.metrics)
  rounds, score = run.evaluated(column)
  is_loss = column == 'validation_loss'
  numbers = {
    'rounds': len(run.metrics),
    'rounds_per_eval': np.diff(rounds).max(initial=1),
    'final_accuracy': math.nan if is_loss else score[-1],
    'best_accuracy': math.nan if is_loss else score.max(),
    'final_loss': score[-1] if is_loss else math.nan,
    'best_loss': score.min() if is_loss else math.nan,
    'participants_per_round': run.metrics['participants'].mean(),
    'rounds_without_sender': measures.rounds_without_sender(run),
    'uplink_bits': run.metrics['cumulative_uplink_bits'].iloc[-1],
  }
  for target in accuracies:
    for kind, find_round in _KINDS.items():
      round_num = find_round(run, target)
      _, name, name_of_bits, _ = _columns(kind, target)
      numbers[name] = round_num
      numbers[name_of_bits] = measures.bits_of_round(run, round_num)
  return {k: math.nan if v == math.inf else v for k, v in numbers.items()}


_NO_ESTIMATE = measures.Estimate(math.nan, math.nan, math.nan, 0)


def _final_difference(group, full) -> measures.Estimate:
  """The paired difference of the final accuracy to full participation."""
  pairs = _pair(group, full)
  is_known = all(
    runs.score_column(run.metrics) == 'validation_accuracy'
    for pair in pairs
    for run in pair
  )
  if not pairs or not is_known:
    return _NO_ESTIMATE
  return measures.estimate_mean(
    [
      measures.final_accuracy(run) - measures.final_accuracy(of_full)
      for run, of_full in pairs
    ]
  )


def _ratio_of_bits(group, full, round_of, target) -> float:
  """The bits to an accuracy, divided by full's.

  It is infinite if a seed of the group fails, and NaN if one of full does.
  """
  bits = np.array(
    [
      [measures.bits_of_round(run, round_of(run, target)) for run in of_seed]
      for of_seed in _pair(group, full)
    ]
  ).reshape(-1, 2)
  if not len(bits) or not np.isfinite(bits[:, 1]).all():
    return math.nan
  return measures.estimate_ratio(*bits.T).value


def _pair(group, full) -> list[tuple[runs.Run, ...]]:
  """The runs of a group and of full participation, by seed; maybe none."""
  if full is None:
    return []
  try:
    return measures.pair(group, full)
  except runs.RunsError:
    return []


def format_tables(table: pd.DataFrame, accuracies: Sequence[float]) -> str:
  """Formats two tables for each experiment."""
  names = list(runs.Experiment._fields)
  texts = [
    text
    for experiment, of_experiment in table.groupby(names, sort=False)
    for text in (
      _format_accuracies(runs.Experiment(*experiment), of_experiment),
      _format_reached(runs.Experiment(*experiment), of_experiment, accuracies),
    )
    if text
  ]
  return '\n'.join([*texts, f'{_ABOUT_PAIRS}\n'])


def _format_accuracies(experiment, table):
  """The table of what was reached, and at which cost."""
  unit = units.choose_bits_unit(table['uplink_bits'].max())
  is_loss = table['final_accuracy_mean'].isna().all()
  header = [
    'Method',
    'Client step size',
    'Seeds',
    'Rounds',
    'Final loss' if is_loss else 'Final accuracy [%]',
    *['Final − full [points]'] * (not is_loss),
    'Best loss' if is_loss else 'Best accuracy [%]',
    'Participants a round',
    'Rounds without sender',
    f'Uplink [{unit.name}]',
  ]
  rows = []
  for row in table.to_dict('records'):
    step_size = row['client_learning_rate']
    rows.append(
      [
        row['method'],
        tables.NONE
        if pd.isna(step_size)
        else units.format_step_size(step_size),
        str(row['seeds']),
        f'{row["rounds"]:g}',
        _format_score(row, 'final'),
        *[_format_difference(row)] * (not is_loss),
        _format_score(row, 'best'),
        f'{row["participants_per_round"]:.2f}',
        f'{row["rounds_without_sender"]:.3g}',
        unit.format(row['uplink_bits']),
      ]
    )
  return tables.format_markdown(str(experiment), header, rows)


def _format_reached(experiment, table, accuracies):
  """The table of accuracies that are reached; '' if none of them is."""
  unit = units.choose_bits_unit(table['uplink_bits'].max())
  accuracies = [
    target
    for target in accuracies
    if table[_columns('first hit', target)[0]].any()
  ]
  if not accuracies:
    return ''
  header = ['Method']
  for target in accuracies:
    percent = f'{100 * target:g} %'
    header += [f'Round of {percent}', f'{unit.name} to {percent}', 'Of full']
  rows = []
  for row in table.to_dict('records'):
    cells = [row['method']]
    for target in accuracies:
      by_kind = [_format_kind(row, kind, target, unit) for kind in _KINDS]
      # The same in both senses is said once.
      cells += [' / '.join(dict.fromkeys(pair)) for pair in zip(*by_kind)]
    rows.append(cells)
  title = (
    f'{experiment.title}, n={experiment.clients_per_round}: the round (from 0)'
    ' and the bits to reach an accuracy, at the first hit / for good'
  )
  if table['rounds_per_eval'].max() > 1:
    every = f'{table["rounds_per_eval"].max():g}'
    title += f'; validated after every {every} rounds'
  return tables.format_markdown(title, header, rows)


def _format_kind(row, kind, target, unit):
  """The cells of a method and an accuracy, in one sense of reaching it."""
  seeds, round_num, bits, of_full = _columns(kind, target)
  if not row[seeds]:
    return [tables.NONE] * 3
  is_all = row[seeds] == row['seeds']
  some = '' if is_all else f' ({row[seeds]} of {row["seeds"]})'
  return [
    f'{row[round_num]:.3g}{some}',
    f'{unit.format(row[bits])}{some}',
    tables.NONE if pd.isna(row[of_full]) else _format_ratio(row[of_full]),
  ]


def _format_ratio(ratio):
  return f'{ratio:.3f}'.replace('inf', '∞')


def _format_difference(row):
  value, low, high = (
    row[f'final_accuracy_minus_full_{name}']
    for name in ('value', 'low', 'high')
  )
  if pd.isna(value) or row['method'] == runs.Method('full').label:
    return tables.NONE
  ends = '' if pd.isna(low) else f' [{100 * low:+.2f}, {100 * high:+.2f}]'
  return f'{100 * value:+.2f}{ends}'


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


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
