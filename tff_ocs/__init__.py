"""Optimal client sampling for federated learning, on TensorFlow Federated.

Names are imported when they are first used, so that `tff_ocs.probabilities`,
the formulas in NumPy, loads without TensorFlow.
"""

import importlib
import typing

from tff_ocs._version import __version__

if typing.TYPE_CHECKING:
  from tff_ocs import aggregator
  from tff_ocs import cohort_weight
  from tff_ocs import communication
  from tff_ocs import compression
  from tff_ocs import execution
  from tff_ocs import improvement
  from tff_ocs import message_bits
  from tff_ocs import probabilities
  from tff_ocs import records
  from tff_ocs import schemes
  from tff_ocs import secure_sums
  from tff_ocs import simple_fedavg
  from tff_ocs import tasks
  from tff_ocs.aggregator import ClientSamplingFactory
  from tff_ocs.cohort_weight import set_cohort_weight
  from tff_ocs.schemes import ApproximateOptimalSampling
  from tff_ocs.schemes import FullParticipation
  from tff_ocs.schemes import OptimalSampling
  from tff_ocs.schemes import ThresholdSampling
  from tff_ocs.schemes import UniformSampling
  from tff_ocs.simple_fedavg import build_distributed_sgd_process
  from tff_ocs.simple_fedavg import build_federated_averaging_process
  from tff_ocs.unweighted import as_unweighted_aggregator

# The modules of the public classes and functions.
_MODULES = {
  'ApproximateOptimalSampling': 'schemes',
  'ClientSamplingFactory': 'aggregator',
  'FullParticipation': 'schemes',
  'OptimalSampling': 'schemes',
  'ThresholdSampling': 'schemes',
  'UniformSampling': 'schemes',
  'as_unweighted_aggregator': 'unweighted',
  'build_distributed_sgd_process': 'simple_fedavg',
  'build_federated_averaging_process': 'simple_fedavg',
  'set_cohort_weight': 'cohort_weight',
}

__all__ = (
  'ApproximateOptimalSampling',
  'ClientSamplingFactory',
  'FullParticipation',
  'OptimalSampling',
  'ThresholdSampling',
  'UniformSampling',
  '__version__',
  'aggregator',
  'as_unweighted_aggregator',
  'build_distributed_sgd_process',
  'build_federated_averaging_process',
  'cohort_weight',
  'communication',
  'compression',
  'execution',
  'improvement',
  'message_bits',
  'probabilities',
  'records',
  'schemes',
  'secure_sums',
  'set_cohort_weight',
  'simple_fedavg',
  'tasks',
)


def __getattr__(name: str) -> typing.Any:
  """Imports a public name when it is first used."""
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  if name != 'probabilities':
    importlib.import_module('tff_ocs._requirements').check()
  if name not in _MODULES:
    return importlib.import_module(f'tff_ocs.{name}')
  value = getattr(importlib.import_module(f'tff_ocs.{_MODULES[name]}'), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
