"""Searches for the clients' step size of each method, as the paper does.

  python -m experiments.tune --experiment=femnist_1 -- --data_source=bundled

The step sizes 2^-1, ..., 2^-5 are tried for each method and m. While the best
is the largest or the smallest one, another is tried beyond it. Flags after `--`
go to each run, for example --total_rounds=41.

The best step size has the highest accuracy after the last round, as a mean over
the seeds; of equal ones, that with the lower loss, then the smaller one. For
regression targets the loss decides.
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
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

import numpy as np
import pandas as pd
from absl import app
from absl import flags

from experiments.campaigns import campaign
from experiments.campaigns import campaign_flags
from experiments.campaigns import job as job_lib
from experiments.campaigns import paper_runs
from experiments.runs import experiment_flags
from plots import tables
from programs import definer
from tff_ocs.records import runs
from tff_ocs.records import units

# By program. The paper gives no grid for CIFAR100; its two choices lie within
# this one.
_GRIDS = {
  'femnist': (2**-1, 2**-2, 2**-3, 2**-4, 2**-5),
  'shakespeare': (2**-1, 2**-2, 2**-3, 2**-4, 2**-5),
  'cifar100': (1e-2, 3e-3, 1e-3, 3e-4, 1e-4),
  'custom': (2**-1, 2**-2, 2**-3, 2**-4, 2**-5),
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
    accuracies: The accuracy for each seed by which step sizes are compared, in
      [0, 1]: the final one, unless the program says otherwise; NaN if the task
      has none.
    losses: The final loss for each seed.
    diverged: Whether training diverged for one of the seeds.
  """

  step_size: float
  accuracies: tuple[float, ...]
  losses: tuple[float, ...]
  diverged: bool = False


def choose(outcomes: Sequence[Outcome]) -> Outcome:
  """The best of the step sizes; the smallest if all of them diverged."""

  def goodness(outcome):
    if outcome.diverged:
      return 0.0, -math.inf, -outcome.step_size
    return (
      np.nan_to_num(np.mean(outcome.accuracies)),
      -np.mean(outcome.losses),
      -outcome.step_size,
    )

  return max(outcomes, key=goodness)


def next_step_size(outcomes: Sequence[Outcome]) -> Optional[float]:
  """The step size to try next, after at least two.

  It lies beyond the best, at the ratio of the two last step sizes there; `None`
  if the best has a neighbour on both sides.
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
  names: Iterable[str],
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
  """The outcome of a step size, from its finished runs, one a seed."""
  # The last round is always evaluated.
  last = [run.metrics.iloc[-1] for run in of_seeds]
  return Outcome(
    step_size,
    tuple(float(row.get('validation_accuracy', math.nan)) for row in last),
    tuple(float(row['validation_loss']) for row in last),
    any(
      row['non_finite_clients'] > 0
      # A cohort of independent coins may be empty, and has no loss.
      or not (math.isfinite(row['training_loss']) or row.get('available') == 0)
      or not math.isfinite(row['validation_loss'])
      for row in last
    ),
  )


def tabulate(outcomes: Mapping[runs.Method, Sequence[Outcome]]) -> pd.DataFrame:
  """A row for each step size of each method; NaN where it diverged."""
  rows = []
  for method, of_method in outcomes.items():
    for outcome in of_method:
      mean, std, loss = math.nan, math.nan, math.nan
      if not outcome.diverged:
        mean, loss = np.mean(outcome.accuracies), np.mean(outcome.losses)
        if len(outcome.accuracies) > 1:
          std = np.std(outcome.accuracies, ddof=1)
      rows.append(
        {
          'method': method.label,
          'step_size': outcome.step_size,
          'seeds': len(outcome.accuracies),
          'holdout_accuracy_mean': mean,
          'holdout_accuracy_std': std,
          'holdout_loss_mean': loss,
          'diverged': outcome.diverged,
          'best': outcome is choose(of_method),
        }
      )
  return pd.DataFrame(rows)


def describe(
  table: pd.DataFrame,
  methods: Mapping[str, runs.Group],
  published: Mapping[runs.Method, Optional[float]],
) -> pd.DataFrame:
  """Adds what was tuned, and how, to the table.

  Args:
    table: As of `tabulate`.
    methods: A group of runs of each method, by its label.
    published: The paper's step size of each method, `None` if it has none.

  Returns:
    The table tuning.csv.
  """
  rows = []
  for label in table['method']:
    group = methods[label]
    rows.append(
      {
        'experiment': group.experiment.name,
        **group.experiment._asdict(),
        'title': group.experiment.title,
        'rounds': group.settings['total_rounds'],
        'sampling': group.method.sampling,
        'expected_clients': group.method.expected_clients,
        'published_step_size': published[group.method],
      }
    )
  columns = pd.DataFrame(rows, index=table.index).drop(columns='name')
  return pd.concat([columns, table], axis=1)


def caption_of(table: pd.DataFrame) -> str:
  """The caption, from the table tuning.csv."""
  first = table.iloc[0]
  experiment = runs.Experiment(
    first['experiment'],
    first['clients_per_round'],
    first['data'],
    first['data_source'],
  )
  return (
    f'{experiment} {first["rounds"]} rounds,'
    f' {campaign.describe_seeds(first["seeds"])}'
  )


def published_of(table: pd.DataFrame) -> dict[runs.Method, Optional[float]]:
  """The paper's step size of each method, from the table tuning.csv."""
  return {
    runs.Method(
      row['sampling'],
      None if pd.isna(row['expected_clients']) else row['expected_clients'],
    ): None
    if pd.isna(row['published_step_size'])
    else row['published_step_size']
    for row in table.to_dict('records')
  }


