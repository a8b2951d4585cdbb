"""Tests of the problems whose constants are known."""

import dataclasses

import numpy as np
import pytest
from scipy import optimize
from scipy import stats

from experiments.theory import problems
from tests import oracles

NOISE = {'noise_slope': 0.7, 'noise_variance': 0.3}
CONVEX = problems.make_quadratics(
  num_clients=7, dimension=3, heterogeneity=0.6, smoothness=2.0, **NOISE
)
WELLS = problems.make_tilted_wells(
  num_clients=7, dimension=3, heterogeneity=0.6, smoothness=2.0, **NOISE
)
each_problem = pytest.mark.parametrize(
  'problem', [CONVEX, WELLS], ids=['convex', 'wells']
)


def points(problem, num=5, seed=1):
  """A point for each client, of shape [num, n, d]."""
  shape = (num, problem.num_clients, problem.dimension)
  return 2 * np.random.default_rng(seed).standard_normal(shape)


def second_differences(problem, y, h=1e-4):
  """The diagonals of the Hessians of the f_i."""
  middle = problem.client_values(y)
  return np.stack(
    [
      (
        problem.client_values(y + h * e)
        - 2 * middle
        + problem.client_values(y - h * e)
      )
      / h**2
      for e in np.eye(problem.dimension)
    ],
    axis=-1,
  )


@each_problem
def test_gradients_are_those_of_the_values(problem):
  y = points(problem)
  h = 1e-6
  numerical = np.stack(
    [
      (problem.client_values(y + h * e) - problem.client_values(y - h * e))
      / (2 * h)
      for e in np.eye(problem.dimension)
    ],
    axis=-1,
  )
  np.testing.assert_allclose(
    problem.client_gradients(y), numerical, rtol=1e-6, atol=1e-6
  )


@each_problem
def test_f_is_the_weighted_sum(problem):
  x = points(problem)[:, 0]
  values = [problem.client_values(np.tile(p, (7, 1))) for p in x]
  gradients = [problem.client_gradients(np.tile(p, (7, 1))) for p in x]
  np.testing.assert_allclose(problem.value(x), values @ problem.weights)
  np.testing.assert_allclose(
    problem.gradient(x), [problem.weights @ g for g in gradients]
  )
  assert problem.weights.sum() == pytest.approx(1)
  assert problem.largest_weight == max(problem.weights)


@each_problem
def test_minimiser_is_what_a_search_finds(problem):
  found = optimize.minimize(
    problem.value, problem.minimiser + 0.3, jac=problem.gradient, tol=1e-12
  )
  np.testing.assert_allclose(found.x, problem.minimiser, atol=1e-6)
  assert problem.minimum == pytest.approx(found.fun, abs=1e-10)
  np.testing.assert_allclose(problem.gradient(problem.minimiser), 0, atol=1e-12)


def test_curvatures_of_quadratics_lie_between_mu_and_l_and_reach_both():
  curvatures = second_differences(CONVEX, points(CONVEX))
  # The Hessians are diagonal: gradients move along the axes only.
  y = points(CONVEX)
  for e in np.eye(3):
    moved = CONVEX.client_gradients(y + e) - CONVEX.client_gradients(y)
    np.testing.assert_allclose(moved * (1 - e), 0, atol=1e-12)
  np.testing.assert_allclose(curvatures.min(-1), 0.1, rtol=1e-4)
  np.testing.assert_allclose(curvatures.max(-1), 2.0, rtol=1e-4)
  assert CONVEX.strong_convexity == 0.1
  assert CONVEX.smoothness == 2
  # Those of f as well.
  of_f = CONVEX.weights @ CONVEX.curvatures
  assert (of_f.min(), of_f.max()) == pytest.approx((0.1, 2))


def test_curvatures_of_wells_lie_between_minus_l_over_4_and_l():
  t = np.linspace(-4, 4, 2001)[:, np.newaxis, np.newaxis]
  curvatures = second_differences(WELLS, np.tile(t, (1, 7, 3)))
  assert curvatures.max() == pytest.approx(2, abs=1e-5)
  assert curvatures.min() == pytest.approx(-0.5, abs=1e-5)
  assert np.all(WELLS.value(np.tile(t[:, 0], (1, 3))) >= 0)


