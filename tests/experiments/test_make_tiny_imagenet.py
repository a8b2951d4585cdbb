"""Tests of the program that builds the stand-in for CIFAR-100.

The images are made up; the labels and clients are those of the published runs.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from experiments import make_tiny_imagenet
from experiments.stand_ins import digests
from tests.experiments import linear
from tff_ocs.tasks import cifar100

CLASSES = [f'n{number:08d}' for number in range(200)]


def write_jpeg(path, number, size=64):
  """Writes an image of one colour, which JPEG keeps almost exactly."""
  colour = number % 251, number // 251, 99
  image = np.broadcast_to(np.array(colour, np.uint8), (size, size, 3))
  path.write_bytes(tf.io.encode_jpeg(image, quality=100).numpy())


@pytest.fixture(scope='module')
def archive(tmp_path_factory):
  """An archive in which links stand for most of the images.

  The colour of a class's image says its class and number.
  """
  folder = tmp_path_factory.mktemp('archive')
  (folder / 'val' / 'images').mkdir(parents=True)
  lines = []
  for index, name in enumerate(CLASSES):
    images = folder / 'train' / name / 'images'
    images.mkdir(parents=True)
    write_jpeg(images / f'{name}_0.JPEG', 40 * index)
    write_jpeg(images / f'{name}_2.JPEG', 40 * index + 20)
    for number in [1, *range(3, 105)]:
      source = f'{name}_{0 if number < 100 else 2}.JPEG'
      (images / f'{name}_{number}.JPEG').symlink_to(source)
    for number in range(21):
      path = folder / 'val' / 'images' / f'val_{21 * index + number}.JPEG'
      path.symlink_to(images / f'{name}_0.JPEG')
      lines.append(f'{path.name}\t{name}\t0\t0\t63\t63\n')
  (folder / 'val' / 'val_annotations.txt').write_text(''.join(lines))
  return folder


def run(input_dir, output_dir):
  make_tiny_imagenet.run(
    linear.parse(
      make_tiny_imagenet,
      f'--input_dir={input_dir}',
      f'--output_dir={output_dir}',
    )
  )


def test_labels_and_clients_are_those_of_the_published_runs():
  rng = np.random.RandomState(7)
  make_tiny_imagenet.choose_classes(rng, CLASSES)
  for split, size in (('train', 100), ('test', 20)):
    clients = make_tiny_imagenet.deal(rng, split)
    published = make_tiny_imagenet._PUBLISHED[f'{split}_clients']
    assert digests.sha256(clients) == published
    # Every image is dealt, 100 to each client.
    np.testing.assert_array_equal(np.bincount(clients), [100] * size)


def test_database_is_that_of_the_chosen_images(
  archive, tmp_path, capsys, monkeypatch
):
  # Most images are links to a few.
  read = functools.cache(make_tiny_imagenet._read_image)
  monkeypatch.setattr(
    make_tiny_imagenet, '_read_image', lambda path: read(path.resolve())
  )
  run(archive, tmp_path / 'data')
  output = capsys.readouterr()
  assert output.out == f'{tmp_path / "data" / "cifar100.sqlite"}\n'
  lines = output.err.splitlines()
  assert [line.split(':')[0] for line in lines if 'NOT that' in line] == [
    'train_images',
    'test_images',
  ]
  loaded = cifar100.load_tff(seed=0, cache_dir=str(tmp_path / 'data'))
  assert len(loaded.train.client_ids) == 100
  examples = loaded.train.read_all()
  np.testing.assert_array_equal(np.bincount(examples.y), [100] * 100)
  np.testing.assert_array_equal(np.bincount(loaded.test.y), [20] * 100)

  chosen = np.sort(np.random.RandomState(7).permutation(200)[:100])
  of_class = 40 * chosen[examples.y]
  # By number, image 100 is not among the first 100, and image 2 is.
  second = np.abs(examples.x[:, 0, 0, 0].astype(int) - (of_class + 20) % 251)
  assert np.sum(second <= 3) == 100
  for labels, images, numbers in (
    (examples.y, examples.x, of_class + 20 * (second <= 3)),
    (loaded.test.y, loaded.test.x, 40 * chosen[loaded.test.y]),
  ):
    assert images.shape == (len(labels), 32, 32, 3)
    colours = np.stack([numbers % 251, numbers // 251, 0 * numbers + 99], 1)
    difference = images - colours[:, None, None, :]
    assert np.abs(difference).max() <= 3


def test_four_pixels_become_their_mean(tmp_path, monkeypatch):
  rng = np.random.default_rng(0)
  image = rng.integers(256, size=(64, 64, 3)).astype(np.uint8)
  (tmp_path / 'x').write_bytes(b'')
  monkeypatch.setattr(
    tf.io, 'decode_jpeg', lambda content, **kwargs: tf.constant(image)
  )
  reduced = make_tiny_imagenet._read_image(tmp_path / 'x')
  for row, column in ((0, 0), (5, 31), (31, 2)):
    four = image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
    expected = np.floor(four.astype(float).mean(axis=(0, 1)) + 0.5)
    np.testing.assert_array_equal(reduced[row, column], expected)


def test_archive_without_its_classes_is_named(tmp_path):
  with pytest.raises(SystemExit, match='folders of 200 classes, found 0'):
    run(tmp_path, tmp_path / 'data')
  assert not (tmp_path / 'data').exists()


@pytest.mark.parametrize(
  'name, annotations, message',
  [
    ('a_x.JPEG', '', 'a_x.JPEG must have a number: CLASS_K.JPEG'),
    ('a_1.JPEG', '', '100 training images of the class a, found 1'),
    (
      'a_1.JPEG',
      'val_0.JPEG a\n',
      "val_annotations.txt, line 1: .* found 'val",
    ),
  ],
)
def test_bad_archive_is_named(tmp_path, name, annotations, message):
  (tmp_path / 'train' / 'a' / 'images').mkdir(parents=True)
  (tmp_path / 'train' / 'a' / 'images' / name).touch()
  (tmp_path / 'val').mkdir()
  (tmp_path / 'val' / 'val_annotations.txt').write_text(annotations)
  with pytest.raises(make_tiny_imagenet.InputError, match=message):
    make_tiny_imagenet.find_images(tmp_path, ['a'])


@pytest.mark.parametrize(
  'size, message', [(None, 'is not a JPEG image'), (32, 'found 32 x 32')]
)
def test_bad_image_is_named(tmp_path, size, message):
  path = tmp_path / 'x.JPEG'
  if size is None:
    path.write_text('GIF89a')
  else:
    write_jpeg(path, 0, size)
  with pytest.raises(make_tiny_imagenet.InputError, match=message):
    make_tiny_imagenet._read_image(path)
