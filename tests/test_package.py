"""Tests of `import tff_ocs`: its names, and its lack of side effects."""

import json
import subprocess
import sys

import pytest

import tff_ocs

_CHILD = """
import json, os, sys
os.environ.pop('TF_CPP_MIN_LOG_LEVEL', None)
found = {}
import tff_ocs
from tff_ocs import probabilities
found['known'] = sorted(set(tff_ocs.__all__) - set(dir(tff_ocs)))
found['p'] = probabilities.optimal_probabilities([5, 5, 1, 1], 2).tolist()
found['cohort'] = tff_ocs.cohorts.UniformCohorts({'a': 1}, 1, 0).sample(0)[0]
found['level_before_tff'] = os.environ.get('TF_CPP_MIN_LOG_LEVEL')
found['early'] = sorted(
  {'tensorflow', 'tensorflow_federated', 'jax'} & set(sys.modules)
)
found['of_docstrings'] = [
  tff_ocs.communication.uplink_bits.__name__,
  tff_ocs.improvement.build.__name__,
  tff_ocs.message_bits.update_bits.__name__,
  tff_ocs.simple_fedavg.client_seed.__name__,
  tff_ocs.aggregator.__name__,
  tff_ocs.secure_sums.SecureScalarSumFactory.__name__,
  tff_ocs.compression.RandomKFactory.__name__,
  tff_ocs.tasks.__name__,
  tff_ocs.records.__name__,
  tff_ocs.execution.use_local_context.__name__,
]
found['classes'] = tff_ocs.ClientSamplingFactory.__name__
found['late'] = 'tensorflow' in sys.modules
found['level'] = os.environ.get('TF_CPP_MIN_LOG_LEVEL')
print(json.dumps(found))
"""


@pytest.fixture(scope='module')
def child():
  """Returns the findings of a process that imports nothing else."""
  result = subprocess.run(
    [sys.executable, '-c', _CHILD], capture_output=True, text=True, check=True
  )
  return json.loads(result.stdout.splitlines()[-1])


def test_numpy_modules_are_imported_without_tensorflow(child):
  assert child['early'] == []
  assert child['cohort'] == ['a']
  assert child['p'] == pytest.approx([5 / 6, 5 / 6, 1 / 6, 1 / 6])


def test_public_names_need_no_further_import(child):
  assert child['known'] == []
  assert child['of_docstrings'] == [
    'uplink_bits',
    'build',
    'update_bits',
    'client_seed',
    'tff_ocs.aggregator',
    'SecureScalarSumFactory',
    'RandomKFactory',
    'tff_ocs.tasks',
    'tff_ocs.records',
    'use_local_context',
  ]
  assert child['classes'] == 'ClientSamplingFactory'


def test_import_leaves_the_log_level_alone(child):
  assert child['late'] and child['level_before_tff'] is None
  # jax, which TFF imports, sets it to 1 where it is not set.
  assert child['level'] in (None, '1')


def test_every_public_name_exists():
  for name in tff_ocs.__all__:
    assert getattr(tff_ocs, name) is not None
  assert tff_ocs.__version__.count('.') == 2


def test_unknown_name():
  with pytest.raises(AttributeError, match="'tff_ocs' has no attribute 'ocs'"):
    _ = tff_ocs.ocs
