"""Tests of experiments.dropouts."""

import pathlib

import numpy as np
import pandas as pd
import pytest
from absl import flags

from experiments import dropouts
from experiments.theory import dropouts as dropouts_lib
from tests.experiments import linear
from tests.experiments import test_threshold
from tests.plots import made_up
from tff_ocs.records import norms as norms_lib
from tff_ocs.records import runs

ROOT = pathlib.Path(__file__).parents[2]
# Half of the last digit shown, and room for another order of sums.
ROUNDING = 0.0006


def measure(folder, **changed):
  dropouts.measure(
    **{
      'results_dir': None,
      'num_clients': 8,
      'expected_clients': None,
      'rates': [0.0, 0.2],
      'num_draws': 200,
      'seed': 0,
      'output_dir': str(folder),
      **changed,
    }
  )
  return pd.read_csv(folder / 'dropouts.csv', keep_default_na=False)


def test_program_prints_and_writes_what_it_measures(tmp_path, capsys):
  table = measure(tmp_path / 'a')
  text = capsys.readouterr().out
  assert (tmp_path / 'a' / 'dropouts.md').read_text() == text
  # Two kinds of rates, two rates, and 15 cases.
  assert len(table) == 2 * 2 * 15
  assert set(table['expected_clients']) == {3.0}
  without = table[table['mean_rate'] == 0]
  assert without['bias'].max() < 1e-10
  lines = [line for line in text.splitlines() if line.startswith('| AOCS | ')]
  # Rates of 0 are not shown.
  assert lines[1].startswith('| AOCS | before the update | 0.200 | 0.800 | ')
  titles = [line for line in text.splitlines() if line.startswith('**')]
  assert titles == [
    '**A synthetic cohort of 8 clients; m=3; mean dropout probabilities,'
    f' {kind}.**'
    for kind in ('equal', 'growing with n_i')
  ]
  # The same flags give the same bits.
  measure(tmp_path / 'b')
  for name in ('dropouts.csv', 'dropouts.md'):
    first, second = ((tmp_path / run / name).read_bytes() for run in 'ab')
    assert first == second


def test_rates_of_0_alone_are_shown(tmp_path, capsys):
  measure(tmp_path, rates=[0.0])
  assert '| full | before any report | 0.000 | 1.000 | ' in (
    capsys.readouterr().out
  )


def test_cohorts_are_those_of_the_last_rounds_of_recorded_runs(tmp_path):
  # 9 rounds of 32 clients; one of the last has no update.
  for name, settings in (
    ('a', {}),
    ('b', {'seed': 1, 'client_weighting': 'uniform'}),
  ):
    folder = test_threshold.write_run(tmp_path / name, **settings)
    norms = norms_lib.read_norms(folder)[-1]
    norms[-1] = 0
    norms_lib.NormsWriter(folder).write(norms.astype(np.float32), 8)
  by_examples, equal = (
    cohort
    for name in ('a', 'b')
    for cohort in dropouts.read_cohorts(str(tmp_path / name), None, 0)
  )
  norms = norms_lib.read_norms(tmp_path / 'a')[-1]
  examples = runs.read_run(tmp_path / 'a').metrics['cohort_examples'].iloc[-1]
  assert by_examples.expected_clients == equal.expected_clients == 3
  assert by_examples.pool.weights.sum() == pytest.approx(examples)
  np.testing.assert_allclose(by_examples.pool.norms, norms[:-1])
  # All ||U_i|| are equal.
  sizes = np.linalg.norm(by_examples.pool.updates, axis=-1)
  assert np.ptp(sizes) < 1e-12 * sizes[0]
  np.testing.assert_array_equal(equal.pool.weights, np.ones(32))
  np.testing.assert_allclose(
    equal.pool.norms, norms_lib.read_norms(tmp_path / 'b')[-1]
  )
  assert 'seed 1, the last round with 32 clients' in equal.title


def test_recorded_runs_are_measured(tmp_path, capsys):
  test_threshold.write_run(tmp_path / 'runs' / 'a')
  table = measure(
    tmp_path / 'out',
    results_dir=str(tmp_path / 'runs'),
    expected_clients=5.0,
    rates=[0.1],
  )
  capsys.readouterr()
  assert set(table['expected_clients']) == {5.0}
  of_aocs = table[(table['method'] == 'AOCS') & (table['rates'] == 'equal')]
  between = of_aocs[(of_aocs['lost'] == 'between') & (of_aocs['variant'] == '')]
  assert between['along'].item() == pytest.approx(0.9)


