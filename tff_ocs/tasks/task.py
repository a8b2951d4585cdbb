"""A task combines the data, the model and the loss of an experiment."""

import dataclasses
import math
import types
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs.tasks import client_data

# A function from labels and outputs of a batch, in this order as in Keras, to a
# tensor. The metric is the mean of all numbers in it, over all batches.
Metric = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def is_correct(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """The metric `accuracy`: whether each label has the largest logit.

  Args:
    labels: Integers of shape [batch, ...].
    logits: A tensor of shape [batch, ..., num_classes].

  Returns:
    A bool tensor of shape [batch, ...].

  Raises:
    TypeError: If the labels are no integers.
    ValueError: If the labels have another shape.
  """
  if not labels.dtype.is_integer:
    raise TypeError(f'Labels must be integers, found {labels.dtype.name}.')
  if not logits.shape[:-1].is_compatible_with(labels.shape):
    raise ValueError(
      'Labels must have the shape of the logits without the last dimension,'
      f' found labels of shape {labels.shape} and logits of shape'
      f' {logits.shape}.'
    )
  # Not all types of labels can be those of tf.argmax.
  return tf.equal(tf.argmax(logits, axis=-1), tf.cast(labels, tf.int64))


# The metrics of classification.
ACCURACY: Mapping[str, Metric] = types.MappingProxyType(
  {'accuracy': is_correct}
)


@dataclasses.dataclass(frozen=True)
class Task:
  """A data set and a model to train on it.

  Attributes:
    data_name: The name of the data in captions and tables.
    model: A `tff.learning.models.FunctionalModel`. With the metric `accuracy`,
      its outputs are logits of shape [batch, ..., num_classes] and its labels
      are integers of shape [batch, ...].
    train: The clients' examples.
    test: The validation set, never seen in training.
    test_by_client: The validation examples of each client, where they are those
      of clients; otherwise `None`.
    sha256_of_files: The SHA-256 of the files of the data by name, where their
      content is not known from their name.
    metrics: What is measured on the validation set, in addition to the loss, by
      name. With `accuracy`, figures and tables show the accuracy, otherwise the
      loss.
  """

  data_name: str
  model: tff.learning.models.FunctionalModel
  train: client_data.ClientData
  test: client_data.Examples
  sha256_of_files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  metrics: Mapping[str, Metric] = dataclasses.field(
    default_factory=lambda: ACCURACY
  )
  test_by_client: Optional[client_data.ClientData] = None

  def describe(self) -> dict[str, object]:
    """Describes the data for the record of a run.

    Returns:
      The name of the data and the numbers of training clients, training
      examples and validation examples; and `sha256_of_files`, if there is one.
    """
    files = dict(self.sha256_of_files)
    return {
      **({'sha256_of_files': files} if files else {}),
      'data': self.data_name,
      'pool_clients': len(self.train.client_ids),
      'pool_examples': sum(self.train.num_examples.values()),
      'validation_examples': len(self.test.y),
    }


def hold_out(task: Task, fraction: float) -> Task:
  """Replaces the validation set by some of the training clients.

  Decisions such as the choice of a step size must not be made on the validation
  set. The clients are ordered by size and every (1 / fraction)-th is held out,
  so that the held-out clients have the same mix of sizes as the pool. Each call
  holds out the same clients.

  Args:
    task: The task.
    fraction: The fraction of the clients to hold out, in (0, 1). At least one
      client is held out, and at least one remains.

  Returns:
    The `Task` without the held-out clients in `train`, and with all of their
    examples as `test`.

  Raises:
    ValueError: If `fraction` is out of range or there is only one client.
  """
  if not 0 < fraction < 1:
    raise ValueError(f'fraction must lie in (0, 1), found {fraction!r}.')
  sizes = task.train.num_examples
  num_clients = len(sizes)
  if num_clients < 2:
    raise ValueError(
      f'A holdout set needs a pool of at least 2 clients, found {num_clients}.'
    )
  num_held_out = min(max(1, round(fraction * num_clients)), num_clients - 1)
  by_size = sorted(sizes, key=lambda client_id: (sizes[client_id], client_id))
  # The middles of equal parts of the order.
  places = (np.arange(num_held_out) + 0.5) * num_clients / num_held_out
  held_out = {by_size[place] for place in places.astype(int)}
  held_out_data = client_data.SelectedClientData(
    task.train, dict.fromkeys(held_out)
  )
  return dataclasses.replace(
    task,
    data_name=f'{task.data_name}, {num_held_out} clients held out to validate',
    train=client_data.SelectedClientData(
      task.train, {i: None for i in sizes if i not in held_out}
    ),
    test=held_out_data.read_all(),
    test_by_client=held_out_data,
  )


def draw_validation_subset(task: Task, num_examples: int, seed: int) -> Task:
  """Replaces the validation set by a random part of it, to save time.

  Args:
    task: The task.
    num_examples: The number of examples to draw, without replacement.
    seed: The seed of the draw.

  Returns:
    The `Task` with the drawn examples as `test`, in their original order.

  Raises:
    ValueError: If `num_examples` is below 1, or above the size of the
      validation set.
  """
  available = len(task.test.y)
  if not 1 <= num_examples <= available:
    raise ValueError(
      'num_examples must be at least 1 and at most the'
      f' {available} examples of the validation set, found {num_examples!r}.'
    )
  rng = np.random.default_rng(seed)
  drawn = np.sort(rng.choice(available, num_examples, replace=False))
  return dataclasses.replace(
    task,
    data_name=f'{task.data_name}, {num_examples:,} validation examples drawn',
    test=client_data.Examples(task.test.x[drawn], task.test.y[drawn]),
  )


class Evaluation(NamedTuple):
  """The result of an evaluation of a model.

  Attributes:
    accuracy: The fraction of labels that have the largest logit; `None` if the
      accuracy is not one of the metrics.
    loss: The mean loss over the examples.
    others: The other metrics by name.
  """

  accuracy: Optional[float]
  loss: float
  others: Mapping[str, float] = types.MappingProxyType({})


def build_evaluation(
  model: tff.learning.models.FunctionalModel,
  examples: client_data.Examples,
  *,
  batch_size: int = 1000,
  metrics: Mapping[str, Metric] = ACCURACY,
) -> Callable[[tff.learning.models.ModelWeights], Evaluation]:
  """Builds a function that evaluates a model's weights on given examples.

  Args:
    model: The model, see `Task`.
    examples: The `Examples` to evaluate on; at least one.
    batch_size: The number of examples in a batch, at least 1.
    metrics: The metrics by name, see `Metric`.

  Returns:
    A function from `tff.learning.models.ModelWeights` to `Evaluation`.

  Raises:
    ValueError: If there are no examples, `batch_size` is below 1, or the labels
      do not have the shape that `Task` describes.
  """
  if len(examples.y) == 0:
    raise ValueError('examples must hold at least one example, found none.')
  evaluate = build_evaluator(model, batch_size=batch_size, metrics=metrics)
  return lambda model_weights: evaluate(model_weights, examples)


def build_evaluator(
  model: tff.learning.models.FunctionalModel,
  *,
  batch_size: int = 1000,
  metrics: Mapping[str, Metric] = ACCURACY,
) -> Callable[
  [tff.learning.models.ModelWeights, client_data.Examples], Evaluation
]:
  """Builds a function that evaluates weights on the examples of each call.

  These may be, for example, those of one client.

  Args:
    model: The model, see `Task`.
    batch_size: The number of examples in a batch, at least 1.
    metrics: The metrics by name, see `Metric`.

  Returns:
    A function from `tff.learning.models.ModelWeights` and `Examples` to
    `Evaluation`, which is NaN without examples.

  Raises:
    ValueError: If `batch_size` is below 1, or the labels do not have the shape
      that `Task` describes.
  """
  arguments.check_integer('batch_size', batch_size)

  # In a graph of its own, since Keras models of TFF work in graphs only.
  with tf.Graph().as_default() as graph:
    weights, (x, y) = tf.nest.map_structure(
      lambda t: tf.compat.v1.placeholder(t.dtype, t.shape),
      (
        tf.nest.map_structure(np.asarray, model.initial_weights),
        model.input_spec,
      ),
    )
    outputs = model.predict_on_batch(weights, x, training=False)
    values = {name: metric(y, outputs) for name, metric in metrics.items()}
    results = (
      model.loss(outputs, y),
      # Numbers of hits are exact in float64.
      {n: tf.reduce_sum(tf.cast(v, tf.float64)) for n, v in values.items()},
      {n: tf.size(v, tf.int64) for n, v in values.items()},
    )
  session = tf.compat.v1.Session(graph=graph)

  def evaluate(model_weights, examples):
    num_examples = len(examples.y)
    if num_examples == 0:
      return Evaluation(math.nan, math.nan)
    feed = dict(
      zip(
        tf.nest.flatten(weights),
        tf.nest.flatten((model_weights.trainable, model_weights.non_trainable)),
      )
    )
    loss_sum = 0.0
    sums, counts = dict.fromkeys(values, 0.0), dict.fromkeys(values, 0)
    for start in range(0, num_examples, batch_size):
      feed[x] = examples.x[start : start + batch_size]
      feed[y] = examples.y[start : start + batch_size]
      loss, sums_of_batch, counts_of_batch = session.run(results, feed)
      loss_sum += float(loss) * len(feed[y])
      for name in values:
        sums[name] += float(sums_of_batch[name])
        counts[name] += int(counts_of_batch[name])
    means = {name: sums[name] / counts[name] for name in values}
    return Evaluation(
      means.pop('accuracy', None), loss_sum / num_examples, means
    )

  return evaluate


def build_model(
  weights: Sequence[np.ndarray],
  predict: Callable[[Sequence[tf.Tensor], tf.Tensor], tf.Tensor],
  input_spec: tuple[tf.TensorSpec, tf.TensorSpec],
  loss: Optional[Callable[..., tf.Tensor]] = None,
) -> tff.learning.models.FunctionalModel:
  """Builds a model whose prediction is a plain function of its weights.

  Args:
    weights: The initial weights, all of them trainable.
    predict: A function from weights and inputs to outputs, such as logits of
      shape [batch, ..., num_classes]. It is the same in training and
      evaluation.
    input_spec: The types of the inputs and the labels.
    loss: The loss of a batch, a function of outputs and labels as
      `FunctionalModel` expects it. If not given, `mean_cross_entropy`.

  Returns:
    The `tff.learning.models.FunctionalModel`.
  """

  @tf.function
  def predict_on_batch(model_weights, x, training):
    del training
    return predict(model_weights[0], x)

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss or mean_cross_entropy,
    input_spec=input_spec,
  )


