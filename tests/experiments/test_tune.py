"""Tests of the search on made-up accuracies, and of a small one end to end."""

import csv
import math
import pathlib

import numpy as np
import pandas as pd
import pytest
from absl import flags

from experiments import tune
from experiments.campaigns import job as job_lib
from experiments.campaigns import jobs
from experiments.campaigns import paper_runs
from tests.experiments import linear
from tests.plots import made_up
from tff_ocs.records import runs

GRID = [0.5, 0.25, 0.125, 0.0625, 0.03125]
_NAN = float('nan')


def outcome(step_size, *accuracies, losses=(1.0,), diverged=False):
  return tune.Outcome(step_size, accuracies, losses, diverged)


def search_by(goodness, grid=GRID, names=('method',)):
  """Searches with the accuracy that a function of the step size gives.

  Args:
    goodness: A function from the name and the step size to the accuracy, or to
      `None` if training diverges.
    grid: The grid.
    names: The methods.

  Returns:
    The outcomes, and what was asked for in each wave.
  """
  waves = []

  def evaluate(pending):
    waves.append(list(pending))
    return [
      outcome(step_size, 0.99, diverged=True)
      if goodness(name, step_size) is None
      else outcome(step_size, goodness(name, step_size))
      for name, step_size in pending
    ]

  return tune.search(names, grid, evaluate), waves


def peak_at(best):
  return lambda name, step_size: 1 / (1 + abs(math.log(step_size / best)))


def steps(waves):
  return [[step_size for _, step_size in wave] for wave in waves]


def test_best_inside_of_the_grid_ends_the_search():
  outcomes, waves = search_by(peak_at(0.125))
  assert steps(waves) == [GRID]
  assert tune.choose(outcomes['method']).step_size == 0.125
  assert [o.step_size for o in outcomes['method']] == sorted(GRID)


def test_grid_is_extended_until_the_best_is_inside():
  for best, added in [
    (0.5, [1]),
    (2, [1, 2, 4]),
    (0.03125, [2**-6]),
    (2**-7, [2**-6, 2**-7, 2**-8]),
  ]:
    outcomes, waves = search_by(peak_at(best))
    assert steps(waves) == [GRID] + [[step_size] for step_size in added]
    assert tune.choose(outcomes['method']).step_size == best


def test_extension_keeps_the_ratio_at_that_end():
  _, waves = search_by(peak_at(3e-5), grid=[1e-2, 3e-3, 1e-3, 3e-4, 1e-4])
  np.testing.assert_allclose(steps(waves)[1:], [[1e-4 / 3], [1e-4 / 9]])
  _, waves = search_by(peak_at(0.03), grid=[1e-2, 3e-3, 1e-3])
  np.testing.assert_allclose(steps(waves)[1:], [[1e-1 / 3], [1 / 9]])


def test_methods_are_extended_apart_in_common_waves():
  peaks = {'up': 1, 'inside': 0.125, 'down': 2**-6}
  outcomes, waves = search_by(
    lambda name, step_size: peak_at(peaks[name])(name, step_size), names=peaks
  )
  assert waves[0] == [(name, step) for name in peaks for step in GRID]
  assert waves[1:] == [
    [('up', 1), ('down', 2**-6)],
    [('up', 2), ('down', 2**-7)],
  ]
  best = {name: tune.choose(o).step_size for name, o in outcomes.items()}
  assert best == peaks


def test_diverged_step_sizes_are_worst_and_do_not_stop_the_search():
  # All that did not diverge have an accuracy of 0.
  outcomes, waves = search_by(
    lambda name, step_size: None if step_size > 0.1 else 0.0
  )
  assert tune.choose(outcomes['method']).step_size < 0.1
  # The larger of the grid diverge, and so the best is inside.
  outcomes, waves = search_by(
    lambda name, step_size: None if step_size > 0.1 else step_size
  )
  assert steps(waves) == [GRID]
  assert tune.choose(outcomes['method']).step_size == 0.0625


def test_grid_that_diverged_is_extended_downwards():
  outcomes, waves = search_by(
    lambda name, step_size: None if step_size > 0.01 else step_size
  )
  assert steps(waves)[1:] == [[2**-6], [2**-7], [2**-8]]
  assert tune.choose(outcomes['method']).step_size == 2**-7


