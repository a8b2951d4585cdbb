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


def test_several_remote_workers(tmp_path):
  flags = ('--sampling=threshold', '--expected_clients=2', '--total_rounds=8')
  status, output = linear.finish(tmp_path / 'local', *flags)
  assert status == 0, output
  with services.WorkerService() as first, services.WorkerService() as second:
    addresses = f'{first.address},{second.address}'
    run = linear.Run(tmp_path / 'runs', *flags, f'--worker_address={addresses}')
    run.wait_until(lambda: linear.num_rounds(run.folder) >= 2)
    second.worker.kill()
    second.wait()
    with services.WorkerService(port=second.port):
      status, output = run.finish()
  assert status == 0, output
  assert 'The TFF worker was lost' in output
  results = linear.read_results(run.folder)
  assert results == linear.read_results(tmp_path / 'local' / 'run')


def test_sampling_that_cannot_be_divided(tmp_path):
  # Nobody has to be there.
  status, output = linear.finish(
    tmp_path / 'runs', '--worker_address=host:1,host:2'
  )
  assert status == 1
  assert 'Traceback' not in output
  last = output.splitlines()[-1]
  assert last.startswith('error: --worker_address=host:1,host:2 names several')
  assert '--sampling=aocs' in last and '--sampling=threshold' in last
  assert not (tmp_path / 'runs' / 'run').exists()


def be_impatient():
  execution.use_remote_context = functools.partial(
    execution.use_remote_context, connect_timeout=1
  )
  execution.use_distributed_context = functools.partial(
    execution.use_distributed_context, start_timeout=1
  )


def test_one_of_several_workers_that_never_comes(tmp_path):
  nobody = f'127.0.0.1:{portpicker.pick_unused_port()}'
  with services.WorkerService() as service:
    run = linear.Run(
      tmp_path / 'runs',
      '--sampling=full',
      f'--worker_address={service.address},{nobody}',
      prepare=be_impatient,
    )
    status, output = run.finish()
  assert status == 1
  assert output.splitlines()[-1].startswith('error: ')
  assert f'{nobody} within 1 s' in output.splitlines()[-1]
  assert 'Traceback' not in output
  assert not run.folder.exists()


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
  status, output = linear.finish(
    tmp_path / 'runs', '--sampling=full', '--worker_address=host:1,,host:2'
  )
  assert status == 1
  assert output.splitlines()[-1].startswith('error: --worker_address: ')
  assert "'host:port'" in output.splitlines()[-1]
  assert 'Traceback' not in output
