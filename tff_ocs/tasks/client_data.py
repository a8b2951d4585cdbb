"""Clients' examples as arrays, read on first use and kept in memory."""

import abc
import contextlib
import pathlib
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
  """Raised if a data set is missing, partial or holds values out of range."""


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
    self._kept: dict[str, Union[Examples, _PackedExamples]] = {}

  @property
  def client_ids(self) -> list[str]:
    """The clients' ids, sorted."""
    return list(self._num_examples)

  @property
  def num_examples(self) -> Mapping[str, int]:
    """The number of examples of each client, by id; known without reading."""
    return self._num_examples

  def examples(self, client_id: str) -> Examples:
    """Returns the client's examples, which are read once and kept in memory.

    Float32 images in [0, 1] with at most 256 grey levels are kept as bytes, in
    a quarter of the memory, and returned bit for bit.

    Args:
      client_id: One of `client_ids`.

    Returns:
      The client's `Examples`.

    Raises:
      DataError: If the examples are not as many as announced, or have values
        out of range.
    """
    kept = self._keep(client_id)
    if isinstance(kept, _PackedExamples):
      return Examples(kept.values[kept.codes], kept.y)
    return kept

  def keep_all(self) -> None:
    """Reads all clients' examples now, so that training meets no bad data.

    Raises:
      DataError: As for `examples`.
    """
    for client_id in self.client_ids:
      self._keep(client_id)

  def _keep(self, client_id):
    if client_id not in self._kept:
      self._kept[client_id] = _pack(self.read(client_id))
    return self._kept[client_id]

  def read_all(self) -> Examples:
    """Reads all clients' examples, by client, without keeping them.

    Returns:
      The `Examples` of all clients, in the order of `client_ids`.

    Raises:
      DataError: As for `examples`.
    """
    x, y = zip(*map(self.read, self.client_ids))
    return Examples(np.concatenate(x), np.concatenate(y))

  @abc.abstractmethod
  def read(self, client_id: str) -> Examples:
    """Reads a client's examples without keeping them in memory.

    Args:
      client_id: One of `client_ids`.

    Returns:
      The client's `Examples`.

    Raises:
      DataError: As for `examples`.
    """


class ArrayClientData(ClientData):
  """Clients' examples that are arrays in memory."""

  def __init__(self, examples: Mapping[str, Examples]):
    """Initializes `ArrayClientData`.

    Args:
      examples: The `Examples` of each client, by id.
    """
    super().__init__({i: len(e.y) for i, e in examples.items()})
    self._kept.update(examples)

  def read(self, client_id):
    return self.examples(client_id)


class SelectedClientData(ClientData):
  """Some clients of another `ClientData`, each with some of its examples."""

  def __init__(
    self,
    base: ClientData,
    selection: Mapping[str, Optional[np.ndarray]],
  ):
    """Initializes `SelectedClientData`.

    Args:
      base: The `ClientData` to select from.
      selection: The indices of the examples to keep, by the id of each client
        to keep; `None` keeps all of a client's examples.
    """
    super().__init__(
      {
        i: base.num_examples[i] if chosen is None else len(chosen)
        for i, chosen in selection.items()
      }
    )
    self._base = base
    self._selection = selection

  def read(self, client_id):
    # `base.examples` would also keep the examples that are not selected.
    examples = self._base.read(client_id)
    chosen = self._selection[client_id]
    if chosen is None:
      return examples
    return Examples(examples.x[chosen], examples.y[chosen])


class _PackedExamples(NamedTuple):
  """Examples whose inputs have at most 256 different values.

  Attributes:
    codes: uint8, of the shape of the inputs.
    values: float32[256], the value of each code.
    y: The labels.
  """

  codes: np.ndarray
  values: np.ndarray
  y: np.ndarray


def _pack(examples: Examples) -> Union[Examples, _PackedExamples]:
  """Packs the inputs into bytes where that is exact."""
  x, y = examples
  if x.dtype != np.float32 or not x.size or not (x.min() >= 0 and x.max() <= 1):
    return examples
  codes = np.rint(x * 255).astype(np.uint8)
  # The values are taken from `x`, since k / 255 can be computed in several ways
  # that differ in the last bit.
  values = np.zeros(256, np.float32)
  values[codes] = x
  exact = values[codes].view(np.int32) == x.view(np.int32)
  return _PackedExamples(codes, values, y) if exact.all() else examples