def test_search_has_an_end_for_each_method():
  outcomes, waves = search_by(
    lambda name, step_size: (
      step_size if name == 'ever larger' else peak_at(0.125)(name, step_size)
    ),
    names=('ever larger', 'inside'),
  )
  assert len(waves) == 1 + 10
  assert tune.next_step_size(outcomes['ever larger']) == 2**10
  assert tune.next_step_size(outcomes['inside']) is None
  outcomes, waves = search_by(lambda name, step_size: None)
  assert tune.next_step_size(outcomes['method']) == 2**-16


def test_best_is_by_mean_accuracy_then_loss_then_the_smaller_one():
  def best(*outcomes):
    return tune.choose(outcomes).step_size

  assert best(outcome(1, 0.5, 0.7), outcome(2, 0.9, 0.1)) == 1
  low_loss = outcome(2, 0.5, losses=(0.1,))
  assert best(outcome(1, 0.5), low_loss, outcome(3, 0.5)) == 2
  assert best(outcome(3, 0.5), outcome(1, 0.5), outcome(2, 0.5)) == 1


def made_up_run(accuracy=0.5, loss=1.0, training_loss=1.0, non_finite=0):
  """A run of two rounds, of which the first looks good."""
  return runs.Run(
    pathlib.Path('run'),
    made_up.settings(),
    pd.DataFrame(
      {
        'validation_accuracy': [0.9, accuracy],
        'validation_loss': [0.1, loss],
        'training_loss': [0.1, training_loss],
        'non_finite_clients': [0.0, non_finite],
      }
    ),
  )


def test_outcome_is_that_of_the_last_round():
  found = tune.read_outcome(0.5, [made_up_run(0.5, 1.0), made_up_run(0.7, 2.0)])
  assert found == tune.Outcome(0.5, (0.5, 0.7), (1.0, 2.0), False)


@pytest.mark.parametrize(
  'bad',
  [
    {'loss': _NAN},
    {'loss': math.inf},
    {'training_loss': _NAN},
    {'non_finite': 1},
  ],
)
def test_one_diverged_seed_is_enough(bad):
  good = made_up_run()
  assert tune.read_outcome(0.5, [good, made_up_run(**bad)]).diverged


def test_early_non_finite_updates_are_no_divergence():
  run = made_up_run()
  run.metrics.loc[0, 'non_finite_clients'] = 3
  run.metrics.loc[0, 'training_loss'] = _NAN
  assert not tune.read_outcome(0.5, [run]).diverged


FULL_METHOD, UNIFORM = runs.Method('full'), runs.Method('uniform', 3.0)
MADE_UP = tune.tabulate(
  {
    FULL_METHOD: [
      outcome(0.25, 0.5, 0.7, losses=(1.0, 2.0)),
      outcome(0.5, 0.8, 0.8, losses=(1.0, 1.0)),
      outcome(1, 0.9, 0.9, diverged=True),
    ],
    UNIFORM: [outcome(0.25, 0.6, 0.6), outcome(0.5, 0.5, 0.5)],
  }
)
PUBLISHED = {FULL_METHOD: 0.25, UNIFORM: 0.03}


def test_table():
  text = tune.format_markdown(MADE_UP, PUBLISHED, 'Made-up numbers.')
  assert text.splitlines() == [
    '**Made-up numbers.**',
    '',
    "| Holdout accuracy [%] | 2^-2 | 2^-1 | 2^0 | The paper's choice |",
    '| --- | ---: | ---: | ---: | ---: |',
    '| full participation | 60.0 ± 14.1 | **80.0 ± 0.0** | diverged | 2^-2 |',
    '| uniform, m=3 | **60.0 ± 0.0** | 50.0 ± 0.0 | – | 0.03 |',
  ]


