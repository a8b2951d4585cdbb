"""Clients' examples as arrays, read when first asked for and then kept."""

import abc
import contextlib
import pathlib
import shutil
import sqlite3
import tempfile
import types
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np


class DataError(ValueError):
  """Raised if a data set is missing, partial or not what it should be."""


class Examples(NamedTuple):
  """Examples of one client, or of a test set.

  Attributes:
    x: The inputs, an array of shape [num_examples, ...].
    y: The labels, an array of shape [num_examples, ...].
  """

  x: np.ndarray
  y: np.ndarray


class ClientData(abc.ABC):
  """The examples of a pool of clients."""

  def __init__(self, num_examples: Mapping[str, int]):
    """Initializes `ClientData`.

    Args:
      num_examples: The number of examples of each client, by id.
    """
    self._num_examples = types.MappingProxyType(
      dict(sorted(num_examples.items()))
    )
    self._cache = {}

  @property
  def client_ids(self) -> list[str]:
    """The clients' ids, sorted."""
    return list(self._num_examples)

  @property
  def num_examples(self) -> Mapping[str, int]:
    """The number of examples of each client, by id; known without reading."""
    return self._num_examples

  def examples(self, client_id: str) -> Examples:
    """The client's examples, read once and then kept in memory.

    Images of float32 in [0, 1] that were made of bytes are kept as bytes, in a
    fourth of the memory, and come back bit for bit.

    Args:
      client_id: One of `client_ids`.

    Returns:
      The client's `Examples`.

    Raises:
      DataError: If what is read is not what was announced.
    """
    if client_id not in self._cache:
      examples = self.read(client_id)
      self._cache[client_id] = Examples(_pack(examples.x), examples.y)
    kept = self._cache[client_id]
    if isinstance(kept.x, _Bytes):
      return Examples(kept.x.values[kept.x.codes], kept.y)
    return kept

  @abc.abstractmethod
  def read(self, client_id: str) -> Examples:
    """Reads a client's examples anew, without keeping them."""


class ArrayClientData(ClientData):
  """Clients' examples that are in memory already."""

  def __init__(self, examples: Mapping[str, Examples]):
    """Initializes `ArrayClientData`.

    Args:
      examples: The `Examples` of each client, by id.
    """
    super().__init__({i: len(e.y) for i, e in examples.items()})
    self._examples = dict(examples)

  def examples(self, client_id):
    return self._examples[client_id]

  read = examples


class SelectedClientData(ClientData):
  """Some of the clients of another `ClientData`, and some of their examples."""

  def __init__(
    self,
    base: ClientData,
    selection: Mapping[str, Optional[np.ndarray]],
  ):
    """Initializes `SelectedClientData`.

    Args:
      base: Where the examples come from.
      selection: For each client that is kept the indices of the examples that
        are kept; `None` keeps all.
    """
    sizes = base.num_examples
    super().__init__(
      {
        i: sizes[i] if chosen is None else len(chosen)
        for i, chosen in selection.items()
      }
    )
    self._base = base
    self._selection = dict(selection)

  def read(self, client_id):
    # Not through the base's memory, which would keep what is left out here.
    examples = self._base.read(client_id)
    chosen = self._selection[client_id]
    if chosen is None:
      return examples
    return Examples(examples.x[chosen], examples.y[chosen])


class _Bytes(NamedTuple):
  """An array as what its bytes stand for.

  Attributes:
    codes: uint8, of the array's shape.
    values: float32[256], the values of the codes.
  """

  codes: np.ndarray
  values: np.ndarray


def _pack(x: np.ndarray) -> Union[np.ndarray, _Bytes]:
  """Packs an array if that loses nothing, otherwise gives it back."""
  if x.dtype != np.float32 or not x.size or not (x.min() >= 0 and x.max() <= 1):
    return x
  codes = np.rint(x * 255).astype(np.uint8)
  # Whatever the file holds for k / 255: the ways to compute it differ in the
  # last bit.
  values = np.zeros(256, np.float32)
  values[codes] = x
  same = values[codes].view(np.int32) == x.view(np.int32)
  return _Bytes(codes, values) if same.all() else x


class SqlClientData(ClientData):
  """One split of a database file of `tff.simulation.datasets`."""

  def __init__(
    self,
    path: Union[str, pathlib.Path],
    split: str,
    parse: Callable[[Sequence[bytes]], Examples],
  ):
    """Initializes `SqlClientData`.

    Args:
      path: The database file.
      split: The name of the split.
      parse: Turns serialized `tf.train.Example` protos into `Examples`.

    Raises:
      DataError: If the file is missing, partial or has another schema, or the
        split is missing.
    """
    check_database(path, [split])
    self._path = pathlib.Path(path)
    self._split = split
    self._parse = parse
    rows = self._query(
      'SELECT client_id, num_examples FROM client_metadata'
      ' WHERE split_name = ?',
      split,
    )
    super().__init__(dict(rows))

  def read(self, client_id):
    rows = self._query(
      'SELECT serialized_example_proto FROM examples'
      ' WHERE client_id = ? AND split_name = ? ORDER BY rowid',
      client_id,
      self._split,
    )
    return self._parse_rows(rows, f'client {client_id}', client_id)

  def read_all(self) -> Examples:
    """All examples of the split, in the file's order."""
    rows = self._query(
      'SELECT serialized_example_proto FROM examples'
      ' WHERE split_name = ? ORDER BY rowid',
      self._split,
    )
    return self._parse_rows(rows, f'split {self._split}')

  def _query(self, query, *arguments):
    try:
      with _open_database(self._path) as connection:
        return connection.execute(query, arguments).fetchall()
    except sqlite3.Error as error:
      raise DataError(
        f'{self._path} cannot be read: {error}. {_way_out(self._path)}'
      ) from error

  def _parse_rows(self, rows, what, client_id=None):
    announced = (
      sum(self.num_examples.values())
      if client_id is None
      else self.num_examples[client_id]
    )
    if len(rows) != announced:
      raise DataError(
        f'{self._path} announces {announced} examples of {what}, but holds'
        f' {len(rows)}. {_way_out(self._path)}'
      )
    try:
      return self._parse([row[0] for row in rows])
    except Exception as error:  # The parser may be any TensorFlow code.
      raise DataError(
        f'{self._path} holds examples of another data set ({what}):'
        f' {str(error).splitlines()[0]}. {_way_out(self._path)}'
      ) from error


