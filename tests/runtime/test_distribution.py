"""One computation over several workers."""

import collections
import functools
import gc
import re
import threading

import numpy as np
import portpicker
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tests.runtime import tools
from tff_ocs import execution
from tff_ocs.runtime import channels
from tff_ocs.runtime import forms
from tff_ocs.runtime import worker_process

NUM_CLIENTS = 11
NUM_ROUNDS = 3

# The results are those of one worker.


def _draw_clients():
  rng = np.random.default_rng(0)
  clients = []
  for k in range(NUM_CLIENTS):
    # Of several orders of magnitude, so that the order of a sum matters.
    x = rng.normal(size=(2 + k % 4, 3)) * 10 ** rng.normal()
    y = rng.normal(size=(2 + k % 4, 1))
    clients.append(
      tf.data.Dataset.from_tensor_slices(
        (x.astype(np.float32), y.astype(np.float32))
      ).batch(2)
    )
  return clients


def _build_process(scheme, **sums):
  return tff.learning.algorithms.build_weighted_fed_avg(
    models.build_linear_model(3),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
    model_aggregator=tff_ocs.ClientSamplingFactory(scheme, seed=1, **sums),
  )


_PROCESSES = {
  'full participation': lambda: _build_process(tff_ocs.FullParticipation()),
  'fused threshold sampling': lambda: forms.fuse(
    _build_process(
      tff_ocs.ThresholdSampling(5.0, first_cohort_size=NUM_CLIENTS)
    )
  ),
}


@functools.cache
def _process_and_results(name):
  """A process and what it gives in one worker."""
  process = _PROCESSES[name]()
  return process, _train(process)


def _train(process):
  clients = _draw_clients()
  state = process.initialize()
  outputs = []
  for _ in range(NUM_ROUNDS):
    outputs.append(process.next(state, clients))
    state = outputs[-1].state
  return outputs


@pytest.mark.parametrize(
  ('name', 'num_workers', 'num_subrounds'),
  [
    ('full participation', 3, 7),
    ('fused threshold sampling', 2, None),
  ],
)
def test_results_are_those_of_one_worker(name, num_workers, num_subrounds):
  process, expected = _process_and_results(name)
  participants = [
    output.metrics['aggregator']['participants'] for output in expected
  ]
  assert min(participants) >= 3
  with execution.use_distributed_context(
    workers=num_workers, num_subrounds=num_subrounds
  ):
    actual = _train(process)
  for ours, theirs in zip(actual, expected):
    # The same types, and the same bits.
    tf.nest.assert_same_structure(ours, theirs)
    for x, y in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs)):
      np.testing.assert_array_equal(x, y)
      assert np.asarray(x).dtype == np.asarray(y).dtype


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def _float_sum(values):
  return tff.federated_sum(values)


def test_values_are_added_in_the_order_of_the_clients():
  rng = np.random.default_rng(2)
  values = (rng.normal(size=9) * 10 ** rng.normal(size=9)).astype(np.float32)
  expected = functools.reduce(np.add, values)
  # The sum of two workers' sums is another.
  sums = [functools.reduce(np.add, part) for part in (values[:4], values[4:])]
  assert sums[0] + sums[1] != expected
  for num_workers, num_subrounds in ((1, 5), (2, 2), (2, 9), (3, 3), (3, 10)):
    with execution.use_distributed_context(
      workers=num_workers, num_subrounds=num_subrounds
    ):
      assert _float_sum(list(values)) == expected


@pytest.mark.parametrize('values', [[], [4], [4, 5]])
def test_more_workers_than_clients(values):
  with execution.use_distributed_context(workers=3):
    assert tools.total(values) == sum(values)
    # Afterwards as many as there are.
    assert tools.total([1, 2, 3, 4]) == 10


@tff.tensorflow.computation(np.float32, np.int32)
def _scale(factor, number):
  return factor * tf.cast(number, tf.float32)


