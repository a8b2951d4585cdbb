"""Checks the flags of command lines `python -m module --flag=value`.

As a program it reads lists of arguments from stdin, as JSON. For each it prints
the error in its flags, or null. The programs only parse their flags.
"""

import argparse
import io
import json
import os
import pathlib
import runpy
import subprocess
import sys
from collections.abc import Sequence
from typing import Optional

ROOT = pathlib.Path(__file__).parents[1]


def find_errors(commands: Sequence[Sequence[str]]) -> list[Optional[str]]:
  """Finds the command lines whose flags are wrong.

  Args:
    commands: The arguments of Python: '-m', 'experiments.femnist' and so on.

  Returns:
    For each command, the program's error message, or `None`.
  """
  result = subprocess.run(
    [sys.executable, '-m', 'tests.command_lines'],
    cwd=ROOT,
    input=json.dumps(commands),
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return json.loads(result.stdout)


def _find_error(command):
  """Parses the flags in a forked process, where no flags are defined yet."""
  read_end, write_end = os.pipe()
  if not os.fork():
    os.close(read_end)
    sys.stdout = sys.stderr = output = io.StringIO()
    try:
      _parse(*command)
    except SystemExit as error:
      if error.code:
        _, _, message = output.getvalue().partition('Flags parsing error:')
        message = message or f'{output.getvalue()}{error.code}'
        os.write(write_end, message.strip().encode())
    except BaseException as error:
      os.write(write_end, repr(error).encode())
    else:
      os.write(write_end, b'the flags were not parsed')
    os._exit(0)
  os.close(write_end)
  with os.fdopen(read_end) as pipe:
    message = pipe.read()
  os.wait()
  return message or None


def _parse(option, module, *arguments):
  """Runs a module until its flags are parsed, which ends the process."""
  assert option == '-m', option
  # With this flag, absl ends a program before its main function.
  sys.argv = [module, '--only_check_args', *arguments]
  parse_args = argparse.ArgumentParser.parse_args

  def parse_args_only(parser, args=None, namespace=None):
    # A program without absl does not have that flag.
    parse_args(parser, list(arguments), namespace)
    sys.exit(0)

  argparse.ArgumentParser.parse_args = parse_args_only
  runpy.run_module(module, run_name='__main__', alter_sys=True)


def main():
  commands = json.load(sys.stdin)
  # These take long, so all commands share them.
  import matplotlib.figure  # noqa: F401
  import pandas  # noqa: F401
  import scipy.stats  # noqa: F401

  # The other programs parse their flags before they import TensorFlow.
  if any(part.startswith('benchmarks.') for c in commands for part in c):
    import tff_ocs.execution  # noqa: F401

  print(json.dumps([_find_error(command) for command in commands]))


if __name__ == '__main__':
  main()
