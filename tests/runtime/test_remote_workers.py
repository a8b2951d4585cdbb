"""Workers that were started separately."""

import concurrent.futures
import contextlib
import http.server
import socket
import threading
import time

import grpc
import numpy as np
import portpicker
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import tools
from tff_ocs import execution
from tff_ocs.runtime import channels


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType((np.float32, [3]), tff.CLIENTS),
)
def _round(scale, values):
  @tff.tensorflow.computation
  def multiply(value, factor):
    return tf.exp(value * factor)

  products = tff.federated_map(
    multiply, (values, tff.federated_broadcast(scale))
  )
  return tff.federated_mean(products)


def test_remote_worker_gives_what_a_local_one_gives(new_workers):
  values = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
  # More cohort sizes, in turn, than a lost connection would be retried.
  sizes = (1, 2, 3, 1, 4, 5, 6, 7, 1)
  with execution.use_local_context():
    expected = [_round(np.float32(0.5), list(values[:n])) for n in sizes]
  with tools.Server() as server:
    before = new_workers()
    with execution.use_remote_context(server.address):
      actual = [_round(np.float32(0.5), list(values[:n])) for n in sizes]
      assert new_workers() == before
    # Not this context's to end.
    assert new_workers() == before
    np.testing.assert_array_equal(actual, expected)
    # And it serves the next.
    with execution.use_remote_context(server.address):
      assert tools.total([1, 2]) == 3


@pytest.mark.parametrize(
  'address',
  [
    '',
    'host',
    'host:',
    ':8000',
    'host:port',
    'host:0',
    'host:65536',
    'host:-1',
    'host:\N{SUPERSCRIPT TWO}',
    'http://host:8000',
    'host:8000/',
    'a host:8000',
    '::1:8000',
    8000,
    None,
  ],
)
def test_wrong_address(address):
  with pytest.raises(ValueError, match="'host:port'.*1 to 65535") as error:
    with execution.use_remote_context(address):
      pass
  assert repr(address) in str(error.value)


def test_wrong_connect_timeout():
  with pytest.raises(ValueError, match='connect_timeout must be above 0'):
    with execution.use_remote_context('host:8000', connect_timeout=0):
      pass


def test_nobody_listens():
  address = f'127.0.0.1:{portpicker.pick_unused_port()}'
  with execution.use_remote_context(address, connect_timeout=1):
    for _ in range(2):
      future = tools.start(lambda: tools.total([1]))
      with pytest.raises(execution.WorkerError, match=f'{address} within 1 s'):
        future.result(tools.PATIENCE_SECONDS)


def test_remote_worker_is_lost_and_comes_back(tmp_path):
  with tools.Server() as server:
    with execution.use_remote_context(server.address, connect_timeout=1):
      assert tools.total([1]) == 1
      assert tools.total([1, 2]) == 3
      future = tools.start(lambda: tools.wait_for_go(str(tmp_path)))
      tools.wait_until((tmp_path / 'started').exists, 'the computation')
      server.stop()
      with pytest.raises(execution.WorkerError, match='No TFF worker answers'):
        future.result(tools.PATIENCE_SECONDS)
      with tools.Server(server.port):
        assert tools.total([1, 2]) == 3
        assert tools.total([1]) == 1


def test_remote_worker_that_keeps_dying(tmp_path):
  started = tmp_path / 'started'
  with tools.Server() as first, contextlib.ExitStack() as stack:
    with execution.use_remote_context(first.address):
      future = tools.start(lambda: tools.wait_for_go(str(tmp_path)))
      server = first
      for _ in range(4):
        tools.wait_until(started.exists, 'the computation')
        started.unlink()
        server.stop()
        server = stack.enter_context(tools.Server(first.port))
      with pytest.raises(
        execution.WorkerError, match=f'4 times.*{first.address}'
      ):
        future.result(tools.PATIENCE_SECONDS)


def test_remote_worker_forgets_contexts_that_were_left():
  value = np.ones(2_000_000, np.float32)

  @tff.federated_computation(
    tff.FederatedType((np.float32, value.shape), tff.CLIENTS)
  )
  def total(values):
    return tff.federated_sum(values)

  def use():
    with execution.use_remote_context(server.address):
      assert total([value] * 4)[0] == 4

  with tools.Server() as server:
    use()  # Whatever is kept once.
    before = server.memory()
    for _ in range(3):
      use()
    # Three contexts that are not forgotten take 700 MB.
    assert server.memory() - before < 200e6


