"""Measures what clients that are lost during a round do to the aggregate.

  python -m experiments.dropouts --output_dir=dropouts

A client may be lost before it has reported anything, or between the report of
its norm and weight and its update, which can happen with OCS and AOCS only. For
each sampling the program computes three numbers, relative to the length of the
target mean G: the bias of the aggregate, the length of the expected aggregate
along G, and the standard deviation over dropouts and coins.
experiments/theory/dropouts.py defines them. All clients are lost with the same
probability, or with probabilities that grow with n_i; both have the same mean
over the clients.

The cohort is synthetic, with weights that differ much. With --results_dir it is
that of the last round of each run that was recorded with --record_norms. A run
records n_i ||U_i||, and not n_i: unless the clients of the run had equal
weights, all ||U_i|| are taken as equal. The directions of the updates are
random in both cases, with a common part.

The results, dropouts.csv and dropouts.md, are written to --output_dir.
"""

import math
import pathlib
import sys
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

import numpy as np
import pandas as pd
from absl import app
from absl import flags

from experiments import threshold
from experiments.theory import dropouts
from plots import tables
from programs import definer
from programs import entry
from tff_ocs.records import norms as norms_lib
from tff_ocs.records import runs

_DEFAULT_RATES = ('0', '0.05', '0.1', '0.2')
_LARGEST_MEAN = 0.8
_NUMBERS = {'bias': 'Bias', 'along': 'Along G', 'std': 'Std'}
_LOST = {
  dropouts.BEFORE: 'before any report',
  dropouts.BETWEEN: 'before the update',
}


