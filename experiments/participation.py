"""How many participants are enough: the smallest m as good as all n clients.

  python -m experiments.participation --experiment=femnist_1 -- \\
    --data_source=bundled --total_rounds=41

The paper conjectures that m = O(sqrt(n)) participants suffice to follow full
participation round by round (Section 5.4). For each n and m, AOCS is trained as
in the paper's experiment, with the same seeds as full participation. Their
accuracies on the validation set after the last round are compared by pairs of
runs with the same seed. An m is enough if no part of the interval of the mean
difference (see `plots.measures`) is below -0.5 points. Flags after `--` go to
each run.

A larger cohort has more of the large clients, too, so that n is not all that
differs between the rows of the table.

The runs and then the results, participation.csv, participation.md,
participation.png and participation.pdf, are written below --output_dir.
Finished runs are not repeated.
"""

import math
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np
import pandas as pd
from absl import app
from absl import flags

from experiments.campaigns import campaign
from experiments.campaigns import campaign_flags
from experiments.campaigns import job as job_lib
from experiments.campaigns import paper_runs
from plots import measures
from plots import tables
from programs import definer
from tff_ocs.records import runs

# The flags that the program sets for each run.
_RESERVED = ('clients_per_round', 'expected_clients', 'sampling', 'seed')


@campaign.reporting_errors()
def main(argv):
  values = flags.FLAGS
  extra_flags = campaign_flags.extra_flags(argv, values, _RESERVED)
  jobs_of = {
    (n, m): [
      build_job(values.experiment, n, m, seed, extra_flags)
      for seed in range(values.repeats)
    ]
    for n in sorted(map(int, values.clients_per_round))
    for m in (*_below(values.expected_clients, n), n)
  }
  all_jobs = [job for of_seed in zip(*jobs_of.values()) for job in of_seed]
  campaign.check_or_print(all_jobs, values)
  campaign.run_all(all_jobs, values, name='participation')
  output_dir = pathlib.Path(values.output_dir)
  table = tabulate(
    {
      n_and_m: [read_accuracy(output_dir / job.name) for job in of_seeds]
      for n_and_m, of_seeds in jobs_of.items()
    }
  )
  (group,) = runs.group_runs([runs.read_run(output_dir / all_jobs[0].name)])
  caption = caption_of(group, values.repeats)
  print(format_markdown(table, caption))
  write_results(output_dir, table, caption)
  print(f'Figure: {output_dir / "participation.png"}')


def caption_of(group: runs.Group, repeats: int) -> str:
  """The caption, which names the data of one of the groups."""
  experiment = group.experiment
  in_place_of = (
    f', in place of {experiment.name}' if experiment.is_stand_in else ''
  )
  return (
    f'{experiment.title}{in_place_of}. Data: {experiment.data}.'
    f' {group.settings["total_rounds"]} rounds, {repeats} seeds. Differences'
    ' are paired by seed, with intervals over the seeds.'
  )


def build_job(
  experiment: str,
  clients_per_round: int,
  expected_clients: int,
  seed: int,
  extra_flags: Sequence[str],
) -> job_lib.Job:
  """The job of one run: AOCS, or full participation if m is n."""
  is_full = expected_clients == clients_per_round
  sampling = 'full' if is_full else 'aocs'
  (run,) = paper_runs.read(
    experiment,
    [sampling],
    expected_clients=[expected_clients],
    clients_per_round=clients_per_round,
  )
  name = f'{experiment}_n{clients_per_round}_{sampling}'
  if not is_full:
    name += f'_m{expected_clients}'
  return run._replace(name=name).extended(
    f'_seed{seed}', *extra_flags, f'--seed={seed}'
  )


def read_accuracy(folder: pathlib.Path) -> float:
  """The validation accuracy of a run after its last round."""
  # The last round is always evaluated.
  return float(runs.read_run(folder).evaluated('validation_accuracy')[1][-1])


