"""A task: the data, the model and the loss that a process is trained on."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs.tasks import client_data


@dataclasses.dataclass(frozen=True)
class Task:
  """One data set with a model of it.

  Attributes:
    data_name: What the data really is, for captions and tables.
    model: A `tff.learning.models.FunctionalModel` whose outputs are logits of
      shape [batch, ..., num_classes] and whose labels are integers of shape
      [batch, ...].
    train: The clients' examples.
    test: The validation set, never seen in training.
  """

  data_name: str
  model: tff.learning.models.FunctionalModel
  train: client_data.ClientData
  test: client_data.Examples

  def describe(self) -> dict[str, object]:
    """What the task is trained on, for records of a run."""
    return {
      'data': self.data_name,
      'pool_clients': len(self.train.client_ids),
      'pool_examples': sum(self.train.num_examples.values()),
      'validation_examples': len(self.test.y),
    }


class Evaluation(NamedTuple):
  """How good weights are on a set of examples.

  Attributes:
    accuracy: The fraction of labels whose logit is the largest.
    loss: The mean loss over the examples.
  """

  accuracy: float
  loss: float


def build_evaluation(
  model: tff.learning.models.FunctionalModel,
  examples: client_data.Examples,
  *,
  batch_size: int = 1000,
) -> Callable[[tff.learning.models.ModelWeights], Evaluation]:
  """Builds the evaluation of a model's weights on given examples.

  Args:
    model: The model, see `Task`.
    examples: The `Examples` to evaluate on; at least one.
    batch_size: How many examples go through the model at once.

  Returns:
    A function from `tff.learning.models.ModelWeights` to `Evaluation`.

  Raises:
    ValueError: If there are no examples.
  """
  num_examples = len(examples.y)
  if num_examples == 0:
    raise ValueError('examples must hold at least one example, found none.')

  @tf.function(reduce_retracing=True)
  def evaluate_batch(weights, x, y):
    logits = model.predict_on_batch(weights, x, training=False)
    hits = tf.equal(tf.argmax(logits, axis=-1, output_type=y.dtype), y)
    return tf.reduce_sum(tf.cast(hits, tf.int64)), model.loss(logits, y)

  def evaluate(weights):
    weights = tf.nest.map_structure(
      tf.convert_to_tensor, (weights.trainable, weights.non_trainable)
    )
    num_hits, loss_sum = 0, 0.0
    for start in range(0, num_examples, batch_size):
      x = examples.x[start : start + batch_size]
      y = examples.y[start : start + batch_size]
      hits, loss = evaluate_batch(weights, tf.constant(x), tf.constant(y))
      num_hits += int(hits)
      loss_sum += float(loss) * len(y)
    return Evaluation(num_hits / examples.y.size, loss_sum / num_examples)

  return evaluate


def mean_cross_entropy(logits, labels, sample_weight=None):
  """The loss of all tasks, as `tff.learning.models.FunctionalModel` takes it.

  Args:
    logits: A float32 tensor of shape [batch, ..., num_classes].
    labels: An int32 tensor of shape [batch, ...].
    sample_weight: Not used.

  Returns:
    The mean cross entropy over all labels, a float32 scalar.
  """
  del sample_weight
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  )


def glorot_uniform(rng: np.random.Generator, shape) -> np.ndarray:
  """Initial weights as of Glorot and Bengio (2010), float32.

  Args:
    rng: The source of randomness.
    shape: [fan_in, fan_out], or [height, width, fan_in, fan_out] for a
      convolution's kernel.

  Returns:
    An array of `shape`, uniform within +-sqrt(6 / (fan_in + fan_out)), where
    the fans of a convolution count each of its height x width positions.
  """
  receptive_field = int(np.prod(shape[:-2]))
  limit = np.sqrt(6 / (receptive_field * (shape[-2] + shape[-1])))
  return rng.uniform(-limit, limit, shape).astype(np.float32)
