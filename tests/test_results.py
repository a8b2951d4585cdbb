"""Checks that results/ is what its runs give."""

import pathlib

import numpy as np
import pandas as pd
import pytest
from matplotlib import figure
from matplotlib import image
from matplotlib import pyplot as plt
from PIL import Image

from plots import comparison
from tests.plots import made_up
from tools import results

ROOT = pathlib.Path(__file__).parents[1]
PUBLISHED = ROOT / 'results'
# Only with the data set can figure 2 be drawn.
NEEDS_DATA = pathlib.Path('figures/figure_2.png')


@pytest.fixture(scope='module')
def redrawn(tmp_path_factory):
  """Everything in results/, from its runs; the figures are empty files."""
  folder = tmp_path_factory.mktemp('results')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      figure.Figure, 'savefig', lambda fig, path, **unused_kwargs: path.touch()
    )
    results.redraw(PUBLISHED, folder)
  return folder


def test_each_file_is_there_and_no_other(redrawn):
  def files(folder):
    return {
      path.relative_to(folder)
      for path in folder.rglob('*')
      if path.suffix in ('.png', '.csv', '.md')
    }

  # The inputs: runs, the output of experiments.quadratic, the authors' curves,
  # and of the comparison its curves and the search for its step sizes.
  inputs = (
    'metrics.csv',
    'authors_code_curves.csv',
    'compare_curves.csv',
    'compare_tuning.csv',
  )
  published = {
    path
    for path in files(PUBLISHED)
    if path.name not in inputs and path.parts[0] != 'theory'
  }
  assert published - {NEEDS_DATA} == files(redrawn)


def test_tables_are_those_of_the_runs(redrawn):
  paths = sorted(redrawn.rglob('*.csv'))
  assert {'claims.csv', 'summary.csv', 'figures.csv', 'participation.csv'} <= {
    path.name for path in paths
  }
  for path in paths:
    published = PUBLISHED / path.relative_to(redrawn)
    # Another processor may round the last digits differently.
    pd.testing.assert_frame_equal(
      pd.read_csv(published), pd.read_csv(path), rtol=1e-6
    )
  for path in redrawn.rglob('*.md'):
    published = PUBLISHED / path.relative_to(redrawn)
    assert published.read_text() == path.read_text(), (
      f'{path.name}: run make results'
    )


def test_runs_of_an_experiment_have_one_commit_and_one_core():
  text = (PUBLISHED / 'claims.md').read_text()
  _, _, table = text.partition('**The runs**')
  rows = [line.split('|')[1:-1] for line in table.splitlines() if '|' in line]
  assert len(rows) > 5
  for *_, commits, cores in rows[2:]:
    assert len(commits.split(',')) == 1
    assert cores.strip() == '1'


@pytest.mark.parametrize(
  'other, message',
  [
    ({'data': 'other numbers', 'clients_per_round': 16}, 'of one experiment'),
    ({'batch_size': 10}, r'two kinds of runs with \(n, m\) = \(32, 3\)'),
  ],
)
def test_participation_is_of_one_kind_of_runs(tmp_path, other, message):
  (tmp_path / 'runs').mkdir()
  made_up.write_run(tmp_path / 'runs' / 'a')
  made_up.write_run(tmp_path / 'runs' / 'b', **other)
  with pytest.raises(SystemExit, match=message):
    results.redraw_participation(tmp_path / 'runs', tmp_path / 'output')
  assert not (tmp_path / 'output').exists()


def test_comparison_is_that_of_its_curves():
  table = comparison.read_results(PUBLISHED / 'compare')
  curves = pd.read_csv(
    PUBLISHED / 'compare' / 'compare_curves.csv', float_precision='round_trip'
  )
  keys = ['experiment', 'method', 'seed']
  assert len(curves.groupby(keys)) == len(table) == 126
  of_curves = curves.set_index(keys).sort_index()
  for row in table.to_dict('records'):
    curve = of_curves.loc[tuple(row[key] for key in keys)]
    is_above = curve['accuracy'].to_numpy() >= comparison.TARGET
    assert row['accuracy'] == curve['accuracy'].iloc[-1]
    for cost in comparison.COSTS:
      found = [np.nan, *curve[cost]]
      # The first of the evaluations that are above up to the last.
      lasting = len(is_above) - np.argmin([*is_above[::-1], False])
      np.testing.assert_allclose(
        [row[f'{cost}_to_target'], row[f'{cost}_at_first_hit']],
        [
          found[lasting + 1 if lasting < len(is_above) else 0],
          found[np.argmax(is_above) + 1 if is_above.any() else 0],
        ],
      )


def test_pictures_are_stored_small_and_look_the_same(tmp_path):
  path = tmp_path / 'figure.png'
  fig, axes = plt.subplots()
  for index in range(6):
    axes.fill_between([0, 1], [index, 0], [9, index], alpha=0.2)
    axes.plot([0, 1], [index, 6 - index])
  fig.savefig(path, dpi=200)
  plt.close(fig)
  drawn, size = image.imread(path), path.stat().st_size
  results.shrink(path)
  small = image.imread(path)
  assert path.stat().st_size < 0.5 * size
  assert small.shape[:2] == drawn.shape[:2] == (960, 1280)
  np.testing.assert_allclose(small[..., :3], drawn[..., :3], atol=0.1)
  with Image.open(path) as stored:
    assert stored.info['dpi'] == pytest.approx((200, 200), rel=1e-3)
  as_stored = path.read_bytes()
  results.shrink(path)
  assert path.read_bytes() == as_stored


def test_verdicts_in_the_readme_are_replaced():
  text = (PUBLISHED / 'README.md').read_text()
  without = results.replace_verdicts(text, [])
  assert '| 1. ' not in without and '| 1. ' in text
  assert without.split('<!-- End. -->')[1] == text.split('<!-- End. -->')[1]


def test_readme_shows_each_figure_once():
  text = (PUBLISHED / 'README.md').read_text()
  for path in PUBLISHED.rglob('*.png'):
    assert text.count(f'({path.relative_to(PUBLISHED).as_posix()})') == 1, path
