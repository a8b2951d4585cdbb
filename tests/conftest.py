"""Runs every test in one TFF worker that the package itself manages."""

import pytest
import tensorflow_federated as tff

from tff_ocs import execution

# A test that needs TFF's own context says so.
tff.test.set_no_default_context()


@pytest.fixture(scope='session', autouse=True)
def local_context():
  with execution.use_local_context() as context:
    yield context
