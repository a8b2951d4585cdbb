"""Tests of the training processes."""

import collections
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tff_ocs import simple_fedavg
from tff_ocs.tasks import client_data
from tff_ocs.tasks import task as task_lib

DIM = 3


@functools.cache
def linear_model():
  """Least squares with the loss (w x - y)^2 / 2 and a bias."""

  @tf.function
  def predict_on_batch(weights, x, training):
    del training
    kernel, bias = weights[0]
    return tf.linalg.matvec(x, kernel) + bias

  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean((output - label) ** 2) / 2

  return tff.learning.models.FunctionalModel(
    initial_weights=(
      (np.array([0.5, -1.0, 2.0], np.float32), np.float32(0.25)),
      (),
    ),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss,
    input_spec=(
      tf.TensorSpec([None, DIM], tf.float32),
      tf.TensorSpec([None], tf.float32),
    ),
  )


@functools.cache
def build(sampling=None, **kwargs):
  """A process on the linear model; full participation if not said otherwise."""
  return tff_ocs.build_federated_averaging_process(
    linear_model(),
    sampling or tff_ocs.FullParticipation(),
    **{'client_learning_rate': 0.1, 'batch_size': 4, **kwargs},
  )


def make_client(num_examples, seed):
  rng = np.random.default_rng(seed)
  return {
    'x': rng.normal(size=(num_examples, DIM)).astype(np.float32),
    'y': rng.normal(size=num_examples).astype(np.float32),
    'seed': simple_fedavg.client_seed(0, 0, str(seed)),
  }


def make_cohort(sizes):
  return [make_client(size, seed) for seed, size in enumerate(sizes)]


def gradient(weights, x, y):
  """Of the mean of (w x - y)^2 / 2, in float64."""
  kernel, bias = weights
  residual = x.astype(np.float64) @ kernel + bias - y
  return residual @ x / len(y), residual.mean(), np.mean(residual**2) / 2


def initial_weights():
  kernel, bias = linear_model().initial_weights[0]
  return kernel.astype(np.float64), float(bias)


def reference_update(client, *, learning_rate, batch_size, epochs):
  """Lines 5 to 10 of Algorithm 3 in NumPy, with the client's permutations."""
  shuffle_seed = tf.random.experimental.stateless_split(client['seed'], 2)[0]
  num_examples = len(client['y'])
  start = kernel, bias = initial_weights()
  losses = []
  orders = np.argsort(
    tf.random.stateless_uniform([epochs, num_examples], shuffle_seed).numpy()
  )
  for order in orders:
    for first in range(0, num_examples, batch_size):
      chosen = order[first : first + batch_size]
      of_kernel, of_bias, loss = gradient(
        (kernel, bias), client['x'][chosen], client['y'][chosen]
      )
      kernel = kernel - learning_rate * of_kernel
      bias = bias - learning_rate * of_bias
      losses += [loss] * len(chosen)
  return start[0] - kernel, start[1] - bias, losses


def trainable(state):
  return [np.asarray(w) for w in state.weights.trainable]


@pytest.mark.parametrize(
  'batch_size, epochs', [(100, 1), (4, 1), (4, 3), (5, 2), (1, 1)]
)
def test_round_equals_numpy_reference(batch_size, epochs):
  process = build(batch_size=batch_size, client_epochs=epochs)
  cohort = make_cohort([10, 4, 1, 7])
  state, metrics = process.next(process.initialize(), cohort)

  updates = [
    reference_update(c, learning_rate=0.1, batch_size=batch_size, epochs=epochs)
    for c in cohort
  ]
  shares = np.array([10, 4, 1, 7]) / 22
  kernel, bias = initial_weights()
  for share, (of_kernel, of_bias, _) in zip(shares, updates):
    kernel = kernel - share * of_kernel
    bias = bias - share * of_bias
  # The weights are of order 1, and float32.
  np.testing.assert_allclose(trainable(state)[0], kernel, atol=2e-6)
  np.testing.assert_allclose(trainable(state)[1], bias, atol=2e-6)
  all_losses = np.concatenate([losses for _, _, losses in updates])
  np.testing.assert_allclose(
    metrics['training_loss'], all_losses.mean(), rtol=1e-5
  )
  assert metrics['num_examples'] == 22


