"""Uplink accounting: how many bits the clients send to the server.

As in the paper, only the uplink counts. Each client that sends its update pays
for the update; every client of the cohort pays 32 bits for each scalar that the
sampling scheme asks of it (Remark 3 of the paper: AOCS adds O(j_max) floats a
client). The weights n_i, which the server is taken to know, and the downlink
are not counted.

An update costs what `value_sum_factory` makes clients send: 32 bits an entry
for plain and for secure sums of float32, less with a compressor, see
`tff_ocs.compression` and `tff_ocs.message_bits`.
"""

import tensorflow_federated as tff

from tff_ocs import message_bits

BITS_PER_SCALAR = 32


def bits_per_update(
  factory: tff.aggregators.UnweightedAggregationFactory, value_type: tff.Type
) -> int:
  """Returns the bits that one client sends in a sum.

  Args:
    factory: The factory of the sum. If it has a method `bits_per_update` of a
      `tff.Type`, as those of this package have, that decides; otherwise the
      types that enter the aggregations of its process do.
    value_type: The (unplaced) type of the values.

  Returns:
    The number of bits.

  Raises:
    ValueError: If the size of what a client sends is not known.
  """
  own_count = getattr(factory, 'bits_per_update', None)
  if own_count is not None:
    return own_count(value_type)
  return message_bits.message_bits(factory.create(value_type).next)


def uplink_bits(
  *, participants, bits_per_update, cohort_size, scalars_per_client
):
  """Returns the bits that all clients send in one round.

  Args:
    participants: The number of clients that send their update.
    bits_per_update: The bits of one update.
    cohort_size: The number of clients that take part in the round, the n of the
      paper.
    scalars_per_client: The number of scalars that each of them sends: 0 for
      full and uniform participation, 1 for OCS, 1 + 2 x executed iterations for
      AOCS, 3 for threshold sampling.

  Returns:
    The number of bits, of the arguments' type: Python integers, NumPy arrays or
    int64 tensors.
  """
  return (
    participants * bits_per_update
    + cohort_size * scalars_per_client * BITS_PER_SCALAR
  )
