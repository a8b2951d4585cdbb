"""Flags whose value is a path."""

import os
import re
import sys
from typing import Optional

from absl import flags

# Flags count as those of the module that calls `define_path`.
flags.disclaim_key_flags()

_URL = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*://')


def expand(text: str) -> str:
  """Checks a path and expands the `~` at its start.

  Args:
    text: The path, as a user wrote it.

  Returns:
    The path.

  Raises:
    ValueError: If the path is empty or a URL, if the home folder is not known,
      or if the path is not text in the encoding of file names.
  """
  if not text:
    raise ValueError('a path must not be empty')
  if _URL.match(text):
    raise ValueError(
      'must be a path of this machine, found a URL; mount that place, or copy'
      ' the files'
    )
  try:
    text.encode(sys.getfilesystemencoding())
    # TensorFlow takes paths as UTF-8.
    text.encode()
  except UnicodeEncodeError:
    raise ValueError(
      f'the path {ascii(text)} cannot be read as text of the encoding'
      f' {sys.getfilesystemencoding()}; use another path, or set'
      ' LC_ALL=C.UTF-8 if this one is in UTF-8'
    ) from None
  path = os.path.expanduser(text)
  if path.startswith('~'):
    raise ValueError(
      f'the home folder of {text.split("/")[0]} is not known (HOME is not set);'
      ' write the path in full, or start it with ./ if ~ is part of a name'
    )
  return path


class _PathParser(flags.ArgumentParser):
  """Parses a path with `expand`."""

  syntactic_help = 'a path; ~ is the home folder'

  def parse(self, argument):
    return expand(argument)

  def flag_type(self):
    return 'path'


def define_path(
  name: str,
  default: Optional[str],
  help: str,  # noqa: A002, the name that absl uses.
  flag_values: flags.FlagValues = flags.FLAGS,
  **kwargs,
) -> flags.FlagHolder:
  """Defines a flag whose value is a path, checked and with `~` expanded.

  Args:
    name: The flag's name.
    default: The value if the flag is not given.
    help: The description in --help.
    flag_values: The flags to add it to.
    **kwargs: As for `flags.DEFINE`, for example `required`.

  Returns:
    The flag's holder.
  """
  return flags.DEFINE(
    _PathParser(),
    name,
    default,
    help,
    flag_values=flag_values,
    serializer=flags.ArgumentSerializer(),
    **kwargs,
  )