@pytest.mark.parametrize(
  'client_weighting, weights',
  [
    (tff.learning.ClientWeighting.NUM_EXAMPLES, [10, 4, 0, 7]),
    (tff.learning.ClientWeighting.UNIFORM, [1, 1, 1, 1]),
    (lambda known: tf.minimum(known['num_examples'], 5), [5, 4, 0, 5]),
    (lambda known: tf.cast(known['num_examples'] > 4, tf.int32), [1, 0, 0, 1]),
  ],
)
def test_clients_are_weighted_as_asked(client_weighting, weights):
  process = build(client_weighting=client_weighting, batch_size=100)
  cohort = make_cohort([10, 4, 0, 7])
  state, metrics = process.next(process.initialize(), cohort)
  kernel, bias = initial_weights()
  for weight, client in zip(weights, cohort):
    if len(client['y']):
      of_kernel, of_bias, _ = reference_update(
        client, learning_rate=0.1, batch_size=100, epochs=1
      )
      kernel = kernel - weight / sum(weights) * of_kernel
      bias = bias - weight / sum(weights) * of_bias
  np.testing.assert_allclose(trainable(state)[0], kernel, atol=2e-6)
  np.testing.assert_allclose(trainable(state)[1], bias, atol=2e-6)
  # The metrics of the cohort do not depend on the weights.
  assert metrics['num_examples'] == 21


def test_clients_can_be_weighted_by_their_loss():
  process = build(
    client_weighting=lambda known: tf.where(
      known['num_examples'] > 0, known['loss'], 0.0
    ),
    batch_size=100,
  )
  cohort = make_cohort([10, 4, 0])
  state, _ = process.next(process.initialize(), cohort)
  updates = [
    reference_update(client, learning_rate=0.1, batch_size=100, epochs=1)
    for client in cohort[:2]
  ]
  losses = np.array([np.mean(losses) for _, _, losses in updates])
  kernel = initial_weights()[0] - sum(
    share * of_kernel
    for share, (of_kernel, _, _) in zip(losses / losses.sum(), updates)
  )
  np.testing.assert_allclose(trainable(state)[0], kernel, atol=2e-6)


def test_distributed_sgd_weights_clients_as_asked():
  process = tff_ocs.build_distributed_sgd_process(
    linear_model(),
    tff_ocs.FullParticipation(),
    learning_rate=0.5,
    client_weighting=tff.learning.ClientWeighting.UNIFORM,
  )
  cohort = make_cohort([9, 2])
  state, _ = process.next(process.initialize(), cohort)
  kernel, bias = initial_weights()
  step = sum(gradient((kernel, bias), c['x'], c['y'])[0] for c in cohort) / 2
  np.testing.assert_allclose(
    trainable(state)[0], kernel - 0.5 * step, atol=2e-6
  )


@pytest.mark.parametrize(
  'client_weighting, message',
  [
    ('uniform', "ClientWeighting or a function, found 'uniform'"),
    (lambda known: tf.ones([2]), r'return a scalar, found the shape \(2,\)'),
  ],
)
def test_bad_client_weighting_is_named(client_weighting, message):
  with pytest.raises(TypeError, match=f'client_weighting must .*{message}'):
    build(client_weighting=client_weighting)


def test_server_learning_rate_scales_the_step():
  cohort = make_cohort([5, 3])
  steps = []
  for server_learning_rate in (1.0, 0.25):
    process = build(server_learning_rate=server_learning_rate)
    initial = process.initialize()
    state, _ = process.next(initial, cohort)
    steps.append(trainable(state)[0] - trainable(initial)[0])
  # Differences of float32 weights of order 1.
  np.testing.assert_allclose(steps[1], 0.25 * steps[0], atol=1e-6)


