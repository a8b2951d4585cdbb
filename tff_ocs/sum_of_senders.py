"""The sum over the clients that send, at no cost for those that do not.

For a client that does not send, `tff.aggregators.SumFactory` adds zeros, and
TFF's runtime adds one client after the other, whatever the number of cores. It
also carries the zero that the sum starts from, as large as an update, from the
server's executor to the clients'.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def sum_of_senders(clients: tff.Value) -> tff.Value:
  """Sums the values of the clients that send.

  Args:
    clients: At `CLIENTS`, a structure of `value`, which is a tensor of fully
      defined shape or a structure of such, and `sends` (bool).

  Returns:
    The sum, of the type of a value, at `SERVER`: added up in the order of the
    clients, and equal to that of `tff.federated_sum` where clients that do not
    send have zeros. It is zero if none sends.
  """
  client_type = clients.type_signature.member
  value_type = client_type['value']
  # Before the first sender, the total is of size 0.
  total_type = tff.to_type(
    collections.OrderedDict(
      is_empty=np.bool_,
      value=_of_tensors(
        value_type, lambda t: tff.TensorType(t.dtype, [None] * len(t.shape))
      ),
    )
  )

  @tff.tensorflow.computation
  def no_total():
    return collections.OrderedDict(
      is_empty=tf.constant(True),
      # Of a shape unknown to tracing, as `federated_aggregate` wants it.
      value=_of_tensors(
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
    zeros = _of_tensors(value_type, lambda t: tf.zeros(t.shape, t.dtype))
    return tf.cond(
      total['is_empty'],
      lambda: zeros,
      lambda: tf.nest.map_structure(
        lambda x, zero: tf.ensure_shape(x, zero.shape), total['value'], zeros
      ),
    )

  return tff.federated_aggregate(clients, no_total(), accumulate, merge, report)


def _add(total, value):
  return collections.OrderedDict(
    is_empty=tf.constant(False),
    value=tf.cond(
      total['is_empty'],
      lambda: value,
      lambda: tf.nest.map_structure(tf.add, total['value'], value),
    ),
  )


def _of_tensors(type_spec, function):
  """A structure like the type, with a function's results for its tensors."""
  return tff.types.structure_from_tensor_type_tree(function, type_spec)
