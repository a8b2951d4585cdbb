"""Runs jobs on the nodes of a Ray cluster.

The nodes share nothing but Ray with this machine. This code is sent to them.
They need the packages of requirements.lock and, for --data_source=tff, the
files in --cache_dir (an absolute path) or a connection to download them. A run
works in a temporary folder of its node. Its files are sent back with each
checkpoint and at its end. If its node is lost, it continues from there on
another node.
"""

import contextlib
import fcntl
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Optional

import ray

from experiments.campaigns import job as job_lib
from experiments.campaigns import local_runner
from experiments.runs import code_version
from experiments.runs import run_progress

# If a node has fewer cores, all runs take as many as that node has.
_CORES_OF_A_RUN = 2
_PACKAGES = ('experiments', 'programs', 'tff_ocs')
_PORT = 6379
_CONNECT_SECONDS = 60
# Joining a cluster that does not exist can take forever and cannot be
# interrupted, so another process tries it first.
_PROBE = 'import ray, sys; ray.init(sys.argv[1], log_to_driver=False)'


class RayRunner:
  """Runs jobs on a Ray cluster."""

  def __init__(self, output_dir: pathlib.Path, address: str):
    """Joins the cluster."""
    self._output_dir = output_dir
    self._stack = contextlib.ExitStack()
    self._tasks = {}
    self._rounds = {}
    self._started = set()
    _settle_replacements(output_dir)
    _join(address)
    # They are sent with the task, so that Ray's process can use them.
    for module in (job_lib, local_runner, run_progress, sys.modules[__name__]):
      ray.cloudpickle.register_pickle_by_value(module)
    of_nodes = [
      int(node['Resources'].get('CPU', 0))
      for node in ray.nodes()
      if node['Alive']
    ]
    self._num_cores = min([_CORES_OF_A_RUN, *filter(None, of_nodes)])
    self._run = ray.remote(
      num_cpus=self._num_cores, max_retries=0, num_returns='streaming'
    )(_run_on_node)
    # Ray's messages about its nodes would break the progress bar.
    nowhere = self._stack.enter_context(open(os.devnull, 'w'))
    self._stack.enter_context(contextlib.redirect_stdout(nowhere))

  def has_room(self) -> bool:
    """Whether another job can be started; Ray keeps jobs waiting itself."""
    return True

  @property
  def num_running(self) -> int:
    """The number of jobs that are running on a node."""
    return len(self._started)

  def start(self, job: job_lib.Job) -> None:
    """Gives a job to Ray.

    Args:
      job: The job.
    """
    folder = self._output_dir / job.name
    job_lib.log_path(self._output_dir, job).write_bytes(b'')
    task = self._run.remote(job, _read_files(folder), self._num_cores)
    self._tasks[task] = job

  def count_rounds(self, job: job_lib.Job) -> int:
    """The number of rounds that a job has finished, as far as is known here."""
    return self._rounds.get(job.name, 0)

  def wait(self) -> list[job_lib.Ended]:
    """Waits a little, and returns the jobs that have ended since."""
    ready, _ = ray.wait(
      list(self._tasks),
      num_returns=len(self._tasks),
      timeout=job_lib.POLL_SECONDS,
    )
    ended = []
    for task in ready:
      job = self._tasks[task]
      try:
        rounds, files, output, status = ray.get(next(task))
      except (ray.exceptions.RayError, StopIteration) as error:
        end = job_lib.Ended(job, 1, _describe_loss(error))
        with job_lib.log_path(self._output_dir, job).open('ab') as log:
          log.write(f'\n{end.loss}\n'.encode())
      else:
        self._started.add(task)
        self._rounds[job.name] = rounds
        if files is not None:
          if files:  # A run with wrong flags makes no folder.
            _replace(self._output_dir / job.name, files)
          job_lib.log_path(self._output_dir, job).write_bytes(output)
        end = None if status is None else job_lib.Ended(job, status)
      if end is not None:
        del self._tasks[task]
        self._started.discard(task)
        ended.append(end)
    return ended

  def close(self) -> None:
    """Leaves the cluster, which ends the jobs that are running."""
    ray.shutdown()
    self._stack.close()


def _join(address):
  if '://' in address:
    raise job_lib.JobError(
      f'--ray_address must be auto, HOST or HOST:PORT, found {address}. Start'
      ' the program on a machine of the cluster.'
    )
  if address != 'auto' and ':' not in address:
    address = f'{address}:{_PORT}'
  os.environ['RAY_USAGE_STATS_ENABLED'] = '0'
  # Messages of Ray's C++ part would break the progress bar.
  os.environ.setdefault('RAY_BACKEND_LOG_LEVEL', 'fatal')
  try:
    probe = subprocess.run(
      [sys.executable, '-W', 'ignore', '-c', _PROBE, address],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
      timeout=_CONNECT_SECONDS,
    )
    reason = (probe.stderr.strip().splitlines() or ['no reason given'])[-1]
    is_there = probe.returncode == 0
  except subprocess.TimeoutExpired:
    reason = f'no answer within {_CONNECT_SECONDS} s'
    is_there = False
  if not is_there:
    raise job_lib.JobError(
      f'--ray_address={address}: this machine is not a node of a Ray cluster'
      f' there, or cannot reach it: {reason}. ray start makes it one.'
    )
  env_vars = {code_version.VARIABLE: code_version.git_commit()}
  if 'MLFLOW_TRACKING_URI' in os.environ:
    env_vars['MLFLOW_TRACKING_URI'] = os.environ['MLFLOW_TRACKING_URI']
  with warnings.catch_warnings():
    # Ray announces changes of later versions.
    warnings.simplefilter('ignore', FutureWarning)
    ray.init(
      address,
      log_to_driver=False,
      logging_level=logging.ERROR,
      runtime_env={
        'py_modules': [str(job_lib.ROOT / name) for name in _PACKAGES],
        'excludes': ['__pycache__'],
        'env_vars': env_vars,
      },
    )


