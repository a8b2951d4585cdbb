"""Tests of partial availability, Appendix E of the paper."""

import collections
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tests import oracles
from tff_ocs import execution
from tff_ocs import probabilities
from tff_ocs import schemes
from tff_ocs import secure_sums
from tff_ocs import simple_fedavg

M = 1.5
SCHEMES = {
  'full': schemes.FullParticipation(),
  'uniform': schemes.UniformSampling(M),
  'ocs': schemes.OptimalSampling(M),
  'aocs': schemes.ApproximateOptimalSampling(M),
  'threshold': schemes.ThresholdSampling(M, initial_threshold=4.0),
}
each_scheme = pytest.mark.parametrize('scheme', SCHEMES)

N = 4
# In the first N entries each client has one of its own, so that the aggregate
# shows who sent, and with what factor.
DIM = N + 2
VALUE_TYPE = tff.TensorType(np.float32, [DIM])
WEIGHT_TYPE = tff.TensorType(np.float32)
WEIGHTS = np.array([1, 3, 2, 1.5])
Q = np.array([0.25, 0.9, 1, 0.4])


@functools.cache
def factory(scheme):
  return tff_ocs.ClientSamplingFactory(
    SCHEMES[scheme], improvement_expected_clients=M, measure_norms=True
  )


@functools.cache
def build(scheme):
  return factory(scheme).create_with_availability(VALUE_TYPE, WEIGHT_TYPE)


def updates(seed, n=N):
  rng = np.random.default_rng(seed)
  own = np.eye(N)[:n] * np.array([1, 5, 0.5, 2])[:n, None]
  return np.hstack([own, rng.normal(size=(n, DIM - N))]).astype(np.float32)


def coin_seed(below, start=0):
  """A seed with a coin below a number."""
  for number in itertools.count(start):
    seed = np.array([number, 0])
    if tf.random.stateless_uniform([], seed, dtype=tf.float64) < below:
      return seed


def run(process, values, available, coin_seeds, q=Q, weights=WEIGHTS):
  n = len(values)
  return process.next(
    process.initialize(),
    list(values),
    [np.float32(w) for w in weights[:n]],
    coin_seeds,
    [
      collections.OrderedDict(q=np.float32(q_i), available=bool(a))
      for q_i, a in zip(q, available)
    ],
  )


def weighted_norms(values, q=Q):
  n = len(values)
  return WEIGHTS[:n] * np.linalg.norm(values, axis=1) / q[:n]


def reference_probabilities(scheme, norms, available):
  """Of the available clients alone, and the iterations."""
  available = np.array(available, bool)
  p, iterations = np.zeros(len(norms)), 0
  if not available.any():
    return p, 0
  norms = np.asarray(norms, np.float64)[available]
  if scheme == 'full':
    p[available] = 1
  elif scheme == 'uniform':
    p[available] = probabilities.uniform_probabilities(norms.size, M)
  elif scheme == 'ocs':
    p[available] = probabilities.optimal_probabilities(norms, M)
  elif scheme == 'threshold':
    p[available] = probabilities.threshold_probabilities(norms, 4.0)
  else:
    p[available], iterations = probabilities.approximate_probabilities(norms, M)
  return p, iterations


