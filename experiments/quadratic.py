"""Measures what the paper's convergence theorems bound, and prints both.

  python -m experiments.quadratic

The clients' functions are those of `experiments.theory.problems`, of which all
constants are known: quadratics for Theorems 13 and 17, and tilted wells, which
are not convex, for Theorems 15 and 18. The program simulates DSGD, Eq. (2), and
FedAvg, Algorithm 3, with each sampling. In each round it compares the mean of
||x^{k+1} - x*||^2 or f(x^{k+1}) - f* over the repeats with the right-hand side
of the theorem, as stated in the paper and as repaired in docs/theory.md.

gamma^k, Eq. (16), comes from a ratio of expectations, Eq. (15), estimated over
the repeats. A bound counts as violated if the mean exceeds it by more than 6
standard errors of the difference. This happens to a bound that holds once in
10^9 comparisons. For each sampling and step size, the printed table shows the
round that is closest to the bound. bounds.csv in --output_dir has all rounds.

Next come examples constructed to violate a bound (examples.csv), and the data
of two figures: the distance from x* that DSGD settles at, by m
(neighbourhood.csv), and its largest stable step size, by heterogeneity
(step_sizes.csv). `python -m plots.theory` draws the figures.

The exit status is 1 if a repaired bound is violated: then the program is wrong.
"""

import itertools
import json
import math
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from absl import app
from absl import flags

from experiments.theory import bounds
from experiments.theory import convergence
from experiments.theory import counterexamples
from experiments.theory import monte_carlo
from experiments.theory import problems
from experiments.theory import step_sizes
from programs import definer
from programs import entry
from tff_ocs.records import files

_CSV_FILES = ('bounds', 'examples', 'neighbourhood', 'step_sizes')
_HETEROGENEITIES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
  values = flags.FLAGS
  settings = {
    flag.name: flag.value for flag in values.get_key_flags_for_module(__name__)
  }
  if values.expected_clients > values.num_clients:
    sys.exit(
      'error: --expected_clients must be at most --num_clients,'
      f' {values.num_clients}, found {values.expected_clients}.'
    )
  output_dir = pathlib.Path(settings.pop('output_dir'))
  try:
    output_dir.mkdir(parents=True, exist_ok=True)
    # plots.theory must not draw old numbers with new settings.
    for name in _CSV_FILES:
      (output_dir / f'{name}.csv').unlink(missing_ok=True)
    with files.replacing(output_dir / 'config.json') as partial:
      partial.write_text(json.dumps(settings, indent=2) + '\n')
    is_right = run(values, output_dir)
  except OSError as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted')
  if not is_right:
    sys.exit('error: a repaired bound is violated: the program is wrong.')


def run(values, output_dir: pathlib.Path) -> bool:
  """Runs the whole program; returns whether all repaired bounds hold."""
  shape = {
    'num_clients': values.num_clients,
    'dimension': values.dimension,
    'noise_slope': values.noise_slope,
    'noise_variance': values.noise_variance,
    'seed': values.seed,
  }
  shape_of_convex = {**shape, 'strong_convexity': values.strong_convexity}
  convex = problems.make_quadratics(
    heterogeneity=values.heterogeneity, **shape_of_convex
  )
  wells = problems.make_tilted_wells(
    heterogeneity=values.heterogeneity, **shape
  )
  m, seed = values.expected_clients, values.seed
  rows = []
  for name in values.theorems:
    kind = bounds.THEOREMS[int(name)]
    problem = convex if kind.bounds_distance else wells
    theorem = kind(problem, values.local_steps if kind.is_local else 1)
    x = np.tile(
      problem.minimiser + values.start / math.sqrt(problem.dimension),
      (values.repeats, 1),
    )
    groups = [
      convergence.compare_rounds(
        theorem, sampling, m, setting, x=x, rounds=values.rounds, seed=seed
      )
      for sampling in monte_carlo.SCHEMES
      for setting in convergence.SETTINGS[theorem.number]
    ]
    quantity = 'E||x - x*||^2' if theorem.bounds_distance else 'E f(x) - f*'
    _print_table(
      f'Theorem {theorem.number}: {quantity}, measured and bounds',
      ('sampling', 'step', 'global_step', 'round'),
      groups,
    )
    rows += itertools.chain.from_iterable(groups)
  files.write_csv(output_dir / 'bounds.csv', rows)
  example_rows = [
    counterexamples.run_example(example, seed)
    for example in counterexamples.examples()
    if str(example.theorem) in values.theorems
  ]
  if example_rows:
    files.write_csv(output_dir / 'examples.csv', example_rows)
    _print_table(
      'Examples constructed to violate a bound, one round',
      ('name', 'theorem', 'sampling'),
      [[row] for row in example_rows],
    )
  files.write_csv(
    output_dir / 'neighbourhood.csv', list(_neighbourhoods(convex, values))
  )
  files.write_csv(
    output_dir / 'step_sizes.csv', list(_step_sizes(shape_of_convex, values))
  )
  print(f'\nFigures: python -m plots.theory --results_dir={output_dir}')
  return _print_verdict(rows + example_rows)


