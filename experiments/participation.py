"""How many participants are enough: the smallest m as good as all n clients.

  python -m experiments.participation --experiment=femnist_1 -- \\
    --data_source=bundled --total_rounds=41

The paper conjectures that m = O(sqrt(n)) participants suffice to follow full
participation round by round (Section 5.4). For each n and m, AOCS is trained as
in the paper's experiment, with the same seeds as full participation. An m is
enough if its mean accuracy on the validation set after the last round is at
most one standard deviation (of full participation, over the seeds) below the
mean accuracy of full participation. Flags after `--` go to each run.

The runs and then the results, participation.csv, participation.md,
participation.png and participation.pdf, are written below --output_dir.
Finished runs are not repeated.
"""

import math
import pathlib
import shlex
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np
from absl import app
from absl import flags
from absl import logging

from experiments.campaigns import campaign_flags
from experiments.campaigns import job as job_lib
from experiments.campaigns import jobs
from experiments.campaigns import paper_runs
from plots import tables
from programs import entry
from tff_ocs.records import files
from tff_ocs.records import runs

# The flags that the program sets for each run.
_RESERVED = ('clients_per_round', 'expected_clients', 'sampling', 'seed')
_METRIC = 'validation_accuracy'


class Accuracies(NamedTuple):
  """The accuracies with one n and one m.

  Attributes:
    clients_per_round: n.
    expected_clients: m; n for full participation.
    accuracies: The accuracy on the validation set after the last round, for
      each seed, in [0, 1].
  """

  clients_per_round: int
  expected_clients: int
  accuracies: tuple[float, ...]

  @property
  def mean(self) -> float:
    """The mean over the seeds."""
    return float(np.mean(self.accuracies))

  @property
  def deviation(self) -> float:
    """The standard deviation of a sample, over the seeds."""
    return float(np.std(self.accuracies, ddof=1))


class Comparison(NamedTuple):
  """The result for one n.

  Attributes:
    full: Full participation.
    sampled: AOCS, with m increasing.
  """

  full: Accuracies
  sampled: tuple[Accuracies, ...]

  def is_enough(self, trained: Accuracies) -> bool:
    """Whether it is within one standard deviation of full participation."""
    return trained.mean >= self.full.mean - self.full.deviation

  @property
  def smallest(self) -> Optional[int]:
    """The smallest m that is enough; `None` if none of those tried is."""
    enough = filter(self.is_enough, self.sampled)
    return next((trained.expected_clients for trained in enough), None)


def build_job(
  experiment: str,
  clients_per_round: int,
  expected_clients: int,
  seed: int,
  extra_flags: Sequence[str],
) -> job_lib.Job:
  """The job of one run.

  Args:
    experiment: One of `paper_runs.EXPERIMENTS`.
    clients_per_round: n.
    expected_clients: m, for AOCS; n for full participation.
    seed: The seed.
    extra_flags: Flags for each run.

  Returns:
    The job.
  """
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
  return job_lib.Job(
    f'{name}_seed{seed}',
    run.program,
    (*run.flags, *extra_flags, f'--seed={seed}'),
  )


def tabulate(
  comparisons: Sequence[Comparison],
) -> list[dict[str, Union[int, float]]]:
  """A row for each n and m, all with the same keys."""
  return [
    {
      'clients_per_round': trained.clients_per_round,
      'expected_clients': trained.expected_clients,
      'seeds': len(trained.accuracies),
      'accuracy_mean': trained.mean,
      'accuracy_std': trained.deviation,
      'is_enough': found.is_enough(trained),
    }
    for found in comparisons
    for trained in (*found.sampled, found.full)
  ]


def format_markdown(comparisons: Sequence[Comparison], caption: str) -> str:
  """Formats the accuracies as a table with a row for each n.

  Args:
    comparisons: The results, by n.
    caption: The line above the table.

  Returns:
    The text, in Markdown.
  """
  numbers = sorted(
    {t.expected_clients for found in comparisons for t in found.sampled}
  )
  header = ['Validation accuracy [%]', *(f'm={m}' for m in numbers)]
  header += ['full participation', 'smallest m', 'm / √n']
  rows = []
  for found in comparisons:
    n = found.full.clients_per_round
    cells = dict.fromkeys(numbers, tables.NONE)
    for trained in found.sampled:
      cell = tables.format_percent(trained.mean, trained.deviation)
      if found.is_enough(trained):
        cell = f'**{cell}**'
      cells[trained.expected_clients] = cell
    m = found.smallest
    rows.append(
      [
        f'n={n}',
        *cells.values(),
        tables.format_percent(found.full.mean, found.full.deviation),
        tables.NONE if m is None else str(m),
        tables.NONE if m is None else f'{m / math.sqrt(n):.2f}',
      ]
    )
  return tables.format_markdown(caption, header, rows)


def write_results(
  output_dir: pathlib.Path, comparisons: Sequence[Comparison], caption: str
) -> None:
  """Writes participation.csv, .md, .png and .pdf.

  Args:
    output_dir: The folder.
    comparisons: The results, by n.
    caption: The data and the number of rounds.

  Raises:
    OSError: If the folder cannot be written to.
  """
  files.write_csv(output_dir / 'participation.csv', tabulate(comparisons))
  with files.replacing(output_dir / 'participation.md') as path:
    path.write_text(format_markdown(comparisons, caption), encoding='utf-8')
  from plots import enough_participants

  enough_participants.plot_participation(
    [_panel(found) for found in comparisons],
    [output_dir / f'participation.{ending}' for ending in ('png', 'pdf')],
    caption=caption,
  )


