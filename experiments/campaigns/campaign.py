"""The parts that the programs that start many runs share."""

import contextlib
import shlex
import sys
from collections.abc import Iterator
from collections.abc import Sequence

from absl import flags
from absl import logging

from experiments.campaigns import campaign_flags
from experiments.campaigns import job as job_lib
from experiments.campaigns import jobs
from experiments.runs import user_code
from programs import entry
from tff_ocs.records import files
from tff_ocs.records import runs


@contextlib.contextmanager
def reporting_errors() -> Iterator[None]:
  """Surrounds a program's main function: errors end it with one line."""
  entry.setup()
  # Otherwise every font that goes into a PDF is reported at length.
  logging.set_verbosity(logging.WARNING)
  try:
    yield
  except (
    OSError,
    files.RecordError,
    job_lib.JobError,
    runs.RunsError,
    user_code.UserCodeError,
  ) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted; the same command continues where this one ended')


def check_or_print(
  all_jobs: Sequence[job_lib.Job], values: flags.FlagValues
) -> None:
  """Checks the jobs' flags; with --dry_run prints the jobs and exits."""
  campaign_flags.check_flags(all_jobs)
  if values.dry_run:
    for job in all_jobs:
      finished = '# finished: ' * jobs.is_finished(job, values.output_dir)
      print(finished + shlex.join(job.command(values.output_dir)))
    sys.exit()


def run_jobs(
  all_jobs: Sequence[job_lib.Job], values: flags.FlagValues, name: str
) -> list[job_lib.FailedJob]:
  """Calls `jobs.run_jobs` as the flags say."""
  return jobs.run_jobs(
    all_jobs,
    output_dir=values.output_dir,
    name=name,
    parallel=values.parallel,
    ray_address=values.ray_address,
  )


def run_all(
  all_jobs: Sequence[job_lib.Job], values: flags.FlagValues, name: str
) -> None:
  """As `run_jobs`, but ends the program if a job failed."""
  failed = run_jobs(all_jobs, values, name)
  if failed:
    lines = [failed_job.description for failed_job in failed]
    sys.exit('\n'.join(['error: runs failed:', *lines]))


def describe_seeds(repeats: int) -> str:
  """The end of a caption: which numbers of the seeds are shown."""
  if repeats == 1:
    return '1 seed.'
  return f'mean ± standard deviation over {repeats} seeds.'
