"""Tests of tasks from arrays, data frames and TFF's client data."""

import collections
import re

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models as test_models
from tff_ocs import tasks
from tff_ocs.tasks import client_data
from tff_ocs.tasks import models
from tff_ocs.tasks import task as task_lib


def draw_clients(num_classes=3):
  """Clients of different sizes; labels or, with no classes, targets."""
  rng = np.random.default_rng(0)
  clients = {}
  for i, size in enumerate([1, 2, 5, 12]):
    x = rng.normal(size=(size, 4))
    y = (
      rng.integers(num_classes, size=size) if num_classes else x @ [1, 2, 3, 4]
    )
    clients[f'c{i}'] = (x, y)
  clients['c3'][1][:num_classes] = range(num_classes)
  return clients


def all_rows(task):
  """The examples of the task, with their targets, in a sorted order."""
  examples = [*map(task.train.examples, task.train.client_ids), task.test]
  rows = np.concatenate(
    [np.concatenate([x, y.reshape(len(y), -1)], 1) for x, y in examples]
  )
  return rows[np.lexsort(rows.T)]


def test_arrays_are_kept_and_none_is_lost():
  clients = draw_clients()
  task = tasks.from_arrays(clients, validation_fraction=0.3, data_name='mine')
  assert task.data_name == 'mine'
  assert task.train.client_ids == ['c0', 'c1', 'c2', 'c3']
  expected = np.concatenate(
    [np.column_stack([x.astype(np.float32), y]) for x, y in clients.values()]
  )
  np.testing.assert_array_equal(
    all_rows(task), expected[np.lexsort(expected.T)]
  )
  assert len(task.test.y) == 6  # 0.3 * 20.
  assert min(task.train.num_examples.values()) >= 1
  assert task.test.y.dtype == np.int32
  # The examples that are drawn of a client are its own.
  for name, (x, y) in clients.items():
    own = [task.train.examples(name), task.test_by_client.examples(name)]
    rows = np.concatenate([np.column_stack(part) for part in own])
    of_client = np.column_stack([x.astype(np.float32), y])
    np.testing.assert_array_equal(
      rows[np.lexsort(rows.T)], of_client[np.lexsort(of_client.T)]
    )
  np.testing.assert_array_equal(task.test_by_client.read_all().x, task.test.x)
  # Of the clients with many examples more are drawn.
  assert task.train.num_examples['c3'] <= 12 - 2


def test_validation_examples_are_the_same_for_all_seeds():
  clients = draw_clients()
  one, other = (
    tasks.from_arrays(clients, model='mlp', seed=seed) for seed in (1, 2)
  )
  np.testing.assert_array_equal(one.test.x, other.test.x)
  assert not np.array_equal(
    one.model.initial_weights[0][0], other.model.initial_weights[0][0]
  )


def test_list_of_arrays_names_the_clients():
  task = tasks.from_arrays(list(draw_clients().values()))
  assert task.train.client_ids == [f'client_{i}' for i in range(4)]


def test_validation_set_is_taken_as_given():
  x, y = np.ones([2, 4]), np.array([2, 0])
  task = tasks.from_arrays(draw_clients(), validation=(x, y))
  np.testing.assert_array_equal(task.test.x, x)
  np.testing.assert_array_equal(task.test.y, y)
  assert task.train.num_examples['c3'] == 12
  assert task.test_by_client is None  # Nobody knows whose they are.


@pytest.mark.parametrize('model', ['linear', 'mlp'])
@pytest.mark.parametrize('num_classes', [3, 0])
def test_models_by_name_learn(model, num_classes):
  clients = draw_clients(num_classes)
  task = tasks.from_arrays(clients, model=model, validation=clients['c3'])
  process = tff_ocs.build_federated_averaging_process(
    task.model, tff_ocs.FullParticipation(), client_learning_rate=0.1
  )
  evaluate = task_lib.build_evaluation(
    task.model, task.test, metrics=task.metrics
  )
  cohort = [
    {'x': e.x, 'y': e.y, 'seed': np.array([1, i])}
    for i, e in enumerate(map(task.train.examples, task.train.client_ids))
  ]
  state = process.initialize()
  before = evaluate(state.weights)
  for _ in range(20):
    state, _ = process.next(state, cohort)
  after = evaluate(state.weights)
  assert after.loss < 0.8 * before.loss
  if num_classes:
    assert after.accuracy > 0.6 and not after.others
  else:
    assert after.accuracy is None
    assert set(after.others) == {'mean_absolute_error'}
    assert (
      after.others['mean_absolute_error'] < before.others['mean_absolute_error']
    )