def test_every_example_is_used_once_in_each_epoch():
  @tf.function
  def predict_on_batch(weights, x, training):
    del training
    return tf.linalg.matvec(x, weights[0][0])

  # The gradient for a batch of one is its input: updates count the examples.
  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros(11, np.float32),), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(output),
    input_spec=(
      tf.TensorSpec([None, 11], tf.float32),
      tf.TensorSpec([None], tf.float32),
    ),
  )
  process = tff_ocs.build_federated_averaging_process(
    model,
    tff_ocs.FullParticipation(),
    client_learning_rate=1.0,
    batch_size=1,
    client_epochs=3,
  )
  client = {
    'x': np.eye(11, dtype=np.float32),
    'y': np.zeros(11, np.float32),
    'seed': simple_fedavg.client_seed(0, 0, 'a'),
  }
  state, _ = process.next(process.initialize(), [client])
  np.testing.assert_array_equal(trainable(state)[0], np.full(11, -3.0))


def test_epochs_are_shuffled_differently():
  process = build(batch_size=1, client_epochs=2, client_learning_rate=0.3)
  cohort = make_cohort([6])
  _, _, losses = reference_update(
    cohort[0], learning_rate=0.3, batch_size=1, epochs=2
  )
  # The reference reshuffles; were the process to repeat the first epoch's
  # order, its mean loss would be another.
  _, metrics = process.next(process.initialize(), cohort)
  np.testing.assert_allclose(
    metrics['training_loss'], np.mean(losses), rtol=1e-5
  )


def test_full_participation_equals_stock_mean_bit_for_bit():
  cohort = make_cohort([10, 4, 0, 7])
  states = []
  for sampling in (tff_ocs.FullParticipation(), tff.aggregators.MeanFactory()):
    process = build(sampling)
    state, _ = process.next(process.initialize(), cohort)
    states.append(trainable(state))
  for ours, stock in zip(*states):
    np.testing.assert_array_equal(ours, stock)


def test_one_step_equals_tff_learning():
  cohort = make_cohort([6, 2, 9])
  ours = build(batch_size=100)
  state, _ = ours.next(ours.initialize(), cohort)
  stock = tff.learning.algorithms.build_weighted_fed_avg(
    linear_model(),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )
  stock_state = stock.initialize()
  stock_state = stock.next(
    stock_state,
    [
      tf.data.Dataset.from_tensors((client['x'], client['y']))
      for client in cohort
    ],
  ).state
  for w, v in zip(
    trainable(state), stock.get_model_weights(stock_state).trainable
  ):
    np.testing.assert_allclose(w, v, rtol=1e-6)


SCHEMES = [
  tff_ocs.FullParticipation(),
  tff_ocs.UniformSampling(2),
  tff_ocs.OptimalSampling(2),
  tff_ocs.ApproximateOptimalSampling(2),
]
# `build` knows a scheme by its identity.
UNIFORM_4 = tff_ocs.UniformSampling(4)
AOCS_4 = tff_ocs.ApproximateOptimalSampling(4)


@pytest.mark.parametrize('scheme', SCHEMES, ids=repr)
def test_same_seeds_give_the_same_bits(scheme):
  process = build(scheme)
  results = []
  for _ in range(2):
    state = process.initialize()
    for _ in range(3):
      state, metrics = process.next(state, make_cohort([10, 4, 1, 7]))
    results.append((trainable(state), metrics))
  np.testing.assert_array_equal(results[0][0][0], results[1][0][0])
  assert results[0][1] == results[1][1]


