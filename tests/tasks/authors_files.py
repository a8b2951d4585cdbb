"""Writes small files of the format in which the paper's authors publish."""

import h5py
import numpy as np

from tff_ocs.tasks import femnist

# Of 20 clients, 10, 20 or 50 % are large, with 82, 90 or 98 % of the examples.
SIZES = {
  1: [41] * 2 + [1] * 18,
  2: [36] * 4 + [1] * 16,
  3: [49] * 10 + [1] * 10,
}


def draw(rng, size):
  """Some dark images on a background of 1.0, and their labels."""
  pixels = np.ones((size, 28, 28), np.float32)
  pixels[:, 9:19, 9:19] = rng.random((size, 10, 10), np.float32)
  return pixels, rng.integers(10, size=size).astype(np.int32)


def write_file(path, sizes):
  """Writes clients of given sizes to a file."""
  rng = np.random.default_rng(0)
  with h5py.File(path, 'w') as file:
    for index, size in enumerate(sizes):
      client = file.create_group(f'examples/f{index:04d}')
      client['pixels'], client['label'] = draw(rng, size)


def write_files(folder):
  """Writes all of the authors' files."""
  for number, name in femnist.AUTHORS_FILES.items():
    write_file(folder / name, SIZES[number])
  write_file(folder / femnist.AUTHORS_TEST_FILE, [3, 5])
