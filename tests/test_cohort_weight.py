"""Tests of set_cohort_weight on the states of many kinds of processes."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tff_ocs import schemes

SAMPLING = tff_ocs.ClientSamplingFactory(
  schemes.ThresholdSampling(2, first_cohort_size=4)
)
VALUE_TYPE = tff.TensorType(np.float32, [3])


def build_tff_learning(aggregator):
  return tff.learning.algorithms.build_weighted_fed_avg(
    models.build_linear_model(2),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    model_aggregator=aggregator,
  )


PROCESSES = {
  'factory': lambda: SAMPLING.create(VALUE_TYPE, np.float32),
  'tff_ocs': lambda: tff_ocs.build_federated_averaging_process(
    models.build_linear_model(2), SAMPLING, client_learning_rate=0.1
  ),
  'tff.learning': lambda: build_tff_learning(SAMPLING),
  'zeroing-and-clipping': lambda: build_tff_learning(
    tff.aggregators.zeroing_factory(
      1e3, tff.aggregators.clipping_factory(1e2, SAMPLING)
    )
  ),
}


@pytest.mark.parametrize('kind', PROCESSES)
def test_one_leaf_of_the_state_changes(kind):
  process = PROCESSES[kind]()
  state = process.initialize()
  new_state = tff_ocs.set_cohort_weight(state, 42)
  assert type(new_state) is type(state)
  tf.nest.assert_same_structure(state, new_state, check_types=True)
  before, after = tf.nest.flatten(state), tf.nest.flatten(new_state)
  changed = [new for old, new in zip(before, after) if old is not new]
  assert changed == [42.0] and changed[0].dtype == np.float64
  # The former state is as it was.
  assert 42.0 not in [x for x in before if np.ndim(x) == 0]


def test_weight_divides_the_norms_and_stays_until_it_is_set_anew():
  process = SAMPLING.create(VALUE_TYPE, np.float32)
  values = [np.float32([norm, 0, 0]) for norm in (4, 3, 2, 1)]

  def thresholds(*weights):
    state = process.initialize()
    for weight in weights:
      if weight is not None:
        state = tff_ocs.set_cohort_weight(state, weight)
      state = process.next(state, values, [1.0] * 4).state
      yield float(state['scheme']['controller']['threshold'])

  # The first threshold is the sum of norms over m.
  assert list(thresholds(None)) == [5.0]
  assert list(thresholds(4)) == [5.0 / 4]
  assert list(thresholds(4, None)) == list(thresholds(4, 4))
  # In a cohort of twice the weight these norms count half: fewer send, and the
  # threshold falls. With P = sum of norms / (4, then 8) / 1.25 = 2, then 1, it
  # stays, or falls by the factor e^(1 x (P / m - 1)).
  assert list(thresholds(4, 4))[1] == pytest.approx(1.25)
  assert list(thresholds(4, 8))[1] == pytest.approx(1.25 * np.exp(-0.5))


@pytest.mark.parametrize(
  'weight, error', [(0, ValueError), (np.nan, ValueError), ('3', TypeError)]
)
def test_bad_weights(weight, error):
  with pytest.raises(error, match='cohort_weight must be'):
    tff_ocs.set_cohort_weight({'cohort_weight': 1.0}, weight)


@pytest.mark.parametrize(
  'state',
  [
    (),
    3.0,
    collections.OrderedDict(scheme=(), weights=[np.zeros(2)]),
    collections.OrderedDict(cohort_weights=np.float64(1)),
  ],
  ids=str,
)
def test_state_of_another_process_is_refused(state):
  with pytest.raises(ValueError, match='one without a cohort_weight'):
    tff_ocs.set_cohort_weight(state, 3)