def test_regression_metrics_equal_numpy():
  clients = draw_clients(0)
  task = tasks.from_arrays(
    clients,
    validation=clients['c3'],
    metrics={
      'mean_absolute_error': tf.keras.losses.mean_absolute_error,
      'largest': lambda labels, outputs: tf.abs(labels - outputs),
    },
  )
  assert task.test.y.shape == (12, 1)
  kernel = np.arange(4, dtype=np.float32)[:, np.newaxis]
  result = task_lib.build_evaluation(
    task.model, task.test, metrics=task.metrics, batch_size=5
  )(tff.learning.models.ModelWeights((kernel, np.ones(1, np.float32)), ()))
  errors = clients['c3'][0] @ kernel[:, 0] + 1 - clients['c3'][1]
  assert result.loss == pytest.approx(np.mean(errors**2), rel=1e-5)
  expected = np.mean(np.abs(errors))
  assert result.others == {
    'mean_absolute_error': pytest.approx(expected, rel=1e-5),
    'largest': pytest.approx(expected, rel=1e-5),
  }


def test_loss_decides_whether_integers_are_targets():
  clients = draw_clients()
  task = tasks.from_arrays(clients, loss='mean_squared_error')
  assert task.test.y.dtype == np.float32
  assert set(task.metrics) == {'mean_absolute_error'}
  task = tasks.from_arrays(clients, loss=tf.keras.losses.MeanAbsoluteError())
  assert set(task.metrics) == {'accuracy'}


def test_any_functional_model_is_taken_with_its_types():
  model = test_models.build_linear_model(4)
  x = np.arange(24).reshape(6, 4).astype(np.uint8)
  y = np.arange(6)
  # Its labels have the shape [batch, 1].
  task = tasks.from_arrays([(x, y)] * 2, model=model)
  assert task.model is model
  assert task.test.x.dtype == task.test.y.dtype == np.float32
  assert task.test.y.shape == (1, 1)
  assert set(task.metrics) == {'mean_absolute_error'}
  with pytest.raises(ValueError, match='FunctionalModel, which has its own'):
    tasks.from_arrays([(x, y)], model=model, loss='cross_entropy')
  with pytest.raises(
    client_data.DataError, match='x .* model takes batches of'
  ):
    tasks.from_arrays([(x[:, :-1], y)], model=model)
  with pytest.raises(
    client_data.DataError, match='y .* model takes batches of'
  ):
    tasks.from_arrays([(x, np.ones([6, 2]))], model=model)


def test_functional_model_of_labels_refuses_fractions():
  model = tasks.from_arrays(draw_clients()).model
  x = np.ones([2, 4])
  with pytest.raises(
    client_data.DataError, match="y of client 'client_0' .* int32, found 0.5"
  ):
    tasks.from_arrays([(x, [0.5, 1])], model=model)
  assert set(tasks.from_arrays([(x, [0.0, 1])], model=model).metrics) == {
    'accuracy'
  }


def test_keras_model_is_converted_with_its_weights():
  layer = tf.keras.layers.Dense(3, input_shape=[4])
  keras_model = tf.keras.Sequential([layer])
  task = tasks.from_arrays(draw_clients(), model=keras_model)
  np.testing.assert_array_equal(
    task.model.initial_weights[0][0], layer.kernel.numpy()
  )
  of_function = tasks.from_arrays(
    draw_clients(),
    model=lambda: tf.keras.Sequential(
      [tf.keras.layers.Dense(3, input_shape=[4])]
    ),
  )
  assert len(of_function.model.initial_weights[0]) == 2


def dense(**kwargs):
  return tf.keras.layers.Dense(3, input_shape=[4], **kwargs)


def frozen():
  layer = dense(name='base')
  layer.trainable = False
  return [layer, tf.keras.layers.Dense(3)]


