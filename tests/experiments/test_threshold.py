"""Tests of experiments.threshold."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from experiments import threshold
from experiments.theory import replays
from plots import threshold_replays
from tests.plots import made_up
from tff_ocs import probabilities
from tff_ocs.records import norms as norms_lib
from tff_ocs.records import runs

ONE = (threshold.Controller(0.3, 3.0),)
M = 3


def write_run(folder, *, num_rounds=9, n=32, examples=True, **settings):
  """A run of 9 rounds with made-up norms."""
  made_up.write_run(folder, **settings)
  rng = np.random.default_rng(settings.get('seed', 0))
  writer = norms_lib.NormsWriter(folder)
  for round_num in range(num_rounds):
    writer.write(rng.lognormal(0, 1.5, n).astype(np.float32), round_num)
  if examples:
    metrics = pd.read_csv(folder / 'metrics.csv')
    metrics['cohort_examples'] = rng.integers(100, 1000, len(metrics))
    metrics.to_csv(folder / 'metrics.csv', index=False)
  return folder


def read_trace(folder):
  return threshold.read_trace(runs.read_run(folder), min_rounds=2)


def test_trace_has_the_weights_of_the_cohorts(tmp_path):
  trace = read_trace(write_run(tmp_path / 'a'))
  metrics = runs.read_run(tmp_path / 'a').metrics
  np.testing.assert_array_equal(
    trace.cohort_weights, metrics['cohort_examples']
  )
  np.testing.assert_array_equal(
    trace.norms, norms_lib.read_norms(tmp_path / 'a')
  )
  # With equal weights it is the size of the cohort.
  folder = write_run(tmp_path / 'b', examples=False, client_weighting='uniform')
  np.testing.assert_array_equal(read_trace(folder).cohort_weights, 32)


def test_replay_has_the_numbers_of_the_formulas(tmp_path):
  trace = read_trace(write_run(tmp_path / 'run'))
  rounds = threshold.replay(trace, M, ONE)
  u = trace.relative_norms

  def column(sampling, name):
    return rounds[rounds['sampling'] == sampling][name].to_numpy()

  ocs = [probabilities.optimal_probabilities(norms, M) for norms in u]
  np.testing.assert_allclose(column('OCS', 'participants'), M)
  for name in ('variance', 'variance_equal_spend'):
    np.testing.assert_allclose(
      column('OCS', name), list(map(probabilities.sampling_variance, u, ocs))
    )
  np.testing.assert_allclose(
    column('OCS', 'threshold'),
    [probabilities.sampling_threshold(norms, M) for norms in u],
  )
  np.testing.assert_allclose(
    column('uniform', 'variance'), [29 / 3 * np.sum(x**2) for x in u]
  )
  for sampling, norms in (
    ('threshold, N_t known', u),
    ('threshold, N_t unknown', trace.norms),
  ):
    replay = replays.replay_threshold(norms, M)
    np.testing.assert_array_equal(
      column(sampling, 'participants'),
      replays.count_participants(replay.probabilities),
    )
    np.testing.assert_array_equal(
      column(sampling, 'threshold'), replay.thresholds
    )
  constant = column('constant threshold, in hindsight', 'participants')
  assert constant[1:].mean() == pytest.approx(M)
  assert set(rounds['expected_clients']) == {M}


def test_summary_leaves_out_round_0_and_is_relative_to_ocs():
  num_rounds = threshold.LATE_ROUND + 2
  rounds = pd.DataFrame(
    {
      'sampling': np.repeat(['OCS', 'other'], num_rounds),
      'eta': math.nan,
      'c': math.nan,
      'round': np.tile(np.arange(num_rounds), 2),
      'participants': 3.0,
      'variance': np.repeat([1.0, 2.0], num_rounds),
      'variance_equal_spend': np.repeat([1.0, 4.0], num_rounds),
    }
  )
  other = rounds['sampling'] == 'other'
  # Round 0 does not count; one round in 31 has the double, none late.
  rounds.loc[other & (rounds['round'] == 0), 'participants'] = 99
  rounds.loc[other & (rounds['round'] == 0), 'variance'] = math.inf
  rounds.loc[other & (rounds['round'] == 5), 'participants'] = 6
  rounds.loc[other & (rounds['round'] == 5), 'variance'] = 2 + 31
  summary = threshold.summarize(rounds, 3).set_index('sampling')
  row = summary.loc['other']
  assert row['participants_mean'] == pytest.approx(32 / 31)
  assert row['participants_max'] == 2
  assert row['participants_p95'] == 1
  assert row['variance'] == pytest.approx(3)
  assert row['variance_late'] == 2
  assert row['variance_equal_spend'] == row['variance_late_equal_spend'] == 4
  assert set(summary.loc['OCS'].drop(['eta', 'c'])) == {1.0}


def test_program_prints_and_writes_what_it_finds(tmp_path, capsys):
  for seed in (0, 1):
    write_run(tmp_path / 'runs' / f'aocs{seed}', seed=seed)
  write_run(tmp_path / 'runs' / 'full', sampling='full', m=2)
  made_up.write_run(tmp_path / 'runs' / 'without_norms', seed=2)
  threshold.compare(
    results_dir=str(tmp_path / 'runs'),
    controllers=[*ONE, threshold.Controller(0.1, 2.0)],
    output_dir=str(tmp_path / 'out'),
  )
  text = capsys.readouterr().out
  assert (tmp_path / 'out' / 'threshold.md').read_text() == text
  titles = [line for line in text.splitlines() if line.startswith('**')]
  groups, _ = runs.find_groups(tmp_path / 'runs')
  experiment = groups[0].experiment
  assert titles == [
    f'**{experiment} Norms of 1 run with full participation; m=2.**',
    f'**{experiment} Norms of 2 runs with AOCS, m=3; m=3.**',
  ]
  table = pd.read_csv(tmp_path / 'out' / 'threshold.csv')
  # Three without a controller, two with two, and the constant threshold.
  assert len(table) == 3 * (3 + 2 * 2 + 1)
  row = table[(table['sampling'] == 'uniform') & (table['seed'] == 1)].iloc[0]
  assert row['participants_mean'] == pytest.approx(1) and row['variance'] > 1
  assert '| threshold, N_t known, eta=0.1, c=2 | ' in text
  # There are fewer rounds than those that count as late.
  assert '| OCS | 1.00 | 1.00 | 1.00 | 1.00 | – | 1.00 | – |' in text
  for ending in ('png', 'pdf'):
    assert (tmp_path / 'out' / f'threshold.{ending}').stat().st_size > 1000


def test_each_kind_of_runs_is_drawn(tmp_path, monkeypatch):
  write_run(tmp_path / 'a')
  write_run(tmp_path / 'b', seed=1)
  write_run(tmp_path / 'c', clients_per_round=64, n=64)
  write_run(tmp_path / 'd', of={**made_up.FEMNIST, 'data_source': 'tff'})
  drawn = []
  monkeypatch.setattr(
    threshold_replays,
    'plot_replays',
    lambda rounds, paths, caption: drawn.extend(rounds['title'].unique()),
  )
  threshold.compare(
    results_dir=str(tmp_path), controllers=ONE, output_dir=str(tmp_path / 'out')
  )
  assert sorted(drawn) == [
    'made-up numbers, set 1, n=32, AOCS, m=3',
    'made-up numbers, set 1, n=32, AOCS, m=3 (synthetic)',
    'made-up numbers, set 1, n=64, AOCS, m=3 (synthetic)',
  ]


def test_runs_with_different_settings_are_not_averaged(tmp_path):
  for step_size in (0.125, 0.25):
    folder = tmp_path / 'runs' / f'step_{step_size}'
    write_run(folder, client_learning_rate=step_size)
  with pytest.raises(
    SystemExit, match=r'differ in client_learning_rate=0\.125, against'
  ):
    threshold.compare(
      results_dir=str(tmp_path / 'runs'),
      controllers=ONE,
      output_dir=str(tmp_path / 'out'),
    )
  assert not (tmp_path / 'out').exists()


def test_m_is_as_asked(tmp_path, capsys):
  write_run(tmp_path / 'run')
  threshold.compare(
    results_dir=str(tmp_path), controllers=ONE, expected_clients=6.0
  )
  assert 'with AOCS, m=3; m=6.**' in capsys.readouterr().out


@pytest.mark.parametrize(
  'settings, reason',
  [
    ({'availability': 0.5}, 'it has --availability=0.5, so that its norms'),
    (
      {'client_costs': 'uplink_seconds'},
      'it has --client_costs=uplink_seconds',
    ),
    ({'cohort_sampler': 'kvib'}, 'it has --cohort_sampler=kvib, so that'),
    ({'dropout_rate': 0.2}, 'it has --dropout_rate=0.2, so that its norms'),
    ({'num_rounds': 5}, 'its norms.csv has 5 of 9 rounds'),
  ],
)
def test_runs_that_cannot_be_replayed_are_left_out(
  tmp_path, capsys, settings, reason
):
  write_run(tmp_path / 'run', **settings)
  with pytest.raises(SystemExit, match='no finished run with a norms.csv'):
    threshold.compare(results_dir=str(tmp_path), controllers=ONE)
  assert f'run is left out: {reason}' in capsys.readouterr().err


@pytest.mark.parametrize('sizes', [[32], [32, 0, 32]])
def test_runs_with_too_few_norms_are_left_out(tmp_path, capsys, sizes):
  bits = 10**8 * np.arange(1, len(sizes) + 1)
  folder = made_up.write_run(
    tmp_path / 'run', bits=bits, accuracy=[0.5] * len(sizes)
  )
  writer = norms_lib.NormsWriter(folder)
  for round_num, size in enumerate(sizes):
    writer.write(np.ones(size, np.float32), round_num)
  with pytest.raises(SystemExit, match='no finished run with a norms.csv'):
    threshold.compare(results_dir=str(tmp_path), controllers=ONE)
  message = 'the number of rounds must be at least 2, each with clients'
  assert message in capsys.readouterr().err


def test_damaged_norms_are_named(tmp_path, capsys):
  folder = write_run(tmp_path / 'run')
  (folder / 'norms.csv').write_text('round,norm_0000\n0,oops\n')
  with pytest.raises(SystemExit, match='--record_norms'):
    threshold.compare(results_dir=str(tmp_path), controllers=ONE)
  message = "left out: line 2 of its norms.csv has 'oops'"
  assert message in capsys.readouterr().err
  assert json.loads((folder / 'config.json').read_text())['seed'] == 0