class Cohort(NamedTuple):
  """A cohort to measure on.

  Attributes:
    title: Its description.
    pool: The clients.
    expected_clients: m.
  """

  title: str
  pool: dropouts.Pool
  expected_clients: float


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
  values = flags.FLAGS
  if values.results_dir is not None and values['num_clients'].present:
    sys.exit(
      f'error: --num_clients={values.num_clients} cannot be combined with'
      ' --results_dir: it is the size of the synthetic cohort.'
    )
  try:
    measure(
      results_dir=values.results_dir,
      num_clients=values.num_clients,
      expected_clients=values.expected_clients,
      rates=[float(rate) for rate in values.rates],
      num_draws=values.draws,
      seed=values.seed,
      output_dir=values.output_dir,
    )
  except (OSError, runs.RunsError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted')


def measure(
  *,
  results_dir: Optional[str],
  num_clients: int,
  expected_clients: Optional[float],
  rates: Sequence[float],
  num_draws: int,
  seed: int,
  output_dir: str,
) -> None:
  """Prints and writes the tables.

  Args:
    results_dir: The folder of recorded runs; if not given, the cohort is
      synthetic.
    num_clients: n of the synthetic cohort.
    expected_clients: m; if not given, that of the run, or 3.
    rates: The mean dropout probabilities.
    num_draws: How many sets of arrived clients to draw for each.
    seed: The seed of the draws, of the directions, and of what is made up.
    output_dir: The folder of the results.

  Raises:
    OSError: If a file cannot be read or written.
    RunsError: If there are no recorded runs.
  """
  if results_dir is None:
    cohorts = [
      Cohort(
        f'A synthetic cohort of {num_clients} clients',
        dropouts.make_pool(
          *dropouts.make_unbalanced(num_clients, seed), seed=seed
        ),
        expected_clients or 3.0,
      )
    ]
  else:
    cohorts = list(read_cohorts(results_dir, expected_clients, seed))
  table = pd.DataFrame(
    {
      'cohort': cohort.title,
      'expected_clients': cohort.expected_clients,
      'rates': kind,
      'mean_rate': rate,
      **row,
    }
    for cohort in cohorts
    for kind, rates_of in dropouts.RATES.items()
    for rate in rates
    for row in dropouts.measure(
      cohort.pool,
      rates_of(cohort.pool.weights, rate),
      cohort.expected_clients,
      num_draws,
      seed,
    )
  )
  text = format_tables(table)
  print(text, end='')
  folder = pathlib.Path(output_dir)
  folder.mkdir(parents=True, exist_ok=True)
  tables.write(folder / 'dropouts', table, text)


def read_cohorts(
  results_dir: str, expected_clients: Optional[float], seed: int
) -> Iterator[Cohort]:
  """Reads the cohorts of the last rounds of runs with recorded norms.

  Args:
    results_dir: The folder below which the runs are.
    expected_clients: m; if not given, that of each run.
    seed: The seed of the directions.

  Yields:
    The cohorts. Clients without an update are left out unless their weights are
    known.

  Raises:
    OSError: If a file cannot be read.
    RunsError: If there is no such run with an update that is not 0, or if a
      method has runs with different settings in an experiment.
  """
  found = False
  for group in threshold.find_groups(results_dir, None):
    for run, trace in threshold.read_traces(group, min_rounds=1):
      weighted = trace.norms[-1]
      if not weighted.any():
        continue
      found = True
      weights = np.ones_like(weighted)
      if run.config['client_weighting'] != 'uniform':
        weighted = weighted[weighted > 0]
        weights = weighted / weighted.sum() * trace.cohort_weights[-1]
      yield Cohort(
        f'{group.experiment.title}, {group.method.label}, seed'
        f' {run.settings.seed}, the last round with {weights.size} clients',
        dropouts.make_pool(weights, weighted / weights, seed),
        expected_clients or run.settings.expected_clients,
      )
  if not found:
    raise runs.RunsError(
      f'there is no finished run with a {norms_lib.NORMS} below'
      f' --results_dir={results_dir} whose last round has an update;'
      ' --record_norms of the experiment programs writes it.'
    )


def format_tables(table: pd.DataFrame) -> str:
  """The numbers in Markdown, with a table for each cohort and kind of rates.

  Args:
    table: As in dropouts.csv.

  Returns:
    The text. Rates of 0, at which nothing is lost, are left out unless there
    are no others.
  """
  texts = []
  shown = table[table['mean_rate'] > 0]
  for (cohort, m, kind), of_kind in (table if shown.empty else shown).groupby(
    ['cohort', 'expected_clients', 'rates'], sort=False
  ):
    rates = of_kind['mean_rate'].unique()
    rows = []
    for (method, lost, variant), of_case in of_kind.groupby(
      ['method', 'lost', 'variant'], sort=False
    ):
      cells = [f'{number:.3f}' for name in _NUMBERS for number in of_case[name]]
      name = f'{method}, {variant}' if variant else method
      rows.append([name, _LOST[lost], *cells])
    header = ['Sampling', 'Clients are lost']
    for name in _NUMBERS.values():
      header += [f'{name}, {rate:g}' for rate in rates]
    title = f'{cohort}; m={m:g}; mean dropout probabilities, {kind}.'
    texts.append(tables.format_markdown(title, header, rows, num_texts=2))
  error = table['std_error'].max()
  return '\n'.join(
    [*texts, f'Largest standard error of a standard deviation: {error:.1g}.\n']
  )


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  define.path(
    'results_dir',
    None,
    'The folder below which the folders of runs with recorded norms are. If not'
    ' given, the cohort is synthetic.',
  )
  define.path('output_dir', 'dropouts', 'The folder of the results.')
  define.integer(
    'num_clients',
    32,
    'The size n of the synthetic cohort; only without --results_dir.',
    lower_bound=2,
  )
  define.float(
    'expected_clients',
    None,
    'm, the expected number of participants. If not given, that of each run, or'
    ' 3 for the synthetic cohort.',
  )
  define.list('rates', list(_DEFAULT_RATES), 'The mean dropout probabilities.')
  define.integer(
    'draws',
    20000,
    'The sets of arrived clients to draw, for the standard deviations.',
    lower_bound=100,
  )
  define.integer('seed', 0, 'The seed.', lower_bound=0)
  define.validate(
    'expected_clients',
    lambda m: m is None or 0 < m < math.inf,
    message='must be a finite number above 0',
  )
  define.validate(
    'rates',
    lambda texts: definer.are_different(
      texts, float, lambda rate: 0 <= rate <= _LARGEST_MEAN
    ),
    message=(
      f'must be one or more different numbers from 0 to {_LARGEST_MEAN:g}'
    ),
  )


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
