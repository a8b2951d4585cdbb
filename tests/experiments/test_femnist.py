"""Tests of the FEMNIST program: its flags, and one run on synthetic data."""

import json

import numpy as np
import pytest
from absl import flags

from experiments import femnist
from experiments.runs import experiment_flags
from tests.experiments import linear
from tests.experiments import shell
from tests.tasks import authors_files
from tests.tasks import test_femnist
from tff_ocs.records import files
from tff_ocs.records import labels
from tff_ocs.records import runs
from tff_ocs.tasks import femnist as femnist_task

SMALL = (
  '--data_source=synthetic',
  '--clients_per_round=4',
  '--expected_clients=1.5',
  '--total_rounds=3',
  '--rounds_per_eval=2',
)


def run(*arguments):
  femnist.run(linear.parse(femnist, *SMALL, *arguments))


def test_program_runs_from_the_shell_and_shows_progress(tmp_path):
  folder = shell.run_experiment(
    'femnist', tmp_path / 'runs', *SMALL, '--run_name=run'
  )
  result = runs.read_run(folder)
  metrics = result.metrics
  np.testing.assert_array_equal(
    np.isnan(metrics['validation_accuracy']), [0, 1, 0]
  )
  np.testing.assert_array_equal(
    metrics['uplink_bits'],
    32
    * (
      femnist_task.NUM_PARAMETERS * metrics['participants']
      + 4 * (1 + 2 * metrics['num_iterations'])
    ),
  )
  assert np.all(np.isfinite(metrics['training_loss']))
  config = json.loads((folder / 'config.json').read_text())
  assert config['data_source'] == 'synthetic'
  assert config['experiment'] == 'FEMNIST set 1'
  assert config['data'] == 'synthetic images, 100 clients, set 1'
  assert config['client_learning_rate'] == 2**-3
  with np.load(folder / 'weights.npz') as weights:
    sizes = [weights[name].size for name in weights]
  assert sum(sizes) == femnist_task.NUM_PARAMETERS


def test_papers_settings_are_the_defaults():
  values = linear.parse(femnist)
  defaults = {
    'clients_per_round': 32,
    'expected_clients': 3,
    'max_iterations': 4,
    'total_rounds': 151,
    'rounds_per_eval': 5,
    'batch_size': 20,
    'client_epochs': 1,
    'client_learning_rate': None,
    'server_learning_rate': 1.0,
    'unbalanced_set': '1',
    'data_source': 'tff',
  }
  assert {name: values[name].value for name in defaults} == defaults


@pytest.mark.parametrize(
  'arguments, expected, line',
  [
    (
      [],
      2**-3,
      "Client step size: 0.125, the paper's for Federated EMNIST, set 1, with"
      ' --sampling=aocs.',
    ),
    (
      ['--sampling=uniform', '--unbalanced_set=2', '--expected_clients=6'],
      2**-4,
      "Client step size: 0.0625, the paper's for Federated EMNIST, set 2, with"
      ' --sampling=uniform.',
    ),
    (
      ['--sampling=threshold', '--data_source=authors', '--data_dir=x'],
      2**-3,
      "Client step size: 0.125, the paper's for Federated EMNIST, set 1, with"
      ' --sampling=ocs. This run has --sampling=threshold, for which the paper'
      ' has no step size; experiments.tune searches for a good one.',
    ),
    # m has no meaning there.
    (
      ['--sampling=full', '--expected_clients=5'],
      2**-3,
      "Client step size: 0.125, the paper's for Federated EMNIST, set 1, with"
      ' --sampling=full.',
    ),
    (
      ['--client_learning_rate=0.5', '--data_source=bundled'],
      0.5,
      'Client step size: 0.5, as given.',
    ),
    (
      [
        '--sampling=uniform',
        '--unbalanced_set=none',
        '--data_source=bundled',
        '--expected_clients=5',
        '--client_epochs=2',
      ],
      2**-4,
      "Client step size: 0.0625, the paper's for Federated EMNIST, set 3, with"
      ' --sampling=uniform. This run has --client_epochs=2,'
      ' --expected_clients=5.0, --data_source=bundled, --unbalanced_set=none,'
      ' for which the paper has no step size; experiments.tune searches for a'
      ' good one.',
    ),
    (
      ['--data_name=MNIST', '--clients_per_round=16'],
      2**-3,
      "Client step size: 0.125, the paper's for Federated EMNIST, set 1, with"
      ' --sampling=aocs. This run has --clients_per_round=16,'
      ' --data_name=MNIST, for which the paper has no step size;'
      ' experiments.tune searches for a good one.',
    ),
  ],
)
def test_step_size_is_called_the_papers_where_it_is(arguments, expected, line):
  values = linear.parse(femnist, *arguments)
  of_paper = femnist._paper_step_size(values)
  assert experiment_flags.step_size(values, of_paper) == (expected, line)


