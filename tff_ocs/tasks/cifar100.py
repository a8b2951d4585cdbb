"""Federated CIFAR-100, a balanced data set (Appendix G of the paper).

Images are 32 x 32 x 3 integers from 0 to 255. They stay uint8 in memory and on
their way to the worker, so that the data set takes 0.2 GB instead of 0.7; the
model casts each batch to float32.
"""

from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs.tasks import client_data
from tff_ocs.tasks import pooling
from tff_ocs.tasks import task

NUM_CLASSES = 100
NUM_PARAMETERS = 5_897_508

DATABASE = 'cifar100.sqlite'


def build_model(
  seed: int, *, scale_inputs: bool = False
) -> tff.learning.models.FunctionalModel:
  """Builds the CNN of the authors' code, with 5,897,508 parameters.

  The paper does not describe its model.

  Six 3 x 3 convolutions of 32, 64, 128, 128, 256 and 256 channels (SAME, ReLU),
  with 2 x 2 max pooling after every second one; dense layers of 1024 and 512
  (ReLU); a dense layer of 100 logits.

  Args:
    seed: The seed of the initial weights (Glorot uniform, zero biases).
    scale_inputs: Whether the model divides its inputs by 255. The paper's step
      sizes are for inputs that are not scaled.

  Returns:
    A `tff.learning.models.FunctionalModel` on (uint8[None, 32, 32, 3],
    int32[None]), with the mean cross entropy as its loss.
  """
  channels = (3, 32, 64, 128, 128, 256, 256)
  units = (4 * 4 * channels[-1], 1024, 512, NUM_CLASSES)
  weights = task.initial_layers(
    seed,
    (
      *((3, 3, *pair) for pair in zip(channels, channels[1:])),
      *zip(units, units[1:]),
    ),
  )

  def predict(weights, x):
    layers = list(zip(weights[::2], weights[1::2]))
    x = tf.cast(x, tf.float32)
    if scale_inputs:
      x /= 255
    for index, (kernel, bias) in enumerate(layers[:6]):
      x = tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, 'SAME'), bias)
      if index % 2:
        # ReLU after pooling gives the same result with a quarter of the work.
        x = pooling.max_pool_2x2(x)
      x = tf.nn.relu(x)
    x = tf.reshape(x, [-1, units[0]])
    for kernel, bias in layers[6:8]:
      x = tf.nn.relu(tf.matmul(x, kernel) + bias)
    kernel, bias = layers[8]
    return tf.matmul(x, kernel) + bias

  return task.build_model(
    weights,
    predict,
    (
      tf.TensorSpec([None, 32, 32, 3], tf.uint8),
      tf.TensorSpec([None], tf.int32),
    ),
  )


def load_tff(
  *,
  seed: int,
  cache_dir: Optional[str] = None,
  scale_inputs: bool = False,
  data_name: Optional[str] = None,
) -> task.Task:
  """Loads Federated CIFAR-100 with TFF's own loader.

  Args:
    seed: The seed of the initial weights.
    cache_dir: The folder of `cifar100.sqlite`; `None` is TFF's own default.
      TFF downloads the file into this folder if it is missing.
    scale_inputs: As for `build_model`.
    data_name: A name for the data if the file is not Federated CIFAR-100.

  Returns:
    The `Task`; its test set is the test split of all clients.

  Raises:
    DataError: If the file cannot be found or downloaded, is not the data set,
      or has values out of range.
  """
  train, test = client_data.open_tff_database(
    DATABASE,
    ['train', 'test'],
    _parse,
    tff.simulation.datasets.cifar100.load_data,
    cache_dir=cache_dir,
    offline_source='synthetic',
  )
  num_clients = len(train.client_ids)
  if data_name is None:
    data_name = (
      'Federated CIFAR-100'
      if num_clients == 500
      else f'images in {DATABASE}, {num_clients} clients'
    )
  return task.Task(
    _with_scale(data_name, scale_inputs),
    build_model(seed, scale_inputs=scale_inputs),
    train,
    test.read_all(),
  )


def load_synthetic(
  *,
  seed: int,
  scale_inputs: bool = False,
  num_clients: int = 100,
  num_examples: int = 20,
  num_test_examples: int = 200,
) -> task.Task:
  """Generates learnable images: a hundred smooth random patterns with noise.

  The pool is balanced, and each client prefers some of the classes, as in the
  real data set.

  Args:
    seed: The seed of the initial weights. The images do not depend on it.
    scale_inputs: As for `build_model`.
    num_clients: The number of clients in the pool.
    num_examples: The number of training examples of each client.
    num_test_examples: The number of test examples, drawn from all classes.

  Returns:
    The `Task`.

  Raises:
    TypeError: If an argument is not an integer where one is expected.
    ValueError: If an argument is out of range.
  """
  arguments.check_integer('num_clients', num_clients)
  arguments.check_integer('num_examples', num_examples)
  arguments.check_integer('num_test_examples', num_test_examples)
  rng = np.random.default_rng(0)
  coarse = rng.uniform(0, 255, size=(NUM_CLASSES, 8, 8, 3))
  patterns = coarse.repeat(4, axis=1).repeat(4, axis=2)

  def draw(count, preferences=None):
    y = rng.choice(NUM_CLASSES, size=count, p=preferences).astype(np.int32)
    noise = rng.normal(scale=40, size=(count, 32, 32, 3))
    x = np.clip(patterns[y] + noise, 0, 255).astype(np.uint8)
    return client_data.Examples(x, y)

  test = draw(num_test_examples)
  train = {
    f'client_{index:05d}': draw(
      num_examples, rng.dirichlet(np.full(NUM_CLASSES, 0.1))
    )
    for index in range(num_clients)
  }
  return task.Task(
    _with_scale(f'synthetic images, {num_clients} clients', scale_inputs),
    build_model(seed, scale_inputs=scale_inputs),
    client_data.ArrayClientData(train),
    test,
  )


def _with_scale(data_name, scale_inputs):
  return data_name + (', scaled to [0, 1]' if scale_inputs else '')


def _parse(serialized_examples) -> client_data.Examples:
  parsed = tf.io.parse_example(
    tf.constant(serialized_examples, tf.string),
    {
      'image': tf.io.FixedLenFeature([32, 32, 3], tf.int64),
      'label': tf.io.FixedLenFeature([], tf.int64),
    },
  )
  images, labels = parsed['image'].numpy(), parsed['label'].numpy()
  client_data.check_range('pixels', images, 0, 255)
  client_data.check_range('labels', labels, 0, NUM_CLASSES - 1)
  return client_data.Examples(images.astype(np.uint8), labels.astype(np.int32))
