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

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from typing import Optional

import grpc
import portpicker
import tensorflow_federated as tff
from absl import logging

from tff_ocs.runtime import caching_executor

_START_TIMEOUT_SECONDS = 50.0
_DISPOSE_TIMEOUT_SECONDS = 5.0
_MAX_RETRIES = 3
_MAX_MESSAGE_BYTES = 2**31 - 1
_CHANNEL_OPTIONS = (
  ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  # The first attempt comes before the worker listens; do not wait 1 s then.
  ('grpc.initial_reconnect_backoff_ms', 100),
  ('grpc.min_reconnect_backoff_ms', 100),
  ('grpc.max_reconnect_backoff_ms', 1000),
  # A proxy for the web, from the environment, does not know the worker.
  ('grpc.enable_http_proxy', 0),
)
# A worker on another host can vanish without a word, and a computation that
# waits for it would wait for ever. So it is asked, when it has sent nothing for
# so long, whether it is there. Asked more often than each 5 minutes, TFF's
# worker hangs up.
_REMOTE_CHANNEL_OPTIONS = (
  *_CHANNEL_OPTIONS,
  ('grpc.keepalive_time_ms', 310_000),
  ('grpc.keepalive_timeout_ms', 30_000),
  ('grpc.http2.max_pings_without_data', 0),  # Without end.
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
  retried on a new one, at most three times.

  Args:
    start_timeout: How long to wait for a worker to answer, in seconds.

  Yields:
    The `tff.framework.SyncExecutionContext`, installed for the calling thread.

  Raises:
    ValueError: If `start_timeout` is not above 0.
    WorkerError: By a computation whose worker cannot be started, or dies each
      time.
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
  host or network, or through a tunnel. A computation that loses it is retried
  over a new connection, at most three times.

  Args:
    address: The worker's 'host:port'.
    connect_timeout: How long to wait for the worker to answer, in seconds.

  Yields:
    The `tff.framework.SyncExecutionContext`, installed for the calling thread.

  Raises:
    ValueError: If `address` is not of the form 'host:port', or
      `connect_timeout` is not above 0.
    WorkerError: By a computation, if the worker cannot be reached, or is lost
      each time.
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
    WorkerError: By a computation whose worker cannot be started, or dies each
      time.
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
  executors = _ExecutorFactory(worker)
  context = _Context(
    executor_fn=executors,
    compiler_fn=compiler_fn,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )

  def end():
    # A forked process has a copy of the context, but its worker is not the
    # copy's to end.
    if not context.is_copy():
      executors.close()
      worker.close()
      context.close()

  # A context that was never left, as in a notebook, would be at the very end of
  # the program: without the threads that it needs, and so wait for ever.
  atexit.register(end)
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    atexit.unregister(end)
    end()


class _Context(tff.framework.SyncExecutionContext):
  """TFF's context, with an end."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self._pid = os.getpid()
    self._is_closed = False

  def is_copy(self) -> bool:
    """Whether this process was forked from the one that made the context."""
    return os.getpid() != self._pid

  def invoke(self, comp, arg):
    _check_not_closed(self._is_closed)
    # Would wait for ever: a forked process has none of its parent's threads.
    if self.is_copy():
      raise WorkerError(
        'A TFF context does not work in a process forked from its own; enter'
        ' one in each process.'
      )
    return super().invoke(comp, arg)

  def close(self):
    """Ends the thread and closes the files that TFF's class would leak."""
    if self._is_closed:
      return
    self._is_closed = True
    runner = self._async_runner
    loop, thread = runner._event_loop, runner._thread

    async def cancel_tasks():
      tasks = asyncio.all_tasks() - {asyncio.current_task()}
      for task in tasks:
        task.cancel()
      await asyncio.gather(*tasks, return_exceptions=True)

    try:
      asyncio.run_coroutine_threadsafe(cancel_tasks(), loop).result(1)
    except concurrent.futures.TimeoutError:
      # TFF's Python code, such as its compiler, cannot be interrupted: after
      # Ctrl-C, rather leak than wait.
      return
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    runner._finalizer = lambda *_: None


class _ExecutorFactory(tff.framework.ExecutorFactory):
  """Makes executors in one worker, and limits the retries of a computation.

  TFF retries without end what may have been the end of the worker, and keeps
  the executors of a worker that is gone.
  """

  def __init__(self, worker):
    self._worker = worker
    self._stub = None
    self._executors = None
    self._created = []
    # A computation, with all its retries, is one task in TFF's event loop.
    self._num_failures = weakref.WeakKeyDictionary()

  def create_executor(self, cardinalities):
    num_failures = self._num_failures.get(asyncio.current_task(), 0)
    if num_failures > _MAX_RETRIES:
      raise WorkerError(
        f'The TFF worker was lost {num_failures} times in one computation.'
        f' {self._worker.describe_loss()}'
      )
    stub = self._worker.connect(is_retry=num_failures > 0)
    if num_failures > 0:
      logging.warning(
        'The TFF worker was lost in a computation; retry %d of %d.',
        num_failures,
        _MAX_RETRIES,
      )
    elif self._stub not in (None, stub):
      logging.warning('The TFF worker was lost; there is a new one.')
    if stub is not self._stub:
      self._stub = stub
      self._executors = tff.framework.ResourceManagingExecutorFactory(
        functools.partial(self._create, stub)
      )
    executor = self._executors.create_executor(cardinalities)
    # There is one for each size of the cohort: only one keeps a result.
    for other in self._created:
      if other is not executor:
        other.forget()
    return executor

  def _create(self, stub, cardinalities):
    executor = caching_executor.ResidentExecutor(stub)
    try:
      executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    except grpc.RpcError as error:
      if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
        raise
      raise WorkerError(
        'What answers is not a TFF worker, but another gRPC server.'
        f' {self._worker.describe_loss()}'
      ) from error
    self._created.append(executor)
    return executor

  def close(self):
    """Drops all executors; a worker that goes on forgets what it holds."""
    for executor in self._created:
      executor.forget()
      if self._worker.outlives_context:
        # Raised for a connection that was lost before, and all with it.
        with contextlib.suppress(ValueError):
          executor.close()

  def clean_up_executor(self, cardinalities):
    task = asyncio.current_task()
    self._num_failures[task] = self._num_failures.get(task, 0) + 1
    for executor in self._created:
      executor.forget()
    if self._executors is not None:
      self._executors.clean_up_executor(cardinalities)


class WorkerProcess:
  """A worker process on this machine, which ends with this process.

  Attributes:
    stub: What executors reach it by, once it is connected.
  """

  def __init__(
    self,
    port: int,
    start_timeout: float = _START_TIMEOUT_SECONDS,
    *,
    launcher: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
  ):
    """Starts it.

    Args:
      port: What the worker is told to listen on.
      start_timeout: How long it may take to answer, in seconds.
      launcher: A command that executes the command that is appended to it.
      pass_fds: The files that `launcher` inherits.

    Raises:
      WorkerError: If there is nothing to start.
    """
    binary = _worker_binary()
    if not os.access(binary, os.X_OK):
      raise WorkerError(
        f'The TFF worker {binary} is missing or not executable; reinstall'
        ' tensorflow-federated.'
      )
    self.stub = None
    self._channel = None
    self._start_timeout = start_timeout
    self._deadline = time.monotonic() + start_timeout
    self._log = tempfile.TemporaryFile()
    self._process = _start_process_of_own_thread(
      [
        sys.executable,
        # Nothing from the working directory or the environment.
        '-IS',
        '-c',
        _LAUNCHER,
        str(os.getpid()),
        *launcher,
        str(binary),
        f'--port={port}',
        f'--max_concurrent_computation_calls={_parallel_clients()}',
      ],
      env=_worker_environment(),
      stdin=subprocess.DEVNULL,
      stdout=self._log,
      stderr=self._log,
      pass_fds=pass_fds,
      # Ctrl-C is for this process, which then ends the worker.
      start_new_session=True,
    )

  @property
  def is_running(self) -> bool:
    """Whether it has not ended."""
    return self._process.poll() is None

  def wait(self, timeout: Optional[float] = None) -> None:
    """Waits until it has ended, or for so many seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(timeout)

  def connect(
    self, port: int, check: Callable[[], None] = lambda: None
  ) -> None:
    """Waits until the worker answers.

    Args:
      port: What it listens on.
      check: Called again and again meanwhile; may raise an exception.

    Raises:
      WorkerError: If it ends, or does not answer in time.
    """
    # Not 'localhost', which may resolve to an address not listened on.
    self._channel = grpc.insecure_channel(f'127.0.0.1:{port}', _CHANNEL_OPTIONS)
    self.stub = tff.framework.RemoteExecutorGrpcStub(self._channel)
    while not self.stub.is_ready:
      check()
      self.check_start()
      time.sleep(0.01)

  def check_start(self) -> None:
    """Raises a `WorkerError` if the start has failed, or takes too long."""
    if not self.is_running:
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
    if self._channel is not None:
      self._channel.close()
      self._channel = self.stub = None
    # A worker holds nothing that would need an orderly end.
    self._process.kill()
    self._process.wait()
    self._log.close()

  def describe_end(self) -> str:
    """Tells how it ended."""
    return (
      f'ended with exit status {self._process.returncode}.{self.read_log()}'
    )

  def read_log(self) -> str:
    """The end of its output, if there is any, as a sentence."""
    self._log.seek(0)
    text = self._log.read().decode(errors='replace').strip()
    return f' Its output ends with:\n{text[-2000:]}' if text else ''


class _LocalWorker:
  """A worker process on this machine, started when first needed."""

  outlives_context = False

  def __init__(self, start_timeout):
    self._start_timeout = _check_timeout('start_timeout', start_timeout)
    self._lock = threading.Lock()
    self._is_closed = False
    self._process = None

  def connect(self, is_retry: bool) -> tff.framework.RemoteExecutorGrpcStub:
    """Returns a stub for a live worker; starts one if there is none."""
    with self._lock:
      _check_not_closed(self._is_closed)
      if self._process is not None:
        if is_retry:
          self._wait_briefly()
        if self._process.is_running:
          return self._process.stub
      self._stop()
      self._start()
      return self._process.stub

  def describe_loss(self) -> str:
    """Tells what is known about a worker that just failed."""
    with self._lock:
      if self._process is None:
        return 'It could not be started again.'
      self._wait_briefly()
      if self._process.is_running:
        return f'Its process still runs.{self._process.read_log()}'
      return f'The last one {self._process.describe_end()}'

  def close(self):
    self._is_closed = True  # Ends a start that another thread waits for.
    with self._lock:
      self._stop()

  def _wait_briefly(self):
    """Lets a process end, which can be seen later than its connection's end."""
    self._process.wait(1)

  def _start(self):
    port = portpicker.pick_unused_port()
    self._process = WorkerProcess(port, self._start_timeout)
    try:
      self._process.connect(port, lambda: _check_not_closed(self._is_closed))
    except BaseException:
      self._stop()
      raise

  def _stop(self):
    if self._process is not None:
      self._process.close()
      self._process = None


class _RemoteStub(tff.framework.RemoteExecutorGrpcStub):
  """Does not wait long for a worker to forget something."""

  def dispose_executor(self, request):
    return self._stub.DisposeExecutor(request, timeout=_DISPOSE_TIMEOUT_SECONDS)


class _RemoteWorker:
  """A worker that somebody else started."""

  outlives_context = True

  def __init__(self, address, connect_timeout):
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
    self._channel = None
    self._stub = None

  def connect(self, is_retry: bool) -> tff.framework.RemoteExecutorGrpcStub:
    """Returns a stub over a live connection."""
    with self._lock:
      _check_not_closed(self._is_closed)
      if self._stub is None or is_retry:
        self._stop()
        self._start()
      return self._stub

  def describe_loss(self) -> str:
    """Tells what is known about a worker that just failed."""
    return f'It is at {self._address}, and somebody else looks after it.'

  def close(self):
    self._is_closed = True  # Ends a start that another thread waits for.
    with self._lock:
      self._stop()

  def _start(self):
    self._channel = grpc.insecure_channel(
      self._address, _REMOTE_CHANNEL_OPTIONS
    )
    self._stub = _RemoteStub(self._channel)
    try:
      self._wait_until_ready()
    except BaseException:
      self._stop()
      raise

  def _wait_until_ready(self):
    deadline = time.monotonic() + self._connect_timeout
    while not self._stub.is_ready:
      _check_not_closed(self._is_closed)
      if time.monotonic() > deadline:
        raise WorkerError(
          f'No TFF worker answers at {self._address} within'
          f' {self._connect_timeout:g} s; is one running there?'
        )
      time.sleep(0.01)

  def _stop(self):
    if self._channel is not None:
      self._channel.close()
      self._channel = self._stub = None


def _worker_binary() -> pathlib.Path:
  """Where the TFF package keeps its worker."""
  return pathlib.Path(tff.__file__).parent / 'data' / 'worker_binary'


def _worker_environment() -> dict[str, str]:
  """The worker's environment: what the user set, and defaults.

  Clients run in parallel, so each needs one thread only: 1.6 times faster than
  one client after the other on all cores. That thread is the one that TFF calls
  TensorFlow from (a negative number of inter-op threads): to hand each graph to
  another thread costs 5 % of a round.

  An update is megabytes that come and go with each client. The malloc settings
  let the worker keep that memory instead of giving it back to the kernel, which
  costs thousands of page faults an update. There are as many arenas as clients
  in parallel: with fewer they wait for each other's allocations, for a third of
  the time of Shakespeare's small tensors; with many more the worker grows for
  hundreds of rounds.
  """
  parallel_clients = _parallel_clients()
  return {
    'TF_NUM_INTRAOP_THREADS': str(threads_per_client()),
    'TF_NUM_INTEROP_THREADS': '-1',
    'GLIBC_TUNABLES': ':'.join(
      (
        f'glibc.malloc.mmap_threshold={2**32}',
        f'glibc.malloc.trim_threshold={2**32}',
        f'glibc.malloc.top_pad={2**26}',
        f'glibc.malloc.arena_max={parallel_clients}',
      )
    ),
    **os.environ,
    # Errors, for a `WorkerError` to show; this program's own level may be less.
    'TF_CPP_MIN_LOG_LEVEL': '2',
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
    except Exception as error:
      result['error'] = error
    started.set()
    if 'process' in result:
      result['process'].wait()

  threading.Thread(target=run, name='tff-worker-keeper', daemon=True).start()
  started.wait()
  if 'error' in result:
    raise WorkerError(f'Could not start a process: {result["error"]}')
  return result['process']


def threads_per_client() -> int:
  """The threads that the local worker trains one client with.

  Results depend on their number, bit for bit.

  Returns:
    The number; 0 or less stands for as many as there are cores.

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


def _parallel_clients() -> int:
  """How many clients the local worker trains at the same time.

  As many as keep all cores busy. With more, which is TFF's default, their
  updates drive each other out of the caches, and all are held in memory.
  """
  threads = threads_per_client()
  return max(1, len(os.sched_getaffinity(0)) // threads) if threads > 0 else 1


def _check_not_closed(is_closed):
  if is_closed:
    raise WorkerError('The context of this TFF computation was left.')


def _check_timeout(name, seconds) -> float:
  if not seconds > 0:
    raise ValueError(f'{name} must be above 0 seconds, found {seconds!r}.')
  return float(seconds)