def test_arguments_of_all_kinds():
  @tff.federated_computation(
    collections.OrderedDict(
      factor=tff.FederatedType(np.float32, tff.SERVER),
      of_all=tff.FederatedType(np.float32, tff.CLIENTS, all_equal=True),
      pairs=tff.FederatedType((np.float32, np.int32), tff.CLIENTS),
      nested=[np.float32, tff.FederatedType(np.int32, tff.CLIENTS)],
    )
  )
  def compute(arg):
    factors = tff.federated_broadcast(arg.factor)
    return collections.OrderedDict(
      scaled=tff.federated_sum(
        tff.federated_map(_scale, (factors, arg.nested[1]))
      ),
      mean=tff.federated_mean(tff.federated_map(_scale, arg.pairs)),
      of_all=tff.federated_sum(arg.of_all),
      given=tff.federated_value(arg.nested[0], tff.SERVER),
      factor=arg.factor,
    )

  arguments = dict(
    factor=tf.constant(0.5),
    of_all=2.0,
    pairs=[(tf.constant(float(k)), k) for k in range(5)],
    nested=[7.0, [1, 2, 3, 4, 5]],
  )
  expected = compute(**arguments)
  assert isinstance(expected, collections.OrderedDict)
  with execution.use_distributed_context(workers=2):
    assert compute(**arguments) == expected
    with pytest.raises(ValueError, match='cardinalities.*5 vs 4|4 vs 5'):
      compute(**{**arguments, 'pairs': arguments['pairs'][:4]})
    with pytest.raises(TypeError, match='must be in a list'):
      compute(**{**arguments, 'pairs': 3})


def test_computations_that_one_worker_runs(new_workers):
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def negatives(values):
    return tff.federated_map(
      tff.tensorflow.computation(lambda x: -x, np.int32), values
    )

  with execution.use_distributed_context(workers=3) as context:
    assert isinstance(context, tff.program.FederatedContext)
    assert tff.tensorflow.computation(lambda: tf.constant(3))() == 3
    assert negatives([1, 2, 3]) == [-1, -2, -3]
    assert len(new_workers()) == 1


# Computations that cannot be split.


@pytest.mark.parametrize(
  'scheme',
  [
    tff_ocs.ApproximateOptimalSampling(2.0),
    tff_ocs.OptimalSampling(2.0),
    tff_ocs.UniformSampling(2.0),
  ],
)
def test_dependent_sums_are_refused(scheme, new_workers):
  process = tff_ocs.ClientSamplingFactory(scheme, seed=1).create(
    tff.TensorType(np.float32, [2]), tff.TensorType(np.float32)
  )
  with execution.use_distributed_context(workers=2):
    state = process.initialize()
    with pytest.raises(
      forms.FormError, match='ThresholdSampling .--sampling=threshold.'
    ):
      process.next(state, [[1.0, 2.0]] * 3, [1.0] * 3)
    # Nothing else is lost.
    assert tools.total([1, 2]) == 3


def test_secure_sums_are_refused():
  process = tff.aggregators.SecureSumFactory(10.0, -10.0).create(
    tff.TensorType(np.float32)
  )
  with execution.use_distributed_context(workers=2):
    with pytest.raises(forms.FormError, match='secure sums'):
      process.next((), [1.0, 2.0])


def test_python_functions_are_refused():
  @tff.tensorflow.computation(np.float32)
  def call_python(x):
    y = tf.py_function(lambda x: x + 1, [x], tf.float32)
    return tf.ensure_shape(y, [])

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def compute(values):
    return tff.federated_sum(tff.federated_map(call_python, values))

  with execution.use_distributed_context(workers=2, num_subrounds=4):
    with pytest.raises(ValueError, match='cannot call Python functions'):
      compute([1.0] * 8)
    assert tools.total([1, 2, 3]) == 6


