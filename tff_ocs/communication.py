"""Uplink accounting: how many bits the clients send to the server.

As in the paper, only the uplink counts. Each client that sends its update pays
for the update; every client of the cohort pays 32 bits for each scalar that the
sampling scheme asks of it (Remark 3 of the paper: AOCS adds O(j_max) floats a
client). The weights n_i are known to the server in the paper and the downlink
is not a bottleneck; neither is counted.
"""

import numpy as np
import tensorflow_federated as tff

BITS_PER_SCALAR = 32


def update_bits(value_type: tff.Type) -> int:
  """The bits of one update sent as it is.

  Args:
    value_type: The (unplaced) `tff.Type` of an update: a tensor or a structure
      of tensors of fully defined shape.

  Returns:
    The sum over all tensors of elements x bits of the dtype.

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
    total += num_elements * 8 * np.dtype(tensor.dtype).itemsize
  return total


def uplink_bits(
  *, participants, bits_per_update, cohort_size, scalars_per_client
):
  """The bits sent by all clients in one round.

  Works on Python integers, NumPy arrays and (int64) tensors alike.

  Args:
    participants: How many clients sent their update.
    bits_per_update: The bits of one update, see `update_bits`.
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