def test_all_files_are_written_whole(tmp_path):
  tune.write_results(tmp_path, MADE_UP, PUBLISHED, 'Made-up numbers.')
  assert {path.name for path in tmp_path.iterdir()} == {
    f'tuning.{ending}' for ending in ('csv', 'md', 'png', 'pdf')
  }
  with (tmp_path / 'tuning.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['best'] for row in rows] == [
    'False',
    'True',
    'False',
    'True',
    'False',
  ]
  assert rows[0] == {
    'method': 'full participation',
    'step_size': '0.25',
    'seeds': '2',
    'holdout_accuracy_mean': '0.6',
    'holdout_accuracy_std': str(np.std([0.5, 0.7], ddof=1)),
    'holdout_loss_mean': '1.5',
    'diverged': 'False',
    'best': 'False',
  }
  assert rows[2]['holdout_accuracy_mean'] == ''
  assert rows[2]['diverged'] == 'True'


@pytest.fixture
def started(monkeypatch, tmp_path):
  """Records the started runs; their made-up results are best at 2^-2."""
  started = []

  def run_jobs(all_jobs, *, output_dir, name, parallel, ray_address):
    del name, parallel, ray_address
    started.append(all_jobs)
    for job in all_jobs:
      values = job.values
      step_size = float(values['client_learning_rate'])
      folder = made_up.write_run(
        pathlib.Path(output_dir, job.name),
        values['sampling'],
        float(values.get('expected_clients', 0)),
        int(values['seed']),
        client_learning_rate=step_size,
        total_rounds=41,
        # A task of one's own may draw its data by the seed.
        pool_examples=1000 + int(values['seed']),
      )
      (folder / 'metrics.csv').write_text(
        'training_loss,non_finite_clients,validation_accuracy,validation_loss\n'
        f'1,0,{peak_at(0.25)("", step_size)},1\n'
      )
    return []

  monkeypatch.setattr(jobs, 'run_jobs', run_jobs)
  return started


PAPER_RUNS = paper_runs.read('femnist_1', ['full', 'uniform'])
FULL = PAPER_RUNS[:1]


def search_in(output_dir, paper_run_list, grid, extra_flags=(), repeats=1):
  values = linear.parse(
    tune,
    '--experiment=femnist_1',
    f'--output_dir={output_dir}',
    f'--repeats={repeats}',
  )
  tune.tune(values, paper_run_list, grid, extra_flags)


def test_runs_have_the_flags_of_the_search(tmp_path, started, capsys):
  search_in(
    tmp_path, PAPER_RUNS, [0.25, 0.125], ['--data_source=synthetic'], repeats=2
  )
  names = [[job.name for job in wave] for wave in started]
  assert names == [
    [
      f'femnist_1_{method}_lr{step_size}_seed{seed}'
      for method in ('full', 'uniform_m3', 'uniform_m6')
      for step_size in step_sizes
      for seed in (0, 1)
    ]
    for step_sizes in ([0.25, 0.125], [0.5])
  ]
  added = started[1][3]
  assert added.program == 'femnist'
  assert added.values == {
    **job_lib.Job(*PAPER_RUNS[1]).values,
    'data_source': 'synthetic',
    'holdout_fraction': '0.1',
    'client_learning_rate': '0.5',
    'seed': '1',
  }
  printed = capsys.readouterr().out
  assert printed.startswith((tmp_path / 'tuning.md').read_text())
  assert printed.splitlines()[0] == (
    '**made-up numbers, set 1, n=32, in place of FEMNIST set 1. Data: made-up'
    ' numbers; source: synthetic. 41 rounds, mean ± standard deviation over 2'
    ' seeds.**'
  )
  assert printed.splitlines()[5] == (
    '| uniform, m=3 | 59.1 ± 0.0 | **100.0 ± 0.0** | 59.1 ± 0.0 | 2^-5 |'
  )
  # The table says what was tuned, so that it can be drawn and judged alone.
  table = pd.read_csv(tmp_path / 'tuning.csv')
  assert set(table['experiment']) == {'FEMNIST set 1'}
  assert set(table['title']) == {'made-up numbers, set 1'}
  assert set(table['sampling']) == {'full', 'uniform'}
  assert tune.published_of(table) == {
    runs.Method('full'): 2**-3,
    runs.Method('uniform', 3.0): 2**-5,
    runs.Method('uniform', 6.0): 2**-5,
  }
  assert tune.caption_of(table).startswith('made-up numbers, set 1, n=32, in')
  (tmp_path / 'again').mkdir()
  tune.write_results(
    tmp_path / 'again', table, tune.published_of(table), tune.caption_of(table)
  )
  for name in ('tuning.md', 'tuning.csv'):
    assert (tmp_path / 'again' / name).read_text() == (
      tmp_path / name
    ).read_text()