@each_scheme
def test_aggregate_is_that_of_the_appendix_for_every_set_of_clients(scheme):
  values = updates(0)
  norms = weighted_norms(values)
  seeds = [np.array([number, 7]) for number in range(N)]
  coins = [
    tf.random.stateless_uniform([], s, dtype=tf.float64).numpy() for s in seeds
  ]
  for available in itertools.product([0, 1], repeat=N):
    output = run(build(scheme), values, available, seeds)
    p, iterations = reference_probabilities(scheme, norms, available)
    sends = coins < p
    expected = sum(
      (
        WEIGHTS[i] / (Q[i] * p[i]) * values[i] / WEIGHTS.sum()
        for i in np.flatnonzero(sends)
      ),
      np.zeros(DIM),
    )
    np.testing.assert_allclose(output.result, expected, rtol=1e-5, atol=1e-6)

    measured = output.measurements
    num_available = sum(available)
    assert measured['cohort_size'] == N
    assert measured['available'] == num_available
    assert measured['participants'] == sends.sum()
    assert measured['non_finite_clients'] == 0
    assert measured['num_iterations'] == iterations
    assert measured['expected_participants'] == pytest.approx(p.sum(), rel=1e-5)
    scalars = {'ocs': 1, 'aocs': 1 + 2 * iterations, 'threshold': 3}
    assert measured['uplink_bits'] == 32 * (
      DIM * sends.sum() + num_available * scalars.get(scheme, 0)
    )
    np.testing.assert_allclose(
      np.sort(measured['norms']),
      np.sort(norms[np.array(available, bool)]),
      rtol=1e-6,
    )
    alpha, gamma = 0, 1
    if num_available:
      of_available = norms[np.array(available, bool)]
      alpha = probabilities.improvement_factor(of_available, M)
      gamma = probabilities.relative_improvement_factor(alpha, num_available, M)
    assert measured['improvement_factor'] == pytest.approx(alpha, abs=1e-5)
    assert measured['relative_improvement_factor'] == pytest.approx(gamma)


def squared_norm(vector):
  return float(np.sum(np.square(vector)))


@each_scheme
def test_unbiased_with_the_variance_of_the_appendix(scheme):
  # All is enumerated: the gradients' noise, who is available, and who sends.
  n = 3
  process = build(scheme)
  weights, q = WEIGHTS[:n], Q[:n]
  shares = weights / weights.sum()
  gradients = updates(1, n).astype(np.float64)
  noise = np.random.default_rng(2).normal(size=[n, DIM])
  noise[:, :N] = 0
  full_gradient = shares @ gradients
  # Coins with which a client sends unless p is tiny.
  seeds = [coin_seed(below=1e-2, start=1000 * i) for i in range(n)]

  mean, variance = np.zeros(DIM), 0
  of_sampling, of_availability, of_noise, without_q = 0, 0, 0, 0
  signs = list(itertools.product([-1, 1], repeat=n))
  for sign in signs:
    values = (gradients + np.array(sign)[:, None] * noise).astype(np.float32)
    whole = shares @ values
    of_noise += squared_norm(whole - full_gradient) / len(signs)
    for available in itertools.product([0, 1], repeat=n):
      chance = np.prod(np.where(available, q, 1 - q)) / len(signs)
      if chance == 0:
        continue
      result = run(process, values, available, seeds, q, weights).result
      contributions = np.diag(result[:n]) @ (
        values / np.diag(values[:, :n])[:, None]
      )
      norms = weighted_norms(values).astype(np.float32)
      p, _ = reference_probabilities(scheme, norms, available)
      sum_available = sum(
        (shares[i] / q[i] * values[i] for i in np.flatnonzero(available)),
        np.zeros(DIM),
      )
      of_availability += chance * squared_norm(sum_available - whole)
      for sends in itertools.product([0, 1], repeat=n):
        conditional = chance * np.prod(np.where(sends, p, 1 - p))
        estimate = np.array(sends) @ contributions
        mean += conditional * estimate
        variance += conditional * squared_norm(estimate - full_gradient)
        of_sampling += conditional * squared_norm(estimate - sum_available)
      if any(available):
        # The same with probabilities from norms without 1 / q_i.
        present = np.array(available, bool)
        without_q += chance * probabilities.sampling_variance(
          (norms / weights.sum())[present],
          probabilities.optimal_probabilities((norms * q)[present], M),
        )
  np.testing.assert_allclose(mean, full_gradient, rtol=1e-5, atol=1e-6)
  assert variance == pytest.approx(
    of_sampling + of_availability + of_noise, rel=1e-5
  )
  if scheme == 'full':
    assert of_sampling == pytest.approx(0, abs=1e-9)
  else:
    assert min(of_sampling, of_availability, of_noise) > 0.01 * variance
  if scheme in ('ocs', 'aocs'):
    assert of_sampling < 0.99 * without_q


