"""How computations run in a worker: executors, retries and an async context."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any
from typing import Optional

import grpc
import tensorflow_federated as tff
from absl import logging

from tff_ocs.runtime import caching_executor
from tff_ocs.runtime import workers
from tff_ocs.runtime.worker_process import WorkerError

MAX_EXECUTORS = 4
_MAX_RETRIES = 3
_DISPOSE_TIMEOUT_SECONDS = 5.0


@dataclasses.dataclass
class _Invocation:
  """A computation, with all its retries."""

  executor: Optional[caching_executor.CachingExecutor] = None
  num_failures: int = 0


class WorkerExecutorFactory(tff.framework.ExecutorFactory):
  """Makes executors in one worker and limits the retries of a computation.

  The worker holds an executor for each cohort size (more exactly, for each
  cardinality of placements). With `MAX_EXECUTORS` of them, the one that was
  used longest ago is disposed of in the worker, with all that it holds. TFF's
  own factory, in contrast, drops it here and leaves it in the worker. It also
  retries without end a computation that ends the worker each time.

  All methods but `close` are called from one event loop. `close` may be called
  from another thread, in the middle of any of them.
  """

  def __init__(self, worker: workers.Worker):
    """Initializes `WorkerExecutorFactory`.

    Args:
      worker: The worker.
    """
    self._worker = worker
    self._stub: Any = None
    self._lock = threading.RLock()
    self._is_closed = False
    # By cardinalities, the one last used at the end.
    self._executors: dict[frozenset, caching_executor.CachingExecutor] = {}
    self._invocations: dict[Any, _Invocation] = {}

  @contextlib.contextmanager
  def invocation(self):
    """Surrounds a computation, with all its retries, in its asyncio task.

    Yields:
      A function to call with the computation's final result.
    """
    task = asyncio.current_task()
    invocation = self._invocations[task] = _Invocation()

    def keep(result):
      # An executor that was dropped meanwhile must not keep anything.
      if invocation.executor in self._executors.values():
        invocation.executor.keep(result)

    try:
      yield keep
    finally:
      del self._invocations[task]

  def create_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> caching_executor.CachingExecutor:
    invocation = self._invocations[asyncio.current_task()]
    self._connect(invocation.num_failures)
    key = frozenset(cardinalities.items())
    known = self._executors.get(key)
    executor = known or self._create(cardinalities)
    with self._lock:
      if self._is_closed:
        # `close` has disposed of those that it knew.
        if known is None:
          self._dispose_in_worker([executor])
        raise workers.create_left_error()
      self._executors.pop(key, None)
      self._executors[key] = invocation.executor = executor
      # Of all executors only one keeps a result.
      self._forget_all_but(executor)
      # Dispose of executors beyond the maximum that no computation uses.
      in_use = [i.executor for i in self._invocations.values()]
      idle = [k for k, e in self._executors.items() if e not in in_use]
      num_excess = max(0, len(self._executors) - MAX_EXECUTORS)
      excess = [self._executors.pop(key) for key in idle[:num_excess]]
    for idle_executor in excess:
      idle_executor.close()
    return executor

  def clean_up_executor(
    self, cardinalities: tff.framework.CardinalitiesType
  ) -> None:
    self._invocations[asyncio.current_task()].num_failures += 1
    with self._lock:
      self._forget_all_but(None)
      failed = self._executors.pop(frozenset(cardinalities.items()), None)
    if failed is not None:
      _dispose([failed])

  def close(self) -> None:
    """Drops all executors; a worker that goes on forgets what they hold."""
    with self._lock:
      self._is_closed = True
      executors = self._drop_all()
    self._dispose_in_worker(executors)

  def _dispose_in_worker(self, executors):
    if self._worker.outlives_context:
      _dispose(executors)

  def _forget_all_but(self, kept):
    for executor in self._executors.values():
      if executor is not kept:
        executor.forget()

  def _drop_all(self):
    with self._lock:
      self._forget_all_but(None)
      executors = list(self._executors.values())
      self._executors.clear()
    return executors

  def _connect(self, num_failures: int) -> None:
    """Sees to a live worker; drops the executors of one that was lost."""
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
      logging.warning('The TFF worker was lost; a new one was started.')
    if stub is not self._stub:
      self._stub = stub
      # They are not disposed of in the new worker, which gives their ids anew.
      self._drop_all()

  def _create(self, cardinalities):
    executor = caching_executor.CachingExecutor(self._stub)
    try:
      executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    except grpc.RpcError as error:
      if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
        raise
      raise WorkerError(
        'What answers is not a TFF worker, but another gRPC server.'
        f' {self._worker.describe_loss()}'
      ) from error
    return executor


class WorkerContext(tff.framework.AsyncExecutionContext):
  """TFF's asynchronous context over one worker."""

  def __init__(
    self,
    worker: workers.Worker,
    compiler_fn: Optional[Callable[[Any], Any]] = (
      tff.backends.native.desugar_and_transform_to_native
    ),
  ):
    """Initializes `WorkerContext`.

    Args:
      worker: The worker.
      compiler_fn: Compiles computations to what the worker can run. With
        `None` they are compiled already.
    """
    super().__init__(
      executor_fn=WorkerExecutorFactory(worker),
      compiler_fn=compiler_fn,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )

  async def invoke(self, comp, arg):
    with self.executor_factory.invocation() as keep:
      try:
        result = await super().invoke(comp, arg)
      except grpc.RpcError as error:
        if 'PyFunc' in (error.details() or ''):
          raise ValueError(_PYTHON_FUNCTION_MESSAGE) from error
        raise
      keep(result)
      return result

  def close(self) -> None:
    """Drops all executors."""
    self.executor_factory.close()


_PYTHON_FUNCTION_MESSAGE = (
  'A TFF worker cannot call Python functions, as this computation or a data set'
  ' of its arguments does (tf.data.Dataset.from_generator, tf.py_function or'
  ' tf.numpy_function); build the data set from arrays in memory instead, with'
  ' tf.data.Dataset.from_tensor_slices, or pass a list of the examples.'
)


def _dispose(executors: list[caching_executor.CachingExecutor]) -> None:
  """Frees in the worker what executors hold, unless that takes long."""

  def dispose():
    # Raised if the connection was closed meanwhile.
    with contextlib.suppress(ValueError):
      for executor in executors:
        executor.close()

  thread = threading.Thread(target=dispose, daemon=True)
  thread.start()
  thread.join(_DISPOSE_TIMEOUT_SECONDS)
