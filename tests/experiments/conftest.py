"""Fixtures of the tests of real runs."""

import pytest

from tests.experiments import linear


@pytest.fixture(scope='session')
def uninterrupted(tmp_path_factory):
  """The results of a run that nothing disturbs."""
  output_dir = tmp_path_factory.mktemp('uninterrupted') / 'runs'
  status, output = linear.finish(output_dir)
  assert status == 0, output
  assert not (output_dir / 'run' / 'checkpoints').exists()
  return linear.read_results(output_dir / 'run')
