"""Tests of the table against numbers computed by hand."""

import csv
import pathlib
import shutil
import subprocess
import sys

import numpy as np
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
    bits=[10**10, 2 * 10**10, 3 * 10**10, 4 * 10**10],
    accuracy=[0.3, 0.8, 0.8, 0.8],
  )


def summarize(path, accuracies):
  groups, _ = runs.find_groups(path)
  return summary.summarize(groups, accuracies).to_dict('records')


def test_numbers(tmp_path):
  write_runs(tmp_path)
  groups, _ = runs.find_groups(tmp_path)
  full, aocs = summary.summarize(groups, [0.5, 0.85]).to_dict('records')
  assert aocs == pytest.approx(
    {
      'name': 'FEMNIST set 1',
      'clients_per_round': 32,
      'data': 'made-up numbers',
      'data_source': 'synthetic',
      'method': 'AOCS, m=3',
      'client_learning_rate': 0.125,
      'server_learning_rate': None,
      'seeds': 2,
      'rounds': 4,
      'rounds_per_eval': 2,
      'final_accuracy_mean': 0.6,
      'final_accuracy_std': 0.02**0.5,  # 0.1 from the mean each, by 2 - 1.
      'best_accuracy_mean': 0.75,
      'best_accuracy_std': 0.045**0.5,
      # Seed 0 alone has full participation: 0.7 and 0.8.
      'final_accuracy_minus_full_value': -0.1,
      'final_accuracy_minus_full_low': _NAN,
      'final_accuracy_minus_full_high': _NAN,
      'final_accuracy_minus_full_seeds': 1,
      'participants_per_round': 3,
      'rounds_without_sender': 0,
      'uplink_bits': 4e9,
      # After the third round and after the first; full: after the second, as
      # the pair of the former.
      'seeds_reaching_0.5': 2,
      'round_of_0.5': 1,
      'bits_to_0.5': 2e9,
      'bits_to_0.5_of_full': 0.15,
      'lasting_seeds_reaching_0.5': 2,
      'lasting_round_of_0.5': 1,
      'lasting_bits_to_0.5': 2e9,
      'lasting_bits_to_0.5_of_full': 0.15,
      # Full participation never does, and seed 0 not for good.
      'seeds_reaching_0.85': 1,
      'round_of_0.85': 2,
      'bits_to_0.85': 3e9,
      'bits_to_0.85_of_full': _NAN,
      'lasting_seeds_reaching_0.85': 0,
      'lasting_round_of_0.85': _NAN,
      'lasting_bits_to_0.85': _NAN,
      'lasting_bits_to_0.85_of_full': _NAN,
    },
    nan_ok=True,
  )
  assert full['method'] == 'full participation'
  assert full['bits_to_0.5_of_full'] == 1
  assert np.isnan(full['final_accuracy_std'])


def test_table(tmp_path):
  write_runs(tmp_path)
  groups, _ = runs.find_groups(tmp_path)
  table = summary.summarize(groups, [0.5, 0.85, 0.95])
  # Nobody reaches 95 %, so it has no columns.
  assert summary.format_tables(table, [0.5, 0.85, 0.95]).splitlines() == [
    '**made-up numbers, set 1, n=32, in place of FEMNIST set 1. Data: made-up'
    ' numbers; source: synthetic.**',
    '',
    '| Method | Client step size | Seeds | Rounds | Final accuracy [%]'
    ' | Final − full [points] | Best accuracy [%] | Participants a round'
    ' | Rounds without sender | Uplink [Gbit] |',
    '| --- |' + ' ---: |' * 9,
    '| full participation | 2^-3 | 1 | 4 | 80.0 | – | 80.0 | 32.00 | 0 | 40.00'
    ' |',
    '| AOCS, m=3 | 2^-3 | 2 | 4 | 60.0 ± 14.1 | -10.00 | 75.0 ± 21.2 | 3.00 | 0'
    ' | 4.00 |',
    '',
    '**made-up numbers, set 1, n=32: the round (from 0) and the bits to reach'
    ' an accuracy, at the first hit / for good; validated after every 2'
    ' rounds**',
    '',
    '| Method | Round of 50 % | Gbit to 50 % | Of full'
    ' | Round of 85 % | Gbit to 85 % | Of full |',
    '| --- |' + ' ---: |' * 6,
    '| full participation | 1 | 20.00 | 1.000 | – | – | – |',
    '| AOCS, m=3 | 1 | 2.00 | 0.150 | 2 (1 of 2) / – | 3.00 (1 of 2) / – | – |',
    '',
    "'Final − full' and 'Of full' are over the seeds that the method and full"
    ' participation both have, all other columns over all seeds of a row. ∞'
    ' stands for a ratio where a seed of the method does not get there.',
  ]