@pytest.mark.parametrize(
  'arguments, label',
  [
    (['--unbalanced_set=3'], 'FEMNIST set 3'),
    (['--unbalanced_set=none'], 'FEMNIST, balanced'),
    (
      ['--unbalanced_s=0.5', '--unbalanced_a=3', '--unbalanced_b=9'],
      'FEMNIST s=0.5, a=3, b=9',
    ),
  ],
)
def test_label_is_that_of_records_without_one(arguments, label):
  values = linear.parse(femnist, *arguments)
  is_custom = femnist._check_unbalancing(values)
  assert femnist._label(values, is_custom) == label
  settings = experiment_flags.settings(
    values,
    femnist.describe(values),
    femnist.experiment_flags.availability_lib.read(None),
  )
  assert settings.pop('experiment') == label
  assert labels.experiment_label(settings) == label


def test_default_folder_names_differ_between_runs(tmp_path):
  file = tmp_path / 'mine.py'
  file.write_text('')
  names = [
    experiment_flags.run_name(
      linear.parse(femnist, *SMALL, *arguments),
      'femnist_synthetic_set_1',
      femnist.experiment_flags.availability_lib.read(None),
    )
    for arguments in (
      (),
      ('--sampling=full',),
      ('--seed=1',),
      ('--algorithm=dsgd', '--compression=natural'),
      ('--cohort_sampler=osmd', '--sampling=full'),
      (f'--cohort_sampler={file}:build', '--sampling=full'),
      (f'--sampling={file}:first',),
      (f'--sampling={file}:second',),
      ('--run_name=mine',),
    )
  ]
  assert names == [
    'femnist_synthetic_set_1_aocs_n4_m1.5_seed0',
    'femnist_synthetic_set_1_full_n4_seed0',
    'femnist_synthetic_set_1_aocs_n4_m1.5_seed1',
    'femnist_synthetic_set_1_aocs_n4_m1.5_dsgd_natural_seed0',
    'femnist_synthetic_set_1_full_n4_osmd_seed0',
    'femnist_synthetic_set_1_full_n4_mine_build_seed0',
    'femnist_synthetic_set_1_mine_first_n4_m1.5_seed0',
    'femnist_synthetic_set_1_mine_second_n4_m1.5_seed0',
    'mine',
  ]


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--clients_per_round=101'], '--clients_per_round=101.*100 clients'),
    (
      ['--validation_subset=1001'],
      '--validation_subset=1001 is more than the 1000 examples',
    ),
    (
      ['--holdout_fraction=0.5', '--clients_per_round=51'],
      '--clients_per_round=51.*50 clients',
    ),
    (['--cache_dir=x'], '--cache_dir=x needs --data_source=tff'),
    (['--data_name=x'], '--data_name=x needs --data_source=tff'),
    (['--data_dir=x'], '--data_dir=x needs --data_source=authors'),
    (['--data_source=authors'], '--data_source=authors needs --data_dir'),
    (
      ['--data_source=authors', '--data_dir=x', '--unbalanced_set=none'],
      '--unbalanced_set=none needs other data',
    ),
    (
      ['--data_source=authors', '--data_dir=x', '--unbalanced_s=0.1'],
      '--unbalanced_s=0.1 needs',
    ),
    (
      ['--data_source=authors', '--data_dir=/nowhere'],
      '/nowhere/cookup_train_1.h5 does not exist',
    ),
    (['--unbalanced_s=0.5'], '--unbalanced_s=0.5 needs --data_source=tff'),
    (['--unbalanced_a=5', '--data_source=tff'], 'missing: --unbalanced_s'),
    (
      [
        '--unbalanced_s=0.5',
        '--unbalanced_a=9',
        '--unbalanced_b=9',
        '--data_source=tff',
      ],
      '--unbalanced_a must be below --unbalanced_b, found 9 and 9',
    ),
    (
      [
        '--unbalanced_set=2',
        '--unbalanced_s=0.5',
        '--unbalanced_a=3',
        '--unbalanced_b=9',
        '--data_source=tff',
      ],
      '--unbalanced_set cannot be combined',
    ),
    (
      ['--algorithm=dsgd', '--client_epochs=2'],
      '--client_epochs=2 needs --algorithm=fedavg',
    ),
    (
      ['--algorithm=dsgd', '--server_learning_rate=0.5'],
      '--server_learning_rate=0.5 needs --algorithm=fedavg',
    ),
    (['--dithering_bits=8'], '--dithering_bits=8 needs --compression=dither'),
    (
      ['--random_k_fraction=0.5', '--compression=natural'],
      '--random_k_fraction=0.5 needs --compression=random_k, found --comp',
    ),
    (['--worker_address=here'], "--worker_address: .*found 'here'"),
    (['--output_dir=/proc/version'], 'not a folder|cannot be written'),
    (['--output_dir=/proc/nowhere'], 'cannot be written'),
  ],
)
def test_bad_settings_end_in_one_line_and_leave_nothing(
  tmp_path, arguments, message
):
  with pytest.raises(SystemExit, match=message) as error:
    run(f'--output_dir={tmp_path}', *arguments)
  assert '\n' not in str(error.value)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'argument',
  [
    '--clients_per_round=0',
    '--expected_clients=0',
    '--expected_clients=nan',
    '--max_iterations=-1',
    '--total_rounds=0',
    '--rounds_per_eval=0',
    '--validation_subset=0',
    '--holdout_fraction=1',
    '--batch_size=0',
    '--client_epochs=0',
    '--client_learning_rate=-1',
    '--server_learning_rate=inf',
    '--seed=-1',
    '--sampling=optimal',
    '--compression=zip',
    '--random_k_fraction=0',
    '--random_k_fraction=1.5',
    '--dithering_bits=3',
    '--algorithm=sgd',
    '--client_weighting=loss',
    '--unbalanced_set=4',
    '--data_source=web',
    '--unbalanced_s=1.5',
    '--unbalanced_s=nan',
    '--dropout_rate=nan',
    '--run_name=../elsewhere',
    '--run_name=',
    '--output_dir=gs://bucket/runs',
    '--cache_dir=',
  ],
)
def test_bad_flag_is_named(argument):
  with pytest.raises(flags.Error, match=argument.split('=')[0].strip('-')):
    linear.parse(femnist, argument)