def _describe_loss(error) -> str:
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  if isinstance(error, ray.exceptions.RayTaskError):
    lines = lines[-1:]  # The lines before are a traceback.
  return f'lost by Ray: {(lines or [type(error).__name__])[0]}'


def _run_on_node(
  job: job_lib.Job, files: dict[str, bytes], num_cores: int
) -> Iterator[tuple[int, Optional[dict[str, bytes]], bytes, Optional[int]]]:
  """Runs a job on the node where this is called.

  Args:
    job: The job.
    files: The files of its folder, if it was interrupted.
    num_cores: The number of cores that it may use.

  Yields:
    The number of finished rounds; at each checkpoint and at the end also the
    files of the folder and the output of the run; at the end its exit status.
  """
  with tempfile.TemporaryDirectory(prefix='tff_ocs_') as output_dir:
    output_dir = pathlib.Path(output_dir)
    folder, log = output_dir / job.name, output_dir / 'log'
    _write_files(folder, files)
    with _cores(num_cores) as cores:
      process = local_runner.start_process(
        job.command(output_dir), cwd=output_dir, log=log, cores=cores
      )
      try:
        yield from _follow(process, folder, log)
      finally:
        process.kill()
        process.wait()


def _follow(process, folder, log):
  rounds, checkpoint = _progress(folder)
  yield rounds, None, b'', None
  while process.poll() is None:
    # Less often than the results are fetched.
    time.sleep(2 * job_lib.POLL_SECONDS)
    now = _progress(folder)
    if now == (rounds, checkpoint):
      continue
    files, output = None, b''
    if now[1] not in (None, checkpoint):
      try:
        files, output = _read_files(folder, now[1]), log.read_bytes()
      except FileNotFoundError:  # A newer checkpoint has replaced it.
        continue
    rounds, checkpoint = now
    yield rounds, files, output, None
  rounds, _ = _progress(folder)
  yield rounds, _read_files(folder), log.read_bytes(), process.returncode


def _progress(folder):
  return (
    run_progress.count_rounds(folder),
    run_progress.newest_checkpoint(folder),
  )


@contextlib.contextmanager
def _cores(number):
  """Cores of this machine that no other run uses; all if there are too few."""
  folder = pathlib.Path(tempfile.gettempdir()) / f'tff_ocs_cores_{os.getuid()}'
  folder.mkdir(exist_ok=True)
  everything = sorted(os.sched_getaffinity(0))
  cores = []
  with contextlib.ExitStack() as stack:
    for core in everything:
      file = stack.enter_context((folder / str(core)).open('w'))
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        continue
      cores.append(core)
      if len(cores) == number:
        break
    else:
      # Ray counts more cores than the machine has.
      cores = everything
    yield cores


def _read_files(
  folder: pathlib.Path, checkpoint: Optional[str] = None
) -> dict[str, bytes]:
  """The files of a run by their paths in its folder.

  Args:
    folder: The run's folder, which need not exist.
    checkpoint: The one checkpoint to read while the run goes on; `None` reads
      all of them.

  Returns:
    The contents of the files.

  Raises:
    FileNotFoundError: If a file is removed at the same time.
  """
  files = {}
  # In this order a checkpoint is read before the metrics, which must reach it.
  for path in sorted(folder.rglob('*')):
    parts = path.relative_to(folder).parts
    if checkpoint is not None:
      if parts[0] == 'checkpoints' and checkpoint not in parts:
        continue
      if '_temp' in parts[0] or '.partial' in parts[0]:
        continue
    if path.is_file():
      files['/'.join(parts)] = path.read_bytes()
  return files


def _write_files(folder: pathlib.Path, files: dict[str, bytes]) -> None:
  for name, content in files.items():
    path = pathlib.PurePosixPath(name)
    if path.is_absolute() or '..' in path.parts:
      raise ValueError(f'{name} is not a path within a folder.')
    path = folder / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _replace(folder: pathlib.Path, files: dict[str, bytes]) -> None:
  """Replaces a folder atomically."""
  partial = folder.with_name(f'.{folder.name}.partial')
  shutil.rmtree(partial, ignore_errors=True)
  _write_files(partial, files)
  former = folder.with_name(f'.{folder.name}.former')
  if folder.exists():
    folder.rename(former)
  partial.rename(folder)
  shutil.rmtree(former, ignore_errors=True)


def _settle_replacements(output_dir: pathlib.Path) -> None:
  """Completes or undoes a `_replace` that an earlier program began."""
  for former in list(output_dir.rglob('.*.former')):
    folder = former.with_name(former.name[1 : -len('.former')])
    if folder.exists():
      shutil.rmtree(former)
    else:
      former.rename(folder)
  for partial in list(output_dir.rglob('.*.partial')):
    shutil.rmtree(partial)
