"""Folders that one process at a time may write to."""

import fcntl
import os
from typing import Union


def lock_folder(path: Union[str, os.PathLike]) -> int:
  """Keeps other processes from a folder until this one ends, however it ends.

  Args:
    path: The folder.

  Returns:
    A descriptor, whose closing frees the folder.

  Raises:
    BlockingIOError: If another process has it.
    OSError: If there is no such folder.
  """
  descriptor = os.open(path, os.O_RDONLY)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BaseException:
    os.close(descriptor)
    raise
  return descriptor
