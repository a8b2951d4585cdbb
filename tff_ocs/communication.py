"""Uplink accounting: how many bits the clients send to the server.

As in the paper, only the uplink counts. Each client that sends its update pays
for the update; every client of the cohort pays 32 bits for each scalar that the
sampling scheme asks of it (Remark 3 of the paper: AOCS adds O(j_max) floats a
client). The weights n_i are known to the server in the paper and the downlink
is not a bottleneck; neither is counted.

What an update costs is read off from the types of what clients send. With d
entries of an update that is

*   32 d for a plain sum of float32, and for `tff.aggregators.SecureSumFactory`
    (the masks of a real protocol are not counted);
*   32 ceil(b e / 28) + 64 for each tensor, of e entries, that TFF's
    `EncodedSumFactory` quantises to b bits: it packs 28 bits into each int32,
    and sends the minimum and the maximum;
*   within `HadamardTransformFactory` as much as for tensors of which the number
    of entries is the next power of two, within
    `DiscreteFourierTransformFactory` the next even number;
*   for the factories of `tff_ocs.compression` what is said there.

A factory that only computes what a compressor would give, but sums float32,
counts as uncompressed. What the result of the round does not depend on is not
counted: measurements, such as the counts of clipped values, and the few scalars
from which adaptive clipping norms and bounds follow for the next round.
"""

from typing import Optional

import numpy as np
import tensorflow_federated as tff

BITS_PER_SCALAR = 32


def update_bits(value_type: tff.Type) -> int:
  """The bits of one update sent as it is.

  Args:
    value_type: The (unplaced) `tff.Type` of an update: a tensor or a structure
      of tensors of fully defined shape.

  Returns:
    The sum over all tensors of elements x bits of the dtype. A truth value has
    one bit, since eight of them fit into a byte.

  Raises:
    ValueError: If a tensor's shape is not fully defined.
  """
  total = 0
  for tensor in tff.structure.flatten(value_type):
    if tensor.shape is None or None in tensor.shape:
      raise ValueError(
        'The size of an update must be known to count its bits, found the'
        f' tensor type {tensor}.'
      )
    num_elements = int(np.prod(tensor.shape, dtype=np.int64))
    dtype = np.dtype(tensor.dtype)
    total += num_elements * (1 if dtype == np.bool_ else 8 * dtype.itemsize)
  return total


def message_bits(next_fn: tff.Computation) -> int:
  """The bits that one client sends for the result of an aggregation process.

  Args:
    next_fn: The `next` of the process, with values as its only client-placed
      argument.

  Returns:
    The bits of all that a client contributes to the sums and other aggregates
    that the result depends on, by its type; in secure sums each number counts
    32 bits, to which TFF's `SecureSumFactory` quantises.

  Raises:
    ValueError: If the size of what a client sends is not known.
  """
  next_fn = next_fn.to_building_block()
  argument = tff.framework.Reference('arg', next_fn.parameter_type)
  result = tff.framework.Selection(
    tff.framework.Call(next_fn, argument), name='result'
  )
  # In this form each call of an intrinsic has a name, those that it depends on
  # come before it, and nothing hides behind references and lambdas.
  block = tff.framework.to_call_dominant(
    tff.framework.Lambda(argument.name, argument.type_signature, result)
  ).result
  # All clients contribute the same constant, to count themselves.
  constants = {
    name
    for name, value in block.locals
    if _called_intrinsic(value) == 'federated_value_at_clients'
  }
  total = 0
  needed = _references(block.result)
  for name, value in reversed(block.locals):
    if name in needed:
      needed |= _references(value)
      total += _sent_bits(value, constants)
  return total


def _references(block) -> set[str]:
  """The names that a building block refers to."""
  names = set()

  def visit(part):
    if isinstance(part, tff.framework.Reference):
      names.add(part.name)
    return part, False

  tff.framework.transform_postorder(block, visit)
  return names


def _called_intrinsic(block) -> Optional[str]:
  """The name of the intrinsic that this calls, if it calls one."""
  if isinstance(block, tff.framework.Call) and isinstance(
    block.function, tff.framework.Intrinsic
  ):
    return block.function.uri
  return None


def _sent_bits(block, constants) -> int:
  """The bits that a client sends if this is a call of an aggregation."""
  intrinsic = _called_intrinsic(block)
  if intrinsic is None or not _is_placed(block.type_signature, tff.SERVER):
    return 0
  arguments = (
    list(block.argument)
    if isinstance(block.argument, tff.framework.Struct)
    else [block.argument]
  )
  return sum(
    _message_bits(intrinsic, argument.type_signature.member)
    for argument in arguments
    if _is_placed(argument.type_signature, tff.CLIENTS)
    and not (
      isinstance(argument, tff.framework.Reference)
      and argument.name in constants
    )
  )


def _message_bits(intrinsic, message_type):
  if 'secure' not in intrinsic:
    return update_bits(message_type)
  return BITS_PER_SCALAR * sum(
    tff.types.num_elements_in_shape(t.shape)
    for t in tff.structure.flatten(message_type)
  )


def _is_placed(type_spec, placement):
  return (
    isinstance(type_spec, tff.FederatedType)
    and type_spec.placement is placement
  )


def uplink_bits(
  *, participants, bits_per_update, cohort_size, scalars_per_client
):
  """The bits sent by all clients in one round.

  Works on Python integers, NumPy arrays and (int64) tensors alike.

  Args:
    participants: How many clients sent their update.
    bits_per_update: The bits of one update, see `message_bits`.
    cohort_size: How many clients took part in the round, the n of the paper.
    scalars_per_client: How many scalars each of them sent: 0 for full and
      uniform participation, 1 for OCS, 1 + 2 x executed iterations for AOCS.

  Returns:
    The number of bits, of the arguments' type.
  """
  return (
    participants * bits_per_update
    + cohort_size * scalars_per_client * BITS_PER_SCALAR
  )