def test_schemes_share_shuffles_and_coins():
  # Clients with equal data have equal norms, for which OCS and AOCS are uniform
  # sampling: the same clients send, and the models agree.
  client = make_client(8, seed=1)
  cohort = [
    {**client, 'seed': simple_fedavg.client_seed(0, 0, f'{i}')}
    for i in range(8)
  ]
  states, participants = [], []
  for scheme in (
    UNIFORM_4,
    tff_ocs.OptimalSampling(4),
    AOCS_4,
  ):
    process = build(scheme, batch_size=100)
    state, metrics = process.next(process.initialize(), cohort)
    states.append(trainable(state)[0])
    participants.append(metrics['aggregator']['participants'])
  assert 0 < participants[0] < 8
  assert participants[0] == participants[1] == participants[2]
  np.testing.assert_allclose(states[1], states[0], rtol=1e-5)
  np.testing.assert_allclose(states[2], states[0], rtol=1e-5)


@pytest.mark.parametrize('scheme', SCHEMES, ids=repr)
def test_loss_is_of_all_clients_sent_or_not(scheme):
  cohort = make_cohort([10, 4, 1, 7])
  full = build()
  _, of_all = full.next(full.initialize(), cohort)
  process = build(scheme)
  _, metrics = process.next(process.initialize(), cohort)
  assert metrics['training_loss'] == of_all['training_loss']
  assert metrics['num_examples'] == 22


@pytest.mark.parametrize('scheme', SCHEMES, ids=repr)
def test_diverged_client_harms_nobody(scheme):
  cohort = make_cohort([10, 4, 1, 7])
  healthy = build()
  _, of_healthy = healthy.next(healthy.initialize(), [cohort[0], *cohort[2:]])
  cohort[1]['x'] = np.full_like(cohort[1]['x'], np.nan)
  process = build(scheme)
  state, metrics = process.next(process.initialize(), cohort)
  assert np.all(np.isfinite(trainable(state)[0]))
  assert metrics['aggregator']['non_finite_clients'] == 1
  assert metrics['num_examples'] == 22
  np.testing.assert_allclose(
    metrics['training_loss'], of_healthy['training_loss'], rtol=1e-6
  )


@pytest.mark.parametrize('scheme', SCHEMES, ids=repr)
def test_empty_client_changes_nothing(scheme):
  process = build(scheme)
  full = build()
  _, of_others = full.next(full.initialize(), make_cohort([10, 4]))
  state, metrics = process.next(process.initialize(), make_cohort([10, 4, 0]))
  assert np.all(np.isfinite(trainable(state)[0]))
  assert metrics['training_loss'] == of_others['training_loss']
  assert metrics['aggregator']['non_finite_clients'] == 0


@pytest.mark.parametrize('scheme', SCHEMES, ids=repr)
def test_cohort_of_empty_clients_leaves_the_model_alone(scheme):
  process = build(scheme)
  initial = process.initialize()
  state, metrics = process.next(initial, make_cohort([0, 0, 0]))
  for before, after in zip(trainable(initial), trainable(state)):
    np.testing.assert_array_equal(before, after)
  assert np.isnan(metrics['training_loss'])
  assert metrics['num_examples'] == 0
  assert metrics['aggregator']['non_finite_clients'] == 0


@pytest.mark.parametrize('scheme', SCHEMES, ids=repr)
def test_cohort_size_may_change(scheme):
  process = build(scheme)
  state = process.initialize()
  for size in (4, 1, 7):
    state, metrics = process.next(state, make_cohort([5] * size))
    assert metrics['aggregator']['cohort_size'] == size
    assert np.all(np.isfinite(trainable(state)[0]))


def test_all_send_when_m_is_at_least_n():
  cohort = make_cohort([10, 4, 1, 7])
  full = build(batch_size=100)
  expected, _ = full.next(full.initialize(), cohort)
  for scheme in (
    UNIFORM_4,
    tff_ocs.OptimalSampling(9),
    AOCS_4,
  ):
    process = build(scheme, batch_size=100)
    state, metrics = process.next(process.initialize(), cohort)
    assert metrics['aggregator']['participants'] == 4
    np.testing.assert_array_equal(trainable(state)[0], trainable(expected)[0])


