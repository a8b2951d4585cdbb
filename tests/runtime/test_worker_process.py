"""Workers start on the loopback interface, in a surrounding for simulation."""

import errno
import os
import pathlib
import socket
import sys

import psutil
import pytest
from absl import logging

from tests.runtime import tools
from tff_ocs import execution
from tff_ocs.runtime import worker_process


@pytest.mark.parametrize(
  ('text', 'start_timeout', 'message'),
  [
    (
      '#!/bin/sh\necho out of luck >&2\nexit 1\n',
      50,
      '(?s)could not start.*status 1.*out of luck',
    ),
    # On a busy machine the first line takes a while.
    (
      '#!/bin/sh\necho busy\nexec sleep 600\n',
      3,
      '(?s)did not answer within 3 s.*busy',
    ),
    ('not a program', 50, 'could not start'),
  ],
)
def test_worker_that_cannot_start(
  text, start_timeout, message, tmp_path, monkeypatch
):
  binary = tools.write_script(tmp_path / 'worker', text)
  monkeypatch.setattr(worker_process, '_find_worker_binary', lambda: binary)
  with execution.use_local_context(start_timeout=start_timeout):
    future = tools.start(lambda: tools.total([1]))
    with pytest.raises(execution.WorkerError, match=message):
      future.result(tools.PATIENCE_SECONDS)
    for process in psutil.Process().children(recursive=True):
      assert str(binary) not in process.cmdline()


def test_default_start_timeout_is_below_a_minute():
  assert worker_process.START_TIMEOUT_SECONDS < 60


def test_missing_or_not_executable_worker(tmp_path, monkeypatch):
  path = tmp_path / 'worker'
  monkeypatch.setattr(worker_process, '_find_worker_binary', lambda: path)
  with execution.use_local_context():
    with pytest.raises(execution.WorkerError, match='missing'):
      tools.total([1])
    path.write_text('#!/bin/sh\n')
    path.chmod(0o644)
    if not os.access(path, os.X_OK):
      with pytest.raises(execution.WorkerError, match='not executable'):
        tools.total([1])


def test_start_can_be_tried_again(monkeypatch):
  # As in a notebook: the error stays the same, and goes away with its cause.
  with execution.use_local_context():
    with monkeypatch.context() as patch:
      patch.setattr(
        worker_process,
        '_find_worker_binary',
        lambda: pathlib.Path('/is-not-there'),
      )
      for _ in range(6):
        with pytest.raises(execution.WorkerError, match='is-not-there'):
          tools.total([1])
    assert tools.total([1]) == 1


def test_no_interpreter_to_start_the_worker_with(monkeypatch):
  # As where Python is embedded in another program.
  monkeypatch.setattr(sys, 'executable', None)
  with execution.use_local_context():
    future = tools.start(lambda: tools.total([1]))
    with pytest.raises(execution.WorkerError, match='start a process'):
      future.result(tools.PATIENCE_SECONDS)


@pytest.mark.parametrize('timeout', [0, -1, float('nan')])
@pytest.mark.parametrize(
  'use', [execution.use_local_context, execution.use_secure_test_context]
)
def test_wrong_start_timeout(use, timeout):
  with pytest.raises(ValueError, match='start_timeout must be above 0'):
    with use(start_timeout=timeout):
      pass


# Who can reach a worker.


def _find_addresses(worker):
  """The addresses that a process listens on."""
  return {
    connection.laddr.ip
    for connection in worker.net_connections('inet')
    if connection.status == psutil.CONN_LISTEN
  }


@pytest.fixture
def warnings(monkeypatch):
  """The warnings of absl, as if no worker had been started before.

  Whether a logger shows them depends on the tests that ran before.
  """
  worker_process._warn_of_open_ports.cache_clear()
  found = []
  monkeypatch.setattr(
    logging, 'warning', lambda message, *values: found.append(message % values)
  )
  yield found
  worker_process._warn_of_open_ports.cache_clear()


@pytest.mark.parametrize(
  'use', [execution.use_local_context, execution.use_secure_test_context]
)
def test_worker_listens_on_loopback_alone(use, new_workers, warnings):
  with use():
    assert tools.total([1, 2]) == 3
    (worker,) = new_workers()
    assert _find_addresses(worker) == {'127.0.0.1'}
    # This process has given the socket away: nobody would answer on it.
    ports = {c.laddr.port for c in worker.net_connections('inet')}
    assert not [
      connection
      for connection in psutil.Process().net_connections('inet')
      if connection.status == psutil.CONN_LISTEN
      and connection.laddr.port in ports
    ]
  assert warnings == []


def test_replaced_worker_listens_on_loopback_alone(new_workers):
  with execution.use_local_context():
    assert tools.total([1]) == 1
    (worker,) = new_workers()
    worker.kill()
    assert tools.total([1]) == 1
    (replacement,) = new_workers()
    assert _find_addresses(replacement) == {'127.0.0.1'}


