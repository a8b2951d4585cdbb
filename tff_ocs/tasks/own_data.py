"""Tasks from data of one's own: arrays, a data frame or TFF's client data.

Each function checks the data on entry, and reports a fault in one line that
names the client and the column. The targets decide what is learned: integers
are the labels of classes, floating-point numbers are regression targets.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Optional
from typing import Union

import numpy as np
import pandas as pd
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs.tasks import client_data
from tff_ocs.tasks import models
from tff_ocs.tasks import task as task_lib

# A model by name, of TFF, or of Keras.
Model = Union[
  str,
  tff.learning.models.FunctionalModel,
  tf.keras.Model,
  Callable[[], tf.keras.Model],
]
_Arrays = tuple[np.ndarray, np.ndarray]
# The losses that have a name, by it, and whether the targets are labels.
LOSSES = {'cross_entropy': True, 'mean_squared_error': False}


def from_arrays(
  clients: Union[Mapping[str, _Arrays], Sequence[_Arrays]],
  *,
  model: Model = 'linear',
  loss: Union[str, tf.keras.losses.Loss, None] = None,
  metrics: Optional[Mapping[str, task_lib.Metric]] = None,
  validation: Optional[_Arrays] = None,
  validation_fraction: float = 0.1,
  data_name: str = 'arrays',
  seed: int = 0,
) -> task_lib.Task:
  """Builds a task from the clients' examples as arrays.

  Args:
    clients: The inputs x and the targets y of each client, by its id; or a list
      of them, whose clients are called client_0, client_1 and so on. The first
      dimension of x and of y is the number of examples, at least 1. x is cast
      to the model's input type, float32 for a model by name. Integers y are the
      labels 0, 1, 2, ... of classes; floating-point y are regression targets,
      and if they have one dimension, [num_examples], they become
      [num_examples, 1].
    model: 'linear' or 'mlp', see `tff_ocs.tasks.models`; a Keras model, or a
      function that builds one, see `models.from_keras`; or a
      `tff.learning.models.FunctionalModel`, which has its own loss.
    loss: 'cross_entropy', 'mean_squared_error' or any Keras loss. If not given,
      the cross entropy of logits for labels, and the squared error for
      regression targets. With 'mean_squared_error', integers are regression
      targets too.
    metrics: What is measured on the validation set, see `task.Task`. If not
      given, the accuracy for labels, and the mean absolute error for targets.
    validation: The inputs and targets to validate on. If not given, they are
      drawn from the clients' examples.
    validation_fraction: The fraction of all examples that are drawn, in (0, 1).
      Each client keeps at least one example. The draw depends on the data only,
      so that all seeds share it. Ignored if `validation` is given.
    data_name: The name of the data in captions and tables.
    seed: The seed of the initial weights of a model by name. A Keras model has
      its weights already.

  Returns:
    The `Task`.

  Raises:
    DataError: If the data is not as described: no clients, a client without
      examples, x and y of different lengths, shapes that differ between
      clients, NaN or infinite values, negative labels, or labels that the model
      has no output for.
    ModelError: If a Keras model cannot be trained, see `models.from_keras`.
    TypeError: If an argument is not of its type.
    ValueError: If an argument is out of range.
  """
  if not isinstance(clients, Mapping):
    clients = {f'client_{i}': arrays for i, arrays in enumerate(clients)}
  if not clients:
    raise client_data.DataError('The data has no clients.')
  is_classification = _check_loss(loss)
  checked = {
    _check_id(client_id): _check_arrays(f'client {client_id!r}', arrays)
    for client_id, arrays in clients.items()
  }
  if validation is not None:
    validation = _check_arrays('the validation set', validation)
  everything = {f'client {i!r}': e for i, e in checked.items()}
  if validation is not None:
    everything['the validation set'] = validation
  _check_shapes(everything)
  specs = None
  if isinstance(model, tff.learning.models.FunctionalModel):
    specs = _check_specs(model)
    is_classification = specs[1].dtype.is_integer
  elif is_classification is None:
    is_classification = all(
      e.y.dtype.kind in 'iub' for e in everything.values()
    )
  cast = {
    name: _cast(name, examples, is_classification, specs)
    for name, examples in everything.items()
  }
  num_classes = None
  if is_classification:
    num_classes = 1 + max(int(e.y.max()) for e in cast.values())
  built = _build_model(
    model, loss, next(iter(cast.values())), num_classes, seed
  )
  if metrics is None:
    metrics = models.default_metrics(num_classes is not None)
    _check_num_outputs(built, num_classes)
  train = {i: cast[f'client {i!r}'] for i in checked}
  if validation is None:
    train, drawn = _draw_validation(train, validation_fraction)
    by_client = client_data.ArrayClientData(drawn)
    test = by_client.read_all()
  else:
    by_client, test = None, cast['the validation set']
  return task_lib.Task(
    data_name=data_name,
    model=built,
    train=client_data.ArrayClientData(train),
    test=test,
    metrics=metrics,
    test_by_client=by_client,
  )


def from_frame(
  frame: pd.DataFrame,
  *,
  client_column: str,
  label_column: str,
  feature_columns: Optional[Sequence[str]] = None,
  model: Model = 'linear',
  loss: Union[str, tf.keras.losses.Loss, None] = None,
  metrics: Optional[Mapping[str, task_lib.Metric]] = None,
  validation_fraction: float = 0.1,
  data_name: str = 'data frame',
  seed: int = 0,
) -> task_lib.Task:
  """Builds a task from a table with a row for each example.

  Each feature column is shifted and scaled to mean 0 and standard deviation 1
  over all rows, since one step size has to suit all columns. (Where the data
  stays with the clients, one round of sums gives the same numbers.)

  Args:
    frame: The table; `pandas.read_csv` and `pandas.read_parquet` read one.
    client_column: The column that names the client that a row belongs to.
    label_column: The column of the targets. Floating-point numbers are
      regression targets, unless `loss` is 'cross_entropy'. All else is a label:
      the classes are the different values, in their sorted order.
    feature_columns: The columns of the inputs, numbers or booleans. If not
      given, all other columns.
    model: As for `from_arrays`; an input is a vector of the features.
    loss: As for `from_arrays`.
    metrics: As for `from_arrays`.
    validation_fraction: As for `from_arrays`.
    data_name: As for `from_arrays`.
    seed: As for `from_arrays`.

  Returns:
    The `Task`.

  Raises:
    DataError: If a column is missing, holds text where numbers are due, or
      holds values that are missing or infinite.
    ModelError: As for `from_arrays`.
    TypeError: As for `from_arrays`.
    ValueError: As for `from_arrays`.
  """
  if not isinstance(frame, pd.DataFrame):
    raise TypeError(
      f'frame must be a pandas.DataFrame, found {type(frame).__name__}.'
    )
  is_classification = _check_loss(loss)
  if feature_columns is None:
    feature_columns = [
      c for c in frame.columns if c not in (client_column, label_column)
    ]
  _check_columns(frame, client_column, label_column, feature_columns)
  clients = frame[client_column]
  if clients.isna().any():
    row = int(clients.isna().to_numpy().argmax())
    raise client_data.DataError(
      f'The column {client_column!r} names no client in row {row} (from 0).'
    )
  ids = clients.astype(str).to_numpy()
  x = np.stack(
    [
      _read_numbers(
        frame[column],
        ids,
        'Leave it out of feature_columns, or encode it, for example with'
        ' pandas.get_dummies',
      )
      for column in feature_columns
    ],
    axis=1,
  )
  # A column that is constant is 0, whatever the rounding of its mean.
  std = x.std(axis=0)
  # The squares of differences below 1e-162 are 0.
  varies = (np.ptp(x, axis=0) > 0) & (std > 0)
  x = np.where(varies, (x - x.mean(axis=0)) / np.where(varies, std, 1), 0)
  y = _read_targets(frame[label_column], ids, is_classification)
  order = np.argsort(ids, kind='stable')
  names, starts = np.unique(ids[order], return_index=True)
  groups = np.split(order, starts[1:])
  return from_arrays(
    {name: (x[rows], y[rows]) for name, rows in zip(names.tolist(), groups)},
    model=model,
    loss=loss,
    metrics=metrics,
    validation_fraction=validation_fraction,
    data_name=data_name,
    seed=seed,
  )


def from_client_data(
  clients: tff.simulation.datasets.ClientData,
  *,
  input_key: Optional[str] = None,
  label_key: Optional[str] = None,
  validation: Optional[tff.simulation.datasets.ClientData] = None,
  model: Model = 'linear',
  loss: Union[str, tf.keras.losses.Loss, None] = None,
  metrics: Optional[Mapping[str, task_lib.Metric]] = None,
  validation_fraction: float = 0.1,
  data_name: str = 'client data',
  seed: int = 0,
) -> task_lib.Task:
  """Builds a task from TFF's client data: SQL, HDF5, or any other.

  All clients' examples are read into memory.

  Args:
    clients: The clients. Their data sets must not be batched.
    input_key: The entry of an example that is the input, for example 'pixels'.
      Only for examples that are dictionaries: others must be pairs of input and
      label.
    label_key: The entry that is the label.
    validation: Clients to validate on. If not given, examples are drawn.
    model: As for `from_arrays`.
    loss: As for `from_arrays`.
    metrics: As for `from_arrays`.
    validation_fraction: As for `from_arrays`.
    data_name: As for `from_arrays`.
    seed: As for `from_arrays`.

  Returns:
    The `Task`.

  Raises:
    DataError: As for `from_arrays`, or if the examples lack an entry.
    ModelError: As for `from_arrays`.
    TypeError: If `clients` is no client data, or as for `from_arrays`.
    ValueError: As for `from_arrays`.
  """
  arrays = _read_clients('clients', clients, input_key, label_key)
  if validation is not None:
    of_clients = _read_clients('validation', validation, input_key, label_key)
    try:
      validation = tuple(map(np.concatenate, zip(*of_clients.values())))
    except ValueError as error:
      raise client_data.DataError(
        f'the clients of validation must have examples of one shape: {error}.'
      ) from error
  return from_arrays(
    arrays,
    model=model,
    loss=loss,
    metrics=metrics,
    validation=validation,
    validation_fraction=validation_fraction,
    data_name=data_name,
    seed=seed,
  )


def _read_clients(name, clients, input_key, label_key) -> dict[str, _Arrays]:
  """Reads the examples of all clients of an argument, at least one."""
  if not isinstance(clients, tff.simulation.datasets.ClientData):
    raise TypeError(
      f'{name} must be a tff.simulation.datasets.ClientData, found'
      f' {type(clients).__name__}.'
    )
  if not clients.client_ids:
    raise client_data.DataError(f'{name} must have at least 1 client, found 0.')
  return {
    str(client_id): _read_client(name, clients, client_id, input_key, label_key)
    for client_id in clients.client_ids
  }


def _read_client(owner, clients, client_id, input_key, label_key) -> _Arrays:
  dataset = clients.create_tf_dataset_for_client(client_id)
  spec = dataset.element_spec
  if isinstance(spec, Mapping):
    for name, key in (('input_key', input_key), ('label_key', label_key)):
      if key not in spec:
        raise client_data.DataError(
          f'{name} must be one of the entries {sorted(spec)} of an example,'
          f' found {key!r}.'
        )
    dataset = dataset.map(lambda e: (e[input_key], e[label_key]))
  elif not (isinstance(spec, tuple) and len(spec) == 2):
    raise client_data.DataError(
      'An example must be a dictionary, or a pair of input and label, found'
      f' {spec}.'
    )
  batches = list(dataset.batch(1000).as_numpy_iterator())
  if not batches:
    raise client_data.DataError(
      f'client {client_id!r} of {owner} has no examples.'
    )
  x, y = zip(*batches)
  return np.concatenate(x), np.concatenate(y)


def _check_loss(loss) -> Optional[bool]:
  """Whether the loss is one of labels; `None` if the targets decide that."""
  if isinstance(loss, str):
    if loss not in LOSSES:
      raise ValueError(
        f'loss must be one of {", ".join(LOSSES)} or a Keras loss, found'
        f' {loss!r}.'
      )
    return LOSSES[loss]
  if loss is not None and not isinstance(loss, tf.keras.losses.Loss):
    raise TypeError(
      f'loss must be one of {", ".join(LOSSES)} or a tf.keras.losses.Loss,'
      f' found {type(loss).__name__}.'
    )
  return None


def _check_id(client_id) -> str:
  if not isinstance(client_id, str) or not client_id:
    raise client_data.DataError(
      f'A client is named by text, found {client_id!r}.'
    )
  return client_id


def _check_arrays(owner: str, arrays) -> client_data.Examples:
  """Checks the arrays of one client, or the validation set."""
  try:
    x, y = arrays
    x, y = np.asarray(x), np.asarray(y)
  except (TypeError, ValueError) as error:
    raise client_data.DataError(
      f'{owner} must have a pair of arrays, inputs x and targets y: {error}.'
    ) from error
  for name, values in (('x', x), ('y', y)):
    if values.dtype.kind not in 'fiub':
      raise client_data.DataError(
        f'{name} of {owner} must hold numbers, found the type {values.dtype}.'
      )
    if values.ndim == 0:
      raise client_data.DataError(
        f'{name} of {owner} must have the number of examples as its first'
        ' dimension, found a single number.'
      )
    if not np.isfinite(values).all():
      place = tuple(np.argwhere(~np.isfinite(values))[0].tolist())
      raise client_data.DataError(
        f'{name} of {owner} must be finite, found {values[place]} at the index'
        f' {list(place)}.'
      )
  if len(x) != len(y):
    raise client_data.DataError(
      f'{owner} has {len(x)} inputs x but {len(y)} targets y.'
    )
  if not len(y):
    raise client_data.DataError(f'{owner} has no examples.')
  return client_data.Examples(x, y)


def _check_shapes(everything: Mapping[str, client_data.Examples]) -> None:
  """Checks that all examples have the same shape."""
  first_owner, first = next(iter(everything.items()))
  for owner, examples in everything.items():
    for name, values, like in zip('xy', examples, first):
      if values.shape[1:] != like.shape[1:]:
        raise client_data.DataError(
          f'{name} of {owner} has examples of shape {list(values.shape[1:])},'
          f' but those of {first_owner} have {list(like.shape[1:])}.'
        )


def _check_specs(model) -> tuple[tf.TensorSpec, tf.TensorSpec]:
  """The types of inputs and labels of a functional model."""
  spec = model.input_spec
  if not (
    isinstance(spec, Sequence)
    and len(spec) == 2
    and all(isinstance(part, tf.TensorSpec) for part in spec)
  ):
    raise client_data.DataError(
      'The input_spec of the model must be a pair of tf.TensorSpec, of the'
      f' inputs and of the labels, found {spec}.'
    )
  return tuple(spec)


def _cast(owner, examples, is_classification, specs) -> client_data.Examples:
  """Casts one client's arrays to the types that the model takes."""
  x_spec, y_spec = specs or (
    tf.TensorSpec(None, tf.float32),
    tf.TensorSpec(None, tf.int32 if is_classification else tf.float32),
  )
  x = _cast_exactly(f'x of {owner}', examples.x, x_spec.dtype.as_numpy_dtype)
  y = _cast_exactly(f'y of {owner}', examples.y, y_spec.dtype.as_numpy_dtype)
  if is_classification and y.min() < 0:
    raise client_data.DataError(
      f'y of {owner} must hold labels of at least 0, found {y.min()}.'
    )
  if not is_classification and y.ndim == 1 and y_spec.shape.rank in (None, 2):
    y = y[:, np.newaxis]
  return client_data.Examples(x, y)


