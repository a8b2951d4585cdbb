"""Runs every test in one TFF worker that the package itself manages."""

import pytest

from tff_ocs import execution


@pytest.fixture(scope='session', autouse=True)
def local_context():
  with execution.use_local_context() as context:
    yield context
