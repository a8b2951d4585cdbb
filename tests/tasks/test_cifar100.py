"""Tests of the CIFAR-100 task, with a small file in place of the real one."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tasks import test_client_data
from tff_ocs.tasks import cifar100
from tff_ocs.tasks import client_data
from tff_ocs.tasks import task


def test_model_has_the_papers_parameters():
  model = cifar100.build_model(seed=0)
  sizes = [w.size for w in model.initial_weights[0]]
  assert sum(sizes) == cifar100.NUM_PARAMETERS == 5_897_508
  convolutions = [864, 18_432, 73_728, 147_456, 294_912, 589_824]
  assert sizes[::2] == [*convolutions, 4_194_304, 524_288, 51_200]
  assert sizes[1::2] == [32, 64, 128, 128, 256, 256, 1024, 512, 100]


@pytest.mark.parametrize('scale_inputs', [False, True])
def test_model_equals_the_keras_model_of_the_paper(scale_inputs):
  model = cifar100.build_model(seed=3, scale_inputs=scale_inputs)
  layers = tf.keras.layers
  convolution = {'padding': 'same', 'activation': 'relu'}
  keras_model = tf.keras.Sequential(
    [
      layers.Conv2D(32, 3, **convolution, input_shape=(32, 32, 3)),
      layers.Conv2D(64, 3, **convolution),
      layers.MaxPool2D(2),
      layers.Conv2D(128, 3, **convolution),
      layers.Conv2D(128, 3, **convolution),
      layers.MaxPool2D(2),
      layers.Conv2D(256, 3, **convolution),
      layers.Conv2D(256, 3, **convolution),
      layers.MaxPool2D(2),
      layers.Flatten(),
      layers.Dense(1024, activation='relu'),
      layers.Dense(512, activation='relu'),
      layers.Dense(100),
    ]
  )
  keras_model.set_weights(list(model.initial_weights[0]))
  x = np.random.default_rng(0).integers(
    256, size=(4, 32, 32, 3), dtype=np.uint8
  )
  # Without the flag the network sees 0..255, as the authors'.
  inputs = x.astype(np.float32) / (255 if scale_inputs else 1)
  expected = keras_model(inputs).numpy()
  np.testing.assert_allclose(
    model.predict_on_batch(model.initial_weights, x, training=False),
    expected,
    rtol=1e-4,
    atol=1e-5 * np.abs(expected).max(),
  )


def test_initial_weights_depend_on_the_seed_only():
  first, again, other = (cifar100.build_model(s) for s in (0, 0, 1))
  for w, v, u in zip(*(m.initial_weights[0] for m in (first, again, other))):
    np.testing.assert_array_equal(w, v)
    if w.ndim > 1:
      assert not np.array_equal(w, u)


def test_synthetic_images_are_learnable():
  loaded = cifar100.load_synthetic(seed=0)
  train = [loaded.train.examples(i) for i in loaded.train.client_ids]
  x = np.concatenate([examples.x for examples in train]).reshape(-1, 3072)
  y = np.concatenate([examples.y for examples in train])
  labels = np.unique(y)
  means = np.stack([x[y == label].mean(axis=0) for label in labels])
  test = loaded.test.x.reshape(-1, 3072).astype(float)
  # Of |t - m|^2 the part that depends on m.
  distances = np.sum(means**2, axis=1) - 2 * test @ means.T
  assert np.mean(labels[distances.argmin(axis=1)] == loaded.test.y) > 0.9


def test_synthetic_pool_is_balanced_and_has_the_asked_size():
  loaded = cifar100.load_synthetic(
    seed=0, num_clients=7, num_examples=30, num_test_examples=3
  )
  assert list(loaded.train.num_examples.values()) == [30] * 7
  assert len(loaded.test.y) == 3
  assert loaded.data_name == 'synthetic images, 7 clients'
  for client_id in loaded.train.client_ids:
    x, y = loaded.train.examples(client_id)
    assert x.shape == (30, 32, 32, 3) and x.dtype == np.uint8
    # Each client prefers some of the 100 classes.
    assert y.dtype == np.int32 and len(set(y)) < 20
  with pytest.raises(
    ValueError, match='num_clients must be at least 1, found 0'
  ):
    cifar100.load_synthetic(seed=0, num_clients=0)


def serialize(image, label):
  def integers(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

  return tf.train.Example(
    features=tf.train.Features(
      feature={
        'coarse_label': integers([label // 5]),
        'image': integers(image.ravel().tolist()),
        'label': integers([label]),
      }
    )
  ).SerializeToString()


@pytest.fixture
def cache_dir(tmp_path):
  """A file of the real one's schema: 4 train and 2 test clients."""
  rows = [
    (
      split,
      str(client),
      serialize(np.full((32, 32, 3), 60 * client + i), 20 * client + i),
    )
    for split, num_clients in (('train', 4), ('test', 2))
    for client in range(num_clients)
    for i in range(3)
  ]
  test_client_data.write_database(tmp_path / cifar100.DATABASE, rows)
  return tmp_path


