"""The programs as a user meets them: swept, summarised and drawn."""

import pytest

from tests.experiments import shell
from tff_ocs.records import runs

TINY = ('--data_source=synthetic', '--total_rounds=2', '--rounds_per_eval=1')


@pytest.fixture(scope='module')
def swept(tmp_path_factory):
  """The folder of a sweep, and what it printed."""
  folder = tmp_path_factory.mktemp('swept')
  status, output, errors = shell.run(
    'experiments.sweep',
    '--experiment=femnist_1',
    '--methods=full,aocs',
    '--expected_clients=3',
    '--repeats=1',
    f'--output_dir={folder}',
    '--',
    *TINY,
  )
  assert (status, output) == (0, ''), errors
  return folder, errors


def test_sweep_trains_what_it_is_asked_to(swept):
  folder, errors = swept
  assert '2 of 2 runs are finished' in errors and '4/4' in errors
  results = {
    path.name: runs.read_run(path) for path in folder.glob('femnist_1_*')
  }
  assert set(results) == {'femnist_1_full_seed0', 'femnist_1_aocs_m3_seed0'}
  for result in results.values():
    assert list(result.metrics['round']) == [0, 1]
    assert (result.path / 'weights.npz').exists()


def test_results_are_drawn_and_summarised(swept, tmp_path):
  folder, _ = swept
  status, output, errors = shell.run(
    'plots.figures',
    f'--results_dir={folder}',
    '--figure=3',
    f'--output_dir={tmp_path}',
  )
  assert status == 0, errors
  assert output.strip() == str(tmp_path / 'figure_3.png')
  assert (tmp_path / 'figure_3.pdf').read_bytes().startswith(b'%PDF')
  status, table, errors = shell.run(
    'plots.summary', f'--results_dir={folder}', f'--output_dir={tmp_path}'
  )
  assert status == 0, errors
  assert '| AOCS, m=3 |' in table and '| full participation |' in table
