"""Tests of the evaluation."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs.tasks import client_data
from tff_ocs.tasks import task


def build_model():
  """Logits that are the input, times a weight."""

  @tf.function
  def predict_on_batch(weights, x, training):
    del training
    return weights[0][0] * x

  def loss(logits, labels, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    )

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.float32(1),), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss,
    input_spec=(
      tf.TensorSpec([None, 3], tf.float32),
      tf.TensorSpec([None], tf.int32),
    ),
  )


@pytest.mark.parametrize('batch_size', [1, 4, 7, 100])
def test_evaluation_equals_numpy(batch_size):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(11, 3)).astype(np.float32)
  y = rng.integers(3, size=11).astype(np.int32)
  evaluate = task.build_evaluation(
    build_model(), client_data.Examples(x, y), batch_size=batch_size
  )
  for scale in (1.0, 2.0, -1.0):
    result = evaluate(
      tff.learning.models.ModelWeights((np.float32(scale),), ())
    )
    logits = scale * x.astype(np.float64)
    log_sums = np.log(np.exp(logits).sum(axis=1))
    assert result.accuracy == np.mean(logits.argmax(axis=1) == y)
    np.testing.assert_allclose(
      result.loss, np.mean(log_sums - logits[np.arange(11), y]), rtol=1e-5
    )


def test_evaluation_needs_examples():
  with pytest.raises(ValueError, match='at least one example'):
    task.build_evaluation(
      build_model(),
      client_data.Examples(np.zeros([0, 3], np.float32), np.zeros(0, np.int32)),
    )


@pytest.mark.parametrize(
  'shape, limit',
  [((300, 100), (6 / 400) ** 0.5), ((5, 5, 20, 40), (6 / 1500) ** 0.5)],
)
def test_glorot_uniform_has_the_limits_of_the_fans(shape, limit):
  weights = task.glorot_uniform(np.random.default_rng(0), shape)
  assert weights.shape == shape
  assert weights.dtype == np.float32
  # The largest of 20,000 uniform numbers is within 0.2 % of the limit, but for
  # a probability of exp(-40).
  assert 0.998 * limit < np.abs(weights).max() <= limit * (1 + 1e-6)
