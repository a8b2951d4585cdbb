"""Tests of the FEMNIST binary, end to end on small synthetic data."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import femnist
from experiments.runs import run_folder
from tests.tasks import test_femnist
from tff_ocs.records import runs

ROOT = pathlib.Path(__file__).parents[2]

SMALL = (
  '--data_source=synthetic',
  '--clients_per_round=4',
  '--expected_clients=1.5',
  '--total_rounds=4',
  '--rounds_per_eval=2',
)


def run(*arguments):
  """Runs the binary in this process with the given command line."""
  with flagsaver.flagsaver():
    try:
      flags.FLAGS(['femnist', *SMALL, *arguments])
      femnist.main(['femnist'])
    finally:
      flags.FLAGS.unparse_flags()
      flags.FLAGS(['femnist'])


def run_and_read(output_dir, *arguments):
  run(f'--output_dir={output_dir}', '--run_name=run', *arguments)
  return runs.read_run(output_dir / 'run')


@pytest.fixture(scope='module')
def by_sampling(tmp_path_factory):
  """A run of each sampling, with the same seed."""
  return {
    sampling: run_and_read(
      tmp_path_factory.mktemp(sampling), f'--sampling={sampling}', '--seed=7'
    )
    for sampling in ('full', 'uniform', 'ocs', 'aocs')
  }


def test_metrics_are_complete_and_consistent(by_sampling):
  for sampling, result in by_sampling.items():
    metrics = result.metrics
    assert set(metrics) == {'round', *run_folder.METRICS}
    np.testing.assert_array_equal(metrics['round'], range(4))
    for name, values in metrics.items():
      if name.startswith('validation'):
        # Every 2 rounds, and after the last.
        np.testing.assert_array_equal(np.isnan(values), [0, 1, 0, 0])
      else:
        assert np.all(np.isfinite(values))
    np.testing.assert_array_equal(
      np.cumsum(metrics['uplink_bits']), metrics['cumulative_uplink_bits']
    )
    scalars = {
      'full': 0,
      'uniform': 0,
      'ocs': 1,
      'aocs': 1 + 2 * metrics['num_iterations'],
    }[sampling]
    np.testing.assert_array_equal(
      metrics['uplink_bits'],
      32 * (1_663_370 * metrics['participants'] + 4 * scalars),
    )
    assert np.all(metrics['seconds'] > 0)


def test_participation_is_as_asked(by_sampling):
  np.testing.assert_array_equal(by_sampling['full'].metrics['participants'], 4)
  for sampling in ('uniform', 'ocs', 'aocs'):
    np.testing.assert_allclose(
      by_sampling[sampling].metrics['expected_participants'], 1.5, rtol=1e-5
    )


def test_samplings_share_cohorts_weights_and_shuffles(by_sampling):
  of_full = by_sampling['full'].metrics
  for result in by_sampling.values():
    np.testing.assert_array_equal(
      result.metrics['cohort_examples'], of_full['cohort_examples']
    )
  # Before the first step all is equal but, for uniform, the step size.
  for sampling in ('ocs', 'aocs'):
    loss = by_sampling[sampling].metrics['training_loss']
    assert loss[0] == of_full['training_loss'][0]
    assert loss[1] != of_full['training_loss'][1]
  # OCS and AOCS agree as far as float32 does.
  np.testing.assert_allclose(
    by_sampling['ocs'].metrics['training_loss'],
    by_sampling['aocs'].metrics['training_loss'],
    rtol=1e-3,
  )


def test_improvement_factors_tell_how_much_there_is_to_gain(by_sampling):
  for result in by_sampling.values():
    alpha = result.metrics['improvement_factor']
    assert np.all((alpha > 0) & (alpha < 1))
    np.testing.assert_allclose(
      result.metrics['relative_improvement_factor'],
      1.5 / (alpha * (4 - 1.5) + 1.5),
      rtol=1e-5,
    )
  # In the first round the updates are those of the same weights, and the step
  # size scales them all.
  first = [r.metrics['improvement_factor'][0] for r in by_sampling.values()]
  np.testing.assert_allclose(first, first[0], rtol=0.05)


def test_papers_step_sizes_are_the_defaults(by_sampling):
  used = {
    sampling: result.config['client_learning_rate']
    for sampling, result in by_sampling.items()
  }
  assert used == {'full': 2**-3, 'uniform': 2**-5, 'ocs': 2**-3, 'aocs': 2**-3}


def test_papers_settings_are_the_defaults():
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
  assert {name: flags.FLAGS[name].default for name in defaults} == defaults


def test_config_says_how_to_repeat_the_run(by_sampling):
  config = by_sampling['aocs'].config
  assert config['sampling'] == 'aocs'
  assert config['expected_clients'] == 1.5
  assert config['seed'] == 7
  assert config['unbalanced_set'] == '1'
  assert config['data'] == 'synthetic images, 100 clients, set 1'
  environment = config['environment']
  assert environment['packages']['tensorflow-federated'] == '0.87.0'
  assert environment['threads_per_client'] >= 1
  assert len(environment['git_commit'].split('+')[0]) in (40, len('unknown'))


@pytest.mark.parametrize(
  'arguments, bits_per_update',
  [
    (['--compression=natural'], 9 * 1_663_370),
    (['--compression=random_k'], 32 * 166_337),
    (['--compression=random_k', '--random_k_fraction=0.5'], 32 * 831_685),
    # Buckets of 512.
    (['--compression=dithering'], (4 * 512 + 32) * 3249),
    (
      ['--compression=dithering', '--dithering_bits=8', '--sampling=full'],
      (8 * 512 + 32) * 3249,
    ),
  ],
)
def test_compression_is_counted(arguments, bits_per_update, tmp_path):
  metrics = run_and_read(tmp_path, '--total_rounds=2', *arguments).metrics
  is_full = '--sampling=full' in arguments
  scalars = 0 if is_full else 1 + 2 * metrics['num_iterations']
  np.testing.assert_array_equal(
    metrics['uplink_bits'],
    bits_per_update * metrics['participants'] + 4 * 32 * scalars,
  )
  assert np.all(np.isfinite(metrics['training_loss']))


def test_compressed_runs_repeat(tmp_path):
  results = [
    run_and_read(tmp_path / name, '--compression=natural', f'--seed={seed}')
    for name, seed in (('a', 7), ('b', 7))
  ]
  first, again = (result.metrics for result in results)
  for name in set(first) - {'seconds'}:
    np.testing.assert_array_equal(first[name], again[name])


def test_algorithm_and_weighting_change_the_training_alone(tmp_path):
  # In set 3, clients of different sizes are in the same cohort.
  common = ('--unbalanced_set=3', '--total_rounds=2', '--seed=7')
  plain, *others = (
    run_and_read(tmp_path / str(i), *common, *arguments).metrics
    for i, arguments in enumerate(
      [[], ['--algorithm=dsgd'], ['--client_weighting=uniform']]
    )
  )
  for other in others:
    np.testing.assert_array_equal(
      other['cohort_examples'], plain['cohort_examples']
    )
    assert other['training_loss'][1] != plain['training_loss'][1]
  # The first round's losses are along the clients' paths, or of one gradient.
  dsgd, uniform = others
  assert uniform['training_loss'][0] == plain['training_loss'][0]
  assert dsgd['training_loss'][0] != plain['training_loss'][0]


def test_silent_clients_can_be_left_untrained(by_sampling, tmp_path):
  plain = by_sampling['uniform']
  skipping = run_and_read(
    tmp_path, '--sampling=uniform', '--seed=7', '--uniform_skips_silent_clients'
  )
  for name in ('validation_accuracy', 'validation_loss', 'uplink_bits'):
    np.testing.assert_array_equal(plain.metrics[name], skipping.metrics[name])
  one, other = (np.load(run.path / 'weights.npz') for run in (plain, skipping))
  for name in one:
    np.testing.assert_array_equal(one[name], other[name])
  examples = [run.metrics['cohort_examples'] for run in (plain, skipping)]
  assert np.all(examples[1] < examples[0])
  # What would need all updates is not there.
  assert set(plain.metrics) - set(skipping.metrics) == {
    'improvement_factor',
    'relative_improvement_factor',
  }


def test_runs_from_before_there_were_flags_are_known(tmp_path):
  run_and_read(tmp_path)
  path = tmp_path / 'run' / 'config.json'
  config = json.loads(path.read_text())
  for name in run_folder.FORMER_SETTINGS:
    del config[name]
  path.write_text(json.dumps(config))
  before = (tmp_path / 'run' / 'metrics.csv').read_bytes()
  # Finished, and not begun again.
  run_and_read(tmp_path)
  assert (tmp_path / 'run' / 'metrics.csv').read_bytes() == before
  with pytest.raises(SystemExit, match='--compression=none, not natural'):
    run_and_read(tmp_path, '--compression=natural')


def test_folder_has_log_events_and_weights(tmp_path):
  run_and_read(tmp_path)
  folder = tmp_path / 'run'
  log = (folder / 'log.txt').read_text()
  assert '0.125' in log and 'synthetic images' in log and 'Round 3' in log
  assert list((folder / 'events').glob('events.*'))
  with np.load(folder / 'weights.npz') as weights:
    assert sum(weights[name].size for name in weights) == 1_663_370
  assert not list(folder.glob('*partial*'))


def test_same_seed_gives_the_same_bits_and_another_does_not(tmp_path):
  results, weights = [], []
  for name, seed in (('a', 3), ('b', 3), ('c', 4)):
    results.append(run_and_read(tmp_path / name, f'--seed={seed}').metrics)
    with np.load(tmp_path / name / 'run' / 'weights.npz') as arrays:
      weights.append([arrays[key] for key in arrays])
    del results[-1]['seconds']
  for name in results[0]:
    np.testing.assert_array_equal(results[0][name], results[1][name])
  assert any(
    not np.array_equal(results[0][name], results[2][name])
    for name in results[0]
  )
  for first, again in zip(*weights[:2]):
    np.testing.assert_array_equal(first, again)


def test_results_are_not_overwritten_unless_told_to(tmp_path):
  run_and_read(tmp_path, '--total_rounds=1')
  before = (tmp_path / 'run' / 'metrics.csv').read_bytes()
  with pytest.raises(SystemExit, match='already holds results.*--overwrite'):
    run_and_read(tmp_path, '--noresume')
  with pytest.raises(SystemExit, match='--total_rounds=1, not 4'):
    run_and_read(tmp_path)
  assert (tmp_path / 'run' / 'metrics.csv').read_bytes() == before
  result = run_and_read(tmp_path, '--total_rounds=2', '--overwrite')
  assert len(result.metrics['round']) == 2


def test_folder_of_something_else_is_never_replaced(tmp_path):
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'thesis.tex').write_text('precious')
  with pytest.raises(SystemExit, match='no config.json'):
    run_and_read(tmp_path, '--overwrite')
  assert (tmp_path / 'run' / 'thesis.tex').read_text() == 'precious'


def test_default_folder_names_tell_runs_apart(tmp_path):
  for arguments in (
    (),
    ('--sampling=full',),
    ('--seed=1',),
    ('--algorithm=dsgd', '--compression=natural'),
  ):
    run(f'--output_dir={tmp_path}', '--total_rounds=1', *arguments)
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    'femnist_synthetic_set_1_aocs_n4_m1.5_dsgd_natural_seed0',
    'femnist_synthetic_set_1_aocs_n4_m1.5_seed0',
    'femnist_synthetic_set_1_aocs_n4_m1.5_seed1',
    'femnist_synthetic_set_1_full_n4_seed0',
  ]


def test_validation_can_be_on_a_subset_or_on_held_out_clients(
  by_sampling, tmp_path
):
  whole = by_sampling['aocs']
  subset = run_and_read(
    tmp_path / 'subset', '--seed=7', '--validation_subset=300'
  )
  assert subset.config['validation_subset'] == 300
  assert subset.config['validation_examples'] == 300
  assert '300 validation examples drawn' in subset.config['data']
  # Training is the same, and what is evaluated on is not.
  np.testing.assert_array_equal(
    subset.metrics['training_loss'], whole.metrics['training_loss']
  )
  accuracy = subset.evaluated('validation_accuracy')[1]
  np.testing.assert_allclose(accuracy * 300, np.round(accuracy * 300))
  assert np.any(
    subset.evaluated('validation_loss')[1]
    != whole.evaluated('validation_loss')[1]
  )

  held_out = run_and_read(
    tmp_path / 'held_out', '--seed=7', '--holdout_fraction=0.1'
  )
  assert held_out.config['holdout_fraction'] == 0.1
  assert held_out.config['pool_clients'] == 90
  # All examples of the pool are in one or the other.
  assert (
    held_out.config['pool_examples'] + held_out.config['validation_examples']
    == whole.config['pool_examples']
  )


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
    (['--cache_dir=x'], '--cache_dir=x goes with --data_source=tff only'),
    (['--data_name=x'], '--data_name=x goes with --data_source=tff only'),
    (['--unbalanced_s=0.5'], 'missing: --unbalanced_a'),
    (
      ['--unbalanced_s=0.5', '--unbalanced_a=9', '--unbalanced_b=9'],
      '--unbalanced_a must be below --unbalanced_b, found 9 and 9',
    ),
    (
      [
        '--unbalanced_set=2',
        '--unbalanced_s=0.5',
        '--unbalanced_a=3',
        '--unbalanced_b=9',
      ],
      '--unbalanced_set goes without',
    ),
    (
      ['--algorithm=dsgd', '--client_epochs=2'],
      '--client_epochs=2 goes with --algorithm=fedavg only',
    ),
    (
      ['--algorithm=dsgd', '--server_learning_rate=0.5'],
      '--server_learning_rate=0.5 goes with --algorithm=fedavg only',
    ),
    (
      ['--uniform_skips_silent_clients'],
      '--uniform_skips_silent_clients goes with --sampling=uniform only, found'
      ' --sampling=aocs',
    ),
    (
      [
        '--uniform_skips_silent_clients',
        '--sampling=uniform',
        '--availability=0.5',
      ],
      '--uniform_skips_silent_clients goes without --availability',
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
    '--run_name=../elsewhere',
    '--run_name=',
  ],
)
def test_bad_flag_is_named(argument):
  with pytest.raises(flags.Error, match=argument.split('=')[0].strip('-')):
    run(argument)


def test_missing_cache_is_told_before_anything_is_written(tmp_path):
  (tmp_path / 'cache').mkdir()
  (tmp_path / 'cache' / 'emnist_all.sqlite').write_bytes(b'partial')
  with pytest.raises(SystemExit, match='not an SQLite database'):
    run(
      '--data_source=tff',
      f'--cache_dir={tmp_path}/cache',
      f'--output_dir={tmp_path}/runs',
    )
  assert not (tmp_path / 'runs').exists()


def test_program_runs_from_the_shell_and_shows_progress(tmp_path):
  result = subprocess.run(
    [
      sys.executable,
      '-m',
      'experiments.femnist',
      *SMALL,
      '--total_rounds=2',
      f'--output_dir={tmp_path}',
      '--run_name=run',
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
  config = json.loads((tmp_path / 'run' / 'config.json').read_text())
  # Also the flags of the main module are recorded when it is a program.
  assert config['data_source'] == 'synthetic'


def test_help_explains_pool_cohort_and_participants():
  result = subprocess.run(
    [sys.executable, '-m', 'experiments.femnist', '--help'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )
  text = ' '.join(result.stdout.split())
  assert 'n, the size of the cohort: how many clients of the pool' in text
  assert 'm, the expected number of participants: how many of the n' in text


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
