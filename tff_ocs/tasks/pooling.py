"""Max pooling whose gradient is also cheap within a `tf.while_loop`.

TensorFlow's own gradient is fast only with its oneDNN kernels. In a graph with
a loop it often does not choose them, and then searches each window for its
maximum again. This takes an eighth of the time of training the CNN of
`tff_ocs.tasks.femnist`.
"""

import tensorflow as tf


@tf.custom_gradient
def max_pool_2x2(x: tf.Tensor) -> tf.Tensor:
  """Computes the maxima of 2 x 2 windows that do not overlap.

  If several entries of a window equal the maximum, one of them receives the
  whole gradient: one in the left column if there is any, and the upper one of
  two in a column.

  Args:
    x: A float32 tensor of shape [batch, height, width, channels]. Only the
      batch size may be unknown; height and width are even.

  Returns:
    A float32 tensor of shape [batch, height / 2, width / 2, channels].

  Raises:
    ValueError: If height or width are odd.
  """
  _, height, width, channels = x.shape
  if height % 2 or width % 2:
    raise ValueError(f'Height and width must be even, found {height, width}.')
  row = width * channels
  upper, lower = tf.split(tf.reshape(x, [-1, 2 * row]), 2, axis=-1)
  columns = tf.reshape(tf.maximum(upper, lower), [-1, 2 * channels])
  left, right = tf.split(columns, 2, axis=-1)
  y = tf.maximum(left, right)

  def gradient(of_y):
    of_y = tf.reshape(of_y, [-1, channels])
    of_columns = _to_larger(of_y, left, right)
    of_x = _to_larger(tf.reshape(of_columns, [-1, row]), upper, lower)
    return tf.reshape(of_x, [-1, height, width, channels])

  return tf.reshape(y, [-1, height // 2, width // 2, channels]), gradient


def _to_larger(gradient, first, second):
  """Concatenates both gradients: the larger input's, and 0 for the other."""
  of_first = tf.where(first >= second, gradient, tf.zeros_like(gradient))
  return tf.concat([of_first, gradient - of_first], axis=-1)
