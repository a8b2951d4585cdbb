"""The runs of the paper, and those of experiments.custom.

Each file in `flags/` holds the flags of one run. Its name consists of the
experiment, the sampling and m: `femnist_1_aocs_m3.flags`.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import Optional

from experiments.campaigns import job
from experiments.runs import user_code

EXPERIMENTS = (
  'femnist_1',
  'femnist_2',
  'femnist_3',
  'shakespeare_32',
  'shakespeare_128',
  'cifar100',
)
# The experiment of data of one's own, which no file describes.
CUSTOM = 'custom'
METHODS = ('full', 'uniform', 'ocs', 'aocs')
_CUSTOM_N, _CUSTOM_M, _CUSTOM_ROUNDS = 32, 3, 151

_FOLDER = pathlib.Path(__file__).parents[1] / 'flags'


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
    methods: Some of `METHODS`, or PATH.py:FUNCTION for a scheme of one's own,
      which has the other flags of AOCS.
    expected_clients: The values of m, instead of the paper's.
    clients_per_round: n, instead of the paper's.

  Returns:
    The jobs, without a seed, by experiment, method as given, and m. Their names
    are those of the files; an n that is not the paper's is added to them:
    'femnist_1_n16_aocs_m3'. A run with an m or n of its own has the other flags
    of the method's first run. The data source, which no file holds, comes first
    among the flags, so that it is the first setting that is compared with a run
    in a folder.
  """
  if experiment == CUSTOM:
    return [
      _build_custom(method, m, clients_per_round)
      for method in dict.fromkeys(methods)
      for m in (
        [None] if method == 'full' else sorted(expected_clients or [_CUSTOM_M])
      )
    ]
  experiments = EXPERIMENTS if experiment == 'paper' else (experiment,)
  return [
    _build_run(name, method, m, path, clients_per_round)
    for name in experiments
    for method in dict.fromkeys(methods)
    for m, path in _find_files(name, method, expected_clients)
  ]


def _find_files(experiment, method, expected_clients):
  """Pairs of an m (`None` for full participation) and the file of its run."""
  of_file = 'aocs' if user_code.is_reference(method) else method
  pattern = re.compile(rf'{experiment}_{of_file}(?:_m(\d+))?')
  files = {}
  for path in _FOLDER.glob('*.flags'):
    match = pattern.fullmatch(path.stem)
    if match:
      files[match.group(1) and int(match.group(1))] = path
  if method == 'full' or expected_clients is None:
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
  """The method, in names: of a file, only the file's name."""
  if user_code.is_reference(method):
    return pathlib.Path(method.rpartition(':')[0]).stem
  return method
