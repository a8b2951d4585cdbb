"""A job: one run of an experiment, as a process of its own.

This module is also sent to the nodes of a Ray cluster.
"""

import os
import pathlib
import sys
from collections.abc import Iterable
from typing import NamedTuple
from typing import Optional
from typing import Union

ROOT = pathlib.Path(__file__).parents[2]
POLL_SECONDS = 0.5


class JobError(ValueError):
  """Raised before any job is started, if the jobs cannot be run as asked."""


class Job(NamedTuple):
  """One run.

  Attributes:
    name: The path of the run's folder below that of all runs, with slashes; in
      general its name.
    program: The module of `experiments`: 'femnist', 'shakespeare', 'cifar100'.
    flags: The flags, each '--name=value'. If a name is given twice, the last
      value counts. The total rounds must be among them.
  """

  name: str
  program: str
  flags: tuple[str, ...]

  def extended(self, suffix: str, *added: str) -> 'Job':
    """The job with more flags, and with a longer name."""
    return self._replace(name=self.name + suffix, flags=(*self.flags, *added))

  def command(self, output_dir: Union[str, os.PathLike]) -> list[str]:
    """The command of the run, for the project's root as working directory."""
    folder, _, run_name = self.name.rpartition('/')
    if folder:
      output_dir = os.path.join(output_dir, folder)
    return [
      sys.executable,
      '-m',
      f'experiments.{self.program}',
      *(f'--{name}={value}' for name, value in self.values.items()),
      f'--run_name={run_name}',
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


def once(jobs: Iterable[Job]) -> list[Job]:
  """The jobs, of which one that is there several times is kept once.

  Raises:
    JobError: If jobs with different flags have the same name.
  """
  by_name: dict[str, Job] = {}
  for job in jobs:
    first = by_name.setdefault(job.name, job)
    if first.values != job.values:
      differing = ' and '.join(sorted({*first.flags} ^ {*job.flags}))
      raise JobError(
        f'two runs have the name {job.name}, with {differing}. Choose values,'
        ' files or functions with different names.'
      )
  return list(by_name.values())


class Ended(NamedTuple):
  """A job whose process has ended.

  Attributes:
    job: The job.
    status: The exit status of its process, as of `subprocess`.
    loss: If the end was not seen: what happened to the machine.
  """

  job: Job
  status: int
  loss: Optional[str] = None


class FailedJob(NamedTuple):
  """A job that has failed, after all retries.

  Attributes:
    job: The job.
    reason: Why, in one line.
    log: The file with the output of its last attempt.
  """

  job: Job
  reason: str
  log: pathlib.Path

  @property
  def description(self) -> str:
    """The job, the reason and the file of the log, in two lines."""
    return f'{self.job.name} failed: {self.reason}\n  log: {self.log}'


def log_path(output_dir: pathlib.Path, job: Job) -> pathlib.Path:
  """The file for the output of a job's process."""
  return output_dir / 'logs' / f'{job.name}.log'
