"""The processes of a program, and their memory."""

import contextlib
import pathlib
import subprocess
import sys


def process_tree(pid: int) -> list[int]:
  """A process and all its descendants, itself first."""
  tree = [pid]
  for children in pathlib.Path(f'/proc/{pid}/task').glob('*/children'):
    # Raised for a thread that has ended since.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
      for child in children.read_text().split():
        tree += process_tree(int(child))
  return tree


def megabytes(pid: int) -> float:
  """Returns the memory of a process; shared memory counts in parts (PSS)."""
  for line in pathlib.Path(f'/proc/{pid}/smaps_rollup').read_text().split('\n'):
    if line.startswith('Pss:'):
      return int(line.split()[1]) * 1024 / 1e6
  raise RuntimeError(f'The kernel does not report the PSS of process {pid}.')


def output_of(*arguments: str) -> str:
  """Runs Python with these arguments, and returns its standard output."""
  return subprocess.run(
    [sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True
  ).stdout
