"""What the tests of real runs share."""

import pytest

from tests.experiments import real_runs


@pytest.fixture(scope='session')
def uninterrupted(tmp_path_factory):
  """The results of a run that nothing disturbs."""
  output_dir = tmp_path_factory.mktemp('uninterrupted')
  status, output = real_runs.finish(output_dir)
  assert status == 0, output
  assert not (output_dir / 'run' / 'checkpoints').exists()
  return real_runs.read_results(output_dir / 'run')
