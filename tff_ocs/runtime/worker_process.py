"""A TFF worker in a process on this machine.

The worker ends with this process, however that ends (exit, exception, Ctrl-C,
SIGTERM, SIGKILL): the kernel sees to it. This module imports neither TensorFlow
nor TFF.
"""

import concurrent.futures
import contextlib
import functools
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Optional

from absl import logging

from tff_ocs.runtime import channels
from tff_ocs.runtime import launcher
from tff_ocs.runtime import loopback

START_TIMEOUT_SECONDS = 50.0


class WorkerError(RuntimeError):
  """Raised if a worker cannot be started, reached or kept alive."""


class WorkerProcess:
  """A worker process on this machine, which ends with this process.

  Attributes:
    channel: The `grpc.Channel` to the worker.
  """

  def __init__(
    self,
    port: int,
    *,
    listener: Optional[socket.socket] = None,
    start_timeout: float = START_TIMEOUT_SECONDS,
    check: Callable[[], None] = lambda: None,
    num_on_machine: int = 1,
  ):
    """Starts the process.

    Args:
      port: The port that the worker will listen on.
      listener: A socket that listens on this port of 127.0.0.1. The worker gets
        a copy and listens by nothing else. With `None` it listens on all
        interfaces.
      start_timeout: How long the worker may take to answer, in seconds.
      check: Called again and again during the start; may raise an exception.
      num_on_machine: How many workers share the cores of this machine.

    Raises:
      loopback.ConfinementError: If the kernel does not let the worker listen by
        `listener` alone. Nothing is left of the process then.
      WorkerError: If the process cannot be started.
    """
    binary = _find_worker_binary()
    if not os.access(binary, os.X_OK):
      raise WorkerError(
        f'The TFF worker {binary} is missing or not executable; reinstall'
        ' tensorflow-federated.'
      )
    parallel_clients = _count_parallel_clients(num_on_machine)
    self._check = check
    self._start_timeout = start_timeout
    self._deadline = time.monotonic() + start_timeout
    self._log = tempfile.TemporaryFile()
    ours, theirs = socket.socketpair()
    with ours:
      with theirs:
        self._process = _start_from_lasting_thread(
          [
            sys.executable,
            # Nothing from the working directory or the environment.
            '-IS',
            launcher.__file__,
            str(os.getpid()),
            '-1' if listener is None else str(theirs.fileno()),
            str(binary),
            # With a listener, the worker's own socket is never used.
            f'--port={port if listener is None else 0}',
            f'--max_concurrent_computation_calls={parallel_clients}',
          ],
          env=create_environment(num_on_machine),
          stdin=subprocess.DEVNULL,
          stdout=self._log,
          stderr=self._log,
          pass_fds=() if listener is None else (theirs.fileno(),),
          # Ctrl-C is for this process, which then ends the worker.
          start_new_session=True,
        )
      self.channel = channels.create_channel(f'{loopback.ADDRESS}:{port}')
      if listener is not None:
        with self._ending_on_error():
          loopback.hand_over(listener, ours, self.check_start)

  def wait(self, timeout: Optional[float] = None) -> bool:
    """Waits for the end of the process, for at most `timeout` seconds.

    Returns:
      Whether the process has ended.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(timeout)
    return self._process.returncode is not None

  def wait_until_ready(self) -> None:
    """Waits until the worker answers; ends it if that fails.

    Raises:
      WorkerError: If the worker ends or does not answer in time.
    """
    with self._ending_on_error():
      channels.wait_until_ready(self.channel, self.check_start)

  @contextlib.contextmanager
  def _ending_on_error(self):
    try:
      yield
    except BaseException:
      self.close()
      raise

  def check_start(self) -> None:
    """Raises a `WorkerError` if the start has failed or takes too long."""
    self._check()
    if self.wait(0):
      raise WorkerError(
        f'The TFF worker process could not start: it {self.describe_end()}'
      )
    if time.monotonic() > self._deadline:
      raise WorkerError(
        'The TFF worker process did not answer within'
        f' {self._start_timeout:g} s.{self.read_log()}'
      )

  def close(self) -> None:
    """Ends the worker and waits until it is gone."""
    self.channel.close()
    # A worker holds nothing that would need an orderly end.
    self._process.kill()
    self._process.wait()
    self._log.close()

  def describe_end(self) -> str:
    """Says how the process ended, as the rest of a sentence."""
    status = self._process.returncode
    return f'ended with exit status {status}.{self.read_log()}'

  def read_log(self) -> str:
    """Returns the end of the worker's output, if any, as a sentence."""
    self._log.seek(0)
    text = self._log.read().decode(errors='replace').strip()
    return f' Its output ends with:\n{text[-2000:]}' if text else ''