def _cast_exactly(name, values, dtype) -> np.ndarray:
  """Casts, and refuses to turn fractions into integers, or to overflow."""
  with np.errstate(over='ignore', invalid='ignore'):
    cast = values.astype(dtype)
  is_same = np.isfinite(cast) if cast.dtype.kind == 'f' else cast == values
  if not is_same.all():
    raise client_data.DataError(
      f'{name} must hold numbers of the type {cast.dtype}, found'
      f' {values[~is_same].flat[0]}.'
    )
  return cast


def _build_model(model, loss, like, num_classes, seed):
  """The functional model, for examples like those of one client."""
  x, y = like
  if isinstance(model, tff.learning.models.FunctionalModel):
    if loss is not None:
      raise ValueError(
        'loss must not be given for a FunctionalModel, which has its own.'
      )
    for name, spec, values in zip('xy', model.input_spec, (x, y)):
      if not spec.shape.is_compatible_with([None, *values.shape[1:]]):
        raise client_data.DataError(
          f'{name} has examples of shape {list(values.shape[1:])}, but the'
          f' model takes batches of shape {spec.shape.as_list()}.'
        )
    return model
  label_spec = tf.TensorSpec([None, *y.shape[1:]], tf.as_dtype(y.dtype))
  if loss is None or isinstance(loss, str):
    keras_loss = models.default_loss(num_classes is not None)
  else:
    keras_loss = loss
  if isinstance(model, str):
    if model not in models.BY_NAME:
      raise ValueError(
        f'model must be one of {", ".join(models.BY_NAME)}, a Keras model or a'
        f' FunctionalModel, found {model!r}.'
      )
    if y.ndim > 1 + (num_classes is None):
      raise client_data.DataError(
        f'The model {model!r} takes one label an example, found y of shape'
        f' {list(y.shape[1:])}.'
      )
    return models.BY_NAME[model](
      x.shape[1:],
      num_classes or y.shape[-1],
      loss=keras_loss,
      label_spec=label_spec,
      seed=seed,
    )
  converted = models.from_keras(
    model,
    loss=keras_loss,
    input_spec=(tf.TensorSpec([None, *x.shape[1:]], tf.float32), label_spec),
  )
  if keras_loss is not loss and num_classes is not None:
    built = model if isinstance(model, tf.keras.Model) else model()
    if models.ends_with_softmax(built):
      raise models.ModelError(
        f'The Keras model {built.name} ends with a softmax, but the default'
        ' loss takes logits: leave the softmax out, or pass a loss with'
        ' from_logits=False.'
      )
  return converted