@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize(
  ('pixel', 'label', 'message'),
  [
    (0, 100, 'labels must lie in [0, 99], found 100.'),
    (0, -1, 'labels must lie in [0, 99], found -1.'),
    # As uint8 this would be 0.
    (256, 0, 'pixels must lie in [0, 255], found 256.'),
    (-1, 0, 'pixels must lie in [0, 255], found -1.'),
  ],
)
def test_values_out_of_range_are_refused_before_training(
  split, pixel, label, message, tmp_path
):
  good, bad = np.zeros((2, 32, 32, 3), int)
  bad[3, 5, 1] = pixel
  rows = [
    ('train', '3', serialize(good, 99)),
    ('test', '3', serialize(good, 0)),
    (split, '4', serialize(bad, label)),
  ]
  test_client_data.write_database(tmp_path / cifar100.DATABASE, rows)
  test_client_data.check_values(
    lambda: cifar100.load_tff(seed=0, cache_dir=str(tmp_path)),
    f'{cifar100.DATABASE}, client 4: {message}',
  )


def test_real_loader_reads_the_cache(cache_dir):
  loaded = cifar100.load_tff(seed=0, cache_dir=str(cache_dir))
  assert loaded.train.num_examples == {str(i): 3 for i in range(4)}
  x, y = loaded.train.examples('3')
  assert x.shape == (3, 32, 32, 3) and x.dtype == np.uint8
  np.testing.assert_array_equal(x[:, 31, 31, 2], [180, 181, 182])
  np.testing.assert_array_equal(y, [60, 61, 62])
  # The test set is that of all test clients.
  np.testing.assert_array_equal(loaded.test.y, [0, 1, 2, 20, 21, 22])
  np.testing.assert_array_equal(loaded.test.x[3:, 0, 0, 0], [60, 61, 62])
  assert loaded.data_name == 'images in cifar100.sqlite, 4 clients'
  # And it goes through the model.
  evaluate = task.build_evaluation(loaded.model, loaded.test)
  weights = tff.learning.models.ModelWeights(*loaded.model.initial_weights)
  assert 0 <= evaluate(weights).accuracy <= 1


def test_names_say_what_the_data_is(cache_dir):
  loaded = cifar100.load_tff(
    seed=0, cache_dir=str(cache_dir), scale_inputs=True, data_name='grey images'
  )
  assert loaded.data_name == 'grey images, scaled to [0, 1]'


def test_missing_file_that_cannot_be_downloaded_says_the_way_out(
  tmp_path, monkeypatch
):
  def fail(cache_dir):
    raise OSError('no route to host')

  monkeypatch.setattr(tff.simulation.datasets.cifar100, 'load_data', fail)
  with pytest.raises(client_data.DataError) as error:
    cifar100.load_tff(seed=0, cache_dir=str(tmp_path / 'cache'))
  for part in ('cifar100.sqlite', 'no route', '--data_source=synthetic'):
    assert part in str(error.value)
  assert not list((tmp_path / 'cache').iterdir())


def test_partial_file_is_refused(cache_dir):
  path = cache_dir / cifar100.DATABASE
  path.write_bytes(path.read_bytes()[:-4096])
  with pytest.raises(client_data.DataError, match='is partial.*download it'):
    cifar100.load_tff(seed=0, cache_dir=str(cache_dir))


def test_file_of_another_data_set_is_refused(tmp_path):
  # It has the same splits, but its examples are no images.
  test_client_data.write_database(tmp_path / cifar100.DATABASE)
  with pytest.raises(client_data.DataError, match='another data set'):
    cifar100.load_tff(seed=0, cache_dir=str(tmp_path))