def test_client_minima_and_mismatches():
  assert not CONVEX.client_values(CONVEX.centres).any()
  assert np.all(CONVEX.client_values(points(CONVEX)) > 0)
  at_minimiser = CONVEX.client_values(np.tile(CONVEX.minimiser, (7, 1)))
  np.testing.assert_allclose(CONVEX.mismatches, at_minimiser)
  assert CONVEX.weights @ CONVEX.mismatches == pytest.approx(CONVEX.minimum)


def test_dissimilarity_of_wells_is_rho_at_every_point():
  for x in points(WELLS)[:, 0]:
    gradients = WELLS.client_gradients(np.tile(x, (7, 1)))
    squares = np.sum((gradients - WELLS.gradient(x)) ** 2, axis=-1)
    assert WELLS.weights @ squares == pytest.approx(WELLS.dissimilarity)
  assert WELLS.dissimilarity > 0.1


@each_problem
def test_noise_has_the_stated_moments(problem):
  num = 20_000
  y = points(problem, num=1)
  gradients = problem.client_gradients(y)[0]
  drawn = problem.noisy_gradients(
    np.tile(y, (num, 1, 1)), np.random.default_rng(2)
  )
  noise = drawn - gradients
  expected = 0.7 * np.sum(gradients**2, axis=-1) + 0.3
  # Normal coordinates, each of the variance expected / d: sums of squares are
  # chi-squared. Of 7 clients and two statistics of two tails.
  rate = oracles.FALSE_ALARM_RATE / 28
  squares = 3 / expected * np.sum(noise**2, axis=(0, 2))
  assert np.all(squares > stats.chi2.ppf(rate, 3 * num))
  assert np.all(squares < stats.chi2.isf(rate, 3 * num))
  means = 3 * num / expected * np.sum(noise.mean(axis=0) ** 2, axis=-1)
  assert np.all(means < stats.chi2.isf(rate, 3))
  # Independent between clients; nine standard errors, on the diagonal six.
  scaled = noise / np.sqrt(expected / 3)[:, np.newaxis]
  products = np.einsum('knd,kmd->nm', scaled, scaled) / (3 * num)
  np.testing.assert_allclose(products, np.eye(7), atol=9 / np.sqrt(3 * num))


def test_no_noise_is_exactly_none():
  problem = dataclasses.replace(CONVEX, noise_slope=0.0, noise_variance=0.0)
  y = points(problem)
  np.testing.assert_array_equal(
    problem.noisy_gradients(y, np.random.default_rng(0)),
    problem.client_gradients(y),
  )


@pytest.mark.parametrize(
  'make', [problems.make_quadratics, problems.make_tilted_wells]
)
def test_dial_goes_from_identical_to_very_unequal_clients(make):
  def spread(heterogeneity):
    problem = make(num_clients=9, dimension=3, heterogeneity=heterogeneity)
    here = np.tile(problem.minimiser, (9, 1))
    norms = problem.weights * np.linalg.norm(
      problem.client_gradients(here), axis=-1
    )
    ratio = problem.weights.max() / problem.weights.min()
    return ratio, norms.max(), problem

  ratio, largest, identical = spread(0.0)
  assert ratio == 1
  assert largest < 1e-15
  y = np.tile(points(identical)[:, :1], (1, 9, 1))
  values = identical.client_values(y)
  np.testing.assert_allclose(values, values[:, :1] + np.zeros(9))
  ratios, norms, _ = zip(*map(spread, (0.25, 0.5, 0.75, 1.0)))
  np.testing.assert_allclose(ratios, [100**0.25, 10, 100**0.75, 100])
  assert sorted(norms) == list(norms)


@pytest.mark.parametrize(
  'call, message',
  [
    (
      lambda: dataclasses.replace(CONVEX, weights=np.full(7, 0.5)),
      r'weights must be above 0 and have the sum 1, found 0\.5 to 0\.5',
    ),
    (
      lambda: dataclasses.replace(CONVEX, noise_variance=-1.0),
      r'must be at least 0, found 0\.7 and -1\.0',
    ),
    (
      lambda: dataclasses.replace(CONVEX, strong_convexity=0.5),
      r'curvatures must lie between strong_convexity, .* for 0\.5 and 2\.0',
    ),
    (
      lambda: dataclasses.replace(WELLS, tilts=np.ones((7, 3))),
      r'tilts must have the weighted mean 0, found \[1\. 1\. 1\.\]',
    ),
  ],
)
def test_bad_arguments(call, message):
  with pytest.raises(ValueError, match=message):
    call()
