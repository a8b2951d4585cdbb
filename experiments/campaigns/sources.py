"""The data for the paper's experiments that is on this machine.

Nothing is downloaded. This module does not import TensorFlow.
"""

import os
import pathlib
from typing import NamedTuple
from typing import Optional

# The files that TFF's loaders read, by program.
DATABASES = {
  'femnist': 'emnist_all.sqlite',
  'shakespeare': 'shakespeare.sqlite',
  'cifar100': 'cifar100.sqlite',
}
# The authors' files for an experiment on FEMNIST.
AUTHORS_FILES = {
  f'femnist_{number}': (f'cookup_train_{number}.h5', 'test.h5')
  for number in (1, 2, 3)
}


class Source(NamedTuple):
  """The data of an experiment.

  Attributes:
    flags: The flags of its runs that name the data.
    missing: What is missing; empty if the data is there.
  """

  flags: tuple[str, ...] = ()
  missing: str = ''


def cache_folder(cache_dir: Optional[str]) -> pathlib.Path:
  """The folder of TFF's files; `None` is TFF's own default."""
  return pathlib.Path(cache_dir or os.path.expanduser('~/.tff'))


def find(
  experiment: str,
  *,
  cache_dir: Optional[str],
  data_dir: Optional[str] = None,
  data_name: Optional[str] = None,
) -> Source:
  """Finds the data of an experiment.

  Args:
    experiment: One of `paper_runs.EXPERIMENTS`.
    cache_dir: The folder of TFF's files, as of `cache_folder`.
    data_dir: The folder of the authors' files, which FEMNIST uses if it is
      given.
    data_name: What TFF's file really holds, if it is a stand-in.

  Returns:
    The `Source`. Its paths are absolute, since runs have a working directory of
    their own.
  """
  if data_dir is not None and experiment in AUTHORS_FILES:
    folder, names = pathlib.Path(data_dir), AUTHORS_FILES[experiment]
    flags = ['--data_source=authors', f'--data_dir={folder.absolute()}']
  else:
    folder = cache_folder(cache_dir)
    names = [DATABASES[experiment.split('_')[0]]]
    flags = ['--data_source=tff', f'--cache_dir={folder.absolute()}']
    if data_name is not None:
      flags.append(f'--data_name={data_name}')
  missing = [name for name in names if not (folder / name).is_file()]
  if missing:
    return Source(missing=f'{" and ".join(missing)} not in {folder}')
  return Source(flags=tuple(flags))