@pytest.mark.parametrize(
  'grid', ['', '0.5', '0.5,0.5', '0.5,0', '1,inf', 'x,y']
)
def test_grid_has_two_different_step_sizes(grid):
  with pytest.raises(flags.Error, match='two or more different numbers'):
    linear.parse(tune, '--experiment=femnist_1', f'--grid={grid}')


def test_failed_runs_end_the_search(tmp_path, monkeypatch):
  monkeypatch.setattr(
    jobs,
    'run_jobs',
    lambda all_jobs, **unused_kwargs: [
      job_lib.FailedJob(all_jobs[1], 'no memory', pathlib.Path('some.log'))
    ],
  )
  with pytest.raises(SystemExit) as raised:
    search_in(tmp_path, PAPER_RUNS, GRID)
  assert raised.value.code == (
    'error: runs failed:\n'
    'femnist_1_full_lr0.25_seed0 failed: no memory\n  log: some.log'
  )
  assert not list(tmp_path.iterdir())


def test_search_without_end_is_written_and_told(tmp_path, started):
  with pytest.raises(SystemExit, match='10 extensions .* full participation.$'):
    search_in(tmp_path, FULL, [2.0**-100, 2.0**-101])
  assert len(started) == 1 + 10
  assert '**' in (tmp_path / 'tuning.md').read_text()


def test_paper_is_within_the_default_grids():
  for experiment in paper_runs.EXPERIMENTS:
    for run in paper_runs.read(experiment, ['full', 'uniform', 'aocs']):
      grid = tune._GRIDS[run.program]
      values = job_lib.Job(*run).values
      assert float(values['client_learning_rate']) in grid


def test_search_end_to_end(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(jobs, 'run_jobs', linear.run_jobs)

  def run():
    search_in(
      tmp_path,
      FULL,
      # The first is too small to learn; the one that is added, 1e38, diverges.
      [1e-40, 0.1],
      [
        '--data_source=synthetic',
        '--clients_per_round=4',
        '--total_rounds=5',
        '--rounds_per_eval=5',
      ],
    )
    return capsys.readouterr().out

  table = run()
  assert table.startswith((tmp_path / 'tuning.md').read_text())
  with (tmp_path / 'tuning.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert [float(row['step_size']) for row in rows] == [1e-40, 0.1, 1e38]
  assert [row['best'] for row in rows] == ['False', 'True', 'False']
  assert [row['diverged'] for row in rows] == ['False', 'False', 'True']
  assert (tmp_path / 'tuning.png').stat().st_size
  assert (tmp_path / 'tuning.pdf').stat().st_size
  run_of_best = runs.read_run(tmp_path / 'femnist_1_full_lr0.1_seed0')
  assert run_of_best.config['holdout_fraction'] == 0.1
  assert 'clients held out to validate' in table
  assert (
    float(rows[1]['holdout_accuracy_mean'])
    == run_of_best.metrics['validation_accuracy'].iloc[-1]
  )
  # The same search finds all runs finished.
  assert run() == table


def test_loss_decides_where_there_is_no_accuracy():
  outcomes = [
    outcome(0.1, _NAN, losses=(3.0,)),
    outcome(0.2, _NAN, losses=(2.0,)),
    outcome(0.4, _NAN, losses=(5.0,)),
    outcome(0.8, _NAN, losses=(0.1,), diverged=True),
  ]
  assert tune.choose(outcomes).step_size == 0.2
  assert tune.next_step_size(outcomes) is None
  method = runs.Method('full')
  table = tune.tabulate({method: outcomes})
  assert tune.format_markdown(table, {method: None}, 'mine').splitlines()[
    2:
  ] == [
    '| Holdout loss | 0.1 | 0.2 | 0.4 | 0.8 |',
    '| --- | ---: | ---: | ---: | ---: |',
    '| full participation | 3 | **2** | 5 | diverged |',
  ]