def check_database(
  path: Union[str, pathlib.Path], splits: Sequence[str]
) -> None:
  """Checks that a file is a whole database of `tff.simulation.datasets`.

  TFF takes any file of the right name for the data set, also what a broken
  download has left.

  Args:
    path: The database file.
    splits: The splits that it must have, each with at least one client.

  Raises:
    DataError: If it is not; the message says what is wrong and the way out.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise DataError(f'{path} does not exist.')
  with path.open('rb') as file:
    header = file.read(100)
  if len(header) < 100 or not header.startswith(b'SQLite format 3\0'):
    raise DataError(f'{path} is not an SQLite database. {_way_out(path)}')
  # A page size of 1 stands for 65,536 bytes.
  page_size = int.from_bytes(header[16:18], 'big')
  page_size = 2**16 if page_size == 1 else page_size
  num_pages = int.from_bytes(header[28:32], 'big')
  if path.stat().st_size != page_size * num_pages:
    raise DataError(
      f'{path} is partial: it has {path.stat().st_size:,} bytes of'
      f' {page_size * num_pages:,}. {_way_out(path)}'
    )
  try:
    with _open_database(path) as connection:
      for table, columns in _SCHEMA.items():
        found = {
          row[1] for row in connection.execute(f'PRAGMA table_info({table})')
        }
        if not columns <= found:
          raise DataError(
            f'{path} is another kind of database: its table {table!r} lacks'
            f' the columns {sorted(columns - found)}. {_way_out(path)}'
          )
      found = {
        row[0]
        for row in connection.execute(
          'SELECT DISTINCT split_name FROM client_metadata'
        )
      }
  except sqlite3.Error as error:
    raise DataError(
      f'{path} cannot be read: {error}. {_way_out(path)}'
    ) from error
  if not set(splits) <= found:
    raise DataError(
      f'{path} is another data set: it has the splits {sorted(found)} and'
      f' lacks {sorted(set(splits) - found)}. {_way_out(path)}'
    )


def get_tff_database(
  name: str,
  splits: Sequence[str],
  load_data: Callable[..., object],
  *,
  cache_dir: Optional[str],
  offline_source: str,
) -> pathlib.Path:
  """Finds a data set's file, downloads it if it is missing, and checks it.

  Args:
    name: The file's name.
    splits: The splits that it must have.
    load_data: TFF's own loader of the data set, which takes the argument
      `cache_dir`, downloads what is not there, and has the last word on what it
      can read.
    cache_dir: The folder of the file; `None` is TFF's own default.
    offline_source: The --data_source that needs no download, for the message.

  Returns:
    The file's path.

  Raises:
    DataError: If the file cannot be had, or is not the data set.
  """
  # TFF's own default.
  folder = pathlib.Path(cache_dir or pathlib.Path.home() / '.tff')
  path = folder / name
  if not path.exists():
    _download(path, load_data, offline_source)
  check_database(path, splits)
  load_data(cache_dir=str(folder))
  return path


def _download(path, load_data, offline_source):
  """Downloads to a folder beside, since TFF trusts what a broken one leaves."""
  folder, name = path.parent, path.name
  try:
    folder.mkdir(parents=True, exist_ok=True)
    partial = tempfile.mkdtemp(prefix='download-', dir=folder)
  except OSError as error:
    raise DataError(
      f'{name} is not in {folder}, and cannot be written there: {error}.'
      ' Name another folder with --cache_dir.'
    ) from error
  try:
    load_data(cache_dir=partial)
    (pathlib.Path(partial) / name).replace(path)
  except Exception as error:  # Network, disk, decompression.
    raise DataError(
      f'{name} is not in {folder}, and TFF could not download it:'
      f' {error}. Put the file there, name its folder with --cache_dir, or use'
      f' data that needs no download: --data_source={offline_source}.'
    ) from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


_SCHEMA = {
  'examples': {'split_name', 'client_id', 'serialized_example_proto'},
  'client_metadata': {'client_id', 'split_name', 'num_examples'},
}


def _open_database(path):
  """A context manager: a read-only connection, closed on leaving."""
  uri = pathlib.Path(path).resolve().as_uri()
  # Nobody writes to the file: no locks, which some shared file systems lack.
  connection = sqlite3.connect(f'{uri}?mode=ro&immutable=1', uri=True)
  return contextlib.closing(connection)


def _way_out(path):
  return (
    f'Delete or move {path.name} there and download it again, or put the'
    ' right file in its place.'
  )
