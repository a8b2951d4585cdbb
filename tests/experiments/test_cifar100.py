"""Tests of the CIFAR-100 binary, end to end on small synthetic data."""

import numpy as np
import pytest
from absl import flags

from tests.experiments import test_shakespeare
from tff_ocs.records import metrics as metrics_lib
from tff_ocs.records import runs

SMALL = (
  '--data_source=synthetic',
  '--clients_per_round=3',
  '--expected_clients=1.5',
  '--total_rounds=1',
)


@pytest.fixture(scope='module')
def child():
  yield from test_shakespeare.use_child('cifar100')


@pytest.fixture(scope='module')
def from_shell(tmp_path_factory):
  """The folder of a run of AOCS as a program, with scaled inputs."""
  return test_shakespeare.run_from_the_shell(
    'cifar100', tmp_path_factory.mktemp('aocs'), *SMALL, '--scale_inputs'
  )


@pytest.fixture(scope='module')
def by_sampling(child, from_shell, tmp_path_factory):
  return {
    'uniform': child.run_and_read(
      tmp_path_factory.mktemp('uniform'), *SMALL, '--sampling=uniform'
    ),
    'aocs': runs.read_run(from_shell),
  }


def test_metrics_are_complete_and_consistent(by_sampling):
  for sampling, result in by_sampling.items():
    metrics = result.metrics
    assert set(metrics) == set(metrics_lib.COLUMNS)
    scalars = 0
    if sampling == 'aocs':
      scalars = 1 + 2 * metrics['num_iterations']
    np.testing.assert_array_equal(
      metrics['uplink_bits'],
      32 * (5_897_508 * metrics['participants'] + 3 * scalars),
    )
    # Balanced.
    np.testing.assert_array_equal(metrics['cohort_examples'], [60])
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


def test_scaled_inputs_are_told_in_names_and_config(from_shell, by_sampling):
  assert from_shell.name == 'cifar100_synthetic_scaled_aocs_n3_m1.5_seed0'
  config = by_sampling['aocs'].config
  assert config['scale_inputs'] is True
  assert config['data'] == 'synthetic images, 100 clients, scaled to [0, 1]'
  assert by_sampling['uniform'].config['scale_inputs'] is False
  # The same network starts with larger logits on 0..255, and so a larger loss.
  losses = {
    sampling: result.metrics['training_loss'][0]
    for sampling, result in by_sampling.items()
  }
  assert losses['aocs'] < 5 < losses['uniform']
