"""Tests of writing whole files."""

import hashlib

import pytest
import tensorflow as tf

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


def test_folder_is_locked_until_it_is_freed(tmp_path):
  lock = files.lock_folder(tmp_path)
  with pytest.raises(BlockingIOError, match='in use by another process'):
    files.lock_folder(tmp_path)
  lock.release()
  again = files.lock_folder(tmp_path)
  del again
  files.lock_folder(tmp_path).release()
  with pytest.raises(FileNotFoundError, match='nowhere is not a folder'):
    files.lock_folder(tmp_path / 'nowhere')
  assert not (tmp_path / 'nowhere').exists()


def test_write_errors_are_explained_in_one_line(tmp_path):
  path = tmp_path / 'nowhere' / 'file.txt'
  with pytest.raises(OSError, match='file.txt in .* cannot be written: No'):
    with files.explaining_write_errors(path):
      path.write_text('text')
  with pytest.raises(OSError, match='cannot be written: the disk is') as error:
    with files.explaining_write_errors(path):
      raise tf.errors.ResourceExhaustedError(None, None, 'the disk is\nfull')
  assert '\n' not in str(error.value)
  # Any other error is another matter.
  with pytest.raises(KeyError):
    with files.explaining_write_errors(path):
      raise KeyError('x')


def test_digest_is_that_of_the_whole_file(tmp_path):
  content = bytes(range(256)) * 5000
  (tmp_path / 'x').write_bytes(content)
  expected = hashlib.sha256(content).hexdigest()
  assert files.sha256(tmp_path / 'x') == expected