def _panel(found):
  """The panel of an n in the figure."""
  from plots import enough_participants

  return enough_participants.Panel(
    clients_per_round=found.full.clients_per_round,
    full_accuracy=found.full.mean,
    full_deviation=found.full.deviation,
    expected_clients=np.array([t.expected_clients for t in found.sampled]),
    accuracy=np.array([t.mean for t in found.sampled]),
    deviation=np.array([t.deviation for t in found.sampled]),
    smallest=found.smallest,
  )


def read_comparison(
  output_dir: pathlib.Path, n: int, by_m: Mapping[int, Sequence[job_lib.Job]]
) -> Comparison:
  """Reads the result for one n from its finished runs.

  Args:
    output_dir: The folder of the runs' folders.
    n: n.
    by_m: For each m, increasing, the jobs of all seeds; the last is n itself,
      full participation.

  Returns:
    The `Comparison`.
  """
  *sampled, full = (
    Accuracies(
      n,
      m,
      tuple(
        # The last round is always evaluated.
        float(runs.read_run(output_dir / job.name).evaluated(_METRIC)[1][-1])
        for job in of_seeds
      ),
    )
    for m, of_seeds in by_m.items()
  )
  return Comparison(full, tuple(sampled))


def main(argv):
  entry.setup()
  # Otherwise every font that goes into a PDF is reported at length.
  logging.set_verbosity(logging.WARNING)
  values = flags.FLAGS
  try:
    extra_flags = campaign_flags.extra_flags(argv, values, _RESERVED)
    if values.experiment == 'paper':
      raise job_lib.JobError(
        '--experiment=paper is too much for one table, use one of'
        f' {"|".join(paper_runs.EXPERIMENTS)}.'
      )
    by_n = {
      n: {
        m: [
          build_job(values.experiment, n, m, seed, extra_flags)
          for seed in range(values.repeats)
        ]
        for m in (*_below(values.expected_clients, n), n)
      }
      for n in sorted(map(int, values.clients_per_round))
    }
    all_jobs = [
      of_seeds[seed]
      for seed in range(values.repeats)
      for by_m in by_n.values()
      for of_seeds in by_m.values()
    ]
    if values.dry_run:
      for job in all_jobs:
        print(shlex.join(job.command(values.output_dir)))
      return
    if extra_flags:
      campaign_flags.check_extra_flags(all_jobs)
    _run(values, all_jobs, by_n)
  except (
    OSError,
    files.RecordError,
    job_lib.JobError,
    runs.RunsError,
  ) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted; the same command continues where this one ended')


def _run(values, all_jobs, by_n):
  """Trains, prints the table and writes all files."""
  failed = jobs.run_jobs(
    all_jobs,
    output_dir=values.output_dir,
    name='participation',
    parallel=values.parallel,
    ray_address=values.ray_address,
  )
  if failed:
    lines = [failed_job.description for failed_job in failed]
    sys.exit('\n'.join(['error: runs failed:', *lines]))
  output_dir = pathlib.Path(values.output_dir)
  comparisons = [read_comparison(output_dir, *item) for item in by_n.items()]
  (group,) = runs.group_runs([runs.read_run(output_dir / all_jobs[0].name)])
  experiment = group.experiment
  caption = (
    f'{experiment.name}. Data: {experiment.data}; source:'
    f' {experiment.data_source}. {group.settings["total_rounds"]} rounds, mean'
    f' ± standard deviation over {values.repeats} seeds.'
  )
  print(format_markdown(comparisons, caption))
  write_results(output_dir, comparisons, caption)
  print(f'Figure: {output_dir / "participation.png"}')


def _below(numbers, n):
  return [m for m in sorted(map(int, numbers)) if m < n]


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags.

  Args:
    values: The flags to add them to.
  """
  campaign_flags.define(values)
  flags.adopt_module_key_flags(campaign_flags, values)
  values.set_default('output_dir', 'participation')
  flags.DEFINE_list(
    'clients_per_round',
    ['16', '32', '64'],
    'The sizes n of the cohorts.',
    flag_values=values,
  )
  flags.DEFINE_list(
    'expected_clients',
    ['1', '2', '3', '6', '9', '12'],
    'The expected numbers m of participants, of which those below n are tried.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'repeats',
    5,
    'The number of seeds, 0, 1 and so on; one has no standard deviation.',
    lower_bound=2,
    flag_values=values,
  )
  for name, least in (('clients_per_round', 2), ('expected_clients', 1)):
    flags.register_validator(
      name,
      lambda numbers, least=least: _are_from(least, numbers),
      message=f'must be one or more different whole numbers from {least} on',
      flag_values=values,
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


def _are_from(least, values):
  try:
    numbers = {int(value) for value in values}
  except ValueError:
    return False
  return len(numbers) == len(values) > 0 and min(numbers) >= least


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main, flags_parser=campaign_flags.parse)
