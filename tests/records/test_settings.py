"""Tests of the settings of a run."""

import json
import subprocess
import sys

import pytest

from tests.plots import made_up
from tff_ocs.records import files
from tff_ocs.records import settings as settings_lib

# Versions recorded some of these, which do not influence how a run is trained.
NOT_SETTINGS = (
  'cache_dir',
  'environment',
  'output_dir',
  'overwrite',
  'resume',
  'rounds_per_checkpoint',
  'run_name',
  'worker_address',
)
# A record of the first version.
FORMER = {
  'data_source': 'synthetic',
  'unbalanced_set': '1',
  'sampling': 'aocs',
  'clients_per_round': 32,
  'expected_clients': 3.0,
  'total_rounds': 9,
  'batch_size': 20,
  'client_learning_rate': 0.125,
  'seed': 0,
  'data': 'made-up numbers',
  **dict.fromkeys(NOT_SETTINGS, 'somewhere'),
}


def test_settings_are_the_same_after_writing_and_reading(tmp_path):
  settings = settings_lib.Settings.from_json(FORMER)
  settings_lib.write_config(tmp_path, settings, {'cpus': 2})
  assert settings_lib.read_config(tmp_path) == (settings, {'cpus': 2})
  assert [path.name for path in tmp_path.iterdir()] == ['config.json']
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config['experiment'] == 'FEMNIST set 1'
  assert config['method'] == 'AOCS, m=3'
  assert config['batch_size'] == 20
  assert set(config) & set(NOT_SETTINGS) == {'environment'}


def test_former_record_is_the_same_run_as_a_new_one():
  former = settings_lib.Settings.from_json(FORMER)
  new = {**former.to_json(), 'expected_clients': 3}
  assert not former.differences(new)
  assert settings_lib.Settings.from_json(new) == former
  new = {**new, 'compression': 'natural', 'dithering_bits': 4.0}
  (difference,) = former.differences(new)
  assert difference == ('compression', 'none', 'natural')


def test_integers_may_be_written_as_numbers():
  settings = settings_lib.Settings.from_json({**FORMER, 'seed': 42.0})
  assert settings.seed == 42 and isinstance(settings.seed, int)
  assert not settings.differences({'seed': 42})


@pytest.mark.parametrize(
  'one, other, same',
  [
    (42, 42.0, True),
    (0.1, 0.1, True),
    (1, 2, False),
    (True, True, True),
    (True, 1, False),
    (0, False, False),
    (True, 'true', False),
    ('1', 1, False),
    (None, None, True),
    (None, 0, False),
    (None, 'None', False),
    (['a', 1], ['a', 1.0], True),
    (['a'], ['a', 'b'], False),
  ],
)
def test_values_are_compared_not_their_texts(one, other, same):
  settings = made_up.settings(flag=one)
  assert (settings.differences({'flag': other}) == []) == same


@pytest.mark.parametrize(
  'change, message',
  [
    ({'seed': '0'}, 'seed must be an integer, found "0"'),
    ({'seed': 0.5}, 'seed must be an integer, found 0.5'),
    ({'clients_per_round': 0}, 'clients_per_round must be at least 1'),
    ({'experiment': 3}, 'experiment must be a string, found 3'),
    ({'compression': None}, 'compression must be a string, found null'),
    (
      {'uniform_skips_silent_clients': 1},
      'uniform_skips_silent_clients must be true or false, found 1',
    ),
    ({'client_learning_rate': float('inf')}, 'a finite number or null'),
    ({'availability': []}, r'a finite number or a string or null, found \[\]'),
  ],
)
def test_values_of_a_wrong_type_are_named(change, message):
  with pytest.raises(files.RecordError, match=message):
    settings_lib.Settings.from_json({**FORMER, **change})


@pytest.mark.parametrize(
  'name',
  ['data', 'seed', 'total_rounds', 'clients_per_round', 'unbalanced_set'],
)
def test_missing_settings_are_named(name):
  config = {key: value for key, value in FORMER.items() if key != name}
  if name == 'unbalanced_set':
    name = 'experiment'
  with pytest.raises(files.RecordError, match=f'it has no {name}'):
    settings_lib.Settings.from_json(config)


def test_records_know_nothing_of_flags_experiments_and_plots():
  """No import of a module of records leads upwards, or to absl.flags' values.

  absl.logging imports absl.flags itself, so that the names are looked for in
  the modules' own text.
  """
  code = (
    'import sys, tff_ocs.records.runs, tff_ocs.records.weights;'
    ' sys.exit(any(m.split(".")[0] in ("experiments", "plots")'
    ' for m in sys.modules))'
  )
  assert subprocess.run([sys.executable, '-c', code]).returncode == 0
