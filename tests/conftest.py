"""Runs every test in one TFF worker that the package itself manages."""

import functools
import gc
import hashlib
import signal
import sys

import pytest
import tensorflow_federated as tff
from tensorflow_federated.python.core.environments.tensorflow_backend import (
  compiled_computation_transformations as transformations,
)


def _untraced(compile_computation):
  """Hides TFF's compiler, of which nothing is measured, from coverage.

  To be traced would cost it more time than all that is measured.
  """

  @functools.wraps(compile_computation)
  def compile_untraced(computation):
    trace = sys.gettrace()
    sys.settrace(None)
    try:
      return compile_computation(computation)
    finally:
      sys.settrace(trace)

  return compile_untraced


# The contexts of the package take the compiler from there when they are
# imported.
tff.backends.native.desugar_and_transform_to_native = _untraced(
  tff.backends.native.desugar_and_transform_to_native
)

from tff_ocs import execution  # noqa: E402


def _remembered(optimize):
  """Has TensorFlow optimise each graph once.

  Three quarters of the graphs were in an earlier computation of the tests.
  """
  optimized = {}

  @functools.wraps(optimize)
  def optimize_once(computation, config_proto):
    digest = hashlib.sha256()
    for proto in (computation.proto, config_proto):
      digest.update(proto.SerializeToString(deterministic=True))
    key = digest.digest()
    if key not in optimized:
      optimized[key] = optimize(computation, config_proto)
    return optimized[key]

  return optimize_once


transformations.optimize_tensorflow_comp = _remembered(
  transformations.optimize_tensorflow_comp
)

# A test that needs TFF's own context says so.
tff.test.set_no_default_context()


# A script's background processes ignore Ctrl-C, and so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
  # All modules are imported now, and the collector need not visit them.
  gc.collect()
  gc.freeze()


@pytest.fixture(scope='session', autouse=True)
def local_context():
  with execution.use_local_context() as context:
    yield context
