"""Tests of the comparison of samplers."""

import re
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from absl import flags

from experiments import compare
from experiments.campaigns import jobs
from plots import comparison
from tests.experiments import linear
from tff_ocs.records import clients
from tff_ocs.records import runs


def run(*arguments):
  """Runs the program with the given command line, in this process."""
  values = flags.FlagValues()
  compare.define_flags(values)
  argv = values(['compare', *arguments])
  with mock.patch.object(flags, 'FLAGS', values):
    compare.main(argv)


def test_all_methods_are_tried_with_the_same_budget(capsys):
  with pytest.raises(SystemExit) as raised:
    run('--dry_run', '--', '--batch_size=10')
  assert not raised.value.code
  lines = capsys.readouterr().out.splitlines()
  # 3 data sets, 14 methods, 5 step sizes.
  assert len(lines) == 3 * 14 * 5
  for line in lines:
    is_sampler = '--cohort_sampler=' in line
    is_combined = is_sampler and '--sampling=threshold' in line
    n = 3 if is_sampler and not is_combined else 32
    assert f' --clients_per_round={n} ' in line
    assert ' --expected_clients=3 ' in line
    assert ' --total_rounds=41 ' in line
    assert ' --rounds_per_eval=5 ' in line
    assert ' --holdout_fraction=0.1 ' in line
  assert sum('--unbalanced_set=none' in line for line in lines) == 70


# A sampler of the user's own.
OF_USER = """
from tff_ocs import cohorts

class Mine(cohorts.MultinomialCohorts):
  pass
"""


@pytest.fixture(scope='module')
def compared(tmp_path_factory):
  """The folder of a small comparison, after it was run twice."""
  folder = tmp_path_factory.mktemp('compared')
  of_user = tmp_path_factory.mktemp('of_user') / 'mine.py'
  of_user.write_text(OF_USER)
  arguments = (
    '--experiments=femnist_3',
    f'--methods=power_of_choice,{of_user}:Mine',
    '--clients_per_round=4',
    '--expected_clients=2',
    '--total_rounds=4',
    '--tuning_rounds=3',
    '--grid=0.25,0.0001',
    '--repeats=2',
    f'--output_dir={folder}',
    '--',
    '--data_source=synthetic',
    '--rounds_per_eval=2',
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jobs, 'run_jobs', linear.run_jobs)
    patch.setattr(compare, '_TUNING_SEEDS', 2)
    # The linear task, which is called synthetic, has them.
    patch.setattr(compare, '_check_data', lambda extra_flags: None)
    run(*arguments)
    first = (folder / 'compare.csv').read_bytes()
    run(*arguments)  # From the runs that exist.
  assert (folder / 'compare.csv').read_bytes() == first
  return folder


def test_table_is_that_of_the_runs(compared):
  table = pd.read_csv(compared / 'compare.csv')
  assert list(table['method']) == ['Power-of-Choice, n=2', 'mine.py:Mine, n=2']
  assert list(table['seeds']) == [2, 2]
  # 0.0001 learns nothing in 4 rounds.
  assert list(table['step_size']) == [0.25, 0.25]
  for row, method in zip(
    table.to_dict('records'), ('power_of_choice', 'mine_Mine')
  ):
    folders = [
      compared / f'femnist_3_{method}_lr0.25_seed{seed}' for seed in (0, 1)
    ]
    final = [
      runs.read_run(folder).metrics['validation_accuracy'].iloc[-1]
      for folder in folders
    ]
    assert row['accuracy_median'] == pytest.approx(np.mean(final))
    assert row['accuracy_low'] == min(final)
    assert row['accuracy_high'] == max(final)
    worst = [
      clients.describe(clients.read_clients(folder)).worst for folder in folders
    ]
    assert row['worst_clients_median'] == pytest.approx(np.mean(worst))
  assert {path.name for path in compared.glob('compare*')} == {
    'compare.csv',
    'compare_runs.csv',
    'compare_curves.csv',
    'compare_tuning.csv',
    'compare.md',
    'compare.png',
    'compare.pdf',
  }


