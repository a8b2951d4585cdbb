"""Tests of saving and loading final weights."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import records
from tff_ocs.records import files
from tff_ocs.records import weights as weights_lib

TRAINABLE = [np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)]
NON_TRAINABLE = [np.array(7, np.int64)]


def build_model(trainable, non_trainable):
  return tff.learning.models.FunctionalModel(
    initial_weights=(trainable, non_trainable),
    predict_on_batch_fn=tf.function(lambda *_: None),
    loss_fn=tf.function(lambda *_: None),
    input_spec=(tf.TensorSpec([None]), tf.TensorSpec([None])),
  )


def write(path, trainable=TRAINABLE, non_trainable=NON_TRAINABLE):
  weights_lib.write_weights(
    path, tff.learning.models.ModelWeights(trainable, non_trainable)
  )


def test_weights_come_back_in_order_and_in_two_parts(tmp_path):
  trainable = [np.full(1, i, np.float32) for i in range(12)]
  write(tmp_path, [tf.constant(array) for array in trainable])
  with np.load(tmp_path / 'weights.npz') as loaded:
    assert loaded.files == [
      *(f'trainable_{i}' for i in range(12)),
      'non_trainable_0',
    ]
  for path in (tmp_path, tmp_path / 'weights.npz'):
    loaded = records.load_weights(path)
    assert isinstance(loaded, tff.learning.models.ModelWeights)
    np.testing.assert_equal(loaded.trainable, trainable)
    np.testing.assert_equal(loaded.non_trainable, NON_TRAINABLE)
  assert [path.name for path in tmp_path.iterdir()] == ['weights.npz']


def test_weights_have_the_names_and_the_structure_of_the_model(tmp_path):
  named = collections.OrderedDict(kernel=TRAINABLE[0], bias=TRAINABLE[1])
  write(tmp_path, named)
  with np.load(tmp_path / 'weights.npz') as loaded:
    assert set(loaded) == {
      'trainable_bias',
      'trainable_kernel',
      'non_trainable_0',
    }
    np.testing.assert_array_equal(loaded['trainable_bias'], TRAINABLE[1])
  model = build_model(named, tuple(NON_TRAINABLE))
  loaded = records.load_weights(tmp_path, model)
  assert list(loaded.trainable) == ['kernel', 'bias']
  np.testing.assert_equal(dict(loaded.trainable), dict(named))
  np.testing.assert_equal(loaded.non_trainable, tuple(NON_TRAINABLE))


def test_files_of_former_versions_are_loaded(tmp_path):
  np.savez(tmp_path / 'weights.npz', *TRAINABLE, *NON_TRAINABLE)
  loaded = records.load_weights(tmp_path)
  assert (len(loaded.trainable), len(loaded.non_trainable)) == (3, 0)
  model = build_model(tuple(TRAINABLE), tuple(NON_TRAINABLE))
  loaded = records.load_weights(tmp_path, model)
  np.testing.assert_equal(loaded.trainable, tuple(TRAINABLE))
  np.testing.assert_equal(loaded.non_trainable, tuple(NON_TRAINABLE))


@pytest.mark.parametrize(
  'trainable, message',
  [
    (TRAINABLE[:1], '3 arrays, where the model has 2'),
    (
      [TRAINABLE[0].T, TRAINABLE[1]],
      r'array 0 is float32\[2, 3\], where the model has float32\[3, 2\]',
    ),
    (
      [TRAINABLE[0], TRAINABLE[1].astype(np.float64)],
      r'array 1 is float32\[3\], where the model has float64\[3\]',
    ),
  ],
)
def test_weights_of_another_model_are_refused(tmp_path, trainable, message):
  write(tmp_path)
  model = build_model(tuple(trainable), tuple(NON_TRAINABLE))
  with pytest.raises(files.RecordError, match=f'another model: {message}'):
    records.load_weights(tmp_path, model)


def damage_by_cutting(path):
  path.write_bytes(path.read_bytes()[:-100])


def damage_by_scrambling(path):
  content = bytearray(path.read_bytes())
  content[100:200] = bytes(100)
  path.write_bytes(content)


@pytest.mark.parametrize(
  'damage',
  [
    damage_by_cutting,
    damage_by_scrambling,
    lambda path: path.write_bytes(b''),
    lambda path: path.write_text('some text'),
    lambda path: np.save(path.open('wb'), TRAINABLE[0]),
    lambda path: np.savez(path, images=TRAINABLE[0]),
  ],
)
def test_other_files_are_refused_in_one_line(tmp_path, damage):
  write(tmp_path)
  damage(tmp_path / 'weights.npz')
  with pytest.raises(files.RecordError, match='is not a file of weights') as e:
    records.load_weights(tmp_path)
  assert '\n' not in str(e.value)
  with pytest.raises(FileNotFoundError):
    records.load_weights(tmp_path / 'gone.npz')