def test_comparisons_with_full_participation_are_paired_by_seed(tmp_path):
  # The seeds differ by 0.2, the methods by 0.01 to 0.03.
  for seed, (accuracy, loss) in enumerate(((0.5, 0.01), (0.7, 0.03))):
    for sampling, final in (('full', accuracy), ('aocs', accuracy - loss)):
      made_up.write_run(
        tmp_path / f'{sampling}{seed}',
        sampling,
        seed=seed,
        bits=np.arange(1, 3) * (32 if sampling == 'full' else 3),
        accuracy=[0.1, final],
        participants=[0, 3],
      )
  # Without a partner.
  made_up.write_run(tmp_path / 'c', seed=2, bits=[9, 9], accuracy=[0.1, 0.1])
  full, aocs = summarize(tmp_path, [0.45])
  assert [
    aocs[f'final_accuracy_minus_full_{name}']
    for name in ('value', 'low', 'high', 'seeds')
  ] == pytest.approx([-0.02, -0.03, -0.01, 2])
  assert full['final_accuracy_minus_full_value'] == 0
  assert aocs['bits_to_0.45_of_full'] == 3 / 32
  assert full['rounds_without_sender'] == 1
  assert aocs['rounds_without_sender'] == pytest.approx(2 / 3)
  groups, _ = runs.find_groups(tmp_path)
  text = summary.format_tables(summary.summarize(groups, []), [])
  assert '| -2.00 [-3.00, -1.00] |' in text
  assert '| 0.667 |' in text


def test_rounds_are_counted_as_in_metrics_csv(tmp_path):
  folder = made_up.write_run(tmp_path / 'run')
  (row,) = summarize(tmp_path, [0.4])
  lines = (folder / 'metrics.csv').read_text().splitlines()
  (line,) = [line for line in lines if line.endswith(',0.4')]
  assert row['round_of_0.4'] == int(line.split(',')[0]) == 4


@pytest.mark.parametrize(
  'largest, unit, cells',
  [
    (10**11, 'Gbit', ('100.00', '0.001')),
    (5 * 10**6, 'Mbit', ('5.00', '0.20')),
    (5 * 10**3, 'kbit', ('5.00', '5.00')),
    (500, 'bit', ('500.00', '500.00')),
  ],
)
def test_bits_have_a_fitting_unit(tmp_path, largest, unit, cells):
  first = min(largest, 10**6)
  made_up.write_run(
    tmp_path / 'run', bits=[first, largest], accuracy=[0.5, 0.6]
  )
  groups, _ = runs.find_groups(tmp_path)
  text = summary.format_tables(summary.summarize(groups, [0.5]), [0.5])
  assert f'Uplink [{unit}]' in text and f'{unit} to 50 %' in text
  rows = [line for line in text.splitlines() if line.startswith('| AOCS')]
  total, to_half = cells
  if unit == 'Mbit':
    to_half = '1.00'
  assert [rows[0].split(' | ')[-1], rows[1].split(' | ')[2]] == [
    f'{total} |',
    to_half,
  ]


def test_other_settings_are_other_rows_and_other_ratios(tmp_path):
  made_up.write_run(tmp_path / 'a')
  made_up.write_run(tmp_path / 'b', client_learning_rate=0.5)
  made_up.write_run(tmp_path / 'c', batch_size=10)
  made_up.write_run(tmp_path / 'd', 'full')
  rows = {
    row['method']: row['bits_to_0.4_of_full']
    for row in summarize(tmp_path, [0.4])
  }
  assert rows == {
    'full participation': 1,
    'AOCS, m=3, batch_size=10': pytest.approx(_NAN, nan_ok=True),
    'AOCS, m=3, batch_size=20': 3 / 32,
  }
  assert [row['client_learning_rate'] for row in summarize(tmp_path, [])] == [
    0.125,
    0.125,
    0.125,
    0.5,
  ]


def test_bits_are_compared_with_those_of_uncompressed_full_participation(
  tmp_path,
):
  made_up.write_run(tmp_path / 'a', compression='natural')
  made_up.write_run(tmp_path / 'b', 'full', compression='natural')
  made_up.write_run(tmp_path / 'c', 'full')
  rows = {
    row['method']: row['bits_to_0.4_of_full']
    for row in summarize(tmp_path, [0.4])
  }
  assert rows['AOCS, m=3, natural compression'] == 3 / 32
  made_up.write_run(tmp_path / 'd', batch_size=10)
  (tmp_path / 'c' / 'config.json').unlink()
  for row in summarize(tmp_path, [0.4]):
    assert np.isnan(row['bits_to_0.4_of_full'])


