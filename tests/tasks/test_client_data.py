"""Tests of the clients' data, on small databases of TFF's schema."""

import sqlite3

import numpy as np
import pytest

from tff_ocs.tasks import client_data


def parse(serialized):
  """Examples of which the x is the first byte, and the y the length."""
  return client_data.Examples(
    np.array([s[0] for s in serialized], np.float32),
    np.array([len(s) for s in serialized], np.int32),
  )


ROWS = [
  ('train', 'b', b'\x01.'),
  ('train', 'a', b'\x02..'),
  ('test', 'a', b'\x03...'),
  ('train', 'b', b'\x04....'),
]


def write_database(path, rows=(), announced=None):
  connection = sqlite3.connect(path)
  connection.execute(
    'CREATE TABLE examples (split_name TEXT, client_id TEXT,'
    ' serialized_example_proto BLOB)'
  )
  connection.execute(
    'CREATE TABLE client_metadata (client_id TEXT, split_name TEXT,'
    ' num_examples INTEGER)'
  )
  rows = rows or ROWS
  connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
  if announced is None:
    connection.execute(
      'INSERT INTO client_metadata SELECT client_id, split_name, COUNT(*)'
      ' FROM examples GROUP BY client_id, split_name'
    )
  else:
    connection.executemany(
      'INSERT INTO client_metadata VALUES (?, ?, ?)', announced
    )
  connection.commit()
  connection.close()
  return path


def test_database_is_read_by_client_and_split(tmp_path):
  data = client_data.SqlClientData(
    write_database(tmp_path / 'x.sqlite'), 'train', parse
  )
  assert data.client_ids == ['a', 'b']
  assert data.num_examples == {'a': 1, 'b': 2}
  np.testing.assert_array_equal(data.examples('b').x, [1, 4])
  np.testing.assert_array_equal(data.examples('b').y, [2, 5])
  np.testing.assert_array_equal(data.examples('a').x, [2])
  np.testing.assert_array_equal(data.read_all().x, [1, 2, 4])


def test_a_client_is_read_once(tmp_path):
  path = write_database(tmp_path / 'x.sqlite')
  data = client_data.SqlClientData(path, 'train', parse)
  first = data.examples('b')
  path.unlink()
  assert data.examples('b') is first


def test_selection_keeps_only_what_it_selects(tmp_path):
  base = client_data.SqlClientData(
    write_database(tmp_path / 'x.sqlite'), 'train', parse
  )
  selected = client_data.SelectedClientData(base, {'b': np.array([1])})
  assert selected.client_ids == ['b']
  assert selected.num_examples == {'b': 1}
  np.testing.assert_array_equal(selected.examples('b').x, [4])
  # The base does not keep the rest of a client in memory.
  assert not base._cache


def check_refused(path, match, split='train'):
  with pytest.raises(client_data.DataError, match=match) as error:
    data = client_data.SqlClientData(path, split, parse)
    for client_id in data.client_ids:
      data.examples(client_id)
  assert path.name in str(error.value)
  assert '\n' not in str(error.value)


def test_missing_file_is_refused(tmp_path):
  check_refused(tmp_path / 'x.sqlite', 'does not exist')


@pytest.mark.parametrize('fraction', [0.0, 0.01, 0.5, 0.999])
def test_partial_file_is_refused(tmp_path, fraction):
  rows = [('train', 'a', b'x' * 1000)] * 200
  path = write_database(tmp_path / 'x.sqlite', rows)
  content = path.read_bytes()
  path.write_bytes(content[: int(fraction * len(content))])
  check_refused(path, 'is partial|is not an SQLite database')


def test_foreign_file_is_refused(tmp_path):
  path = tmp_path / 'x.sqlite'
  path.write_bytes(b'PK\x03\x04' * 1000)
  check_refused(path, 'is not an SQLite database.*download it again')


def test_foreign_database_is_refused(tmp_path):
  path = tmp_path / 'x.sqlite'
  connection = sqlite3.connect(path)
  connection.execute('CREATE TABLE examples (split_name TEXT)')
  connection.close()
  check_refused(path, "'examples' lacks the columns .'client_id'")


def test_missing_split_is_refused(tmp_path):
  path = write_database(tmp_path / 'x.sqlite')
  check_refused(path, r"has the splits \['test', 'train'\].*lacks", 'other')


def test_wrong_number_of_examples_is_refused(tmp_path):
  path = write_database(
    tmp_path / 'x.sqlite', announced=[('a', 'train', 1), ('b', 'train', 3)]
  )
  check_refused(path, 'announces 3 examples of client b, but holds 2')


def test_examples_of_another_data_set_are_refused(tmp_path):
  path = write_database(tmp_path / 'x.sqlite')

  def failing(serialized):
    raise KeyError('pixels')

  data = client_data.SqlClientData(path, 'train', failing)
  with pytest.raises(client_data.DataError, match='another data set.*pixels'):
    data.examples('a')


def test_damaged_page_is_refused(tmp_path):
  rows = [('train', 'a', b'x' * 1000)] * 200
  path = write_database(tmp_path / 'x.sqlite', rows)
  content = bytearray(path.read_bytes())
  content[8192:] = bytes(len(content) - 8192)
  path.write_bytes(bytes(content))
  check_refused(path, 'cannot be read|announces|lacks')
