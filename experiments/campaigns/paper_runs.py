"""The runs of the paper, and the flags of the programs that start many runs.

Each file in `flags/` holds the flags of one run, and is called by its
experiment, sampling and m: `femnist_1_aocs_m3.flags`.
"""

import pathlib
import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from absl import flags

from experiments.campaigns import jobs

EXPERIMENTS = (
  'femnist_1',
  'femnist_2',
  'femnist_3',
  'shakespeare_32',
  'shakespeare_128',
  'cifar100',
)

_METHODS = ('full', 'uniform', 'ocs', 'aocs')
# What is decided for each run by whoever starts many, or would undo the work.
_RESERVED = ('flagfile', 'output_dir', 'overwrite', 'resume', 'run_name')
_FOLDER = pathlib.Path(__file__).parents[1] / 'flags'


class FlagFile(NamedTuple):
  """The flags of one of the paper's runs.

  Attributes:
    name: The file's name without its ending, 'femnist_1_aocs_m3'.
    binary: The module of `experiments` that runs it, 'femnist'.
    flags: What the file holds, '--sampling=aocs' and so on.
  """

  name: str
  binary: str
  flags: tuple[str, ...]


def read(experiment: str, methods: Sequence[str]) -> list[FlagFile]:
  """Reads the flag files of an experiment.

  Args:
    experiment: One of `EXPERIMENTS`, or 'paper' for all of them.
    methods: 'full', 'uniform', 'ocs', 'aocs', or some of them.

  Returns:
    The flag files, ordered by experiment, by method as given, and by m. The
    data source, which no file holds, comes first among the flags, so that it is
    compared with what a folder holds.
  """
  experiments = EXPERIMENTS if experiment == 'paper' else (experiment,)
  flag_files = []
  for name in experiments:
    for method in dict.fromkeys(methods):
      pattern = re.compile(rf'{name}_{method}(?:_m(\d+))?')
      found = {}
      for path in _FOLDER.glob('*.flags'):
        match = pattern.fullmatch(path.stem)
        if match:
          found[int(match.group(1) or 0)] = path
      for _, path in sorted(found.items()):
        lines = map(str.strip, path.read_text().splitlines())
        flag_files.append(
          FlagFile(
            path.stem,
            name.split('_')[0],
            (
              '--data_source=tff',
              *(line for line in lines if line and not line.startswith('#')),
            ),
          )
        )
  return flag_files


def define_flags(*, with_methods: bool = True) -> None:
  """Defines the flags that the programs that start many runs share.

  Args:
    with_methods: Whether --methods is one of them.
  """
  flags.DEFINE_enum(
    'experiment',
    None,
    [*EXPERIMENTS, 'paper'],
    'The experiment of the paper: FEMNIST data set 1, 2 or 3; Shakespeare with'
    ' n = 32 or 128; CIFAR100; or all of them (paper).',
    required=True,
  )
  if with_methods:
    flags.DEFINE_list(
      'methods',
      ['full', 'uniform', 'aocs'],
      'The samplings to run, each with all its m: full, uniform, aocs, as in'
      " the paper's figures, or ocs, whose results are those of aocs.",
    )
    flags.register_validator(
      'methods',
      lambda methods: methods and not set(methods) - set(_METHODS),
      message=f'must be some of {",".join(_METHODS)}',
    )
  flags.DEFINE_string(
    'output_dir', 'runs', 'The folder of the runs, and of their logs in logs/.'
  )
  flags.DEFINE_integer(
    'parallel',
    None,
    'How many runs go on at once on this machine; they share its cores evenly.'
    ' If not given, one for each core that 3 GB of memory are available for.',
  )
  flags.DEFINE_string(
    'ray_address',
    None,
    'Place the runs on a Ray cluster that is there already, instead: auto for'
    ' the one of this machine, or the HOST of its head, of which this machine'
    ' must be a node.',
  )
  flags.DEFINE_bool(
    'dry_run', False, 'Print the commands of the runs and start none.'
  )


def extra_flags(argv: Sequence[str], reserved: Sequence[str]) -> list[str]:
  """The flags after `--` on the command line, which go to each run.

  Args:
    argv: What `app.run` gives to `main`.
    reserved: The names of flags that the program itself decides, in addition to
      those of the folder.

  Returns:
    The flags, '--name=value'.

  Raises:
    JobError: If one is not of this form, or may not be given.
  """
  for argument in argv[1:]:
    match = re.fullmatch(r'--(\w+)=.*', argument, re.DOTALL)
    if not match:
      raise jobs.JobError(
        f'unexpected argument {argument!r}; flags for each run go to the end,'
        ' after a --, and have the form --name=value.'
      )
    if match.group(1) in (*_RESERVED, *reserved):
      raise jobs.JobError(
        f'{argument} cannot be given to each run: it is decided here.'
      )
  return list(argv[1:])


def check_flags(all_jobs: Sequence[jobs.Job]) -> None:
  """Lets each binary check the flags of its first job.

  A flag that does not exist would otherwise fail in each of the runs.

  Args:
    all_jobs: The jobs.

  Raises:
    JobError: If a binary refuses its flags.
  """
  first_jobs = {}
  for job in all_jobs:
    first_jobs.setdefault(job.binary, job)
  for job in first_jobs.values():
    result = subprocess.run(
      [*job.command('.'), '--only_check_args'],
      cwd=jobs.ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    if result.returncode:
      message = re.search(r'Flags parsing error:\s*(.*)', result.stdout)
      reason = (
        message.group(1) if message else result.stdout.strip().split('\n')[-1]
      )
      raise jobs.JobError(f'experiments.{job.binary}: {reason}')
