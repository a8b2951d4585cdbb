"""Runs jobs in processes of this machine."""

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Optional
from typing import Union

import psutil

from experiments.campaigns import job as job_lib
from experiments.runs import run_progress

# Enough for each of the paper's runs.
_BYTES_OF_RUN = 3 * 10**9

# Starts the run in its process. A run that outlived the one who started it
# would keep its folder locked, so the kernel is asked to send SIGKILL when that
# one ends (1 is PR_SET_PDEATHSIG), and the process ends at once if it has ended
# already. A run can be killed at any moment: it continues from its last
# checkpoint.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
  sys.exit(1)
os.sched_setaffinity(0, map(int, sys.argv[2].split(',')))
os.execv(sys.argv[3], sys.argv[3:])
"""


def start_process(
  command: Sequence[str],
  *,
  cwd: Union[str, os.PathLike],
  log: pathlib.Path,
  cores: Sequence[int],
  env: Optional[Mapping[str, str]] = None,
) -> subprocess.Popen:
  """Starts a process that ends with this thread at the latest.

  Args:
    command: The command.
    cwd: The working directory.
    log: The file for the output, which is replaced.
    cores: The numbers of the cores that the process may use.
    env: The environment; if not given, that of this process.

  Returns:
    The process.

  Raises:
    OSError: If it cannot be started.
  """
  with log.open('wb') as file:
    return subprocess.Popen(
      [
        sys.executable,
        # The launcher takes nothing from the environment or the folder.
        '-IS',
        '-c',
        _LAUNCHER,
        str(os.getpid()),
        ','.join(map(str, cores)),
        *command,
      ],
      cwd=cwd,
      env=env,
      stdin=subprocess.DEVNULL,
      stdout=file,
      stderr=file,
      # Ctrl-C reaches this process only, which then ends the other.
      start_new_session=True,
    )


def share_cores(parallel: Optional[int], num_jobs: int) -> list[list[int]]:
  """Divides the cores between the processes that run at the same time.

  Args:
    parallel: The number of processes; `None` is one for each core for which
      3 GB of memory are available.
    num_jobs: The number of jobs.

  Returns:
    The numbers of the cores of each process.

  Raises:
    JobError: If there are fewer cores than `parallel`.
  """
  cores = sorted(os.sched_getaffinity(0))
  if parallel is None:
    # One thread does much of a round: it trains the largest client, adds the
    # updates, and does all work between rounds. Two runs at once on two cores
    # take three quarters of the time of one after the other.
    in_memory = psutil.virtual_memory().available // _BYTES_OF_RUN
    parallel = max(1, min(len(cores), num_jobs, in_memory))
  elif not 1 <= parallel <= len(cores):
    raise job_lib.JobError(
      f'--parallel must be from 1 to the {len(cores)} cores that this process'
      f' may use, found {parallel}.'
    )
  bounds = [i * len(cores) // parallel for i in range(parallel + 1)]
  return [cores[bounds[i] : bounds[i + 1]] for i in range(parallel)]


class LocalRunner:
  """Runs jobs in processes of this machine."""

  def __init__(self, output_dir: pathlib.Path, shares: list[list[int]]):
    """Starts nothing yet."""
    self._output_dir = output_dir
    self._free = shares
    self._processes = {}

  def has_room(self) -> bool:
    """Whether another job can be started now."""
    return bool(self._free)

  @property
  def num_running(self) -> int:
    """The number of jobs that are running."""
    return len(self._processes)

  def start(self, job: job_lib.Job) -> None:
    """Starts a job.

    Args:
      job: The job.
    """
    cores = self._free.pop()
    process = start_process(
      job.command(self._output_dir.resolve()),
      cwd=job_lib.ROOT,
      log=job_lib.log_path(self._output_dir, job),
      cores=cores,
    )
    self._processes[job] = process, cores

  def count_rounds(self, job: job_lib.Job) -> int:
    """The number of rounds that a job has finished."""
    return run_progress.count_rounds(self._output_dir / job.name)

  def wait(self) -> list[job_lib.Ended]:
    """Waits a little, and returns the jobs that have ended since."""
    time.sleep(job_lib.POLL_SECONDS)
    ended = []
    for job, (process, cores) in list(self._processes.items()):
      if process.poll() is not None:
        del self._processes[job]
        self._free.append(cores)
        ended.append(job_lib.Ended(job, process.returncode))
    return ended

  def close(self) -> None:
    """Ends the jobs that are running."""
    for process, _ in self._processes.values():
      process.kill()
    for process, _ in self._processes.values():
      process.wait()
