"""Searches for the clients' step size of each method, as the paper does.

  python -m experiments.tune --experiment=femnist_1 -- --data_source=bundled

The step sizes 2^-1, ..., 2^-5 are tried for each method and m. While the best
is the largest or the smallest one, another is tried beyond it. Flags after `--`
go to each run, for example --total_rounds=41.

The best step size has the highest accuracy after the last round, as a mean over
the seeds; of equal ones, that with the lower loss, then the smaller one.
Accuracy and loss are those on a holdout set, a tenth of the clients of the
pool, which are left out of training. The validation set is not used.

A step size counts as diverged, which is worse than any accuracy, if for one of
the seeds the last round's training loss, the loss on the holdout set or the
update of a client in the last round is not finite. Such updates are never sent,
so the weights stay finite and the loss alone would not show the divergence.

The runs and then the results, tuning.csv, tuning.md, tuning.png and tuning.pdf,
are written below --output_dir. Finished runs are not repeated.
"""

import math
import os
import pathlib
import shlex
import sys
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
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
from tff_ocs.records import units

# By program. The paper gives no grid for CIFAR100; its two choices lie within
# this one.
_GRIDS = {
  'femnist': (2**-1, 2**-2, 2**-3, 2**-4, 2**-5),
  'shakespeare': (2**-1, 2**-2, 2**-3, 2**-4, 2**-5),
  'cifar100': (1e-2, 3e-3, 1e-3, 3e-4, 1e-4),
}
_HOLDOUT_FRACTION = 0.1
_MAX_EXTENSIONS = 10
# The flags that the search sets for each run.
_RESERVED = (
  'client_learning_rate',
  'expected_clients',
  'holdout_fraction',
  'sampling',
  'seed',
)


class Outcome(NamedTuple):
  """The result of a step size, on the holdout set.

  Attributes:
    step_size: The clients' step size.
    accuracies: The final accuracy for each seed, in [0, 1].
    losses: The final loss for each seed.
    diverged: Whether training diverged for one of the seeds.
  """

  step_size: float
  accuracies: tuple[float, ...]
  losses: tuple[float, ...]
  diverged: bool = False


class Tuned(NamedTuple):
  """The search for one method.

  Attributes:
    method: The method.
    published: The paper's step size.
    outcomes: The outcome of each step size, increasing.
  """

  method: runs.Method
  published: float
  outcomes: list[Outcome]


def choose(outcomes: Sequence[Outcome]) -> Outcome:
  """The best of the step sizes; the smallest if all of them diverged."""

  def goodness(outcome):
    if outcome.diverged:
      return 0, -math.inf, -outcome.step_size
    return (
      np.mean(outcome.accuracies),
      -np.mean(outcome.losses),
      -outcome.step_size,
    )

  return max(outcomes, key=goodness)


def next_step_size(outcomes: Sequence[Outcome]) -> Optional[float]:
  """The step size to try next.

  Args:
    outcomes: The outcomes of the step sizes so far, at least two.

  Returns:
    The step size beyond the best, at the ratio of the two last step sizes
    there; `None` if the best has a neighbour on both sides.
  """
  step_sizes = sorted(outcome.step_size for outcome in outcomes)
  best = choose(outcomes).step_size
  if best == step_sizes[0]:
    neighbour = step_sizes[1]
  elif best == step_sizes[-1]:
    neighbour = step_sizes[-2]
  else:
    return None
  # Rounded, so that 10 is not followed by 100.00000000000001.
  return float(f'{best * best / neighbour:.15g}')


def search(
  names: Sequence[str],
  grid: Sequence[float],
  evaluate: Callable[[Sequence[tuple[str, float]]], Sequence[Outcome]],
) -> dict[str, list[Outcome]]:
  """Searches for the best step size of several methods at the same time.

  Args:
    names: The names of the methods.
    grid: The step sizes to begin with, at least two.
    evaluate: A function from names and step sizes to their outcomes.

  Returns:
    The outcomes of each method's step sizes, increasing. The best is the
    largest or the smallest only if it still was after 10 extensions of the
    grid.
  """
  outcomes = {name: [] for name in names}
  pending = [(name, step_size) for name in names for step_size in grid]
  while pending:
    for (name, _), outcome in zip(pending, evaluate(pending)):
      outcomes[name].append(outcome)
    pending = []
    for name, of_method in outcomes.items():
      of_method.sort()
      step_size = next_step_size(of_method)
      if step_size and len(of_method) < len(grid) + _MAX_EXTENSIONS:
        pending.append((name, step_size))
  return outcomes


def read_outcome(step_size: float, of_seeds: Sequence[runs.Run]) -> Outcome:
  """Reads the outcome of a step size from its finished runs, one a seed.

  Args:
    step_size: The step size.
    of_seeds: The runs.

  Returns:
    The `Outcome`.
  """
  # The last round is always evaluated.
  last = [run.metrics.iloc[-1] for run in of_seeds]
  return Outcome(
    step_size,
    tuple(float(row['validation_accuracy']) for row in last),
    tuple(float(row['validation_loss']) for row in last),
    any(
      row['non_finite_clients'] > 0
      or not math.isfinite(row['training_loss'])
      or not math.isfinite(row['validation_loss'])
      for row in last
    ),
  )