def choose(curves_of):
  """The choices and the table, from the curves of step sizes and seeds.

  Args:
    curves_of: By method and step size, the accuracies of each seed.
  """
  values = flags.FlagValues()
  compare.define_flags(values)
  values(['compare', '--experiments=femnist_1', '--grid=0.5,0.25,0.125'])
  values.methods = list(curves_of)

  def read_run(path):
    method, step_size, seed = re.fullmatch(
      r'femnist_1_(\w+)_lr([\d.]+)_seed(\d)_holdout', path.name
    ).groups()
    metrics = pd.DataFrame(
      {
        'validation_accuracy': curves_of[method][float(step_size)][int(seed)],
        'validation_loss': 1.0,
        'non_finite_clients': 0,
        'training_loss': 1.0,
      }
    )
    return runs.Run(path, None, metrics)

  with (
    mock.patch.object(compare, 'campaign'),
    mock.patch.object(compare.runs, 'read_run', read_run),
  ):
    chosen, table = compare.choose_step_sizes(values, [])
  return [of.step_size for of in chosen], table


def test_best_step_size_has_the_best_mean_of_the_last_three_evaluations(capsys):
  nan = float('nan')
  chosen, _ = choose(
    {
      'full': {
        # Best at the end, and best before.
        0.5: [[0.1, nan, 0.4, nan, 0.1, nan, 0.9]] * 3,
        0.25: [[0.1, nan, 0.6, nan, 0.6, nan, 0.6]] * 3,
        0.125: [[0.9, nan, 0.5, nan, 0.5, nan, 0.5]] * 3,
      }
    }
  )
  assert chosen == [0.25]
  assert not capsys.readouterr().out


def test_two_best_step_sizes_are_judged_by_all_seeds():
  chosen, table = choose(
    {
      'aocs': {
        # The first diverges with another seed. The last is not run with more.
        0.5: [[0.9], [0.1], [0.9]],
        0.25: [[0.8], [0.7], [0.6]],
        0.125: [[0.75]],
      }
    }
  )
  assert chosen == [0.25]
  assert table['step_size'].tolist() == [0.5, 0.25, 0.125]
  assert table['seeds'].tolist() == [3, 3, 1]
  np.testing.assert_allclose(table['holdout_accuracy'], [1.9 / 3, 0.7, 0.75])


def test_best_step_size_at_the_end_of_the_grid_is_reported(capsys):
  chosen, _ = choose(
    {
      'full': {0.5: [[0.7]] * 3, 0.25: [[0.8]] * 3, 0.125: [[0.6]]},
      'aocs': {0.5: [[0.7]] * 3, 0.25: [[0.6]] * 3, 0.125: [[0.5]]},
    }
  )
  assert chosen == [0.25, 0.5]
  (line,) = capsys.readouterr().out.splitlines()
  assert line.startswith('femnist_1, aocs: the best step size of --grid, 0.5,')


def test_data_without_clients_to_validate_on_is_refused():
  with pytest.raises(SystemExit, match='bundled has no validation examples by'):
    run('--', '--data_source=bundled')


@pytest.mark.parametrize(
  ('flags_before', 'flag', 'message'),
  [
    (
      ['--methods=full,osmd'],
      '--dropout_rate=0.1',
      'femnist_1_osmd_lr0.5_seed0.*--cohort_sampler=osmd cannot be combined',
    ),
    (
      ['--methods=full'],
      '--availability=0.5',
      '--simulate_devices cannot be combined with --availability=0.5',
    ),
    (['--expected_clients=40'], '--batch_size=9', '=40 must be at most .*=32'),
    (
      ['--methods=full,absent.py:Mine'],
      '--batch_size=9',
      '--methods=absent.py:Mine: there is no file absent.py',
    ),
  ],
)
def test_flags_are_checked_before_the_first_run(
  flags_before, flag, message, tmp_path
):
  with pytest.raises(SystemExit, match=message):
    run(*flags_before, f'--output_dir={tmp_path}', '--', flag)
  assert not list(tmp_path.iterdir())


def test_sampler_of_a_file_is_a_method(capsys, tmp_path):
  file = tmp_path / 'mine.py'
  file.write_text('')
  with pytest.raises(SystemExit) as raised:
    run('--dry_run', f'--methods=full,{file}:Mine', '--grid=0.5')
  assert not raised.value.code
  full, mine, *_ = capsys.readouterr().out.splitlines()
  assert '--cohort_sampler' not in full
  assert f'--cohort_sampler={file}:Mine --clients_per_round=3 ' in mine
  assert '--run_name=femnist_1_mine_Mine_lr0.5_seed0_holdout ' in mine


