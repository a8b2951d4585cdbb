"""The settings of a run: typed, and compared as values. See `Settings`."""

import dataclasses
import json
import math
import os
import pathlib
import typing
from collections.abc import Mapping
from typing import Any
from typing import Optional
from typing import Union

from tff_ocs.records import files
from tff_ocs.records import labels

CONFIG = 'config.json'

# Entries of config.json that do not influence how a run is trained. The
# programs record only `environment`; earlier versions recorded more of them.
NOT_SETTINGS = (
  'cache_dir',
  'environment',
  'log_to',
  'output_dir',
  'overwrite',
  'record_norms',
  'resume',
  'rounds_per_checkpoint',
  'run_name',
  'worker_address',
)


# (name, recorded value, value that is asked for)
_Difference = tuple[str, Any, Any]


@dataclasses.dataclass(frozen=True)
class Settings:
  """How a run was trained, and on which data.

  Any program can write a run that figures and tables show: it needs the
  settings without a default. A default says how runs were trained before the
  setting was recorded. A new flag of the programs therefore gets a field with
  such a default, so that earlier runs are still recognised.

  Attributes:
    experiment: The name of the experiment, for example 'FEMNIST set 1'. Methods
      are compared within one experiment.
    method: The name of the method, for example 'AOCS, m=3'.
    data: What the data really is.
    seed: The seed.
    total_rounds: The number of rounds, at least 1.
    clients_per_round: n, the size of the cohort, at least 1.
    data_source: The value of --data_source, if there is one.
    sampling: The value of --sampling, or the name of another sampling. Methods
      with the same sampling have the same colour.
    expected_clients: m, the expected number of participants.
    client_learning_rate: The clients' step size.
    server_learning_rate: The server's step size.
    algorithm: 'fedavg', 'dsgd' or another.
    availability: The probability that a client is available, or the SHA-256 of
      the file of these probabilities; `None` if all clients are.
    client_costs: How clients' uplinks differ in cost; 'none' if they do not.
    client_weighting: 'num_examples' or 'uniform'.
    cohort_weight: 'known' if threshold sampling is given the total weight of
      each cohort, otherwise 'unknown'.
    cohort_sampler: The sampler of the cohorts; 'none' for uniform cohorts that
      are divided by their own weight.
    compression: How updates are compressed; 'none' if they are not.
    data_name: The value of --data_name.
    dithering_bits: The bits an entry with compression 'dithering'.
    dropout_rate: The probability with which a client is lost before it reports
      anything, and again before its update if it reports its norm first.
    evaluate_clients: Whether single clients were recorded.
    holdout_fraction: The fraction of clients held out to validate on.
    num_candidates: The number of candidates of 'power_of_choice'.
    random_k_fraction: The fraction of entries sent with 'random_k'.
    rounds_per_client_eval: The rounds from one evaluation of single clients to
      the next; `None` if they were evaluated after the last round only.
    simulate_devices: Whether the time on phones was simulated.
    uniform_skips_silent_clients: Whether clients that do not send were not
      trained.
    validation_subset: The number of validation examples used; `None` is all.
    others: The values of all other settings by name, such as the batch size and
      the flags that only one program has.
  """

  experiment: str
  method: str
  data: str
  seed: int
  total_rounds: int
  clients_per_round: int
  data_source: str = ''
  sampling: str = ''
  expected_clients: Optional[float] = None
  client_learning_rate: Optional[float] = None
  server_learning_rate: Optional[float] = None
  algorithm: str = 'fedavg'
  availability: Union[float, str, None] = None
  client_costs: str = 'none'
  client_weighting: str = 'num_examples'
  cohort_sampler: str = 'none'
  cohort_weight: str = 'known'
  compression: str = 'none'
  data_name: Optional[str] = None
  dithering_bits: int = 4
  dropout_rate: float = 0.0
  evaluate_clients: bool = False
  holdout_fraction: Optional[float] = None
  num_candidates: Optional[int] = None
  random_k_fraction: float = 0.1
  rounds_per_client_eval: Optional[int] = None
  simulate_devices: bool = False
  uniform_skips_silent_clients: bool = False
  validation_subset: Optional[int] = None
  others: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    """Checks the types and the ranges.

    Raises:
      RecordError: If a value is not of its type or range.
    """
    for name, hint in _TYPES.items():
      _check(name, getattr(self, name), hint)
    for name in ('total_rounds', 'clients_per_round'):
      if getattr(self, name) < 1:
        raise files.RecordError(
          f'{name} must be at least 1, found {getattr(self, name)}'
        )

  @classmethod
  def from_json(cls, config: Mapping[str, Any]) -> 'Settings':
    """Reads the settings from what `config.json` holds.

    Args:
      config: JSON values by name. Entries that are no settings are ignored.
        Where the experiment or the method has no name, it is derived from the
        other settings, see `labels`.

    Returns:
      The `Settings`.

    Raises:
      RecordError: If a setting is missing or is not of its type or range.
    """
    config = {k: v for k, v in config.items() if k not in NOT_SETTINGS}
    known = {
      name: _as_type(config[name], hint)
      for name, hint in _TYPES.items()
      if name in config
    }
    others = {k: v for k, v in config.items() if k not in known}
    if known.get('experiment') is None:
      known['experiment'] = labels.experiment_label(config)
    has_method = known.get('method') is not None
    if 'sampling' in known and not has_method:
      known['method'] = ''
    for name in _TYPES:
      if name not in _DEFAULTS and known.get(name) is None:
        raise files.RecordError(f'it has no {name}')
    settings = cls(**known, others=others)
    if has_method:
      return settings
    label = labels.method_label(
      settings.sampling,
      None if settings.sampling == 'full' else settings.expected_clients,
      labels.compression_label(settings.to_json()),
    )
    if settings.cohort_weight == 'unknown':
      label += ', unknown weight'
    if settings.client_costs != 'none':
      label += ', costs'
    if settings.dropout_rate > 0:
      label += f', dropouts {100 * settings.dropout_rate:g}%'
    if settings.cohort_sampler != 'none':
      label = labels.sampler_label(
        settings.cohort_sampler, settings.clients_per_round, label
      )
    return dataclasses.replace(settings, method=label)

  def to_json(self) -> dict[str, Any]:
    """The settings as `config.json` has them, JSON values by name."""
    known = {name: getattr(self, name) for name in _TYPES}
    return {**known, **self.others}

  def differences(self, asked: Mapping[str, Any]) -> list[_Difference]:
    """Compares the run with settings that are asked for.

    Args:
      asked: Values by name; 42 is 42.0, but `True` is neither 1 nor 'true'.
        A setting that the run does not have counts as `None`.

    Returns:
      The settings in `asked` that the run has with another value: their names,
      the recorded values and those that are asked for.
    """
    recorded = self.to_json()
    return [
      (name, recorded.get(name), value)
      for name, value in asked.items()
      if not _is_same(recorded.get(name), value)
    ]


