"""The settings that the run of a job records, known before it starts."""

import importlib
from collections.abc import Set
from typing import Any
from typing import NamedTuple

from absl import flags

from experiments.campaigns import job as job_lib
from experiments.runs import availability
from experiments.runs import experiment_flags
from experiments.runs import user_code


class JobSettings(NamedTuple):
  """The settings of a job.

  Attributes:
    recorded: The settings by name, as the run records them.
    defaults: The names of those whose flag the job does not give.
    record_norms: Whether the run records norms, which is no setting.
  """

  recorded: dict[str, Any]
  defaults: Set[str]
  record_norms: bool = False


def read(job: job_lib.Job) -> JobSettings:
  """Reads the settings from a job's flags, as its experiment does.

  Raises:
    JobError: If the experiment refuses the flags.
  """
  program = importlib.import_module(f'experiments.{job.program}')
  values = flags.FlagValues()
  program.define_flags(values)
  try:
    values([job.program, *job.flags])
  except flags.Error as error:
    raise job_lib.JobError(f'experiments.{job.program}: {error}') from error
  try:
    recorded = experiment_flags.settings(
      values,
      program.describe(values),
      availability.read(values.availability),
    )
  except (
    availability.AvailabilityError,
    experiment_flags.SettingError,
    user_code.UserCodeError,
  ) as error:
    raise job_lib.JobError(
      f'experiments.{job.program}, {job.name}: {error}'
    ) from error
  not_given = {name for name in values if not values[name].present}
  return JobSettings(recorded, not_given & set(recorded), values.record_norms)
