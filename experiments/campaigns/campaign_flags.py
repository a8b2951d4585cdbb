"""The flags of the programs that start many runs."""

import math
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence

from absl import flags

from experiments.campaigns import job as job_lib
from experiments.campaigns import job_settings
from experiments.campaigns import paper_runs
from experiments.runs import experiment_flags
from experiments.runs import user_code
from programs import definer

# Flags count as those of the program that calls `define`.
flags.disclaim_key_flags()

# Flags that the programs set for each run, or that would undo finished work.
_RESERVED = ('flagfile', 'output_dir', 'overwrite', 'resume', 'run_name')
# Flags whose value is a path, or starts with one. Each run is started in the
# project's root, so a path that exists here is written in full.
_PATHS = ('availability', 'cache_dir', 'data', 'data_dir', 'task')


def define(values: flags.FlagValues, experiments: Sequence[str]) -> None:
  """Defines the flags of all of these programs.

  Args:
    values: The flags to add them to.
    experiments: The values of --experiment.
  """
  define = definer.Definer(values)
  define.enum(
    'experiment',
    None,
    experiments,
    'Required. The experiment of the paper: FEMNIST data set 1, 2 or 3;'
    ' Shakespeare with n = 32 or 128; CIFAR100; or all of them (paper). Or data'
    ' of your own (custom), which flags after the -- name, see'
    ' experiments.custom.',
    required=True,
  )
  define_campaign(values)


def define_campaign(values: flags.FlagValues) -> None:
  """Defines the flags that say where and how runs are started.

  Args:
    values: The flags to add them to.
  """
  define = definer.Definer(values)
  define.path(
    'output_dir', 'runs', 'The folder of the runs, and of their logs in logs/.'
  )
  define.integer(
    'parallel',
    None,
    'The number of runs at the same time on this machine, which share its cores'
    ' evenly. If not given, one for each core for which 3 GB of memory are'
    ' available.',
  )
  define.string(
    'ray_address',
    None,
    'The address of a running Ray cluster to place the runs on: auto for the'
    ' one of this machine, or the HOST of its head. This machine must be a node'
    ' of the cluster.',
  )
  define.bool(
    'dry_run', False, 'Print the commands of the runs and start none.'
  )


def define_methods(
  values: flags.FlagValues, allowed: Sequence[str] = paper_runs.METHODS
) -> None:
  """Defines the flags that choose methods, m and n.

  Args:
    values: The flags to add them to.
    allowed: The methods that --methods may name.
  """
  define = definer.Definer(values)
  define.list(
    'methods',
    ['full', 'uniform', 'aocs'],
    "The methods to run: full, uniform, aocs, as in the paper's figures; ocs,"
    ' whose results are those of aocs; threshold, which needs one round trip;'
    ' and, for cifar100 in a sweep, uniform_ocs_step, which is uniform sampling'
    ' with the step size of OCS. A method with one m, for example ocs_m3, is'
    ' run with this m only. A scheme of your own is PATH.py:FUNCTION.',
  )
  define.validate(
    'methods',
    lambda methods: methods and all(_is_method(m, allowed) for m in methods),
    message=(
      f'must be some of {",".join(allowed)}, each with or without an _mM, or'
      ' PATH.py:FUNCTION'
    ),
  )
  define.list(
    'expected_clients',
    None,
    'The expected numbers m of participants to run each sampling but full with.'
    " If not given, the paper's.",
  )
  define.validate(
    'expected_clients',
    lambda numbers: numbers is None or definer.are_positive(numbers),
    message='must be one or more different numbers above 0',
  )
  define.integer(
    'clients_per_round',
    None,
    "The size n of the cohort. If not given, the paper's.",
    lower_bound=1,
  )


def _is_method(text, allowed) -> bool:
  if user_code.is_reference(text):
    return True
  method, m = paper_runs.split_method(text)
  if m is not None and (method == 'full' or not 0 < m < math.inf):
    return False
  return method in allowed


