"""Tests of the HDF5 files of clients, on small ones."""

import re

import h5py
import numpy as np
import pytest

from tff_ocs.tasks import client_data
from tff_ocs.tasks import hdf5

FIELDS = {'x': hdf5.Field('f', (2,)), 'y': hdf5.Field('i', ())}


def convert(x, y):
  client_data.check_range('values of y', y, 0, 9)
  return client_data.Examples(x, y)


def write(path, x=((1, 2), (3, 4)), y=(5, 6), dtype=np.float32):
  with h5py.File(path, 'w') as file:
    file['examples/a/x'] = np.array(x, dtype)
    file['examples/a/y'] = np.array(y, np.int32)
    file['examples/a/other'] = [1]
    file['examples/b/x'] = np.array([[7, 8]], np.float64)
    file['examples/b/y'] = np.array([9], np.uint8)
  return path


def read(path):
  return hdf5.read_clients(path, FIELDS, convert)


def test_clients_are_read(tmp_path):
  clients = read(write(tmp_path / 'x.h5'))
  assert list(clients) == ['a', 'b']
  np.testing.assert_array_equal(clients['a'].x, [[1, 2], [3, 4]])
  np.testing.assert_array_equal(clients['a'].y, [5, 6])
  np.testing.assert_array_equal(clients['b'].x, [[7, 8]])


def remove(name):
  def change(path):
    with h5py.File(write(path), 'a') as file:
      del file[name]

  return change


def truncate(path):
  content = write(path).read_bytes()
  path.write_bytes(content[: len(content) // 2])


def damage_groups(path):
  content = write(path).read_bytes()
  # The signature of the tables of the groups' members.
  assert b'SNOD' in content
  path.write_bytes(content.replace(b'SNOD', b'XXXX'))


def link_to_nothing(path):
  with h5py.File(write(path), 'a') as file:
    file['examples/c'] = h5py.SoftLink('/nowhere')


def replace_by_nothing(path):
  with h5py.File(write(path), 'a') as file:
    del file['examples/a/x']
    file['examples/a'].create_dataset('x', data=h5py.Empty('f4'))


def replace_by_data_set(path):
  with h5py.File(path, 'w') as file:
    file['examples/a'] = [1]


@pytest.mark.parametrize(
  'make, message',
  [
    (lambda path: None, 'does not exist'),
    (lambda path: path.mkdir(), 'does not exist'),
    (
      lambda path: path.write_text('x'),
      'is partial or damaged, or is not an HDF5 file: ',
    ),
    (truncate, 'or is not an HDF5 file: .*truncated'),
    (damage_groups, 'is partial or damaged, '),
    (link_to_nothing, 'is partial or damaged, '),
    (
      remove('examples'),
      r'must hold the group examples with a group for each client, found \[\]',
    ),
    (
      lambda path: h5py.File(path, 'w').create_group('examples').file.close(),
      'found it without clients',
    ),
    (remove('examples/b/y'), "client b: there is no data set 'y'"),
    (replace_by_data_set, "client a: there is no data set 'x'"),
    (
      lambda path: write(path, y=(5, 6, 7)),
      'client a: .* the same number of examples, at least 1, found 2 of x and 3'
      ' of y',
    ),
    (
      lambda path: write(path, x=np.zeros((0, 2)), y=()),
      'client a: .*, at least 1, found 0 of x and 0 of y',
    ),
    (
      lambda path: write(path, x=[[1], [2]]),
      r'client a: x must be floating-point numbers of shape \[examples, 2\],'
      r' found float32 of shape \[2, 1\]',
    ),
    (lambda path: write(path, dtype=np.int64), 'found int64 of shape'),
    (lambda path: write(path, x=3), r'found float32 of shape \[\]'),
    (replace_by_nothing, r'found float32 of shape \[\]'),
    (
      lambda path: write(path, y=(5, 35)),
      r'client a: values of y must lie in \[0, 9\], found 35',
    ),
  ],
)
def test_bad_file_is_named_in_one_line(tmp_path, make, message):
  path = tmp_path / 'x.h5'
  make(path)
  with pytest.raises(client_data.DataError, match=message) as raised:
    read(path)
  text = str(raised.value)
  assert re.match(f'{re.escape(str(path))}[ ,]', text) and '\n' not in text
  assert text.endswith('.') and not text.endswith('..')
