"""Models for data of one's own: two by name, and those of Keras.

A federated process trains a `tff.learning.models.FunctionalModel`. `linear` and
`mlp` build small ones for a first try, and `from_keras` converts a Keras model.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Optional
from typing import Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs.tasks import task as task_lib

_HIDDEN_UNITS = 64


class ModelError(ValueError):
  """Raised if a model cannot be trained by a federated process."""


def linear(
  input_shape: Sequence[int],
  num_outputs: int,
  *,
  loss: tf.keras.losses.Loss,
  label_spec: tf.TensorSpec,
  seed: int,
) -> tff.learning.models.FunctionalModel:
  """Builds a linear model: x W + b, over all entries of an input.

  Args:
    input_shape: The shape of one input.
    num_outputs: The number of classes or of regression targets.
    loss: The mean loss of a batch.
    label_spec: The type of the labels.
    seed: Ignored: the initial weights are 0, from which a convex loss is
      minimised as well as from any others.

  Returns:
    The model. Its outputs have the shape [batch, num_outputs].
  """
  del seed
  size = int(np.prod(input_shape, dtype=int))
  weights = [
    np.zeros([size, num_outputs], np.float32),
    np.zeros(num_outputs, np.float32),
  ]

  def predict(weights, x):
    kernel, bias = weights
    return tf.reshape(x, [-1, size]) @ kernel + bias

  return _build(weights, predict, input_shape, label_spec, loss)


def mlp(
  input_shape: Sequence[int],
  num_outputs: int,
  *,
  loss: tf.keras.losses.Loss,
  label_spec: tf.TensorSpec,
  seed: int,
) -> tff.learning.models.FunctionalModel:
  """Builds a perceptron with one hidden layer of 64 rectified units.

  Args:
    input_shape: The shape of one input.
    num_outputs: The number of classes or of regression targets.
    loss: The mean loss of a batch.
    label_spec: The type of the labels.
    seed: The seed of the initial weights.

  Returns:
    The model. Its outputs have the shape [batch, num_outputs].
  """
  size = int(np.prod(input_shape, dtype=int))
  weights = task_lib.initial_layers(
    seed, [(size, _HIDDEN_UNITS), (_HIDDEN_UNITS, num_outputs)]
  )

  def predict(weights, x):
    kernel, bias, output_kernel, output_bias = weights
    hidden = tf.nn.relu(tf.reshape(x, [-1, size]) @ kernel + bias)
    return hidden @ output_kernel + output_bias

  return _build(weights, predict, input_shape, label_spec, loss)


# The models that have a name, by it.
BY_NAME: Mapping[str, Callable[..., tff.learning.models.FunctionalModel]] = {
  'linear': linear,
  'mlp': mlp,
}


def _build(weights, predict, input_shape, label_spec, loss):
  return task_lib.build_model(
    weights,
    predict,
    (tf.TensorSpec([None, *input_shape], tf.float32), label_spec),
    _as_functional_loss(loss),
  )


def _as_functional_loss(loss):
  def functional_loss(outputs, labels, sample_weight=None):
    del sample_weight
    return loss(labels, outputs)

  return functional_loss


def from_keras(
  keras_model: Union[tf.keras.Model, Callable[[], tf.keras.Model]],
  *,
  loss: tf.keras.losses.Loss,
  input_spec: tuple[tf.TensorSpec, tf.TensorSpec],
) -> tff.learning.models.FunctionalModel:
  """Converts a Keras model, through TFF's `functional_model_from_keras`.

  A functional model is a plain function of its weights, so that layers with a
  state of their own cannot be converted:

  *   BatchNormalization updates moving averages while it trains. Use
      LayerNormalization or GroupNormalization.
  *   Recurrent layers with `stateful=True` keep their state from batch to
      batch. Use `stateful=False`.
  *   Dropout and other layers that draw random numbers run, but draw them anew
      at each client: such a run does not repeat bit for bit.
  *   Layers with `trainable=False` cannot be converted; compute their outputs
      beforehand, as features.
  *   Losses that layers add, such as a `kernel_regularizer`, are not part of a
      functional model. Put them into the loss, or leave them out.

  Args:
    keras_model: The model, built and with one input and one output; its
      compilation is ignored. Or a function without arguments that builds it,
      which a model whose layers share weights needs. The model's weights are
      the initial weights.
    loss: The mean loss of a batch, for example
      `tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.
    input_spec: The types of a batch of inputs and of labels.

  Returns:
    The model.

  Raises:
    ModelError: If the model cannot be converted, see above, or does not take
      the inputs. The message names the layer.
    TypeError: If the model is no Keras model.
  """
  built = keras_model
  if not isinstance(keras_model, tf.keras.Model) and callable(keras_model):
    built = keras_model()
  if not isinstance(built, tf.keras.Model):
    raise TypeError(
      'The model must be a Keras model or a function that returns one, found'
      f' {type(built).__name__}.'
    )
  check_keras(built)
  try:
    model = tff.learning.models.functional_model_from_keras(
      keras_model, loss_fn=loss, input_spec=input_spec
    )
    _check_prediction(model, input_spec)
  except Exception as error:  # Keras and TFF raise many types.
    # Keras puts the traceback of the traced code before the reason.
    lines = str(error).strip().splitlines() or [repr(error)]
    raise ModelError(
      f'The Keras model {built.name} cannot be converted: {lines[-1].strip()}'
    ) from error
  return model


def check_keras(keras_model: tf.keras.Model) -> None:
  """Checks that a Keras model can be converted, see `from_keras`.

  Args:
    keras_model: The model.

  Raises:
    ModelError: If it cannot. The message names the layer.
  """
  if not keras_model.built:
    raise ModelError(
      f'The Keras model {keras_model.name} has no weights yet: give its first'
      ' layer an input_shape, or call model.build(...).'
    )
  for layer in keras_model._flatten_layers(include_self=False):
    if isinstance(layer, tf.keras.layers.BatchNormalization):
      raise ModelError(
        f'The layer {layer.name} is a {type(layer).__name__}, whose moving'
        ' averages a federated process cannot update; use LayerNormalization or'
        ' GroupNormalization.'
      )
    if layer.weights and not layer.trainable:
      raise ModelError(
        f'The layer {layer.name} has trainable=False, which a functional model'
        ' cannot express; compute its outputs beforehand, as features.'
      )
    if getattr(layer, 'stateful', False) and isinstance(
      layer, tf.keras.layers.RNN
    ):
      raise ModelError(
        f'The layer {layer.name} has stateful=True, and a federated process'
        ' cannot keep its state from batch to batch; use stateful=False.'
      )
  if keras_model.losses:
    raise ModelError(
      f'The layers of the Keras model {keras_model.name} add'
      f' {len(keras_model.losses)} losses, such as a kernel_regularizer, which'
      ' a functional model does not have; put them into the loss, or leave them'
      ' out.'
    )


def ends_with_softmax(keras_model: tf.keras.Model) -> bool:
  """Whether the last layer of a Keras model is, or ends with, a softmax."""
  layers = keras_model.layers
  if not layers:
    return False
  activation = getattr(layers[-1], 'activation', None)
  return activation is tf.keras.activations.softmax or isinstance(
    layers[-1], tf.keras.layers.Softmax
  )


def _check_prediction(model, input_spec: tuple[tf.TensorSpec, tf.TensorSpec]):
  """Traces the model and its loss, so that faults show before training."""
  with tf.Graph().as_default():
    weights, (x, y) = tf.nest.map_structure(
      lambda t: tf.compat.v1.placeholder(t.dtype, t.shape),
      (
        tf.nest.map_structure(np.asarray, model.initial_weights),
        tuple(input_spec),
      ),
    )
    model.loss(model.predict_on_batch(weights, x, training=True), y)


def default_loss(is_classification: bool) -> tf.keras.losses.Loss:
  """The loss for labels (cross entropy) or regression targets (squares)."""
  if is_classification:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  return tf.keras.losses.MeanSquaredError()


def default_metrics(
  is_classification: bool,
) -> Mapping[str, task_lib.Metric]:
  """The accuracy for labels, or the mean absolute error for targets."""
  if is_classification:
    return task_lib.ACCURACY
  return {'mean_absolute_error': tf.keras.losses.mean_absolute_error}


def output_size(
  model: tff.learning.models.FunctionalModel,
) -> Optional[int]:
  """The size of the last dimension of a model's outputs; `None` if unknown."""
  with tf.Graph().as_default():
    weights, x = tf.nest.map_structure(
      lambda t: tf.compat.v1.placeholder(t.dtype, t.shape),
      (
        tf.nest.map_structure(np.asarray, model.initial_weights),
        model.input_spec[0],
      ),
    )
    outputs = model.predict_on_batch(weights, x, training=False)
  return outputs.shape[-1] if outputs.shape.rank else None
