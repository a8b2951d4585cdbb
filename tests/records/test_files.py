"""Tests of writing whole files."""

import pytest

from tff_ocs.records import files


def test_file_is_replaced_when_it_is_whole(tmp_path):
  path = tmp_path / 'table.csv'
  path.write_text('old')
  with files.replacing(path) as partial:
    assert partial.suffix == '.csv'
    partial.write_text('new')
    assert path.read_text() == 'old'
  assert path.read_text() == 'new'
  assert [p.name for p in tmp_path.iterdir()] == ['table.csv']


def test_failure_leaves_the_former_file_and_nothing_else(tmp_path):
  path = tmp_path / 'table.csv'
  path.write_text('old')
  with pytest.raises(OSError, match='disk is full'):
    with files.replacing(path) as partial:
      partial.write_text('ne')
      raise OSError('disk is full')
  assert path.read_text() == 'old'
  assert [p.name for p in tmp_path.iterdir()] == ['table.csv']


def test_csv_file_has_the_keys_as_header(tmp_path):
  path = tmp_path / 'table.csv'
  files.write_csv(path, [{'a': 1, 'b': 'x, y'}, {'a': None, 'b': 2.5}])
  assert path.read_bytes() == b'a,b\n1,"x, y"\n,2.5\n'
  # A row that has other keys leaves the former file.
  with pytest.raises(ValueError, match='fields not in fieldnames'):
    files.write_csv(path, [{'a': 1}, {'c': 2}])
  assert path.read_bytes().startswith(b'a,b')
  assert [p.name for p in tmp_path.iterdir()] == ['table.csv']
