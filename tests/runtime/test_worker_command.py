"""The command that starts a worker for other hosts."""

import contextlib
import signal
import socket

import numpy as np
import portpicker
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests import services
from tests.runtime import tools
from tff_ocs import execution
from tff_ocs.runtime import worker_command
from tff_ocs.runtime import worker_process


def _can_connect(address, port):
  with contextlib.suppress(ConnectionRefusedError):
    socket.create_connection((address, port), services.PATIENCE_SECONDS).close()
    return True
  return False


def _other_addresses():
  """The addresses of this host but 127.0.0.1."""
  addresses = {'127.0.0.2', '::ffff:127.0.0.2'}
  for of_interface in psutil.net_if_addrs().values():
    for address in of_interface:
      if address.family in (socket.AF_INET, socket.AF_INET6):
        addresses.add(address.address)
  return addresses - {'127.0.0.1'}


@tff.federated_computation(
  tff.FederatedType((np.float32, [3]), tff.CLIENTS),
)
def _mean_of_exponentials(values):
  @tff.tensorflow.computation
  def exponential(value):
    return tf.exp(value)

  return tff.federated_mean(tff.federated_map(exponential, values))


def test_serves_loopback_alone_until_sigterm(capsys):
  values = list(np.random.default_rng(0).normal(size=(5, 3)).astype('float32'))
  expected = _mean_of_exponentials(values)
  with services.WorkerService() as service:
    assert 'neither encrypted nor authenticated' in service.notice
    assert f'ssh -N -L {service.port}:127.0.0.1:{service.port} ' in (
      service.notice
    )
    assert _can_connect('127.0.0.1', service.port)
    for address in _other_addresses():
      assert not _can_connect(address, service.port), address
    # The port of the socket that the worker would have listened on, too.
    with pytest.raises(SystemExit, match=f'port={service.port} is in use'):
      worker_command.main([f'--port={service.port}'])
    with execution.use_remote_context(service.address):
      np.testing.assert_array_equal(_mean_of_exponentials(values), expected)
    service.process.send_signal(signal.SIGTERM)
    assert service.wait() == 'ended\n'
    assert service.process.returncode == 0
    assert not _can_connect('127.0.0.1', service.port)


def test_listens_on_all_interfaces_if_told_until_ctrl_c():
  with services.WorkerService('--listen_on_all_interfaces') as service:
    assert 'all who can reach this host' in service.notice
    assert _can_connect('127.0.0.1', service.port)
    assert _can_connect('127.0.0.2', service.port)
    service.process.send_signal(signal.SIGINT)
    assert service.wait() == 'ended\n'
    assert service.process.returncode == 0


def test_killed():
  with services.WorkerService() as service:
    service.process.kill()
    service.wait()


def test_worker_dies():
  with services.WorkerService() as service:
    service.worker.kill()
    assert (
      service.wait() == 'error: The TFF worker ended with exit status -9.\n'
    )
    assert service.process.returncode == 1


# Refused arguments, in this process, which takes no time.


@pytest.fixture
def children():
  """Sees to it that no process is left, and SIGTERM as it was."""
  handler = signal.getsignal(signal.SIGTERM)
  before = set(psutil.Process().children(recursive=True))
  yield
  signal.signal(signal.SIGTERM, handler)
  assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
  'port', ['', '0', '-1', '65536', '80.5', 'http', '\N{SUPERSCRIPT TWO}']
)
def test_wrong_port(port, capsys):
  with pytest.raises(SystemExit) as error:
    worker_command.main([f'--port={port}'])
  assert error.value.code == 2
  assert '--port: must be a number from 1 to 65535' in capsys.readouterr().err


@pytest.mark.parametrize('flags', [[], ['--listen_on_all_interfaces']])
@pytest.mark.parametrize('address', ['127.0.0.1', '0.0.0.0'])
def test_port_in_use(address, flags, children):
  with socket.create_server((address, 0)) as other:
    port = other.getsockname()[1]
    with pytest.raises(SystemExit, match=f'port={port} is in use') as error:
      worker_command.main([f'--port={port}', *flags])
  assert error.value.code.startswith('error: ')


def test_port_is_not_shared_with_a_bare_worker(children):
  # TFF's worker shares its port with others of the same user (SO_REUSEPORT).
  with socket.socket() as other:
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other.bind(('0.0.0.0', 0))
    other.listen()
    port = other.getsockname()[1]
    for flags in ([], ['--listen_on_all_interfaces']):
      with pytest.raises(SystemExit, match=f'port={port} is in use'):
        worker_command.main([f'--port={port}', *flags])


@pytest.mark.parametrize('forbid', [tools.forbid_filters, tools.forbid_sockets])
def test_kernel_that_cannot_confine_the_worker(
  forbid, children, monkeypatch, tmp_path
):
  forbid(monkeypatch, tmp_path)
  port = portpicker.pick_unused_port()
  with pytest.raises(
    SystemExit, match=f'{port}.*firewall.*--listen_on_all_interfaces'
  ):
    worker_command.main([f'--port={port}'])
  assert not _can_connect('127.0.0.1', port)


def test_worker_cannot_start(children, tmp_path, monkeypatch):
  binary = tmp_path / 'worker'
  binary.write_text('#!/bin/sh\necho out of luck >&2\nexit 3\n')
  binary.chmod(0o755)
  monkeypatch.setattr(worker_process, '_find_worker_binary', lambda: binary)
  for flags in ([], ['--listen_on_all_interfaces']):
    with pytest.raises(
      SystemExit, match='(?s)could not start.*status 3.*out of luck'
    ):
      worker_command.main([f'--port={portpicker.pick_unused_port()}', *flags])
