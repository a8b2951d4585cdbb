"""Finds, reads and groups the records of runs."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np
import pandas as pd

from tff_ocs.records import files
from tff_ocs.records import labels
from tff_ocs.records import metrics as metrics_lib
from tff_ocs.records import settings as settings_lib

# The columns that figures and tables of all runs need.
_NEEDED_COLUMNS = (
  'cumulative_uplink_bits',
  'participants',
  'training_loss',
)


# The part of a data set's name that says which form of it is used.
_VARIANT = re.compile(
  r', (?:(?:un)?balanced|set \d|scaled|\d+ clients held|[\d,]+ validation)'
)


class RunsError(ValueError):
  """Raised if runs are missing, or cannot be compared or averaged."""


@dataclasses.dataclass(frozen=True)
class Run:
  """One run.

  Attributes:
    path: The folder.
    settings: What `config.json` holds.
    metrics: What `metrics.csv` holds: float64 columns, see `metrics.COLUMNS`,
      with a row for each round; NaN where a cell is empty.
  """

  path: pathlib.Path
  settings: settings_lib.Settings
  metrics: pd.DataFrame

  @property
  def config(self) -> dict[str, Any]:
    """The settings as JSON values by name."""
    return self.settings.to_json()

  def evaluated(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds with a value of a metric, counted from 0, and the values."""
    values = self.metrics[name].dropna()
    return values.index.to_numpy(), values.to_numpy()


class Method(NamedTuple):
  """How the clients that send are chosen, and how they compress.

  Attributes:
    sampling: 'full', 'uniform', 'ocs', 'aocs' or another.
    expected_clients: m, the expected number of participants; `None` for full
      participation.
    compression: How updates are compressed, for example 'random 10%'; `None`
      if they are not.
    name: The name in legends and tables, if it is another than that which
      follows from the above.
  """

  sampling: str
  expected_clients: Optional[float] = None
  compression: Optional[str] = None
  name: Optional[str] = None

  @property
  def label(self) -> str:
    """The name in legends and tables."""
    return self.name or labels.method_label(*self[:3])


class Experiment(NamedTuple):
  """The task that methods are compared on.

  Attributes:
    name: The data set, and which form of it, for example 'FEMNIST set 1'.
    clients_per_round: n, the size of the cohort.
    data: What the data really is.
    data_source: The value of --data_source; empty if there is none.
  """

  name: str
  clients_per_round: int
  data: str
  data_source: str

  @property
  def title(self) -> str:
    """The name in legends and tables, which is that of the data.

    For other data than that of the paper it is, for example, 'MNIST by NIST
    writer, set 1' instead of 'FEMNIST set 1'.
    """
    if not self.is_stand_in:
      return self.name
    _, _, variant = self.name.partition(' ')
    data = _VARIANT.split(self.data)[0]
    return f'{data}, {variant}' if variant else data

  @property
  def is_stand_in(self) -> bool:
    """Whether other data than the paper's is used in one of its experiments."""
    original = labels.DATA_SETS.get(self.name.split(' ')[0].rstrip(','))
    return (
      original is not None
      and self.data_source != 'authors'
      and not self.data.startswith(original)
    )

  def __str__(self):
    in_place_of = f', in place of {self.name}' if self.is_stand_in else ''
    # A file in TFF's format need not hold TFF's data: its name says what it is.
    is_named = self.data_source in ('', 'tff')
    source = '' if is_named else f'; source: {self.data_source}'
    return (
      f'{self.title}, n={self.clients_per_round}{in_place_of}.'
      f' Data: {self.data}{source}.'
    )


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs that differ in their seeds only.

  Attributes:
    experiment: The task.
    method: The method.
    settings: All settings that have a meaning for the method, except the seed,
      the experiment and the method, by name.
    runs: The runs, by seed.
  """

  experiment: Experiment
  method: Method
  settings: dict[str, Any]
  runs: list[Run]


# Settings that a choice leaves without a meaning.
_UNUSED_SETTINGS = {
  ('sampling', 'full'): ('expected_clients', 'max_iterations', 'cohort_weight'),
  ('sampling', 'uniform'): ('max_iterations', 'cohort_weight'),
  ('sampling', 'ocs'): ('max_iterations', 'cohort_weight'),
  ('sampling', 'aocs'): ('cohort_weight',),
  ('sampling', 'threshold'): ('max_iterations',),
  ('cohort_sampler', 'none'): ('num_candidates',),
  ('cohort_sampler', 'uniform'): ('num_candidates',),
  ('cohort_sampler', 'multinomial'): ('num_candidates',),
  ('cohort_sampler', 'clustered'): ('num_candidates',),
  ('cohort_sampler', 'osmd'): ('num_candidates',),
  ('cohort_sampler', 'kvib'): ('num_candidates',),
  ('compression', 'none'): ('random_k_fraction', 'dithering_bits'),
  ('compression', 'natural'): ('random_k_fraction', 'dithering_bits'),
  ('compression', 'random_k'): ('dithering_bits',),
  ('compression', 'dithering'): ('random_k_fraction',),
  ('algorithm', 'dsgd'): ('client_epochs', 'server_learning_rate'),
}
# Settings in which methods under comparison may differ: those that define the
# method, the step sizes, which the paper tunes for each, and the length.
_SETTINGS_OF_METHOD = (
  'sampling',
  'expected_clients',
  'max_iterations',
  'cohort_weight',
  'client_costs',
  'cohort_sampler',
  'dropout_rate',
  'num_candidates',
  'compression',
  'random_k_fraction',
  'dithering_bits',
  'client_learning_rate',
  'server_learning_rate',
  'total_rounds',
  'rounds_per_eval',
  'rounds_per_client_eval',
  'uniform_skips_silent_clients',
)


def read_run(path: Union[str, os.PathLike]) -> Run:
  """Reads a run's folder.

  Args:
    path: The folder.

  Returns:
    The `Run`, with the rounds that are there so far.

  Raises:
    OSError: If the folder has no config.json or no metrics.csv.
    RecordError: If one of them cannot be read.
  """
  with naming(path):
    return _read_run(path)


@contextlib.contextmanager
def naming(folder: Union[str, os.PathLike]) -> Iterator[None]:
  """Puts the name of a run's folder in front of a `RecordError`."""
  try:
    yield
  except files.RecordError as error:
    raise files.RecordError(f'{folder}: {error}') from error


