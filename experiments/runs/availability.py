"""The flag --availability: the probabilities q_i that clients are available."""

import csv
import hashlib
import io
import pathlib
from collections.abc import Iterable
from collections.abc import Mapping
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np

from programs import paths

_HEADER = ['client_id', 'q']
# Clients compute with float32.
_SMALLEST = float(np.finfo(np.float32).tiny)


class AvailabilityError(ValueError):
  """Raised if the value of `--availability` is wrong."""


class Availability(NamedTuple):
  """The probabilities that the flag describes.

  Attributes:
    flag: The flag as it was given, for messages.
    setting: The value that a run records: a number; or the SHA-256 of a file,
      which does not depend on the file's place; or `None`.
    of_client: If there is a file: q by the client's id.
  """

  flag: str
  setting: Union[float, str, None]
  of_client: Optional[Mapping[str, float]] = None

  @property
  def short_name(self) -> str:
    """A short form of the setting, for the name of a run's folder."""
    if self.of_client is None:
      return f'{self.setting:g}'
    return self.setting.split(':')[1][:8]

  def for_clients(
    self, client_ids: Iterable[str]
  ) -> Optional[Mapping[str, float]]:
    """The probabilities of the pool's clients.

    Args:
      client_ids: The ids of all clients of the pool.

    Returns:
      q by the client's id; `None` if the flag is not given.

    Raises:
      AvailabilityError: If the clients of the file are not exactly these.
    """
    if self.setting is None:
      return None
    if self.of_client is None:
      return dict.fromkeys(client_ids, self.setting)
    client_ids = list(client_ids)
    missing = [name for name in client_ids if name not in self.of_client]
    if missing:
      raise AvailabilityError(
        f'{self.flag} has no line for the client {missing[0]!r}; it must have'
        f' one for each of the {len(client_ids)} clients of the pool, and lacks'
        f' {len(missing)}.'
      )
    known = set(client_ids)
    for line, name in enumerate(self.of_client, start=2):
      if name not in known:
        raise AvailabilityError(
          f'{self.flag}, line {line}: there is no client {name!r} in the pool,'
          f' which has the clients {client_ids[0]!r} to {client_ids[-1]!r}.'
        )
    return self.of_client


def read(text: Optional[str]) -> Availability:
  """Reads the value of the flag, and the file that it names.

  Args:
    text: A number, above 0 and at most 1; or the path of a CSV file with the
      header 'client_id,q' and a line for each client of the pool; or `None`.

  Returns:
    The `Availability`.

  Raises:
    AvailabilityError: If the number, or a line of the file, is not as
      described, or the file cannot be read.
  """
  flag = f'--availability={text}'
  if text is None:
    return Availability(flag, None)
  try:
    constant = float(text)
  except ValueError:
    try:
      path = pathlib.Path(paths.expand(text))
    except ValueError as error:
      raise AvailabilityError(f'{flag}: {error}') from error
    return _read_file(flag, path)
  if not _SMALLEST <= constant <= 1:
    raise AvailabilityError(
      f'{flag} must be above 0 and at most 1, or the path of a file.'
    )
  return Availability(flag, constant)


def _read_file(flag, path):
  try:
    content = path.read_bytes()
    # Spreadsheets write a byte order mark.
    lines = list(csv.reader(io.StringIO(content.decode('utf-8-sig'))))
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise AvailabilityError(
      f'{flag} is neither a number nor a CSV file that can be read: {error}'
    ) from error
  if not lines or lines[0] != _HEADER:
    found = ','.join(lines[0]) if lines else ''
    raise AvailabilityError(
      f'{flag}, line 1: the header must be client_id,q, found {found!r}.'
    )
  of_client = {}
  for number, fields in enumerate(lines[1:], start=2):
    try:
      client_id, q = _read_line(fields)
      if client_id in of_client:
        raise ValueError(f'the client {client_id!r} occurs twice.')
    except ValueError as error:
      raise AvailabilityError(f'{flag}, line {number}: {error}') from error
    of_client[client_id] = q
  digest = hashlib.sha256(content).hexdigest()
  return Availability(flag, f'sha256:{digest}', of_client=of_client)


def _read_line(fields):
  if len(fields) != 2:
    raise ValueError(f'a line must be client_id,q, found {",".join(fields)!r}.')
  client_id, text = fields
  try:
    q = float(text)
  except ValueError:
    raise ValueError(f'q must be a number, found {text!r}.') from None
  if not _SMALLEST <= q <= 1:
    raise ValueError(f'q must be above 0 and at most 1, found {text}.')
  return client_id, q
