"""Checks that results/ is what its runs give."""

import pathlib

import pandas as pd
import pytest
from matplotlib import figure

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
  # and the search for the step sizes of the comparison.
  inputs = ('metrics.csv', 'authors_code_curves.csv', 'compare_tuning.csv')
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


def test_verdicts_in_the_readme_are_replaced():
  text = (PUBLISHED / 'README.md').read_text()
  without = results.replace_verdicts(text, [])
  assert '| 1. ' not in without and '| 1. ' in text
  assert without.split('<!-- End. -->')[1] == text.split('<!-- End. -->')[1]


def test_readme_shows_each_figure_once():
  text = (PUBLISHED / 'README.md').read_text()
  for path in PUBLISHED.rglob('*.png'):
    assert text.count(f'({path.relative_to(PUBLISHED).as_posix()})') == 1, path
