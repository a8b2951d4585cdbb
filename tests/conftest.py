"""Runs every test in one TFF worker that the package itself manages."""

import signal

import pytest
import tensorflow_federated as tff

from tff_ocs import execution

# A test that needs TFF's own context says so.
tff.test.set_no_default_context()


# A script's background processes ignore Ctrl-C, and so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='session', autouse=True)
def local_context():
  with execution.use_local_context() as context:
    yield context
