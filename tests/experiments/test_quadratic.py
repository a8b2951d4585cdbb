"""Tests of the program that measures what the theorems bound."""

import csv
import types

import pytest

from experiments import quadratic
from experiments.theory import bounds
from experiments.theory import counterexamples

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