def _neighbourhoods(problem, values) -> Iterable[dict[str, Any]]:
  n = values.num_clients
  # One step size for all: what Theorem 13 allows uniform sampling with m = 1.
  step_size = bounds.Theorem13(problem).step_limit(1 / n)
  # After half of the rounds the influence of the start is below e^-4.
  rounds = math.ceil(2 * 4 / (step_size * problem.strong_convexity))
  options = {
    'step_size': step_size,
    'repeats': max(2, values.repeats // 10),
    'rounds': rounds,
    'seed': values.seed,
  }
  yield step_sizes.neighbourhood(problem, 'full', n, **options)
  for sampling in ('uniform', 'ocs'):
    for m in (2**k for k in range(int(math.log2(n)) + 1)):
      yield step_sizes.neighbourhood(problem, sampling, m, **options)


def _step_sizes(shape, values) -> Iterable[dict[str, Any]]:
  for heterogeneity in _HETEROGENEITIES:
    problem = problems.make_quadratics(heterogeneity=heterogeneity, **shape)
    for sampling in ('full', 'uniform', 'ocs'):
      yield {
        'heterogeneity': heterogeneity,
        **step_sizes.largest_stable_step_size(
          problem,
          sampling,
          values.expected_clients,
          repeats=values.repeats,
          seed=values.seed,
        ),
      }


def _print_table(title, names, groups):
  """Prints one line for each group of rounds: the one closest to the bound."""
  lines = [
    [
      *names,
      'gamma',
      'eta',
      'eta_g',
      'measured',
      f'± {convergence.STANDARD_ERRORS} SE',
      'stated',
      'repaired',
      'verdict',
    ]
  ]
  for group in groups:
    row = max(group, key=lambda r: r['stated_excess'] / abs(r['stated_bound']))
    repaired = row['repaired_bound']
    lines.append(
      [
        *(str(row[name]) for name in names),
        f'{row["gamma"]:.3f}',
        f'{row["step_size"]:.4f}',
        f'{row["global_step_size"]:.2f}',
        f'{row["measured"]:.4g}',
        f'{convergence.STANDARD_ERRORS * row["standard_error"]:.1g}',
        f'{row["stated_bound"]:.4g}',
        '–' if repaired == '' else f'{repaired:.4g}',
        _verdict(group),
      ]
    )
  widths = [max(map(len, column)) for column in zip(*lines)]
  print(f'\n{title}')
  for line in lines:
    cells = (cell.ljust(width) for cell, width in zip(line, widths))
    print('  '.join(cells).rstrip())


def _verdict(rows):
  violated = sum(row['stated_violated'] for row in rows)
  verdict = 'holds'
  if violated:
    allowed = all(row['allowed'] for row in rows)
    verdict = 'VIOLATED' if allowed else 'exceeded, eta_g is not allowed'
    if len(rows) > 1:
      verdict += f' in {violated} of {len(rows)} rounds'
  if any(row['repaired_violated'] for row in rows):
    verdict += ', REPAIRED BOUND VIOLATED'
  return verdict


def _print_verdict(rows):
  violated = {
    row['theorem'] for row in rows if row['stated_violated'] and row['allowed']
  }
  wrong = {row['theorem'] for row in rows if row['repaired_violated']}
  if violated:
    print(
      'VIOLATED: the stated bounds of Theorems'
      f' {", ".join(map(str, sorted(violated)))}, beyond'
      f' {convergence.STANDARD_ERRORS} standard errors;'
      ' docs/theory.md says why.'
    )
  if not wrong:
    print('All repaired bounds hold.')
  return not wrong


def _define_flags():
  define = definer.Definer(flags.FLAGS)
  flags.DEFINE_multi_enum(
    'theorems',
    [str(number) for number in bounds.THEOREMS],
    [str(number) for number in bounds.THEOREMS],
    'The theorems. Give the flag once for each theorem.',
  )
  define.integer(
    'num_clients',
    32,
    'The number n of clients, which are all in each cohort.',
    lower_bound=2,
  )
  define.float(
    'expected_clients',
    3,
    'The expected number m of clients that send.',
    lower_bound=0.01,
  )
  define.integer('dimension', 4, 'The dimension d of x.', lower_bound=2)
  define.float(
    'heterogeneity',
    0.5,
    'From 0, identical clients, to 1, very unequal ones.',
    lower_bound=0,
    upper_bound=1,
  )
  define.float(
    'strong_convexity',
    0.2,
    'The strong convexity mu of f, whose smoothness L is 1.',
    lower_bound=1e-3,
    upper_bound=1,
  )
  define.float(
    'noise_slope',
    0.5,
    'M of Assumptions 7 and 8: the part of the gradient noise that grows with'
    ' the gradient.',
    lower_bound=0,
  )
  define.float(
    'noise_variance',
    0.1,
    'sigma^2 of Assumptions 7 and 8: the constant part of the gradient noise.',
    lower_bound=0,
  )
  define.integer(
    'local_steps', 4, 'The number R of local steps of FedAvg.', lower_bound=2
  )
  define.float(
    'start', 1.0, 'The distance from x* at which all repeats begin.', 0
  )
  define.integer(
    'repeats', 1000, 'The number of independent repeats.', lower_bound=10
  )
  define.integer('rounds', 20, 'The number K of rounds.', lower_bound=1)
  define.integer('seed', 0, 'The seed.', lower_bound=0)
  define.path(
    'output_dir',
    'quadratic',
    'The folder of the results. It replaces earlier results there.',
  )


# Not at import: other programs define flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
