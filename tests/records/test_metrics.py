"""Tests of metrics.csv and of its documentation."""

import pathlib

import numpy as np
import pytest

from tff_ocs.records import files
from tff_ocs.records import metrics as metrics_lib

ROOT = pathlib.Path(__file__).parents[2]
ROUND = {'uplink_bits': 10**10, 'training_loss': 0.5}


def test_documentation_is_complete_and_up_to_date():
  text = (ROOT / 'docs' / 'metrics.md').read_text()
  assert text == metrics_lib.format_documentation(), (
    'python -m tff_ocs.records.metrics > docs/metrics.md'
  )
  for name, column in metrics_lib.COLUMNS.items():
    assert f'| `{name}` | {column.unit} | {column.meaning} |' in text
    assert column.unit and column.meaning.endswith('.')


def test_published_runs_have_no_other_columns():
  paths = list((ROOT / 'results').rglob('metrics.csv'))
  assert paths
  for path in paths:
    names = path.open().readline().strip().split(',')
    assert set(names) <= set(metrics_lib.COLUMNS)


def test_what_is_written_is_read(tmp_path):
  writer = metrics_lib.MetricsWriter(tmp_path)
  assert writer.num_rounds == 0
  writer.write({**ROUND, 'validation_accuracy': 0.25}, 0)
  writer.write(ROUND, 1)
  table = metrics_lib.read_metrics(tmp_path)
  metrics_lib.check_rounds(table)
  assert table['uplink_bits'].tolist() == [1e10, 1e10]
  np.testing.assert_array_equal(table['validation_accuracy'], [0.25, np.nan])
  # From a checkpoint after round 0.
  again = metrics_lib.MetricsWriter(tmp_path)
  assert again.num_rounds == 2
  again.write({**ROUND, 'training_loss': 0.1}, 1)
  table = metrics_lib.read_metrics(tmp_path)
  assert table['training_loss'].tolist() == [0.5, 0.1]


@pytest.mark.parametrize('num_bytes', range(1, 40))
def test_cut_file_is_continued_wherever_it_is_cut(tmp_path, num_bytes):
  path = tmp_path / 'metrics.csv'
  whole = b'round,training_loss\n0,0.5\n1,0.25\n2,0.125\n'
  path.write_bytes(whole[:num_bytes])
  writer = metrics_lib.MetricsWriter(tmp_path)
  num_rounds = max(whole[:num_bytes].count(b'\n') - 1, 0)
  assert writer.num_rounds == num_rounds
  writer.write({'training_loss': 1}, num_rounds)
  table = metrics_lib.read_metrics(tmp_path)
  losses = [0.5, 0.25, 0.125][:num_rounds]
  assert table['training_loss'].tolist() == [*losses, 1]
  assert not list(tmp_path.glob('*partial*'))


def test_bad_cells_are_named_with_their_line(tmp_path):
  (tmp_path / 'metrics.csv').write_text('round,a,b\n0,1,2\n1,,oops\n')
  message = "line 3 of its metrics.csv has 'oops' in the column b"
  with pytest.raises(files.RecordError, match=message):
    metrics_lib.read_metrics(tmp_path)


@pytest.mark.parametrize(
  'text, reason',
  [
    ('round,a\n0,1\n0,2\n', 'has round 0 twice'),
    ('round,a\n1,1\n', 'has round 1 where round 0 should be'),
    ('round;a\n0;1\n', "separated by ';'"),
    ('name,a\n0,1\n', 'no column round'),
  ],
)
def test_file_that_no_run_wrote_is_not_continued_nor_changed(
  tmp_path, text, reason
):
  (tmp_path / 'metrics.csv').write_text(text)
  with pytest.raises(files.RecordError, match=f'{reason}.*Nothing was changed'):
    metrics_lib.MetricsWriter(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ['metrics.csv']
  assert (tmp_path / 'metrics.csv').read_text() == text


@pytest.mark.parametrize(
  'text, num_rounds',
  [
    (None, 0),
    ('round,a\n', 0),
    ('round,a\n0,1\n', 5),
    ('round,a\n0,1\n5,1\n6,', 6),
    ('round,a\n0,1\n5,1\n6,1\n', 7),
  ],
)
def test_table_of_some_rounds_names_the_first_that_is_missing(
  tmp_path, text, num_rounds
):
  path = tmp_path / 'some.csv'
  if text is not None:
    path.write_text(text)
  writer = metrics_lib.MetricsWriter(tmp_path, path.name, [0, 5, 6])
  assert writer.num_rounds == num_rounds


@pytest.mark.parametrize(
  'rows, reason',
  [
    ('0,1\n4,1\n', 'has round 4 where round 5 should be'),
    ('0,1\n5,1\n5,1\n', 'has round 5 twice'),
    ('0,1\n5,1\n6,1\n10,1\n', 'has round 10 after its last one'),
  ],
)
def test_rounds_that_are_not_due_are_refused(tmp_path, rows, reason):
  path = tmp_path / 'some.csv'
  path.write_text(f'round,a\n{rows}')
  with pytest.raises(files.RecordError, match=reason):
    metrics_lib.MetricsWriter(tmp_path, path.name, [0, 5, 6])
  assert path.read_text() == f'round,a\n{rows}'
