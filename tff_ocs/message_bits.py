"""The size of what a client sends in an aggregation, from its types alone.

The sums of this package report their own `bits_per_update`. For all others,
such as `tff.aggregators.EncodedSumFactory`, the size is read off the types that
enter the aggregations. With d entries in an update and e in a tensor it is

*   32 d for a plain sum of float32 and for `tff.aggregators.SecureSumFactory`
    (the masks of a real protocol are not counted);
*   32 ceil(b e / 28) + 64 for each tensor that TFF's `EncodedSumFactory`
    quantises to b bits: it packs 28 bits into each int32 and sends the minimum
    and the maximum;
*   within `HadamardTransformFactory` the size for tensors whose number of
    entries is the next power of two, within `DiscreteFourierTransformFactory`
    the next even number.

A factory that only computes the result of a compressor, but sums float32,
counts as uncompressed. Aggregations on which the round's result does not depend
are left out: measurements, such as the counts of clipped values, and the
scalars from which adaptive bounds for the next round follow.
"""

from typing import Optional

import numpy as np
import tensorflow_federated as tff

_BITS_OF_SECURE_NUMBER = 32


def update_bits(value_type: tff.Type) -> int:
  """Returns the bits of one update that is sent as it is.

  Args:
    value_type: The (unplaced) `tff.Type` of an update: a tensor of fully
      defined shape, or a structure of such.

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
  """Returns the bits that one client sends for the result of a process.

  Args:
    next_fn: The `next` of an aggregation process, with values as its only
      client-placed argument.

  Returns:
    The bits of all that a client contributes to the aggregations on which the
    result depends. In a secure sum each number counts 32 bits, to which TFF's
    `SecureSumFactory` quantises.

  Raises:
    ValueError: If the size of what a client sends is not known.
  """
  next_fn = next_fn.to_building_block()
  argument = tff.framework.Reference('arg', next_fn.parameter_type)
  result = tff.framework.Selection(
    tff.framework.Call(next_fn, argument), name='result'
  )
  # In this form each call of an intrinsic has a name, the calls that it depends
  # on come before it, and nothing hides behind references and lambdas.
  block = tff.framework.to_call_dominant(
    tff.framework.Lambda(argument.name, argument.type_signature, result)
  ).result
  # Constants at the clients: all clients contribute the same, to count
  # themselves.
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
  """Returns the names that a building block refers to."""
  names = set()

  def visit(part):
    if isinstance(part, tff.framework.Reference):
      names.add(part.name)
    return part, False

  tff.framework.transform_postorder(block, visit)
  return names


def _called_intrinsic(block) -> Optional[str]:
  """Returns the name of the intrinsic that the block calls, if it calls one."""
  if isinstance(block, tff.framework.Call) and isinstance(
    block.function, tff.framework.Intrinsic
  ):
    return block.function.uri
  return None


def _sent_bits(block, constants) -> int:
  """Returns the bits that a client sends if the block calls an aggregation."""
  intrinsic = _called_intrinsic(block)
  if intrinsic is None or not _is_placed(block.type_signature, tff.SERVER):
    return 0
  arguments = (
    list(block.argument)
    if isinstance(block.argument, tff.framework.Struct)
    else [block.argument]
  )
  sent = [
    argument.type_signature.member
    for argument in arguments
    if _is_placed(argument.type_signature, tff.CLIENTS)
    and getattr(argument, 'name', None) not in constants
  ]
  if 'secure' not in intrinsic:
    return sum(map(update_bits, sent))
  return _BITS_OF_SECURE_NUMBER * sum(
    tff.types.num_elements_in_shape(tensor.shape)
    for message_type in sent
    for tensor in tff.structure.flatten(message_type)
  )


def _is_placed(type_spec, placement) -> bool:
  return (
    isinstance(type_spec, tff.FederatedType)
    and type_spec.placement is placement
  )
