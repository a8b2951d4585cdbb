"""Files that are written atomically, and folders that one process locks."""

import contextlib
import csv
import hashlib
import os
import pathlib
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Union

import filelock

# It stays in the folder: to remove it would let two processes lock it at once.
LOCK = '.lock'


class RecordError(ValueError):
  """Raised if a file of a record does not hold what it should."""


@contextlib.contextmanager
def replacing(path: Union[str, os.PathLike]) -> Iterator[pathlib.Path]:
  """Writes a file next to its destination and moves it there when complete.

  Args:
    path: The file; it need not exist.

  Yields:
    The `pathlib.Path` to write to, with the same suffix. If writing fails, it
    is removed and the former file is left unchanged.
  """
  path = pathlib.Path(path)
  partial = path.with_name(f'{path.stem}.partial{path.suffix}')
  try:
    yield partial
    partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)


def sha256(path: pathlib.Path) -> str:
  """The SHA-256 of a file, in hexadecimal."""
  digest = hashlib.sha256()
  with path.open('rb') as file:
    for block in iter(lambda: file.read(2**20), b''):
      digest.update(block)
  return digest.hexdigest()


def write_csv(
  path: Union[str, os.PathLike], rows: Sequence[Mapping[str, Any]]
) -> None:
  """Writes a CSV file atomically.

  Args:
    path: The file; it need not exist.
    rows: At least one row; all have the same keys, which form the header.

  Raises:
    OSError: If the file cannot be written.
  """
  with replacing(path) as partial:
    with open(partial, 'w', newline='', encoding='utf-8') as file:
      writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
      writer.writeheader()
      writer.writerows(rows)


def lock_folder(path: Union[str, os.PathLike]) -> filelock.FileLock:
  """Keeps other processes from using a folder.

  Args:
    path: The folder; it must exist.

  Returns:
    The lock. It is freed by its `release`, when it is garbage collected, and
    when the process ends, however it ends.

  Raises:
    BlockingIOError: If the folder is locked already.
    OSError: If the folder does not exist or cannot be written to.
  """
  path = pathlib.Path(path)
  if not path.is_dir():  # filelock would make it.
    raise FileNotFoundError(f'{path} is not a folder.')
  lock = filelock.FileLock(path / LOCK)
  try:
    lock.acquire(timeout=0)
  except filelock.Timeout:
    raise BlockingIOError(f'{path} is in use by another process.') from None
  return lock


@contextlib.contextmanager
def explaining_write_errors(path: Union[str, os.PathLike]) -> Iterator[None]:
  """Turns an error in writing a run's file into one line with the way out.

  Python, TensorFlow and TFF describe the same fault differently, some of them
  with a page of text.

  Args:
    path: The file, in the run's folder.

  Yields:
    Nothing.

  Raises:
    OSError: If the file cannot be written. The message names the file, the
      reason and what to do.
  """
  path = pathlib.Path(path)
  try:
    yield
  except Exception as error:
    if isinstance(error, OSError):
      reason = error.strerror or str(error)
    else:
      # Imported here, so that programs that only read records start quickly.
      from tensorflow import errors

      if not isinstance(error, errors.OpError):
        raise
      # Without the names of nodes and operations.
      reason = re.sub(r'^{{.*?}} | \[Op:.*$', '', error.message)
    lines = reason.strip().splitlines() or [repr(error)]
    raise OSError(
      f'{path.name} in {path.parent} cannot be written:'
      f' {lines[0]}. Make room or mend the folder, and'
      ' start the same command again (without --overwrite): it resumes from the'
      ' last checkpoint.'
    ) from error
