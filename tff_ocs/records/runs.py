"""Finds, reads and groups the folders of runs."""

import csv
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np


class RunsError(ValueError):
  """Raised if runs are missing, or cannot be compared or averaged."""


@dataclasses.dataclass(frozen=True)
class Run:
  """One run.

  Attributes:
    path: The folder.
    config: What `config.json` holds.
    metrics: The columns of `metrics.csv` by name, float64 arrays of shape
      [num_rounds]; NaN where a cell is empty.
  """

  path: pathlib.Path
  config: dict[str, Any]
  metrics: dict[str, np.ndarray]

  def evaluated(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds with a value of a metric, as indices, and the values."""
    values = self.metrics[name]
    (rounds,) = np.nonzero(~np.isnan(values))
    return rounds, values[rounds]


class Method(NamedTuple):
  """Who sends its update.

  Attributes:
    sampling: 'full', 'uniform', 'ocs' or 'aocs'.
    expected_clients: m, the expected number of participants; `None` for full
      participation.
    compression: How updates are compressed, for example 'random-k 10 %'; `None`
      if they are not.
  """

  sampling: str
  expected_clients: Optional[float] = None
  compression: Optional[str] = None

  @property
  def label(self) -> str:
    """The name in legends and tables."""
    m = self.expected_clients
    return (
      _LABELS[self.sampling]
      + ('' if m is None else f', m={m:g}')
      + ('' if self.compression is None else f', {self.compression}')
    )


# In the order of legends and tables.
_LABELS = {
  'full': 'full participation',
  'uniform': 'uniform',
  'ocs': 'OCS',
  'aocs': 'AOCS',
}


# Likewise; with the value of the setting that says how much.
_COMPRESSIONS = {
  'none': None,
  'natural': 'natural compression',
  'dithering': '{dithering_bits}-bit dithering',
  'random_k': 'random {random_k_fraction:.0%}',
}


class Experiment(NamedTuple):
  """What methods are compared on.

  Attributes:
    name: The data set, and which form of it, for example 'FEMNIST set 1'.
    clients_per_round: n, the size of the cohort.
    data: What the data really is, as recorded with the run.
    data_source: The value of --data_source.
  """

  name: str
  clients_per_round: int
  data: str
  data_source: str

  def __str__(self):
    return (
      f'{self.name}, n={self.clients_per_round}. Data: {self.data}; source:'
      f' {self.data_source}.'
    )


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs that differ in nothing but their seeds.

  Attributes:
    experiment: What they were trained on.
    method: Who sent its update.
    settings: All settings that have a meaning for the method, but the seed.
    runs: The runs, by seed.
  """

  experiment: Experiment
  method: Method
  settings: dict[str, Any]
  runs: list[Run]


# What says nothing of how a run is trained. Some versions recorded more of it.
_NOT_SETTINGS = (
  'seed',
  'environment',
  'cache_dir',
  'output_dir',
  'overwrite',
  'resume',
  'rounds_per_checkpoint',
  'run_name',
)
_UNUSED_SETTINGS = {
  'full': ('expected_clients', 'max_iterations'),
  'uniform': ('max_iterations',),
  'ocs': ('max_iterations',),
  'aocs': (),
  'none': ('random_k_fraction', 'dithering_bits'),
  'natural': ('random_k_fraction', 'dithering_bits'),
  'random_k': ('dithering_bits',),
  'dithering': ('random_k_fraction',),
  'fedavg': (),
  'dsgd': ('client_epochs', 'server_learning_rate'),
}
# What runs were before it was recorded.
_FORMER_SETTINGS = {
  'algorithm': 'fedavg',
  'client_weighting': 'num_examples',
  'compression': 'none',
  'uniform_skips_silent_clients': False,
}
# In which methods under comparison may differ: what they are, their step sizes,
# which the paper tunes for each, and how long they were trained.
_SETTINGS_OF_METHOD = (
  'sampling',
  'expected_clients',
  'max_iterations',
  'compression',
  'random_k_fraction',
  'dithering_bits',
  'client_learning_rate',
  'server_learning_rate',
  'total_rounds',
  'rounds_per_eval',
  'uniform_skips_silent_clients',
)


def read_run(path: Union[str, os.PathLike]) -> Run:
  """Reads a run's folder.

  Args:
    path: The folder.

  Returns:
    The `Run`, with the rounds that are there.

  Raises:
    FileNotFoundError: If the folder is not one of a run.
  """
  path = pathlib.Path(path)
  config = {
    **_FORMER_SETTINGS,
    **json.loads((path / 'config.json').read_text()),
  }
  with (path / 'metrics.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  names = rows[0] if rows else []
  metrics = {
    name: np.array([float(row[name] or 'nan') for row in rows])
    for name in names
  }
  return Run(path, config, metrics)


def find_groups(
  path: Union[str, os.PathLike],
) -> tuple[list[Group], list[str]]:
  """Reads all finished runs below a folder, and groups them.

  What a run is follows from its `config.json`, not from its folder's name.

  Args:
    path: The folder.

  Returns:
    The groups, in the order of experiments and of legends, and for each run
    that was left out a line that says why.

  Raises:
    RunsError: If there is no such folder, or the same run is there twice.
  """
  path = pathlib.Path(path)
  if not path.is_dir():
    raise RunsError(f'--results_dir={path} is not a folder.')
  runs, left_out = [], []
  for config_path in sorted(path.rglob('config.json')):
    folder = config_path.parent
    # What a sweep on Ray was replacing when it was killed.
    if folder.name.startswith('.'):
      continue
    try:
      if not (folder / 'metrics.csv').exists():
        raise ValueError('the run is not finished, it has no metrics.csv.')
      run = read_run(folder)
      _describe(run.config)
      _check_finished(run)
    except (OSError, ValueError) as error:
      left_out.append(f'{folder} is left out: {error}')
      continue
    runs.append(run)
  return group_runs(runs), left_out


def group_runs(runs: Sequence[Run]) -> list[Group]:
  """Puts runs together that differ in nothing but their seeds.

  Args:
    runs: The runs.

  Returns:
    The groups, in the order of experiments and of legends.

  Raises:
    RunsError: If two runs do not differ in their seeds either.
    ValueError: If a run's config lacks what tells the experiment.
  """
  groups = {}
  for run in runs:
    experiment, method = _describe(run.config)
    unused = {
      name
      for choice in ('sampling', 'compression', 'algorithm')
      for name in _UNUSED_SETTINGS[run.config[choice]]
    }
    settings = {
      name: value
      for name, value in run.config.items()
      # A flag that is not given may be newer than the run.
      if value is not None and name not in _NOT_SETTINGS and name not in unused
    }
    key = json.dumps(settings, sort_keys=True)
    group = groups.setdefault(key, Group(experiment, method, settings, []))
    for other in group.runs:
      if other.config['seed'] == run.config['seed']:
        raise RunsError(
          f'{other.path} and {run.path} are the same run (same settings, seed'
          f' {run.config["seed"]}): a seed must not count twice.'
        )
    group.runs.append(run)
  for group in groups.values():
    group.runs.sort(key=lambda run: run.config['seed'])
  order = list(_LABELS)
  return sorted(
    groups.values(),
    key=lambda group: (
      group.experiment,
      order.index(group.method.sampling),
      group.method.expected_clients or 0,
      list(_COMPRESSIONS).index(group.settings['compression']),
      json.dumps(group.settings, sort_keys=True),
    ),
  )


def common_settings(group: Group) -> dict[str, Any]:
  """The settings in which methods under comparison must not differ."""
  return {
    name: value
    for name, value in group.settings.items()
    if name not in _SETTINGS_OF_METHOD
  }


def check_comparable(groups: Sequence[Group]) -> None:
  """Checks that groups can be shown side by side, each method once.

  Args:
    groups: The groups.

  Raises:
    RunsError: If they differ in what they were trained on or how, or if a
      method is there with several settings.
  """
  for i, group in enumerate(groups):
    for other in groups[:i]:
      if other.method == group.method:
        names = differing(other.settings, group.settings)
        why = f'both are {group.method.label}'
      else:
        names = differing(common_settings(other), common_settings(group))
        why = 'they cannot be compared'
      if names:
        raise RunsError(
          f'{other.runs[0].path} and {group.runs[0].path} differ in'
          f' {_values(names, other.settings)}, against'
          f' {_values(names, group.settings)}: {why}. Choose by --data, or name'
          ' a folder with one kind of runs.'
        )


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """The names of the settings that differ."""
  return [
    name
    for name in dict.fromkeys([*one, *other])
    if one.get(name) != other.get(name)
  ]


def _values(names, settings):
  return ', '.join(f'{name}={settings.get(name)}' for name in names)


def _describe(config: Mapping[str, Any]) -> tuple[Experiment, Method]:
  """What a run was trained on, and how it sampled."""
  # Each of the binaries has a flag that the others lack.
  if config.get('unbalanced_s') is not None:
    values = (config[f'unbalanced_{name}'] for name in 'sab')
    name = 'FEMNIST s={:g}, a={}, b={}'.format(*values)
  elif config.get('unbalanced_set') == 'none':
    name = 'FEMNIST, balanced'
  elif 'unbalanced_set' in config:
    name = f'FEMNIST set {config["unbalanced_set"]}'
  elif 'sequence_length' in config:
    name = 'Shakespeare'
  elif 'scale_inputs' in config:
    name = 'CIFAR100'
  else:
    raise ValueError(
      'its config.json is not one of experiments.femnist, shakespeare or'
      ' cifar100.'
    )
  needed = (
    'sampling',
    'expected_clients',
    'clients_per_round',
    'data',
    'data_source',
    'seed',
    'total_rounds',
  )
  for setting in needed:
    if setting not in config:
      raise ValueError(f'its config.json has no {setting}.')
  sampling = config['sampling']
  if sampling not in _LABELS:
    raise ValueError(f'its config.json has an unknown sampling, {sampling!r}.')
  compression = config['compression']
  if compression not in _COMPRESSIONS:
    raise ValueError(
      f'its config.json has an unknown compression, {compression!r}.'
    )
  experiment = Experiment(
    name, config['clients_per_round'], config['data'], config['data_source']
  )
  return experiment, method_of(config)


def method_of(config: Mapping[str, Any]) -> Method:
  """Who sent its update in a run, and how it was compressed."""
  sampling = config['sampling']
  m = None if sampling == 'full' else config.get('expected_clients')
  compression = _COMPRESSIONS[config.get('compression', 'none')]
  if compression is not None:
    compression = compression.format(**config)
  return Method(sampling, m, compression)


def _check_finished(run):
  # Not by its final weights, which need not be kept to draw figures.
  rounds, total = run.metrics.get('round', []), run.config['total_rounds']
  if not np.array_equal(rounds, np.arange(total)):
    raise ValueError(
      f'the run is not finished, its metrics.csv has {len(rounds)} of'
      f' {total} rounds.'
    )


def rounds_to_accuracy(run: Run, accuracy: float) -> float:
  """The rounds until a validation accuracy is first reached.

  Args:
    run: The run.
    accuracy: The validation accuracy, in [0, 1].

  Returns:
    The number of rounds up to and including the one whose evaluation is the
    first to reach it, or infinity.
  """
  rounds, values = run.evaluated('validation_accuracy')
  (reached,) = np.nonzero(values >= accuracy)
  return float(rounds[reached[0]] + 1) if reached.size else float('inf')


def bits_to_accuracy(run: Run, accuracy: float) -> float:
  """The uplink bits until a validation accuracy is first reached.

  Args:
    run: The run.
    accuracy: The validation accuracy, in [0, 1].

  Returns:
    The cumulative bits at the first evaluation that reaches it, or infinity.
  """
  rounds = rounds_to_accuracy(run, accuracy)
  if rounds == float('inf'):
    return rounds
  return float(run.metrics['cumulative_uplink_bits'][int(rounds) - 1])