@pytest.mark.parametrize(
  ('layers', 'message'),
  [
    (
      lambda: [dense(), tf.keras.layers.BatchNormalization(name='bn')],
      'The layer bn is a BatchNormalization, whose moving averages',
    ),
    (
      lambda: [
        tf.keras.Sequential(
          [dense(), tf.keras.layers.BatchNormalization(name='inner')]
        )
      ],
      'The layer inner is a BatchNormalization',
    ),
    (
      lambda: [
        tf.keras.layers.GRU(
          3, batch_input_shape=[2, 4, 1], stateful=True, name='memory'
        )
      ],
      'The layer memory has stateful=True',
    ),
    (frozen, 'The layer base has trainable=False'),
    (lambda: [dense(kernel_regularizer='l2')], '1 losses'),
    (lambda: [tf.keras.layers.Dense(3)], 'has no weights yet'),
    (lambda: [dense(activation='softmax')], 'ends with a softmax'),
    (
      lambda: [tf.keras.layers.Dense(3, input_shape=[7])],
      r'cannot be converted: .*expected shape=\(None, 7\)',
    ),
  ],
)
def test_keras_models_that_do_not_work_are_named(layers, message):
  with pytest.raises(models.ModelError, match=message) as error:
    tasks.from_arrays(
      draw_clients(), model=tf.keras.Sequential(layers(), name='m')
    )
  assert len(str(error.value).splitlines()) == 1


def test_softmax_is_found_in_a_model_that_a_function_builds():
  with pytest.raises(models.ModelError, match='m ends with a softmax'):
    tasks.from_arrays(
      draw_clients(),
      model=lambda: tf.keras.Sequential(
        [dense(activation='softmax')], name='m'
      ),
    )


def test_softmax_is_fine_with_a_loss_of_probabilities():
  tasks.from_arrays(
    draw_clients(),
    model=tf.keras.Sequential([dense(activation='softmax')]),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(),
  )


def with_value(name, place, value, dtype=float):
  """The clients with one value of client c2 replaced."""
  clients = draw_clients(0)
  x, y = (a.astype(dtype) for a in clients['c2'])
  {'x': x, 'y': y}[name][place] = value
  return {**clients, 'c2': (x, y)}


@pytest.mark.parametrize(
  ('clients', 'message'),
  [
    ({}, 'The data has no clients.'),
    (with_value('x', (3, 1), np.nan), "x of client 'c2' .* nan at .*[3, 1]"),
    (with_value('y', 4, np.inf), "y of client 'c2' .* inf at .*[4]"),
    ({'a': (np.ones([2, 4]), [0, -1])}, "'a' must hold labels .* found -1"),
    ({'a': (np.ones([2, 4]), [0])}, "'a' has 2 inputs x but 1 targets y"),
    ({'a': (np.ones([0, 4]), np.ones(0, int))}, "client 'a' has no examples"),
    ({'a': (np.array(['x']), [0])}, "x of client 'a' must hold numbers"),
    ({'a': (np.ones([1, 4]),)}, "client 'a' must have a pair of arrays"),
    ({'a': (3.0, [0])}, "x of client 'a' must have the number of examples"),
    ({3: (np.ones([1, 4]), [0])}, 'named by text, found 3'),
    (
      {'a': (np.ones([2, 4]), [0, 1]), 'b': (np.ones([2, 5]), [0, 1])},
      "x of client 'b' has examples of shape \\[5\\], but those of client 'a'",
    ),
    ({'a': (np.full([2, 4], 1e300), [0, 1])}, 'float32, found 1e.300'),
    ({'a': (np.ones([1, 4]), [0])}, 'pass a validation set'),
  ],
)
def test_bad_arrays_are_named_in_one_line(clients, message):
  with pytest.raises(client_data.DataError, match=message) as error:
    tasks.from_arrays(clients)
  assert len(str(error.value).splitlines()) == 1


def test_labels_need_an_output_each_unless_other_metrics_are_given():
  one_output = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[4])])
  with pytest.raises(client_data.DataError, match='up to 2, .* has 2 outputs'):
    tasks.from_arrays(draw_clients(), model=one_output)
  binary = {c: (x, y.clip(0, 1)) for c, (x, y) in draw_clients().items()}
  task = tasks.from_arrays(
    binary,
    model=tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[4])]),
    loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
    metrics={'positive': lambda labels, outputs: outputs > 0},
  )
  assert set(task.metrics) == {'positive'}