def _read_run(path):
  settings, _ = settings_lib.read_config(path)
  return Run(pathlib.Path(path), settings, metrics_lib.read_metrics(path))


def find_groups(
  path: Union[str, os.PathLike],
) -> tuple[list[Group], list[str]]:
  """Reads all finished runs below a folder, and groups them.

  The settings in `config.json` decide what a run is, not the folder's name.
  Links to folders are followed; a folder that several paths lead to is read
  once.

  Args:
    path: The folder.

  Returns:
    The groups, in the order of experiments and of legends, and for each run
    that was left out a line with its folder and the reason.

  Raises:
    RunsError: If there is no such folder, or if it holds a run twice.
  """
  path = pathlib.Path(path)
  if not path.is_dir():
    raise RunsError(f'--results_dir={path} is not a folder.')
  runs: list[Run] = []
  left_out: list[str] = []
  for folder, names in walk(path, left_out):
    if settings_lib.CONFIG not in names:
      continue
    try:
      if metrics_lib.METRICS not in names:
        raise files.RecordError(
          'the run is not finished, it has no metrics.csv'
        )
      run = _read_run(folder)
      _check_finished(run)
      _check_values(run.metrics)
    except OSError as error:
      name = pathlib.Path(error.filename or folder).name
      left_out.append(
        f'{folder} is left out: its {name}: {error.strerror or error}.'
      )
    except files.RecordError as error:
      left_out.append(f'{folder} is left out: {error}.')
    else:
      runs.append(run)
  return group_runs(runs), left_out


def walk(
  path: pathlib.Path, left_out: list[str]
) -> Iterator[tuple[pathlib.Path, set[str]]]:
  """Walks through a folder and all below it, also through links, each once.

  Args:
    path: The folder.
    left_out: A line for each folder that cannot be read is added to this list.

  Yields:
    Each folder and the names of what it holds, in the order of their names.
  """

  def leave_out(error):
    left_out.append(f'{error.filename} is left out: {error.strerror}.')

  visited = set()
  for folder, names, other_names in os.walk(
    path, onerror=leave_out, followlinks=True
  ):
    real = os.path.realpath(folder)
    if real in visited:
      names.clear()
      continue
    visited.add(real)
    yield pathlib.Path(folder), {*names, *other_names}
    # A hidden folder is one that a sweep on Ray was replacing when it ended.
    names[:] = sorted(name for name in names if not name.startswith('.'))


def group_runs(runs: Iterable[Run]) -> list[Group]:
  """Puts runs together that differ in their seeds only.

  Args:
    runs: The runs.

  Returns:
    The groups, in the order of experiments and of legends.

  Raises:
    RunsError: If two runs do not differ in their seeds either.
  """
  groups: dict[tuple, Group] = {}
  for run in sorted(runs, key=lambda run: run.settings.seed):
    settings = _meaningful(run.settings)
    experiment = Experiment(
      run.settings.experiment,
      run.settings.clients_per_round,
      run.settings.data,
      run.settings.data_source,
    )
    method = method_of(run.settings)
    key = experiment, method, _as_text(settings)
    group = groups.setdefault(key, Group(experiment, method, settings, []))
    if group.runs and group.runs[-1].settings.seed == run.settings.seed:
      one, other = sorted([group.runs[-1].path, run.path])
      raise RunsError(
        f'{one} and {other} are the same run (same settings, seed'
        f' {run.settings.seed}): a seed must not count twice.'
      )
    group.runs.append(run)
  return sorted(groups.values(), key=_order)