def test_accuracies_of_the_search_are_written(compared):
  table = pd.read_csv(compared / 'compare_tuning.csv')
  assert list(table.columns) == [
    'experiment',
    'method',
    'step_size',
    'seeds',
    'holdout_accuracy',
  ]
  assert (table['seeds'] == 2).all()  # There are two step sizes.
  best = table.loc[table.groupby('method')['holdout_accuracy'].idxmax()]
  chosen = pd.read_csv(compared / 'compare.csv')
  assert len(table) == 2 * len(chosen) == 4
  assert set(best['step_size']) >= set(chosen['step_size'])


def test_runs_of_another_program_are_refused(compared):
  former = runs.read_run(compared / 'femnist_3_power_of_choice_lr0.25_seed1')
  metrics = former.metrics.drop(columns='simulated_examples')
  with pytest.raises(runs.RunsError, match='remove this folder to run it'):
    comparison.read_costs(runs.Run(former.path, former.settings, metrics))


def test_results_follow_from_the_table_of_the_runs(compared, tmp_path):
  comparison.write_results(tmp_path, comparison.read_results(compared))
  for name in ('compare_runs.csv', 'compare.csv', 'compare.md'):
    assert (tmp_path / name).read_bytes() == (compared / name).read_bytes()
  assert '4 rounds, m=2, 2 seeds.' in (tmp_path / 'compare.md').read_text()


def test_costs_add_up(compared):
  result = runs.read_run(compared / 'femnist_3_power_of_choice_lr0.25_seed0')
  metrics = result.metrics
  costs = comparison.read_costs(result)
  assert len(costs) == 4
  last = costs.iloc[-1]
  assert last['bits'] == metrics['uplink_bits'].sum()
  assert last['seconds'] == pytest.approx(metrics['simulated_seconds'].sum())
  assert last['examples'] == pytest.approx(
    metrics['cohort_examples'].sum() + metrics['candidate_examples'].sum() / 3
  )
  assert last['uplink_seconds'] == pytest.approx(
    metrics['simulated_uplink_seconds'].sum()
  )
  assert metrics['candidate_examples'].min() > 0


@pytest.mark.parametrize(
  ('accuracies', 'lasting', 'first_hit'),
  [
    ([0.5, 0.86, 0.84, 0.9], [4, 44, 0.4, 0.8], [2, 22, 0.2, 0.4]),
    ([0.9, 0.86, 0.86, 0.9], [1, 11, 0.1, 0.2], [1, 11, 0.1, 0.2]),
    ([0.9, np.nan, np.nan, 0.84], [np.nan] * 4, [1, 11, 0.1, 0.2]),
    ([0.8, np.nan, np.nan, 0.84], [np.nan] * 4, [np.nan] * 4),
  ],
)
def test_costs_are_those_of_a_lasting_accuracy_and_of_the_first_hit(
  compared, accuracies, lasting, first_hit
):
  former = runs.read_run(compared / 'femnist_3_power_of_choice_lr0.25_seed1')
  metrics = pd.DataFrame(
    {
      'round': [0, 1, 2, 3],
      'validation_accuracy': accuracies,
      'cumulative_uplink_bits': [1, 2, 3, 4],
      'simulated_examples': 11,
      'simulated_seconds': 0.1,
      'simulated_uplink_seconds': 0.2,
    }
  )
  row = comparison.measure(
    'femnist_3',
    0.25,
    runs.Run(former.path, former.settings, metrics),
    clients.read_clients(former.path),
  )
  np.testing.assert_allclose(
    [row[f'{cost}_to_target'] for cost in comparison.COSTS], lasting
  )
  np.testing.assert_allclose(
    [row[f'{cost}_at_first_hit'] for cost in comparison.COSTS], first_hit
  )
  assert row['uplink_seconds_a_round'] == pytest.approx(0.2)
  assert row['accuracy'] == accuracies[-1]


