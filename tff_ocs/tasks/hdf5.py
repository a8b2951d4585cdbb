"""Reads clients' examples from HDF5 files of TFF's client data format.

A file holds the group `examples`, in it a group for each client, named by the
client's id, and in that a data set for each field, whose first axis is the
example.
"""

import pathlib
from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple

import h5py
import numpy as np

from tff_ocs.tasks import client_data

_EXAMPLES = 'examples'
_KINDS = {'f': 'floating-point numbers', 'i': 'integers'}


class Field(NamedTuple):
  """A field of the examples.

  Attributes:
    kind: 'f' for floating-point numbers or 'i' for integers, of any size.
    shape: The shape of one example.
  """

  kind: str
  shape: tuple[int, ...]


def read_clients(
  path: pathlib.Path,
  fields: Mapping[str, Field],
  convert: Callable[..., client_data.Examples],
) -> dict[str, client_data.Examples]:
  """Reads a file.

  Args:
    path: The file.
    fields: The fields to read, by name; others are ignored.
    convert: A function from the arrays of a client's fields, given by name and
      of shape [num_examples, *shape], to the `Examples`. It raises `DataError`
      if a value is out of range.

  Returns:
    The `Examples` of each client, by id.

  Raises:
    DataError: If the file is missing, is not of this format, holds no client or
      a client without examples, or has values out of range.
  """
  if not path.is_file():
    raise client_data.DataError(f'{path} does not exist.')
  try:
    # Without locks, which some shared file systems lack: nobody writes here.
    with h5py.File(path, 'r', locking=False) as file:
      clients = file.get(_EXAMPLES)
      if not isinstance(clients, h5py.Group) or not len(clients):
        held = 'it without clients' if clients is not None else list(file)
        raise client_data.DataError(
          f'{path} must hold the group {_EXAMPLES} with a group for each'
          f' client, found {held}.'
        )
      return {
        client_id: _read_client(path, client_id, clients, fields, convert)
        for client_id in clients
      }
  # Of damaged groups, h5py raises the last two.
  except (OSError, RuntimeError, KeyError) as error:
    raise client_data.DataError(
      f'{path} is partial or damaged, or is not an HDF5 file: {error}.'
    ) from error


def _read_client(path, client_id, clients, fields, convert):
  place = f'{path}, client {client_id}'
  group = clients[client_id]
  arrays = {
    name: _read_field(place, group, name, field)
    for name, field in fields.items()
  }
  sizes = {name: len(array) for name, array in arrays.items()}
  if len(set(sizes.values())) > 1 or not all(sizes.values()):
    found = ' and '.join(f'{size} of {name}' for name, size in sizes.items())
    raise client_data.DataError(
      f'{place}: the fields must hold the same number of examples, at least 1,'
      f' found {found}.'
    )
  try:
    return convert(**arrays)
  except client_data.DataError as error:
    raise client_data.DataError(f'{place}: {error}.') from error


def _read_field(place, group, name, field) -> np.ndarray:
  """Reads a field of a client."""
  stored = group.get(name) if isinstance(group, h5py.Group) else None
  if not isinstance(stored, h5py.Dataset):
    raise client_data.DataError(f'{place}: there is no data set {name!r}.')
  kind = stored.dtype.kind.replace('u', 'i')
  if kind != field.kind or not stored.shape or stored.shape[1:] != field.shape:
    wanted = ', '.join(['examples', *map(str, field.shape)])
    raise client_data.DataError(
      f'{place}: {name} must be {_KINDS[field.kind]} of shape [{wanted}], found'
      f' {stored.dtype} of shape {list(stored.shape or ())}.'
    )
  return stored[()]
