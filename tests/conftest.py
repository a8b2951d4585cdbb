"""Runs every test in one TFF worker that the package itself manages."""

import functools
import gc
import signal
import sys

import pytest
import tensorflow_federated as tff


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