def start_on_free_port(
  *,
  start_timeout: float,
  check: Callable[[], None],
  num_on_machine: int = 1,
) -> WorkerProcess:
  """Starts a worker on a free port and waits until it answers.

  The worker listens on 127.0.0.1 alone. Where the kernel does not let it be
  confined, it listens on all interfaces, and a warning is logged once.

  Args:
    start_timeout: How long the worker may take to answer, in seconds.
    check: Called again and again during the start; may raise an exception.
    num_on_machine: How many workers share the cores of this machine.

  Returns:
    The process.

  Raises:
    WorkerError: If the worker cannot be started or does not answer in time, or
      this host cannot connect to itself.
  """
  try:
    listener = loopback.create_listener()
  except OSError as error:
    raise WorkerError(
      f'A program on this host cannot connect to {loopback.ADDRESS}'
      f' ({error.strerror or error}), where the TFF worker would listen; is the'
      ' loopback interface up (`ip link set lo up`)?'
    ) from error
  create = functools.partial(
    WorkerProcess,
    start_timeout=start_timeout,
    check=check,
    num_on_machine=num_on_machine,
  )
  with listener:
    port = listener.getsockname()[1]
    try:
      process = create(port, listener=listener)
    except loopback.ConfinementError as error:
      _warn_of_open_ports(str(error))
    else:
      process.wait_until_ready()
      return process
  # Keeps a port free for the worker, which shares it (SO_REUSEPORT).
  with socket.socket() as holder:
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((loopback.ADDRESS, 0))
    port = holder.getsockname()[1]
    process = create(port)
    process.wait_until_ready()
    return process


@functools.cache  # One warning in a process.
def _warn_of_open_ports(reason: str) -> None:
  logging.warning(
    'The TFF workers of this process listen on all interfaces, because the'
    ' kernel does not let them be confined to %s (%s). Whoever reaches their'
    ' ports can run code as this user: let a firewall drop connections from'
    ' other hosts, see docs/scale_out.md.',
    loopback.ADDRESS,
    reason,
  )


def _find_worker_binary() -> pathlib.Path:
  """Returns where the TFF package keeps its worker."""
  spec = importlib.util.find_spec('tensorflow_federated')
  if spec is None or spec.origin is None:
    raise WorkerError('The package tensorflow-federated is not installed.')
  return pathlib.Path(spec.origin).parent / 'data' / 'worker_binary'


def create_environment(num_on_machine: int = 1) -> dict[str, str]:
  """Returns a worker's environment: what the user set, and defaults.

  Clients run in parallel, so each needs one thread only: 1.6 times faster than
  one client after the other on all cores. That thread is the one that TFF calls
  TensorFlow from (a negative number of inter-op threads): handing each graph to
  another thread costs 5 % of a round.

  Each client allocates and frees megabytes for its update. The malloc settings
  let the worker keep that memory instead of giving it back to the kernel, which
  costs thousands of page faults an update. There are as many arenas as clients
  in parallel. With fewer, clients wait for each other's allocations, for a
  third of the time of Shakespeare's small tensors; with many more, the worker
  grows for hundreds of rounds.
  """
  return {
    'TF_NUM_INTRAOP_THREADS': str(threads_per_client()),
    'TF_NUM_INTEROP_THREADS': '-1',
    'GLIBC_TUNABLES': ':'.join(
      (
        f'glibc.malloc.mmap_threshold={2**32}',
        f'glibc.malloc.trim_threshold={2**32}',
        f'glibc.malloc.top_pad={2**26}',
        f'glibc.malloc.arena_max={_count_parallel_clients(num_on_machine)}',
      )
    ),
    **os.environ,
    # A `WorkerError` shows the errors; this program may log less itself.
    'TF_CPP_MIN_LOG_LEVEL': '2',
  }


def _start_from_lasting_thread(
  command: Sequence[str], **kwargs
) -> subprocess.Popen:
  """Starts a process from a thread that lives as long as the process.

  The kernel's parent-death signal comes when the *thread* that started the
  process ends, and the caller's thread may be a short-lived one.
  """
  started: concurrent.futures.Future = concurrent.futures.Future()

  def run():
    try:
      process = subprocess.Popen(command, **kwargs)
    except Exception as error:
      started.set_exception(WorkerError(f'Could not start a process: {error}'))
    else:
      started.set_result(process)
      process.wait()

  threading.Thread(target=run, name='tff-worker-keeper', daemon=True).start()
  return started.result()


def threads_per_client() -> int:
  """Returns the number of threads that a local worker trains one client with.

  Results depend on this number, bit for bit.

  Returns:
    The number; 0 or less stands for as many threads as there are cores.

  Raises:
    WorkerError: If TF_NUM_INTRAOP_THREADS in the environment is no number.
  """
  value = os.environ.get('TF_NUM_INTRAOP_THREADS', '1')
  try:
    return int(value)
  except ValueError as error:
    raise WorkerError(
      'The environment variable TF_NUM_INTRAOP_THREADS must be an integer,'
      f' found {value!r}.'
    ) from error


def _count_parallel_clients(num_on_machine: int = 1) -> int:
  """Returns how many clients a local worker trains at the same time.

  As many as keep the worker's part of the cores busy. With more, which is TFF's
  default, their updates drive each other out of the caches, and all are held in
  memory.
  """
  threads = threads_per_client()
  if threads <= 0:
    return 1
  cores = len(os.sched_getaffinity(0))
  return max(1, cores // threads // num_on_machine)
