"""A worker holds few executors, and what they held is freed."""

import asyncio
import contextlib
import gc
import inspect
import re
import threading
import weakref

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tests.runtime import tools
from tff_ocs import execution
from tff_ocs.runtime import caching_executor
from tff_ocs.runtime import channels
from tff_ocs.runtime import executors
from tff_ocs.runtime import workers


@tff.tensorflow.computation(np.float32, np.float32)
def _add(state, value):
  return state + value


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(np.float32, tff.CLIENTS),
)
def _add_sum(state, values):
  return tff.federated_map(_add, (state, tff.federated_sum(values)))


@pytest.fixture
def in_worker(monkeypatch):
  """The ids of the executors that the worker has now."""
  stub = tff.framework.RemoteExecutorGrpcStub
  found = []
  get_executor, dispose_executor = stub.get_executor, stub.dispose_executor

  def record_get(self, request):
    response = get_executor(self, request)
    found.append(response.executor.id)
    return response

  def record_dispose(self, request):
    response = dispose_executor(self, request)
    found.remove(request.executor.id)
    return response

  monkeypatch.setattr(stub, 'get_executor', record_get)
  monkeypatch.setattr(stub, 'dispose_executor', record_dispose)
  return found


@pytest.fixture
def created(monkeypatch):
  """Weak references to all executors of this process."""
  found = []
  create = caching_executor.CachingExecutor.__init__

  def record(executor, stub):
    create(executor, stub)
    found.append(weakref.ref(executor))

  monkeypatch.setattr(caching_executor.CachingExecutor, '__init__', record)
  return found


def test_worker_holds_few_executors(in_worker, created):
  with execution.use_local_context():
    for _ in range(2):
      for n in range(1, 13):
        assert tools.total([n] * n) == n * n
        assert len(in_worker) <= executors.MAX_EXECUTORS
    assert len(created) == 24
    gc.collect()
    alive = [reference for reference in created if reference() is not None]
    assert alive == created[-executors.MAX_EXECUTORS :]


def test_executors_in_turn_are_kept(created):
  with execution.use_local_context():
    for _ in range(3):
      for n in range(1, executors.MAX_EXECUTORS + 1):
        assert tools.total([n] * n) == n * n
  assert len(created) == executors.MAX_EXECUTORS


def test_executor_used_longest_ago_is_disposed_of(created):
  with execution.use_local_context():
    # With executors 1 to MAX in this order, 1 is used again before MAX + 1.
    for n in (*range(1, executors.MAX_EXECUTORS + 1), 1):
      tools.total([1] * n)
    tools.total([1] * (executors.MAX_EXECUTORS + 1))
    num_created = len(created)
    tools.total([1])
    assert len(created) == num_created
    tools.total([1, 1])
    assert len(created) == num_created + 1


def test_state_of_an_executor_that_was_disposed_of(in_worker):
  with execution.use_local_context():
    state = _add_sum(np.float32(1), [1.0])
    former = list(in_worker)
    for n in range(2, executors.MAX_EXECUTORS + 3):
      _add_sum(np.float32(n), [1.0] * n)
    assert not set(former) & set(in_worker)
    for n in (1, 2, 1):
      state = _add_sum(state, [1.0] * n)
    assert state == 1 + 1 + 1 + 2 + 1


def test_executors_in_use_are_not_disposed_of(in_worker, created):
  num_computations = 3 * executors.MAX_EXECUTORS
  worker = workers.LocalWorker(tools.PATIENCE_SECONDS)
  context = executors.WorkerContext(worker)

  async def compute():
    # Their arguments have several elements, which are sent in turns.
    return await asyncio.gather(
      *[
        context.invoke(
          _add_sum,
          tff.structure.Struct.unnamed(np.float32(n), [1.0] * n),
        )
        for n in range(1, num_computations + 1)
      ]
    )

  try:
    results = asyncio.run(compute())
    assert results == [2 * n for n in range(1, num_computations + 1)]
    # Nothing was lost and made again.
    assert len(created) == num_computations
    assert len(in_worker) > executors.MAX_EXECUTORS
    asyncio.run(
      context.invoke(_add_sum, tff.structure.Struct.unnamed(1.0, [1.0]))
    )
    assert len(in_worker) == executors.MAX_EXECUTORS
  finally:
    context.close()
    worker.close()


def test_failed_computation_leaves_no_executor_behind(in_worker, created):
  @tff.tensorflow.computation(np.str_)
  def read(path):
    return tf.io.read_file(path)

  with execution.use_local_context():
    assert tools.total([1]) == 1
    before = list(in_worker)
    with pytest.raises(Exception, match='is-not-there'):
      read('/is-not-there')
    assert in_worker == before
    gc.collect()
    assert [reference() is None for reference in created] == [False, True]


