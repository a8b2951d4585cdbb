"""Tests of what stays in the worker between two calls."""

import collections
import gc
import os
import signal
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import execution
from tff_ocs.runtime import caching_executor

SIZE = 10_000
BYTES = 4 * SIZE

STATE = collections.OrderedDict(
  weights=tff.TensorType(np.float32, [SIZE]), round=np.int32
)


@tff.tensorflow.computation
def _zeros():
  return collections.OrderedDict(weights=tf.zeros([SIZE]), round=tf.constant(0))


@tff.federated_computation
def initialize():
  return tff.federated_eval(_zeros, tff.SERVER)


@tff.tensorflow.computation(STATE, np.float32)
def _add(state, total):
  return collections.OrderedDict(
    weights=state['weights'] + total, round=state['round'] + 1
  )


AT_SERVER = tff.FederatedType(STATE, tff.SERVER)
AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.federated_computation(AT_SERVER, AT_CLIENTS)
def add(state, values):
  total = tff.federated_sum(values)
  return tff.federated_map(_add, (state, total)), total


@pytest.fixture
def sent(monkeypatch):
  """The bytes of each value that is sent to a worker."""
  sizes = []
  create_value = tff.framework.RemoteExecutorGrpcStub.create_value

  def record(stub, request):
    sizes.append(request.ByteSize())
    return create_value(stub, request)

  monkeypatch.setattr(
    tff.framework.RemoteExecutorGrpcStub, 'create_value', record
  )
  return sizes


@pytest.fixture
def context():
  with execution.use_local_context() as context:
    yield context


def large(sizes):
  return [size for size in sizes if size >= BYTES]


def test_state_of_the_last_call_is_not_sent(context, sent):
  state = initialize()
  by_call = []
  for k in range(4):
    sent.clear()
    state, total = add(state, [1.0, 2.0])
    by_call.append(list(sent))
    assert total == 3
    np.testing.assert_array_equal(state['weights'], 3.0 * (k + 1))
    assert state['round'] == k + 1
  # The first state comes from another executor, that of no clients.
  assert len(large(by_call[0])) == 1
  # Then the clients' values alone: the computation is not sent again either.
  for sizes in by_call[1:]:
    assert len(sizes) == 1
    assert sizes[0] < 1000


def test_values_are_disposed_of_at_once(context, monkeypatch):
  stub = tff.framework.RemoteExecutorGrpcStub
  num_values = collections.Counter()

  def count(name, change_of):
    method = getattr(stub, name)

    def counted(self, request):
      num_values['in the worker'] += change_of(request)
      return method(self, request)

    monkeypatch.setattr(stub, name, counted)

  for name in ('value', 'call', 'struct', 'selection'):
    count(f'create_{name}', lambda request: 1)
  count('dispose', lambda request: -len(request.value_ref))
  state = initialize()
  after_rounds = []
  for _ in range(6):
    state, _ = add(state, [1.0, 2.0])
    after_rounds.append(num_values['in the worker'])
  # The computation and the last result.
  assert after_rounds[1:] == [2] * 5


def test_whole_result_is_found_as_well(context, sent):
  @tff.federated_computation(AT_SERVER)
  def step(state):
    return tff.federated_map(
      tff.tensorflow.computation(lambda s: _add(s, 1.0), STATE), state
    )

  state = initialize()
  for k in range(3):
    state = step(state)
    assert state['weights'][-1] == k + 1
  assert not large(sent)


def _changed(state):
  weights = state['weights'].copy()
  weights[0] = 100.0
  return collections.OrderedDict(weights=weights, round=state['round'])


@pytest.mark.parametrize(
  'other, first_weight, num_rounds',
  [
    (_changed, 101.0, 3),
    # As a checkpoint gives it.
    (
      lambda state: collections.OrderedDict(
        weights=state['weights'].copy(), round=int(state['round'])
      ),
      3.0,
      3,
    ),
    (
      lambda state: collections.OrderedDict(
        weights=state['weights'][::-1], round=state['round']
      ),
      3.0,
      3,
    ),
  ],
)
def test_what_is_not_the_last_result_is_sent(
  context, sent, other, first_weight, num_rounds
):
  state, _ = add(initialize(), [1.0])
  state, _ = add(state, [1.0])
  sent.clear()
  after, _ = add(other(state), [1.0])
  assert (after['weights'][0], after['round']) == (first_weight, num_rounds)
  assert len(large(sent)) == 1


