"""Sums of what clients send, where most clients send nothing.

`ClientSamplingFactory` sums structures of `value`, the scaled update or zeros,
and `sends` (bool), whether the client sends. `SumOfSendersFactory` adds up the
values of the senders alone; `SumOfValuesFactory` gives all values, zeros
included, to another factory.

For a client that does not send, `tff.aggregators.SumFactory` adds zeros, and
TFF's runtime adds one client after the other, whatever the number of cores. It
also carries the zero at which the sum starts, as large as an update, from the
server's executor to the clients'.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import communication
from tff_ocs import message_bits


def sent_type(value_type: tff.Type) -> tff.Type:
  """Returns the type of what clients contribute to a sum of values.

  Args:
    value_type: The type of a value: a tensor of fully defined shape, or a
      structure of such.

  Returns:
    The type of a structure of `value` and `sends`.
  """
  return tff.to_type(collections.OrderedDict(value=value_type, sends=np.bool_))


class SumOfValuesFactory(tff.aggregators.UnweightedAggregationFactory):
  """Sums the `value` of each client by another factory."""

  def __init__(self, factory: tff.aggregators.UnweightedAggregationFactory):
    """Initializes `SumOfValuesFactory`.

    Args:
      factory: The factory of the sum.
    """
    self._factory = factory

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Creates the process.

    Args:
      value_type: A `sent_type`.

    Returns:
      A process with the state and the measurements of the inner sum.
    """
    inner = self._factory.create(value_type['value'])

    @tff.federated_computation(
      inner.initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, sent):
      return inner.next(state, sent['value'])

    return tff.templates.AggregationProcess(inner.initialize, next_fn)

  def bits_per_update(self, value_type: tff.Type) -> int:
    """Returns the bits that a client sends in the inner sum."""
    return communication.bits_per_update(self._factory, value_type['value'])


class SumOfSendersFactory(tff.aggregators.UnweightedAggregationFactory):
  """Sums the `value` of the clients for which `sends` is true.

  The result is that of `tff.aggregators.SumFactory` where clients that do not
  send have zeros: the values are added in the order of the clients. It is zero
  if no client sends. The process has neither state nor measurements.
  """

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Creates the process.

    Args:
      value_type: A `sent_type`.

    Returns:
      A `tff.templates.AggregationProcess`.
    """
    total = _Total(value_type)

    @tff.federated_computation
    def init_fn():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      init_fn.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, sent):
      return tff.templates.MeasuredProcessOutput(
        state,
        tff.federated_aggregate(
          sent, total.zero(), total.accumulate, total.merge, total.report
        ),
        tff.federated_value((), tff.SERVER),
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)

  def bits_per_update(self, value_type: tff.Type) -> int:
    """Returns the bits of a value as it is."""
    return message_bits.update_bits(value_type['value'])


class _Total:
  """The computations of a sum that starts without tensors.

  Attributes:
    zero: Returns a total without a sender, whose tensors are of size 0.
    accumulate: Adds what a client contributes to a total.
    merge: Adds two totals.
    report: Returns the sum of a total.
  """

  def __init__(self, client_type):
    value_type = client_type['value']
    total_type = tff.to_type(
      collections.OrderedDict(
        is_empty=np.bool_,
        value=_map_tensor_types(
          value_type, lambda t: tff.TensorType(t.dtype, [None] * len(t.shape))
        ),
      )
    )

    @tff.tensorflow.computation
    def zero():
      return collections.OrderedDict(
        is_empty=tf.constant(True),
        # `federated_aggregate` needs a shape that is unknown to tracing.
        value=_map_tensor_types(
          value_type,
          lambda t: tf.compat.v1.placeholder_with_default(
            tf.zeros([0] * len(t.shape), t.dtype), [None] * len(t.shape)
          ),
        ),
      )

    @tff.tensorflow.computation(total_type, client_type)
    def accumulate(total, client):
      return tf.cond(
        client['sends'],
        lambda: _add(total, client['value']),
        lambda: total,
      )

    @tff.tensorflow.computation(total_type, total_type)
    def merge(some, others):
      return tf.cond(
        others['is_empty'], lambda: some, lambda: _add(some, others['value'])
      )

    @tff.tensorflow.computation(total_type)
    def report(total):
      zeros = _map_tensor_types(
        value_type, lambda t: tf.zeros(t.shape, t.dtype)
      )
      return tf.cond(
        total['is_empty'],
        lambda: zeros,
        lambda: tf.nest.map_structure(
          lambda x, zero: tf.ensure_shape(x, zero.shape), total['value'], zeros
        ),
      )

    self.zero, self.accumulate = zero, accumulate
    self.merge, self.report = merge, report


def _add(total, value):
  return collections.OrderedDict(
    is_empty=tf.constant(False),
    value=tf.cond(
      total['is_empty'],
      lambda: value,
      lambda: tf.nest.map_structure(tf.add, total['value'], value),
    ),
  )


def _map_tensor_types(type_spec, function):
  """Returns a structure with a function's results for the type's tensors."""
  return tff.types.structure_from_tensor_type_tree(function, type_spec)
