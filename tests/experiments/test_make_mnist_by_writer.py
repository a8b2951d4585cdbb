"""Tests of the program that builds MNIST by NIST writer, on made-up digits."""

import gzip
import re
import struct

import numpy as np
import pytest
import tensorflow_federated as tff

from experiments import make_mnist_by_writer
from tests.experiments import linear
from tff_ocs.tasks import femnist

NAMES = {
  'train': ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte'),
  'test': ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte'),
}


def idx(array, code):
  header = bytes([0, 0, code, array.ndim])
  header += struct.pack(f'>{array.ndim}i', *array.shape)
  return header + array.astype({8: 'u1', 12: '>i4'}[code]).tobytes()


def write(path, array, code=8):
  """Writes an IDX file, packed if the name ends in .gz."""
  content = idx(array, code)
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)


def write_files(folder, suffix=''):
  """Writes 300 and 60 digits of 7 writers, with two more rows of QMNIST."""
  rng = np.random.default_rng(0)
  digits = {}
  for split, size, more in (('train', 300, 0), ('test', 60, 2)):
    pixels = rng.integers(256, size=(size, 28, 28))
    labels = rng.integers(10, size=size)
    writers = rng.choice([0, 3, 12, 326, 2100, 2349, 2599], size=size)
    extended = np.zeros((size + more, 8), int)
    extended[:size, 0], extended[:size, 2] = labels, writers
    extended[size:, 2] = 7
    images_name, labels_name = NAMES[split]
    write(folder / f'{images_name}{suffix}', pixels)
    write(folder / f'{labels_name}{suffix}', labels)
    name = f'qmnist-{split}-labels-idx2-int{suffix}'
    write(folder / name, extended, 12)
    digits[split] = pixels, labels, writers
  return digits


def run(input_dir, output_dir):
  make_mnist_by_writer.run(
    linear.parse(
      make_mnist_by_writer,
      f'--input_dir={input_dir}',
      f'--output_dir={output_dir}',
    )
  )


@pytest.mark.parametrize('suffix', ['', '.gz'])
def test_database_holds_all_digits_by_writer(tmp_path, capsys, suffix):
  digits = write_files(tmp_path, suffix)
  run(tmp_path, tmp_path / 'data')
  path = tmp_path / 'data' / 'emnist_all.sqlite'
  output = capsys.readouterr()
  assert output.out == f'{path}\n'
  # These are not the digits of MNIST.
  assert len(re.findall('NOT that .* of the published runs', output.err)) == 3

  train, test = tff.simulation.datasets.emnist.load_data(
    only_digits=True, cache_dir=str(path.parent)
  )
  writers = np.concatenate([digits['train'][2], digits['test'][2]])
  ids = [f'w{writer:04d}' for writer in np.unique(writers)]
  assert train.client_ids == test.client_ids == ids
  loaded = femnist.load_tff(
    seed=0, cache_dir=str(path.parent), unbalanced_set=None
  )
  pixels = np.concatenate([digits['train'][0], digits['test'][0]])
  pixels[:300][pixels[:300] == 1] = 0
  labels = np.concatenate([digits['train'][1], digits['test'][1]])
  rng = np.random.default_rng(20220801)
  of_test = []
  for writer, client_id in zip(np.unique(writers), ids):
    order = rng.permutation(np.flatnonzero(writers == writer))
    num_test = round(0.107 * len(order))
    examples = loaded.train.examples(client_id)
    np.testing.assert_array_equal(examples.y, labels[order[num_test:]])
    expected = (1.0 - pixels[order[num_test:]] / 255).astype(np.float32)
    np.testing.assert_allclose(examples.x, expected, rtol=1e-6)
    of_test.append(labels[order[:num_test]])
  np.testing.assert_array_equal(loaded.test.y, np.concatenate(of_test))


def test_each_writer_has_a_digit_to_test_on():
  writers = np.repeat([4, 9], [1, 28])
  splits = list(make_mnist_by_writer.split_digits(writers))
  assert splits[0] == ('test', 4, 0)
  assert [split for split, writer, _ in splits if writer == 9] == (
    ['test'] * 3 + ['train'] * 25
  )


def replace(name, array, code=8):
  return lambda folder: write(folder / name, array, code)


def cut(name, size):
  def change(folder):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:size])

  return change


@pytest.mark.parametrize(
  'change, message',
  [
    (
      lambda folder: (folder / 't10k-images-idx3-ubyte').unlink(),
      'must hold t10k-images-idx3-ubyte or t10k-images-idx3-ubyte.gz, found'
      ' neither',
    ),
    (
      cut('train-images-idx3-ubyte', 999),
      r'train-images-idx3-ubyte is partial or damaged: an array of shape'
      r' \[300, 28, 28\] takes 235,216 bytes, found 999',
    ),
    (cut('train-labels-idx1-ubyte', 3), 'is not an IDX file of bytes or int32'),
    (cut('train-labels-idx1-ubyte', 6), 'is not an IDX file of bytes or int32'),
    (
      lambda folder: (folder / 'train-labels-idx1-ubyte').write_text('<html>'),
      'train-labels-idx1-ubyte is not an IDX file',
    ),
    (
      replace('train-images-idx3-ubyte', np.zeros((300, 32, 32))),
      r'must hold uint8 of shape \[any, 28, 28\], found uint8 of shape'
      r' \[300, 32, 32\]',
    ),
    (
      replace('train-labels-idx1-ubyte', np.zeros(299)),
      r'must hold uint8 of shape \[300\], found uint8 of shape \[299\]',
    ),
    (
      replace('qmnist-train-labels-idx2-int', np.zeros((300, 8))),
      'qmnist-train-labels-idx2-int must hold int32 of shape',
    ),
    (
      replace('qmnist-test-labels-idx2-int', np.zeros((62, 8)), 12),
      'qmnist-test-labels-idx2-int in .* is not of the digits in'
      ' t10k-labels-idx1-ubyte',
    ),
    (
      lambda folder: (folder / 'train-labels-idx1-ubyte').rename(
        folder / 'train-labels-idx1-ubyte.gz'
      ),
      'train-labels-idx1-ubyte.gz cannot be unpacked',
    ),
  ],
)
def test_bad_input_is_named_and_nothing_is_written(tmp_path, change, message):
  write_files(tmp_path)
  change(tmp_path)
  with pytest.raises(SystemExit, match=f'^error: .*{message}') as raised:
    run(tmp_path, tmp_path / 'data')
  assert '\n' not in str(raised.value)
  assert not (tmp_path / 'data').exists()