@pytest.mark.parametrize('outlives_context', [False, True])
def test_left_while_an_executor_is_made(outlives_context, monkeypatch):
  worker = workers.LocalWorker(tools.PATIENCE_SECONDS)
  worker.outlives_context = outlives_context
  context = executors.WorkerContext(worker)
  set_cardinalities = caching_executor.CachingExecutor.set_cardinalities
  closed = []

  def leave(executor, cardinalities):
    set_cardinalities(executor, cardinalities)
    context.close()

  monkeypatch.setattr(
    caching_executor.CachingExecutor, 'set_cardinalities', leave
  )
  monkeypatch.setattr(
    caching_executor.CachingExecutor, 'close', lambda self: closed.append(self)
  )
  try:
    with pytest.raises(execution.WorkerError, match='was left'):
      asyncio.run(context.invoke(tools.total, [1, 2]))
  finally:
    worker.close()
  # The worker would hold the new executor for ever, as nobody knows it.
  assert len(closed) == outlives_context


def test_left_while_executors_are_counted(monkeypatch):
  worker = workers.LocalWorker(tools.PATIENCE_SECONDS)
  context = executors.WorkerContext(worker)
  forget = caching_executor.CachingExecutor.forget
  started, ended = threading.Event(), threading.Event()
  leaving = threading.Thread(target=lambda: (context.close(), ended.set()))

  async def compute():
    for n in (1, 2):
      assert await context.invoke(tools.total, [1] * n) == n
    monkeypatch.setattr(
      caching_executor.CachingExecutor, 'forget', forget_while_left
    )
    await context.invoke(tools.total, [1, 1, 1])

  def forget_while_left(executor):
    if not started.is_set():
      started.set()
      leaving.start()
      # The other thread waits until the executors are counted.
      assert not ended.wait(0.2)
    forget(executor)

  try:
    # The computation itself may end, or not.
    with contextlib.suppress(execution.WorkerError, grpc.RpcError):
      asyncio.run(compute())
    leaving.join(tools.PATIENCE_SECONDS)
    assert ended.is_set()
  finally:
    worker.close()


@pytest.mark.parametrize('is_closed', [False, True])
def test_values_of_a_lost_worker_are_disposed_of_in_silence(is_closed):
  channel = grpc.insecure_channel('127.0.0.1:1')  # Nobody listens there.
  stub = workers._Stub(channels.UnwatchedChannel(channel))
  if is_closed:
    channel.close()
  stub.dispose(executor_pb2.DisposeRequest())
  channel.close()


# Python functions.


def _generate():
  yield np.float32(1)


@tff.tensorflow.computation(tff.SequenceType(np.float32))
def _sum(dataset):
  return dataset.reduce(np.float32(0), lambda x, y: x + y)


@tff.federated_computation(
  tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
)
def _sum_of_clients(datasets):
  return tff.federated_sum(tff.federated_map(_sum, datasets))


def test_data_set_from_a_generator():
  dataset = tf.data.Dataset.from_generator(
    _generate, output_signature=tf.TensorSpec([], tf.float32)
  )
  for computation, argument in (
    (_sum, dataset),
    (_sum_of_clients, [dataset, dataset]),
  ):
    with pytest.raises(ValueError, match='from_tensor_slices') as error:
      computation(argument)
    assert 'from_generator' in str(error.value)
    assert '\n' not in str(error.value)
  # The way round.
  in_memory = tf.data.Dataset.from_tensor_slices(list(dataset))
  assert _sum_of_clients([in_memory, in_memory]) == 2


def test_python_function_in_a_computation():
  @tff.tensorflow.computation(np.float32)
  def compute(x):
    y = tf.py_function(lambda x: x + 1, [x], tf.float32)
    return tf.ensure_shape(y, [])

  with pytest.raises(ValueError, match='cannot call Python functions'):
    compute(1.0)


# Names of TFF that another version could break.


@pytest.mark.parametrize(
  ('ours', 'theirs'),
  [
    (
      caching_executor.CachingExecutor,
      tff.framework.RemoteExecutor(tff.framework.RemoteExecutorStub),
    ),
    (
      executors.WorkerContext,
      tff.framework.AsyncExecutionContext(
        executors.WorkerExecutorFactory(None)
      ),
    ),
    (
      channels.UnwatchedChannel,
      grpc.insecure_channel('127.0.0.1:1'),
    ),
  ],
)
def test_no_private_name_of_a_base_class_is_used(ours, theirs):
  text = inspect.getsource(ours)
  names = set(re.findall(r'\b(?:self\.|super\(\)\.|def )(_[a-z]\w*)', text))
  assert not names & set(dir(theirs))
