"""Builds "MNIST by NIST writer", the stand-in for FEMNIST in results/.

  python -m experiments.make_mnist_by_writer --input_dir=mnist --output_dir=data

--input_dir holds MNIST's four files and QMNIST's two files of extended labels,
each as it is published (.gz) or unpacked:

    train-images-idx3-ubyte    t10k-images-idx3-ubyte
    train-labels-idx1-ubyte    t10k-labels-idx1-ubyte
    qmnist-train-labels-idx2-int    qmnist-test-labels-idx2-int

The rows of QMNIST's labels are in MNIST's order; the first 10,000 test rows are
those of MNIST's test images. Column 0 is the digit and column 2 the number of
the writer in NIST's Special Database 19 [1].

The program writes emnist_all.sqlite with the splits digits_only_train and
digits_only_test, which TFF's loader reads: all 70,000 digits by their 836
writers, w0000 and so on. As in Federated EMNIST, the background is 1.0, and
about 10.7 % of each writer's digits are in the test split. The rule of the
split: one NumPy generator, default_rng(20220801), permutes the digits of each
writer, in the order of the writers' numbers; the first max(1, round(0.107 k))
of a writer's k digits are for testing, and all are stored in permuted order.

The published runs used a copy of the training images in which the grey level 1
of 255 is 0, so the program sets it to 0 there. The SHA-256 of their arrays,
training digits first:

    pixels   uint8[70000, 28, 28], 0 is the background
        22acb6c7ccd36e0ac5cf39795a377d39f03c16752d7e1ad1b2d668e17755b73e
    labels   uint8[70000]
        671ff9d70b4811116d55c3dd479efa7a981e2e62753ef7a6d5c15fea81e63d27
    writers  int32[70000]
        78a169e65eee3a5dd26d158f29e4363858644fcb31d26faba5aee0a9163089ca

The program prints whether it found the same.

[1] C. Yadav and L. Bottou, Cold Case: The Lost MNIST Digits, NeurIPS 2019.
"""

import gzip
import math
import pathlib
import sys
import zlib
from collections.abc import Iterator

import numpy as np
from absl import app
from absl import flags

from experiments.runs import program
from experiments.stand_ins import digests
from programs import definer
from programs import entry

# As the docstring says.
_PUBLISHED = {
  'pixels': '22acb6c7ccd36e0ac5cf39795a377d39f03c16752d7e1ad1b2d668e17755b73e',
  'labels': '671ff9d70b4811116d55c3dd479efa7a981e2e62753ef7a6d5c15fea81e63d27',
  'writers': '78a169e65eee3a5dd26d158f29e4363858644fcb31d26faba5aee0a9163089ca',
}
# Federated EMNIST's test split has 40,832 of 382,705 digits.
_TEST_FRACTION = 0.107
_SEED = 20220801
# The types of entries of an IDX file, by their code.
_IDX_TYPES = {0x08: np.dtype('u1'), 0x0C: np.dtype('>i4')}
_FILES = {
  'train': (
    'train-images-idx3-ubyte',
    'train-labels-idx1-ubyte',
    'qmnist-train-labels-idx2-int',
  ),
  'test': (
    't10k-images-idx3-ubyte',
    't10k-labels-idx1-ubyte',
    'qmnist-test-labels-idx2-int',
  ),
}


class InputError(ValueError):
  """Raised if a file is missing or does not hold what it should."""


def main(argv):
  entry.setup()
  entry.refuse_arguments(argv)
  run(flags.FLAGS)


def run(values: flags.FlagValues) -> None:
  """Builds the database; ends the program with one line if it cannot."""
  output_dir = pathlib.Path(values.output_dir)
  try:
    pixels, labels, writers = read_digits(pathlib.Path(values.input_dir))
    digests.compare(
      {'pixels': pixels, 'labels': labels, 'writers': writers}, _PUBLISHED
    )
    # TensorFlow takes seconds to import.
    program.setup()
    from experiments.stand_ins import tff_database
    from tff_ocs.tasks import femnist

    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / femnist.DATABASE
    tff_database.write(path, _rows(pixels, labels, writers, tff_database))
  except (InputError, OSError) as error:
    sys.exit(f'error: {error}')
  print(path)