# Without `others`, which may hold any JSON value.
_TYPES = typing.get_type_hints(Settings)
del _TYPES['others']
# The settings that not all records have, with their defaults.
_DEFAULTS = {
  field.name: field.default
  for field in dataclasses.fields(Settings)
  if field.default is not dataclasses.MISSING
}


def read_config(
  path: Union[str, os.PathLike],
) -> tuple[Settings, dict[str, Any]]:
  """Reads a run's `config.json`.

  Args:
    path: The run's folder.

  Returns:
    The `Settings`, and the environment that the run was started in.

  Raises:
    OSError: If the file is missing or cannot be read.
    RecordError: If it is not the `config.json` of a run.
  """
  path = pathlib.Path(path) / CONFIG
  try:
    config = json.loads(path.read_text(encoding='utf-8-sig'))
  except (ValueError, RecursionError) as error:
    raise files.RecordError(f'its {CONFIG} is not JSON: {error}') from error
  if not isinstance(config, dict):
    raise files.RecordError(
      f'its {CONFIG} holds {_show(config)}, but must hold settings by name'
    )
  try:
    settings = Settings.from_json(config)
  except files.RecordError as error:
    raise files.RecordError(f'its {CONFIG} is not of a run: {error}') from error
  environment = config.get('environment')
  return settings, environment if isinstance(environment, dict) else {}


def write_config(
  path: Union[str, os.PathLike],
  settings: Settings,
  environment: Mapping[str, Any],
) -> None:
  """Writes a run's `config.json` atomically.

  Args:
    path: The run's folder.
    settings: The settings.
    environment: The versions of packages and so on, JSON values by name.

  Raises:
    OSError: If the file cannot be written.
  """
  config = {**settings.to_json(), 'environment': environment}
  with files.replacing(pathlib.Path(path) / CONFIG) as partial:
    partial.write_text(json.dumps(config, indent=2) + '\n', encoding='utf-8')


def _check(name, value, hint):
  """Checks that a value is one of the types of a hint, and finite."""
  types = typing.get_args(hint) or (hint,)
  if isinstance(value, bool):  # It is an integer, too.
    is_good = bool in types
  elif isinstance(value, (int, float)) and float in types:
    is_good = math.isfinite(value)
  else:
    is_good = isinstance(value, types)
  if not is_good:
    allowed = ' or '.join(_TYPE_NAMES[type_] for type_ in types)
    raise files.RecordError(f'{name} must be {allowed}, found {_show(value)}')


_TYPE_NAMES = {
  str: 'a string',
  int: 'an integer',
  float: 'a finite number',
  bool: 'true or false',
  type(None): 'null',
}


def _show(value) -> str:
  text = json.dumps(value, default=repr)
  return text if len(text) <= 40 else f'{text[:40]}...'


def _as_type(value, hint):
  """An integer for 42.0 where an integer is due; all else is left as it is."""
  is_integer = int in (typing.get_args(hint) or (hint,))
  if is_integer and isinstance(value, float) and value.is_integer():
    return int(value)
  return value


def _is_same(one, other) -> bool:
  if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
    return len(one) == len(other) and all(map(_is_same, one, other))
  return isinstance(one, bool) == isinstance(other, bool) and one == other