@pytest.mark.parametrize(
  ('arguments', 'error', 'message'),
  [
    ({}, ValueError, 'Either addresses or workers must be given'),
    (
      {'addresses': ['host:1'], 'workers': 2},
      ValueError,
      "Either addresses or workers .*'host:1'.*workers=2",
    ),
    ({'workers': 0}, ValueError, 'workers must be at least 1, found 0'),
    ({'workers': 1.5}, TypeError, 'workers must be an integer.*found 1.5'),
    (
      {'workers': 2, 'num_subrounds': 0},
      ValueError,
      'num_subrounds must be at least 1, found 0',
    ),
    ({'workers': 2, 'start_timeout': 0}, ValueError, 'start_timeout must be'),
    ({'addresses': []}, ValueError, 'addresses must not be empty'),
    ({'addresses': 'host:1'}, TypeError, "must be a list.*found 'host:1'"),
    ({'addresses': ['host:1', 'host']}, ValueError, "'host:port'.*'host'"),
    (
      {'addresses': ['host:1', 'host:2', 'host:1']},
      ValueError,
      "'host:1' more than once",
    ),
  ],
)
def test_wrong_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    execution.use_distributed_context(**arguments)


# All workers work at the same time.


@tff.tensorflow.computation(np.str_, np.int32)
def _meet(directory, number):
  """Waits until the others have come; returns 1."""
  names = tf.strings.join([directory, '/', tf.strings.as_string(number)])
  write = tf.io.write_file(names, '')
  with tf.control_dependencies([write]):
    (turns,) = tf.while_loop(
      lambda _: tf.size(tf.io.matching_files(directory + '/*')) < 3,
      lambda turns: (turns + 1,),
      (tf.constant(0),),
    )
  return tf.minimum(turns, 0) + 1


def test_workers_work_at_the_same_time(tmp_path):
  @tff.federated_computation(
    tff.FederatedType((np.str_, np.int32), tff.CLIENTS)
  )
  def meet(values):
    return tff.federated_sum(tff.federated_map(_meet, values))

  with execution.use_distributed_context(workers=3):
    future = tools.start(
      lambda: meet([(str(tmp_path), number) for number in range(3)])
    )
    assert future.result(tools.PATIENCE_SECONDS) == 3


def test_local_workers_share_the_cores(monkeypatch, new_workers):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '1')
  monkeypatch.setattr(
    worker_process.os, 'sched_getaffinity', lambda _: set(range(6))
  )
  clients = [worker_process._count_parallel_clients(k) for k in (1, 2, 4, 9)]
  assert clients == [6, 3, 1, 1]
  with execution.use_distributed_context(workers=2):
    tools.total([1, 2])
    for worker in new_workers():
      assert '--max_concurrent_computation_calls=3' in worker.cmdline()


# Workers that are lost.


@tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
def _wait_for_go(directories):
  return tff.federated_sum(tff.federated_map(tools.wait_for_go, directories))


def _make_directories(path, number):
  directories = [path / str(k) for k in range(number)]
  for directory in directories:
    directory.mkdir()
  return directories


def _wait_for_start(directories):
  for directory in directories:
    tools.wait_until((directory / 'started').exists, 'the computation')
    (directory / 'started').unlink()


@pytest.mark.parametrize('lost', [0, 1, 2])
def test_local_worker_is_killed_in_a_computation(lost, new_workers, tmp_path):
  directories = _make_directories(tmp_path, 3)
  with execution.use_distributed_context(workers=3):
    assert tools.total([1, 2, 3]) == 6
    first_workers = new_workers()
    future = tools.start(lambda: _wait_for_go(list(map(str, directories))))
    _wait_for_start(directories)
    victim = sorted(first_workers, key=lambda process: process.pid)[lost]
    victim.kill()
    # One client starts again.
    tools.wait_until(
      lambda: any((d / 'started').exists() for d in directories), 'a new start'
    )
    for directory in directories:
      (directory / 'go').touch()
    assert future.result(tools.PATIENCE_SECONDS) == 3 * 42
    assert sum((d / 'started').exists() for d in directories) == 1
    assert len(new_workers() & first_workers) == 2
    assert len(new_workers()) == 3