def _check_num_outputs(model, num_classes) -> None:
  """Checks that the model has an output for each class, as accuracy needs."""
  if num_classes is None:
    return
  num_outputs = models.output_size(model)
  if num_outputs is not None and num_outputs < num_classes:
    raise client_data.DataError(
      f'The labels go up to {num_classes - 1}, but the model has'
      f' {num_outputs} outputs.'
    )


def _draw_validation(
  clients: Mapping[str, client_data.Examples], fraction: float
) -> tuple[dict[str, client_data.Examples], dict[str, client_data.Examples]]:
  """Divides each client's examples, of which it keeps at least one."""
  if arguments.check_fraction('validation_fraction', fraction) == 1:
    raise ValueError('validation_fraction must be below 1, found 1.')
  rng = np.random.default_rng(0)
  names = sorted(clients)
  shuffled = {name: rng.permutation(len(clients[name].y)) for name in names}
  # All examples that may be drawn: pairs of a client and a place.
  candidates = [
    (name, place) for name in names for place in shuffled[name][1:].tolist()
  ]
  total = sum(map(len, shuffled.values()))
  num_drawn = min(max(1, round(fraction * total)), len(candidates))
  if not num_drawn:
    raise client_data.DataError(
      'No examples can be drawn to validate on, since each client has only one;'
      ' pass a validation set.'
    )
  chosen: dict[str, list[int]] = {name: [] for name in names}
  for index in rng.choice(len(candidates), num_drawn, replace=False):
    name, place = candidates[index]
    chosen[name].append(place)
  train, drawn = {}, {}
  for name in names:
    is_drawn = np.zeros(len(shuffled[name]), bool)
    is_drawn[chosen[name]] = True
    x, y = clients[name]
    train[name] = client_data.Examples(x[~is_drawn], y[~is_drawn])
    drawn[name] = client_data.Examples(x[is_drawn], y[is_drawn])
  return train, drawn


