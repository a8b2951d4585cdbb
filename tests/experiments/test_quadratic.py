"""Tests of the program that measures what the theorems bound."""

import csv
import pathlib
import subprocess
import sys
import types

import pytest

from experiments import quadratic
from experiments.theory import bounds
from experiments.theory import counterexamples

_ROOT = pathlib.Path(__file__).parents[2]
UNEQUAL_WEIGHTS = counterexamples.examples()[0]


def settings(**changed):
  return types.SimpleNamespace(
    **{
      'theorems': ['13', '15', '17', '18'],
      'num_clients': 6,
      'expected_clients': 2.0,
      'dimension': 2,
      'heterogeneity': 0.5,
      'strong_convexity': 0.5,
      'noise_slope': 0.5,
      'noise_variance': 0.1,
      'local_steps': 2,
      'start': 1.0,
      'repeats': 50,
      'rounds': 3,
      'seed': 0,
      **changed,
    }
  )


def test_program_prints_and_writes_all(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(counterexamples, 'examples', lambda: [UNEQUAL_WEIGHTS])
  monkeypatch.setattr(quadratic, '_HETEROGENEITIES', (0.0, 1.0))
  assert quadratic.run(settings(), tmp_path)
  printed = capsys.readouterr().out
  for number in (13, 15, 17, 18):
    assert f'\nTheorem {number}: E' in printed
  assert 'VIOLATED: the stated bounds of Theorems 13,' in printed
  assert printed.endswith('All repaired bounds hold.\n')
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    'bounds.csv',
    'examples.csv',
    'neighbourhood.csv',
    'step_sizes.csv',
  ]
  with open(tmp_path / 'bounds.csv') as file:
    rows = list(csv.DictReader(file))
  # Three rounds of four samplings and 3 + 3 + 5 + 5 settings.
  assert len(rows) == 3 * 4 * 16
  assert {row['round'] for row in rows} == {'1', '2', '3'}
  for row in rows:
    values = {
      name: float(row[name] or 'nan')
      for name in ('measured', 'stated_bound', 'stated_excess')
    }
    assert values['stated_excess'] == pytest.approx(
      values['measured'] - values['stated_bound'], abs=1e-12
    )
    assert float(row['stated_from_start']) >= 0.99 * values['stated_bound'] or (
      row['theorem'] in ('15', '18')
    )


def test_program_fails_if_a_repaired_bound_is_violated(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(counterexamples, 'examples', lambda: [UNEQUAL_WEIGHTS])
  monkeypatch.setattr(quadratic, '_HETEROGENEITIES', (0.0,))
  monkeypatch.setattr(bounds.Theorem13, 'repaired', bounds.Theorem13.stated)
  assert not quadratic.run(settings(theorems=['13']), tmp_path)
  assert 'REPAIRED BOUND VIOLATED' in capsys.readouterr().out


def test_program_and_figures_load_no_tensorflow():
  # So that --help and the start take no more than two seconds.
  code = (
    'import sys, experiments.quadratic, plots.theory;'
    ' sys.exit("tensorflow" in sys.modules)'
  )
  subprocess.run([sys.executable, '-c', code], check=True)


def test_numbers_of_the_page_are_those_of_the_results():
  with open(_ROOT / 'results' / 'theory' / 'examples.csv') as file:
    examples = {row['name']: row for row in csv.DictReader(file)}
  row = examples['step size without gamma, OCS']
  assert float(row['measured']) == pytest.approx(2.57e-6, abs=5e-9)
  assert 6 * float(row['standard_error']) == pytest.approx(0.26e-6, abs=5e-9)
  assert float(row['stated_bound']) == pytest.approx(2.18e-6, abs=5e-9)
  row = examples['global step size far below its limit']
  assert float(row['measured']) == pytest.approx(0.980, abs=5e-4)
  assert float(row['stated_bound']) == pytest.approx(0.957, abs=5e-4)
  with open(_ROOT / 'results' / 'theory' / 'bounds.csv') as file:
    rows = list(csv.DictReader(file))
  # On the default problem all stated bounds hold in all rounds.
  assert {row['stated_violated'] for row in rows} == {'False'}
  last = {
    row['sampling']: float(row['measured'])
    for row in rows
    if (row['theorem'], row['step'], row['global_step'], row['round'])
    == ('18', '1', 'smallest', '20')
  }
  assert [last[s] for s in ('full', 'ocs', 'uniform')] == pytest.approx(
    [0.0704, 0.0755, 0.0788], abs=5e-5
  )