def mean_cross_entropy(logits, labels, sample_weight=None):
  """Computes the loss of the paper's tasks, as `FunctionalModel` expects it.

  Args:
    logits: A float32 tensor of shape [batch, ..., num_classes].
    labels: An int32 tensor of shape [batch, ...].
    sample_weight: Ignored; TFF passes it.

  Returns:
    The mean cross entropy over all labels, a float32 scalar.
  """
  del sample_weight
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  )


def glorot_uniform(
  rng: np.random.Generator, shape: Sequence[int]
) -> np.ndarray:
  """Draws initial weights by the rule of Glorot and Bengio (2010).

  Args:
    rng: The source of randomness.
    shape: [num_inputs, num_outputs], or [height, width, num_inputs,
      num_outputs] for the kernel of a convolution.

  Returns:
    A float32 array of shape `shape`, uniform within +-sqrt(6 / (fan_in +
    fan_out)). For a convolution, the fans are the numbers of inputs and outputs
    times height x width.
  """
  receptive_field = int(np.prod(shape[:-2]))
  limit = np.sqrt(6 / (receptive_field * (shape[-2] + shape[-1])))
  return rng.uniform(-limit, limit, shape).astype(np.float32)


def initial_layers(
  seed: int, shapes: Iterable[Sequence[int]]
) -> list[np.ndarray]:
  """Draws the initial weights of layers that have a kernel and a bias.

  Args:
    seed: The seed.
    shapes: The shapes of the kernels, see `glorot_uniform`.

  Returns:
    The kernel and the bias of each layer in turn; the biases are 0.
  """
  rng = np.random.default_rng(seed)
  weights = []
  for shape in shapes:
    weights.append(glorot_uniform(rng, shape))
    weights.append(np.zeros(shape[-1], np.float32))
  return weights
