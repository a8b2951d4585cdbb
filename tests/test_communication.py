import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import communication


@pytest.mark.parametrize(
  'value_type, bits',
  [
    (tff.TensorType(np.float32), 32),
    (tff.TensorType(np.float32, [3, 4]), 12 * 32),
    (tff.TensorType(np.float64, [3]), 3 * 64),
    (tff.TensorType(np.float16, [3]), 3 * 16),
    (tff.TensorType(np.float32, [5, 0]), 0),
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
  assert communication.update_bits(value_type) == bits


def test_update_bits_of_the_models_of_the_paper():
  for parameters in (1_663_370, 833_622, 5_897_508):
    value_type = tff.TensorType(np.float32, [parameters])
    assert communication.update_bits(value_type) == 32 * parameters


def test_update_bits_do_not_overflow():
  assert (
    communication.update_bits(tff.TensorType(np.float32, [2**31, 2**20]))
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
    communication.update_bits(value_type)


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
