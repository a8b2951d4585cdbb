"""Contexts start workers, replace them and end them as promised."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import tools
from tff_ocs import execution


def test_contexts_after_and_within_each_other(new_workers):
  with execution.use_local_context():
    assert tools.total([1, 2]) == 3
    (outer,) = new_workers()
    with execution.use_local_context():
      assert tools.total([1, 2, 3]) == 6
      assert len(new_workers()) == 2
    assert new_workers() == {outer}
    assert tools.total([1, 2, 3, 4]) == 10
    assert new_workers() == {outer}
  assert new_workers() == set()
  with execution.use_local_context():
    assert tools.total([5]) == 5
    assert new_workers() != {outer}


def test_worker_starts_when_first_needed(new_workers):
  with execution.use_local_context():
    assert new_workers() == set()


def test_exception_passes_through(new_workers):
  with pytest.raises(KeyError, match='mine'), execution.use_local_context():
    tools.total([1])
    raise KeyError('mine')
  assert new_workers() == set()


def test_wrong_computation_leaves_the_worker_in_use(new_workers):
  @tff.tensorflow.computation(np.str_)
  def read(path):
    return tf.io.read_file(path)

  with execution.use_local_context():
    assert tools.total([1]) == 1
    before = new_workers()
    with pytest.raises(Exception, match='is-not-there'):
      read('/is-not-there')
    assert tools.total([1]) == 1
    assert new_workers() == before


def test_contexts_leave_no_threads_and_files_open():
  def count():
    gc.collect()
    return threading.active_count(), psutil.Process().num_fds()

  def use():
    with execution.use_local_context():
      tools.total([1])

  use()  # Whatever is made once.
  threads, files = count()
  for _ in range(4):
    use()
  # gRPC's own threads may come and go; a leak would be 4 and more.
  assert count()[0] <= threads + 1
  assert count()[1] <= files + 2


def test_left_context_starts_no_worker(new_workers):
  with execution.use_local_context() as context:
    tools.total([1])
  with tff.framework.get_context_stack().install(context):
    with pytest.raises(execution.WorkerError, match='left'):
      tools.total([1])
  assert new_workers() == set()


def test_context_outlives_the_thread_that_used_it_first(new_workers):
  manager = execution.use_local_context()

  def enter():
    context = manager.__enter__()
    tools.total([1])
    return context

  context = tools.in_thread(enter).result(tools.PATIENCE_SECONDS)
  # A worker that ends with the thread that started it would be gone by now.
  time.sleep(1)
  (worker,) = new_workers()
  with tff.framework.get_context_stack().install(context):
    assert tools.total([1, 2]) == 3
  assert new_workers() == {worker}
  tools.in_thread(lambda: manager.__exit__(None, None, None)).result(
    tools.PATIENCE_SECONDS
  )
  assert new_workers() == set()


def test_contexts_of_several_threads(new_workers):
  def use(number):
    with execution.use_local_context():
      return [tools.total([number] * (1 + i)) for i in range(3)]

  futures = [tools.in_thread(lambda i=i: use(i)) for i in range(3)]
  for i, future in enumerate(futures):
    assert future.result(tools.PATIENCE_SECONDS) == [i, 2 * i, 3 * i]
  assert new_workers() == set()


def test_one_context_in_several_threads(new_workers):
  with execution.use_local_context() as context:

    def use(number):
      with tff.framework.get_context_stack().install(context):
        return [tools.total([number] * (1 + i)) for i in range(3)]

    futures = [tools.in_thread(lambda i=i: use(i)) for i in range(4)]
    for i, future in enumerate(futures):
      assert future.result(tools.PATIENCE_SECONDS) == [i, 2 * i, 3 * i]
    assert len(new_workers()) == 1


def test_leaving_ends_the_computation_of_another_thread(tmp_path):
  with execution.use_local_context() as context:

    def use():
      with tff.framework.get_context_stack().install(context):
        return tools.wait_for_go(str(tmp_path))

    future = tools.in_thread(use)
    tools.wait_until((tmp_path / 'started').exists, 'the computation')
  assert future.exception(tools.PATIENCE_SECONDS) is not None


def test_running_event_loop():
  # As in a notebook.
  async def main():
    with execution.use_local_context():
      return tools.total([1, 2])

  assert asyncio.run(main()) == 3


def test_forked_process(new_workers):
  with contextlib.ExitStack() as stack:
    stack.enter_context(execution.use_local_context())
    assert tools.total([1]) == 1
    (worker,) = new_workers()
    pid = os.fork()
    if pid == 0:
      signal.alarm(tools.PATIENCE_SECONDS)  # Ends the process should it hang.
      try:
        with pytest.raises(execution.WorkerError, match='forked'):
          tools.total([1])
        stack.close()
        os._exit(0)
      except BaseException:
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    # The copy of the context has not ended the worker of the original.
    assert tools.total([1, 2]) == 3
    assert new_workers() == {worker}


# Workers that die.


def test_worker_killed_between_computations(new_workers):
  with execution.use_local_context():
    # Executors of several cohort sizes, all of them lost with the worker.
    assert tools.total([1]) == 1
    assert tools.total([1, 2]) == 3
    (worker,) = new_workers()
    worker.kill()
    assert tools.total([1, 2]) == 3
    assert tools.total([1]) == 1
    assert tools.total([1, 2, 3]) == 6
    assert len(new_workers() - {worker}) == 1


def test_worker_killed_in_a_computation(new_workers, tmp_path):
  started = tmp_path / 'started'
  with execution.use_local_context():
    future = tools.start(lambda: tools.wait_for_go(str(tmp_path)))
    # As often as a computation is retried, and no more.
    for _ in range(3):
      tools.wait_until(started.exists, 'the computation')
      started.unlink()
      (worker,) = new_workers()
      worker.kill()
    tools.wait_until(started.exists, 'the last try')
    (tmp_path / 'go').touch()
    assert future.result(tools.PATIENCE_SECONDS) == 42


def test_worker_that_keeps_dying(new_workers, tmp_path):
  started = tmp_path / 'started'
  with execution.use_local_context():
    assert tools.total([1]) == 1
    future = tools.start(lambda: tools.wait_for_go(str(tmp_path)))
    for _ in range(4):
      tools.wait_until(started.exists, 'the computation')
      started.unlink()
      (worker,) = new_workers()
      worker.kill()
    with pytest.raises(execution.WorkerError, match='4 times.* status -9'):
      future.result(tools.PATIENCE_SECONDS)
    assert not started.exists()
    # The next computation gets its own tries.
    assert tools.total([1, 2]) == 3


def test_unrelated_deaths_do_not_add_up(new_workers):
  # As in a job of many hours: more deaths than retries of one computation.
  with execution.use_local_context():
    for i in range(6):
      assert tools.total([i, 1]) == i + 1
      (worker,) = new_workers()
      worker.kill()
      tools.wait_until(lambda: not tools.is_alive(worker), 'the death')  # noqa: B023


# Secure sums.


def test_secure_sum():
  factory = tff.aggregators.SecureSumFactory(
    upper_bound_threshold=10.0, lower_bound_threshold=-10.0
  )
  process = factory.create(tff.TensorType(np.float32))
  with execution.use_secure_test_context():
    output = process.next(process.initialize(), [1.0, 2.5, -4.0])
    assert output.result == pytest.approx(-0.5, abs=1e-4)
    # The values are clipped, as a secure sum would.
    output = process.next(output.state, [1.0, 100.0, -100.0])
    assert output.result == pytest.approx(1.0, abs=1e-4)