@pytest.mark.parametrize(
  ('arguments', 'error'),
  [
    ({'model': 'cnn'}, ValueError),
    ({'model': 3}, TypeError),
    ({'loss': 'hinge'}, ValueError),
    ({'loss': 3}, TypeError),
    ({'validation_fraction': 1}, ValueError),
    ({'validation_fraction': 0}, ValueError),
  ],
)
def test_wrong_arguments_are_refused(arguments, error):
  (value,) = arguments.values()
  shown = 'int' if error is TypeError else re.escape(repr(value))
  with pytest.raises(error, match=f'{shown}|found {value}'):
    tasks.from_arrays(draw_clients(), **arguments)


FRAME = pd.DataFrame(
  {
    'user': ['a', 'b', 'a', 'b', 'b', 'c'],
    'age': [20, 30, 40, 50, 60, 70],
    'member': [True, False, True, True, False, False],
    'constant': 5.0,
    'choice': ['red', 'green', 'red', 'blue', 'red', 'blue'],
    'spent': [1.5, 2.5, 3.5, 4.5, 5.5, 6.5],
  }
)


def from_frame(frame, **changes):
  arguments = dict(
    client_column='user',
    label_column='choice',
    feature_columns=['age', 'member', 'constant'],
    validation_fraction=0.2,
  )
  return tasks.from_frame(frame, **{**arguments, **changes})


def test_frame_is_grouped_scaled_and_its_labels_numbered():
  task = from_frame(FRAME)
  assert task.train.client_ids == ['a', 'b', 'c']
  rows = all_rows(task)
  age = (FRAME['age'] - 45) / np.sqrt(875 / 3)
  member = np.where(FRAME['member'], 1.0, -1.0)
  classes = [2, 1, 2, 0, 2, 0]  # blue, green, red.
  expected = np.column_stack([age, member, np.zeros(6), classes])
  np.testing.assert_allclose(rows, expected[np.lexsort(expected.T)], rtol=1e-6)
  assert len(task.test.y) == 1
  # Client c has one example, which is that of its row.
  np.testing.assert_allclose(
    task.train.examples('c').x, expected[-1:, :3], rtol=1e-6
  )


def test_frame_takes_all_other_columns_and_floats_as_targets():
  task = from_frame(
    FRAME.drop(columns='choice'), label_column='spent', feature_columns=None
  )
  assert task.train.examples('c').x.shape == (1, 3)
  np.testing.assert_array_equal(task.train.examples('c').y, [[6.5]])
  assert 'accuracy' not in task.metrics
  task = from_frame(FRAME, label_column='spent', loss='cross_entropy')
  assert task.train.examples('c').y.tolist() == [5]
  task = from_frame(
    FRAME.drop(columns='choice'),
    label_column='age',
    loss='mean_squared_error',
    feature_columns=['spent'],
  )
  np.testing.assert_array_equal(task.train.examples('c').y, [[70]])


def replaced(column, values):
  return FRAME.assign(**{column: values})


# The mean of ten 0.1 is not 0.1; the square of 1e-200 is 0.
@pytest.mark.parametrize('x', [[0.1, 0.1], [0.0, 1e-200]])
def test_column_without_a_standard_deviation_is_0(x):
  frame = pd.DataFrame({'user': list('ab') * 5, 'x': x * 5, 'y': range(10)})
  task = tasks.from_frame(
    frame, client_column='user', label_column='y', loss='mean_squared_error'
  )
  np.testing.assert_array_equal(task.train.read_all().x, 0)


@pytest.mark.parametrize(
  ('frame', 'changes', 'message'),
  [
    (
      FRAME,
      {'client_column': 'id'},
      "client_column: .* no column 'id'; .*user",
    ),
    (FRAME, {'label_column': 'id'}, "label_column: there is no column 'id'"),
    (FRAME, {'feature_columns': ['id']}, "feature_columns: .* no column 'id'"),
    (FRAME, {'feature_columns': []}, 'there is no feature column'),
    (FRAME, {'feature_columns': ['choice']}, "'choice' has another role"),
    (FRAME, {'client_column': 'choice'}, "'choice' has another role"),
    (
      FRAME,
      {'label_column': 'spent', 'feature_columns': None},
      "'choice' must hold numbers, found 'red'. Leave it out of",
    ),
    (
      FRAME,
      {'loss': 'mean_squared_error'},
      "'choice' must hold numbers, found 'red'. Labels that are names need",
    ),
    (
      replaced('age', [1, 2, 3, np.nan, 5, 6]),
      {},
      "'age' must be finite, found nan for client 'b' in row 3",
    ),
    (
      replaced('choice', ['red', None, 'red', 'red', 'red', 'red']),
      {},
      "'choice' must have no gaps, found one for client 'b' in row 1",
    ),
    (
      replaced('choice', ['red', 1, 'red', 'red', 'red', 'red']),
      {},
      "'choice' must hold labels of one type",
    ),
    (
      replaced('user', ['a', 'a', None, 'a', 'a', 'a']),
      {},
      "'user' names no client in row 2",
    ),
    (FRAME.iloc[:0], {}, 'has no rows'),
  ],
)
def test_bad_frames_are_named_in_one_line(frame, changes, message):
  with pytest.raises(client_data.DataError, match=message) as error:
    from_frame(frame, **changes)
  assert len(str(error.value).splitlines()) == 1


