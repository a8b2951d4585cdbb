"""Compares max pooling with TensorFlow's own."""

import numpy as np
import pytest
import tensorflow as tf

from tff_ocs.tasks import pooling


def _pool_and_gradient(pool, x, of_y):
  x = tf.constant(x)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = pool(x)
  return y.numpy(), tape.gradient(y, x, output_gradients=of_y).numpy()


def _stock(x):
  return tf.nn.max_pool2d(x, 2, 2, 'VALID')


@pytest.mark.parametrize(
  'shape', [(3, 4, 6, 5), (1, 2, 2, 1), (20, 14, 14, 64)]
)
@pytest.mark.parametrize('in_loop', [False, True])
def test_equals_tensorflows(shape, in_loop):
  rng = np.random.default_rng(0)
  # A permutation: no two are equal.
  x = rng.permutation(np.prod(shape)).reshape(shape).astype(np.float32)
  out_shape = (shape[0], shape[1] // 2, shape[2] // 2, shape[3])
  of_y = rng.normal(size=out_shape).astype(np.float32)
  expected = _pool_and_gradient(_stock, x, of_y)
  pool = pooling.max_pool_2x2
  if in_loop:
    pool = tf.function(
      lambda x: tf.while_loop(
        lambda i, *_: i < 1,
        lambda i, x, y: (i + 1, x, pooling.max_pool_2x2(x)),
        (0, x, tf.zeros(out_shape)),
      )[2]
    )
  found = _pool_and_gradient(pool, x, of_y)
  for mine, stock in zip(found, expected):
    np.testing.assert_array_equal(mine, stock)


def test_of_equal_entries_one_has_the_gradient():
  rng = np.random.default_rng(1)
  x = rng.integers(2, size=(4, 6, 8, 3)).astype(np.float32)
  of_y = rng.normal(size=(4, 3, 4, 3)).astype(np.float32)
  y, of_x = _pool_and_gradient(pooling.max_pool_2x2, x, of_y)
  np.testing.assert_array_equal(y, _stock(x))
  windows = of_x.reshape(4, 3, 2, 4, 2, 3)
  np.testing.assert_array_equal(
    np.count_nonzero(windows, axis=(2, 4)), np.ones(of_y.shape)
  )
  np.testing.assert_array_equal(windows.sum(axis=(2, 4)), of_y)
  largest = y.repeat(2, axis=1).repeat(2, axis=2)
  assert np.all(x[of_x != 0] == largest[of_x != 0])


def test_batch_of_nothing():
  y, of_x = _pool_and_gradient(
    pooling.max_pool_2x2,
    np.zeros((0, 4, 4, 2), np.float32),
    np.zeros((0, 2, 2, 2), np.float32),
  )
  assert y.shape == (0, 2, 2, 2)
  assert of_x.shape == (0, 4, 4, 2)


@pytest.mark.parametrize('shape', [(1, 3, 4, 1), (1, 4, 3, 1)])
def test_odd_sizes_are_refused(shape):
  with pytest.raises(ValueError, match='even, found'):
    pooling.max_pool_2x2(tf.zeros(shape))