@each_scheme
def test_always_available_is_as_without_bit_for_bit(scheme):
  values = updates(3)
  values[2, 0] = np.nan
  seeds = [np.array([number, 1]) for number in range(N)]
  plain = factory(scheme).create_with_coin_seeds(VALUE_TYPE, WEIGHT_TYPE)
  expected = plain.next(
    plain.initialize(), list(values), list(map(np.float32, WEIGHTS)), seeds
  )
  output = run(build(scheme), values, [1] * N, seeds, q=np.ones(N))
  np.testing.assert_array_equal(output.result, expected.result)
  assert output.measurements.pop('norms').tolist() == (
    expected.measurements.pop('norms').tolist()
  )
  assert output.measurements == expected.measurements
  assert output.measurements['available'] == N


@each_scheme
def test_who_is_not_available_is_never_looked_at(scheme):
  seeds = [coin_seed(below=1e-2)] * N
  broken = updates(4)
  broken[:2] = np.nan
  output = run(build(scheme), broken, [0, 0, 1, 0], seeds)
  expected = WEIGHTS[2] * broken[2] / WEIGHTS.sum()  # q = 1.
  # Alone, it is sure to send, unless it is below a threshold.
  p, _ = reference_probabilities(scheme, weighted_norms(broken), [0, 0, 1, 0])
  assert p[2] == 1 or scheme == 'threshold'
  expected /= p[2]
  np.testing.assert_allclose(output.result, expected, rtol=1e-6)
  assert output.measurements['non_finite_clients'] == 0
  output = run(build(scheme), broken * np.nan, [0] * N, seeds)
  np.testing.assert_array_equal(output.result, np.zeros(DIM))
  assert output.measurements['participants'] == 0
  assert output.measurements['uplink_bits'] == 0
  assert output.measurements['improvement_bits'] == 0


@pytest.mark.parametrize('q', [0, -0.5, 1.5, np.nan])
def test_impossible_probability_fails(q):
  # As an error of the worker's, whatever its type.
  with pytest.raises(Exception, match=r'must lie in \(0, 1\], found'):
    run(
      build('uniform'),
      updates(0),
      [1] * N,
      [np.zeros(2, np.int64)] * N,
      [q] * N,
    )


def test_server_sees_sums_only_and_they_can_be_secure():
  def build_secure(scheme, m):
    process = tff_ocs.ClientSamplingFactory(
      SCHEMES[scheme],
      value_sum_factory=tff.aggregators.SecureSumFactory(1e3),
      weight_sum_factory=tff.aggregators.SecureSumFactory(10.0, 0.0),
      scalar_sum_factory=secure_sums.SecureScalarSumFactory(100.0),
      improvement_expected_clients=m,
    ).create_with_availability(VALUE_TYPE, WEIGHT_TYPE)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    return process

  build_secure('aocs', M)
  process = build_secure('uniform', None)
  seeds = [coin_seed(below=1e-2)] * N
  available = [1, 0, 1, 1]
  plain = run(build('uniform'), updates(0), available, seeds)
  with execution.use_secure_test_context():
    secure = run(process, updates(0), available, seeds)
  np.testing.assert_allclose(secure.result, plain.result, atol=1e-5)
  assert secure.measurements['available'] == 3
  assert set(secure.measurements['clipped'].values()) == {0}


def test_type_signatures():
  parameter = build('aocs').next.type_signature.parameter
  assert tff.structure.name_list(parameter)[1:] == [
    'value',
    'weight',
    'coin_seed',
    'availability',
  ]
  assert parameter[4] == tff.FederatedType(
    collections.OrderedDict(q=np.float32, available=np.bool_), tff.CLIENTS
  )


# Training.


@functools.cache
def build_training(scheme, availability=True, algorithm='fedavg'):
  if algorithm == 'dsgd':
    return tff_ocs.build_distributed_sgd_process(
      models.build_linear_model(2),
      SCHEMES[scheme],
      learning_rate=0.1,
      availability=availability,
    )
  return tff_ocs.build_federated_averaging_process(
    models.build_linear_model(2),
    SCHEMES[scheme],
    client_learning_rate=0.1,
    batch_size=2,
    availability=availability,
  )


