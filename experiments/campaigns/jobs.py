"""Runs many jobs, retries those that fail, and shows the progress."""

import collections
import contextlib
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Optional
from typing import Union

import tqdm

from experiments.campaigns import job as job_lib
from experiments.campaigns import job_settings
from experiments.campaigns import local_runner
from experiments.runs import run_progress
from tff_ocs.records import files
from tff_ocs.records import norms as norms_lib
from tff_ocs.records import settings as settings_lib

_MAX_RETRIES = 2
# A machine that is lost is not a fault of the run.
_MAX_LOSSES = 10


def run_jobs(
  jobs: Sequence[job_lib.Job],
  *,
  output_dir: Union[str, os.PathLike],
  name: str,
  parallel: Optional[int] = None,
  ray_address: Optional[str] = None,
) -> list[job_lib.FailedJob]:
  """Runs all jobs that are not finished, and shows their progress in one bar.

  Runs that were interrupted are resumed. Failed ones are retried twice, unless
  they reported an error in their settings or data before they began. The output
  of a run is in `<output_dir>/logs/<name>.log`.

  Args:
    jobs: The jobs. One that is there several times is run once.
    output_dir: The folder of the runs' folders.
    name: The name of the progress bar.
    parallel: The number of runs at the same time on this machine, which share
      its cores evenly; `None` is one for each core for which 3 GB of memory are
      available.
    ray_address: The address of a Ray cluster to run them on instead, see
      `ray_runner`.

  Returns:
    The jobs that failed.

  Raises:
    JobError: If the arguments contradict each other, if jobs with different
      flags have one name, if a folder holds a run of other flags, or if
      another process runs jobs in `output_dir`.
    KeyboardInterrupt: By Ctrl-C or SIGTERM, after all runs have been ended.
    OSError: If `output_dir` cannot be written to.
  """
  output_dir = pathlib.Path(output_dir)
  jobs = job_lib.once(jobs)
  if parallel is not None and ray_address is not None:
    raise job_lib.JobError(
      '--parallel is for this machine and cannot be combined with'
      ' --ray_address.'
    )
  cores = local_runner.share_cores(parallel, len(jobs))
  with _lock(output_dir):
    rounds = {}
    waiting = collections.deque()
    for job in jobs:
      if is_finished(job, output_dir):
        rounds[job.name] = job.total_rounds
      else:
        rounds[job.name] = run_progress.count_rounds(output_dir / job.name)
        waiting.append(job)
        log = job_lib.log_path(output_dir, job)
        log.parent.mkdir(parents=True, exist_ok=True)
    if not waiting:
      return []
    if ray_address is None:
      runner = local_runner.LocalRunner(output_dir, cores)
    else:
      _check_tracker(waiting)
      # Ray is an optional package.
      try:
        from experiments.campaigns import ray_runner
      except ImportError as error:
        raise job_lib.JobError(
          f'--ray_address needs the package ray ({error}); it is installed by'
          ' pip install --no-deps -r requirements.lock.'
        ) from error
      runner = ray_runner.RayRunner(output_dir, ray_address)
    with contextlib.closing(runner), _sigterm_as_ctrl_c():
      return _run(jobs, waiting, rounds, runner, output_dir, name)


def _check_tracker(waiting) -> None:
  """On a node, files outside of a run's folder are lost."""
  uri = os.environ.get('MLFLOW_TRACKING_URI', '')
  is_server = uri.startswith(('http://', 'https://', 'databricks'))
  if not is_server and any(
    job.values.get('log_to') == 'mlflow' for job in waiting
  ):
    raise job_lib.JobError(
      '--log_to=mlflow with --ray_address needs the address of a server in the'
      f' environment variable MLFLOW_TRACKING_URI, found {uri!r}.'
    )


def _run(
  jobs, waiting, rounds, runner, output_dir, name
) -> list[job_lib.FailedJob]:
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
    # The time left is estimated from the mean speed since the start.
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
        # A resumed run repeats the rounds after its last checkpoint.
        rounds[job.name] = max(rounds[job.name], runner.count_rounds(job))
      for ended in ended_jobs:
        job = ended.job
        running.remove(job)
        log = job_lib.log_path(output_dir, job)
        if ended.loss is None and run_progress.has_final_weights(
          output_dir / job.name
        ):
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
          failed.append(job_lib.FailedJob(job, reason, log))
          bar.total -= job.total_rounds - rounds[job.name]
          bar.write(f'{job.name} failed: {reason}', file=sys.stderr)
        else:
          waiting.append(job)
          bar.write(
            f'{job.name} failed and is tried again: {reason}', file=sys.stderr
          )
      # A dict, since keyword arguments would be sorted.
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


def is_finished(job: job_lib.Job, output_dir: Union[str, os.PathLike]) -> bool:
  """Whether the job's folder holds its finished run.

  Args:
    job: The job.
    output_dir: The folder of the runs' folders.

  Returns:
    Whether it is finished.

  Raises:
    JobError: If the folder holds a run, finished or not, of other flags, or a
      finished run without the norms that the job is to record, or if the
      experiment refuses the job's flags.
  """
  folder = pathlib.Path(output_dir) / job.name
  try:
    settings, _ = settings_lib.read_config(folder)
  except FileNotFoundError:
    return False
  except (OSError, files.RecordError) as error:
    raise job_lib.JobError(
      f'{folder} cannot be read: {error}. Remove that folder, or use another'
      ' --output_dir.'
    ) from error
  asked = job_settings.read(job)
  for name, recorded, value in settings.differences(asked.recorded):
    wanted = value
    if name in asked.defaults:
      wanted = f'{value}, which is its default'
    raise job_lib.JobError(
      f'{folder} holds a run with --{name}={recorded}, not {wanted}. Use the'
      ' same flags, or another --output_dir.'
    )
  if not run_progress.has_final_weights(folder):
    return False
  if asked.record_norms and not norms_lib.are_recorded(folder):
    raise job_lib.JobError(
      f'{folder} holds a finished run without --record_norms. Leave this flag'
      ' out, or use another --output_dir.'
    )
  return True


def _describe_failure(log, status) -> str:
  """The reason why a run failed, in one line: its last message."""
  if status < 0:
    return f'ended by {signal.Signals(-status).name}'
  if status == 0:
    return 'ended without final weights'
  lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
  lines = [line.strip() for line in lines if line.strip()]
  # Wrong flags are reported by absl, with a hint in another line.
  prefix = 'FATAL Flags parsing error: '
  lines = [line.replace(prefix, 'error: ') for line in lines]
  # An error message may have further lines.
  errors = [line for line in lines if line.startswith('error: ')]
  return (errors or lines or [f'exit status {status}'])[-1]


@contextlib.contextmanager
def _lock(output_dir):
  """Keeps other programs from running jobs in the folder."""
  logs = output_dir / 'logs'
  logs.mkdir(parents=True, exist_ok=True)
  try:
    lock = files.lock_folder(logs)
  except BlockingIOError:
    raise job_lib.JobError(
      f'Another process runs jobs in {output_dir}. Wait for it, end it, or'
      ' use another --output_dir.'
    ) from None
  try:
    yield
  finally:
    lock.release()


@contextlib.contextmanager
def _sigterm_as_ctrl_c():
  """Treats SIGTERM as Ctrl-C."""
  former = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, former)
