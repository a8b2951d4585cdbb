"""Tests of the CIFAR-100 program: its flags, and a run on synthetic data."""

import numpy as np
import pytest
from absl import flags

from experiments import cifar100
from experiments.runs import experiment_flags
from tests.experiments import linear
from tff_ocs.records import runs
from tff_ocs.tasks import cifar100 as cifar100_task

SMALL = (
  '--data_source=synthetic',
  '--clients_per_round=3',
  '--expected_clients=1.5',
  '--total_rounds=1',
)


def test_program_trains_and_says_how_to_repeat_the_run(tmp_path):
  cifar100.run(
    linear.parse(cifar100, *SMALL, '--scale_inputs', f'--output_dir={tmp_path}')
  )
  (folder,) = tmp_path.iterdir()
  assert folder.name == 'cifar100_synthetic_scaled_aocs_n3_m1.5_seed0'
  result = runs.read_run(folder)
  metrics = result.metrics
  np.testing.assert_array_equal(
    metrics['uplink_bits'],
    32
    * (
      cifar100_task.NUM_PARAMETERS * metrics['participants']
      + 3 * (1 + 2 * metrics['num_iterations'])
    ),
  )
  # Balanced.
  np.testing.assert_array_equal(metrics['cohort_examples'], [60])
  # With inputs of 0..255 the logits and so the loss would be larger.
  assert metrics['training_loss'][0] < 5
  expected = {
    'experiment': 'CIFAR100',
    'scale_inputs': True,
    'data': 'synthetic images, 100 clients, scaled to [0, 1]',
    'client_learning_rate': 1e-3,
  }
  assert {name: result.config[name] for name in expected} == expected


def test_papers_settings_are_the_defaults():
  values = linear.parse(cifar100)
  defaults = {
    'clients_per_round': 32,
    'expected_clients': 3,
    'max_iterations': 4,
    'total_rounds': 1001,
    'rounds_per_eval': 10,
    'batch_size': 20,
    'client_epochs': 1,
    'client_learning_rate': None,
    'server_learning_rate': 1.0,
    'scale_inputs': False,
    'data_source': 'tff',
  }
  assert {name: values[name].value for name in defaults} == defaults


@pytest.mark.parametrize(
  'arguments, expected, differing',
  [
    ([], 1e-3, ''),
    (['--sampling=uniform'], 3e-4, ''),
    (['--scale_inputs'], 1e-3, '--scale_inputs=True'),
    (['--expected_clients=6'], 1e-3, '--expected_clients=6.0'),
  ],
)
def test_step_size_is_the_papers(arguments, expected, differing):
  values = linear.parse(cifar100, *arguments)
  step_size, line = experiment_flags.step_size(
    values, cifar100._paper_step_size(values)
  )
  assert step_size == expected
  assert ('This run has' in line) == bool(differing)
  assert differing in line


def test_there_is_no_bundled_source():
  with pytest.raises(flags.Error, match='data_source'):
    linear.parse(cifar100, '--data_source=bundled')


def test_stand_in_needs_the_real_loader(tmp_path):
  with pytest.raises(SystemExit, match='--data_name=x needs'):
    cifar100.run(
      linear.parse(
        cifar100, *SMALL, f'--output_dir={tmp_path}', '--data_name=x'
      )
    )
  assert not list(tmp_path.iterdir())
