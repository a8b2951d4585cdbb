"""The final weights of a run: `weights.npz`, written and read here.

The arrays are called `trainable_0`, `trainable_1`, ..., `non_trainable_0`, ...,
in the model's order; or, where a model's weights are a mapping, by their names
in it: `trainable_kernel`. Earlier versions called them `arr_0`, ....
"""

import io
import os
import pathlib
from collections.abc import Mapping
from typing import Optional
from typing import TYPE_CHECKING
from typing import Union

import numpy as np

from tff_ocs.records import files

if TYPE_CHECKING:
  import tensorflow_federated as tff

WEIGHTS = 'weights.npz'
_PREFIXES = ('trainable_', 'non_trainable_')
_FORMER_PREFIX = 'arr_'


def write_weights(
  path: Union[str, os.PathLike], weights: 'tff.learning.models.ModelWeights'
) -> None:
  """Writes `weights.npz` atomically.

  Args:
    path: The run's folder.
    weights: The final weights.

  Raises:
    OSError: If the file cannot be written.
  """
  # Imported here, so that programs that only read metrics start quickly.
  import tensorflow as tf

  arrays = {}
  for prefix, part in zip(
    _PREFIXES, (weights.trainable, weights.non_trainable)
  ):
    flat = tf.nest.flatten(part)
    is_named = isinstance(part, Mapping) and len(part) == len(flat)
    # TensorFlow flattens mappings in the order of their sorted keys.
    names = sorted(part) if is_named else range(len(flat))
    for name, array in zip(names, flat):
      arrays[f'{prefix}{name}'] = np.asarray(array)
  content = io.BytesIO()
  np.savez(content, **arrays)
  path = pathlib.Path(path) / WEIGHTS
  with files.explaining_write_errors(path):
    with files.replacing(path) as partial, partial.open('wb') as file:
      file.write(content.getbuffer())
      # The file's presence says that the run is finished, so that the content
      # must be on the disk before the name is, even if the power fails.
      file.flush()
      os.fsync(file.fileno())


def load_weights(
  path: Union[str, os.PathLike],
  model: 'Optional[tff.learning.models.FunctionalModel]' = None,
) -> 'tff.learning.models.ModelWeights':
  """Loads the final weights of a run.

  Args:
    path: The file `weights.npz`, or the run's folder.
    model: The model that the weights belong to. If given, the weights have its
      structure, and must have its shapes and types. Otherwise they are lists of
      arrays.

  Returns:
    The `tff.learning.models.ModelWeights`, NumPy arrays. Files of earlier
    versions do not say which weights are trainable: without `model` all of them
    are taken to be, as they are in the tasks of this package.

  Raises:
    OSError: If the file is missing or cannot be read.
    RecordError: If it does not hold a model's weights, or those of another
      model than `model`.
  """
  import tensorflow as tf
  import tensorflow_federated as tff

  path = pathlib.Path(path)
  if path.is_dir():
    path = path / WEIGHTS
  try:
    with np.load(path) as loaded:
      arrays = {name: loaded[name] for name in loaded.files}
  except OSError:
    raise
  except Exception as error:  # np.load raises many kinds for a foreign file.
    raise files.RecordError(f'{path} is not a file of weights') from error
  prefixes = (*_PREFIXES, _FORMER_PREFIX)
  unknown = [name for name in arrays if not name.startswith(prefixes)]
  if unknown:
    raise files.RecordError(
      f'{path} is not a file of weights: it has the array {unknown[0]!r}'
    )
  if model is not None:
    expected = model.initial_weights
    _check_shapes(path, list(arrays.values()), tf.nest.flatten(expected))
    return tff.learning.models.ModelWeights(
      *tf.nest.pack_sequence_as(expected, list(arrays.values()))
    )
  is_fixed = [name.startswith(_PREFIXES[1]) for name in arrays]
  return tff.learning.models.ModelWeights(
    [array for array, fixed in zip(arrays.values(), is_fixed) if not fixed],
    [array for array, fixed in zip(arrays.values(), is_fixed) if fixed],
  )


def _check_shapes(path, arrays, expected):
  """Checks that arrays are those of the expected model."""
  other_model = f'{path} holds the weights of another model'
  if len(arrays) != len(expected):
    raise files.RecordError(
      f'{other_model}: {len(arrays)} arrays, where the model has'
      f' {len(expected)}'
    )
  for index, pair in enumerate(zip(arrays, expected)):
    found, due = (f'{a.dtype}{list(a.shape)}' for a in map(np.asarray, pair))
    if found != due:
      raise files.RecordError(
        f'{other_model}: array {index} is {found}, where the model has {due}'
      )
