"""Fixtures for the tests of the runtime."""

import pytest

from tests.runtime import tools


@pytest.fixture
def new_workers():
  """Finds the workers that a test started; the session has one of its own."""
  old = tools.find_workers()
  yield lambda: tools.find_workers() - old
  assert tools.find_workers() - old == set()
