"""Files that are there wholly or not at all."""

import contextlib
import os
import pathlib
from typing import Union


@contextlib.contextmanager
def replacing(path: Union[str, os.PathLike]):
  """Lets a file be written beside, and put in its place once it is whole.

  Args:
    path: The file; it need not exist.

  Yields:
    The `pathlib.Path` to write to, with the same ending. If writing it fails,
    it is removed and the former file is left as it is.
  """
  path = pathlib.Path(path)
  partial = path.with_name(f'{path.stem}.partial{path.suffix}')
  try:
    yield partial
    partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)