def test_missing_cache_is_reported_before_anything_is_written(tmp_path):
  (tmp_path / 'cache').mkdir()
  (tmp_path / 'cache' / 'emnist_all.sqlite').write_bytes(b'partial')
  with pytest.raises(SystemExit, match='not an SQLite database'):
    run(
      '--data_source=tff',
      f'--cache_dir={tmp_path}/cache',
      f'--output_dir={tmp_path}/runs',
    )
  assert not (tmp_path / 'runs').exists()


def test_bad_data_end_the_run_before_training(tmp_path):
  test_femnist.write_writers(tmp_path, ('train', 19, 0.5, 35))
  with pytest.raises(SystemExit) as end:
    run(
      '--data_source=tff',
      f'--cache_dir={tmp_path}',
      '--unbalanced_set=none',
      f'--output_dir={tmp_path / "runs"}',
    )
  assert end.value.code == (
    f'error: {tmp_path / "emnist_all.sqlite"}, client f0019: labels must lie in'
    ' [0, 9], found 35.'
  )
  assert not list(tmp_path.glob('runs/**/*.csv'))


def test_run_on_the_authors_files_records_what_they_are(tmp_path):
  data_dir = tmp_path / 'data'
  data_dir.mkdir()
  authors_files.write_files(data_dir)
  arguments = (
    '--data_source=authors',
    f'--data_dir={data_dir}',
    '--unbalanced_set=3',
    '--total_rounds=2',
    f'--output_dir={tmp_path / "runs"}',
  )
  run(*arguments)
  (folder,) = (tmp_path / 'runs').iterdir()
  config = json.loads((folder / 'config.json').read_text())
  assert config['data'].startswith("the authors' unbalanced Federated EMNIST")
  assert config['sha256_of_files'] == {
    name: files.sha256(data_dir / name)
    for name in ('cookup_train_3.h5', 'test.h5')
  }
  assert len(runs.read_run(folder).metrics) == 2
  # Other files are other data.
  (folder / 'weights.npz').unlink()
  authors_files.write_file(data_dir / 'test.h5', [5, 3])
  with pytest.raises(SystemExit, match='sha256_of_files'):
    run(*arguments)
