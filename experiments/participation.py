"""How many participants are enough: the smallest m as good as all n clients.

  python -m experiments.participation --experiment=femnist_1 -- \\
    --data_source=bundled --total_rounds=41

The paper conjectures that m = O(sqrt(n)) participants suffice to follow full
participation round by round (Section 5.4). For each n and m AOCS is trained as
in the paper's experiment, with the same seeds as full participation. An m
counts as enough if its mean accuracy on the validation set after the last round
is not below that of full participation by more than one standard deviation of
the latter over the seeds. Flags after `--` go to each run.

Below --output_dir are the runs, and in the end the results: participation.csv,
participation.md, participation.png and participation.pdf. Runs that are
finished are not repeated.
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

from experiments.campaigns import jobs
from experiments.campaigns import paper_runs
from plots import enough_participants
from tff_ocs.records import files
from tff_ocs.records import runs

# The flags that the program decides.
_RESERVED = ('clients_per_round', 'expected_clients', 'sampling', 'seed')
_METRIC = 'validation_accuracy'
_NONE = '–'


class Trained(NamedTuple):
  """What was reached with one n and one m.

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
    """The standard deviation over the seeds, that of a sample."""
    return float(np.std(self.accuracies, ddof=1))


class Found(NamedTuple):
  """What was found for one n.

  Attributes:
    full: Full participation.
    sampled: AOCS, with m increasing.
  """

  full: Trained
  sampled: tuple[Trained, ...]

  def is_enough(self, trained: Trained) -> bool:
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
) -> jobs.Job:
  """The job of one run.

  Args:
    experiment: One of `published.EXPERIMENTS`.
    clients_per_round: n.
    expected_clients: m, for AOCS; n for full participation.
    seed: The seed.
    extra_flags: Flags for each run.

  Returns:
    The job.
  """
  is_full = expected_clients == clients_per_round
  sampling = 'full' if is_full else 'aocs'
  flag_file = paper_runs.read(experiment, [sampling])[0]
  own_flags = [f'--clients_per_round={clients_per_round}', f'--seed={seed}']
  name = f'{experiment}_n{clients_per_round}_{sampling}'
  if not is_full:
    own_flags.append(f'--expected_clients={expected_clients}')
    name += f'_m{expected_clients}'
  return jobs.Job(
    f'{name}_seed{seed}',
    flag_file.binary,
    (*flag_file.flags, *extra_flags, *own_flags),
  )


def tabulate(all_found: Sequence[Found]) -> list[dict[str, Union[int, float]]]:
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
    for found in all_found
    for trained in (*found.sampled, found.full)
  ]


def format_markdown(all_found: Sequence[Found], caption: str) -> str:
  """Formats the accuracies as a table with a row for each n.

  Args:
    all_found: What was found, by n.
    caption: The line above the table.

  Returns:
    The text, in Markdown.
  """
  numbers = sorted(
    {t.expected_clients for found in all_found for t in found.sampled}
  )
  header = ['Validation accuracy [%]', *(f'm={m}' for m in numbers)]
  header += ['full participation', 'smallest m', 'm / √n']
  rows = [header, ['---'] + ['---:'] * (len(header) - 1)]
  for found in all_found:
    n = found.full.clients_per_round
    cells = dict.fromkeys(numbers, _NONE)
    for trained in found.sampled:
      cell = _format(trained)
      if found.is_enough(trained):
        cell = f'**{cell}**'
      cells[trained.expected_clients] = cell
    m = found.smallest
    rows.append(
      [
        f'n={n}',
        *cells.values(),
        _format(found.full),
        _NONE if m is None else str(m),
        _NONE if m is None else f'{m / math.sqrt(n):.2f}',
      ]
    )
  lines = [f'**{caption}**', '', *(f'| {" | ".join(row)} |' for row in rows)]
  return '\n'.join(lines) + '\n'


