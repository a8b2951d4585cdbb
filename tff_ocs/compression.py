"""Unbiased compressors of the literature, as TFF factories that sum.

Each replaces `tff.aggregators.SumFactory`, above all as the `value_sum_factory`
of `ClientSamplingFactory`: clients that send, send fewer bits.
TFF has others: `tff.aggregators.EncodedSumFactory` (quantisation), also within
`HadamardTransformFactory` and `DiscreteFourierTransformFactory`.

A compressor C is unbiased, E C(x) = x, and has a relative variance omega,
E ||C(x) - x||^2 <= omega ||x||^2. With d entries in an update, the bits of one
update and omega are

| factory | bits | omega |
|---|---|---|
| `RandomKFactory` | 32 k | d / k - 1 |
| `NaturalCompressionFactory` | 9 d | 1 / 8 |
| `RandomDitheringFactory` | b d + 32 d / B | min(B / 4 s^2, sqrt(B) / s) |

with s = 2^(b - 1) - 1 levels and buckets of B entries. Together with client
sampling the variance of the aggregate grows from V, Eq. (6) of the paper, to at
most

    (1 + omega) V + omega sum_i ||w_i U_i||^2

and the second sum is || sum_i w_i U_i ||^2 for random-k, whose mask the clients
share. As the second term does not depend on the probabilities p_i, the optimal
ones, Eq. (7), are those without compression.

What the clients send is really of the small type: `tff_ocs.communication`
counts its bits from there. Zeros are compressed to exact zeros, so that clients
that do not send add nothing. NaN and infinite entries stay non-finite, unless
random-k does not pick them.
"""

import abc
import collections
import functools
import math
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs import communication
from tff_ocs import factory_arguments
from tff_ocs import fingerprints
from tff_ocs import message_bits

_SEED_TYPE = tff.TensorType(np.int64, [2])