def tabulate(all_tuned: Sequence[Tuned]) -> list[dict[str, Any]]:
  """A row for each step size of each method, all with the same keys."""
  return [
    {
      'method': tuned.method.label,
      'step_size': outcome.step_size,
      'seeds': len(outcome.accuracies),
      'holdout_accuracy_mean': None if outcome.diverged else _mean(outcome),
      'holdout_accuracy_std': None if outcome.diverged else _std(outcome),
      'holdout_loss_mean': (
        None if outcome.diverged else float(np.mean(outcome.losses))
      ),
      'diverged': outcome.diverged,
      'best': outcome is choose(tuned.outcomes),
    }
    for tuned in all_tuned
    for outcome in tuned.outcomes
  ]


def format_markdown(all_tuned: Sequence[Tuned], caption: str) -> str:
  """Formats the accuracies as a table with a column for each step size.

  Args:
    all_tuned: The methods.
    caption: The line above the table.

  Returns:
    The text, in Markdown.
  """
  step_sizes = sorted(
    {o.step_size for tuned in all_tuned for o in tuned.outcomes}
  )
  header = [
    'Holdout accuracy [%]',
    *map(units.format_step_size, step_sizes),
    "The paper's choice",
  ]
  rows = []
  for tuned in all_tuned:
    cells = {o.step_size: _format_outcome(o) for o in tuned.outcomes}
    best = choose(tuned.outcomes).step_size
    cells[best] = f'**{cells[best]}**'
    rows.append(
      [
        tuned.method.label,
        *(cells.get(step_size, tables.NONE) for step_size in step_sizes),
        units.format_step_size(tuned.published),
      ]
    )
  return tables.format_markdown(caption, header, rows)


def write_results(
  output_dir: pathlib.Path, all_tuned: Sequence[Tuned], caption: str
) -> None:
  """Writes tuning.csv, tuning.md, tuning.png and tuning.pdf.

  Args:
    output_dir: The folder.
    all_tuned: The methods.
    caption: The data and the number of rounds.

  Raises:
    OSError: If the folder cannot be written to.
  """
  files.write_csv(output_dir / 'tuning.csv', tabulate(all_tuned))
  with files.replacing(output_dir / 'tuning.md') as path:
    path.write_text(format_markdown(all_tuned, caption), encoding='utf-8')
  from plots import tuning

  tuning.plot_tuning(
    [_line(tuned) for tuned in all_tuned],
    [output_dir / f'tuning.{ending}' for ending in ('png', 'pdf')],
    caption=caption,
  )


def _mean(outcome):
  return float(np.mean(outcome.accuracies))


def _std(outcome):
  """The standard deviation of a sample; `None` for a single seed."""
  if len(outcome.accuracies) == 1:
    return None
  return float(np.std(outcome.accuracies, ddof=1))


def _line(tuned):
  """The line of a method in the figure."""
  from plots import tuning

  return tuning.Line(
    method=tuned.method,
    step_sizes=np.array([o.step_size for o in tuned.outcomes]),
    accuracy=np.array(
      [math.nan if o.diverged else _mean(o) for o in tuned.outcomes]
    ),
    deviation=np.array([_std(o) or 0.0 for o in tuned.outcomes]),
    chosen=tuned.outcomes.index(choose(tuned.outcomes)),
    published=tuned.published,
  )


def _format_outcome(outcome):
  if outcome.diverged:
    return 'diverged'
  return tables.format_percent(_mean(outcome), _std(outcome))


