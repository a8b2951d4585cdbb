"""Tests of how many participants are enough."""

import csv
from unittest import mock

import pandas as pd
import pytest
from absl import flags

from experiments import participation
from experiments.campaigns import jobs
from tests.experiments import linear
from tff_ocs.records import runs

FULL = (0.90, 0.94)


def table_of(*accuracies, n=16, full=FULL):
  """The table for one n, from pairs of an m and its accuracies."""
  of_n = {(n, m): values for m, values in accuracies}
  return participation.tabulate({**of_n, (n, n): full})


def test_enough_is_judged_by_pairs_of_runs_with_the_same_seed():
  table = table_of(
    # Far within the deviation of full participation, but 1 point below for
    # each seed.
    (1, (0.89, 0.93)),
    # On average 0.1 points above, but not for each seed.
    (2, (0.882, 0.96)),
    (3, (0.896, 0.96)),
    (6, (0.90, 0.94)),
  )
  assert list(table['is_enough']) == [False, False, True, True, True]
  assert table.iloc[0][
    ['minus_full_mean', 'minus_full_low', 'minus_full_high']
  ].tolist() == pytest.approx([-0.01] * 3)
  assert table['minus_full_low'].tolist() == pytest.approx(
    [-0.01, -0.018, -0.004, 0, 0]
  )


def test_half_a_point_below_is_enough_whatever_the_rounding():
  full = (0.962, 0.971, 0.965)
  # -5, 0 and 1 of 1,000 digits, where -0.005 is stored as less.
  table = table_of((3, (0.957, 0.971, 0.966)), full=full)
  assert 0.957 - 0.962 < -0.005
  assert list(table['is_enough']) == [True, True]
  table = table_of((3, (0.956, 0.971, 0.966)), full=full)
  assert list(table['is_enough']) == [False, True]


def test_table_has_a_row_for_each_n_and_bold_where_it_is_enough():
  small = table_of((1, (0.25, 0.5)), n=4, full=(0.5, 0.5))
  large = table_of((1, (0.8, 0.8)), (2, (0.896, 0.95)), (4, (0.9, 0.94)))
  text = participation.format_markdown(pd.concat([small, large]), 'Made up.')
  assert text.splitlines() == [
    '**Made up.**',
    '',
    '| Minus full participation [points] | m=1 | m=2 | m=4'
    ' | full participation [%] | smallest m | m / √n |',
    '| --- | ---: | ---: | ---: | ---: | ---: | ---: |',
    '| n=4 | -12.50 [-25.00, +0.00] | – | – | 50.0 ± 0.0 | – | – |',
    '| n=16 | -12.00 [-14.00, -10.00] | **+0.30 [-0.40, +1.00]**'
    ' | **+0.00 [+0.00, +0.00]** | 92.0 ± 2.8 | 2 | 0.50 |',
  ]


def test_files_hold_what_was_found(tmp_path):
  participation.write_results(
    tmp_path, table_of((1, (0.8, 0.8)), (2, (0.90, 0.94))), 'Made up.'
  )
  with (tmp_path / 'participation.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert [
    (row['clients_per_round'], row['expected_clients'], row['is_enough'])
    for row in rows
  ] == [('16', '1', 'False'), ('16', '2', 'True'), ('16', '16', 'True')]
  assert float(rows[2]['accuracy_mean']) == pytest.approx(0.92)
  assert float(rows[2]['accuracy_std']) == pytest.approx(0.02 * 2**0.5)
  assert {path.name for path in tmp_path.iterdir()} == {
    f'participation.{ending}' for ending in ('csv', 'md', 'png', 'pdf')
  }


def test_job_has_the_papers_flags_but_n_m_and_seed():
  job = participation.build_job('femnist_1', 16, 2, 5, ['--total_rounds=7'])
  assert job.name == 'femnist_1_n16_aocs_m2_seed5'
  values = job.values
  assert (values['clients_per_round'], values['expected_clients']) == (
    '16',
    '2',
  )
  assert (values['sampling'], values['seed']) == ('aocs', '5')
  assert job.total_rounds == 7
  assert float(values['client_learning_rate']) == 2**-3
  full = participation.build_job('femnist_1', 16, 16, 5, [])
  assert full.name == 'femnist_1_n16_full_seed5'
  assert full.values['sampling'] == 'full'
  assert full.total_rounds == 151


def run(*arguments):
  """Runs the program with the given command line, in this process."""
  values = flags.FlagValues()
  participation.define_flags(values)
  argv = values(['participation', '--experiment=femnist_1', *arguments])
  with mock.patch.object(flags, 'FLAGS', values):
    participation.main(argv)


def test_only_m_below_n_are_tried(capsys):
  with pytest.raises(SystemExit) as raised:
    run(
      '--clients_per_round=8,4',
      '--expected_clients=1,4,6',
      '--repeats=2',
      '--dry_run',
    )
  assert not raised.value.code
  names = [
    word.split('=')[1]
    for word in capsys.readouterr().out.split()
    if word.startswith('--run_name=')
  ]
  of_seed_0 = [
    'n4_aocs_m1',
    'n4_full',
    'n8_aocs_m1',
    'n8_aocs_m4',
    'n8_aocs_m6',
    'n8_full',
  ]
  assert names == [
    f'femnist_1_{name}_seed{seed}' for seed in (0, 1) for name in of_seed_0
  ]


@pytest.mark.parametrize(
  'flag, message',
  [
    ('--repeats=1', '--repeats'),
    ('--clients_per_round=1', 'whole numbers from 2 on'),
    ('--clients_per_round=32,32', 'different whole numbers'),
    ('--expected_clients=', 'whole numbers from 1 on'),
    ('--expected_clients=2.5', 'whole numbers from 1 on'),
    ('--expected_clients=16', 'the smallest m must be below each n'),
    ('--output_dir=gs://b', 'found a URL'),
    ('--experiment=paper', 'should be one of'),
  ],
)
def test_wrong_flags_are_refused(flag, message):
  with pytest.raises(flags.Error, match=message):
    run(flag)


def test_runs_are_trained_once_and_then_compared(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(jobs, 'run_jobs', linear.run_jobs)
  arguments = (
    '--clients_per_round=3',
    '--expected_clients=1',
    '--repeats=2',
    f'--output_dir={tmp_path}',
    '--',
    '--data_source=synthetic',
    '--total_rounds=2',
  )
  run(*arguments)
  output = capsys.readouterr().out
  accuracies = {
    name: [
      runs.read_run(tmp_path / f'femnist_1_n3_{name}_seed{seed}')
      .metrics['validation_accuracy']
      .iloc[-1]
      for seed in (0, 1)
    ]
    for name in ('full', 'aocs_m1')
  }
  with (tmp_path / 'participation.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  for row, values in zip(rows, (accuracies['aocs_m1'], accuracies['full'])):
    assert float(row['accuracy_mean']) == pytest.approx(sum(values) / 2)
  assert '2 rounds, 2 seeds. Differences are paired by seed' in output
  # Again: from the runs that exist.
  run(*arguments)
  assert capsys.readouterr().out == output
