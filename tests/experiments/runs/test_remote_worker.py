"""Runs whose work is done by a worker that was started separately."""

import portpicker

from tests import services
from tests.experiments import real_runs


def test_remote_worker(uninterrupted, tmp_path):
  # Waits for a worker that never comes, beside the run that has one.
  nobody = f'127.0.0.1:{portpicker.pick_unused_port()}'
  lonely = real_runs.start(tmp_path / 'lonely', f'--worker_address={nobody}')
  folder = tmp_path / 'run'
  try:
    with services.WorkerService() as service:
      run = real_runs.start(tmp_path, f'--worker_address={service.address}')
      real_runs.wait_until(run, lambda: real_runs.num_rounds(folder) >= 4)
      service.worker.kill()
      service.wait()
    # As a supervisor would, or somebody who looks after it.
    with services.WorkerService(port=service.port):
      output, _ = run.communicate(timeout=300)
    assert run.returncode == 0, output
    assert 'The TFF worker was lost' in output
    assert real_runs.read_results(folder) == uninterrupted

    output, _ = lonely.communicate(timeout=300)
    assert lonely.returncode == 1
    assert output.splitlines()[-1].startswith('error: ')
    assert nobody in output.splitlines()[-1]
    assert 'Traceback' not in output
    assert list((tmp_path / 'lonely').glob('*/*')) == []
  finally:
    lonely.kill()


def test_wrong_address(tmp_path):
  status, output = real_runs.finish(tmp_path, '--worker_address=8000')
  assert status == 1
  assert output.splitlines()[-1].startswith('error: --worker_address: ')
  assert "'host:port'" in output.splitlines()[-1]
  assert 'Traceback' not in output