def check_range(name: str, values: np.ndarray, low: float, high: float) -> None:
  """Checks that all values lie in [low, high]; NaN does not.

  Args:
    name: The name of the values for the message, in the plural.
    values: An array of any shape.
    low: The smallest allowed value.
    high: The largest allowed value.

  Raises:
    DataError: If a value lies outside; the message gives the first such value.
  """
  # The minimum and the maximum of values with a NaN are NaN.
  if values.size and not (values.min() >= low and values.max() <= high):
    outside = values[~((values >= low) & (values <= high))]
    raise DataError(f'{name} must lie in [{low}, {high}], found {outside[0]}')


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
      parse: Converts serialized `tf.train.Example` protos to `Examples`; raises
        `DataError` if a value is out of range.

    Raises:
      DataError: If the file is missing, partial or has another schema, or the
        split is missing.
    """
    self._path = pathlib.Path(path)
    self._split = split
    self._parse = parse
    if not self._path.is_file():
      raise DataError(f'{path} does not exist.')
    ((size,),) = self._query(
      'SELECT page_size * page_count FROM pragma_page_size, pragma_page_count'
    )
    if self._path.stat().st_size < size:  # SQLite sees missing pages only.
      raise self._error('is partial: the end of its last page is missing')
    # Another database is found out here rather than while it is read.
    self._query(
      'SELECT split_name, client_id, serialized_example_proto FROM examples'
      ' LIMIT 1'
    )
    rows = self._query(
      'SELECT split_name, client_id, num_examples FROM client_metadata'
    )
    splits = {row[0] for row in rows}
    if split not in splits:
      raise self._error(
        f'is another data set: it has the splits {sorted(splits)} and lacks'
        f' {split!r}'
      )
    sizes = {client_id: size for name, client_id, size in rows if name == split}
    for client_id, size in sizes.items():
      if not (isinstance(client_id, str) and isinstance(size, int)):
        raise self._error(
          f'announces {size!r} examples of client {client_id!r} in the split'
          f' {split}; a client is named by text and has a number of examples'
        )
    super().__init__(sizes)

  def read(self, client_id):
    rows = self._query(
      'SELECT serialized_example_proto FROM examples'
      ' WHERE client_id = ? AND split_name = ? ORDER BY rowid',
      client_id,
      self._split,
    )
    announced = self.num_examples[client_id]
    if len(rows) != announced:
      raise self._error(
        f'announces {announced} examples of client {client_id}, but holds'
        f' {len(rows)}'
      )
    try:
      return self._parse([row[0] for row in rows])
    except DataError as error:
      raise DataError(f'{self._path}, client {client_id}: {error}.') from error
    except Exception as error:  # The parser may be any TensorFlow code.
      raise self._error(
        f'holds examples of another data set (client {client_id}):'
        f' {_reason(error)}'
      ) from error

  def read_at_once(self) -> Examples:
    """Reads all examples in one batch, which takes more memory but less time.

    Returns:
      The `Examples` of all clients, in the file's order.

    Raises:
      DataError: As for `examples`.
    """
    rows = self._query(
      'SELECT serialized_example_proto FROM examples'
      ' WHERE split_name = ? ORDER BY rowid',
      self._split,
    )
    if len(rows) == sum(self.num_examples.values()):
      with contextlib.suppress(Exception):
        return self._parse([row[0] for row in rows])
    return self.read_all()  # Its error names the client.

  def _query(self, query, *arguments):
    # Without locks, which some shared file systems lack: nobody writes here.
    uri = f'{self._path.resolve().as_uri()}?mode=ro&immutable=1'
    try:
      with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        return connection.execute(query, arguments).fetchall()
    except sqlite3.Error as error:
      raise self._error(
        'is partial, or is not an SQLite database of'
        f' tff.simulation.datasets: {error}'
      ) from error

  def _error(self, fault):
    return DataError(
      f'{self._path} {fault}. Delete or move {self._path.name} there and'
      ' download it again, or put the right file in its place.'
    )


def open_tff_database(
  name: str,
  splits: Sequence[str],
  parse: Callable[[Sequence[bytes]], Examples],
  load_data: Callable[..., object],
  *,
  cache_dir: Optional[str],
  offline_source: str,
) -> list[SqlClientData]:
  """Opens a data set's file and downloads it if it is missing.

  Args:
    name: The file's name.
    splits: The splits to open.
    parse: As for `SqlClientData`.
    load_data: TFF's own loader of the data set. It takes the argument
      `cache_dir`, downloads a missing file, and opens the file.
    cache_dir: The folder of the file; `None` is TFF's own default, `~/.tff`.
    offline_source: The --data_source that needs no download, for the message.

  Returns:
    The clients of each split.

  Raises:
    DataError: If the file can neither be found nor downloaded, or is not the
      data set.
  """
  try:
    folder = pathlib.Path(cache_dir or '~/.tff').expanduser()
  except RuntimeError as error:
    raise DataError(
      f'The home folder is not known, so {name} cannot be found: {error}. Name'
      ' its folder with --cache_dir.'
    ) from error
  path = folder / name
  if not path.exists():
    _download(path, load_data, offline_source)
  # TFF itself accepts any file of the right name, even a partial download.
  opened = [SqlClientData(path, split, parse) for split in splits]
  load_data(cache_dir=str(folder))
  return opened


def _download(path, load_data, offline_source):
  """Downloads into a folder of its own, since TFF accepts partial files."""
  missing = f'{path.name} is not in {path.parent}, and'
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = tempfile.TemporaryDirectory(prefix='download-', dir=path.parent)
  except OSError as error:
    raise DataError(
      f'{missing} cannot be written there: {error}. Name another folder with'
      ' --cache_dir.'
    ) from error
  with partial as folder:
    try:
      load_data(cache_dir=folder)
      (pathlib.Path(folder) / path.name).replace(path)
    except Exception as error:  # Network, disk, decompression.
      raise DataError(
        f'{missing} TFF could not download it: {_reason(error)}. Put the file'
        ' there, name its folder with --cache_dir, or use data that needs no'
        f' download: --data_source={offline_source}.'
      ) from error


def _reason(error):
  """Describes an exception in one line."""
  lines = str(error).strip().splitlines()
  return lines[0].rstrip('.') if lines else type(error).__name__
