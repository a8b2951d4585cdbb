"""Tests of the figures of the theorems."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
from matplotlib import figure

from plots import theory

CONFIG = {
  'num_clients': 8,
  'expected_clients': 3.0,
  'dimension': 4,
  'heterogeneity': 0.5,
  'noise_slope': 0.5,
  'noise_variance': 0.1,
  'repeats': 200,
}
SAMPLINGS = ('full', 'uniform', 'ocs', 'aocs')


def bound_rows(numbers=(13, 15, 17, 18)):
  return [
    {
      'theorem': number,
      'sampling': sampling,
      'step': step,
      'global_step': 'smallest' if number > 15 else '',
      'round': k,
      'measured': 0.5**k * (1 + index),
      'stated_from_start': 3 * 0.5**k * (1 + index),
      # No repaired bound for that of Theorem 18.
      'repaired_from_start': '' if number == 18 else 4 * 0.5**k * (1 + index),
    }
    for number in numbers
    for index, sampling in enumerate(SAMPLINGS)
    for step in ('0.5', '1')
    for k in (1, 2, 3)
  ]


def neighbourhood_rows():
  return [
    {
      'sampling': sampling,
      'expected_clients': m,
      'step_size': 0.03,
      'measured': 0.1 / m,
      'repaired': 1 / m,
    }
    for sampling, ms in (('full', [8]), ('uniform', [1, 8]), ('ocs', [1, 8]))
    for m in ms
  ]


def step_size_rows():
  return [
    {
      'heterogeneity': heterogeneity,
      'sampling': sampling,
      'expected_clients': 3.0,
      'largest_stable': 2 - index * heterogeneity / 2,
      'limit': 0.5,
    }
    for heterogeneity in (0.0, 1.0)
    for index, sampling in enumerate(('full', 'ocs', 'uniform'))
  ]


@pytest.fixture
def results(tmp_path):
  folder = tmp_path / 'results'
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps(CONFIG))
  for name, rows in (
    ('bounds', bound_rows()),
    ('neighbourhood', neighbourhood_rows()),
    ('step_sizes', step_size_rows()),
  ):
    with open(folder / f'{name}.csv', 'w', newline='') as file:
      writer = csv.DictWriter(file, list(rows[0]))
      writer.writeheader()
      writer.writerows(rows)
  return folder


@pytest.fixture
def drawn(results, tmp_path, monkeypatch):
  """The three figures by their names."""
  figures = {}

  def save(fig, path, **unused_kwargs):
    path.touch()
    figures[path.name.split('.')[0]] = fig

  monkeypatch.setattr(figure.Figure, 'savefig', save)
  theory.draw(str(results), str(tmp_path / 'figures'))
  return figures


def by_color(axis):
  """Pairs of a solid and a dashed line, by colour."""
  pairs = {}
  for line in axis.lines:
    pairs.setdefault(line.get_color(), []).append(line)
  for solid, dashed in pairs.values():
    assert solid.get_linestyle() == '-'
    assert dashed.get_linestyle() == '--'
  return pairs


def test_bounds_and_measurements_stand_side_by_side(drawn):
  axes = drawn['theory_bounds'].axes
  assert [axis.get_title().split('\n')[0] for axis in axes] == [
    f'Theorem {number}' for number in (13, 15, 17, 18)
  ]
  for axis, factor in zip(axes, (4, 4, 4, 3)):
    pairs = by_color(axis)
    assert len(pairs) == 3
    for index, (solid, dashed) in enumerate(pairs.values()):
      expected = (1 + index) * np.array([0.5, 0.25, 0.125])
      np.testing.assert_array_equal(solid.get_xdata(), [1, 2, 3])
      np.testing.assert_allclose(solid.get_ydata(), expected)
      np.testing.assert_allclose(dashed.get_ydata(), factor * expected)
    low, high = axis.get_ylim()
    assert low <= 0.125
    assert high >= 4 * 1.5
    assert np.log10([low, high]) % 1 == pytest.approx([0, 0])


def test_neighbourhoods_are_by_m_and_full_participation_is_level(drawn):
  (axis,) = drawn['theory_neighbourhood'].axes
  full, uniform, ocs = by_color(axis).values()
  np.testing.assert_allclose(full[0].get_ydata(), [0.1 / 8, 0.1 / 8])
  np.testing.assert_allclose(full[0].get_xdata(), [1, 8])
  for pair in (uniform, ocs):
    np.testing.assert_allclose(pair[0].get_ydata(), [0.1, 0.1 / 8])
    np.testing.assert_allclose(pair[1].get_ydata(), [1, 1 / 8])


def test_step_sizes_are_by_heterogeneity(drawn):
  (axis,) = drawn['theory_step_sizes'].axes
  full, uniform, ocs = by_color(axis).values()
  np.testing.assert_allclose(full[0].get_ydata(), [2, 2])
  np.testing.assert_allclose(uniform[0].get_ydata(), [2, 1])
  np.testing.assert_allclose(ocs[0].get_ydata(), [2, 1.5])
  np.testing.assert_allclose(ocs[1].get_ydata(), [0.5, 0.5])
  assert axis.get_ylim()[0] == 0


def test_captions_and_legends(drawn):
  for name, with_m in (
    ('theory_bounds', True),
    ('theory_neighbourhood', False),
    ('theory_step_sizes', True),
  ):
    fig = drawn[name]
    # A line break within a formula would show its source.
    lines = fig.get_supxlabel().split('\n')
    assert all(line.count('$') % 2 == 0 for line in lines)
    caption = ' '.join(lines)
    assert caption.startswith('Quadratics')
    assert 'n=8, d=4, M=0.5, $\\sigma^2$=0.1' in caption
    assert 'Dashed: ' in caption
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    m = ', m=3' if with_m else ''
    assert labels == ['full participation', f'uniform{m}', f'OCS{m}']


def test_one_theorem_alone(tmp_path):
  path = tmp_path / 'x.png'
  rows = pd.DataFrame(bound_rows((17,)))
  theory.plot_bounds(rows, 3.0, [path], caption='made-up numbers.')
  assert path.stat().st_size > 1000


def test_all_figures_are_written(results, tmp_path):
  theory.draw(str(results), str(tmp_path / 'figures'))
  figures = sorted((tmp_path / 'figures').iterdir())
  assert [path.name for path in figures] == [
    f'theory_{name}.{ending}'
    for name in ('bounds', 'neighbourhood', 'step_sizes')
    for ending in ('pdf', 'png')
  ]
  assert all(path.stat().st_size > 1000 for path in figures)


def test_zeros_have_no_place_on_a_logarithmic_axis(results, tmp_path):
  """As without noise, where the minimiser is found exactly."""
  rows = pd.DataFrame(neighbourhood_rows())
  rows.loc[0, 'measured'] = 0
  for number_of_zeros in (1, len(rows)):
    rows.loc[: number_of_zeros - 1, ['measured', 'repaired']] = 0
    rows.to_csv(results / 'neighbourhood.csv', index=False)
    theory.draw(str(results), str(tmp_path / 'figures'))
    path = tmp_path / 'figures' / 'theory_neighbourhood.png'
    assert path.stat().st_size > 1000
    path.unlink()


def test_missing_results_are_named(results, tmp_path):
  (results / 'neighbourhood.csv').unlink()
  with pytest.raises(
    theory.TheoryError,
    match=r'there is no neighbourhood\.csv in .*experiments\.quadratic writes',
  ):
    theory.draw(str(results), str(tmp_path / 'figures'))
  assert not (tmp_path / 'figures').exists()