def test_training_reduces_the_loss():
  process = build(SCHEMES[3])
  state = process.initialize()
  losses = []
  for round_num in range(20):
    cohort = make_cohort([10, 4, 1, 7])
    for index, client in enumerate(cohort):
      client['seed'] = simple_fedavg.client_seed(0, round_num, str(index))
    state, metrics = process.next(state, cohort)
    losses.append(metrics['training_loss'])
  assert losses[-1] < 0.5 * losses[0]


def test_nested_inputs_and_keras_models():
  inputs = {'a': tf.keras.Input([2]), 'b': tf.keras.Input([1])}
  outputs = tf.keras.layers.Dense(1)(
    tf.concat([inputs['a'], inputs['b']], axis=-1)
  )
  model = tff.learning.models.functional_model_from_keras(
    tf.keras.Model(inputs, outputs),
    tf.keras.losses.MeanSquaredError(),
    input_spec=(
      collections.OrderedDict(
        a=tf.TensorSpec([None, 2], tf.float32),
        b=tf.TensorSpec([None, 1], tf.float32),
      ),
      tf.TensorSpec([None, 1], tf.float32),
    ),
  )
  process = tff_ocs.build_federated_averaging_process(
    model,
    tff_ocs.ApproximateOptimalSampling(1),
    client_learning_rate=0.1,
    batch_size=2,
  )
  rng = np.random.default_rng(0)
  cohort = [
    {
      'x': collections.OrderedDict(
        a=rng.normal(size=(size, 2)).astype(np.float32),
        b=rng.normal(size=(size, 1)).astype(np.float32),
      ),
      'y': rng.normal(size=(size, 1)).astype(np.float32),
      'seed': simple_fedavg.client_seed(0, 0, str(size)),
    }
    for size in (5, 2)
  ]
  initial = process.initialize()
  state, metrics = process.next(initial, cohort)
  assert metrics['num_examples'] == 7
  assert not np.array_equal(trainable(state)[0], trainable(initial)[0])


def test_models_may_need_autograph():
  @tf.function
  def predict_on_batch(weights, x, training):
    del training
    # Python control flow on tensors.
    if tf.reduce_sum(x) > 1e9:
      x = -x
    for _ in range(tf.constant(2)):
      x = -x
    return tf.linalg.matvec(x, weights[0][0]) + weights[0][1]

  plain = linear_model()
  model = tff.learning.models.FunctionalModel(
    initial_weights=plain.initial_weights,
    predict_on_batch_fn=predict_on_batch,
    loss_fn=plain.loss,
    input_spec=plain.input_spec,
  )
  cohort = make_cohort([10, 4])
  states = []
  for m in (plain, model):
    process = tff_ocs.build_federated_averaging_process(
      m, tff_ocs.FullParticipation(), client_learning_rate=0.1, batch_size=4
    )
    state, _ = process.next(process.initialize(), cohort)
    states.append(trainable(state)[0])
  np.testing.assert_allclose(states[1], states[0], rtol=1e-6)
  assert not tf.config.functions_run_eagerly()


def test_distributed_sgd_is_equation_2():
  process = tff_ocs.build_distributed_sgd_process(
    linear_model(), tff_ocs.FullParticipation(), learning_rate=0.2
  )
  cohort = make_cohort([10, 4, 0, 7])
  state, metrics = process.next(process.initialize(), cohort)
  kernel, bias = start = initial_weights()
  losses = []
  for share, client in zip(np.array([10, 4, 0, 7]) / 21, cohort):
    if share:
      of_kernel, of_bias, loss = gradient(start, client['x'], client['y'])
      kernel = kernel - 0.2 * share * of_kernel
      bias = bias - 0.2 * share * of_bias
      losses.append(share * loss)
  np.testing.assert_allclose(trainable(state)[0], kernel, rtol=1e-5)
  np.testing.assert_allclose(trainable(state)[1], bias, rtol=1e-5)
  np.testing.assert_allclose(metrics['training_loss'], sum(losses), rtol=1e-5)