@pytest.mark.parametrize('new_round', [7, np.int32(7)])
def test_replaced_scalars_are_sent_alone(context, sent, new_round):
  state, _ = add(initialize(), [1.0])
  by_call = []
  for k in range(3):
    sent.clear()
    state, _ = add(
      collections.OrderedDict(weights=state['weights'], round=new_round), [1.0]
    )
    by_call.append(list(sent))
    assert (state['weights'][0], state['round']) == (k + 2.0, 8)
  # In the first call with the computation that replaces them.
  assert not large(by_call[0])
  for sizes in by_call[1:]:
    assert len(sizes) == 2
    assert sum(sizes) < 1000


def test_other_scalars_are_replaced_in_turn(context):
  @tff.tensorflow.computation
  def zeros():
    return collections.OrderedDict(
      b=tf.zeros([]), a=tf.zeros([SIZE]), c=tf.constant(0)
    )

  @tff.federated_computation(
    tff.FederatedType(zeros.type_signature.result, tff.SERVER)
  )
  def same(state):
    return tff.federated_map(
      tff.tensorflow.computation(lambda s: s, zeros.type_signature.result),
      state,
    )

  state = same(zeros())
  for name, value in (('c', 5), ('b', 2.5), ('c', 6)):
    state = same(collections.OrderedDict({**state, name: value}))
    assert state[name] == value
  assert (state['b'], state['a'][0], state['c']) == (2.5, 0, 6)


def test_former_states_can_be_used_again(context):
  first, _ = add(initialize(), [1.0])
  second, _ = add(first, [10.0])
  again, _ = add(first, [100.0])
  assert (second['weights'][0], again['weights'][0]) == (11.0, 101.0)
  third, _ = add(second, [1000.0])
  assert third['weights'][0] == 1011.0


def test_results_cannot_be_changed_in_place(context):
  state, _ = add(initialize(), [1.0])
  with pytest.raises(ValueError, match='read-only'):
    state['weights'][0] = 5.0
  with pytest.raises(ValueError, match='WRITEABLE'):
    state['weights'].flags.writeable = True


def test_other_computations_and_cohorts_between_do_no_harm(context):
  @tff.federated_computation(AT_SERVER, AT_CLIENTS)
  def subtract(state, values):
    return add(state, tff.federated_map(_negative, values))

  state = initialize()
  for computation, values in (
    (add, [1.0]),
    (subtract, [3.0]),
    (add, [1.0, 2.0, 3.0]),
    (add, [5.0]),
    (subtract, [1.0, 1.0, 1.0]),
  ):
    state, _ = computation(state, values)
  assert (state['weights'][0], state['round']) == (1 - 3 + 6 + 5 - 3, 5)


@tff.tensorflow.computation(np.float32)
def _negative(x):
  return -x


def test_state_outlives_the_worker_that_has_it(context, sent):
  of_others = _workers()
  state, _ = add(initialize(), [1.0])
  state, _ = add(state, [1.0])
  (worker,) = _workers() - of_others
  os.kill(worker, signal.SIGKILL)
  sent.clear()
  state, _ = add(state, [1.0])
  assert state['weights'][0] == 3.0
  assert large(sent)


def _workers():
  """The processes of this one's workers."""
  found = set()
  for task in os.listdir('/proc/self/task'):
    with open(f'/proc/self/task/{task}/children') as file:
      for child in file.read().split():
        with open(f'/proc/{child}/cmdline') as command:
          if 'worker_binary' in command.read():
            found.add(int(child))
  return found


def test_nothing_is_kept_when_the_context_is_left(monkeypatch):
  executors = []
  create = caching_executor.CachingExecutor.__init__

  def record(executor, stub):
    create(executor, stub)
    executors.append(weakref.ref(executor))

  monkeypatch.setattr(caching_executor.CachingExecutor, '__init__', record)
  with execution.use_local_context() as context:
    add(initialize(), [1.0])
  assert executors
  del context
  gc.collect()
  assert all(executor() is None for executor in executors)
