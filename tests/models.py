"""Models of the tests."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def build_linear_model(num_inputs):
  """Linear regression from zero weights, with the mean squared error."""

  @tf.function
  def predict(weights, x, training):
    del training
    trainable, _ = weights
    return tf.matmul(x, trainable[0]) + trainable[1]

  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean((output - label) ** 2)

  return tff.learning.models.FunctionalModel(
    initial_weights=(
      (np.zeros([num_inputs, 1], np.float32), np.zeros([1], np.float32)),
      (),
    ),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=(
      tf.TensorSpec([None, num_inputs], tf.float32),
      tf.TensorSpec([None, 1], tf.float32),
    ),
  )
