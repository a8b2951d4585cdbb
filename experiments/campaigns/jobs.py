"""Runs of the experiment binaries, many of them, as processes of their own."""

import collections
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional
from typing import Union

import psutil
import tqdm

from experiments.runs import availability
from tff_ocs.records import files
from tff_ocs.records import settings as settings_lib

ROOT = pathlib.Path(__file__).parents[2]

POLL_SECONDS = 0.5
_MAX_RETRIES = 2
# Enough for each of the paper's.
_BYTES_OF_RUN = 3 * 10**9
# The end of a machine says nothing against the run.
_MAX_LOSSES = 10


class JobError(ValueError):
  """Raised if jobs cannot be run as asked; none was started then."""


class Job(NamedTuple):
  """One run.

  Attributes:
    name: The name of the run's folder.
    binary: The module of `experiments`: 'femnist', 'shakespeare', 'cifar100'.
    flags: The flags, each '--name=value'; of a name given twice the last
      counts. The total rounds must be among them.
  """

  name: str
  binary: str
  flags: tuple[str, ...]

  def command(self, output_dir: Union[str, os.PathLike]) -> list[str]:
    """The command of the run, for the project's root as working directory."""
    return [
      sys.executable,
      '-m',
      f'experiments.{self.binary}',
      *(f'--{name}={value}' for name, value in self.values.items()),
      f'--run_name={self.name}',
      f'--output_dir={output_dir}',
    ]

  @property
  def values(self) -> dict[str, str]:
    """The flags' values by their names."""
    return dict(flag[2:].split('=', 1) for flag in self.flags)

  @property
  def total_rounds(self) -> int:
    """The number of rounds of the run."""
    return int(self.values['total_rounds'])


class FailedJob(NamedTuple):
  """A job that failed, after all retries.

  Attributes:
    job: The job.
    reason: Why, in one line.
    log: The file with what its last attempt printed.
  """

  job: Job
  reason: str
  log: pathlib.Path

  @property
  def description(self) -> str:
    """What failed, why, and where to read on, in two lines."""
    return f'{self.job.name}: {self.reason}\n  log: {self.log}'


class Ended(NamedTuple):
  """A job that has ended, well or not.

  Attributes:
    job: The job.
    status: The exit status of its process, as of `subprocess`.
    loss: If its end was never seen: what became of its machine.
  """

  job: Job
  status: int
  loss: Optional[str] = None


def run_jobs(
  jobs: Sequence[Job],
  *,
  output_dir: Union[str, os.PathLike],
  name: str,
  parallel: Optional[int] = None,
  ray_address: Optional[str] = None,
) -> list[FailedJob]:
  """Runs all jobs that are not finished, and shows their progress in one bar.

  Runs that were interrupted are resumed. Failed ones are retried, twice, unless
  they said what is wrong with their settings or data before they began. What a
  run prints goes to `<output_dir>/logs/<name>.log`.

  Args:
    jobs: The jobs, with different names.
    output_dir: The folder of the runs' folders.
    name: What the progress bar is called.
    parallel: How many runs go on at once on this machine, with its cores shared
      out evenly; `None` is one for each core that 3 GB of memory are available
      for.
    ray_address: Runs them on a Ray cluster instead, see `ray_jobs`.

  Returns:
    The jobs that failed.

  Raises:
    JobError: If the arguments do not go together, or a folder holds a run of
      other flags, or another process runs jobs in `output_dir`.
    KeyboardInterrupt: By Ctrl-C or SIGTERM, when all runs have been ended.
    OSError: If `output_dir` cannot be written to.
  """
  output_dir = pathlib.Path(output_dir)
  if parallel is not None and ray_address is not None:
    raise JobError(
      '--parallel is for this machine: it goes without --ray_address.'
    )
  cores = _share_cores(parallel, len(jobs))
  with _lock(output_dir):
    rounds = {}
    waiting = collections.deque()
    for job in jobs:
      if is_finished(job, output_dir):
        rounds[job.name] = job.total_rounds
      else:
        rounds[job.name] = count_rounds(output_dir / job.name)
        waiting.append(job)
    if not waiting:
      return []
    if ray_address is None:
      runner = _LocalRunner(output_dir, cores)
    else:
      # Only where it is asked for, since Ray is an extra.
      try:
        from experiments.campaigns import ray_runner
      except ImportError as error:
        raise JobError(
          f'--ray_address needs the package ray ({error}); it is installed by'
          ' pip install --no-deps -r requirements.lock.'
        ) from error
      runner = ray_runner.RayRunner(output_dir, ray_address)
    with contextlib.closing(runner), _sigterm_as_ctrl_c():
      return _run(jobs, waiting, rounds, runner, output_dir, name)