def test_distributed_sgd_draws_batches_without_replacement():
  process = tff_ocs.build_distributed_sgd_process(
    linear_model(),
    tff_ocs.FullParticipation(),
    learning_rate=0.2,
    batch_size=2,
  )
  client = make_client(3, seed=0)
  # Whichever two of the three examples are drawn, the step is one of three.
  possible = []
  for pair in itertools.combinations(range(3), 2):
    x, y = client['x'][list(pair)], client['y'][list(pair)]
    possible.append(
      initial_weights()[0] - 0.2 * gradient(initial_weights(), x, y)[0]
    )
  seen = set()
  for name in range(12):
    client['seed'] = simple_fedavg.client_seed(0, 0, str(name))
    state, metrics = process.next(process.initialize(), [client])
    distances = [np.abs(trainable(state)[0] - p).max() for p in possible]
    assert min(distances) < 1e-6
    seen.add(int(np.argmin(distances)))
    assert metrics['num_examples'] == 3
  # Fixed seeds: this either always holds or never.
  assert seen == {0, 1, 2}


def test_client_seed_depends_on_all_it_should():
  seeds = {
    tuple(simple_fedavg.client_seed(*arguments))
    for arguments in itertools.product(
      (0, 1, 2**32 - 1), (0, 1, 150), ('', '0', 'a', 'aa', 'ab', 'f0000_14')
    )
  }
  assert len(seeds) == 3 * 3 * 6
  first = simple_fedavg.client_seed(1, 2, 'a')
  np.testing.assert_array_equal(first, simple_fedavg.client_seed(1, 2, 'a'))
  assert first.shape == (2,)
  assert first.dtype == np.int64


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ((-1, 0, 'a'), ValueError, 'experiment_seed must be at least 0, found -1'),
    ((0.5, 0, 'a'), TypeError, 'experiment_seed must be an integer'),
    ((0, -1, 'a'), ValueError, 'round_num must be at least 0, found -1'),
    ((0, 0, 7), TypeError, 'client_id must be a string, found 7'),
  ],
)
def test_bad_arguments_of_client_seed(arguments, error, message):
  with pytest.raises(error, match=message):
    simple_fedavg.client_seed(*arguments)


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ({'client_learning_rate': 0}, ValueError, 'client_learning_rate.* 0, f'),
    ({'client_learning_rate': 'x'}, TypeError, "client_learning_rate.*'x'"),
    ({'client_learning_rate': float('nan')}, ValueError, 'found nan'),
    ({'server_learning_rate': -1.0}, ValueError, 'server_learning_rate.*-1.0'),
    ({'batch_size': 0}, ValueError, 'batch_size must be at least 1, found 0'),
    ({'batch_size': 2.5}, TypeError, 'batch_size.*2.5'),
    ({'batch_size': True}, TypeError, 'batch_size.*True'),
    ({'client_epochs': 0}, ValueError, 'client_epochs.*found 0'),
    ({'availability': 0.5}, TypeError, 'availability must be True or False, f'),
    ({'dropouts': 0.1}, TypeError, 'dropouts must be True or False, found 0.1'),
    ({'client_costs': 'none'}, TypeError, "client_costs must .*found 'none'"),
    ({'client_costs': np.ones(2)}, TypeError, 'client_costs must be True or F'),
  ],
)
def test_bad_arguments_are_named(arguments, error, message):
  with pytest.raises(error, match=message):
    tff_ocs.build_federated_averaging_process(
      linear_model(),
      tff_ocs.FullParticipation(),
      **{'client_learning_rate': 0.1, **arguments},
    )


