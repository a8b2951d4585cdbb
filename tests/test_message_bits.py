import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import communication
from tff_ocs import compression
from tff_ocs import message_bits


@pytest.mark.parametrize(
  'value_type, bits',
  [
    (tff.TensorType(np.float32), 32),
    (tff.TensorType(np.float32, [3, 4]), 12 * 32),
    (tff.TensorType(np.float64, [3]), 3 * 64),
    (tff.TensorType(np.float16, [3]), 3 * 16),
    (tff.TensorType(np.float32, [5, 0]), 0),
    (tff.TensorType(np.uint8, [3]), 3 * 8),
    # Eight truth values fit into a byte.
    (tff.TensorType(np.bool_, [3]), 3),
    (
      tff.to_type(
        collections.OrderedDict(
          w=(np.float32, [7, 2]), b=[(np.float32, [2]), np.float64]
        )
      ),
      14 * 32 + 2 * 32 + 64,
    ),
  ],
)
def test_update_bits_are_elements_times_bits_of_the_type(value_type, bits):
  assert message_bits.update_bits(value_type) == bits


def test_update_bits_of_the_models_of_the_paper():
  for parameters in (1_663_370, 833_622, 5_897_508):
    value_type = tff.TensorType(np.float32, [parameters])
    assert message_bits.update_bits(value_type) == 32 * parameters


def test_update_bits_do_not_overflow():
  assert (
    message_bits.update_bits(tff.TensorType(np.float32, [2**31, 2**20]))
    == 2**56
  )


@pytest.mark.parametrize(
  'value_type',
  [
    tff.TensorType(np.float32, [None]),
    tff.TensorType(np.float32, [3, None]),
    tff.to_type([np.float32, (np.float32, [None])]),
  ],
)
def test_update_bits_of_unknown_size(value_type):
  with pytest.raises(ValueError, match=r'found the tensor type .*\?'):
    message_bits.update_bits(value_type)


# 1000 and 24 entries.
VALUE_TYPE = tff.to_type(
  collections.OrderedDict(w=(np.float32, [10, 100]), b=(np.float32, [24]))
)


def _quantised(bits, threshold=0):
  return tff.aggregators.EncodedSumFactory.quantize_above_threshold(
    bits, threshold
  )


@pytest.mark.parametrize(
  'make, bits',
  [
    (tff.aggregators.SumFactory, 1024 * 32),
    # The counts of clipped clients are measurements only.
    (lambda: tff.aggregators.SecureSumFactory(1.0, -1.0), 1024 * 32),
    (
      lambda: tff.aggregators.clipping_factory(
        1.0, tff.aggregators.SumFactory()
      ),
      1024 * 32,
    ),
    # ceil(8 x 1000 / 28) = 286 and ceil(8 x 24 / 28) = 7 integers.
    (lambda: _quantised(8), (286 + 7) * 32 + 2 * 64),
    # ceil(4 x 1000 / 28) = 143 integers, and 24 entries as they are.
    (lambda: _quantised(4, threshold=100), 143 * 32 + 64 + 24 * 32),
    # Filled up to 1024 and 32 entries.
    (tff.aggregators.HadamardTransformFactory, (1024 + 32) * 32),
    (
      lambda: tff.aggregators.HadamardTransformFactory(_quantised(8)),
      (293 + 10) * 32 + 2 * 64,
    ),
    (tff.aggregators.DiscreteFourierTransformFactory, 1024 * 32),
    (lambda: compression.RandomKFactory(0.1), 103 * 32),
    (
      lambda: compression.RandomKFactory(
        0.1, tff.aggregators.SecureSumFactory(1.0, -1.0)
      ),
      103 * 32,
    ),
    (compression.NaturalCompressionFactory, 1024 * 9),
    (compression.RandomDitheringFactory, 1024 * 4 + 2 * 32),
    # 21 buckets of 48, and one that is filled up.
    (
      lambda: compression.RandomDitheringFactory(8, 48),
      22 * (48 * 8 + 32),
    ),
    (
      lambda: tff.aggregators.HadamardTransformFactory(
        compression.NaturalCompressionFactory()
      ),
      (1024 + 32) * 9,
    ),
    (
      lambda: tff.aggregators.concat_factory(
        compression.RandomDitheringFactory(2)
      ),
      1024 * 2 + 2 * 32,
    ),
  ],
)
def test_message_bits_by_hand(make, bits):
  assert message_bits.message_bits(make().create(VALUE_TYPE).next) == bits


def test_message_bits_of_an_inner_process_that_runs_twice():
  inner = tff.aggregators.SumFactory().create(VALUE_TYPE)

  @tff.tensorflow.computation(VALUE_TYPE)
  def double(value):
    return tf.nest.map_structure(lambda x: 2 * x, value)

  @tff.federated_computation(
    inner.initialize.type_signature.result,
    tff.FederatedType(VALUE_TYPE, tff.CLIENTS),
  )
  def twice(state, value):
    first = inner.next(state, value)
    second = inner.next(first.state, tff.federated_map(double, value))
    third = inner.next(second.state, value)
    return tff.templates.MeasuredProcessOutput(
      third.state,
      tff.federated_zip((first.result, second.result)),
      third.result,
    )

  assert message_bits.message_bits(twice) == 2 * 1024 * 32


def test_message_bits_of_the_paper_and_natural_compression():
  process = compression.NaturalCompressionFactory().create(
    tff.TensorType(np.float32, [1_663_370])
  )
  assert message_bits.message_bits(process.next) == 9 * 1_663_370


def test_uplink_bits_by_hand():
  # A round of the paper's FEMNIST set-up with AOCS: 4 iterations.
  assert communication.uplink_bits(
    participants=3,
    bits_per_update=32 * 1_663_370,
    cohort_size=32,
    scalars_per_client=1 + 2 * 4,
  ) == 32 * (3 * 1_663_370 + 32 * 9)


@pytest.mark.parametrize('scalars', [0, 1, 3, 9])
@pytest.mark.parametrize('participants', [0, 5])
def test_uplink_bits_are_those_of_updates_and_scalars(participants, scalars):
  arguments = dict(
    participants=participants,
    bits_per_update=320,
    cohort_size=8,
    scalars_per_client=scalars,
  )
  expected = participants * 320 + 8 * 32 * scalars
  assert communication.uplink_bits(**arguments) == expected
  tensors = {k: tf.constant(v, tf.int64) for k, v in arguments.items()}
  bits = communication.uplink_bits(**tensors)
  assert bits.dtype == tf.int64
  assert bits.numpy() == expected


def test_uplink_bits_exceed_32_bits_without_overflow():
  # 128 clients send 5,897,508 parameters each.
  bits = communication.uplink_bits(
    participants=tf.constant(128, tf.int64),
    bits_per_update=32 * 5_897_508,
    cohort_size=tf.constant(128, tf.int64),
    scalars_per_client=tf.constant(0, tf.int64),
  )
  assert bits.numpy() == 128 * 32 * 5_897_508 > 2**31
