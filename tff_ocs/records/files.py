"""Files that are there wholly or not at all."""

import contextlib
import csv
import os
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
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


def write_csv(
  path: Union[str, os.PathLike], rows: Sequence[Mapping[str, Any]]
) -> None:
  """Writes a CSV file, whole or not at all.

  Args:
    path: The file; it need not exist.
    rows: At least one, all with the same keys, which make the header.

  Raises:
    OSError: If it cannot be written.
  """
  with replacing(path) as partial, open(partial, 'w', newline='') as file:
    writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
