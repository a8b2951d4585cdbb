"""Sums up runs in a table: accuracy, and rounds and bits to reach it.

  python -m plots.summary --results_dir=runs --accuracies=0.8,0.9

Means are over seeds, +- the standard deviation of a sample. Rounds and bits to
an accuracy are means over the seeds that reach it at one of their evaluations;
where these are not all, it says how many. The ratio is that of the mean bits to
those of full participation.
"""

import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any
from typing import Optional

import numpy as np
from absl import app
from absl import flags

from tff_ocs.records import files
from tff_ocs.records import runs

_NONE = '–'


def main(argv):
  if len(argv) > 1:
    sys.exit(f'error: unexpected argument {argv[1]!r}; flags start with --.')
  write_summary(
    results_dir=flags.FLAGS.results_dir,
    accuracies=[float(value) for value in flags.FLAGS.accuracies],
    output_dir=flags.FLAGS.output_dir,
  )


def _define_flags():
  flags.DEFINE_string(
    'results_dir', None, 'The folder below which the folders of the runs are.'
  )
  flags.DEFINE_list(
    'accuracies',
    ['0.8', '0.85', '0.9'],
    'The validation accuracies to reach, each in (0, 1].',
  )
  flags.DEFINE_string(
    'output_dir',
    None,
    'The folder to write summary.md and summary.csv to. If not given,'
    ' --results_dir.',
  )
  flags.mark_flag_as_required('results_dir')
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
) -> None:
  """Prints and writes the table; ends the program with a line if it cannot.

  Args:
    results_dir: The folder below which the runs are.
    accuracies: The validation accuracies to reach, in (0, 1].
    output_dir: The folder of the files; `None` is `results_dir`.
  """
  try:
    groups, left_out = runs.find_groups(results_dir)
    for line in left_out:
      print(line, file=sys.stderr)
    if not groups:
      raise runs.RunsError(
        'there is no finished run of experiments.femnist, shakespeare or'
        f' cifar100 below --results_dir={results_dir}.'
      )
    rows = summarize(groups, accuracies)
    text = format_markdown(rows, accuracies)
    print(text, end='')
    folder = pathlib.Path(output_dir or results_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with files.replacing(folder / 'summary.md') as path:
      path.write_text(text)
    files.write_csv(folder / 'summary.csv', rows)
  except (OSError, runs.RunsError) as error:
    sys.exit(f'error: {error}')


def summarize(
  groups: Sequence[runs.Group], accuracies: Sequence[float]
) -> list[dict[str, Any]]:
  """Sums up each group in a row.

  Args:
    groups: The groups of runs.
    accuracies: The validation accuracies to reach, in [0, 1].

  Returns:
    A dictionary for each group, all with the same keys. Accuracies are
    fractions; what there is none of is `None`.
  """
  rows = []
  for group in groups:
    accuracy = [run.evaluated('validation_accuracy')[1] for run in group.runs]
    final = [values[-1] for values in accuracy]
    best = [values.max() for values in accuracy]
    row = {
      **group.experiment._asdict(),
      'method': _label(group, groups),
      'seeds': len(group.runs),
      'rounds': _mean([len(r.metrics['participants']) for r in group.runs]),
      'final_accuracy_mean': _mean(final),
      'final_accuracy_std': _std(final),
      'best_accuracy_mean': _mean(best),
      'best_accuracy_std': _std(best),
      'participants_per_round': _mean(
        [run.metrics['participants'].mean() for run in group.runs]
      ),
      'uplink_bits': _mean(
        [run.metrics['cumulative_uplink_bits'][-1] for run in group.runs]
      ),
    }
    full = _full_participation(group, groups)
    for target in accuracies:
      num_rounds = _of_reached(group, runs.rounds_to_accuracy, target)
      bits = _of_reached(group, runs.bits_to_accuracy, target)
      of_full = full and _mean(_of_reached(full, runs.bits_to_accuracy, target))
      row[f'seeds_reaching_{target:g}'] = len(bits)
      row[f'rounds_to_{target:g}'] = _mean(num_rounds)
      row[f'bits_to_{target:g}'] = _mean(bits)
      row[f'bits_to_{target:g}_of_full'] = (
        _mean(bits) / of_full if bits and of_full else None
      )
    rows.append(row)
  return rows


def format_markdown(
  rows: Sequence[dict[str, Any]], accuracies: Sequence[float]
) -> str:
  """Formats rows as a table for each experiment.

  Args:
    rows: As of `summarize`.
    accuracies: As for `summarize`.

  Returns:
    The text, in Markdown.
  """
  header = [
    'Method',
    'Seeds',
    'Rounds',
    'Final accuracy [%]',
    'Best accuracy [%]',
    'Participants a round',
    'Uplink [Gbit]',
  ]
  for target in accuracies:
    header += [
      f'Rounds to {100 * target:g} %',
      f'Gbit to {100 * target:g} %',
      'Of full',
    ]
  lines, experiment = [], None
  for row in rows:
    of_row = runs.Experiment(*(row[name] for name in runs.Experiment._fields))
    if of_row != experiment:
      lines += [''] * bool(lines) + [f'**{of_row}**', '']
      lines += [_line(header), _line(['---'] + ['---:'] * (len(header) - 1))]
      experiment = of_row
    cells = [
      row['method'],
      str(row['seeds']),
      f'{row["rounds"]:g}',
      _percent(row['final_accuracy_mean'], row['final_accuracy_std']),
      _percent(row['best_accuracy_mean'], row['best_accuracy_std']),
      f'{row["participants_per_round"]:.2f}',
      f'{row["uplink_bits"] / 1e9:.2f}',
    ]
    for target in accuracies:
      reached = row[f'seeds_reaching_{target:g}']
      ratio = row[f'bits_to_{target:g}_of_full']
      if not reached:
        cells += [_NONE] * 3
        continue
      all_seeds = reached == row['seeds']
      of_seeds = '' if all_seeds else f' ({reached} of {row["seeds"]})'
      cells += [
        f'{row[f"rounds_to_{target:g}"]:.4g}{of_seeds}',
        f'{row[f"bits_to_{target:g}"] / 1e9:.2f}{of_seeds}',
        _NONE if ratio is None else f'{ratio:.3f}',
      ]
    lines.append(_line(cells))
  return '\n'.join(lines) + '\n'


def _label(group, groups):
  """The method, with those settings that tell it from others of the kind."""
  others = [
    other
    for other in groups
    if (other.experiment, other.method) == (group.experiment, group.method)
  ]
  names = dict.fromkeys(
    name
    for other in others
    for name in runs.differing(group.settings, other.settings)
  )
  return ', '.join(
    [group.method.label, *(f'{n}={group.settings.get(n)}' for n in names)]
  )


def _full_participation(group, groups) -> Optional[runs.Group]:
  """What to compare with, where it is not in doubt."""
  candidates = [
    other
    for other in groups
    if other.experiment == group.experiment
    and other.method == runs.Method('full')
    and runs.common_settings(other) == runs.common_settings(group)
  ]
  return candidates[0] if len(candidates) == 1 else None


def _of_reached(group, measure, accuracy):
  values = [measure(run, accuracy) for run in group.runs]
  return [value for value in values if math.isfinite(value)]


def _mean(values):
  return float(np.mean(values)) if len(values) else None


def _std(values):
  return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _percent(mean, std):
  return f'{100 * mean:.1f}' + ('' if std is None else f' ± {100 * std:.1f}')


def _line(cells):
  return f'| {" | ".join(cells)} |'


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
