"""Tests of the CIFAR-100 binary, end to end on small synthetic data."""

import json

import numpy as np
import pytest
from absl import flags

from experiments import run_folder
from tests.experiments import test_shakespeare

SMALL = (
  '--data_source=synthetic',
  '--clients_per_round=3',
  '--expected_clients=1.5',
  '--total_rounds=2',
)


@pytest.fixture(scope='module')
def child():
  yield from test_shakespeare.use_child('cifar100')


@pytest.fixture(scope='module')
def by_sampling(child, tmp_path_factory):
  """A run of some samplings, with the same seed."""
  return {
    sampling: child.run_and_read(
      tmp_path_factory.mktemp(sampling), *SMALL, f'--sampling={sampling}'
    )
    for sampling in ('uniform', 'aocs')
  }


def test_metrics_are_complete_and_consistent(by_sampling):
  for sampling, result in by_sampling.items():
    metrics = result.metrics
    assert set(metrics) == {'round', *run_folder.METRICS}
    scalars = 0
    if sampling == 'aocs':
      scalars = 1 + 2 * metrics['num_iterations']
    np.testing.assert_array_equal(
      metrics['uplink_bits'],
      32 * (5_897_508 * metrics['participants'] + 3 * scalars),
    )
    # Balanced.
    np.testing.assert_array_equal(metrics['cohort_examples'], [60, 60])
    assert np.all(np.isfinite(metrics['training_loss']))


def test_papers_step_sizes_are_the_defaults(by_sampling):
  used = {
    sampling: result.config['client_learning_rate']
    for sampling, result in by_sampling.items()
  }
  assert used == {'uniform': 3e-4, 'aocs': 1e-3}


def test_papers_settings_are_the_defaults(child):
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
  assert child.defaults(defaults) == defaults


def test_there_is_no_bundled_source(child):
  with pytest.raises(flags.Error, match='data_source'):
    child.run('--data_source=bundled')


def test_stand_in_goes_with_the_real_loader_only(child, tmp_path):
  with pytest.raises(SystemExit, match='--data_name=x goes with'):
    child.run(*SMALL, f'--output_dir={tmp_path}', '--data_name=x')
  assert not list(tmp_path.iterdir())


def test_program_runs_from_the_shell_with_scaled_inputs(tmp_path):
  test_shakespeare.run_from_the_shell(
    'cifar100', tmp_path, *SMALL, '--total_rounds=1', '--scale_inputs'
  )
  (folder,) = tmp_path.iterdir()
  assert folder.name == 'cifar100_synthetic_scaled_aocs_n3_m1.5_seed0'
  config = json.loads((folder / 'config.json').read_text())
  assert config['scale_inputs'] is True
  assert config['data'] == 'synthetic images, 100 clients, scaled to [0, 1]'