def _run(jobs, waiting, rounds, runner, output_dir, name) -> list[FailedJob]:
  num_finished = len(jobs) - len(waiting)
  failed = []
  failures, losses = collections.Counter(), collections.Counter()
  running = set()
  last_shown = None
  bar = tqdm.tqdm(
    desc=name,
    initial=sum(rounds.values()),
    total=sum(job.total_rounds for job in jobs),
    unit='round',
    # For the time left the mean over all runs counts, not the last second.
    smoothing=0,
    file=sys.stderr,
  )
  with bar:
    while waiting or running:
      while waiting and runner.has_room():
        job = waiting.popleft()
        runner.start(job)
        running.add(job)
      ended_jobs = runner.wait()
      for job in running:
        # A run that was resumed does some of its rounds again.
        rounds[job.name] = max(rounds[job.name], runner.count_rounds(job))
      for ended in ended_jobs:
        job = ended.job
        running.remove(job)
        log = log_path(output_dir, job)
        if ended.loss is None and _has_weights(output_dir / job.name):
          rounds[job.name] = job.total_rounds
          num_finished += 1
          continue
        if ended.loss is not None:
          losses[job] += 1
          reason, is_last = ended.loss, losses[job] > _MAX_LOSSES
        else:
          failures[job] += 1
          reason = _describe_failure(log, ended.status)
          is_last = failures[job] > _MAX_RETRIES or (
            reason.startswith('error: ')
            and not (output_dir / job.name / 'config.json').exists()
          )
        if is_last:
          failed.append(FailedJob(job, reason, log))
          bar.total -= job.total_rounds - rounds[job.name]
          bar.write(f'{job.name} failed: {reason}', file=sys.stderr)
        else:
          waiting.append(job)
          bar.write(
            f'{job.name} failed and is tried again: {reason}', file=sys.stderr
          )
      # In this order.
      bar.set_postfix(
        {
          'finished': num_finished,
          'running': runner.num_running,
          'failed': len(failed),
        },
        refresh=False,
      )
      shown = bar.postfix, sum(rounds.values()), bar.total
      if shown != last_shown:
        bar.n = shown[1]
        bar.refresh()
        last_shown = shown
  return failed


def is_finished(job: Job, output_dir: Union[str, os.PathLike]) -> bool:
  """Whether the job's folder holds its finished run.

  Args:
    job: The job.
    output_dir: The folder of the runs' folders.

  Returns:
    Whether it is finished.

  Raises:
    JobError: If the folder holds a run, finished or not, of other flags.
  """
  folder = pathlib.Path(output_dir) / job.name
  try:
    settings, _ = settings_lib.read_config(folder)
  except FileNotFoundError:
    return False
  except (OSError, files.RecordError) as error:
    raise JobError(
      f'{folder} cannot be read: {error}. Remove that folder, or use another'
      ' --output_dir.'
    ) from error
  asked = {name: _as_recorded(name, text) for name, text in job.values.items()}
  for name, recorded, value in settings.differences_from_flags(asked):
    wanted = value if name in job.values else f'{value}, which is its default'
    raise JobError(
      f'{folder} holds a run with --{name}={recorded}, not {wanted}. Use the'
      ' same flags, or another --output_dir.'
    )
  return _has_weights(folder)


def _as_recorded(name: str, text: str) -> str:
  """A flag's value, where `config.json` has it in another form."""
  if name != 'availability':
    return text
  try:
    return str(availability.read(text, folder=ROOT).setting)
  except availability.AvailabilityError as error:
    raise JobError(str(error)) from error


def _has_weights(folder) -> bool:
  return (folder / 'weights.npz').exists()


def count_rounds(folder: pathlib.Path) -> int:
  """The number of rounds in the `metrics.csv` of a run's folder."""
  try:
    lines = (folder / 'metrics.csv').read_bytes().count(b'\n')
  except FileNotFoundError:
    return 0
  return max(lines - 1, 0)