def format_markdown(
  table: pd.DataFrame,
  published: Mapping[runs.Method, Optional[float]],
  caption: str,
) -> str:
  """The accuracies, or else the losses, with a column for each step size."""
  step_sizes = sorted(set(table['step_size']))
  is_loss = tables.shows_loss(table)
  is_of_paper = any(published.values())
  header = [
    'Holdout loss' if is_loss else 'Holdout accuracy [%]',
    *map(units.format_step_size, step_sizes),
    *["The paper's choice"] * is_of_paper,
  ]
  rows = []
  for method, of_paper in published.items():
    cells = dict.fromkeys(step_sizes, tables.NONE)
    for row in table[table['method'] == method.label].to_dict('records'):
      cell = 'diverged'
      if not row['diverged']:
        cell = (
          f'{row["holdout_loss_mean"]:.4g}'
          if is_loss
          else tables.format_percent(
            row['holdout_accuracy_mean'], row['holdout_accuracy_std']
          )
        )
      cells[row['step_size']] = f'**{cell}**' if row['best'] else cell
    rows.append([method.label, *cells.values()])
    if is_of_paper:
      rows[-1].append(units.format_step_size(of_paper))
  return tables.format_markdown(caption, header, rows)


def write_results(
  output_dir: pathlib.Path,
  table: pd.DataFrame,
  published: Mapping[runs.Method, Optional[float]],
  caption: str,
) -> None:
  """Writes tuning.csv, tuning.md, tuning.png and tuning.pdf."""
  path = output_dir / 'tuning'
  tables.write(path, table, format_markdown(table, published, caption))
  from plots import tuning

  tuning.plot_tuning(
    table,
    published,
    [path.with_suffix(ending) for ending in ('.png', '.pdf')],
    caption=caption,
  )


def tune(
  values: flags.FlagValues,
  paper_run_list: Sequence[job_lib.Job],
  grid: Sequence[float],
  extra_flags: Sequence[str],
) -> None:
  """Searches, prints the table and writes all files.

  Ends the program if runs failed, or if there is a method whose best step size
  is still the last one after 10 extensions of the grid.

  Args:
    values: The program's flags.
    paper_run_list: The runs of one experiment whose step sizes are searched
      for.
    grid: The step sizes to begin with, at least two.
    extra_flags: Flags for each run.
  """
  output_dir = pathlib.Path(values.output_dir)
  by_name = {run.name: run for run in paper_run_list}

  def jobs_of(name, step_size):
    return build_jobs([by_name[name]], [step_size], values.repeats, extra_flags)

  def read_runs(name, step_size):
    return [
      runs.read_run(output_dir / job.name) for job in jobs_of(name, step_size)
    ]

  def evaluate(pending):
    campaign.run_all(
      [job for name_and_step in pending for job in jobs_of(*name_and_step)],
      values,
      name='tune',
    )
    return [
      read_outcome(step_size, read_runs(name, step_size))
      for name, step_size in pending
    ]

  outcomes, published, groups = {}, {}, {}
  for name, of_method in search(by_name, grid, evaluate).items():
    # A task of one's own may depend on the seed.
    (group,) = runs.group_runs(read_runs(name, grid[0])[:1])
    outcomes[group.method] = of_method
    groups[group.method.label] = group
    of_paper = by_name[name].values.get('client_learning_rate')
    published[group.method] = of_paper and float(of_paper)
  table = describe(tabulate(outcomes), groups, published)
  caption = caption_of(table)
  print(format_markdown(table, published, caption))
  write_results(output_dir, table, published, caption)
  print(f'Figure: {output_dir / "tuning.png"}')
  open_ended = [
    method.label
    for method, of_method in outcomes.items()
    if next_step_size(of_method)
  ]
  if open_ended:
    sys.exit(
      f'error: after {_MAX_EXTENSIONS} extensions of the grid the best step'
      f' size is still the last one: {"; ".join(open_ended)}.'
    )


def build_jobs(
  paper_run_list: Sequence[job_lib.Job],
  grid: Sequence[float],
  repeats: int,
  extra_flags: Sequence[str],
) -> list[job_lib.Job]:
  """The jobs of each step size and seed."""
  return [
    run.extended(
      f'_lr{step_size:g}_seed{seed}',
      *extra_flags,
      f'--holdout_fraction={_HOLDOUT_FRACTION}',
      f'--client_learning_rate={step_size}',
      f'--seed={seed}',
    )
    for run in paper_run_list
    for step_size in grid
    for seed in range(repeats)
  ]


@campaign.reporting_errors()
def main(argv):
  values = flags.FLAGS
  extra_flags = campaign_flags.extra_flags(argv, values, _RESERVED)
  paper_run_list = campaign_flags.read_runs(values)
  if values.grid:
    grid = [float(value) for value in values.grid]
  else:
    grid = _GRIDS[paper_run_list[0].program]
  campaign.check_or_print(
    build_jobs(paper_run_list, grid, values.repeats, extra_flags), values
  )
  tune(values, paper_run_list, grid, extra_flags)


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  campaign_flags.define(values, (*paper_runs.EXPERIMENTS, paper_runs.CUSTOM))
  campaign_flags.define_methods(values, experiment_flags.SAMPLINGS)
  values.set_default('output_dir', 'tuning')
  define.list(
    'grid',
    None,
    "The clients' step sizes to begin with. If not given, 2^-1 to 2^-5, and for"
    ' CIFAR100 0.01 to 0.0001.',
  )
  define.integer(
    'repeats',
    1,
    'The number of seeds, 0, 1 and so on, with which each step size is tried.',
    lower_bound=1,
  )
  define.validate(
    'grid',
    lambda grid: grid is None or (len(grid) > 1 and definer.are_positive(grid)),
    message='must be two or more different numbers above 0',
  )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main, flags_parser=campaign_flags.parse)
