"""Runs whose work is done by a worker that was started separately."""

import portpicker

from tests import services
from tests.experiments import linear


def test_remote_worker(uninterrupted, tmp_path):
  # Waits for a worker that never comes, at the same time as the other run.
  nobody = f'127.0.0.1:{portpicker.pick_unused_port()}'
  lonely = linear.Run(tmp_path / 'lonely', f'--worker_address={nobody}')
  try:
    with services.WorkerService() as service:
      run = linear.Run(tmp_path / 'runs', f'--worker_address={service.address}')
      run.wait_until(lambda: linear.num_rounds(run.folder) >= 4)
      service.worker.kill()
      service.wait()
    # As a supervisor would restart it.
    with services.WorkerService(port=service.port):
      status, output = run.finish()
    assert status == 0, output
    assert 'The TFF worker was lost' in output
    assert linear.read_results(run.folder) == uninterrupted

    status, output = lonely.finish()
    assert status == 1
    assert output.splitlines()[-1].startswith('error: ')
    assert nobody in output.splitlines()[-1]
    assert 'Traceback' not in output
    assert not lonely.folder.exists()
  finally:
    lonely.kill()


def test_wrong_address(tmp_path):
  status, output = linear.finish(tmp_path / 'runs', '--worker_address=8000')
  assert status == 1
  assert output.splitlines()[-1].startswith('error: --worker_address: ')
  assert "'host:port'" in output.splitlines()[-1]
  assert 'Traceback' not in output
