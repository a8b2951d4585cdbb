"""The runs of the paper, those compared with them, and those of custom data.

Each file in `flags/` holds the flags of one run. Its name consists of the
experiment, the method and m: `femnist_1_aocs_m3.flags`.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

from experiments.campaigns import job
from experiments.runs import experiment_flags
from experiments.runs import user_code

EXPERIMENTS = (
  'femnist_1',
  'femnist_2',
  'femnist_3',
  'shakespeare_32',
  'shakespeare_128',
  'cifar100',
)
# The last one, which only CIFAR100 has, is uniform sampling with the step size
# of OCS.
METHODS = (*experiment_flags.SAMPLINGS, 'uniform_ocs_step')
# The experiment of data of one's own, which no file describes.
CUSTOM = 'custom'
_CUSTOM_N, _CUSTOM_M, _CUSTOM_ROUNDS = 32, 3, 151


class Published(NamedTuple):
  """The runs of one experiment that `experiments.reproduce` makes.

  Attributes:
    experiment: One of `EXPERIMENTS`.
    methods: The methods, as `read` takes them.
    repeats: The number of seeds.
    total_rounds: The number of rounds of each run.
  """

  experiment: str
  methods: tuple[str, ...]
  repeats: int
  total_rounds: int


# At least 3 seeds each: with fewer, plots.claims judges no claim.
_ON_FEMNIST = ('full', 'uniform', 'ocs_m3', 'aocs', 'threshold')
PUBLISHED = (
  Published('femnist_1', _ON_FEMNIST, 5, 151),
  Published('femnist_2', _ON_FEMNIST, 5, 151),
  Published('femnist_3', _ON_FEMNIST, 5, 151),
  Published(
    'shakespeare_32', ('full', 'uniform', 'aocs', 'threshold_m2'), 3, 151
  ),
  Published(
    'shakespeare_128', ('full', 'uniform_m4', 'aocs', 'threshold_m4'), 3, 151
  ),
  # The paper's 1,001 rounds take days.
  Published(
    'cifar100', ('full', 'uniform', 'uniform_ocs_step', 'aocs'), 3, 301
  ),
)

_FOLDER = pathlib.Path(__file__).parents[1] / 'flags'


def split_method(text: str) -> tuple[str, Optional[float]]:
  """Splits 'aocs_m3' into 'aocs' and 3; m is `None` if the text has none."""
  match = re.fullmatch(r'(.*)_m(\d+(?:\.\d+)?)', text)
  if match is None or user_code.is_reference(text):
    return text, None
  return match.group(1), float(match.group(2))


def read(
  experiment: str,
  methods: Sequence[str],
  *,
  expected_clients: Optional[Sequence[float]] = None,
  clients_per_round: Optional[int] = None,
) -> list[job.Job]:
  """Reads the runs of an experiment.

  Args:
    experiment: One of `EXPERIMENTS`, 'paper' for all of them, or `CUSTOM`,
      whose m is 3.
    methods: Some of `METHODS`, each with or without one m: 'aocs_m3', 'aocs';
      or PATH.py:FUNCTION for a scheme of one's own, which has the other flags
      of AOCS.
    expected_clients: The values of m of the methods without one, instead of the
      paper's.
    clients_per_round: n, instead of the paper's.

  Returns:
    The jobs, without a seed, by experiment, method as given, and m. Their names
    are those of the files; an n that is not the paper's is added to them:
    'femnist_1_n16_aocs_m3'. A run with an m or n of its own has the other flags
    of the method's first run. The data source, which no file holds, comes first
    among the flags, so that it is the first setting that is compared with a run
    in a folder.

  Raises:
    JobError: If the experiment does not have one of the methods, or if the runs
      of two methods would have the same name.
  """
  split = [split_method(text) for text in methods]
  if experiment == CUSTOM:
    runs = [
      _build_custom(method, m, clients_per_round)
      for method, of_method in split
      for m in _choose_m(method, of_method, expected_clients)
    ]
    return job.once(runs)
  experiments = EXPERIMENTS if experiment == 'paper' else (experiment,)
  for method, _ in split:
    if not any(_find_files(name, method, None) for name in experiments):
      raise job.JobError(f'{experiment} has no runs of the method {method}.')
  runs = [
    _build_run(name, method, m, path, clients_per_round)
    for name in experiments
    for method, of_method in split
    for m, path in _find_files(
      name, method, expected_clients if of_method is None else [of_method]
    )
  ]
  return job.once(runs)


def _find_files(experiment, method, expected_clients):
  """Pairs of an m (`None` for full participation) and the file of its run."""
  of_file = 'aocs' if user_code.is_reference(method) else method
  pattern = re.compile(rf'{experiment}_{of_file}(?:_m(\d+))?')
  files = {}
  for path in _FOLDER.glob('*.flags'):
    match = pattern.fullmatch(path.stem)
    if match:
      files[match.group(1) and int(match.group(1))] = path
  if not files or method == 'full' or expected_clients is None:
    return sorted(files.items())
  first = files[min(files)]
  return [(m, files.get(m, first)) for m in sorted(expected_clients)]


def _build_run(experiment, method, m, path, clients_per_round) -> job.Job:
  lines = map(str.strip, path.read_text(encoding='utf-8').splitlines())
  flags = [line for line in lines if line and not line.startswith('#')]
  name = experiment
  if clients_per_round is not None:
    of_n = f'--clients_per_round={clients_per_round}'
    if of_n not in flags:
      flags.append(of_n)
      name += f'_n{clients_per_round}'
  name += f'_{_short(method)}'
  if user_code.is_reference(method):
    flags.append(f'--sampling={method}')
  if m is not None:
    name += f'_m{m:g}'
    if f'--expected_clients={m:g}' not in flags:
      flags.append(f'--expected_clients={m:g}')
  return job.Job(name, experiment.split('_')[0], ('--data_source=tff', *flags))


def _choose_m(method, of_method, expected_clients):
  """The values of m of a method with data of one's own."""
  if method not in experiment_flags.SAMPLINGS and not user_code.is_reference(
    method
  ):
    raise job.JobError(f'{CUSTOM} has no runs of the method {method}.')
  if method == 'full':
    return [None]
  if of_method is not None:
    return [of_method]
  return sorted(expected_clients or [_CUSTOM_M])


def _build_custom(method, m, clients_per_round) -> job.Job:
  name, flags = CUSTOM, []
  if clients_per_round is not None:
    name += f'_n{clients_per_round}'
  name += f'_{_short(method)}'
  if m is not None:
    name += f'_m{m:g}'
    flags.append(f'--expected_clients={m:g}')
  return job.Job(
    name,
    CUSTOM,
    (
      f'--sampling={method}',
      f'--total_rounds={_CUSTOM_ROUNDS}',
      f'--clients_per_round={clients_per_round or _CUSTOM_N}',
      *flags,
    ),
  )


def _short(method: str) -> str:
  """The method, in names: of a file, its name and that of the function."""
  is_code = user_code.is_reference(method)
  return user_code.short_name(method) if is_code else method