def read_digits(
  folder: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Reads MNIST, training digits first, and the writer of each digit.

  Args:
    folder: The folder of the files that the module's docstring names.

  Returns:
    The pixels, uint8[num_digits, 28, 28]; the labels, uint8[num_digits]; and
    the writers' numbers, int32[num_digits].

  Raises:
    InputError: If a file is missing or does not hold what it should, or if the
      digits of MNIST and QMNIST differ.
  """
  parts = []
  for split, (images_name, labels_name, extended_name) in _FILES.items():
    pixels = _read_idx(folder, images_name, 'u1', (None, 28, 28))
    labels = _read_idx(folder, labels_name, 'u1', (len(pixels),))
    extended = _read_idx(folder, extended_name, '>i4', (None, 8))
    if split == 'train':
      pixels = np.where(pixels == 1, np.uint8(0), pixels)
    # QMNIST's test set goes on with digits that MNIST does not have.
    extended = extended[: len(pixels)] if split == 'test' else extended
    if not np.array_equal(extended[:, 0], labels):
      raise InputError(
        f'{extended_name} in {folder} is not of the digits in {labels_name}:'
        ' column 0 must hold the same labels.'
      )
    parts.append((pixels, labels, extended[:, 2].astype(np.int32)))
  pixels, labels, writers = map(np.concatenate, zip(*parts))
  return pixels, labels, writers


def split_digits(writers: np.ndarray) -> Iterator[tuple[str, int, int]]:
  """Splits the digits of each writer, as the module's docstring says.

  Args:
    writers: The writer of each digit, int32[num_digits].

  Yields:
    The split ('train' or 'test'), the writer's number and the digit's index, of
    each digit in the order in which they are stored.
  """
  rng = np.random.default_rng(_SEED)
  for writer in np.unique(writers):
    order = rng.permutation(np.flatnonzero(writers == writer))
    num_test = max(1, round(_TEST_FRACTION * len(order)))
    for place, index in enumerate(order):
      split = 'test' if place < num_test else 'train'
      yield split, int(writer), int(index)


def _rows(pixels, labels, writers, tff_database):
  for split, writer, index in split_digits(writers):
    inverted = 1.0 - pixels[index].astype(np.float32) / 255.0
    example = tff_database.serialize(
      label=tff_database.integers([int(labels[index])]),
      pixels=tff_database.floats(inverted.ravel().tolist()),
    )
    yield f'digits_only_{split}', f'w{writer:04d}', example


def _read_idx(folder, name, dtype, shape) -> np.ndarray:
  """Reads an IDX file of a given type and shape, in which `None` is any size.

  The header is two zero bytes, the code of the type, the number of axes, and
  the size of each axis as a big-endian int32.
  """
  content, path = _read_file(folder, name)
  code, num_axes = (content[2], content[3]) if len(content) >= 4 else (0, 0)
  start = 4 + 4 * num_axes
  found_type = _IDX_TYPES.get(code)
  if content[:2] != b'\0\0' or found_type is None or len(content) < start:
    raise InputError(f'{path} is not an IDX file of bytes or int32.')
  found = np.frombuffer(content, '>i4', num_axes, 4).tolist()
  num_bytes = start + found_type.itemsize * math.prod(found)
  if len(content) != num_bytes:
    raise InputError(
      f'{path} is partial or damaged: an array of shape {found} takes'
      f' {num_bytes:,} bytes, found {len(content):,}.'
    )
  is_right = len(found) == len(shape) and all(
    wanted in (None, size) for wanted, size in zip(shape, found)
  )
  if not is_right or found_type != np.dtype(dtype):
    wanted = ', '.join('any' if s is None else str(s) for s in shape)
    raise InputError(
      f'{path} must hold {np.dtype(dtype).name} of shape [{wanted}], found'
      f' {found_type.name} of shape {found}.'
    )
  return np.frombuffer(content, found_type, offset=start).reshape(found)


def _read_file(folder, name) -> tuple[bytes, pathlib.Path]:
  """The unpacked content of a file, and the path at which it was found."""
  path = folder / name
  if path.exists():
    return path.read_bytes(), path
  path = folder / f'{name}.gz'
  if not path.exists():
    raise InputError(f'{folder} must hold {name} or {name}.gz, found neither.')
  try:
    return gzip.decompress(path.read_bytes()), path
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise InputError(f'{path} cannot be unpacked: {error}.') from error


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  define.path(
    'input_dir',
    None,
    "Required. The folder of MNIST's files and QMNIST's extended labels.",
    required=True,
  )
  define.path(
    'output_dir',
    None,
    'Required. The folder to write emnist_all.sqlite to, replacing an earlier'
    ' one: the --cache_dir of experiments.femnist.',
    required=True,
  )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
