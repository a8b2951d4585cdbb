"""The first lines of a program's main function."""

import sys
from collections.abc import Sequence


def setup() -> None:
  """Lets the program print any text, whatever encoding the console has.

  A character that the encoding lacks is printed as a question mark. Without
  this, a table with a plus-minus sign would end the program.
  """
  for stream in (sys.stdout, sys.stderr):
    # A stream that replaces it, as in a notebook or a test, takes any text.
    if hasattr(stream, 'reconfigure'):
      stream.reconfigure(errors='replace')


def refuse_arguments(argv: Sequence[str]) -> None:
  """Ends the program if an argument is not a flag.

  Args:
    argv: The arguments that `app.run` gives to the main function.
  """
  if len(argv) > 1:
    sys.exit(f'error: unexpected argument {argv[1]!r}; flags start with --.')
