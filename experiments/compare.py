"""Compares samplers: schemes, cohort samplers and a combination, on FEMNIST.

  python -m experiments.compare -- --cache_dir=CACHE_DIR

Each method except full participation may send at most m updates a round on
average. Methods with costs have a budget of uplink seconds instead: m times the
mean upload time of a client. No
single axis is fair to all: OCS saves uplink bits, but all n clients of a cohort
train for it; a cohort sampler saves training as well; and with slow links, few
bits do not mean little time. So methods are compared by what they need to reach
85 % and stay there: the bits sent; the examples on which clients compute, of
which one that a candidate of Power-of-Choice evaluates counts as a third; and
the time that the rounds would take on phones (`experiments/runs/devices.py`).
The first hit of 85 %, which flatters methods whose accuracy goes up and down,
is shown as well.

First, the client step size of each method is chosen, with the same budget for
all: those of --grid are tried for --tuning_rounds with one seed, and the two
best with two more, since the best with one seed may diverge with another. What
counts is the accuracy on a tenth of the clients, which are left out of
training: the mean over the last three evaluations and over the seeds. Then each
method is run with --repeats seeds. Flags after `--` go to each run.

A method of --methods can also be PATH.py:FUNCTION, a cohort sampler of your own
(docs/samplers.md).

The runs and then the results are written below --output_dir: compare_tuning.csv
with the accuracy of each step size, compare_curves.csv with all evaluations,
compare_runs.csv with a row for each run, and compare.csv, compare.md,
compare.png and compare.pdf with one for each method. They contain only the
methods that this command names. Finished runs are not repeated. `plots.clients`
draws how well the methods serve single clients, schemes and cohort samplers
apart.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from absl import app
from absl import flags

from experiments import tune
from experiments.campaigns import campaign
from experiments.campaigns import campaign_flags
from experiments.campaigns import job as job_lib
from experiments.runs import user_code
from plots import comparison
from programs import definer
from tff_ocs.records import clients
from tff_ocs.records import files
from tff_ocs.records import runs

EXPERIMENTS = ('femnist_1', 'femnist_3', 'femnist_none')
# Flags of the methods; n is the size of the cohorts of schemes, m that of the
# cohorts of samplers.
METHODS = {
  'full': ('--sampling=full', '--clients_per_round={n}'),
  'uniform': ('--sampling=uniform', '--clients_per_round={n}'),
  'ocs': ('--sampling=ocs', '--clients_per_round={n}'),
  'aocs': ('--sampling=aocs', '--clients_per_round={n}'),
  'threshold': ('--sampling=threshold', '--clients_per_round={n}'),
  'ocs_costs': (
    '--sampling=ocs',
    '--client_costs=uplink_seconds',
    '--clients_per_round={n}',
  ),
  'threshold_costs': (
    '--sampling=threshold',
    '--client_costs=uplink_seconds',
    '--clients_per_round={n}',
  ),
  **{
    method: (
      '--sampling=full',
      f'--cohort_sampler={sampler}',
      '--clients_per_round={m}',
    )
    for method, sampler in (
      ('multinomial', 'multinomial'),
      ('clustered', 'clustered'),
      ('power_of_choice', 'power_of_choice'),
      ('uniform_cohorts', 'uniform'),
      ('osmd', 'osmd'),
      ('kvib', 'kvib'),
    )
  },
  'multinomial_threshold': (
    '--sampling=threshold',
    '--cohort_sampler=multinomial',
    '--clients_per_round={n}',
  ),
}
_TUNING = 'compare_tuning.csv'
_HOLDOUT_FRACTION = 0.1
_ROUNDS_PER_TUNING_EVAL = 5
_TUNING_EVALS = 3  # The last ones, of which the mean counts.
_TUNING_SEEDS = 3  # Of the two best step sizes.
# The flags that the program sets for each run.
_RESERVED = (
  'client_costs',
  'client_learning_rate',
  'clients_per_round',
  'cohort_sampler',
  'evaluate_clients',
  'expected_clients',
  'holdout_fraction',
  'rounds_per_client_eval',
  'sampling',
  'seed',
  'simulate_devices',
  'total_rounds',
  'unbalanced_set',
)


class Chosen(NamedTuple):
  """A method on an experiment, with its step size."""

  experiment: str
  method: str
  step_size: float


def build_job(
  experiment: str,
  method: str,
  step_size: float,
  seed: int,
  values: flags.FlagValues,
  extra_flags: Sequence[str],
) -> job_lib.Job:
  """The job of one run, without what tuning or the comparison adds."""
  n, m = values.clients_per_round, values.expected_clients
  if method in METHODS:
    name = method
    flags_of_method = [flag.format(n=n, m=m) for flag in METHODS[method]]
  else:  # A sampler of the user's own.
    user_code.locate('methods', method)  # An error names this flag.
    name = user_code.short_name(method)
    flags_of_method = [
      '--sampling=full',
      f'--cohort_sampler={campaign_flags.in_full(method)}',
      f'--clients_per_round={m}',
    ]
  return job_lib.Job(
    name=f'{experiment}_{name}_lr{step_size:g}',
    program='femnist',
    flags=(
      f'--unbalanced_set={experiment.split("_")[1]}',
      *flags_of_method,
      f'--expected_clients={m}',
      f'--total_rounds={values.total_rounds}',
      # An accuracy that is noticed a round late would distort the costs.
      '--rounds_per_eval=1',
    ),
  ).extended(
    f'_seed{seed}',
    *extra_flags,
    f'--client_learning_rate={step_size}',
    f'--seed={seed}',
  )


def choose_step_sizes(
  values: flags.FlagValues, extra_flags: Sequence[str]
) -> tuple[list[Chosen], pd.DataFrame]:
  """Searches for the step size of each method on each experiment.

  Returns:
    The choices, and a table with the mean accuracy of all that were tried.
  """
  all_chosen, tables_of_tried = [], []
  of_grid = _try(_grid(values), 1, values, extra_flags)
  finalists = {key: _best_two(outcomes) for key, outcomes in of_grid.items()}
  of_finalists = _try(
    {key: [o.step_size for o in two] for key, two in finalists.items()},
    _TUNING_SEEDS,
    values,
    extra_flags,
  )
  ends = {function(map(float, values.grid)) for function in (min, max)}
  for key, outcomes in of_finalists.items():
    chosen = Chosen(*key, tune.choose(outcomes).step_size)
    all_chosen.append(chosen)
    if chosen.step_size in ends:
      print(
        f'{chosen.experiment}, {chosen.method}: the best step size of --grid,'
        f' {chosen.step_size:g}, is one of its ends; a wider grid may have a'
        ' better one.'
      )
    # Of a finalist, the outcome with all seeds counts.
    of_step_size = {o.step_size: o for o in (*of_grid[key], *outcomes)}
    tables_of_tried.append(
      pd.DataFrame(
        {
          'experiment': chosen.experiment,
          'method': chosen.method,
          'step_size': list(of_step_size),
          'seeds': [len(o.accuracies) for o in of_step_size.values()],
          'holdout_accuracy': [
            np.mean(o.accuracies) for o in of_step_size.values()
          ],
        }
      )
    )
  return all_chosen, pd.concat(tables_of_tried, ignore_index=True)


def _grid(values):
  """All step sizes of the grid, by experiment and method."""
  return {
    (experiment, method): list(map(float, values.grid))
    for experiment in values.experiments
    for method in values.methods
  }


def _best_two(outcomes):
  """The outcomes of the best and the second best step size."""
  best = tune.choose(outcomes)
  others = [outcome for outcome in outcomes if outcome is not best]
  return [best, *([tune.choose(others)] if others else [])]


def _try(step_sizes_of, num_seeds, values, extra_flags):
  """The outcomes of step sizes with some seeds, by experiment and method."""
  jobs_of = {
    (*key, step_size): [
      _tuning_job(*key, step_size, seed, values, extra_flags)
      for seed in range(num_seeds)
    ]
    for key, step_sizes in step_sizes_of.items()
    for step_size in step_sizes
  }
  campaign.run_all(
    [job for of_seed in zip(*jobs_of.values()) for job in of_seed],
    values,
    name='compare',
  )
  outcomes = {}
  for (*key, step_size), of_seeds in jobs_of.items():
    of_runs = [
      runs.read_run(pathlib.Path(values.output_dir) / job.name)
      for job in of_seeds
    ]
    accuracies = [run.evaluated('validation_accuracy')[1] for run in of_runs]
    outcome = tune.read_outcome(step_size, of_runs)._replace(
      accuracies=tuple(a[-_TUNING_EVALS:].mean() for a in accuracies)
    )
    outcomes.setdefault(tuple(key), []).append(outcome)
  return outcomes


def _tuning_job(experiment, method, step_size, seed, values, extra_flags):
  return build_job(
    experiment, method, step_size, seed, values, extra_flags
  ).extended(
    '_holdout',
    f'--holdout_fraction={_HOLDOUT_FRACTION}',
    f'--total_rounds={values.tuning_rounds}',
    f'--rounds_per_eval={_ROUNDS_PER_TUNING_EVAL}',
  )


def _final_jobs(chosen, values, extra_flags):
  """The jobs with a step size that was chosen, by seed."""
  return [
    build_job(*chosen, seed, values, extra_flags).extended(
      '', '--evaluate_clients=true', '--simulate_devices=true'
    )
    for seed in range(values.repeats)
  ]


@campaign.reporting_errors()
def main(argv):
  values = flags.FLAGS
  extra_flags = campaign_flags.extra_flags(argv, values, _RESERVED)
  n, m = values.clients_per_round, values.expected_clients
  if m > n:
    raise job_lib.JobError(
      f'--expected_clients={m} must be at most --clients_per_round={n}: schemes'
      ' and cohort samplers would not send as many updates.'
    )
  _check_data(extra_flags)
  candidates = [
    Chosen(*key, step_size)
    for key, step_sizes in _grid(values).items()
    for step_size in step_sizes
  ]
  campaign.check_or_print(
    job_lib.once(
      _tuning_job(*chosen, 0, values, extra_flags) for chosen in candidates
    ),
    values,
  )
  campaign_flags.check_flags(
    [_final_jobs(chosen, values, extra_flags)[0] for chosen in candidates]
  )
  all_chosen, tried = choose_step_sizes(values, extra_flags)
  jobs_of = {
    chosen: _final_jobs(chosen, values, extra_flags) for chosen in all_chosen
  }
  # All of the first seed before those of the second.
  campaign.run_all(
    [job for of_seed in zip(*jobs_of.values()) for job in of_seed],
    values,
    name='compare',
  )
  output_dir = pathlib.Path(values.output_dir)
  rows, curves = [], []
  for chosen, of_seeds in jobs_of.items():
    for job in of_seeds:
      folder = output_dir / job.name
      run = runs.read_run(folder)
      with runs.naming(folder):
        of_clients = clients.read_clients(folder)
        rows.append(
          comparison.measure(
            chosen.experiment, chosen.step_size, run, of_clients
          )
        )
      curves.append(comparison.read_curve(chosen.experiment, run))
  with files.replacing(output_dir / _TUNING) as partial:
    tried.to_csv(partial, index=False, lineterminator='\n')
  comparison.write_curves(output_dir, pd.concat(curves))
  comparison.write_results(output_dir, pd.DataFrame(rows))


def _check_data(extra_flags):
  """Raises a `JobError` if the data has no validation examples by client."""
  values = dict(flag[2:].split('=', 1) for flag in extra_flags)
  source = values.get('data_source', 'tff')
  if source in ('bundled', 'synthetic'):
    raise job_lib.JobError(
      f'--data_source={source} has no validation examples by client, of which'
      ' the worst 10 % are compared; use tff or authors.'
    )


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  campaign_flags.define_campaign(values)
  values.set_default('output_dir', 'compare')
  define.list(
    'experiments',
    list(EXPERIMENTS),
    f'The data sets, some of {",".join(EXPERIMENTS)}. The last is the pool of'
    ' all clients with all of their examples.',
  )
  define.list(
    'methods',
    list(METHODS),
    f'The methods, some of {",".join(METHODS)}, or PATH.py:FUNCTION for a'
    ' cohort sampler of your own.',
  )
  define.integer(
    'clients_per_round',
    32,
    'n, the size of the cohorts of participation schemes.',
    lower_bound=1,
  )
  define.integer(
    'expected_clients',
    3,
    'm, the expected number of updates a round: the size of the cohorts of'
    ' cohort samplers.',
    lower_bound=1,
  )
  define.integer('total_rounds', 151, 'The number of rounds.', lower_bound=1)
  define.integer(
    'tuning_rounds',
    41,
    'The number of rounds of the runs with which the step sizes are chosen.',
    lower_bound=1,
  )
  define.list(
    'grid',
    ['0.5', '0.25', '0.125', '0.0625', '0.03125'],
    'The client step sizes that are tried for each method; if not given, those'
    ' with which the paper begins its search.',
  )
  define.integer(
    'repeats',
    3,
    'The number of seeds, 0, 1 and so on, of each method.',
    lower_bound=1,
  )
  define.validate(
    'experiments',
    lambda given: _are_different(given) and set(given) <= set(EXPERIMENTS),
    message=f'must be one or more different ones of {",".join(EXPERIMENTS)}',
  )
  define.validate(
    'methods',
    lambda given: (
      _are_different(given)
      and all(name in METHODS or user_code.is_reference(name) for name in given)
    ),
    message=(
      f'must be one or more different ones of {",".join(METHODS)}, or'
      ' PATH.py:FUNCTION'
    ),
  )
  define.validate(
    'grid',
    definer.are_positive,
    message='must be one or more different numbers above 0',
  )


def _are_different(values):
  return values and len(set(values)) == len(values)


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main, flags_parser=campaign_flags.parse)