@pytest.mark.parametrize(
  ('forbid', 'reason'),
  [
    (tools.forbid_filters, 'Function not implemented'),
    (tools.forbid_sockets, 'Invalid argument'),
  ],
)
def test_kernel_that_cannot_confine_the_worker(
  forbid, reason, monkeypatch, tmp_path, new_workers, warnings
):
  forbid(monkeypatch, tmp_path)
  for _ in range(2):
    with execution.use_local_context():
      assert tools.total([1, 2]) == 3
      (worker,) = new_workers()
      assert _find_addresses(worker) <= {'::', '0.0.0.0'}
  (warning,) = warnings
  assert '\n' not in warning
  assert 'all interfaces, because the kernel does not let' in warning
  assert reason in warning
  assert 'let a firewall drop connections from other hosts' in warning


def test_open_port_is_not_taken_by_another_program(monkeypatch, tmp_path):
  # The port is held from when it is chosen until the worker listens on it.
  tools.forbid_filters(monkeypatch, tmp_path)
  start = worker_process.WorkerProcess
  refused = []

  def try_to_take(port, **kwargs):
    if 'listener' not in kwargs:
      with socket.socket() as other:
        with pytest.raises(OSError, match='in use'):
          other.bind(('127.0.0.1', port))
      refused.append(port)
    return start(port, **kwargs)

  monkeypatch.setattr(worker_process, 'WorkerProcess', try_to_take)
  with execution.use_local_context():
    assert tools.total([1]) == 1
  assert len(refused) == 1


@pytest.mark.parametrize('name', ['create_server', 'create_connection'])
def test_host_without_loopback(name, monkeypatch):
  def fail(*unused_args, **unused_kwargs):
    raise OSError(errno.ENETUNREACH, 'Network is unreachable')

  with execution.use_local_context():
    monkeypatch.setattr(socket, name, fail)
    with pytest.raises(
      execution.WorkerError,
      match=r'connect to 127\.0\.0\.1 \(Network is unreachable\).*ip link set',
    ) as error:
      tools.total([1])
    monkeypatch.undo()
    assert '\n' not in str(error.value)
    # As for every error of a start: it goes away with its cause.
    assert tools.total([1]) == 1


# The worker's surroundings.


def _environment_of_worker(find_workers):
  with execution.use_local_context():
    tools.total([1])
    (worker,) = find_workers()
    return worker.environ()


@pytest.mark.parametrize(
  ('threads', 'divisor'), [(None, 1), ('1', 1), ('2', 2), ('1000', None)]
)
def test_as_many_clients_in_parallel_as_keep_the_cores_busy(
  threads, divisor, new_workers, monkeypatch
):
  if threads is None:
    monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  else:
    monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', threads)
  cores = len(os.sched_getaffinity(0))
  expected = max(1, cores // divisor) if divisor else 1
  with execution.use_local_context():
    assert tools.total([1, 2, 3, 4, 5]) == 15
    (worker,) = new_workers()
    assert f'--max_concurrent_computation_calls={expected}' in worker.cmdline()


@pytest.mark.parametrize('threads', ['0', '-1'])
def test_threads_of_all_cores_for_one_client(threads, monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', threads)
  assert worker_process._count_parallel_clients() == 1


def test_threads_that_are_no_number(monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', 'many')
  with execution.use_local_context():
    with pytest.raises(
      execution.WorkerError, match="TF_NUM_INTRAOP_THREADS.*'many'"
    ):
      tools.total([1])


def test_threads_per_client(new_workers, monkeypatch):
  monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  environment = _environment_of_worker(new_workers)
  assert environment['TF_NUM_INTRAOP_THREADS'] == '1'
  assert environment['TF_NUM_INTEROP_THREADS'] == '-1'
  # The kernel shows the first only: glibc cuts the others off in place.
  assert 'glibc.malloc.mmap_threshold' in environment['GLIBC_TUNABLES']
  assert execution.threads_per_client() == 1


def test_own_environment_wins(new_workers, monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '3')
  monkeypatch.setenv('GLIBC_TUNABLES', 'glibc.malloc.arena_max=7')
  environment = _environment_of_worker(new_workers)
  assert environment['TF_NUM_INTRAOP_THREADS'] == '3'
  assert environment['GLIBC_TUNABLES'] == 'glibc.malloc.arena_max=7'
  assert execution.threads_per_client() == 3


def test_web_proxy_is_not_asked_for_the_worker(monkeypatch):
  for name in ('http_proxy', 'https_proxy', 'grpc_proxy'):
    monkeypatch.setenv(name, 'http://127.0.0.1:1')
  for name in ('no_proxy', 'no_grpc_proxy'):
    monkeypatch.delenv(name, raising=False)
  with execution.use_local_context():
    assert tools.total([1]) == 1


def test_modules_of_the_environment_are_not_loaded(tmp_path, monkeypatch):
  for name in ('ctypes', 'signal'):
    (tmp_path / f'{name}.py').write_text('raise SystemExit("not this one")')
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.chdir(tmp_path)
  with execution.use_local_context():
    assert tools.total([1]) == 1