def _order(group):
  """Sorts groups by experiment, and as legends are ordered."""
  method = group.method
  return (
    group.experiment,
    labels.rank(method.sampling, labels.SAMPLINGS),
    method.expected_clients or 0,
    labels.rank(group.settings['compression'], labels.COMPRESSIONS),
    method.label,
    _as_text(group.settings),
  )


def _as_text(settings: Mapping[str, Any]) -> str:
  return json.dumps(settings, sort_keys=True)


def _meaningful(settings: settings_lib.Settings) -> dict[str, Any]:
  """The settings that have a meaning for a method, as `Group` has them."""
  config = settings.to_json()
  unused = {'seed', 'experiment', 'method'}
  for choice, names in _UNUSED_SETTINGS.items():
    if config[choice[0]] == choice[1]:
      unused.update(names)
  return {
    name: value
    for name, value in config.items()
    # A flag that is not given may be newer than the run.
    if value is not None and name not in unused
  }


def method_of(settings: settings_lib.Settings) -> Method:
  """The method of a run.

  Args:
    settings: The run's settings.

  Returns:
    The `Method`.
  """
  method = Method(
    # Methods without a sampling have a colour each.
    settings.sampling or settings.method,
    None if settings.sampling == 'full' else settings.expected_clients,
    labels.compression_label(settings.to_json()),
  )
  is_other_name = method.label != settings.method
  return method._replace(name=settings.method if is_other_name else None)


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
    RunsError: If they differ in the data or in how they were trained, or if a
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


def by_experiment(groups: Iterable[Group]) -> dict[Experiment, list[Group]]:
  """The groups of each experiment, in the given order."""
  of_experiment: dict[Experiment, list[Group]] = {}
  for group in groups:
    of_experiment.setdefault(group.experiment, []).append(group)
  return of_experiment


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
  """The names of the settings that differ."""
  return [
    name
    for name in dict.fromkeys([*one, *other])
    if one.get(name) != other.get(name)
  ]


def _values(names, settings):
  return ', '.join(f'{name}={settings.get(name)}' for name in names)


def _check_finished(run):
  """Checks that all rounds are there; the final weights need not be kept."""
  if len(run.metrics):
    metrics_lib.check_rounds(run.metrics)
  total = run.settings.total_rounds
  if len(run.metrics) != total:
    raise files.RecordError(
      f'the run is not finished, its metrics.csv has {len(run.metrics)} of'
      f' {total} rounds'
    )


def _check_values(metrics):
  """Checks the columns that all figures and tables need."""
  for name in _NEEDED_COLUMNS:
    if name not in metrics:
      raise files.RecordError(f'its metrics.csv has no column {name}')
  if metrics.get(score_column(metrics), pd.Series(dtype=float)).isna().all():
    raise files.RecordError(
      'its metrics.csv has no validation accuracy and no validation loss'
    )
  accuracy = metrics.get(
    'validation_accuracy', pd.Series(math.nan, index=metrics.index)
  )
  bits = metrics['cumulative_uplink_bits']
  is_wrong = {
    'cumulative_uplink_bits': ~np.isfinite(bits)
    | (bits < bits.shift(fill_value=0)),
    'participants': ~np.isfinite(metrics['participants']),
    'validation_accuracy': (accuracy < 0) | (accuracy > 1),
  }
  for name, rows in is_wrong.items():
    if rows.any():
      round_num = int(rows.idxmax())
      raise files.RecordError(
        f'its metrics.csv has {name}={metrics[name][round_num]:g} in round'
        f' {round_num}, which cannot be'
      )


def score_column(metrics: pd.DataFrame) -> str:
  """The column of `metrics.csv` by which a run is judged.

  Args:
    metrics: The metrics of the run.

  Returns:
    'validation_accuracy', or 'validation_loss' for a task without an accuracy.
  """
  has_accuracy = (
    'validation_accuracy' in metrics
    and metrics['validation_accuracy'].notna().any()
  )
  return 'validation_accuracy' if has_accuracy else 'validation_loss'


def round_of_accuracy(run: Run, accuracy: float) -> float:
  """The round whose evaluation is the first to reach a validation accuracy.

  Args:
    run: The run.
    accuracy: The validation accuracy, in [0, 1].

  Returns:
    The number of the round, counted from 0 as in `metrics.csv`, or infinity.
  """
  if 'validation_accuracy' not in run.metrics:
    return math.inf
  reached = run.metrics['validation_accuracy'] >= accuracy  # NaN is not.
  return float(reached.idxmax()) if reached.any() else math.inf
