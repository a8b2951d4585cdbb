"""Compares the sum over senders with `tff.federated_sum`."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import sum_of_senders

VALUE_TYPE = tff.to_type(
  collections.OrderedDict(
    matrix=(np.float32, [3, 2]),
    parts=[(np.float64, [4]), np.float32, (np.float16, [0, 5])],
  )
)


def _draw(rng):
  return collections.OrderedDict(
    matrix=rng.normal(size=(3, 2)).astype(np.float32),
    parts=[
      rng.normal(size=4),
      np.float32(rng.normal()),
      np.zeros((0, 5), np.float16),
    ],
  )


def _sum_of_senders(clients):
  process = sum_of_senders.SumOfSendersFactory().create(
    clients.type_signature.member
  )
  return process.next(process.initialize(), clients).result


def _sums(value_type):
  """A function to both sums of the clients' values."""

  @tff.tensorflow.computation(value_type, np.bool_)
  def or_zeros(value, sends):
    return tf.nest.map_structure(
      lambda x: tf.where(sends, x, tf.zeros_like(x)), value
    )

  @tff.federated_computation(
    tff.FederatedType(
      collections.OrderedDict(value=value_type, sends=np.bool_), tff.CLIENTS
    )
  )
  def sums(clients):
    zeroed = tff.federated_map(or_zeros, (clients['value'], clients['sends']))
    return _sum_of_senders(clients), tff.federated_sum(zeroed)

  return sums


@pytest.mark.parametrize(
  'sends',
  [
    [True],
    [False],
    [True, True, True],
    [False, False],
    [False, True, False, True, True, False],
    [True, False, False],
  ],
)
def test_equals_the_sum_with_zeros(sends):
  rng = np.random.default_rng(len(sends))
  clients = [collections.OrderedDict(value=_draw(rng), sends=s) for s in sends]
  of_senders, of_all = _sums(VALUE_TYPE)(clients)
  for mine, stock in zip(tf.nest.flatten(of_senders), tf.nest.flatten(of_all)):
    assert mine.dtype == stock.dtype
    np.testing.assert_array_equal(mine, stock)
  assert np.any(of_senders['matrix']) == any(sends)


def test_a_lone_tensor():
  clients = [
    collections.OrderedDict(value=np.full(2, x, np.float32), sends=x != 2)
    for x in (1, 2, 4)
  ]
  of_senders, _ = _sums(tff.TensorType(np.float32, [2]))(clients)
  np.testing.assert_array_equal(of_senders, [5, 5])


def test_values_that_are_not_sent_are_not_looked_at():
  clients = [
    collections.OrderedDict(value=np.float32(x), sends=not np.isnan(x))
    for x in (np.nan, 3, np.nan)
  ]
  of_senders, _ = _sums(tff.TensorType(np.float32))(clients)
  assert of_senders == 3


def test_parts_can_be_merged(monkeypatch):
  # TFF's local runtime has no use for it; others have.
  found = {}

  def federated_aggregate(clients, zero, accumulate, merge, report):
    found.update(zero=zero, accumulate=accumulate, merge=merge, report=report)
    return tff.federated_sum(clients['value'])

  client_type = collections.OrderedDict(
    value=tff.TensorType(np.float32, [2]), sends=np.bool_
  )
  with monkeypatch.context() as patch:
    patch.setattr(tff, 'federated_aggregate', federated_aggregate)

    @tff.federated_computation(tff.FederatedType(client_type, tff.CLIENTS))
    def unused(clients):
      return _sum_of_senders(clients)

  empty = collections.OrderedDict(
    is_empty=True, value=np.zeros([0], np.float32)
  )
  totals = [empty]
  for x, y in ((1, 2), (10, 20)):
    client = collections.OrderedDict(
      value=np.array([x, y], np.float32), sends=True
    )
    totals.append(found['accumulate'](empty, client))
  for first, second, expected in (
    (0, 0, [0, 0]),
    (0, 1, [1, 2]),
    (1, 0, [1, 2]),
    (1, 2, [11, 22]),
  ):
    merged = found['merge'](totals[first], totals[second])
    np.testing.assert_array_equal(found['report'](merged), expected)