def tabulate(
  accuracies: Mapping[tuple[int, int], Sequence[float]],
) -> pd.DataFrame:
  """A row for each n and m, of which the last is n: full participation.

  Args:
    accuracies: The accuracies, one for each seed and in the same order of
      seeds, by n and m in this order.
  """
  rows = []
  for (n, m), of_seeds in accuracies.items():
    difference = measures.estimate_mean(np.subtract(of_seeds, accuracies[n, n]))
    rows.append(
      {
        'clients_per_round': n,
        'expected_clients': m,
        'seeds': len(of_seeds),
        'accuracy_mean': np.mean(of_seeds),
        'accuracy_std': np.std(of_seeds, ddof=1),
        'minus_full_mean': difference.value,
        'minus_full_low': difference.low,
        'minus_full_high': difference.high,
        'is_enough': difference.low >= -measures.SAME_ACCURACY,
      }
    )
  return pd.DataFrame(rows)


def format_markdown(table: pd.DataFrame, caption: str) -> str:
  """The differences to full participation in Markdown, a row for each n."""
  is_full = table['expected_clients'] == table['clients_per_round']
  numbers = sorted(set(table['expected_clients'][~is_full]))
  header = ['Minus full participation [points]', *(f'm={m}' for m in numbers)]
  header += ['full participation [%]', 'smallest m', 'm / √n']
  rows = []
  for n, of_n in table.groupby('clients_per_round', sort=False):
    cells = dict.fromkeys(numbers, tables.NONE)
    *sampled, full = (row._asdict() for row in of_n.itertuples())
    for row in sampled:
      cell = (
        f'{100 * row["minus_full_mean"]:+.2f}'
        f' [{100 * row["minus_full_low"]:+.2f},'
        f' {100 * row["minus_full_high"]:+.2f}]'
      )
      cells[row['expected_clients']] = (
        f'**{cell}**' if row['is_enough'] else cell
      )
    enough = [row['expected_clients'] for row in sampled if row['is_enough']]
    smallest = [tables.NONE] * 2
    if enough:
      smallest = [str(enough[0]), f'{enough[0] / math.sqrt(n):.2f}']
    of_full = tables.format_percent(full['accuracy_mean'], full['accuracy_std'])
    rows.append([f'n={n}', *cells.values(), of_full, *smallest])
  return tables.format_markdown(caption, header, rows)


def write_results(
  output_dir: pathlib.Path, table: pd.DataFrame, caption: str
) -> None:
  """Writes participation.csv, .md, .png and .pdf."""
  path = output_dir / 'participation'
  tables.write(path, table, format_markdown(table, caption))
  from plots import enough_participants

  enough_participants.plot_participation(
    table,
    [path.with_suffix(ending) for ending in ('.png', '.pdf')],
    caption=caption,
  )


def _below(numbers, n):
  return [m for m in sorted(map(int, numbers)) if m < n]


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  campaign_flags.define(values, paper_runs.EXPERIMENTS)
  values.set_default('output_dir', 'participation')
  define.list(
    'clients_per_round', ['16', '32', '64'], 'The sizes n of the cohorts.'
  )
  define.list(
    'expected_clients',
    ['1', '2', '3', '6', '9', '12'],
    'The expected numbers m of participants, of which those below n are tried.',
  )
  define.integer(
    'repeats',
    5,
    'The number of seeds, 0, 1 and so on; one has no standard deviation.',
    lower_bound=2,
  )
  for name, least in (('clients_per_round', 2), ('expected_clients', 1)):
    define.validate(
      name,
      lambda numbers, least=least: definer.are_different(
        numbers, int, lambda number: number >= least
      ),
      message=f'must be one or more different whole numbers from {least} on',
    )
  flags.register_multi_flags_validator(
    ['clients_per_round', 'expected_clients'],
    lambda numbers: (
      min(map(int, numbers['expected_clients']))
      < min(map(int, numbers['clients_per_round']))
    ),
    message='the smallest m must be below each n',
    flag_values=values,
  )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main, flags_parser=campaign_flags.parse)
