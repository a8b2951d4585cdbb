"""Workers as a context uses them: connected when first needed, and again."""

import abc
import contextlib
import re
import threading
import time
from typing import Any
from typing import Optional

import grpc
import tensorflow_federated as tff

from tff_ocs.runtime import channels
from tff_ocs.runtime import worker_process
from tff_ocs.runtime.worker_process import WorkerError


class Worker(abc.ABC):
  """A TFF worker, on this machine or elsewhere.

  Attributes:
    outlives_context: Whether the worker goes on when the context is left.
  """

  outlives_context: bool

  def __init__(self, timeout_name: str, timeout: float):
    """Initializes `Worker`.

    Args:
      timeout_name: The name of the argument `timeout` for error messages.
      timeout: How long the worker may take to answer, in seconds.

    Raises:
      ValueError: If `timeout` is not above 0.
    """
    if not timeout > 0:
      raise ValueError(
        f'{timeout_name} must be above 0 seconds, found {timeout!r}.'
      )
    self._timeout = timeout
    self._lock = threading.Lock()
    self._is_closed = False
    self._stub: Optional[tff.framework.RemoteExecutorStub] = None

  def connect(self, is_retry: bool) -> tff.framework.RemoteExecutorStub:
    """Returns a stub for a live worker, the same as before if it still lives.

    Args:
      is_retry: Whether a call through the last stub has just failed.

    Raises:
      WorkerError: If the worker cannot be started or reached, or was closed.
    """
    with self._lock:
      self._check_not_closed()
      if self._stub is None or self._is_lost(is_retry):
        self._stub = None
        self._stop()
        try:
          channel = self._start()
        except BaseException:
          self._stop()
          raise
        self._stub = _Stub(channels.UnwatchedChannel(channel))
      return self._stub

  def close(self) -> None:
    """Ends the connection, and the worker if it is this object's."""
    self._is_closed = True  # Ends a start that another thread waits for.
    with self._lock:
      self._stop()

  @abc.abstractmethod
  def describe_loss(self) -> str:
    """Returns a sentence on a worker that has just failed."""

  @abc.abstractmethod
  def _start(self) -> Any:
    """Starts the worker or connects to it, and returns its channel."""

  @abc.abstractmethod
  def _stop(self) -> None:
    """Undoes `_start`, even if that has failed or was never called."""

  @abc.abstractmethod
  def _is_lost(self, is_retry: bool) -> bool:
    """Whether a worker that was started needs another start."""

  def _check_not_closed(self):
    if self._is_closed:
      raise create_left_error()


class LocalWorker(Worker):
  """A worker process on this machine, started when first needed."""

  outlives_context = False

  def __init__(self, start_timeout: float, num_on_machine: int = 1):
    """Initializes `LocalWorker`.

    Args:
      start_timeout: How long the worker may take to answer, in seconds.
      num_on_machine: How many workers share the cores of this machine.

    Raises:
      ValueError: If `start_timeout` is not above 0.
    """
    super().__init__('start_timeout', start_timeout)
    self._num_on_machine = num_on_machine
    self._process: Optional[worker_process.WorkerProcess] = None

  def describe_loss(self):
    with self._lock:
      if self._process is None:
        return 'It could not be started again.'
      if self._process.wait(1):
        return f'The last one {self._process.describe_end()}'
      return f'Its process still runs.{self._process.read_log()}'

  def _start(self):
    self._process = worker_process.start_on_free_port(
      start_timeout=self._timeout,
      check=self._check_not_closed,
      num_on_machine=self._num_on_machine,
    )
    return self._process.channel

  def _stop(self):
    if self._process is not None:
      self._process.close()
      self._process = None

  def _is_lost(self, is_retry):
    # A process can be seen to end later than its connection.
    return self._process.wait(1 if is_retry else 0)


class RemoteWorker(Worker):
  """A worker that was started separately."""

  outlives_context = True

  def __init__(
    self,
    address: str,
    connect_timeout: float,
    timeout_name: str = 'connect_timeout',
  ):
    """Initializes `RemoteWorker`.

    Args:
      address: The worker's 'host:port'.
      connect_timeout: How long the worker may take to answer, in seconds.
      timeout_name: The name of `connect_timeout` for error messages.

    Raises:
      ValueError: If `address` is not of the form 'host:port', or
        `connect_timeout` is not above 0.
    """
    super().__init__(timeout_name, connect_timeout)
    match = re.fullmatch(
      r'([^\s/:\[\]]+|\[[^\s/\[\]]+\]):([0-9]{1,5})', str(address)
    )
    if not (match and 0 < int(match.group(2)) < 2**16):
      raise ValueError(
        "address must be of the form 'host:port', such as '127.0.0.1:8000' or"
        f" '[::1]:8000', with a port from 1 to 65535, found {address!r}."
      )
    self._address = address
    self._channel: Any = None

  def describe_loss(self):
    return f'It is at {self._address}; this program has not started it.'

  def _start(self):
    deadline = time.monotonic() + self._timeout

    def check():
      self._check_not_closed()
      if time.monotonic() > deadline:
        raise WorkerError(
          f'No TFF worker answers at {self._address} within'
          f' {self._timeout:g} s; is one running there?'
        )

    self._channel = channels.create_channel(
      self._address, channels.KEEPALIVE_OPTIONS
    )
    channels.wait_until_ready(self._channel, check)
    return self._channel

  def _stop(self):
    if self._channel is not None:
      self._channel.close()

  def _is_lost(self, is_retry):
    return is_retry


class _Stub(tff.framework.RemoteExecutorGrpcStub):
  """A stub whose values may be deleted after their worker was lost.

  TFF disposes of values when they are garbage collected. An error would be
  printed with a traceback.
  """

  def dispose(self, request):
    # A closed channel raises a ValueError.
    with contextlib.suppress(ValueError, grpc.RpcError):
      super().dispose(request)


def create_left_error() -> WorkerError:
  """Returns the error of a computation whose context was left."""
  return WorkerError('The context of this TFF computation was left.')
