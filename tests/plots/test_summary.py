"""Tests of the table against numbers computed by hand."""

import csv
import pathlib
import subprocess
import sys

import pytest

from plots import summary
from tests.plots import made_up
from tff_ocs.records import runs

_NAN = float('nan')


def write_runs(tmp_path):
  bits = [10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9]
  made_up.write_run(
    tmp_path / 'a', m=3, seed=0, bits=bits, accuracy=[0.2, _NAN, 0.9, 0.7]
  )
  made_up.write_run(
    tmp_path / 'b', m=3, seed=1, bits=bits, accuracy=[0.5, _NAN, 0.6, 0.5]
  )
  made_up.write_run(
    tmp_path / 'c',
    'full',
    m=32,
    bits=[10**10, 2 * 10**10],
    accuracy=[0.3, 0.8],
  )


def test_numbers(tmp_path):
  write_runs(tmp_path)
  groups, _ = runs.find_groups(tmp_path)
  full, aocs = summary.summarize(groups, [0.5, 0.85, 0.95])
  assert aocs == pytest.approx(
    {
      'name': 'FEMNIST set 1',
      'clients_per_round': 32,
      'data': 'made-up numbers',
      'data_source': 'synthetic',
      'method': 'AOCS, m=3',
      'seeds': 2,
      'rounds': 4,
      'final_accuracy_mean': 0.6,
      'final_accuracy_std': 0.02**0.5,  # 0.1 from the mean each, by 2 - 1.
      'best_accuracy_mean': 0.75,
      'best_accuracy_std': 0.045**0.5,
      'participants_per_round': 3,
      'uplink_bits': 4e9,
      # After the third round and after the first; full: after the second.
      'seeds_reaching_0.5': 2,
      'rounds_to_0.5': 2,
      'bits_to_0.5': 2e9,
      'bits_to_0.5_of_full': 0.1,
      # Full participation never does.
      'seeds_reaching_0.85': 1,
      'rounds_to_0.85': 3,
      'bits_to_0.85': 3e9,
      'bits_to_0.85_of_full': None,
      'seeds_reaching_0.95': 0,
      'rounds_to_0.95': None,
      'bits_to_0.95': None,
      'bits_to_0.95_of_full': None,
    }
  )
  assert full['method'] == 'full participation'
  assert full['bits_to_0.5_of_full'] == 1
  assert full['final_accuracy_std'] is None


def test_table(tmp_path):
  write_runs(tmp_path)
  groups, _ = runs.find_groups(tmp_path)
  rows = summary.summarize(groups, [0.5, 0.85])
  assert summary.format_markdown(rows, [0.5, 0.85]).splitlines() == [
    '**FEMNIST set 1, n=32. Data: made-up numbers; source: synthetic.**',
    '',
    '| Method | Seeds | Rounds | Final accuracy [%] | Best accuracy [%]'
    ' | Participants a round | Uplink [Gbit] | Rounds to 50 % | Gbit to 50 %'
    ' | Of full | Rounds to 85 % | Gbit to 85 % | Of full |',
    '| --- |' + ' ---: |' * 12,
    '| full participation | 1 | 2 | 80.0 | 80.0 | 32.00 | 20.00 | 2 | 20.00'
    ' | 1.000 | – | – | – |',
    '| AOCS, m=3 | 2 | 4 | 60.0 ± 14.1 | 75.0 ± 21.2 | 3.00 | 4.00 | 2 | 2.00'
    ' | 0.100 | 3 (1 of 2) | 3.00 (1 of 2) | – |',
  ]


def test_other_settings_are_other_rows_and_other_ratios(tmp_path):
  made_up.write_run(tmp_path / 'a')
  made_up.write_run(tmp_path / 'b', client_learning_rate=0.5)
  made_up.write_run(tmp_path / 'c', batch_size=10)
  made_up.write_run(tmp_path / 'd', 'full')
  groups, _ = runs.find_groups(tmp_path)
  rows = {
    row['method']: row['bits_to_0.4_of_full']
    for row in summary.summarize(groups, [0.4])
  }
  assert rows == {
    'full participation': 1,
    # There is no full participation with batches of 10 to compare with.
    'AOCS, m=3, batch_size=10, client_learning_rate=0.125': None,
    'AOCS, m=3, batch_size=20, client_learning_rate=0.125': 3 / 32,
    'AOCS, m=3, batch_size=20, client_learning_rate=0.5': 3 / 32,
  }


def test_bits_are_compared_with_those_of_uncompressed_full_participation(
  tmp_path,
):
  made_up.write_run(tmp_path / 'a', compression='natural')
  made_up.write_run(tmp_path / 'b', 'full', compression='natural')
  made_up.write_run(tmp_path / 'c', 'full')
  groups, _ = runs.find_groups(tmp_path)
  rows = {
    row['method']: row['bits_to_0.4_of_full']
    for row in summary.summarize(groups, [0.4])
  }
  assert rows['AOCS, m=3, natural compression'] == 3 / 32
  made_up.write_run(tmp_path / 'd', batch_size=10)
  (tmp_path / 'c' / 'config.json').unlink()
  groups, _ = runs.find_groups(tmp_path)
  for row in summary.summarize(groups, [0.4]):
    assert row['bits_to_0.4_of_full'] is None


def test_command_prints_and_writes(tmp_path, capsys):
  write_runs(tmp_path)
  made_up.write_run(tmp_path / 'unfinished', seed=2, finished=False)
  summary.write_summary(results_dir=str(tmp_path), accuracies=[0.5])
  printed = capsys.readouterr()
  assert printed.out == (tmp_path / 'summary.md').read_text()
  assert 'unfinished is left out' in printed.err
  with (tmp_path / 'summary.csv').open(newline='') as file:
    full, aocs = csv.DictReader(file)
  assert full['final_accuracy_std'] == ''
  assert float(aocs['bits_to_0.5']) == 2e9


def test_no_runs_are_an_error(tmp_path):
  with pytest.raises(SystemExit, match='no finished run of .* below'):
    summary.write_summary(results_dir=str(tmp_path), accuracies=[0.5])


@pytest.mark.parametrize('value', ['1.5', '0', 'high', '0.5,nan'])
def test_bad_accuracies_are_named(value):
  ended = subprocess.run(
    [
      sys.executable,
      '-m',
      'plots.summary',
      '--results_dir=.',
      f'--accuracies={value}',
    ],
    cwd=pathlib.Path(__file__).parents[2],
    capture_output=True,
    text=True,
  )
  assert ended.returncode == 1
  assert '--accuracies' in ended.stderr
