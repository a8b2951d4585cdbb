"""The flags that name data and a model of one's own: a task, or a table.

This module does not import TensorFlow, so that --help and wrong flags are
answered at once.
"""

import functools
import hashlib
import pathlib
from typing import Any

from absl import flags

from experiments.runs import experiment_flags
from experiments.runs import user_code
from programs import definer
from tff_ocs.records import files

# Flags count as those of the program that calls `define`.
flags.disclaim_key_flags()

_TABLES = ('.csv', '.csv.gz', '.parquet')
_OF_TABLE = ('client_column', 'label_column', 'feature_columns')
_OF_DATA = (*_OF_TABLE, 'model', 'loss', 'data_name')


def define(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags."""
  define = definer.Definer(values)
  define.string(
    'task',
    None,
    'PATH.py:FUNCTION, a function of a file of yours that takes the seed and'
    ' returns a tff_ocs.tasks.task.Task, for example one that'
    ' tff_ocs.tasks.from_arrays built.',
  )
  define.path(
    'data',
    None,
    'Instead of --task: a table with a row for each example, FILE.csv,'
    ' FILE.csv.gz or FILE.parquet; or a folder with a file CLIENT.npz for each'
    ' client, which holds the arrays x (inputs) and y (labels or targets).',
  )
  define.string(
    'client_column',
    None,
    'With a table: the column that names the client of a row.',
  )
  define.string(
    'label_column',
    None,
    'With a table: the column of the labels. Floating-point numbers are'
    ' regression targets, all else is the name of a class, unless --loss says'
    ' otherwise.',
  )
  define.list(
    'feature_columns',
    None,
    'With a table: the columns of the inputs. If not given, all others.',
  )
  define.enum(
    'model',
    'linear',
    ['linear', 'mlp'],
    'With --data: the model, a linear one or a multilayer perceptron (MLP) with'
    ' one hidden layer of 64 ReLU units.'
    ' For other models, use --task.',
  )
  define.enum(
    'loss',
    None,
    ['cross_entropy', 'mean_squared_error'],
    'With --data: the loss. If not given, the cross entropy for labels and the'
    ' mean squared error for regression targets.',
  )
  define.string(
    'data_name',
    None,
    'With --data: the name of the data in captions. If not given, that of the'
    ' file.',
  )


def check(values: flags.FlagValues) -> None:
  """Checks that the flags name one task, and that its files exist.

  Raises:
    SettingError: If flags are missing or contradict each other.
    UserCodeError: If there is no file of --task.
  """
  if (values.task is None) == (values.data is None):
    given = 'neither' if values.task is None else 'both'
    raise experiment_flags.SettingError(
      f'either --task=PATH.py:FUNCTION or --data=FILE is needed, found {given}.'
    )
  if values.task is not None:
    for name in _OF_DATA:
      if values[name].value != values[name].default:
        raise experiment_flags.SettingError(
          f'--{name}={values[name].value} needs --data, found'
          f' --task={values.task}.'
        )
    user_code.locate('task', values.task)
    return
  path = pathlib.Path(values.data)
  if path.is_dir():
    for name in _OF_TABLE:
      if values[name].value is not None:
        raise experiment_flags.SettingError(
          f'--{name}={values[name].value} needs a table, but --data={path} is a'
          ' folder.'
        )
    if not _files_of_clients(path):
      raise experiment_flags.SettingError(
        f'--data={path} must hold a file CLIENT.npz for each client, found'
        ' none.'
      )
    return
  if not path.name.endswith(_TABLES):
    raise experiment_flags.SettingError(
      f'--data={path} must be a folder or end with one of {", ".join(_TABLES)}.'
    )
  if not path.is_file():
    raise experiment_flags.SettingError(f'--data={path} does not exist.')
  for name in ('client_column', 'label_column'):
    if values[name].value is None:
      raise experiment_flags.SettingError(
        f'--data={path} is a table, so --{name} must name its column.'
      )


def name(values: flags.FlagValues) -> str:
  """The short name of the data, in file names and figures."""
  if values.task is not None:
    return user_code.locate('task', values.task)[0].stem
  return pathlib.Path(values.data).resolve().name.split('.')[0]


def settings(values: flags.FlagValues) -> dict[str, Any]:
  """The settings that a run records, with the digests of the files."""
  if values.task is not None:
    return {'task': user_code.describe('task', values.task)}
  columns = {name: values[name].value for name in (*_OF_TABLE, 'model', 'loss')}
  return {'data_file': describe_file(values.data), **columns}


def describe_file(path) -> str:
  """The name and the SHA-256 of a file, or of a folder's .npz files."""
  path = pathlib.Path(path)
  try:
    if path.is_dir():
      digest = hashlib.sha256()
      for file in _files_of_clients(path):
        digest.update(f'{file.name}\0'.encode())
        digest.update(_digest(file))
      of_data = digest.digest()
    else:
      of_data = _digest(path)
  except OSError as error:
    raise experiment_flags.SettingError(
      f'--data={path} cannot be read: {error}.'
    ) from error
  return f'{path.resolve().name}@sha256:{of_data.hex()}'


def _digest(path) -> bytes:
  status = path.stat()
  return _digest_of(path, status.st_size, status.st_mtime_ns)


# A campaign asks for it once for each of its runs.
@functools.cache
def _digest_of(path, size, modified) -> bytes:
  """The SHA-256 of a version of a file, which size and time identify."""
  del size, modified
  return bytes.fromhex(files.sha256(path))


def load(values: flags.FlagValues) -> Any:
  """Loads the `tff_ocs.tasks.task.Task`.

  Raises:
    DataError: If the data is not as it must be.
    UserCodeError: If the function of --task fails or returns no task.
  """
  from tff_ocs import tasks
  from tff_ocs.tasks import task as task_lib

  if values.task is not None:
    task = user_code.call('task', values.task, values.seed)
    if not isinstance(task, task_lib.Task):
      raise user_code.UserCodeError(
        f'--task={values.task} must return a tff_ocs.tasks.task.Task, found'
        f' {type(task).__name__}.'
      )
    return task
  path = pathlib.Path(values.data)
  common = dict(
    model=values.model,
    loss=values.loss,
    data_name=values.data_name or path.resolve().name,
    seed=values.seed,
  )
  if path.is_dir():
    return tasks.from_arrays(
      {file.stem: _read_arrays(file) for file in _files_of_clients(path)},
      **common,
    )
  return tasks.from_frame(
    _read_table(path, values.client_column, values.label_column),
    client_column=values.client_column,
    label_column=values.label_column,
    feature_columns=values.feature_columns,
    **common,
  )


def _files_of_clients(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(folder.glob('*.npz'))


def _read_arrays(path):
  import numpy as np

  from tff_ocs.tasks import client_data

  try:
    with np.load(path) as arrays:
      return arrays['x'], arrays['y']
  except KeyError as error:
    raise client_data.DataError(
      f'{path} must hold the arrays x and y: {error.args[0]}.'
    ) from error
  except Exception as error:  # NumPy and zipfile raise many types.
    raise client_data.DataError(f'{path} cannot be read: {error}.') from error


def _text_or_gap(text):
  return text or None


def _read_table(path, client_column, label_column):
  import pandas as pd

  from tff_ocs.tasks import client_data

  try:
    if path.suffix == '.parquet':
      return pd.read_parquet(path, engine='pyarrow')
    # As text, so that the clients 007 and NA keep their names.
    frame = pd.read_csv(path, converters={client_column: _text_or_gap})
    if label_column in frame and frame[label_column].dtype == object:
      # A class may be called NA, too.
      labels = pd.read_csv(
        path, usecols=[label_column], converters={label_column: _text_or_gap}
      )
      frame[label_column] = labels[label_column]
    return frame
  except ImportError as error:
    raise client_data.DataError(
      f'{path} cannot be read without the package pyarrow; install it with'
      ' pip install pyarrow, or save the table as CSV.'
    ) from error
  except Exception as error:  # pandas and pyarrow raise many types.
    lines = str(error).strip().splitlines() or [repr(error)]
    raise client_data.DataError(
      f'{path} cannot be read: {lines[0]}.'
    ) from error