class RandomKFactory(tff.aggregators.UnweightedAggregationFactory):
  """Sums k entries of the clients' values, drawn anew in each round.

  Random-k sparsification (Stich, Cordonnier & Jaggi 2018; the random mask of
  Konečný et al. 2016): of the d entries of all tensors a set of k, each with
  the same chance, is kept, times d / k.

  The mask is the server's, the same for all clients of a round, as in Vogels,
  Karimireddy & Jaggi (2019). So clients send the k entries alone, no indices,
  and these can be summed as they are: with a secure sum as the inner factory
  the server sees a sum only. The price: the errors of a round's clients do not
  average out. They are omega || sum_i x_i ||^2, not omega sum_i ||x_i||^2,
  which for n equal clients is n times as much, for clients with orthogonal
  values the same. In reality the server would send a seed for the mask; in the
  simulation it sends the indices, so that they are drawn once and not by each
  client.

  The state is the inner factory's and the mask's seed; the measurements are the
  inner factory's.
  """

  def __init__(
    self,
    fraction: float,
    inner_sum_factory: Optional[
      tff.aggregators.UnweightedAggregationFactory
    ] = None,
    *,
    seed: Optional[int] = None,
  ):
    """Initializes `RandomKFactory`.

    Args:
      fraction: Which part of the d entries is sent, 0 < fraction <= 1: k is
        fraction x d, rounded up.
      inner_sum_factory: Sums the vectors of k entries, before they are
        multiplied by d / k. If not specified, `tff.aggregators.SumFactory` is
        used.
      seed: If `None`, the masks are truly random, from a seed that is drawn
        with the initial state. With an integer they are a function of it and of
        the number of the round.

    Raises:
      TypeError: If an argument is not of its type.
      ValueError: If an argument is out of range.
    """
    self._fraction = arguments.check_fraction('fraction', fraction)
    self._inner_sum_factory = factory_arguments.check_sum_factory(
      'inner_sum_factory', inner_sum_factory
    )
    self._seed = arguments.check_seed(seed)

  def _kept_type(self, layout):
    # 7 / 100 x 100 is a little above 7.
    num_kept = max(1, math.ceil(round(self._fraction * layout.size, 9)))
    return tff.TensorType(layout.dtype, [num_kept])

  def bits_per_update(self, value_type: tff.Type) -> int:
    """Returns the bits that a client sends: k entries in the inner sum."""
    layout = _Layout(tff.to_type(value_type))
    return communication.bits_per_update(
      self._inner_sum_factory, self._kept_type(layout)
    )

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Creates the process with `next(state, value)`.

    Args:
      value_type: Floating point tensors of defined shape, or a structure of
        them, with at least one entry.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If `value_type` is not as described.
      ValueError: If a tensor's shape is not fully defined, or all are empty.
    """
    value_type = tff.to_type(value_type)
    layout = _Layout(value_type)
    kept_type = self._kept_type(layout)
    (num_kept,) = kept_type.shape
    inner_sum = self._inner_sum_factory.create(kept_type)
    indices_type = tff.TensorType(np.int64, [num_kept])

    @tff.tensorflow.computation(_SEED_TYPE)
    def draw(seed):
      # In float64 ties have no chance; tf.random.experimental.index_shuffle is
      # faster, but far from uniform.
      order = tf.random.stateless_uniform([layout.size], seed, dtype=tf.float64)
      last = tf.raw_ops.NthElement(input=order, n=num_kept - 1)
      return tf.ensure_shape(tf.where(order <= last)[:num_kept, 0], [num_kept])

    @tff.tensorflow.computation(value_type, indices_type)
    def keep(value, indices):
      return tf.gather(layout.flatten(value), indices)

    @tff.tensorflow.computation(
      inner_sum.next.type_signature.result.result.member, indices_type
    )
    def spread(kept, indices):
      # The scale itself may be beyond float16.
      scaled = tf.cast(kept, layout.sum_dtype) * (layout.size / num_kept)
      return layout.unflatten(
        tf.scatter_nd(indices[:, tf.newaxis], scaled, [layout.size])
      )

    @tff.federated_computation
    def init_fn():
      return tff.federated_zip(
        collections.OrderedDict(
          inner_sum=inner_sum.initialize(),
          seed=tff.federated_eval(_initial_seed(self._seed), tff.SERVER),
        )
      )

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      indices = tff.federated_map(draw, state['seed'])
      kept = tff.federated_map(keep, (value, tff.federated_broadcast(indices)))
      output = inner_sum.next(state['inner_sum'], kept)
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(
          collections.OrderedDict(
            inner_sum=output.state,
            seed=tff.federated_map(_next_seed, state['seed']),
          )
        ),
        tff.federated_map(spread, (output.result, indices)),
        output.measurements,
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)


class _QuantisedSumFactory(
  tff.aggregators.UnweightedAggregationFactory, abc.ABC
):
  """Sums what clients send as small messages, each decoded by itself.

  As with TFF's `EncodedSumFactory`, messages cannot be summed before they are
  decoded: this is not for secure aggregation.
  """

  def __init__(self, seed: Optional[int]):
    self._seed = arguments.check_seed(seed)

  @abc.abstractmethod
  def _message_type(self, size):
    """Returns the types of the message for `size` entries, by name.

    Of the first tensor, the magnitudes, all are 0 for a vector of zeros only.
    """

  def bits_per_update(self, value_type: tff.Type) -> int:
    """Returns the bits that a client sends."""
    layout = _Layout(tff.to_type(value_type))
    return message_bits.update_bits(
      tff.to_type(self._message_type(layout.size))
    )

  @abc.abstractmethod
  def _encode(self, vector, uniform):
    """The message for a client's vector.

    Args:
      vector: A float32 tensor of shape [size].
      uniform: A function of a shape: random integers in [0, 2^23), int32.

    Returns:
      An `OrderedDict` of tensors.
    """

  @abc.abstractmethod
  def _decode(self, message, size):
    """A float32 tensor of shape [size]."""

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Creates the process with `next(state, value)`.

    Args:
      value_type: Floating point tensors of defined shape, or a structure of
        them, with at least one entry. They are compressed as float32.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If `value_type` is not as described.
      ValueError: If a tensor's shape is not fully defined, or all are empty.
    """
    value_type = tff.to_type(value_type)
    layout = _Layout(value_type)
    message_type = self._message_type(layout.size)
    sum_type = tff.TensorType(layout.sum_dtype, [layout.size])

    @tff.tensorflow.computation(value_type, _SEED_TYPE)
    def encode(value, seed):
      vector = tf.cast(layout.flatten(value), tf.float32)
      return tf.cond(
        tf.reduce_any(vector != 0),
        lambda: self._encode(vector, self._uniform_of(vector, seed)),
        # A client that does not send draws nothing, and encodes nothing.
        lambda: tf.nest.map_structure(
          lambda t: tf.zeros(t.shape, t.dtype), message_type
        ),
      )

    @tff.tensorflow.computation
    def zero():
      return tf.zeros([layout.size], layout.sum_dtype)

    @tff.tensorflow.computation(sum_type, tff.to_type(message_type))
    def accumulate(total, message):
      magnitudes = next(iter(message.values()))
      return tf.cond(
        tf.reduce_any(magnitudes != 0),
        lambda: (
          total + tf.cast(self._decode(message, layout.size), total.dtype)
        ),
        lambda: total,
      )

    @tff.tensorflow.computation(sum_type, sum_type)
    def merge(total, other):
      return total + other

    @tff.tensorflow.computation(sum_type)
    def report(total):
      return layout.unflatten(total)

    @tff.federated_computation
    def init_fn():
      return tff.federated_eval(_initial_seed(self._seed), tff.SERVER)

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      messages = tff.federated_map(
        encode, (value, tff.federated_broadcast(state))
      )
      return tff.templates.MeasuredProcessOutput(
        tff.federated_map(_next_seed, state),
        tff.federated_aggregate(messages, zero(), accumulate, merge, report),
        tff.federated_value((), tff.SERVER),
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)

  def _uniform_of(self, vector, seed):
    """The random integers of a client, as a function of their shape."""
    limits = dict(minval=0, maxval=2**23, dtype=tf.int32)
    if self._seed is None:
      return functools.partial(tf.random.uniform, **limits)
    return functools.partial(
      tf.random.stateless_uniform,
      seed=fingerprints.fold_in(seed, vector),
      **limits,
    )