def read_runs(values: flags.FlagValues) -> list[job_lib.Job]:
  """The runs that the flags choose, without seeds.

  Raises:
    JobError: If the flags contradict each other.
  """
  if values.experiment == 'paper' and values.clients_per_round is not None:
    raise job_lib.JobError(
      '--clients_per_round cannot be combined with --experiment=paper, which'
      ' has experiments that differ in nothing but n.'
    )
  runs = paper_runs.read(
    values.experiment,
    [_code_in_full(method) for method in values.methods],
    expected_clients=(
      values.expected_clients and list(map(float, values.expected_clients))
    ),
    clients_per_round=values.clients_per_round,
  )
  for run in runs:
    n = run.values['clients_per_round']
    m = run.values.get('expected_clients', '0')
    if float(m) > float(n):
      who = experiment_flags.senders_of_all(run.values.get('sampling', ''))
      print(
        f'{run.name}: m={m} is more than n={n}, so {who} will send.',
        file=sys.stderr,
      )
  return runs


def parse(argv: Sequence[str]) -> list[str]:
  """The parser for `app.run`; it explains where flags for each run belong."""
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    message = f'Flags parsing error: {error}'
    if isinstance(error, flags.UnrecognizedFlagError):
      message += (
        f'. Flags for each run go to the end, after a --: {_corrected(argv)}'
      )
    sys.exit(message)


def _corrected(argv) -> str:
  """The command with all unknown flags after the `--`."""
  known, unknown = [], []
  arguments = iter(argv[1:])
  previous = known
  for argument in arguments:
    if argument == '--':
      break
    name = re.match(r'--?(?:no)?(\w+)|', argument).group(1)
    if name is None and previous is unknown:
      # The value of the flag before it; after the -- it needs a =.
      unknown[-1] += f'={argument}'
      continue
    if name is not None:
      is_known = name in flags.FLAGS or f'no{name}' in flags.FLAGS
      previous = known if is_known else unknown
    previous.append(argument)
  program = pathlib.Path(argv[0]).stem
  return shlex.join(
    ['python', '-m', f'experiments.{program}', *known, '--']
    + [*unknown, *arguments]
  )


def extra_flags(
  argv: Sequence[str], values: flags.FlagValues, reserved: Sequence[str]
) -> list[str]:
  """The flags after `--` on the command line, which go to each run.

  Args:
    argv: The arguments that `app.run` gives to the main function.
    values: The program's own flags.
    reserved: The names of flags that the program always sets for each run, in
      addition to those of the folder.

  Returns:
    The flags, '--name=value', with paths of files here in full.

  Raises:
    JobError: If one is not of this form, or may not be given.
  """
  given = []
  for argument in argv[1:]:
    match = re.fullmatch(r'--(\w+)=.*', argument, re.DOTALL)
    if not match:
      raise job_lib.JobError(
        f'unexpected argument {argument!r}; flags for each run go to the end,'
        ' after a --, and have the form --name=value.'
      )
    name = match.group(1)
    is_set = name == 'clients_per_round' and values[name].present
    if is_set or name in (*_RESERVED, *reserved):
      raise job_lib.JobError(
        f'{argument} cannot be given to each run: this program sets it. Its own'
        ' flags go before the --.'
      )
    value = argument.split('=', 1)[1]
    if name in _PATHS:
      value = in_full(value)
      # This one may not exist yet: the run downloads to it.
      if name == 'cache_dir' and value and not value.startswith('~'):
        value = os.path.abspath(value)
    elif name in experiment_flags.USER_CODE:
      value = _code_in_full(value)
    given.append(f'--{name}={value}')
  return given


def _code_in_full(value: str) -> str:
  """The value of a flag that has names besides PATH.py:FUNCTION."""
  return in_full(value) if user_code.is_reference(value) else value


def in_full(value: str) -> str:
  """The value of a flag with the absolute path of a file that exists.

  A relative path starts from the working directory, or from the project's root,
  where the runs are started.
  """
  text, separator, function = value, '', ''
  if user_code.is_reference(value):
    text, separator, function = value.rpartition(':')
  # Unlike that of pathlib, it returns ~ of an unknown home as it is.
  path = os.path.expanduser(text)
  for folder in (pathlib.Path(), job_lib.ROOT):
    if path and (folder / path).exists():
      return f'{(folder / path).resolve()}{separator}{function}'
  return value


def check_flags(jobs: Sequence[job_lib.Job]) -> None:
  """Lets the experiments check the flags of their jobs.

  Otherwise a flag that does not exist would fail in each of the runs, and one
  that contradicts the flags of some runs would fail after those before them.

  Raises:
    JobError: If an experiment refuses its flags.
  """
  for job in jobs:
    job_settings.read(job)
