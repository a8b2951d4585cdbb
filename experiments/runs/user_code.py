"""Functions of the user's own files: PATH.py:FUNCTION in a flag.

A run records the file's name, the function and the SHA-256 of the file, so that
it is not continued with another version of it. Modules that the file imports
are not part of the digest.
"""

import hashlib
import importlib.util
import pathlib
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

from programs import paths

_VALUE = re.compile(r'(?P<path>.+\.py):(?P<function>[A-Za-z_]\w*)', re.DOTALL)


class UserCodeError(ValueError):
  """Raised if a flag's file or function is not as it must be."""


def is_reference(text: str) -> bool:
  """Whether a flag's value has the form PATH.py:FUNCTION."""
  return _VALUE.fullmatch(text) is not None


def locate(flag: str, text: str) -> tuple[pathlib.Path, str]:
  """The file and the function's name.

  Args:
    flag: The flag's name, for messages.
    text: PATH.py:FUNCTION.

  Returns:
    The file, which exists, and the name.

  Raises:
    UserCodeError: If the text is not of this form, or there is no such file.
  """
  match = _VALUE.fullmatch(text)
  if match is None:
    raise UserCodeError(
      f'--{flag}={text} must have the form PATH.py:FUNCTION, for example'
      ' my_code.py:build.'
    )
  try:
    path = pathlib.Path(paths.expand(match['path']))
  except ValueError as error:
    raise UserCodeError(f'--{flag}={text}: {error}.') from error
  if not path.is_file():
    raise UserCodeError(f'--{flag}={text}: there is no file {path}.')
  return path, match['function']


def short_name(text: str) -> str:
  """'my_code_build' for my_code.py:build, in names of folders."""
  path, _, function = text.rpartition(':')
  return f'{pathlib.Path(path).stem}_{function}'


def describe(flag: str, text: str) -> str:
  """The setting that a run records: 'my_code.py:build@sha256:...'.

  It does not depend on the file's place.

  Args:
    flag: As for `locate`.
    text: As for `locate`.

  Returns:
    The setting.

  Raises:
    UserCodeError: As for `locate`, or if the file cannot be read.
  """
  path, function = locate(flag, text)
  try:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
  except OSError as error:
    raise UserCodeError(f'--{flag}={text} cannot be read: {error}.') from error
  return f'{path.name}:{function}@sha256:{digest}'


def call(flag: str, text: str, *arguments: Any) -> Any:
  """Imports the file and calls the function.

  The file's folder is on the import path meanwhile and afterwards, as it is for
  a program.

  Args:
    flag: As for `locate`.
    text: As for `locate`.
    *arguments: The function's arguments.

  Returns:
    What the function returns.

  Raises:
    UserCodeError: As for `locate`; if the file cannot be imported, has no such
      function, or if the function raises an error. The message names the line.
  """
  path, name = locate(flag, text)
  module_name = f'_tff_ocs_user_{path.stem}'
  folder = str(path.parent.resolve())
  if folder not in sys.path:
    sys.path.append(folder)
  spec = importlib.util.spec_from_file_location(module_name, path)
  module = importlib.util.module_from_spec(spec)
  # Where dataclasses and the like look for it.
  sys.modules[module_name] = module
  _run(flag, text, path, lambda: spec.loader.exec_module(module))
  function = getattr(module, name, None)
  if not callable(function):
    raise UserCodeError(f'--{flag}={text}: {path} has no function {name}.')
  return _run(flag, text, path, lambda: function(*arguments))


def _run(flag, text, path, code: Callable[[], Any]) -> Any:
  try:
    return code()
  except Exception as error:  # The user's code may raise anything.
    lines = str(error).strip().splitlines()
    reason = f'{type(error).__name__}: {lines[0]}' if lines else repr(error)
    # Python makes the paths of modules absolute.
    places = [
      (frame.filename, frame.lineno)
      for frame in traceback.extract_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError):
      places.append((error.filename or '', error.lineno))
    lines_of_file = [
      line
      for filename, line in places
      if pathlib.Path(filename).resolve() == path.resolve()
    ]
    place = f' line {lines_of_file[-1]},' if lines_of_file else ''
    raise UserCodeError(f'--{flag}={text}:{place} {reason}') from error
