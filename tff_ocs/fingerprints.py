"""Seeds of clients that know nothing but their own tensors."""

import numpy as np
import tensorflow as tf


def fold_in(seed, tensors):
  """A seed that depends on all bits of a client's tensors.

  An aggregation factory sees no client's identity. A fingerprint of what a
  client has stands in for it: runs repeat exactly, and clients with different
  tensors have independent seeds; but clients with the same tensors, bit for
  bit, have the same seed.

  Args:
    seed: An int64 tensor of shape [2].
    tensors: A structure of tensors.

  Returns:
    An int64 tensor of shape [2].
  """
  for tensor in tf.nest.flatten(tensors):
    fingerprint = tf.strings.to_hash_bucket_fast(
      tf.io.serialize_tensor(tensor), np.iinfo(np.int64).max
    )
    seed = tf.random.experimental.stateless_fold_in(seed, fingerprint)
  return seed