@pytest.fixture
def of_runs():
  """A table of two runs, one of which does not stay at the target."""
  return pd.DataFrame(
    {
      'experiment': 'femnist_1',
      'data': 'made-up numbers, set 1',
      'method': 'OCS, m=3',
      'step_size': 0.125,
      'seed': [0, 1],
      'rounds': 4,
      'accuracy': [0.9, 0.7],
      'worst_clients': [0.5, 0.3],
      'std_over_clients': [0.1, 0.2],
      'seconds_a_round': [60.0, 61.0],
      'uplink_seconds_a_round': [1511.0, 1515.0],
      'bits_to_target': [2e9, np.nan],
      'examples_to_target': [1234.0, np.nan],
      'seconds_to_target': [7200.0, np.nan],
      'uplink_seconds_to_target': [1800.0, np.nan],
      'bits_at_first_hit': [1e8, 3e8],
      'examples_at_first_hit': [100.0, 300.0],
      'seconds_at_first_hit': [1.0, 2.0],
      'uplink_seconds_at_first_hit': [3.0, 4.0],
    }
  )


def _last_row(of_runs):
  table = comparison.tabulate(of_runs)
  text = comparison.format_markdown(table, 'Made up.')
  return next(line for line in text.splitlines() if 'OCS, m=3' in line)


def test_table_has_medians_and_the_range_over_the_seeds(of_runs):
  of_three = pd.concat([of_runs, of_runs.head(1)]).assign(seed=[0, 1, 2])
  of_three['bits_to_target'] = [2e9, np.nan, 3.5e9]
  of_three['accuracy'] = [0.9, 0.7, 0.85]
  assert _last_row(of_three) == (
    '| made-up numbers, set 1: OCS, m=3 | 2^-3 | 85 (70 – 90) | 50 (30 – 50)'
    ' | 10 | 3.5 (2 – ∞) | 0.1 (0.1 – 0.3) | 1.23 | 2 | 0.5 | 60 | 1,510 |'
  )


def test_median_of_seeds_of_which_half_reach_the_target_is_infinite(of_runs):
  assert _last_row(of_runs) == (
    '| made-up numbers, set 1: OCS, m=3 | 2^-3 | 80 (70 – 90) | 40 (30 – 50)'
    ' | 15 | ∞ (2 – ∞) | 0.2 (0.1 – 0.3) | ∞ | ∞ | ∞ | 60.5 | 1,510 |'
  )


def test_single_seed_has_no_range(of_runs):
  assert _last_row(of_runs.head(1)) == (
    '| made-up numbers, set 1: OCS, m=3 | 2^-3 | 90 | 50 | 10 | 2 | 0.1 | 1.23'
    ' | 2 | 0.5 | 60 | 1,510 |'
  )


def test_curves_have_what_a_run_has_cost_by_each_evaluation(compared):
  curves = pd.read_csv(compared / 'compare_curves.csv')
  assert len(curves) == 2 * 2 * 3  # Rounds 0, 2 and 3.
  of_run = curves[
    (curves['method'] == 'Power-of-Choice, n=2') & (curves['seed'] == 1)
  ]
  run = runs.read_run(compared / 'femnist_3_power_of_choice_lr0.25_seed1')
  assert of_run['round'].tolist() == [0, 2, 3]
  metrics = run.metrics.loc[[0, 2, 3]]
  for name, column in (
    ('accuracy', 'validation_accuracy'),
    ('bits', 'cumulative_uplink_bits'),
  ):
    np.testing.assert_allclose(of_run[name], metrics[column])
  assert set(curves['experiment']) == {'femnist_3'}


def test_runs_name_their_commit(compared):
  of_runs = comparison.read_results(compared)
  assert of_runs['git_commit'].str.match('[0-9a-f]{40}').all()


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--methods=oort', 'one or more different ones of full,'),
    ('--methods=full,full', 'one or more different ones of full,'),
    ('--experiments=femnist_2', 'different ones of femnist_1,femnist_3'),
    ('--grid=0', 'one or more different numbers above 0'),
    ('--repeats=0', 'repeats'),
  ],
)
def test_wrong_flags_are_refused(flag, message):
  with pytest.raises(flags.Error, match=message):
    run(flag)
