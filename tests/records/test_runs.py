"""Tests of reading, finding and grouping runs."""

import json

import numpy as np
import pytest

from tests.plots import made_up
from tff_ocs.records import runs


def test_empty_cells_are_nan_and_left_out_of_the_evaluated(tmp_path):
  run = runs.read_run(made_up.write_run(tmp_path / 'run'))
  assert run.config['sampling'] == 'aocs'
  np.testing.assert_array_equal(
    np.isnan(run.metrics['validation_accuracy']), [0, 1] * 4 + [0]
  )
  rounds, values = run.evaluated('validation_accuracy')
  np.testing.assert_array_equal(rounds, [0, 2, 4, 6, 8])
  np.testing.assert_allclose(values, rounds / 10)


def test_rounds_and_bits_to_accuracy_are_those_of_the_first_evaluation(
  tmp_path,
):
  run = runs.read_run(made_up.write_run(tmp_path / 'run', m=10))
  # After round 4, which is the fifth.
  for accuracy in (0.35, 0.4):
    assert runs.rounds_to_accuracy(run, accuracy) == 5
    assert runs.bits_to_accuracy(run, accuracy) == 5e9
  assert runs.rounds_to_accuracy(run, 0.9) == float('inf')
  assert runs.bits_to_accuracy(run, 0.9) == float('inf')


def test_folder_without_a_run_is_an_error(tmp_path):
  with pytest.raises(FileNotFoundError, match='config.json'):
    runs.read_run(tmp_path)


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
      [run.config['seed'] for run in group.runs],
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


def test_what_is_left_out_is_named_with_the_reason(tmp_path):
  made_up.write_run(tmp_path / 'unfinished', finished=False)
  broken = made_up.write_run(tmp_path / 'broken')
  (broken / 'config.json').write_text('{')
  other = made_up.write_run(tmp_path / 'other')
  (other / 'config.json').write_text(json.dumps({'sampling': 'aocs'}))
  lacking = made_up.write_run(tmp_path / 'lacking')
  config = json.loads((lacking / 'config.json').read_text())
  del config['data']
  (lacking / 'config.json').write_text(json.dumps(config))
  made_up.write_run(tmp_path / 'unknown', sampling='best')
  empty = made_up.write_run(tmp_path / 'without_rounds')
  (empty / 'metrics.csv').write_text('')
  bare = made_up.write_run(tmp_path / 'without_metrics')
  (bare / 'metrics.csv').unlink()
  groups, left_out = runs.find_groups(tmp_path)
  assert not groups
  expected = [
    ('broken', 'Expecting property name'),
    ('lacking', 'no data'),
    ('other', 'not one of experiments.femnist'),
    ('unfinished', '8 of 9 rounds'),
    ('unknown', "unknown sampling, 'best'"),
    ('without_metrics', 'no metrics.csv'),
    ('without_rounds', '0 of 9 rounds'),
  ]
  assert len(left_out) == len(expected)
  for line, (name, reason) in zip(left_out, expected):
    assert line.startswith(f'{tmp_path / name} is left out: ')
    assert reason in line


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
  write(tmp_path / 'more', compression='random_k', random_k_fraction=0.25)
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
    'AOCS, m=3, random 25%': 1,
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


def test_unknown_compression_is_left_out(tmp_path):
  made_up.write_run(tmp_path / 'a', compression='zip')
  groups, (line,) = runs.find_groups(tmp_path)
  assert not groups
  assert "unknown compression, 'zip'" in line
