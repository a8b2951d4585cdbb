"""Workers as a context uses them: connected when first needed, and again."""

import re
import threading
import time
from typing import Any
from typing import Optional
from typing import Protocol

import grpc
import tensorflow_federated as tff

from tff_ocs.runtime import channels
from tff_ocs.runtime import worker_process
from tff_ocs.runtime.worker_process import WorkerError


class Worker(Protocol):
  """A TFF worker, on this machine or elsewhere.

  Attributes:
    outlives_context: Whether the worker goes on when the context is left.
  """

  outlives_context: bool

  def connect(self, is_retry: bool) -> tff.framework.RemoteExecutorStub:
    """Returns a stub for a live worker, the same as before if it still lives.

    Args:
      is_retry: Whether a call through the last stub has just failed.

    Raises:
      WorkerError: If the worker cannot be started or reached, or was closed.
    """

  def describe_loss(self) -> str:
    """Returns a sentence on a worker that has just failed."""

  def close(self) -> None:
    """Ends the connection, and the worker if it is this object's."""


class LocalWorker:
  """A worker process on this machine, started when first needed."""

  outlives_context = False

  def __init__(self, start_timeout: float):
    """Initializes `LocalWorker`.

    Args:
      start_timeout: How long the worker may take to answer, in seconds.

    Raises:
      ValueError: If `start_timeout` is not above 0.
    """
    self._start_timeout = _check_timeout('start_timeout', start_timeout)
    self._lock = threading.Lock()
    self._is_closed = False
    self._process: Optional[worker_process.WorkerProcess] = None
    self._stub: Any = None

  def connect(self, is_retry: bool) -> tff.framework.RemoteExecutorStub:
    """Returns a stub for a live worker; starts one if needed."""
    with self._lock:
      self._check_not_closed()
      if self._process is not None:
        if is_retry:
          # A process can be seen to end later than its connection.
          self._process.wait(1)
        if self._process.is_running:
          return self._stub
      self._stop()
      self._start()
      return self._stub

  def describe_loss(self) -> str:
    with self._lock:
      if self._process is None:
        return 'It could not be started again.'
      self._process.wait(1)
      if self._process.is_running:
        return f'Its process still runs.{self._process.read_log()}'
      return f'The last one {self._process.describe_end()}'

  def close(self) -> None:
    self._is_closed = True  # Ends a start that another thread waits for.
    with self._lock:
      self._stop()

  def _check_not_closed(self):
    if self._is_closed:
      raise create_left_error()

  def _start(self):
    self._process = worker_process.start_on_free_port(
      start_timeout=self._start_timeout, check=self._check_not_closed
    )
    try:
      self._process.wait_until_ready()
      self._stub = _create_stub(self._process.channel)
    except BaseException:
      self._stop()
      raise

  def _stop(self):
    if self._process is not None:
      self._process.close()
      self._process = self._stub = None


class RemoteWorker:
  """A worker that was started separately."""

  outlives_context = True

  def __init__(self, address: str, connect_timeout: float):
    """Initializes `RemoteWorker`.

    Args:
      address: The worker's 'host:port'.
      connect_timeout: How long the worker may take to answer, in seconds.

    Raises:
      ValueError: If `address` is not of the form 'host:port', or
        `connect_timeout` is not above 0.
    """
    match = re.fullmatch(
      r'([^\s/:\[\]]+|\[[^\s/\[\]]+\]):([0-9]{1,5})', str(address)
    )
    if not (match and 0 < int(match.group(2)) < 2**16):
      raise ValueError(
        "address must be of the form 'host:port', such as '127.0.0.1:8000' or"
        f" '[::1]:8000', with a port from 1 to 65535, found {address!r}."
      )
    self._address = address
    self._connect_timeout = _check_timeout('connect_timeout', connect_timeout)
    self._lock = threading.Lock()
    self._is_closed = False
    self._channel: Any = None
    self._stub: Any = None

  def connect(self, is_retry: bool) -> tff.framework.RemoteExecutorStub:
    """Returns a stub over a live connection."""
    with self._lock:
      self._check_not_closed()
      if self._stub is None or is_retry:
        self._stop()
        self._start()
      return self._stub

  def describe_loss(self) -> str:
    return f'It is at {self._address}; this program has not started it.'

  def close(self) -> None:
    self._is_closed = True  # Ends a start that another thread waits for.
    with self._lock:
      self._stop()

  def _check_not_closed(self):
    if self._is_closed:
      raise create_left_error()

  def _start(self):
    deadline = time.monotonic() + self._connect_timeout

    def check():
      self._check_not_closed()
      if time.monotonic() > deadline:
        raise WorkerError(
          f'No TFF worker answers at {self._address} within'
          f' {self._connect_timeout:g} s; is one running there?'
        )

    self._channel = channels.create_channel(
      self._address, channels.KEEPALIVE_OPTIONS
    )
    try:
      channels.wait_until_ready(self._channel, check)
    except BaseException:
      self._stop()
      raise
    self._stub = _create_stub(self._channel)

  def _stop(self):
    if self._channel is not None:
      self._channel.close()
      self._channel = self._stub = None


class _Stub(tff.framework.RemoteExecutorGrpcStub):
  """A stub whose values may be deleted after their worker was lost.

  TFF disposes of values when they are garbage collected, which can be after
  their worker was lost. The error would be printed with a traceback.
  """

  def dispose(self, request):
    try:
      return super().dispose(request)
    except (ValueError, grpc.RpcError):
      # The channel is closed, or nobody answers any more.
      return None


def _create_stub(channel: Any) -> tff.framework.RemoteExecutorGrpcStub:
  return _Stub(channels.UnwatchedChannel(channel))


def create_left_error() -> WorkerError:
  """Returns the error of a computation whose context was left."""
  return WorkerError('The context of this TFF computation was left.')


def _check_timeout(name: str, seconds: float) -> float:
  if not seconds > 0:
    raise ValueError(f'{name} must be above 0 seconds, found {seconds!r}.')
  return float(seconds)
