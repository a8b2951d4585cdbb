"""What keeps a run from writing a file, told in one line."""

import contextlib
import os
import pathlib
import re
from typing import Union

import tensorflow as tf


@contextlib.contextmanager
def explained(path: Union[str, os.PathLike]):
  """Tells which file could not be written, why, and what to do.

  Python, TensorFlow and TFF each say it in their own way, some in a page.

  Args:
    path: What is written, in the run's folder.

  Yields:
    Nothing.

  Raises:
    OSError: If it cannot be written.
  """
  path = pathlib.Path(path)
  try:
    yield
  except (OSError, tf.errors.OpError) as error:
    if isinstance(error, tf.errors.OpError):
      # Without the names of nodes and operations.
      reason = re.sub(r'^{{.*?}} | \[Op:.*$', '', error.message)
    else:
      reason = error.strerror or str(error)
    lines = reason.strip().splitlines() or [repr(error)]
    raise OSError(
      f'{path.name} in {path.parent} cannot be written:'
      f' {lines[0]}. Make room or mend the folder, and'
      ' start the same command again (without --overwrite): it resumes from the'
      ' last checkpoint.'
    ) from error
