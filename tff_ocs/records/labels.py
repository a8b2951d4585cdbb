"""The names of experiments and methods in legends and tables.

A record names its experiment and its method. Records of earlier versions do
not, and the experiment programs leave the names to this module: both are
derived from the settings here.
"""

from collections.abc import Mapping
from typing import Any
from typing import Optional

# In the order of legends and tables; samplings that are not listed come last.
SAMPLINGS = {
  'full': 'full participation',
  'uniform': 'uniform',
  'ocs': 'OCS',
  'aocs': 'AOCS',
  'threshold': 'one round trip',
}
# In the order of legends and tables.
COHORT_SAMPLERS = {
  'uniform': 'uniform cohorts',
  'multinomial': 'MD',
  'clustered': 'clustered',
  'power_of_choice': 'Power-of-Choice',
  'osmd': 'OSMD',
  'kvib': 'K-Vib',
}
# In the order of legends and tables, with the setting that sets the degree.
COMPRESSIONS = {
  'none': None,
  'natural': 'natural compression',
  'dithering': '{dithering_bits}-bit dithering',
  'random_k': 'random {percentage:g}%',
}
# The paper's data sets: how the names of its experiments and those of the data
# begin.
DATA_SETS = {
  'FEMNIST': 'Federated EMNIST',
  'Shakespeare': 'Federated Shakespeare',
  'CIFAR100': 'Federated CIFAR-100',
}


def rank(name: str, order: Mapping[str, Any]) -> tuple[int, str]:
  """The place of a name in an order; unknown names follow, alphabetically."""
  names = list(order)
  return (names.index(name), '') if name in order else (len(names), name)


def compression_label(config: Mapping[str, Any]) -> Optional[str]:
  """The name of a run's compression; `None` if updates are not compressed.

  Args:
    config: The settings `compression`, `dithering_bits` and
      `random_k_fraction`.

  Returns:
    The name, for example 'random 10%'. A compression that this module does not
    know is called by its setting.
  """
  compression = config['compression']
  if compression not in COMPRESSIONS:
    return compression
  label = COMPRESSIONS[compression]
  if label is None:
    return None
  percentage = 100 * config.get('random_k_fraction', 0)
  return label.format_map({**config, 'percentage': percentage})


def sampling_label(sampling: str) -> str:
  """The name of a sampling, without the digest of the file of one's own scheme.

  Args:
    sampling: The setting: a value of `--sampling`, or, of a scheme of one's
      own, for example 'my_scheme.py:build@sha256:...'.

  Returns:
    The name, for example 'AOCS' or 'my_scheme.py:build'.
  """
  return SAMPLINGS.get(sampling, _without_digest(sampling))


def _without_digest(setting):
  return setting.split('@sha256:')[0]


def method_label(
  sampling: str, expected_clients: Optional[float], compression: Optional[str]
) -> str:
  """The name of a method, for example 'AOCS, m=3, random 10%'.

  Args:
    sampling: The sampling, as of `--sampling`.
    expected_clients: m; `None` for full participation.
    compression: As of `compression_label`.

  Returns:
    The name.
  """
  parts = [sampling_label(sampling)]
  if expected_clients is not None:
    parts.append(f'm={expected_clients:g}')
  if compression is not None:
    parts.append(compression)
  return ', '.join(parts)


def sampler_label(
  cohort_sampler: str, clients_per_round: int, method: str
) -> str:
  """The name of a method with a cohort sampler, for example 'MD, n=3'.

  Args:
    cohort_sampler: As of `--cohort_sampler`, but not 'none'; or, of a sampler
      of one's own, for example 'my_sampler.py:build@sha256:...'.
    clients_per_round: n.
    method: The name of the method with the cohorts as given; full participation
      is not named.

  Returns:
    The name.
  """
  name = COHORT_SAMPLERS.get(cohort_sampler, _without_digest(cohort_sampler))
  label = f'{name}, n={clients_per_round}'
  full = SAMPLINGS['full']
  rest = method[len(full) :] if method.startswith(full) else f' + {method}'
  return label + rest


def experiment_label(config: Mapping[str, Any]) -> Optional[str]:
  """The name of the experiment of a record that has none.

  Each of the experiment programs has a flag that the others lack.

  Args:
    config: What `config.json` holds.

  Returns:
    The name, for example 'FEMNIST set 1'; `None` if the settings are not those
    of an experiment program.
  """
  custom = [config.get(f'unbalanced_{name}') for name in 'sab']
  if None not in custom:
    return 'FEMNIST s={}, a={}, b={}'.format(
      *(f'{v:g}' if isinstance(v, (int, float)) else v for v in custom)
    )
  if 'unbalanced_set' in config:
    number = config['unbalanced_set']
    return 'FEMNIST, balanced' if number == 'none' else f'FEMNIST set {number}'
  if 'sequence_length' in config:
    return 'Shakespeare'
  return 'CIFAR100' if 'scale_inputs' in config else None
