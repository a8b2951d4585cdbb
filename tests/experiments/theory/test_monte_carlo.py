"""Tests of the rounds of DSGD and FedAvg, many repeats side by side.

Statistical checks allow six standard errors: false alarms are one in 10^9
checks.
"""

import dataclasses
import math

import numpy as np
import pytest

from experiments.theory import bounds
from experiments.theory import monte_carlo
from experiments.theory import problems
from tff_ocs import probabilities

CONVEX = problems.make_quadratics(
  num_clients=6,
  dimension=2,
  heterogeneity=0.7,
  noise_slope=0.5,
  noise_variance=0.2,
)


@pytest.mark.parametrize('sampling', monte_carlo.SCHEMES)
def test_probabilities_are_those_of_the_library(sampling):
  norms = np.random.default_rng(0).lognormal(0, 2, (5, 6))
  p = monte_carlo.scheme_probabilities(sampling, norms, 2)
  assert p.shape == norms.shape
  for row, u in zip(p, norms):
    expected = {
      'full': lambda u: np.ones(6),
      'uniform': lambda u: probabilities.uniform_probabilities(6, 2),
      'ocs': lambda u: probabilities.optimal_probabilities(u, 2),
      'aocs': lambda u: (
        probabilities.approximate_probabilities(u, 2).probabilities
      ),
    }[sampling](u)
    np.testing.assert_array_equal(row, expected)


def test_improvement_is_a_ratio_of_means():
  norms = np.random.default_rng(0).lognormal(0, 1, (50, 6))
  p = monte_carlo.scheme_probabilities('ocs', norms, 2)
  factor = monte_carlo.improvement('ocs', norms, p, 2)
  own = [probabilities.sampling_variance(u, q) for u, q in zip(norms, p)]
  uniform = [
    probabilities.sampling_variance(u, np.full(6, 1 / 3)) for u in norms
  ]
  assert factor.alpha == pytest.approx(np.mean(own) / np.mean(uniform))
  assert factor.gamma == pytest.approx(2 / (factor.alpha * 4 + 2))
  assert np.mean(factor.influence) == pytest.approx(0, abs=1e-12)
  # Without a repeat alpha moves by its influence over the number of the others.
  without = np.mean(own[1:]) / np.mean(uniform[1:])
  assert factor.alpha - without == pytest.approx(
    factor.influence[0] / 49, rel=0.1
  )
  full = monte_carlo.improvement('full', norms, np.ones_like(norms), 2)
  assert (full.alpha, full.gamma) == (0, 1)
  uniform = monte_carlo.improvement('uniform', norms, p, 2)
  assert (uniform.alpha, uniform.gamma) == (1, pytest.approx(1 / 3))


@pytest.mark.parametrize('sampling', monte_carlo.SCHEMES)
@pytest.mark.parametrize('kind', [bounds.Theorem13, bounds.Theorem17])
def test_round_has_the_expectation_of_eq_2_and_algorithm_3(kind, sampling):
  repeats, start = 100_000, np.array([1.0, -0.5])
  theorem = kind(CONVEX, 3 if kind.is_local else 1)
  steps = bounds.Steps(0.2, 1.5 if theorem.is_local else 1.0)
  result = monte_carlo.simulate_round(
    theorem,
    sampling,
    2,
    np.tile(start, (repeats, 1)),
    lambda unused_gamma: steps,
    (1, 2),
  )
  # The clients' expected points: their gradients are linear.
  y = np.tile(start, (6, 1))
  local = 0.2 / (3 * 1.5) if theorem.is_local else 1.0
  for _ in range(theorem.local_steps):
    y = y - local * CONVEX.client_gradients(y)
  size = 1.5 if theorem.is_local else 0.2
  expected = start - size * CONVEX.weights @ (start - y)
  errors = result.x.std(axis=0, ddof=1) / math.sqrt(repeats)
  assert np.all(np.abs(result.x.mean(axis=0) - expected) < 6 * errors)
  assert result.steps == steps


@pytest.mark.parametrize('sampling', monte_carlo.SCHEMES)
def test_variance_of_a_dsgd_round_is_its_formula(sampling):
  # E||G - grad f||^2 = sampling variance + sum w_i^2 E||xi_i||^2, and gamma
  # says the first from E sum w_i^2 ||g_i||^2.
  repeats, start = 100_000, np.array([1.0, -0.5])
  theorem = bounds.Theorem13(CONVEX)
  result = monte_carlo.simulate_round(
    theorem,
    sampling,
    2,
    np.tile(start, (repeats, 1)),
    lambda unused_gamma: bounds.Steps(1.0),
    (3,),
  )
  gradients = CONVEX.client_gradients(np.tile(start, (6, 1)))
  squares = np.sum(gradients**2, axis=-1)
  weights = CONVEX.weights**2
  noise = weights @ (0.5 * squares + 0.2)
  second_moment = weights @ squares + noise
  expected = (1 / result.factor.gamma - 1) * second_moment + noise
  distances = np.sum((result.x - start + CONVEX.gradient(start)) ** 2, axis=-1)
  error = distances.std(ddof=1) / math.sqrt(repeats)
  # With that of gamma.
  influence = 4 / 2 * second_moment * result.factor.influence
  error += influence.std() / math.sqrt(repeats)
  assert distances.mean() == pytest.approx(expected, abs=6 * error)


def test_local_step_size_divides_the_effective_one():
  problem = dataclasses.replace(CONVEX, noise_slope=0.0, noise_variance=0.0)
  theorem = bounds.Theorem17(problem, 4)
  start = np.array([[1.0, 2.0]])
  result = monte_carlo.simulate_round(
    theorem, 'full', 6, start, lambda unused_gamma: bounds.Steps(0.4, 2.0), (0,)
  )
  moved = np.zeros(2)
  for i in range(6):
    y = start[0]
    for _ in range(4):
      y = y - 0.4 / (4 * 2.0) * problem.curvatures[i] * (y - problem.centres[i])
    moved += problem.weights[i] * (start[0] - y)
  np.testing.assert_allclose(result.x, start - 2.0 * moved)
