"""Judges the paper's claims by runs, and writes the table of verdicts.

  python -m plots.claims --results_dir=runs --output_dir=claims

Every number and every verdict is computed from the records of the runs. A
verdict is one of four: 'holds', 'holds in part', 'does not hold' and 'not
judged', with the reason. `plots.paper_claims` defines the claims and the
tolerances, and `plots.measures` what is measured:

*   Methods are compared by runs with the same seed. The interval is that of a
    bootstrap over these seeds, with a nominal level of 95 %. With few seeds it
    covers the true mean less often, see `plots.measures`.
*   A number holds if its whole interval is within the tolerance, does not hold
    if all of it is outside, and holds in part if it reaches over an end. With
    fewer than three seeds (--min_seeds) its number is shown but not judged. The
    best step size is one number for all seeds, and judged without an interval.
*   Runs with settings that no run of the paper has, such as `--algorithm=dsgd`
    or `--client_epochs=5`, are not judged (`_PAPER_SETTINGS` in
    `plots.paper_claims`). Nor is a best step size that is the last one tried.
*   A claim holds if all of its numbers do, does not hold if all of those that
    are judged do not, and is not judged if none is. All else holds in part,
    also if some numbers are not judged while the others hold.
*   An accuracy counts as reached from the round on after which no evaluation is
    below it. A run that never reaches it counts with infinitely many bits. Such
    a run only shows that it needs more bits than it sent. The number is judged
    if the bits that it sent give the same verdict as infinitely many. Such
    rounds are judged only in runs that were validated after every round.

The search for step sizes is judged by the tables tuning.csv of
`experiments.tune`, which are looked for below --results_dir or --tuning_dir.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Optional

import pandas as pd
from absl import app
from absl import flags

from plots import inputs
from plots import measures
from plots import paper_claims
from plots import tables
from programs import entry
from programs import paths
from tff_ocs.records import runs
from tff_ocs.records import settings

_TUNING = 'tuning.csv'
_TUNING_COLUMNS = (
  'experiment',
  'title',
  'data',
  'data_source',
  'clients_per_round',
  'sampling',
  'expected_clients',
  'step_size',
  'seeds',
  'best',
)
_ABOUT_LATE = (
  'Where a method is named in parentheses, some of its seeds stay at the'
  ' accuracy only in the last tenth of their rounds, or never; the number then'
  ' depends on the length of the runs.'
)


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
  write_claims(
    results_dir=flags.FLAGS.results_dir,
    tuning_dir=flags.FLAGS.tuning_dir,
    output_dir=flags.FLAGS.output_dir,
    data=flags.FLAGS.data,
    min_seeds=flags.FLAGS.min_seeds,
  )


def _define_flags():
  inputs.define_flags()
  paths.define_path(
    'tuning_dir',
    None,
    'The folder below which the tables of experiments.tune are. If not given,'
    ' --results_dir.',
  )
  paths.define_path(
    'output_dir',
    None,
    'The folder to write claims.md and claims.csv to. If not given, the table'
    ' is only printed.',
  )
  flags.DEFINE_integer(
    'min_seeds',
    paper_claims.MIN_SEEDS,
    'With fewer seeds a number is not judged. One seed has no interval.',
    lower_bound=2,
  )


def write_claims(
  *,
  results_dir: str,
  tuning_dir: Optional[str] = None,
  output_dir: Optional[str] = None,
  data: Optional[str] = None,
  min_seeds: int = paper_claims.MIN_SEEDS,
) -> list[paper_claims.Judged]:
  """Prints the table; ends the program with a line if it cannot.

  Args:
    results_dir: The folder below which the runs are.
    tuning_dir: The folder below which the tables tuning.csv are; `None` is
      `results_dir`.
    output_dir: Where to write claims.md and claims.csv; `None` is nowhere.
    data: Part of the name, or the source, of the data to use; `None` is all.
    min_seeds: With fewer seeds, at least 2, a number is not judged.

  Returns:
    The claims with their verdicts.
  """
  try:
    if tuning_dir is not None and not pathlib.Path(tuning_dir).is_dir():
      raise runs.RunsError(f'--tuning_dir={tuning_dir} is not a folder.')
    groups = inputs.find_groups(results_dir, data)
    tuned = read_tuning(pathlib.Path(tuning_dir or results_dir), data)
    if not groups and not tuned:
      raise inputs.no_runs(results_dir, data)
    evidence = paper_claims.Evidence(groups, tuned)
    judged = paper_claims.judge(evidence, min_seeds)
    text = f'{format_markdown(judged)}\n{format_runs(groups)}'
    print(text, end='')
    if output_dir is not None:
      folder = pathlib.Path(output_dir)
      folder.mkdir(parents=True, exist_ok=True)
      tables.write(folder / 'claims', paper_claims.tabulate(judged), text)
  except (OSError, runs.RunsError) as error:
    sys.exit(f'error: {error}')
  return judged


def read_tuning(
  folder: pathlib.Path, data: Optional[str]
) -> dict[pathlib.Path, pd.DataFrame]:
  """Reads the tables of `experiments.tune` below a folder.

  Args:
    folder: The folder.
    data: As for `write_claims`.

  Returns:
    The tables by their paths. A line is printed for each table that cannot be
    used, such as one of an earlier version, which does not say what was tuned,
    and it is left out.
  """
  tuned: dict[pathlib.Path, pd.DataFrame] = {}
  left_out: list[str] = []
  for of_search, names in runs.walk(folder, left_out):
    if _TUNING not in names:
      continue
    path = of_search / _TUNING
    try:
      table = pd.read_csv(path)
    except ValueError as error:  # Among others, that of an empty file.
      left_out.append(f'{path} is left out: {error}.')
      continue
    missing = [name for name in _TUNING_COLUMNS if name not in table]
    if missing:
      left_out.append(
        f'{path} is left out: it has no column {missing[0]}; repeat the command'
        ' of experiments.tune, which then writes it.'
      )
    elif data is None or any(
      data == source or data in name
      for source, name in zip(table['data_source'], table['data'])
    ):
      tuned[path] = table
  for line in dict.fromkeys(left_out):
    print(line, file=sys.stderr)
  return tuned


def format_verdicts(judged: Sequence[paper_claims.Judged]) -> str:
  """The short table: a row for each claim, with its verdict."""
  return tables.format_markdown(
    "The paper's claims, and two of ours",
    ['Claim', 'Verdict', 'Numbers'],
    [
      [
        f'{claim.number}. {claim.statement} ({claim.source})',
        claim.verdict,
        claim.counts,
      ]
      for claim in judged
    ],
    num_texts=3,
  )


def format_markdown(judged: Sequence[paper_claims.Judged]) -> str:
  """The short table, and a table of the numbers of each claim."""
  header = ['Data', 'Quantity', 'Paper', 'Ours [interval]', 'Seeds']
  header += ['Tolerance', 'Verdict']
  notes = [measures.ABOUT_INTERVALS]
  if any(check.note for claim in judged for check in claim.checks):
    notes.append(_ABOUT_LATE)
  return '\n'.join(
    [format_verdicts(judged)]
    + [
      tables.format_markdown(
        f'Claim {claim.number}: {claim.verdict}',
        header,
        [_format_check(check) for check in claim.checks],
        num_texts=2,
      )
      for claim in judged
    ]
    + [f'{note}\n' for note in notes]
  )


def format_runs(groups: Sequence[runs.Group]) -> str:
  """A table with the rounds, the commits and the cores of each experiment."""
  by_experiment = {
    experiment: [run for group in of_experiment for run in group.runs]
    for experiment, of_experiment in runs.by_experiment(groups).items()
  }
  return tables.format_markdown(
    'The runs',
    ['Data', 'Runs', 'Rounds', 'Commits', 'Cores'],
    [
      [
        f'{experiment.title}, n={experiment.clients_per_round}',
        str(len(of_experiment)),
        *_describe_runs(of_experiment),
      ]
      for experiment, of_experiment in by_experiment.items()
    ],
  )


def _describe_runs(of_experiment: Sequence[runs.Run]) -> list[str]:
  environments = [settings.read_config(run.path)[1] for run in of_experiment]
  return [
    ', '.join(sorted({str(value) for value in values}))
    for values in (
      [run.settings.total_rounds for run in of_experiment],
      [(of.get('git_commit') or 'unknown')[:7] for of in environments],
      [of.get('cpus', 'unknown') for of in environments],
    )
  ]


def _format_check(check):
  verdict = check.verdict + (f' ({check.why})' if check.why else '')
  if check.verdict == paper_claims.IN_PART:
    verdict += f' (the number is {"within" if check.is_within else "outside"})'
  start = [check.data, check.quantity, check.paper]
  if check.estimate is None:
    return [*start, tables.NONE, tables.NONE, check.tolerance.text, verdict]
  value, low, high, seeds = check.estimate
  ours = _format_number(value, check.unit)
  if not pd.isna(low):
    ends = [_format_number(end, check.unit) for end in (low, high)]
    ours += f' [{", ".join(ends)}]'
  if not pd.isna(check.by_first_hit):
    ours += f', first hit {_format_number(check.by_first_hit, check.unit)}'
  if check.note:
    ours += f' ({check.note})'
  return [*start, ours, str(seeds), check.tolerance.text, verdict]


def _format_number(value, unit):
  if unit == 'ratio':
    return f'{value:.3g}'.replace('inf', '∞')
  if unit == 'Gbit':
    return f'{value:.1f}'.replace('inf', '∞')
  return f'{100 * value:+.2f}' if unit == 'points' else f'{100 * value:.1f}'


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