def test_local_worker_that_keeps_dying(new_workers, tmp_path):
  directories = _make_directories(tmp_path, 2)
  with execution.use_distributed_context(workers=2):
    assert tools.total([1, 2]) == 3
    survivor, victim = new_workers()
    future = tools.start(lambda: _wait_for_go(list(map(str, directories))))
    _wait_for_start(directories)
    for attempt in range(4):
      if attempt:
        tools.wait_until(
          lambda: any((d / 'started').exists() for d in directories),
          'a new start',
        )
        for directory in directories:
          (directory / 'started').unlink(missing_ok=True)
        (victim,) = new_workers() - {survivor}
      victim.kill()
    with pytest.raises(execution.WorkerError, match='4 times'):
      # The other one is waited for.
      for directory in directories:
        (directory / 'go').touch()
      future.result(tools.PATIENCE_SECONDS)
    assert tools.total([1, 2]) == 3


def test_remote_workers(tmp_path):
  directories = _make_directories(tmp_path, 2)
  with tools.Server() as first, tools.Server() as second:
    with execution.use_distributed_context([first.address, second.address]):
      assert tools.total([1, 2, 3]) == 6
      future = tools.start(lambda: _wait_for_go(list(map(str, directories))))
      _wait_for_start(directories)
      second.stop()
      # As a supervisor would restart it.
      with tools.Server(second.port):
        _wait_for_start(directories[1:])
        for directory in directories:
          (directory / 'go').touch()
        assert future.result(tools.PATIENCE_SECONDS) == 2 * 42
        assert not (directories[0] / 'started').exists()


def test_remote_worker_that_never_answers():
  nobody = f'127.0.0.1:{portpicker.pick_unused_port()}'
  with tools.Server() as server:
    for addresses in ([server.address, nobody], [nobody, server.address]):
      with execution.use_distributed_context(addresses, start_timeout=1):
        future = tools.start(lambda: tools.total([1, 2, 3]))
        with pytest.raises(
          execution.WorkerError, match=f'{re.escape(nobody)} within 1 s'
        ):
          future.result(tools.PATIENCE_SECONDS)


def test_lost_worker_is_waited_for_once(monkeypatch):
  nobody = f'127.0.0.1:{portpicker.pick_unused_port()}'
  asked = []
  create_channel = channels.create_channel

  def create(address, *options):
    asked.append(address)
    return create_channel(address, *options)

  monkeypatch.setattr(channels, 'create_channel', create)
  with tools.Server() as server:
    with execution.use_distributed_context(
      [server.address, nobody], num_subrounds=8, start_timeout=1
    ):
      future = tools.start(lambda: tools.total([1] * 8))
      with pytest.raises(execution.WorkerError, match='within 1 s'):
        future.result(tools.PATIENCE_SECONDS)
  # Not for each of its four shares.
  assert asked.count(nobody) == 1


# Nothing is left.


def test_leaving_ends_the_computation_of_another_thread(new_workers, tmp_path):
  directories = _make_directories(tmp_path, 2)
  with execution.use_distributed_context(workers=2) as context:

    def use():
      with tff.framework.get_context_stack().install(context):
        return _wait_for_go(list(map(str, directories)))

    future = tools.in_thread(use)
    _wait_for_start(directories)
  assert future.exception(tools.PATIENCE_SECONDS) is not None
  assert new_workers() == set()
  with tff.framework.get_context_stack().install(context):
    with pytest.raises(execution.WorkerError, match='left'):
      tools.total([1, 2])


def test_contexts_leave_no_threads_and_files_open():
  def count():
    gc.collect()
    return threading.active_count(), psutil.Process().num_fds()

  def use():
    with execution.use_distributed_context(workers=2):
      assert tools.total([1, 2]) == 3

  use()  # Whatever is made once.
  threads, files = count()
  for _ in range(3):
    use()
  # gRPC's own threads may come and go; a leak would be 6 and more.
  assert count()[0] <= threads + 1
  assert count()[1] <= files + 2