def tune(
  paper_run_list: Sequence[paper_runs.PaperRun],
  grid: Sequence[float],
  *,
  repeats: int,
  extra_flags: Sequence[str],
  output_dir: Union[str, os.PathLike],
  parallel: Optional[int] = None,
  ray_address: Optional[str] = None,
) -> None:
  """Searches, prints the table and writes all files.

  Ends the program if runs failed, or if there is a method whose best step size
  is still the last one after 10 extensions of the grid.

  Args:
    paper_run_list: The runs of one experiment whose step sizes are searched
      for.
    grid: The step sizes to begin with, at least two.
    repeats: The number of seeds.
    extra_flags: Flags for each run.
    output_dir: The folder of the runs and the results.
    parallel: As for `jobs.run_jobs`.
    ray_address: As for `jobs.run_jobs`.

  Raises:
    JobError: As `jobs.run_jobs`.
    OSError: If the folder cannot be written to.
  """
  output_dir = pathlib.Path(output_dir)
  by_name = {run.name: run for run in paper_run_list}

  def jobs_of(name, step_size):
    return build_jobs([by_name[name]], [step_size], repeats, extra_flags)

  def read_runs(name, step_size):
    return [
      runs.read_run(output_dir / job.name) for job in jobs_of(name, step_size)
    ]

  def evaluate(pending):
    failed = jobs.run_jobs(
      [job for name_and_step in pending for job in jobs_of(*name_and_step)],
      output_dir=output_dir,
      name='tune',
      parallel=parallel,
      ray_address=ray_address,
    )
    if failed:
      lines = [failed_job.description for failed_job in failed]
      sys.exit('\n'.join(['error: runs failed, so the search ends:', *lines]))
    return [
      read_outcome(step_size, read_runs(name, step_size))
      for name, step_size in pending
    ]

  outcomes = search(list(by_name), grid, evaluate)
  all_tuned = []
  for name, of_method in outcomes.items():
    (group,) = runs.group_runs(read_runs(name, grid[0]))
    of_paper = job_lib.Job(*by_name[name]).values['client_learning_rate']
    all_tuned.append(Tuned(group.method, float(of_paper), of_method))
  if repeats == 1:
    of_seeds = '1 seed.'
  else:
    of_seeds = f'mean ± standard deviation over {repeats} seeds.'
  caption = (
    f'{group.experiment} {group.settings["total_rounds"]} rounds, {of_seeds}'
  )
  print(format_markdown(all_tuned, caption))
  write_results(output_dir, all_tuned, caption)
  print(f'Figure: {output_dir / "tuning.png"}')
  open_ended = [
    tuned.method.label for tuned in all_tuned if next_step_size(tuned.outcomes)
  ]
  if open_ended:
    sys.exit(
      f'error: after {_MAX_EXTENSIONS} extensions of the grid the best step'
      f' size is still the last one: {"; ".join(open_ended)}.'
    )


def build_jobs(
  paper_run_list: Sequence[paper_runs.PaperRun],
  grid: Sequence[float],
  repeats: int,
  extra_flags: Sequence[str],
) -> list[job_lib.Job]:
  """The jobs of each step size and seed.

  Args:
    paper_run_list: The runs whose step sizes are searched for.
    grid: The step sizes.
    repeats: The number of seeds.
    extra_flags: Flags for each run.

  Returns:
    The jobs.
  """
  return [
    job_lib.Job(
      f'{run.name}_lr{step_size:g}_seed{seed}',
      run.program,
      (
        *run.flags,
        *extra_flags,
        f'--holdout_fraction={_HOLDOUT_FRACTION}',
        f'--client_learning_rate={step_size}',
        f'--seed={seed}',
      ),
    )
    for run in paper_run_list
    for step_size in grid
    for seed in range(repeats)
  ]


def main(argv):
  entry.setup()
  # Otherwise every font that goes into a PDF is reported at length.
  logging.set_verbosity(logging.WARNING)
  values = flags.FLAGS
  try:
    extra_flags = campaign_flags.extra_flags(argv, values, _RESERVED)
    if values.experiment == 'paper':
      raise job_lib.JobError(
        '--experiment=paper is too much for one search, use one of'
        f' {"|".join(paper_runs.EXPERIMENTS)}.'
      )
    paper_run_list = campaign_flags.read_runs(values)
    if values.grid:
      grid = [float(value) for value in values.grid]
    else:
      grid = _GRIDS[paper_run_list[0].program]
    first_jobs = build_jobs(paper_run_list, grid, values.repeats, extra_flags)
    if values.dry_run:
      for job in first_jobs:
        print(shlex.join(job.command(values.output_dir)))
      return
    if extra_flags:
      campaign_flags.check_extra_flags(first_jobs)
    tune(
      paper_run_list,
      grid,
      repeats=values.repeats,
      extra_flags=extra_flags,
      output_dir=values.output_dir,
      parallel=values.parallel,
      ray_address=values.ray_address,
    )
  except (
    OSError,
    files.RecordError,
    job_lib.JobError,
    runs.RunsError,
  ) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted; the same command continues where this one ended')


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags.

  Args:
    values: The flags to add them to.
  """
  campaign_flags.define(values)
  campaign_flags.define_methods(values)
  flags.adopt_module_key_flags(campaign_flags, values)
  values.set_default('output_dir', 'tuning')
  flags.DEFINE_list(
    'grid',
    None,
    "The clients' step sizes to begin with. If not given, 2^-1 to 2^-5, and for"
    ' CIFAR100 0.01 to 0.0001.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'repeats',
    1,
    'The number of seeds, 0, 1 and so on, with which each step size is tried.',
    lower_bound=1,
    flag_values=values,
  )
  flags.register_validator(
    'grid',
    _is_grid,
    message='must be two or more different numbers above 0',
    flag_values=values,
  )


def _is_grid(values):
  if values is None:
    return True
  try:
    step_sizes = {float(value) for value in values}
  except ValueError:
    return False
  return (
    len(step_sizes) == len(values) > 1
    and min(step_sizes) > 0
    and max(step_sizes) < math.inf
  )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main, flags_parser=campaign_flags.parse)