def make_cohort(round_num, q=Q, with_availability=True):
  cohort = []
  for i, (size, q_i) in enumerate(zip([3, 7, 2, 5], q)):
    rng = np.random.default_rng(i)
    client = {
      'x': rng.normal(size=[size, 2]).astype(np.float32),
      'y': rng.normal(size=[size, 1]).astype(np.float32),
      'seed': simple_fedavg.client_seed(0, round_num, str(i)),
    }
    if with_availability:
      client['availability'] = np.float32(q_i)
    cohort.append(client)
  return cohort


def who_is_available(cohort):
  return np.array(
    [
      simple_fedavg.availability_coin(c['seed']) < c['availability']
      for c in cohort
    ]
  )


def trainable(state):
  return [np.asarray(w) for w in state.weights.trainable]


def test_distributed_sgd_step_is_that_of_the_appendix():
  process = build_training('ocs', algorithm='dsgd')
  state = process.initialize()
  num_available = set()
  for round_num in range(20):
    kernel, bias = trainable(state)
    cohort = make_cohort(round_num)
    available = who_is_available(cohort)
    sizes = np.array([len(c['y']) for c in cohort])
    residuals = [c['x'] @ kernel + bias - c['y'] for c in cohort]
    gradients = np.array(
      [
        [*(2 * c['x'].T @ r / len(r))[:, 0], 2 * r.mean()]
        for c, r in zip(cohort, residuals)
      ]
    )
    norms = sizes * np.linalg.norm(gradients, axis=1) / Q
    p, _ = reference_probabilities('ocs', norms, available)
    coins = [
      tf.random.stateless_uniform(
        [],
        tf.random.experimental.stateless_split(c['seed'], 2)[1],
        dtype=tf.float64,
      ).numpy()
      for c in cohort
    ]
    step = sum(
      (
        sizes[i] / (Q[i] * p[i]) * gradients[i] / sizes.sum()
        for i in np.flatnonzero(coins < p)
      ),
      np.zeros(3),
    )
    state, metrics = process.next(state, cohort)
    new_kernel, new_bias = trainable(state)
    np.testing.assert_allclose(
      new_kernel[:, 0], kernel[:, 0] - 0.1 * step[:2], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
      new_bias, bias - 0.1 * step[2:], rtol=1e-4, atol=1e-5
    )
    assert metrics['aggregator']['available'] == available.sum()
    assert metrics['num_examples'] == sizes[available].sum()
    losses = [
      np.sum(r**2) for r, is_there in zip(residuals, available) if is_there
    ]
    np.testing.assert_allclose(
      metrics['training_loss'],
      np.sum(losses) / sizes[available].sum(),
      rtol=1e-4,
    )
    num_available.add(available.sum())
  # Fixed seeds: this either always holds or never.
  assert {2, 3, 4} <= num_available


@pytest.mark.parametrize(
  'scheme, algorithm', [('aocs', 'fedavg'), ('uniform', 'dsgd')]
)
def test_training_with_all_available_is_as_without(scheme, algorithm):
  states = []
  for availability in (False, True):
    process = build_training(scheme, availability, algorithm)
    state = process.initialize()
    for round_num in range(3):
      state, metrics = process.next(
        state, make_cohort(round_num, np.ones(N), availability)
      )
      metrics['aggregator'].pop('available', None)
    states.append((trainable(state), metrics))
  for plain, other in zip(states[0][0], states[1][0]):
    np.testing.assert_array_equal(plain, other)
  assert states[0][1] == states[1][1]


def test_methods_share_who_is_available_and_runs_repeat():
  sampled, again, uniform = [], [], []
  for scheme, seen in (
    ('aocs', sampled),
    ('aocs', again),
    ('uniform', uniform),
  ):
    process = build_training(
      scheme, algorithm='dsgd' if scheme == 'uniform' else 'fedavg'
    )
    state = process.initialize()
    for round_num in range(6):
      state, metrics = process.next(state, make_cohort(round_num))
      seen.append((metrics['aggregator']['available'], metrics['num_examples']))
    seen.append([w.tobytes() for w in trainable(state)])
  assert sampled == again
  # The sizes of the clients tell them apart.
  assert sampled[:6] == uniform[:6]
  assert sampled[6] != uniform[6]