def test_runs_with_different_settings_are_not_put_together(tmp_path):
  for step_size in (0.125, 0.25):
    folder = tmp_path / f'step_{step_size}'
    test_threshold.write_run(folder, client_learning_rate=step_size)
  with pytest.raises(runs.RunsError, match='differ in client_learning_rate'):
    list(dropouts.read_cohorts(str(tmp_path), None, 0))


def test_one_round_is_enough(tmp_path):
  folder = made_up.write_run(tmp_path / 'a', bits=[10**8], accuracy=[0.5])
  norms_lib.NormsWriter(folder).write(np.ones(5, np.float32), 0)
  metrics = pd.read_csv(folder / 'metrics.csv').assign(cohort_examples=100)
  metrics.to_csv(folder / 'metrics.csv', index=False)
  (cohort,) = dropouts.read_cohorts(str(tmp_path), None, 0)
  assert len(cohort.pool.weights) == 5


@pytest.mark.parametrize('norms', [None, np.zeros(3, np.float32)])
def test_runs_without_an_update_are_not_enough(tmp_path, norms):
  if norms is not None:
    folder = test_threshold.write_run(tmp_path / 'a')
    norms_lib.NormsWriter(folder).write(norms, 8)
  with pytest.raises(runs.RunsError, match='--results_dir=.*--record_norms'):
    list(dropouts.read_cohorts(str(tmp_path), None, 0))


@pytest.mark.parametrize(
  'argument',
  ['--rates=0.1,1', '--rates=0.1,0.10', '--rates=nan', '--expected_clients=0']
  + ['--draws=1', '--num_clients=1'],
)
def test_wrong_flag_is_named(argument):
  with pytest.raises(flags.Error, match=f'flag --{argument[2:6]}'):
    linear.parse(dropouts, argument)


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['here'], "unexpected argument 'here'"),
    (['--results_dir=no_such_folder'], 'no_such_folder'),
    (
      ['--results_dir=runs', '--num_clients=32'],
      '--num_clients=32 cannot be combined with --results_dir',
    ),
  ],
)
def test_what_cannot_be_measured_is_named_and_nothing_is_written(
  tmp_path, monkeypatch, arguments, message
):
  monkeypatch.chdir(tmp_path)
  values = flags.FlagValues()
  dropouts.define_flags(values)
  argv = values(['dropouts', *arguments])
  monkeypatch.setattr(flags, 'FLAGS', values)
  with pytest.raises(SystemExit, match=message):
    dropouts.main(argv)
  assert not list(tmp_path.iterdir())


def test_page_shows_what_the_program_measures(tmp_path, capsys):
  table = measure(tmp_path, num_clients=32, rates=[0.1], num_draws=20000)
  capsys.readouterr()
  table = table[table['lost'] == dropouts_lib.BETWEEN].set_index(
    ['method', 'variant', 'rates']
  )
  page = (ROOT / 'docs' / 'protocol.md').read_text()
  _, _, section = page.partition('\n### Between the norm and the update\n')
  _, _, section = section.partition('| Equal r_i: bias |')
  compared = 0
  for line in section.partition('\n\n')[0].splitlines()[2:]:
    methods, variant, *cells = (
      cell.strip() for cell in line.strip('| ').split('|')
    )
    for method in methods.split(', '):
      measured = [
        table.loc[(method, '' if variant == '–' else variant, kind), name]
        for kind in dropouts_lib.RATES
        for name in ('bias', 'along', 'std')
      ]
      np.testing.assert_allclose(
        measured, [float(cell) for cell in cells], rtol=0, atol=ROUNDING
      )
      compared += 1
  # All cases of clients that are lost before the update.
  assert compared == len(table) / 2
  # The numbers of the text below.
  text = ' '.join(section.partition('## ')[0].split())
  numbers = []
  for method in ('AOCS', dropouts_lib.ONE_TRIP):
    row = table.loc[(method, '', 'growing with n_i')]
    sideways = np.sqrt(row['bias'] ** 2 - (1 - row['along']) ** 2)
    equal = table.loc[(method, '', 'equal')]
    error = np.hypot(equal['bias'], equal['std'])
    numbers.append((f'{sideways / row["along"]:.3f}', f'{error:.2f}'))
  (of_aocs, error_of_aocs), (of_one_trip, error_of_one_trip) = numbers
  assert (
    'where r_i grows, the part of the expected aggregate that is perpendicular'
    f' to G is {of_aocs} of the part along G (one round trip: {of_one_trip}).'
  ) in text
  assert (
    f'is {error_of_aocs} for AOCS and {error_of_one_trip} for one round trip'
  ) in text