def test_command_prints_and_writes_only_where_it_is_told_to(tmp_path, capsys):
  write_runs(tmp_path / 'runs')
  made_up.write_run(tmp_path / 'runs' / 'unfinished', seed=2, finished=False)
  before = sorted((tmp_path / 'runs').iterdir())
  options = {'results_dir': str(tmp_path / 'runs'), 'accuracies': [0.5]}
  summary.write_summary(**options)
  printed = capsys.readouterr()
  assert 'unfinished is left out' in printed.err
  assert sorted((tmp_path / 'runs').iterdir()) == before
  summary.write_summary(**options, output_dir=str(tmp_path / 'new'))
  assert printed.out == (tmp_path / 'new' / 'summary.md').read_text()
  with (tmp_path / 'new' / 'summary.csv').open(newline='') as file:
    full, aocs = csv.DictReader(file)
  assert full['final_accuracy_std'] == ''
  assert float(aocs['bits_to_0.5']) == 2e9
  assert sorted((tmp_path / 'runs').iterdir()) == before
  # Full participation has no m, so that nothing is compared with AOCS.
  assert not (tmp_path / 'new' / 'differences.md').exists()


def test_differences_from_aocs_are_printed_and_written(tmp_path, capsys):
  for sampling in ('aocs', 'ocs'):
    made_up.write_run(tmp_path / 'runs' / sampling, sampling)
  summary.write_summary(
    results_dir=str(tmp_path / 'runs'),
    accuracies=[0.5],
    output_dir=str(tmp_path),
  )
  printed = capsys.readouterr().out
  texts = [
    (tmp_path / f'{name}.md').read_text() for name in ('summary', 'differences')
  ]
  assert printed == '\n'.join(texts)
  with (tmp_path / 'differences.csv').open(newline='') as file:
    (row,) = csv.DictReader(file)
  assert row['method'] == 'OCS, m=3'
  assert float(row['final_accuracy_difference']) == 0
  # Tables of other runs are not left behind.
  shutil.rmtree(tmp_path / 'runs' / 'ocs')
  summary.write_summary(
    results_dir=str(tmp_path / 'runs'),
    accuracies=[0.5],
    output_dir=str(tmp_path),
  )
  assert not list(tmp_path.glob('differences.*'))


def test_data_are_chosen_by_name_and_by_source(tmp_path, capsys):
  made_up.write_run(tmp_path / 'a')
  made_up.write_run(
    tmp_path / 'b',
    of={**made_up.FEMNIST, 'data_source': 'tff'},
    data='the real thing',
  )
  for data in ('tff', 'real thing'):
    summary.write_summary(
      results_dir=str(tmp_path), accuracies=[0.5], data=data
    )
    printed = capsys.readouterr().out
    assert 'the real thing' in printed and 'made-up' not in printed
  with pytest.raises(SystemExit, match='no finished run .*--data=nothing'):
    summary.write_summary(
      results_dir=str(tmp_path), accuracies=[0.5], data='nothing'
    )


def test_no_runs_are_an_error(tmp_path):
  with pytest.raises(SystemExit, match='no finished run below'):
    summary.write_summary(results_dir=str(tmp_path), accuracies=[0.5])


@pytest.mark.parametrize('value', ['1.5', '0', 'high', '0.5,nan'])
def test_bad_accuracies_are_refused(value):
  assert not summary._are_accuracies(value.split(','))
  assert summary._are_accuracies(['0.5', '1'])


def test_bad_accuracies_are_named():
  ended = subprocess.run(
    [
      sys.executable,
      '-m',
      'plots.summary',
      '--results_dir=.',
      '--accuracies=1.5',
    ],
    cwd=pathlib.Path(__file__).parents[2],
    capture_output=True,
    text=True,
  )
  assert ended.returncode == 1
  assert '--accuracies' in ended.stderr


def test_ratio_is_infinite_if_a_seed_of_the_method_does_not_get_there(tmp_path):
  bits = np.arange(1, 5) * 10**9
  for seed, of_aocs in enumerate([[0.5, 0.9, 0.9, 0.9], [0.5, 0.6, 0.9, 0.8]]):
    made_up.write_run(
      tmp_path / f'a{seed}', m=3, seed=seed, bits=bits, accuracy=of_aocs
    )
    made_up.write_run(
      tmp_path / f'b{seed}',
      'full',
      32,
      seed,
      bits=10 * bits,
      accuracy=[0.9] * 4,
    )
  _, aocs = summarize(tmp_path, [0.85])
  assert aocs['bits_to_0.85_of_full'] == (2 + 3) / (10 + 10)
  assert aocs['lasting_bits_to_0.85_of_full'] == np.inf
  groups, _ = runs.find_groups(tmp_path)
  text = summary.format_tables(summary.summarize(groups, [0.85]), [0.85])
  assert (
    '| AOCS, m=3 | 1.5 / 1 (1 of 2) | 2.50 / 2.00 (1 of 2) | 0.250 / ∞ |'
    in text
  )
