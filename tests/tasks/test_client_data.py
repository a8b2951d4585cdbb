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


class _Images(client_data.ClientData):
  """One client with given images, which counts how often they are read."""

  def __init__(self, x):
    super().__init__({'a': len(x)})
    self.num_reads = 0
    self._x = x

  def read(self, client_id):
    self.num_reads += 1
    return client_data.Examples(self._x.copy(), np.arange(len(self._x)))


def _byte_images(value_of):
  codes = np.random.default_rng(0).permutation(4 * 256).astype(np.uint8)
  return value_of(codes.reshape(4, 16, 16)).astype(np.float32)


@pytest.mark.parametrize(
  'value_of',
  [
    lambda k: k / 255,
    lambda k: k / np.float32(255),
    lambda k: 1 - k.astype(np.float32) / np.float32(255),
    lambda k: k * np.float32(1 / 255),
  ],
  ids=['double', 'float', 'inverted', 'multiplied'],
)
def test_images_of_bytes_are_kept_as_bytes(value_of):
  x = _byte_images(value_of)
  data = _Images(x)
  for _ in range(2):
    found = data.examples('a')
    assert found.x.dtype == np.float32
    np.testing.assert_array_equal(found.x.view(np.int32), x.view(np.int32))
    np.testing.assert_array_equal(found.y, np.arange(4))
  assert data.num_reads == 1
  kept = data._cache['a'].x
  assert kept.codes.nbytes + kept.values.nbytes == x.size + 1024


@pytest.mark.parametrize(
  'x',
  [
    np.random.default_rng(0).random((3, 8, 8), dtype=np.float32),
    _byte_images(lambda k: k / 255) * np.float32(1.01),
    _byte_images(lambda k: k / 255) - np.float32(0.5),
    np.where(_byte_images(lambda k: k) == 7, np.nan, np.float32(0)),
    # Both have the code 0, but are not the same.
    np.array([[0.0], [-0.0]], np.float32),
    _byte_images(lambda k: k / 255).astype(np.float64),
    _byte_images(lambda k: k).astype(np.uint8),
    np.zeros((0, 8, 8), np.float32),
  ],
  ids=[
    'noise',
    'above 1',
    'below 0',
    'NaN',
    'two zeros',
    'float64',
    'uint8',
    'empty',
  ],
)
def test_what_is_not_made_of_bytes_is_kept_as_it_is(x):
  found = _Images(x).examples('a').x
  assert found.dtype == x.dtype
  assert found.tobytes() == x.tobytes()


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