def test_without_anybody_available_the_server_makes_no_step():
  process = build_training('aocs')
  state, _ = process.next(process.initialize(), make_cohort(0, np.ones(N)))
  before = trainable(state)
  state, metrics = process.next(state, make_cohort(1, np.full(N, 1e-30)))
  for old, new in zip(before, trainable(state)):
    np.testing.assert_array_equal(old, new)
  assert np.isnan(metrics['training_loss'])
  assert metrics['num_examples'] == 0
  assert metrics['aggregator']['available'] == 0
  assert metrics['aggregator']['cohort_size'] == N


@pytest.mark.parametrize(
  'scheme, algorithm', [('aocs', 'fedavg'), ('uniform', 'dsgd')]
)
def test_who_is_not_available_does_not_train(scheme, algorithm):
  process = build_training(scheme, algorithm=algorithm)
  cohort = make_cohort(0, [1, 1e-30, 1e-30, 1])
  for client in cohort[1:3]:
    client['x'] *= np.nan
  state, metrics = process.next(process.initialize(), cohort)
  assert metrics['aggregator']['non_finite_clients'] == 0
  assert metrics['num_examples'] == 8
  assert np.isfinite(metrics['training_loss'])
  assert all(np.all(np.isfinite(w)) for w in trainable(state))


def test_revealed_clients_train_only_if_available():
  plain, revealing = (
    simple_fedavg.build_federated_averaging_process(
      models.build_linear_model(2),
      tff_ocs.ClientSamplingFactory(SCHEMES['full'], reveal_clients=reveals),
      client_learning_rate=0.1,
      availability=True,
    )
    for reveals in (False, True)
  )
  cohort = make_cohort(0)
  available = who_is_available(cohort)
  assert 0 < available.sum() < N
  _, expected = plain.next(plain.initialize(), cohort)
  places = [
    collections.OrderedDict(client, place=np.float32(k))
    for k, client in enumerate(cohort)
  ]
  _, found = revealing.next(revealing.initialize(), places)
  for name in ('training_loss', 'num_examples'):
    assert found[name] == expected[name]
  rows = found['aggregator']['clients']
  rows = rows[np.argsort(rows[:, 0])]
  np.testing.assert_array_equal(rows[:, 0], np.arange(N))
  # With full participation, who is available sends.
  np.testing.assert_array_equal(rows[:, 2], available)


def test_coins_of_a_client_are_independent():
  num_seeds = 20_000

  @tf.function
  def coins():
    def of_client(number):
      seed = tf.stack([number, 5])
      split = tf.random.experimental.stateless_split(seed, 2)
      return tf.stack(
        [simple_fedavg.availability_coin(seed)]
        + [
          tf.random.stateless_uniform([], s, dtype=tf.float64)
          for s in tf.unstack(split)
        ]
      )

    return tf.map_fn(
      of_client,
      tf.range(num_seeds, dtype=tf.int64),
      fn_output_signature=tf.float64,
    )

  available, shuffle, sends = coins().numpy().T
  for q in (0.1, 0.5):
    low, high = oracles.count_bounds(np.full(num_seeds, q))
    assert low <= np.sum(available < q) <= high
    for other in (shuffle, sends):
      low, high = oracles.count_bounds(np.full(num_seeds, q * 0.5))
      assert low <= np.sum((available < q) & (other < 0.5)) <= high


def test_what_does_not_go_with_availability_is_named():
  common = dict(client_learning_rate=0.1, availability=True)
  model = models.build_linear_model(2)
  with pytest.raises(TypeError, match='availability=True needs.*MeanFactory'):
    tff_ocs.build_federated_averaging_process(
      model, tff.aggregators.MeanFactory(), **common
    )
  with pytest.raises(
    ValueError, match="is given num_examples .*asks for 'loss'"
  ):
    tff_ocs.build_federated_averaging_process(
      model,
      SCHEMES['full'],
      client_weighting=lambda known: known['loss'],
      **common,
    )