class NaturalCompressionFactory(_QuantisedSumFactory):
  """Sums values of which each entry is rounded to a power of two.

  Natural compression (Horváth, Ho, Horváth, Sahu, Canini & Richtárik 2019): an
  entry between two powers of two becomes the larger or the smaller one, with
  the probabilities that make it unbiased. It is sent as its sign and the 8 bits
  of a float32's exponent. Of float32 values the probabilities are exact. Values
  from 2^127 on are clipped to 2^127.

  The state is the seed of the rounding; there are no measurements.
  """

  def __init__(self, *, seed: Optional[int] = None):
    """Initializes `NaturalCompressionFactory`.

    Args:
      seed: If `None`, the rounding is truly random. With an integer it is a
        function of this seed, of the round and of a fingerprint of the client's
        own value: runs repeat exactly, but clients with the same value, bit for
        bit, round alike, so that their errors do not average out.

    Raises:
      TypeError: If `seed` is not `None` or an integer.
      ValueError: If `seed` does not fit into an int64.
    """
    super().__init__(seed)

  def _message_type(self, size):
    return collections.OrderedDict(
      exponent=tff.TensorType(np.uint8, [size]),
      negative=tff.TensorType(np.bool_, [size]),
    )

  def _encode(self, vector, uniform):
    # The 23 bits of the mantissa are the chance to round up. Adding a random
    # mantissa carries into the exponent with just this chance.
    magnitude = tf.bitwise.bitwise_and(tf.bitcast(vector, tf.int32), 0x7FFFFFFF)
    can_round_up = magnitude < 0x7F000000
    carry = tf.where(can_round_up, uniform(vector.shape), 0)
    return collections.OrderedDict(
      exponent=tf.cast(tf.bitwise.right_shift(magnitude + carry, 23), tf.uint8),
      negative=vector < 0,
    )

  def _decode(self, message, size):
    del size  # That of the message.
    power = tf.bitcast(
      tf.bitwise.left_shift(tf.cast(message['exponent'], tf.int32), 23),
      tf.float32,
    )
    return tf.where(message['negative'], -power, power)


