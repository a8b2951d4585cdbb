"""Tests of the Shakespeare binary, end to end on small synthetic data."""

import concurrent.futures
import functools
import importlib
import multiprocessing
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from tff_ocs.records import metrics as metrics_lib
from tff_ocs.records import runs

ROOT = pathlib.Path(__file__).parents[2]

SMALL = (
  '--data_source=synthetic',
  '--clients_per_round=4',
  '--expected_clients=1.5',
  '--total_rounds=3',
  '--rounds_per_eval=2',
)


class Child:
  """Runs a binary in a process of its own, many times.

  Two binaries cannot be imported into one process: they define flags of the
  same names, with defaults of their own.
  """

  def __init__(self, name, executor):
    self._name = name
    self._executor = executor

  def run(self, *arguments):
    """Runs the binary with the command line, and raises what it raises."""
    self._executor.submit(_run, self._name, arguments).result()

  def run_and_read(self, output_dir, *arguments):
    self.run(f'--output_dir={output_dir}', '--run_name=run', *arguments)
    return runs.read_run(output_dir / 'run')

  def defaults(self, names):
    """The flags' defaults, by name."""
    return self._executor.submit(_defaults, self._name, list(names)).result()


@functools.lru_cache
def _import(name):
  return importlib.import_module(f'experiments.{name}')


def _run(name, arguments):
  binary = _import(name)
  with flagsaver.flagsaver():
    try:
      flags.FLAGS([name, *arguments])
      binary.main([name])
    finally:
      flags.FLAGS.unparse_flags()
      flags.FLAGS([name])


def _defaults(name, names):
  _import(name)
  return {flag: flags.FLAGS[flag].default for flag in names}


def use_child(name):
  """A generator for a fixture: the `Child` of a binary."""
  with concurrent.futures.ProcessPoolExecutor(
    max_workers=1, mp_context=multiprocessing.get_context('spawn')
  ) as executor:
    yield Child(name, executor)


@pytest.fixture(scope='module')
def child():
  yield from use_child('shakespeare')


def run_from_the_shell(name, output_dir, *arguments):
  """Runs a binary as a program, and checks what it shows.

  Args:
    name: The binary's name.
    output_dir: An empty folder for the run's folder.
    *arguments: The command line.

  Returns:
    The run's folder.
  """
  result = subprocess.run(
    [
      sys.executable,
      '-m',
      f'experiments.{name}',
      f'--output_dir={output_dir}',
      *arguments,
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert result.returncode == 0, result.stderr
  for shown in ('aocs: 100%', 'accuracy=', 'loss=', 'Gbit=', 'Results: '):
    assert shown in result.stderr
  assert 'Traceback' not in result.stderr
  (folder,) = output_dir.iterdir()
  return folder


@pytest.fixture(scope='module')
def from_shell(tmp_path_factory):
  """The folder of a run of AOCS as a program."""
  return run_from_the_shell(
    'shakespeare', tmp_path_factory.mktemp('aocs'), *SMALL, '--seed=7'
  )


@pytest.fixture(scope='module')
def by_sampling(child, from_shell, tmp_path_factory):
  """A run of some samplings, with the same seed."""
  results = {
    sampling: child.run_and_read(
      tmp_path_factory.mktemp(sampling),
      *SMALL,
      f'--sampling={sampling}',
      '--seed=7',
    )
    for sampling in ('full', 'uniform')
  }
  return {**results, 'aocs': runs.read_run(from_shell)}


def test_metrics_are_complete_and_consistent(by_sampling):
  for sampling, result in by_sampling.items():
    metrics = result.metrics
    assert set(metrics) == set(metrics_lib.COLUMNS)
    np.testing.assert_array_equal(
      np.isfinite(metrics['validation_accuracy']), [1, 0, 1]
    )
    scalars = {
      'full': 0,
      'uniform': 0,
      'aocs': 1 + 2 * metrics['num_iterations'],
    }[sampling]
    np.testing.assert_array_equal(
      metrics['uplink_bits'],
      32 * (833_622 * metrics['participants'] + 4 * scalars),
    )
    # Full batches of 8 sequences.
    assert np.all(metrics['cohort_examples'] % 8 == 0)
    np.testing.assert_array_equal(
      metrics['cohort_examples'],
      by_sampling['full'].metrics['cohort_examples'],
    )


def test_it_learns(by_sampling):
  loss = by_sampling['full'].metrics['training_loss']
  assert loss[-1] < loss[0] < np.log(86)
  assert by_sampling['full'].metrics['validation_accuracy'][-1] > 0.1


def test_papers_step_sizes_are_the_defaults(by_sampling):
  used = {
    sampling: result.config['client_learning_rate']
    for sampling, result in by_sampling.items()
  }
  assert used == {'full': 2**-2, 'uniform': 2**-3, 'aocs': 2**-2}


def test_papers_settings_are_the_defaults(child):
  defaults = {
    'clients_per_round': 32,
    'expected_clients': 2,
    'max_iterations': 4,
    'total_rounds': 151,
    'rounds_per_eval': 5,
    'batch_size': 8,
    'client_epochs': 1,
    'client_learning_rate': None,
    'server_learning_rate': 1.0,
    'sequence_length': 5,
    'data_source': 'tff',
  }
  assert child.defaults(defaults) == defaults


def test_config_says_how_to_repeat_the_run(from_shell):
  assert from_shell.name == 'shakespeare_synthetic_aocs_n4_m1.5_seed7'
  config = runs.read_run(from_shell).config
  # Also the flags of the main module are recorded when it is a program.
  assert config['data_source'] == 'synthetic'
  assert config['sequence_length'] == 5
  assert config['batch_size'] == 8
  assert config['seed'] == 7
  assert config['data'] == 'synthetic text, 200 clients'
  assert 128 < config['pool_clients'] < 200


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--clients_per_round=201'], '--clients_per_round=201.* clients'),
    (['--batch_size=10000'], 'more than the 0 clients'),
    (['--sequence_length=1000'], 'no sequence of 1000 characters'),
    (['--cache_dir=x'], '--cache_dir=x goes with --data_source=tff only'),
  ],
)
def test_bad_settings_end_in_one_line_and_leave_nothing(
  child, tmp_path, arguments, message
):
  with pytest.raises(SystemExit, match=message) as error:
    child.run(*SMALL, f'--output_dir={tmp_path}', *arguments)
  assert '\n' not in str(error.value)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('argument', ['--sequence_length=0', '--batch_size=0'])
def test_bad_flag_is_named(child, argument):
  with pytest.raises(flags.Error, match=argument.split('=')[0].strip('-')):
    child.run(argument)
