"""TFF execution contexts that leave no worker process behind.

TFF 0.87 runs computations in a C++ worker process. Its default context starts
a worker that can outlive the program (and then keeps the program's standard
output open), and waits for ever for one that cannot start. With the contexts of
this module

*   a worker ends with its context, and in any case with this process;
*   a worker that cannot start, or keeps dying, is a `WorkerError`;
*   a worker can be reached from this host only;
*   the worker is set up for simulation, see
    `tff_ocs.runtime.worker_process.create_environment`.

Each context is a `tff.program.FederatedContext` too, so that TFF's program
logic runs in it.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable
from collections.abc import Iterator

import tensorflow_federated as tff

from tff_ocs.runtime import executors
from tff_ocs.runtime import worker_process
from tff_ocs.runtime import workers
from tff_ocs.runtime.worker_process import WorkerError

_INTERRUPT_SECONDS = 1.0
_CLOSE_TIMEOUT_SECONDS = 1.0


def use_local_context(
  *, start_timeout: float = worker_process.START_TIMEOUT_SECONDS
) -> contextlib.AbstractContextManager[tff.program.FederatedContext]:
  """Runs TFF computations in a worker process of its own.

  The worker starts at the first computation. If it dies, the computation is
  retried on a new one, at most three times. The worker listens on 127.0.0.1
  alone; where the kernel does not allow that (before Linux 5.9, or in a
  container that forbids seccomp filters), a warning is logged once.

  TFF's program logic runs in this context as well:

    with tff_ocs.execution.use_local_context():
      asyncio.run(tff.learning.programs.train_model(train_process=..., ...))

  A computation returns values, rather than references to values to come, so
  that training and evaluation take turns.

  Args:
    start_timeout: How long to wait for a worker to answer, in seconds.

  Returns:
    A context manager. It installs the context, a
    `tff.program.FederatedContext`, for the calling thread.

  Raises:
    ValueError: If `start_timeout` is not above 0. Also raised by a computation
      that would call a Python function in the worker.
    WorkerError: By a computation whose worker cannot be started, or dies each
      time.
  """
  return _use(workers.LocalWorker(start_timeout))


def use_remote_context(
  address: str,
  *,
  connect_timeout: float = worker_process.START_TIMEOUT_SECONDS,
) -> contextlib.AbstractContextManager[tff.program.FederatedContext]:
  """Runs TFF computations in a worker that was started separately.

  The connection has neither encryption nor credentials: use it within a trusted
  host or network, or through a tunnel. A computation that loses it is retried
  over a new connection, at most three times.

  Args:
    address: The worker's 'host:port'.
    connect_timeout: How long to wait for the worker to answer, in seconds.

  Returns:
    A context manager. It installs the context, a
    `tff.program.FederatedContext`, for the calling thread.

  Raises:
    ValueError: If `address` is not of the form 'host:port', or
      `connect_timeout` is not above 0. Also raised by a computation that would
      call a Python function in the worker.
    WorkerError: By a computation, if the worker cannot be reached, or is lost
      each time.
  """
  return _use(workers.RemoteWorker(address, connect_timeout))


def use_secure_test_context(
  *, start_timeout: float = worker_process.START_TIMEOUT_SECONDS
) -> contextlib.AbstractContextManager[tff.program.FederatedContext]:
  """Runs computations with secure sums, without cryptography: for tests only.

  TFF's open-source runtime has no secure summation protocol. In this context,
  as in `tff.backends.test`, secure sums are computed in the clear, with the
  same clipping and quantisation.

  Args:
    start_timeout: As for `use_local_context`.

  Returns:
    A context manager, as `use_local_context` does.

  Raises:
    ValueError: As for `use_local_context`.
    WorkerError: As for `use_local_context`.
  """

  def compile_insecurely(computation):
    computation = tff.backends.test.replace_secure_intrinsics_with_bodies(
      computation
    )
    return tff.backends.native.desugar_and_transform_to_native(computation)

  return _use(workers.LocalWorker(start_timeout), compile_insecurely)


class _Context(tff.program.FederatedContext):
  """Runs computations one by one in an event loop of its own thread.

  TFF's `SyncExecutionContext` does the same, but has no end: its thread and the
  files of its event loop stay until the program ends.
  """

  def __init__(self, worker: workers.Worker, *compiler_fn: Callable):
    self._worker = worker
    self._worker_context = executors.WorkerContext(worker, *compiler_fn)
    self._pid = os.getpid()
    self._lock = threading.Lock()
    self._is_closed = False
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
      target=_run_until_stopped, args=(self._loop,), daemon=True
    )
    self._thread.start()

  def invoke(self, comp, arg):
    # Would wait for ever: a forked process has none of its parent's threads.
    if os.getpid() != self._pid:
      raise WorkerError(
        'A TFF context does not work in a process forked from its own; enter'
        ' one in each process.'
      )
    with self._lock:
      if self._is_closed:
        raise workers.create_left_error()
      future = asyncio.run_coroutine_threadsafe(
        self._worker_context.invoke(comp, arg), self._loop
      )
    # A Ctrl-C that comes just before Python starts to wait is seen only when
    # that wait ends.
    while not future.done():
      concurrent.futures.wait([future], _INTERRUPT_SECONDS)
    return future.result()

  def close(self) -> None:
    """Ends all computations, the worker if it is this context's, the thread."""
    # A forked process has a copy of the context, but what the context runs on
    # is not the copy's to end.
    if os.getpid() != self._pid:
      return
    with self._lock:
      if self._is_closed:
        return
      self._is_closed = True
    self._worker_context.close()
    self._worker.close()
    self._loop.call_soon_threadsafe(self._loop.stop)
    # TFF's compiler cannot be interrupted. Rather than wait for it, after
    # Ctrl-C for example, leave the thread to end some time later.
    self._thread.join(_CLOSE_TIMEOUT_SECONDS)


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
  """Runs an event loop; cancels its tasks and closes it when it is stopped."""

  async def cancel_tasks():
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

  loop.run_forever()
  loop.run_until_complete(cancel_tasks())
  loop.close()


@contextlib.contextmanager
def _use(worker: workers.Worker, *compiler_fn: Callable) -> Iterator[_Context]:
  """Installs a context for the calling thread and closes it in the end."""
  context = _Context(worker, *compiler_fn)
  # A context that was never left, as in a notebook, would be closed at the very
  # end of the program: without the threads that it needs, so it would hang.
  atexit.register(context.close)
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    atexit.unregister(context.close)
    context.close()