class RandomDitheringFactory(_QuantisedSumFactory):
  """Sums values of which each entry is rounded to a few levels.

  Random dithering, or QSGD (Alistarh, Grubic, Li, Tomioka & Vojnovic 2017):
  consecutive entries form buckets; an entry is rounded at random to one of the
  neighbouring multiples of M / s, where M is the largest magnitude in its
  bucket and s = 2^(bits - 1) - 1, so that it is unbiased (up to the precision
  of float32). M is sent as a float32, an entry as `bits` bits, and the last
  bucket is filled up with zeros.

  As in the authors' experiments M is the maximum, not the Euclidean norm: the
  steps are smaller, and so is the variance. There is no entropy coding.

  The state is the seed of the rounding; there are no measurements.
  """

  def __init__(
    self,
    bits: int = 4,
    bucket_size: int = 512,
    *,
    seed: Optional[int] = None,
  ):
    """Initializes `RandomDitheringFactory`.

    Args:
      bits: The bits of an entry: 2, 4 or 8, which fill bytes.
      bucket_size: The number B of entries in a bucket, a multiple of 8.
      seed: As for `NaturalCompressionFactory`.

    Raises:
      TypeError: If an argument is not of its type.
      ValueError: If an argument is out of range.
    """
    super().__init__(seed)
    self._bits = arguments.check_integer('bits', bits)
    if bits not in (2, 4, 8):
      raise ValueError(f'bits must be 2, 4 or 8, found {bits!r}.')
    self._bucket_size = arguments.check_integer('bucket_size', bucket_size, 8)
    if bucket_size % 8:
      raise ValueError(
        f'bucket_size must be a multiple of 8, found {bucket_size!r}.'
      )

  def _buckets(self, size):
    """Number and size of the buckets; a few entries make one small bucket."""
    bucket_size = min(self._bucket_size, 8 * math.ceil(size / 8))
    return math.ceil(size / bucket_size), bucket_size

  def _message_type(self, size):
    num_buckets, bucket_size = self._buckets(size)
    return collections.OrderedDict(
      maximum=tff.TensorType(np.float32, [num_buckets, 1]),
      codes=tff.TensorType(
        np.uint8, [num_buckets, bucket_size * self._bits // 8]
      ),
    )

  @property
  def _num_levels(self):
    return 2 ** (self._bits - 1) - 1

  def _encode(self, vector, uniform):
    num_buckets, bucket_size = self._buckets(vector.shape[0])
    filling = num_buckets * bucket_size - vector.shape[0]
    buckets = tf.reshape(
      tf.pad(vector, [[0, filling]]), [num_buckets, bucket_size]
    )
    maximum = tf.reduce_max(tf.abs(buckets), axis=1, keepdims=True)
    level = self._num_levels * tf.math.divide_no_nan(buckets, maximum)
    lower = tf.floor(level)
    # In the middle of its 2^23 intervals, or zero's neighbours would be
    # preferred.
    dither = (tf.cast(uniform(level.shape), tf.float32) + 0.5) / 2**23
    rounded = lower + tf.cast(dither < level - lower, tf.float32)
    codes = tf.cast(rounded + self._num_levels, tf.uint8)
    packed = tf.add_n(
      [
        tf.bitwise.left_shift(part, tf.constant(shift, tf.uint8))
        for part, shift in zip(
          tf.split(codes, 8 // self._bits, axis=1), range(0, 8, self._bits)
        )
      ]
    )
    return collections.OrderedDict(maximum=maximum, codes=packed)

  def _decode(self, message, size):
    parts = [
      tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(message['codes'], tf.constant(shift, tf.uint8)),
        tf.constant(2**self._bits - 1, tf.uint8),
      )
      for shift in range(0, 8, self._bits)
    ]
    level = tf.cast(tf.concat(parts, axis=1), tf.float32) - self._num_levels
    buckets = level * (message['maximum'] / self._num_levels)
    return tf.reshape(buckets, [-1])[:size]


class _Layout:
  """A structure of tensors as one vector, and back."""

  def __init__(self, value_type):
    factory_arguments.check_value_type(value_type)
    self._specs = tff.types.type_to_tf_tensor_specs(value_type)
    # In the order of tf.nest, which is not TFF's: it sorts names.
    self._sizes = [
      spec.shape.num_elements() for spec in tf.nest.flatten(self._specs)
    ]
    self.size = sum(self._sizes)
    if self.size == 0:
      raise ValueError(f'value_type has no entries, found {value_type}.')
    self.dtype = np.result_type(
      *(t.dtype for t in tff.structure.flatten(value_type))
    )
    # At least float32, what messages are decoded to.
    self.sum_dtype = np.result_type(self.dtype, np.float32)

  def flatten(self, value):
    """All entries as one vector of `dtype`."""
    return tf.concat(
      [
        tf.reshape(tf.cast(x, self.dtype), [-1]) for x in tf.nest.flatten(value)
      ],
      axis=0,
    )

  def unflatten(self, vector):
    """The structure of a vector's entries, in the tensors' own types."""
    specs = tf.nest.flatten(self._specs)
    return tf.nest.pack_sequence_as(
      self._specs,
      [
        tf.cast(tf.reshape(x, spec.shape), spec.dtype)
        for x, spec in zip(tf.split(vector, self._sizes), specs)
      ],
    )


def _initial_seed(seed):
  """A computation of the first round's seed: (seed, number of the round)."""

  @tff.tensorflow.computation
  def initial_seed():
    limits = tf.int64.limits
    first = (
      tf.random.uniform([], limits[0], limits[1], tf.int64)
      if seed is None
      else tf.constant(seed, tf.int64)
    )
    return tf.stack([first, tf.constant(0, tf.int64)])

  return initial_seed


@tff.tensorflow.computation(_SEED_TYPE)
def _next_seed(seed):
  return seed + tf.constant([0, 1], tf.int64)