def test_wrong_model_or_sampling_is_named():
  with pytest.raises(TypeError, match='model must be.*FunctionalModel'):
    tff_ocs.build_federated_averaging_process(
      lambda: None, tff_ocs.FullParticipation(), client_learning_rate=0.1
    )
  with pytest.raises(TypeError, match='sampling must be.*SumFactory'):
    tff_ocs.build_federated_averaging_process(
      linear_model(), tff.aggregators.SumFactory(), client_learning_rate=0.1
    )


# Optimizers.


def _reference_optimizer(optimizer, weights, gradients):
  """Runs a TFF optimizer eagerly over a sequence of gradients."""
  weights = [tf.constant(w, tf.float32) for w in weights]
  state = optimizer.initialize(
    [tf.TensorSpec(w.shape, w.dtype) for w in weights]
  )
  for gradient_of_step in gradients:
    state, weights = optimizer.next(
      state, weights, [tf.constant(g, tf.float32) for g in gradient_of_step]
    )
  return [w.numpy() for w in weights]


OPTIMIZERS = {
  'momentum': tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
  'adam': tff.learning.optimizers.build_adam(0.05),
  'yogi': tff.learning.optimizers.build_yogi(0.05),
}
each_optimizer = pytest.mark.parametrize('name', OPTIMIZERS)


@each_optimizer
def test_server_optimizer_takes_the_aggregate_as_gradient(name):
  process = build(SCHEMES[3], server_optimizer=OPTIMIZERS[name])
  # With a server step of 1 the change of the weights is the aggregate.
  plain = build(SCHEMES[3])
  cohort = make_cohort([10, 4, 1, 7])
  state, plain_state = process.initialize(), plain.initialize()
  aggregates = []
  for _ in range(3):
    before = trainable(state)
    plain_state = plain_state._replace(weights=state.weights)
    after, _ = plain.next(plain_state, cohort)
    aggregates.append([x - y for x, y in zip(before, trainable(after))])
    state, metrics = process.next(state, cohort)
    assert metrics['aggregator']['expected_participants'] == pytest.approx(2)
  expected = _reference_optimizer(
    OPTIMIZERS[name], linear_model().initial_weights[0], aggregates
  )
  for found, reference in zip(trainable(state), expected):
    np.testing.assert_allclose(found, reference, atol=1e-5)


@each_optimizer
def test_client_optimizer_starts_anew_in_each_round(name):
  process = build(
    client_learning_rate=None,
    client_optimizer=OPTIMIZERS[name],
    batch_size=100,
    client_epochs=3,
  )
  state = process.initialize()
  client = make_client(6, 1)
  for _ in range(2):
    weights = trainable(state)
    state, _ = process.next(state, [client])
    optimizer = OPTIMIZERS[name]
    expected = [tf.constant(w) for w in weights]
    optimizer_state = optimizer.initialize(
      [tf.TensorSpec(w.shape, w.dtype) for w in expected]
    )
    for _ in range(3):
      of_kernel, of_bias, _ = gradient(
        [w.numpy() for w in expected], client['x'], client['y']
      )
      optimizer_state, expected = optimizer.next(
        optimizer_state,
        expected,
        [tf.constant(g, tf.float32) for g in (of_kernel, of_bias)],
      )
    for found, reference in zip(trainable(state), expected):
      np.testing.assert_allclose(found, reference, atol=1e-5)


def test_step_size_is_sgd():
  rate = 0.1
  by_rate = build(client_learning_rate=rate, server_learning_rate=0.5)
  by_optimizer = build(
    client_learning_rate=None,
    client_optimizer=tff.learning.optimizers.build_sgdm(rate),
    server_optimizer=tff.learning.optimizers.build_sgdm(0.5),
  )
  cohort = make_cohort([10, 4, 1, 7])
  states = [
    process.next(process.initialize(), cohort)[0]
    for process in (by_rate, by_optimizer)
  ]
  for x, y in zip(*map(trainable, states)):
    np.testing.assert_allclose(x, y, rtol=1e-6)


