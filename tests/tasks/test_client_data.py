"""Tests of the clients' data on small databases of TFF's schema."""

import pathlib
import re
import sqlite3

import numpy as np
import pytest

from tff_ocs.tasks import client_data


def parse(serialized):
  """Builds examples whose x is the first byte and whose y is the length."""
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
  np.testing.assert_array_equal(data.read_all().x, [2, 1, 4])
  np.testing.assert_array_equal(data.read_at_once().x, [1, 2, 4])


def test_a_client_is_read_once(tmp_path):
  path = write_database(tmp_path / 'x.sqlite')
  data = client_data.SqlClientData(path, 'train', parse)
  first = data.examples('b')
  path.unlink()
  assert data.examples('b') is first


class _Images(client_data.ClientData):
  """A client with given images that counts how often they are read."""

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
  kept = data._kept['a']
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
  assert not base._kept


def test_all_clients_are_read_once():
  data = _Images(_byte_images(lambda k: k / 255))
  data.keep_all()
  data.keep_all()
  assert data.num_reads == 1
  data.examples('a')
  assert data.num_reads == 1


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
  check_refused(path, 'no such column: client_id')


def test_missing_split_is_refused(tmp_path):
  path = write_database(tmp_path / 'x.sqlite')
  check_refused(path, r"has the splits \['test', 'train'\].*lacks", 'other')


def test_wrong_number_of_examples_is_refused(tmp_path):
  path = write_database(
    tmp_path / 'x.sqlite', announced=[('a', 'train', 1), ('b', 'train', 3)]
  )
  check_refused(path, 'announces 3 examples of client b, but holds 2')


@pytest.mark.parametrize(
  ('error', 'reason'),
  [
    (KeyError('pixels'), "'pixels'"),
    (AssertionError(), 'AssertionError'),
    (ValueError('\n first line.\nsecond line'), 'first line'),
  ],
)
def test_examples_of_another_data_set_are_refused(error, reason, tmp_path):
  path = write_database(tmp_path / 'x.sqlite')

  def fail(serialized):
    raise error

  data = client_data.SqlClientData(path, 'train', fail)
  with pytest.raises(client_data.DataError) as refusal:
    data.examples('a')
  assert str(refusal.value).startswith(
    f'{path} holds examples of another data set (client a): {reason}. '
  )
  assert '\n' not in str(refusal.value)


@pytest.mark.parametrize('announced', [(None, 3), ('a', None), (b'a', 3)])
def test_metadata_of_another_type_are_refused(announced, tmp_path):
  client_id, size = announced
  path = write_database(
    tmp_path / 'x.sqlite',
    announced=[('b', 'train', 2), (client_id, 'train', size)],
  )
  check_refused(path, f'announces {size} examples of client {client_id!r}')


@pytest.mark.parametrize(
  ('values', 'found'),
  [
    ([0, 9, 35, 40], '35'),
    ([-1, 3], '-1'),
    ([0.5, np.nan, 11], 'nan'),
    ([[1, 2], [np.inf, 0]], 'inf'),
    (np.array([2**32 + 3]), '4294967299'),
  ],
)
def test_values_out_of_range_are_named(values, found):
  with pytest.raises(
    client_data.DataError,
    match=re.escape(f'labels must lie in [0, 9], found {found}') + r'(\.0)?$',
  ):
    client_data.check_range('labels', np.array(values), 0, 9)


@pytest.mark.parametrize('values', [[0, 9], [], [[0.0], [9.0]]])
def test_values_in_range_are_accepted(values):
  client_data.check_range('labels', np.array(values), 0, 9)


def check_values(load, message):
  """Checks that loading or reading names the client and the values."""
  with pytest.raises(client_data.DataError) as error:
    load().train.keep_all()
  assert str(error.value).endswith(message)
  assert '\n' not in str(error.value)


def test_unknown_home_folder_is_told(monkeypatch):
  def fail(self):
    raise RuntimeError('Could not determine home directory.')

  monkeypatch.setattr(pathlib.Path, 'expanduser', fail)
  with pytest.raises(client_data.DataError, match='home folder.*--cache_dir'):
    client_data.open_tff_database(
      'x.sqlite',
      ['train'],
      parse,
      fail,
      cache_dir=None,
      offline_source='synthetic',
    )


def test_cache_dir_may_start_with_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'data').mkdir()
  write_database(tmp_path / 'data' / 'x.sqlite')
  opened = []
  (train,) = client_data.open_tff_database(
    'x.sqlite',
    ['train'],
    parse,
    lambda cache_dir: opened.append(cache_dir),
    cache_dir='~/data',
    offline_source='synthetic',
  )
  assert train.client_ids == ['a', 'b']
  assert opened == [str(tmp_path / 'data')]


def test_damaged_page_is_refused(tmp_path):
  rows = [('train', 'a', b'x' * 1000)] * 200
  path = write_database(tmp_path / 'x.sqlite', rows)
  content = bytearray(path.read_bytes())
  content[8192:] = bytes(len(content) - 8192)
  path.write_bytes(bytes(content))
  check_refused(path, 'is partial|announces')