def as_client_data(clients, as_pairs):
  """TFF's client data, of pairs or of dictionaries."""
  if not as_pairs:
    clients = {
      client_id: collections.OrderedDict(label=y, pixels=x)
      for client_id, (x, y) in clients.items()
    }
  return tff.simulation.datasets.TestClientData(clients)


@pytest.mark.parametrize('as_pairs', [False, True])
def test_client_data_gives_the_same_task_as_its_arrays(as_pairs):
  clients = draw_clients()
  keys = {} if as_pairs else {'input_key': 'pixels', 'label_key': 'label'}
  task = tasks.from_client_data(as_client_data(clients, as_pairs), **keys)
  np.testing.assert_array_equal(
    all_rows(task), all_rows(tasks.from_arrays(clients))
  )
  task = tasks.from_client_data(
    as_client_data(clients, as_pairs),
    validation=as_client_data({'v': clients['c2']}, as_pairs),
    **keys,
  )
  np.testing.assert_array_equal(task.test.y, clients['c2'][1])
  assert task.train.num_examples['c3'] == 12


def test_client_data_names_missing_entries_and_other_types():
  of_entries = as_client_data(draw_clients(), as_pairs=False)
  with pytest.raises(
    client_data.DataError,
    match=r"label_key must be one of .*\['label', 'pixels'\].*'y'",
  ):
    tasks.from_client_data(of_entries, input_key='pixels', label_key='y')
  with pytest.raises(TypeError, match='clients must be .* found dict'):
    tasks.from_client_data({})


@pytest.mark.parametrize(
  'validation, message',
  [
    ({}, 'validation must have at least 1 client, found 0'),
    (
      {'c1': (np.zeros((0, 4)), np.zeros(0, np.int64))},
      "client 'c1' of validation has no examples",
    ),
    (
      {
        'a': (np.zeros((2, 4)), np.zeros(2, np.int64)),
        'b': (np.zeros((2, 5)), np.zeros(2, np.int64)),
      },
      'the clients of validation must have examples of one shape: ',
    ),
  ],
)
def test_client_data_to_validate_on_is_named(validation, message):
  class Clients(tff.simulation.datasets.ClientData):
    """As TestClientData, but with any clients."""

    client_ids = list(validation)
    serializable_dataset_fn = None
    element_type_structure = None

    def create_tf_dataset_for_client(self, client_id):
      return tf.data.Dataset.from_tensor_slices(validation[client_id])

  clients = as_client_data(draw_clients(), as_pairs=True)
  with pytest.raises(client_data.DataError, match=message):
    tasks.from_client_data(clients, validation=Clients())


def test_database_of_tff_is_read(tmp_path):
  clients = draw_clients()
  path = str(tmp_path / 'clients.sqlite')
  tff.simulation.datasets.save_to_sql_client_data(
    list(clients),
    lambda client_id: tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(
        label=clients[client_id][1],
        pixels=clients[client_id][0].astype(np.float32),
      )
    ),
    path,
  )
  spec = collections.OrderedDict(
    label=tf.TensorSpec([], tf.int64), pixels=tf.TensorSpec([4], tf.float32)
  )
  task = tasks.from_client_data(
    tff.simulation.datasets.load_and_parse_sql_client_data(path, spec),
    input_key='pixels',
    label_key='label',
  )
  np.testing.assert_array_equal(
    all_rows(task), all_rows(tasks.from_arrays(clients))
  )
