"""Tests of processes whose cohorts a sampler draws from a pool."""

import collections
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tff_ocs import cohorts
from tff_ocs import probabilities
from tff_ocs import schemes
from tff_ocs import simple_fedavg

POOL = {'a': 4, 'b': 1, 'c': 3, 'd': 2}
POOL_WEIGHT = 10.0
VALUE_TYPE = tff.TensorType(np.float32, [3])
WEIGHT_TYPE = tff.TensorType(np.float32)
UPDATES = dict(
  zip('abcd', np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
)
POOL_MEAN = sum(POOL[i] * UPDATES[i].astype(float) for i in POOL) / POOL_WEIGHT
SCHEMES = {
  'full': schemes.FullParticipation(),
  'ocs': schemes.OptimalSampling(1.5),
}
UNIFORM = schemes.UniformSampling(1.5)


@functools.cache
def build(scheme):
  return tff_ocs.ClientSamplingFactory(SCHEMES[scheme]).create_for_pool(
    VALUE_TYPE, WEIGHT_TYPE, POOL_WEIGHT
  )


def aggregate(scheme, cohort, seeds=None):
  process = build(scheme)
  ids = cohort.client_ids
  return process.next(
    process.initialize(),
    [UPDATES[i] for i in ids],
    [np.float32(POOL[i]) for i in ids],
    seeds or [np.array([k, 5]) for k in range(len(ids))],
    list(np.float32(cohort.scales)),
  )


def test_mean_over_all_cohorts_is_that_of_the_pool(monkeypatch):
  sampler = cohorts.UniformCohorts(POOL, 2, 0)
  means = []
  for places in itertools.combinations(range(4), 2):
    monkeypatch.setattr(
      sampler, 'draw', lambda r, places=places: np.array(places)
    )
    means.append(aggregate('full', sampler.sample(0)).result)
  np.testing.assert_allclose(np.mean(means, axis=0), POOL_MEAN, rtol=1e-5)
  assert np.std(means, axis=0).min() > 0.01


def test_a_client_that_is_drawn_twice_counts_twice(monkeypatch):
  sampler = cohorts.MultinomialCohorts(POOL, 3, 0)
  monkeypatch.setattr(sampler, 'draw', lambda r: np.array([2, 0, 2]))
  output = aggregate('full', sampler.sample(0))
  np.testing.assert_allclose(
    output.result, (UPDATES['a'] + 2 * UPDATES['c']) / 3, rtol=1e-6
  )
  # It trains and sends once.
  assert output.measurements['participants'] == 2


def test_power_of_choice_has_the_plain_mean():
  sampler = cohorts.PowerOfChoiceCohorts(POOL, 2, 0, num_candidates=4)
  cohort = sampler.sample(0, [0.1, 0.2, 0.5, 0.4])
  assert cohort.client_ids == ('c', 'd')
  np.testing.assert_allclose(
    aggregate('full', cohort).result,
    (UPDATES['c'] + UPDATES['d']) / 2,
    rtol=1e-6,
  )


def test_scheme_sees_the_scaled_norms():
  cohort = cohorts.Cohort(
    ('a', 'b', 'c', 'd'), np.ones(4), np.array([1.0, 5.0, 0.5, 2.0])
  )
  scales = np.array(list(POOL.values())) * cohort.scales
  values = np.array(list(UPDATES.values()), np.float64)
  p = probabilities.optimal_probabilities(
    scales * np.linalg.norm(values, axis=1), 1.5
  )
  seeds = [np.array([k, 5]) for k in range(4)]
  sends = [
    tf.random.stateless_uniform([], s, dtype=tf.float64).numpy() < p_i
    for s, p_i in zip(seeds, p)
  ]
  assert 0 < sum(sends) < 4
  expected = (sends * scales / p) @ values / POOL_WEIGHT
  output = aggregate('ocs', cohort, seeds)
  np.testing.assert_allclose(output.result, expected, rtol=1e-5)
  assert output.measurements['expected_participants'] == pytest.approx(1.5)


@pytest.mark.parametrize('bad', [0.0, -1.0, np.nan, np.inf])
def test_bad_scale(bad):
  cohort = cohorts.Cohort(('a',), np.ones(1), np.array([bad]))
  with pytest.raises(Exception, match='scale of a client must be finite'):
    aggregate('full', cohort)


# The training process.


def examples(client_id):
  rng = np.random.default_rng(ord(client_id))
  x = rng.normal(size=(POOL[client_id], 2)).astype(np.float32)
  return x, (x @ [[1.0], [-2.0]] + 0.5).astype(np.float32)


@functools.cache
def process(scheme=UNIFORM):
  return simple_fedavg.build_federated_averaging_process(
    models.build_linear_model(2),
    tff_ocs.ClientSamplingFactory(scheme, reveal_clients=True),
    client_learning_rate=0.1,
    batch_size=100,
    pool_weight=POOL_WEIGHT,
  )


def clients(cohort, round_num=0):
  data = []
  for place, (client_id, scale) in enumerate(
    zip(cohort.client_ids, cohort.scales)
  ):
    x, y = examples(client_id)
    data.append(
      collections.OrderedDict(
        x=x,
        y=y,
        seed=simple_fedavg.client_seed(0, round_num, client_id),
        scale=np.float32(scale),
        place=np.float32(place),
      )
    )
  return data


def gradient_step(client_id):
  """The update of one full-batch step from zero weights: kernel and bias."""
  x, y = examples(client_id)
  kernel = -2 * x.T @ y / len(y)
  return 0.1 * np.append(kernel.ravel(), -2 * y.mean())


def test_process_steps_by_the_scaled_updates_and_reveals_the_clients():
  cohort = cohorts.Cohort(('a', 'c', 'd'), np.ones(3), np.array([2.0, 1.0, 3]))
  seen = set()
  for round_num in range(6):
    state, output = process().next(
      process().initialize(), clients(cohort, round_num)
    )
    rows = output['aggregator']['clients']
    rows = rows[np.argsort(rows[:, 0])]
    np.testing.assert_array_equal(rows[:, 0], [0, 1, 2])
    updates = [
      POOL[i] * scale * gradient_step(i)
      for i, scale in zip(cohort.client_ids, cohort.scales)
    ]
    np.testing.assert_allclose(
      rows[:, 1], np.linalg.norm(updates, axis=1), rtol=1e-4
    )
    # The step is that of the clients that are said to have sent.
    found = np.concatenate([np.ravel(w) for w in state.weights.trainable])
    np.testing.assert_allclose(
      found, -rows[:, 2] @ updates / 0.5 / POOL_WEIGHT, rtol=1e-4, atol=1e-6
    )
    assert output['aggregator']['participants'] == rows[:, 2].sum()
    seen.update(map(int, rows[:, 2]))
  assert seen == {0, 1}


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_sampler_learns_nothing_from_an_update_that_is_not_finite(bad):
  of_aocs = process(schemes.ApproximateOptimalSampling(2, 1))
  sampler = cohorts.OsmdCohorts(POOL, 3, 0)
  cohort = sampler.sample(0)
  assert len(cohort.client_ids) > 1
  data = clients(cohort)
  data[0]['x'] = data[0]['x'] * np.float32(bad)
  state, output = of_aocs.next(of_aocs.initialize(), data)
  assert output['aggregator']['non_finite_clients'] == 1
  assert all(np.all(np.isfinite(w)) for w in state.weights.trainable)
  rows = output['aggregator']['clients']
  rows = rows[np.argsort(rows[:, 0])]
  np.testing.assert_array_equal(rows[0], [0, 0, 0])
  norms = cohorts.read_norms(rows, cohort, POOL)
  assert norms[0] == 0 and np.all(norms[1:] > 0)
  sampler.observe(0, cohort.client_ids, norms)
  assert np.all(np.isfinite(sampler.expected_draws()))


def test_an_empty_cohort_changes_nothing():
  empty = cohorts.Cohort((), np.ones(0), np.ones(0))
  before = process().initialize()
  state, output = process().next(before, clients(empty))
  tf.nest.map_structure(
    np.testing.assert_array_equal,
    state.weights.trainable,
    before.weights.trainable,
  )
  assert output['aggregator']['participants'] == 0
  assert np.isnan(output['training_loss'])
  assert output['aggregator']['clients'].shape == (0, 3)


def test_arguments_that_exclude_each_other():
  build_process = functools.partial(
    simple_fedavg.build_federated_averaging_process,
    models.build_linear_model(2),
    client_learning_rate=0.1,
  )
  with pytest.raises(ValueError, match='client_costs=True and pool_weight'):
    build_process(
      schemes.OptimalSampling(1), client_costs=True, pool_weight=1.0
    )
  for reveals in (False, True):
    with pytest.raises(ValueError, match="num_examples .*asks for 'loss'"):
      build_process(
        tff_ocs.ClientSamplingFactory(
          schemes.OptimalSampling(1), reveal_clients=reveals
        ),
        client_weighting=lambda known: known['loss'],
        pool_weight=1.0,
      )
  with pytest.raises(TypeError, match='pool_weight needs, as sampling'):
    build_process(tff.aggregators.MeanFactory(), pool_weight=1.0)
  with pytest.raises(ValueError, match='pool_weight must be a finite number'):
    build_process(schemes.OptimalSampling(1), pool_weight=0.0)
