"""The processes of a program, and their memory."""

import concurrent.futures
import contextlib
import os
import pathlib
import subprocess
import sys
import threading

_SECONDS_PER_SAMPLE = 0.05


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


class Peak:
  """The largest memory of this process and its descendants that is seen.

  Attributes:
    total: The megabytes of all together.
    of_process: The megabytes of each, by process id.
  """

  def __init__(self):
    """Initializes `Peak`; the memory is watched while it is entered."""
    self.total = 0.0
    self.of_process: dict[int, float] = {}

  def __enter__(self):
    self._is_over = threading.Event()
    self._pool = concurrent.futures.ThreadPoolExecutor(1)
    self._watching = self._pool.submit(self._watch)
    return self

  def __exit__(self, *unused_error):
    self._is_over.set()
    self._pool.shutdown()
    # Raises what ended it early.
    self._watching.result()

  def _watch(self):
    while not self._is_over.wait(_SECONDS_PER_SAMPLE):
      sample = {pid: megabytes(pid) for pid in process_tree(os.getpid())}
      self.total = max(self.total, sum(sample.values()))
      for pid, value in sample.items():
        self.of_process[pid] = max(self.of_process.get(pid, 0.0), value)
