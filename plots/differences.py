"""How methods differ from AOCS with the same m, by pairs of runs.

A pair has the same seed, so the same cohorts, initial weights and shuffles. The
differences between the methods are then clearer than those between seeds.
Intervals are at 95 %, see `plots.measures`.
"""

import math
from collections.abc import Sequence
from typing import Optional

import numpy as np
import pandas as pd

from plots import measures
from plots import tables
from tff_ocs.records import runs

_AOCS = 'aocs'
_ACCURACY = 'validation_accuracy'
_FINAL = 'final_accuracy_difference'
_GAP = 'mean_gap_of_curves'
_COSTS = ('bits', 'rounds', 'expected_participants')


def compare(
  groups: Sequence[runs.Group], accuracies: Sequence[float]
) -> pd.DataFrame:
  """Compares each group with that of AOCS with the same m.

  Args:
    groups: The groups of runs. Those without m, with compression, without an
      accuracy, or without a pair are left out.
    accuracies: The validation accuracies to reach for good, in [0, 1].

  Returns:
    A row for each group that is compared. For each of its numbers there are
    the columns NAME, NAME_low and NAME_high: the differences (group - AOCS) of
    the final accuracies and of the curves by rounds, as fractions, and the
    ratios of the bits to an accuracy. The latter have two factors, the ratios
    of the rounds and of the expected participants in these rounds. A ratio
    is NaN if with both methods a run does not reach the accuracy.
  """
  rows = []
  for group in groups:
    aocs = _find_aocs(group, groups)
    if aocs is None:
      continue
    try:
      pairs = measures.pair(group, aocs)
    except runs.RunsError:
      continue
    numbers = {
      _FINAL: measures.estimate_mean(
        [
          measures.final_accuracy(run) - measures.final_accuracy(of_aocs)
          for run, of_aocs in pairs
        ]
      ),
      _GAP: measures.estimate_mean([measures.gap(*pair) for pair in pairs]),
    }
    for target in accuracies:
      costs = [[_costs(run, target) for run in pair] for pair in pairs]
      for number, of_pairs in zip(_COSTS, np.moveaxis(costs, -1, 0)):
        numbers[_ratio(number, target)] = measures.estimate_ratio(*of_pairs.T)
    rows.append(
      {
        **group.experiment._asdict(),
        'method': group.method.label,
        'seeds': len(pairs),
        **{
          f'{name}{end}': getattr(estimate, attribute)
          for name, estimate in numbers.items()
          for end, attribute in (
            ('', 'value'),
            ('_low', 'low'),
            ('_high', 'high'),
          )
        },
      }
    )
  return pd.DataFrame(rows)


def _find_aocs(group, groups) -> Optional[runs.Group]:
  """The group to compare with, if there is exactly one."""
  method = group.method
  if method.sampling == _AOCS or method.compression is not None:
    return None
  if any(runs.score_column(run.metrics) != _ACCURACY for run in group.runs):
    return None
  aocs = runs.Method(_AOCS, method.expected_clients)
  return measures.find_reference(group, aocs, groups)


def _costs(run, target):
  """The `_COSTS` up to the round in which an accuracy is reached for good."""
  round_num = measures.lasting_round(run, target)
  expected = run.metrics['expected_participants']
  if math.isfinite(round_num):
    expected = expected[: int(round_num) + 1]
  return (
    measures.bits_of_round(run, round_num),
    round_num + 1,
    expected.mean(),
  )


def _ratio(number, target):
  return f'lasting_{number}_to_{target:g}_of_aocs'


def format_tables(table: pd.DataFrame, accuracies: Sequence[float]) -> str:
  """Formats the table of each experiment; '' if nothing is compared."""
  if table.empty:
    return ''
  names = list(runs.Experiment._fields)
  texts = [
    _format(runs.Experiment(*experiment), of_experiment, accuracies)
    for experiment, of_experiment in table.groupby(names, sort=False)
  ]
  return '\n'.join([*texts, f'{measures.ABOUT_INTERVALS}\n'])


def _format(experiment, table, accuracies):
  shown = [
    target
    for target in accuracies
    if table[_ratio('bits', target)].map(math.isfinite).any()
  ]
  header = [
    'Method',
    'Seeds',
    'Final accuracy [points]',
    'Mean gap of the curves [points]',
    *[f'Bits to a lasting {100 * target:g} %' for target in shown],
  ]
  rows = [
    [
      row['method'],
      str(row['seeds']),
      _format_number(row, _FINAL, lambda x: f'{100 * x:+.2f}'),
      _format_number(row, _GAP, lambda x: f'{100 * x:+.2f}'),
      *[_format_number(row, _ratio('bits', t), _format_ratio) for t in shown],
    ]
    for row in table.to_dict('records')
  ]
  factors = [
    [
      row['method'],
      *[
        ' × '.join(_format_ratio(row[_ratio(of, t)]) for of in _COSTS[1:])
        for t in shown
      ],
    ]
    for row in table.to_dict('records')
  ]
  title = (
    f'{experiment.title}, n={experiment.clients_per_round}: differences from'
    ' AOCS with the same m, and bits relative to it [interval]'
  )
  text = tables.format_markdown(title, header, rows)
  if not shown:
    return text
  title = (
    f'{experiment.title}, n={experiment.clients_per_round}: rounds × expected'
    ' participants a round, relative to AOCS; except for chance, the bits are'
    ' the product'
  )
  header = ['Method', *[f'To a lasting {100 * t:g} %' for t in shown]]
  return f'{text}\n{tables.format_markdown(title, header, factors)}'


def _format_ratio(value):
  if math.isnan(value):
    return tables.NONE
  return '∞' if value == math.inf else f'{value:.3g}'


def _format_number(row, name, format_value):
  value, low, high = (row[f'{name}{end}'] for end in ('', '_low', '_high'))
  if math.isnan(value):
    return tables.NONE
  if math.isnan(low) or math.isnan(high):
    return format_value(value)
  return f'{format_value(value)} [{format_value(low)}, {format_value(high)}]'