def _check_columns(frame, client_column, label_column, feature_columns) -> None:
  named = {
    'client_column': [client_column],
    'label_column': [label_column],
    'feature_columns': list(feature_columns),
  }
  for argument, columns in named.items():
    for column in columns:
      if column not in frame.columns:
        raise client_data.DataError(
          f'{argument}: there is no column {column!r}; the columns are'
          f' {", ".join(map(repr, frame.columns))}.'
        )
      if list(frame.columns).count(column) > 1:
        raise client_data.DataError(
          f'{argument}: there are several columns {column!r}.'
        )
  if client_column == label_column or label_column in feature_columns:
    raise client_data.DataError(
      f'label_column: the column {label_column!r} has another role already.'
    )
  if not len(feature_columns):
    raise client_data.DataError('feature_columns: there is no feature column.')
  if frame.empty:
    raise client_data.DataError('The data has no rows.')


def _read_numbers(column: pd.Series, ids: np.ndarray, advice) -> np.ndarray:
  """The numbers of a column, float64."""
  if not (
    pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column)
  ):
    raise client_data.DataError(
      f'The column {column.name!r} must hold numbers, found'
      f' {_show_value(column)}. {advice}.'
    )
  values = column.to_numpy(dtype=np.float64, na_value=np.nan)
  _check_finite(column.name, values, ids)
  return values


def _read_targets(column, ids, is_classification) -> np.ndarray:
  """The targets: float64, or the classes' numbers."""
  is_float = pd.api.types.is_float_dtype(column)
  if is_classification is None:
    is_classification = not is_float
  if not is_classification:
    return _read_numbers(
      column, ids, 'Labels that are names need the loss cross_entropy'
    )
  if column.isna().any():
    row = int(column.isna().to_numpy().argmax())
    raise client_data.DataError(
      f'The column {column.name!r} must have no gaps, found one for client'
      f' {ids[row]!r} in row {row} (from 0).'
    )
  try:
    return np.unique(column.to_numpy(), return_inverse=True)[1].astype(np.int64)
  except TypeError as error:  # Text and numbers are not sorted.
    raise client_data.DataError(
      f'The column {column.name!r} must hold labels of one type: {error}.'
    ) from error


def _check_finite(name, values, ids) -> None:
  bad = ~np.isfinite(values)
  if bad.any():
    row = int(bad.argmax())
    raise client_data.DataError(
      f'The column {name!r} must be finite, found {values[row]} for client'
      f' {ids[row]!r} in row {row} (from 0).'
    )


def _show_value(column: pd.Series) -> str:
  return repr(column.iloc[0])