def write_results(
  output_dir: pathlib.Path, all_found: Sequence[Found], caption: str
) -> None:
  """Writes participation.csv, .md, .png and .pdf.

  Args:
    output_dir: The folder.
    all_found: What was found, by n.
    caption: What the data is, and how long was trained.

  Raises:
    OSError: If the folder cannot be written to.
  """
  files.write_csv(output_dir / 'participation.csv', tabulate(all_found))
  with files.replacing(output_dir / 'participation.md') as path:
    path.write_text(format_markdown(all_found, caption))
  enough_participants.plot_participation(
    [_panel(found) for found in all_found],
    [output_dir / f'participation.{ending}' for ending in ('png', 'pdf')],
    caption=caption,
  )


def _format(trained):
  return f'{100 * trained.mean:.1f} ± {100 * trained.deviation:.1f}'


def _panel(found):
  """What the figure shows of an n."""
  return enough_participants.Panel(
    clients_per_round=found.full.clients_per_round,
    full_accuracy=found.full.mean,
    full_deviation=found.full.deviation,
    expected_clients=np.array([t.expected_clients for t in found.sampled]),
    accuracy=np.array([t.mean for t in found.sampled]),
    deviation=np.array([t.deviation for t in found.sampled]),
    smallest=found.smallest,
  )


def read_found(
  output_dir: pathlib.Path, n: int, by_m: Mapping[int, Sequence[jobs.Job]]
) -> Found:
  """Reads what was found for one n from its finished runs.

  Args:
    output_dir: The folder of the runs' folders.
    n: n.
    by_m: For each m, increasing, the jobs of all seeds; the last is n itself,
      full participation.

  Returns:
    The `Found`.
  """
  *sampled, full = (
    Trained(
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
  return Found(full, tuple(sampled))


def main(argv):
  # Otherwise every font that goes into a PDF is reported at length.
  logging.set_verbosity(logging.WARNING)
  values = flags.FLAGS
  if values.experiment == 'paper':
    sys.exit(
      'error: --experiment=paper is too much for one table, use one of'
      f' {"|".join(paper_runs.EXPERIMENTS)}.'
    )
  try:
    extra_flags = paper_runs.extra_flags(argv, _RESERVED)
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
      paper_runs.check_flags(all_jobs)
    _run(values, all_jobs, by_n)
  except (OSError, jobs.JobError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted; the same command goes on where this one ended')


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
  all_found = [read_found(output_dir, *item) for item in by_n.items()]
  (group,) = runs.group_runs([runs.read_run(output_dir / all_jobs[0].name)])
  experiment = group.experiment
  caption = (
    f'{experiment.name}. Data: {experiment.data}; source:'
    f' {experiment.data_source}. {group.settings["total_rounds"]} rounds, mean'
    f' ± standard deviation over {values.repeats} seeds.'
  )
  print(format_markdown(all_found, caption))
  write_results(output_dir, all_found, caption)
  print(f'Figure: {output_dir / "participation.png"}')


def _below(numbers, n):
  return [m for m in sorted(map(int, numbers)) if m < n]


def _define_flags():
  paper_runs.define_flags(with_methods=False)
  flags.adopt_module_key_flags(paper_runs)
  flags.FLAGS.set_default('output_dir', 'participation')
  flags.DEFINE_list(
    'clients_per_round', ['16', '32', '64'], 'The sizes n of the cohorts.'
  )
  flags.DEFINE_list(
    'expected_clients',
    ['1', '2', '3', '6', '9', '12'],
    'The expected numbers m of participants, of which those below n are tried.',
  )
  flags.DEFINE_integer(
    'repeats',
    5,
    'How many seeds: 0, 1, ...; with one there is no standard deviation.',
    lower_bound=2,
  )
  flags.register_validator(
    'clients_per_round',
    lambda numbers: _are_from(2, numbers),
    message='must be one or more different whole numbers from 2 on',
  )
  flags.register_validator(
    'expected_clients',
    lambda numbers: _are_from(1, numbers),
    message='must be one or more different whole numbers from 1 on',
  )
  flags.register_multi_flags_validator(
    ['clients_per_round', 'expected_clients'],
    lambda values: (
      min(map(int, values['expected_clients']))
      < min(map(int, values['clients_per_round']))
    ),
    message='the smallest m must be below each n',
  )


def _are_from(least, values):
  try:
    numbers = {int(value) for value in values}
  except ValueError:
    return False
  return len(numbers) == len(values) > 0 and min(numbers) >= least


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
