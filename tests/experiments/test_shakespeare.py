"""Tests of the Shakespeare program: its flags, and a run on synthetic data."""

import numpy as np
import pytest
from absl import flags

from experiments import shakespeare
from experiments.runs import experiment_flags
from tests.experiments import linear
from tff_ocs.records import runs
from tff_ocs.tasks import shakespeare as shakespeare_task

SMALL = (
  '--data_source=synthetic',
  '--clients_per_round=4',
  '--expected_clients=1.5',
  '--total_rounds=3',
  '--rounds_per_eval=2',
)


def run(*arguments):
  shakespeare.run(linear.parse(shakespeare, *SMALL, *arguments))


def test_program_learns_and_says_how_to_repeat_the_run(tmp_path):
  run('--seed=7', f'--output_dir={tmp_path}')
  (folder,) = tmp_path.iterdir()
  assert folder.name == 'shakespeare_synthetic_aocs_n4_m1.5_seed7'
  result = runs.read_run(folder)
  metrics = result.metrics
  np.testing.assert_array_equal(
    np.isfinite(metrics['validation_accuracy']), [1, 0, 1]
  )
  np.testing.assert_array_equal(
    metrics['uplink_bits'],
    32
    * (
      shakespeare_task.NUM_PARAMETERS * metrics['participants']
      + 4 * (1 + 2 * metrics['num_iterations'])
    ),
  )
  # Full batches of 8 sequences.
  assert np.all(metrics['cohort_examples'] % 8 == 0)
  loss = metrics['training_loss'].to_numpy()
  assert loss[-1] < loss[0] < np.log(86)
  assert metrics['validation_accuracy'].iloc[-1] > 0.1
  expected = {
    'experiment': 'Shakespeare',
    'data_source': 'synthetic',
    'sequence_length': 5,
    'batch_size': 8,
    'seed': 7,
    'data': 'synthetic text, 200 clients',
    'client_learning_rate': 2**-2,
  }
  assert {name: result.config[name] for name in expected} == expected
  assert 128 < result.config['pool_clients'] < 200


def test_papers_settings_are_the_defaults():
  values = linear.parse(shakespeare)
  defaults = {
    'clients_per_round': 32,
    'expected_clients': 2,
    'max_iterations': 4,
    'total_rounds': 151,
    'rounds_per_eval': 5,
    'batch_size': shakespeare_task.BATCH_SIZE,
    'client_epochs': 1,
    'client_learning_rate': None,
    'server_learning_rate': 1.0,
    'sequence_length': shakespeare_task.SEQUENCE_LENGTH,
    'data_source': 'tff',
  }
  assert {name: values[name].value for name in defaults} == defaults


@pytest.mark.parametrize(
  'arguments, expected, differing',
  [
    ([], 2**-2, ''),
    (['--sampling=uniform', '--expected_clients=6'], 2**-3, ''),
    (['--clients_per_round=128', '--expected_clients=12'], 2**-2, ''),
    (
      ['--clients_per_round=128', '--sequence_length=80'],
      2**-2,
      '--expected_clients=2.0, --sequence_length=80',
    ),
  ],
)
def test_step_size_is_the_papers(arguments, expected, differing):
  values = linear.parse(shakespeare, *arguments)
  step_size, line = experiment_flags.step_size(
    values, shakespeare._paper_step_size(values)
  )
  assert step_size == expected
  assert ('This run has' in line) == bool(differing)
  assert differing in line


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--clients_per_round=201'], '--clients_per_round=201.* clients'),
    (['--batch_size=10000'], 'has a full batch of 10000 sequences'),
    (['--sequence_length=1000'], 'no sequence of 1000 characters'),
    (['--cache_dir=x'], '--cache_dir=x needs --data_source=tff'),
  ],
)
def test_bad_settings_end_in_one_line_and_leave_nothing(
  tmp_path, arguments, message
):
  with pytest.raises(SystemExit, match=message) as error:
    run(f'--output_dir={tmp_path}', *arguments)
  assert '\n' not in str(error.value)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('argument', ['--sequence_length=0', '--batch_size=0'])
def test_bad_flag_is_named(argument):
  with pytest.raises(flags.Error, match=argument.split('=')[0].strip('-')):
    linear.parse(shakespeare, argument)
