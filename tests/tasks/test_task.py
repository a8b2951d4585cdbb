"""Tests of the evaluation and of the choice of the validation set."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs.tasks import client_data
from tff_ocs.tasks import task


def build_model():
  """Builds a model whose logits are the inputs times a weight."""

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


@pytest.mark.parametrize(
  'dtype',
  [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64],
)
def test_accuracy_of_labels_of_each_type(dtype):
  is_correct = task.is_correct(
    tf.constant(np.array([2, 0, 1], dtype)), tf.constant(np.eye(3)[[2, 1, 1]])
  )
  np.testing.assert_array_equal(is_correct, [True, False, True])


def test_labels_that_are_no_classes_are_named():
  with pytest.raises(TypeError, match='Labels must be integers, found float32'):
    task.is_correct(tf.constant([1.7]), tf.constant([[0.0, 1.0]]))


def test_evaluation_of_a_keras_model():
  # It works in graphs only.
  keras_model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=[2])])
  model = tff.learning.models.functional_model_from_keras(
    keras_model,
    loss_fn=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=(
      tf.TensorSpec([None, 2], tf.float32),
      tf.TensorSpec([None], tf.int32),
    ),
  )
  x = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
  kernel, bias = model.initial_weights[0]
  logits = x @ kernel + bias
  y = logits.argmax(axis=1).astype(np.int32)
  y[0] = (y[0] + 1) % 3
  evaluate = task.build_evaluation(
    model, client_data.Examples(x, y), batch_size=4
  )
  result = evaluate(tff.learning.models.ModelWeights(*model.initial_weights))
  assert result.accuracy == 6 / 7
  log_sums = np.log(np.exp(logits).sum(axis=1))
  assert result.loss == pytest.approx(
    np.mean(log_sums - logits[np.arange(7), y]), rel=1e-5
  )


def test_evaluation_refuses_labels_of_another_shape():
  # Compared with the shape [batch], they would count batch x batch hits.
  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([2, 3], np.float32),), ()),
    predict_on_batch_fn=tf.function(lambda w, x, training: x @ w[0][0]),
    loss_fn=tf.function(lambda output, label, sample_weight=None: 0.0),
    input_spec=(
      tf.TensorSpec([None, 2], tf.float32),
      tf.TensorSpec([None, 1], tf.int32),
    ),
  )
  with pytest.raises(ValueError, match=r'\(None, 1\) and logits .*\(None, 3\)'):
    task.build_evaluation(
      model,
      client_data.Examples(
        np.zeros([4, 2], np.float32), np.zeros([4, 1], np.int32)
      ),
    )


def test_evaluation_needs_examples():
  with pytest.raises(ValueError, match='at least one example'):
    task.build_evaluation(
      build_model(),
      client_data.Examples(np.zeros([0, 3], np.float32), np.zeros(0, np.int32)),
    )


@pytest.mark.parametrize('batch_size', [0, -3])
def test_evaluation_checks_the_batch_size(batch_size):
  with pytest.raises(ValueError, match=f'at least 1, found {batch_size}'):
    task.build_evaluation(
      build_model(),
      client_data.Examples(np.zeros([1, 3], np.float32), np.zeros(1, np.int32)),
      batch_size=batch_size,
    )


def build_task(sizes):
  """Builds a task whose examples contain their client and number."""
  train = {}
  for index, size in enumerate(sizes):
    x = np.full([size, 3], index, np.float32)
    x[:, 1] = np.arange(size)
    train[f'client_{index:03d}'] = client_data.Examples(
      x, np.arange(size, dtype=np.int32)
    )
  test = client_data.Examples(
    np.full([50, 3], -1, np.float32), np.arange(50, dtype=np.int32)
  )
  return task.Task(
    'made up', build_model(), client_data.ArrayClientData(train), test
  )


@pytest.mark.parametrize('fraction, expected', [(0.1, 10), (0.25, 25)])
def test_holdout_splits_the_clients_and_keeps_the_mix_of_sizes(
  fraction, expected
):
  # Ten large clients among ninety small ones.
  sizes = [3 if index % 10 else 200 for index in range(100)]
  whole = build_task(sizes)
  split = task.hold_out(whole, fraction)
  held_out = set(split.test.x[:, 0].astype(int))
  left = {int(client_id[-3:]) for client_id in split.train.client_ids}
  assert len(held_out) == expected
  assert held_out | left == set(range(100)) and not held_out & left
  num_large = sum(sizes[index] == 200 for index in held_out)
  assert abs(num_large - 10 * fraction) < 1
  # All of their examples, and none of the validation set.
  assert len(split.test.y) == sum(sizes[index] for index in held_out)
  assert len({tuple(x) for x in split.test.x}) == len(split.test.y)
  np.testing.assert_array_equal(split.test.x[:, 1], split.test.y)
  for client_id in split.train.client_ids:
    np.testing.assert_array_equal(
      split.train.examples(client_id).x, whole.train.examples(client_id).x
    )
  assert split.model is whole.model
  by_client = split.test_by_client
  assert {int(client_id[-3:]) for client_id in by_client.client_ids} == held_out
  np.testing.assert_array_equal(by_client.read_all().x, split.test.x)
  assert split.describe() == {
    'data': f'made up, {expected} clients held out to validate',
    'pool_clients': 100 - expected,
    'pool_examples': sum(sizes) - len(split.test.y),
    'validation_examples': len(split.test.y),
  }


@pytest.mark.parametrize(
  'num_clients, fraction, expected', [(2, 0.9, 1), (2, 0.01, 1), (3, 0.99, 2)]
)
def test_holdout_takes_and_leaves_at_least_one_client(
  num_clients, fraction, expected
):
  split = task.hold_out(build_task([5] * num_clients), fraction)
  assert len(split.train.client_ids) == num_clients - expected
  assert len(split.test.y) == 5 * expected


@pytest.mark.parametrize('fraction', [0, 1, -0.1, float('nan')])
def test_holdout_checks_the_fraction(fraction):
  with pytest.raises(ValueError, match='fraction must lie in'):
    task.hold_out(build_task([5, 5]), fraction)


def test_holdout_needs_two_clients():
  with pytest.raises(ValueError, match='at least 2 clients, found 1'):
    task.hold_out(build_task([5]), 0.5)


def test_validation_subset_is_drawn_by_the_seed():
  whole = build_task([5, 5])
  drawn = [
    task.draw_validation_subset(whole, 20, seed).test.y for seed in (0, 0, 1)
  ]
  for y in drawn:
    assert len(set(y)) == 20
    np.testing.assert_array_equal(y, np.sort(y))
  np.testing.assert_array_equal(drawn[0], drawn[1])
  # Equal by chance with a probability of 1 / (50 choose 20) = 2e-14.
  assert not np.array_equal(drawn[0], drawn[2])
  of_all = task.draw_validation_subset(whole, 50, 0)
  np.testing.assert_array_equal(of_all.test.y, whole.test.y)
  assert of_all.data_name == 'made up, 50 validation examples drawn'


@pytest.mark.parametrize('num_examples', [0, 51])
def test_validation_subset_checks_its_size(num_examples):
  with pytest.raises(ValueError, match='at most the 50 examples'):
    task.draw_validation_subset(build_task([5]), num_examples, 0)


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
