"""TFF execution contexts that leave no worker process behind.

TFF 0.87 runs computations in a C++ worker process. Its default context starts
one that can outlive the program (and then keeps the program's standard output
open), and waits for ever for one that cannot start. Here

*   a worker ends with the context, and in any case with this process, however
    that ends (exit, exception, Ctrl-C, SIGTERM, SIGKILL): the kernel sees to
    it;
*   a worker that cannot start, or keeps dying, is a `WorkerError`;
*   the worker is set up for simulation, see `_worker_environment`.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import grpc
import portpicker
import tensorflow_federated as tff

_START_TIMEOUT_SECONDS = 50.0
_MAX_RESTARTS = 3
_MAX_MESSAGE_BYTES = 2**31 - 1
_CHANNEL_OPTIONS = (
  ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  # The first attempt comes before the worker listens; do not wait 1 s then.
  ('grpc.initial_reconnect_backoff_ms', 100),
  ('grpc.min_reconnect_backoff_ms', 100),
  ('grpc.max_reconnect_backoff_ms', 1000),
)

# Runs in the worker's process before the worker itself: asks the kernel for
# SIGKILL when the parent ends (1 is PR_SET_PDEATHSIG), and ends at once if it
# has ended already.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
  sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class WorkerError(RuntimeError):
  """Raised if a worker cannot be started, reached or kept alive."""


@contextlib.contextmanager
def use_local_context(*, start_timeout: float = _START_TIMEOUT_SECONDS):
  """Runs TFF computations in a worker process of its own.

  The worker starts at the first computation. If it dies, the computation is
  retried on a new one, at most three times in the life of the context.

  Args:
    start_timeout: How long to wait for a worker to answer, in seconds.

  Yields:
    The `tff.framework.SyncExecutionContext`, installed for the calling thread.

  Raises:
    ValueError: If `start_timeout` is not above 0.
    WorkerError: By a computation whose worker cannot be started.
  """
  with _use_worker(
    _LocalWorker(start_timeout),
    tff.backends.native.desugar_and_transform_to_native,
  ) as context:
    yield context


@contextlib.contextmanager
def use_remote_context(
  address: str, *, connect_timeout: float = _START_TIMEOUT_SECONDS
):
  """Runs TFF computations in a worker that was started separately.

  The connection has neither encryption nor credentials: use it within a trusted
  host or network, or through a tunnel. A lost connection is retried, at most
  three times in the life of the context.

  Args:
    address: The worker's 'host:port'.
    connect_timeout: How long to wait for the worker to answer, in seconds.

  Yields:
    The `tff.framework.SyncExecutionContext`, installed for the calling thread.

  Raises:
    ValueError: If `address` is not of the form 'host:port', or
      `connect_timeout` is not above 0.
    WorkerError: By a computation, if the worker cannot be reached.
  """
  with _use_worker(
    _RemoteWorker(address, connect_timeout),
    tff.backends.native.desugar_and_transform_to_native,
  ) as context:
    yield context


@contextlib.contextmanager
def use_secure_test_context(*, start_timeout: float = _START_TIMEOUT_SECONDS):
  """Runs computations with secure sums, without cryptography: for tests only.

  TFF's open-source runtime has no secure summation protocol. In this context,
  as in `tff.backends.test`, secure sums are computed in the clear, with the
  same clipping and quantisation.

  Args:
    start_timeout: How long to wait for a worker to answer, in seconds.

  Yields:
    The `tff.framework.SyncExecutionContext`, installed for the calling thread.

  Raises:
    ValueError: If `start_timeout` is not above 0.
    WorkerError: By a computation whose worker cannot be started.
  """

  def compile_insecurely(computation):
    computation = tff.backends.test.replace_secure_intrinsics_with_bodies(
      computation
    )
    return tff.backends.native.desugar_and_transform_to_native(computation)

  with _use_worker(_LocalWorker(start_timeout), compile_insecurely) as context:
    yield context


@contextlib.contextmanager
def _use_worker(worker, compiler_fn):
  """Installs a context whose executors all talk to `worker`."""

  def create_executor(cardinalities):
    cardinalities = dict(cardinalities)
    cardinalities.setdefault(tff.CLIENTS, 0)
    executor = tff.framework.RemoteExecutor(worker.connect())
    executor.set_cardinalities(cardinalities)
    return executor

  context = tff.framework.SyncExecutionContext(
    executor_fn=tff.framework.ResourceManagingExecutorFactory(create_executor),
    compiler_fn=compiler_fn,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    worker.close()


class _LocalWorker:
  """A worker process on this machine, started when first needed."""

  def __init__(self, start_timeout):
    self._start_timeout = _check_timeout('start_timeout', start_timeout)
    self._lock = threading.Lock()
    self._num_starts = 0
    self._process = None
    self._channel = None
    self._stub = None
    self._log = None

  def connect(self) -> tff.framework.RemoteExecutorGrpcStub:
    """Returns a stub for a live worker; starts one if there is none."""
    with self._lock:
      if self._process is not None and self._process.poll() is None:
        return self._stub
      if self._num_starts > _MAX_RESTARTS:
        raise WorkerError(
          f'The TFF worker process died {self._num_starts} times, the last'
          f' time {self._describe_end()}'
        )
      self._stop()
      self._num_starts += 1
      self._start()
      return self._stub

  def close(self):
    with self._lock:
      self._stop()

  def _start(self):
    binary = _worker_binary()
    if not os.access(binary, os.X_OK):
      raise WorkerError(
        f'The TFF worker {binary} is missing or not executable; reinstall'
        ' tensorflow-federated.'
      )
    port = portpicker.pick_unused_port()
    self._log = tempfile.TemporaryFile()
    self._process = _start_process_of_own_thread(
      [
        sys.executable,
        '-S',
        '-c',
        _LAUNCHER,
        str(os.getpid()),
        str(binary),
        f'--port={port}',
      ],
      env=_worker_environment(),
      stdin=subprocess.DEVNULL,
      stdout=self._log,
      stderr=self._log,
      # Ctrl-C is for this process, which then ends the worker.
      start_new_session=True,
    )
    # Not 'localhost', which may resolve to an address not listened on.
    self._channel = grpc.insecure_channel(f'127.0.0.1:{port}', _CHANNEL_OPTIONS)
    self._stub = tff.framework.RemoteExecutorGrpcStub(self._channel)
    deadline = time.monotonic() + self._start_timeout
    while not self._stub.is_ready:
      if self._process.poll() is not None:
        end = self._describe_end()
        self._stop()
        raise WorkerError(f'The TFF worker process could not start: {end}')
      if time.monotonic() > deadline:
        output = self._read_log()
        self._stop()
        raise WorkerError(
          'The TFF worker process did not answer within'
          f' {self._start_timeout:g} s.{output}'
        )
      time.sleep(0.01)

  def _stop(self):
    """Ends the worker, if there is one, and waits until it is gone."""
    if self._channel is not None:
      self._channel.close()
      self._channel = self._stub = None
    if self._process is not None:
      # A worker holds nothing that would need an orderly end.
      self._process.kill()
      self._process.wait()
      self._process = None
    if self._log is not None:
      self._log.close()
      self._log = None

  def _describe_end(self) -> str:
    return f'with exit status {self._process.returncode}.{self._read_log()}'

  def _read_log(self) -> str:
    self._log.seek(0)
    text = self._log.read().decode(errors='replace').strip()
    return f' Its output ends with:\n{text[-2000:]}' if text else ''


class _RemoteWorker:
  """A worker that somebody else started."""

  def __init__(self, address, connect_timeout):
    host, separator, port = str(address).rpartition(':')
    if not (separator and host and port.isdigit() and int(port) < 2**16):
      raise ValueError(
        "address must be of the form 'host:port', such as '127.0.0.1:8000',"
        f' found {address!r}.'
      )
    self._address = address
    self._connect_timeout = _check_timeout('connect_timeout', connect_timeout)
    self._num_connects = 0
    self._channel = None

  def connect(self) -> tff.framework.RemoteExecutorGrpcStub:
    """Returns a stub over a new connection."""
    if self._num_connects > _MAX_RESTARTS:
      raise WorkerError(
        f'The connection to the TFF worker at {self._address} was lost'
        f' {self._num_connects} times.'
      )
    self.close()
    self._num_connects += 1
    self._channel = grpc.insecure_channel(self._address, _CHANNEL_OPTIONS)
    stub = tff.framework.RemoteExecutorGrpcStub(self._channel)
    deadline = time.monotonic() + self._connect_timeout
    while not stub.is_ready:
      if time.monotonic() > deadline:
        raise WorkerError(
          f'No TFF worker answers at {self._address} within'
          f' {self._connect_timeout:g} s; is one running there?'
        )
      time.sleep(0.01)
    return stub

  def close(self):
    if self._channel is not None:
      self._channel.close()
      self._channel = None


def _worker_binary() -> pathlib.Path:
  """Where the TFF package keeps its worker."""
  return pathlib.Path(tff.__file__).parent / 'data' / 'worker_binary'


def _worker_environment() -> dict[str, str]:
  """The worker's environment: what the user set, and defaults.

  Clients run in parallel, so each needs one thread only: 1.6 times faster than
  one client after the other on all cores. And an update is megabytes that come
  and go with each client: without the malloc settings each costs thousands of
  page faults, a tenth of a round.
  """
  return {
    'TF_NUM_INTRAOP_THREADS': '1',
    'TF_CPP_MIN_LOG_LEVEL': '2',
    'GLIBC_TUNABLES': ':'.join(
      (
        'glibc.malloc.hugetlb=1',
        f'glibc.malloc.mmap_threshold={2**32}',
        f'glibc.malloc.trim_threshold={2**32}',
        f'glibc.malloc.top_pad={2**26}',
      )
    ),
    **os.environ,
  }


def _start_process_of_own_thread(command, **kwargs) -> subprocess.Popen:
  """Starts a process from a thread that lives as long as the process.

  The kernel's parent-death signal comes when the *thread* that started the
  process ends. TFF starts executors from short-lived threads.
  """
  started = threading.Event()
  result = {}

  def run():
    try:
      result['process'] = subprocess.Popen(command, **kwargs)
    except OSError as error:
      result['error'] = error
    started.set()
    if 'process' in result:
      result['process'].wait()

  threading.Thread(target=run, name='tff-worker-keeper', daemon=True).start()
  started.wait()
  if 'error' in result:
    raise WorkerError(f'Could not start a process: {result["error"]}')
  return result['process']


def _check_timeout(name, seconds) -> float:
  if not seconds > 0:
    raise ValueError(f'{name} must be above 0 seconds, found {seconds!r}.')
  return float(seconds)