def test_left_context_disturbs_no_other_on_its_remote_worker(tmp_path):
  with tools.Server() as server, execution.use_remote_context(server.address):
    future = tools.start(lambda: tools.wait_for_go(str(tmp_path)))
    tools.wait_until((tmp_path / 'started').exists, 'the computation')
    with execution.use_remote_context(server.address):
      # Of no clients, as the other.
      assert tff.tensorflow.computation(lambda: 7)() == 7
    (tmp_path / 'started').unlink()
    (tmp_path / 'go').touch()
    assert future.result(tools.PATIENCE_SECONDS) == 42
    # It was not lost and repeated.
    assert not (tmp_path / 'started').exists()


class _Path:
  """The network to a worker, with a hole in it on demand."""

  def __init__(self, port, delay=0.0):
    self._port = port
    self._delay = delay
    self._is_whole = threading.Event()
    self._is_whole.set()
    self._listener = socket.create_server(('127.0.0.1', 0))
    self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
    threading.Thread(target=self._accept, daemon=True).start()

  def tear(self):
    self._is_whole.clear()

  def mend(self):
    self._is_whole.set()

  def _accept(self):
    with contextlib.suppress(OSError):
      while True:
        client, _ = self._listener.accept()
        try:
          server = socket.create_connection(('127.0.0.1', self._port))
        except ConnectionRefusedError:  # It only starts.
          client.close()
          continue
        for pair in ((client, server), (server, client)):
          threading.Thread(target=self._pass, args=pair, daemon=True).start()

  def _pass(self, source, destination):
    with contextlib.suppress(OSError), source, destination:
      while data := source.recv(2**16):
        self._is_whole.wait()
        time.sleep(self._delay)
        destination.sendall(data)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.mend()
    self._listener.close()


def test_worker_far_away_is_reached():
  with tools.Server() as server, _Path(server.port, delay=0.2) as path:
    channel = channels.create_channel(path.address)
    deadline = time.monotonic() + tools.PATIENCE_SECONDS

    def check():
      assert time.monotonic() < deadline

    channels.wait_until_ready(channel, check)
    channel.close()


def test_remote_worker_vanishes_without_a_word(tmp_path, monkeypatch):
  # As if the worker's host was cut off: connections stay, nothing is answered.
  options = {
    **dict(channels.KEEPALIVE_OPTIONS),
    # Not the real 5 minutes.
    'grpc.keepalive_time_ms': 1000,
    'grpc.keepalive_timeout_ms': 1000,
    # Of a ping that is on its way for other reasons; then no other is sent.
    'grpc.http2.ping_timeout_ms': 1000,
  }
  monkeypatch.setattr(channels, 'KEEPALIVE_OPTIONS', tuple(options.items()))
  with tools.Server() as server, _Path(server.port) as path:
    with execution.use_remote_context(path.address, connect_timeout=5):
      future = tools.start(lambda: tools.wait_for_go(str(tmp_path)))
      tools.wait_until((tmp_path / 'started').exists, 'the computation')
      path.tear()
      with pytest.raises(execution.WorkerError, match=f'No.*{path.address}'):
        future.result(tools.PATIENCE_SECONDS)
      path.mend()
      (tmp_path / 'go').touch()
      assert tools.total([1, 2]) == 3


def test_keepalive_is_not_more_than_a_worker_bears():
  # gRPC's servers hang up on clients that ask more often than each 5 minutes.
  options = dict(channels.KEEPALIVE_OPTIONS)
  assert options['grpc.keepalive_time_ms'] > 300_000


def test_web_server_instead_of_a_worker():
  server = http.server.ThreadingHTTPServer(
    ('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler
  )
  threading.Thread(target=server.serve_forever, daemon=True).start()
  address = f'127.0.0.1:{server.server_port}'
  with server, execution.use_remote_context(address, connect_timeout=1):
    future = tools.start(lambda: tools.total([1]))
    with pytest.raises(execution.WorkerError, match=f'No.*{address} within'):
      future.result(tools.PATIENCE_SECONDS)
    server.shutdown()


def test_other_grpc_server_instead_of_a_worker():
  server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
  address = f'127.0.0.1:{server.add_insecure_port("127.0.0.1:0")}'
  server.start()
  try:
    with execution.use_remote_context(address):
      future = tools.start(lambda: tools.total([1]))
      with pytest.raises(
        execution.WorkerError, match=f'not a TFF worker.*{address}'
      ):
        future.result(tools.PATIENCE_SECONDS)
  finally:
    server.stop(None)