def log_path(output_dir: pathlib.Path, job: Job) -> pathlib.Path:
  """The file for what the job's process prints."""
  return output_dir / 'logs' / f'{job.name}.log'


def _describe_failure(log, status) -> str:
  """Why a run failed, in one line: what it said last."""
  if status < 0:
    return f'ended by {signal.Signals(-status).name}'
  if status == 0:
    return 'ended without final weights'
  lines = log.read_text(errors='replace').splitlines()
  lines = [line.strip() for line in lines if line.strip()]
  # Of a message of several lines, the first.
  errors = [line for line in lines if line.startswith('error: ')]
  return (errors or lines or [f'exit status {status}'])[-1]


@contextlib.contextmanager
def _lock(output_dir):
  """Keeps other sweeps from the folder."""
  logs = output_dir / 'logs'
  logs.mkdir(parents=True, exist_ok=True)
  try:
    lock = files.lock_folder(logs)
  except BlockingIOError:
    raise JobError(
      f'Another process starts runs in {output_dir}. Wait for it, end it, or'
      ' use another --output_dir.'
    ) from None
  try:
    yield
  finally:
    lock.release()


@contextlib.contextmanager
def _sigterm_as_ctrl_c():
  """Ends the program in the same way by SIGTERM and by Ctrl-C."""
  former = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, former)


# Runs in the process of a run before the run itself. A run that outlived the
# one who started it would keep its folder locked: so the kernel is asked for
# SIGKILL when that one ends (1 is PR_SET_PDEATHSIG), and the process ends at
# once if it has ended already. A run can be killed at any moment: it goes on
# from its last checkpoint.
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
) -> subprocess.Popen:
  """Starts a process that ends with this thread at the latest.

  Args:
    command: The command.
    cwd: The working directory.
    log: The file for what it prints; replaced.
    cores: The numbers of the cores that it may use.

  Returns:
    The process.

  Raises:
    OSError: If it cannot be started.
  """
  with log.open('wb') as file:
    return subprocess.Popen(
      [
        sys.executable,
        # Nothing from the working directory or the environment.
        '-IS',
        '-c',
        _LAUNCHER,
        str(os.getpid()),
        ','.join(map(str, cores)),
        *command,
      ],
      cwd=cwd,
      stdin=subprocess.DEVNULL,
      stdout=file,
      stderr=file,
      # Ctrl-C is for this process, which then ends the other.
      start_new_session=True,
    )


def _share_cores(parallel: Optional[int], num_jobs: int) -> list[list[int]]:
  """The cores of each of the processes that run at once."""
  cores = sorted(os.sched_getaffinity(0))
  if parallel is None:
    # Much of a round is the work of one thread: its largest client, the sums,
    # and all that is done between rounds. Two runs at once on two cores take
    # three quarters of the time of one after the other.
    in_memory = psutil.virtual_memory().available // _BYTES_OF_RUN
    parallel = max(1, min(len(cores), num_jobs, in_memory))
  elif not 1 <= parallel <= len(cores):
    raise JobError(
      f'--parallel must be from 1 to the {len(cores)} cores that this process'
      f' may use, found {parallel}.'
    )
  bounds = [i * len(cores) // parallel for i in range(parallel + 1)]
  return [cores[bounds[i] : bounds[i + 1]] for i in range(parallel)]


class _LocalRunner:
  """Runs jobs in processes of this machine."""

  def __init__(self, output_dir, shares):
    self._output_dir = output_dir
    self._free = shares
    self._processes = {}

  def has_room(self) -> bool:
    return bool(self._free)

  @property
  def num_running(self) -> int:
    return len(self._processes)

  def start(self, job):
    cores = self._free.pop()
    process = start_process(
      job.command(self._output_dir.resolve()),
      cwd=ROOT,
      log=log_path(self._output_dir, job),
      cores=cores,
    )
    self._processes[job] = process, cores

  def count_rounds(self, job) -> int:
    return count_rounds(self._output_dir / job.name)

  def wait(self) -> list[Ended]:
    """Waits a little, and returns the jobs that have ended since."""
    time.sleep(POLL_SECONDS)
    ended = []
    for job, (process, cores) in list(self._processes.items()):
      if process.poll() is not None:
        del self._processes[job]
        self._free.append(cores)
        ended.append(Ended(job, process.returncode))
    return ended

  def close(self):
    for process, _ in self._processes.values():
      process.kill()
    for process, _ in self._processes.values():
      process.wait()