def test_distributed_sgd_with_an_optimizer():
  optimizer = OPTIMIZERS['adam']
  process = tff_ocs.build_distributed_sgd_process(
    linear_model(), tff_ocs.FullParticipation(), optimizer=optimizer
  )
  client = make_client(6, 1)
  state, _ = process.next(process.initialize(), [client])
  of_kernel, of_bias, _ = gradient(initial_weights(), client['x'], client['y'])
  expected = _reference_optimizer(
    optimizer, linear_model().initial_weights[0], [[of_kernel, of_bias]]
  )
  for found, reference in zip(trainable(state), expected):
    np.testing.assert_allclose(found, reference, atol=1e-6)


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    (
      dict(client_learning_rate=None),
      ValueError,
      'one of client_learning_rate and client_optimizer .*found None and None',
    ),
    (
      dict(client_optimizer=OPTIMIZERS['adam']),
      ValueError,
      'one of client_learning_rate and client_optimizer .*found 0.1 and',
    ),
    (
      dict(server_learning_rate=1.0, server_optimizer=OPTIMIZERS['adam']),
      ValueError,
      'one of server_learning_rate and server_optimizer .*found 1.0 and',
    ),
    (
      dict(server_optimizer=0.1),
      TypeError,
      r'server_optimizer must be a tff\.learning\.optimizers\.Optimizer, found'
      r' 0\.1.*server_learning_rate',
    ),
  ],
)
def test_bad_optimizers(arguments, error, message):
  with pytest.raises(error, match=message):
    tff_ocs.build_federated_averaging_process(
      linear_model(),
      tff_ocs.FullParticipation(),
      **{'client_learning_rate': 0.1, **arguments},
    )


def switched_model():
  """w x c in training and nothing otherwise; c and a weight do not train."""

  @tf.function
  def predict_on_batch(weights, x, training):
    (kernel, unused), (factor,) = weights
    del unused
    return kernel * x[:, 0] * factor if training else 0 * x[:, 0]

  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean((output - label) ** 2) / 2

  return tff.learning.models.FunctionalModel(
    initial_weights=(
      (np.float32(0.5), np.ones([2], np.float32)),
      (np.float32(3.0),),
    ),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss,
    input_spec=(
      tf.TensorSpec([None, DIM], tf.float32),
      tf.TensorSpec([None], tf.float32),
    ),
  )


@pytest.mark.parametrize('is_dsgd', [False, True])
def test_clients_train_in_training_mode_and_only_what_is_trainable(is_dsgd):
  if is_dsgd:
    process = tff_ocs.build_distributed_sgd_process(
      switched_model(), tff_ocs.FullParticipation(), learning_rate=0.1
    )
  else:
    process = tff_ocs.build_federated_averaging_process(
      switched_model(),
      tff_ocs.FullParticipation(),
      client_learning_rate=0.1,
      batch_size=100,
    )
  client = make_client(10, 0)
  state, _ = process.next(process.initialize(), [client])
  x = client['x'][:, 0].astype(np.float64)
  slope = np.mean((0.5 * x * 3 - client['y']) * x * 3)
  kernel, unused = trainable(state)
  np.testing.assert_allclose(kernel, 0.5 - 0.1 * slope, rtol=1e-5)
  np.testing.assert_array_equal(unused, [1, 1])
  (factor,) = state.weights.non_trainable
  assert factor == 3


def test_evaluation_is_not_in_training_mode():
  model = switched_model()
  client = make_client(10, 0)
  evaluate = task_lib.build_evaluation(
    model, client_data.Examples(client['x'], client['y']), metrics={}
  )
  weights = tff.learning.models.ModelWeights(*model.initial_weights)
  assert evaluate(weights).loss == pytest.approx(
    np.mean(client['y'] ** 2) / 2, rel=1e-6
  )
