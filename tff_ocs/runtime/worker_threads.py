"""A thread for each worker, in which computations wait for the worker."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from collections.abc import Coroutine
from typing import Any
from typing import Optional

import tensorflow_federated as tff

from tff_ocs.runtime import executors
from tff_ocs.runtime import workers

_CLOSE_TIMEOUT_SECONDS = 1.0


class WorkerThread:
  """An event loop for one worker, in a thread of its own.

  TFF's `RemoteExecutor` blocks the event loop while a worker computes, so that
  workers that share an event loop compute one after the other.

  TFF's `SyncExecutionContext` has such a thread, too, but no end: its thread
  and the files of its event loop stay until the program ends.
  """

  def __init__(
    self,
    worker: workers.Worker,
    compiler_fn: Optional[Callable[[Any], Any]] = (
      tff.backends.native.desugar_and_transform_to_native
    ),
  ):
    """Initializes `WorkerThread`.

    Args:
      worker: The worker, which is closed with this object.
      compiler_fn: As for `executors.WorkerContext`.
    """
    self._worker = worker
    self._context = executors.WorkerContext(worker, compiler_fn)
    self._lock = threading.Lock()
    self._is_closed = False
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
      target=_run_until_stopped, args=(self._loop,), daemon=True
    )
    self._thread.start()

  def invoke(self, computation: Any, arg: Any) -> concurrent.futures.Future:
    """Runs a computation; returns its result as a future."""
    return self.start(lambda context: context.invoke(computation, arg))

  def start(
    self,
    function: Callable[[executors.WorkerContext], Coroutine[Any, Any, Any]],
  ) -> concurrent.futures.Future:
    """Calls a coroutine function with the worker's context in the thread.

    Args:
      function: The function.

    Returns:
      A future of its result.

    Raises:
      WorkerError: If this object was closed.
    """
    with self._lock:
      if self._is_closed:
        raise workers.create_left_error()
      return asyncio.run_coroutine_threadsafe(
        function(self._context), self._loop
      )

  def close(self) -> None:
    """Ends all computations, the worker if it is this program's, the thread."""
    with self._lock:
      if self._is_closed:
        return
      self._is_closed = True
    self._context.close()
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
