"""Runs whose work is done by a worker that was started separately."""

import functools

import portpicker

from tests import services
from tests.experiments import linear
from tff_ocs import execution


def test_lost_remote_worker_is_waited_for(uninterrupted, tmp_path):
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


def be_impatient():
  execution.use_remote_context = functools.partial(
    execution.use_remote_context, connect_timeout=1
  )


def test_worker_that_never_comes(tmp_path):
  nobody = f'127.0.0.1:{portpicker.pick_unused_port()}'
  run = linear.Run(
    tmp_path / 'runs', f'--worker_address={nobody}', prepare=be_impatient
  )
  status, output = run.finish()
  assert status == 1
  assert output.splitlines()[-1].startswith('error: ')
  assert f'{nobody} within 1 s' in output.splitlines()[-1]
  assert 'Traceback' not in output
  assert not run.folder.exists()


def test_wrong_address(tmp_path):
  status, output = linear.finish(tmp_path / 'runs', '--worker_address=8000')
  assert status == 1
  assert output.splitlines()[-1].startswith('error: --worker_address: ')
  assert "'host:port'" in output.splitlines()[-1]
  assert 'Traceback' not in output
