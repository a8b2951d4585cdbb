import functools

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_ocs
from tff_ocs import execution
from tff_ocs import probabilities
from tff_ocs import schemes
from tff_ocs import secure_sums

M = 2
SCHEMES = {
  'full': schemes.FullParticipation(),
  'uniform': schemes.UniformSampling(M),
  'ocs': schemes.OptimalSampling(M),
  'aocs': schemes.ApproximateOptimalSampling(M),
  'another m': schemes.ApproximateOptimalSampling(M + 1),
}
COHORTS = {
  'equal': [2.0] * 6,
  'unequal': [5.0, 4.0, 3.0, 2.0, 1.0, 1.0],
  'one giant': [1e6, 1.0, 1.0, 1.0, 1.0],
  'one non-zero': [0.0, 3.0, 0.0, 0.0],
  'm non-zero': [1.0, 0.0, 3.0, 0.0, 0.0],
  'all zero': [0.0] * 4,
  'as many as m': [1.0, 2.0],
  'fewer than m': [3.0],
  'not finite': [np.nan, 2.0, np.inf, 1.0, 4.0],
}


@functools.cache
def _process(scheme, m=M):
  return tff_ocs.ClientSamplingFactory(
    SCHEMES[scheme], improvement_expected_clients=m
  ).create(tff.TensorType(np.float32, [1]), tff.TensorType(np.float32))


def _measure(process, norms, state=None):
  values = [np.array([norm], np.float32) for norm in norms]
  if state is None:
    state = process.initialize()
  return process.next(state, values, [1.0] * len(norms))


@pytest.mark.parametrize('scheme', SCHEMES)
def test_factors_are_those_of_the_reference(scheme):
  process = _process(scheme)
  state = process.initialize()
  for norms in COHORTS.values():
    output = _measure(process, norms, state)
    state = output.state
    measured = output.measurements
    finite = np.where(np.isfinite(norms), norms, 0)
    alpha = probabilities.improvement_factor(finite, M)
    gamma = probabilities.relative_improvement_factor(alpha, len(norms), M)
    # In these cohorts four iterations of AOCS reach the optimum.
    assert measured['improvement_factor'] == pytest.approx(
      alpha, rel=1e-5, abs=1e-9
    )
    assert measured['relative_improvement_factor'] == pytest.approx(
      gamma, rel=1e-5
    )


@pytest.mark.parametrize('scheme', SCHEMES)
def test_factors_cost_the_method_nothing(scheme):
  n = len(COHORTS['unequal'])
  measured = _measure(_process(scheme), COHORTS['unequal']).measurements
  plain = tff_ocs.ClientSamplingFactory(SCHEMES[scheme]).create(
    tff.TensorType(np.float32, [1]), tff.TensorType(np.float32)
  )
  # Coins are random: what is compared are the bits of scalars.
  without = _measure(plain, COHORTS['unequal']).measurements
  assert (
    measured['uplink_bits'] - 32 * measured['participants']
    == without['uplink_bits'] - 32 * without['participants']
  )
  assert 'improvement_factor' not in without
  _, iterations = probabilities.approximate_probabilities(
    np.array(COHORTS['unequal']), M
  )
  # A norm and two terms; and those of AOCS, unless the scheme computes them.
  of_aocs = 0 if scheme in ('ocs', 'aocs') else 1 + 2 * iterations
  assert measured['improvement_bits'] == n * 32 * (3 + of_aocs)


def test_m_may_be_another_than_that_of_the_scheme():
  norms = COHORTS['unequal']
  factors = [
    _measure(_process('full', m), norms).measurements['improvement_factor']
    for m in (1, 4)
  ]
  expected = [probabilities.improvement_factor(norms, m) for m in (1, 4)]
  np.testing.assert_allclose(factors, expected, rtol=1e-5)
  assert expected[0] != pytest.approx(expected[1])


def test_server_sees_sums_only_and_they_can_be_secure():
  norms = COHORTS['unequal']
  process = tff_ocs.ClientSamplingFactory(
    tff_ocs.UniformSampling(M),
    value_sum_factory=tff.aggregators.SecureSumFactory(1e3),
    weight_sum_factory=tff.aggregators.SecureSumFactory(1.0, 0.0),
    scalar_sum_factory=secure_sums.SecureScalarSumFactory(10.0),
    improvement_expected_clients=M,
  ).create(tff.TensorType(np.float32, [1]), tff.TensorType(np.float32))
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  with execution.use_secure_test_context():
    measured = _measure(process, norms).measurements
  assert measured['clipped']['scalars'] == 0
  assert measured['improvement_factor'] == pytest.approx(
    probabilities.improvement_factor(norms, M), rel=1e-5
  )


@pytest.mark.parametrize(
  'm, error', [(0, ValueError), (float('nan'), ValueError), ('2', TypeError)]
)
def test_bad_m_is_named(m, error):
  with pytest.raises(error, match='improvement_expected_clients must be'):
    tff_ocs.ClientSamplingFactory(
      tff_ocs.FullParticipation(), improvement_expected_clients=m
    )


def test_costs_have_no_factors():
  factory = tff_ocs.ClientSamplingFactory(
    tff_ocs.OptimalSampling(2), improvement_expected_clients=2
  )
  with pytest.raises(ValueError, match='improvement_expected_clients cannot'):
    factory.create_with_costs(np.float32, np.float32)


def test_aocs_stopped_too_early_can_be_worse_than_uniform_sampling():
  # p_i = min(95 u_i, 1): 50 clients are sure, 50 send with 0.633; sum p = 81.7.
  norms = np.array([1 / 75] * 50 + [1 / 150] * 50)
  p, _ = probabilities.approximate_probabilities(norms, 95, 0)
  expected = probabilities.sampling_variance(
    norms, p
  ) / probabilities.sampling_variance(
    norms, probabilities.uniform_probabilities(100, 95)
  )
  assert round(expected, 1) == 2.2
  process = tff_ocs.ClientSamplingFactory(
    schemes.ApproximateOptimalSampling(95, max_iterations=0),
    improvement_expected_clients=95,
  ).create(tff.TensorType(np.float32, [1]), tff.TensorType(np.float32))
  measured = _measure(process, norms).measurements
  assert measured['improvement_factor'] == pytest.approx(expected, rel=1e-5)
  assert measured['relative_improvement_factor'] < 95 / 100
