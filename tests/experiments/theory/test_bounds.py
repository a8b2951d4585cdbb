"""Tests of the bounds where the expectation over the coins is exact."""

import itertools

import numpy as np
import pytest

from experiments.theory import bounds
from experiments.theory import convergence
from experiments.theory import counterexamples
from experiments.theory import monte_carlo
from experiments.theory import problems

UNEQUAL_WEIGHTS = counterexamples.examples()[0]


def exact_round(theorem, problem, sampling, m, x, choose_steps):
  """A round without noise, by all outcomes of the coins.

  Returns:
    What the theorem bounds, and the bounds' arguments.
  """
  assert problem.noise_slope == problem.noise_variance == 0
  n = problem.num_clients
  gamma = min(m / n, 1.0)
  for _ in range(20):  # To the fixed point: local steps depend on gamma.
    steps = choose_steps(theorem, gamma)
    y = np.tile(x, (n, 1))
    if theorem.is_local:
      local = steps.step_size / (theorem.local_steps * steps.global_step_size)
      for _ in range(theorem.local_steps):
        y = y - local * problem.client_gradients(y)
      updates, size = x - y, steps.global_step_size
    else:
      updates, size = problem.client_gradients(y), steps.step_size
    norms = problem.weights * np.linalg.norm(updates, axis=-1)
    p = monte_carlo.scheme_probabilities(sampling, norms, m)
    gamma = monte_carlo.improvement(sampling, norms[None], p[None], m).gamma
  coins = np.array(list(itertools.product((0, 1), repeat=n)))
  chances = np.prod(np.where(coins, p, 1 - p), axis=-1)
  scales = np.divide(problem.weights, p, out=np.zeros(n), where=p > 0)
  after = x - size * (coins * scales) @ updates
  value = chances @ convergence.measured(theorem, problem, after)
  return value, (bounds.position(problem, x[None]), gamma, steps)


def of_limit(fraction, global_fraction=1.0):
  """Steps as parts of what the theorem allows."""
  return lambda theorem, gamma: bounds.Steps(
    fraction * theorem.step_limit(gamma),
    global_fraction * theorem.global_step_size(gamma),
  )


def round_quadratics(rng, n, weights=None):
  """With A_i = L, for which nearly all steps of the proofs are equalities."""
  weights = rng.dirichlet(np.full(n, 0.5)) if weights is None else weights
  return problems.Quadratics(
    weights=weights,
    smoothness=2.0,
    noise_slope=0.0,
    noise_variance=0.0,
    strong_convexity=2.0,
    curvatures=np.full((n, 2), 2.0),
    centres=rng.standard_normal((n, 2)) * rng.lognormal(0, 1, (n, 1)),
  )


def random_wells(rng, n):
  weights = rng.dirichlet(np.full(n, 0.5))
  tilts = rng.standard_normal((n, 2)) * rng.lognormal(-1, 2)
  return problems.TiltedWells(
    weights=weights,
    smoothness=2.0,
    noise_slope=0.0,
    noise_variance=0.0,
    tilts=tilts - weights @ tilts,
  )


def test_stated_theorem_13_is_violated_and_the_repaired_one_is_not():
  # By hand: norms 0.9 x 2 and 0.1 x 8, so p = (9, 4) / 13; the variance is
  # (1.8 + 0.8)^2 - 1.8^2 - 0.8^2 = 2.88 with optimal and 1.8^2 + 0.8^2 = 3.88
  # with uniform sampling.
  example = UNEQUAL_WEIGHTS
  theorem = bounds.Theorem13(example.problem)
  value, arguments = exact_round(
    theorem, example.problem, 'ocs', 1, example.x, example.steps
  )
  gamma = 1 / (1 + 2.88 / 3.88)
  assert arguments[1] == pytest.approx(gamma)
  assert value == pytest.approx((1 - gamma) ** 2 + gamma**2 * 2.88)
  stated = 1 - gamma + gamma**2 * 1.62 * (1 / gamma - 1)
  repaired = 1 - gamma + gamma**2 * 8.1 * (1 / gamma - 1)
  np.testing.assert_allclose(theorem.stated(*arguments), stated)
  np.testing.assert_allclose(theorem.repaired(*arguments), repaired)
  assert value > 1.3 * stated
  assert value < repaired


@pytest.mark.parametrize('sampling', ['uniform', 'ocs'])
def test_theorem_13_on_random_quadratics(sampling):
  rng = np.random.default_rng(3)
  num_violations = 0
  for _ in range(300):
    n = int(rng.integers(2, 7))
    problem = round_quadratics(rng, n)
    theorem = bounds.Theorem13(problem)
    x = problem.minimiser + rng.standard_normal(2) * rng.lognormal(-1, 1)
    m, fraction = rng.uniform(0.3, n), rng.uniform(0.2, 1)
    value, arguments = exact_round(
      theorem, problem, sampling, m, x, of_limit(fraction)
    )
    assert value <= theorem.repaired(*arguments) * (1 + 1e-9)
    num_violations += bool(value > theorem.stated(*arguments) * (1 + 1e-9))
  assert num_violations >= 5


def test_theorem_13_holds_as_stated_for_equal_weights():
  rng = np.random.default_rng(4)
  for _ in range(300):
    n = int(rng.integers(2, 7))
    problem = round_quadratics(rng, n, np.full(n, 1 / n))
    theorem = bounds.Theorem13(problem)
    x = problem.minimiser + rng.standard_normal(2) * rng.lognormal(-1, 1)
    value, arguments = exact_round(
      theorem, problem, 'ocs', rng.uniform(0.3, n), x, of_limit(1.0)
    )
    assert value <= theorem.stated(*arguments) * (1 + 1e-9)


@pytest.mark.parametrize('sampling', ['uniform', 'ocs', 'aocs', 'full'])
def test_theorem_15_on_random_wells(sampling):
  rng = np.random.default_rng(5)
  nearest = 0
  for _ in range(200):
    n = int(rng.integers(2, 7))
    problem = random_wells(rng, n)
    theorem = bounds.Theorem15(problem)
    x = rng.standard_normal(2) * rng.lognormal(-2, 1)
    value, arguments = exact_round(
      theorem,
      problem,
      sampling,
      rng.uniform(0.3, n),
      x,
      of_limit(rng.uniform(0.1, 3)),
    )
    (bound,) = theorem.stated(*arguments)
    assert value <= bound * (1 + 1e-9)
    nearest = max(nearest, value / bound)
  assert nearest > 0.9


@pytest.mark.parametrize('sampling', ['uniform', 'ocs'])
def test_repaired_theorem_17_on_random_quadratics(sampling):
  rng = np.random.default_rng(6)
  num_violations = 0
  for _ in range(200):
    n = int(rng.integers(2, 9))
    problem = round_quadratics(rng, n, np.full(n, 1 / n))
    if rng.random() < 0.5:
      problem = round_quadratics(rng, n)
    theorem = bounds.Theorem17(problem, int(rng.integers(2, 6)))
    x = problem.minimiser + rng.standard_normal(2) * rng.lognormal(-3, 2)
    # Global step sizes from the smallest on, whether or not it is below 1.
    steps = of_limit(10 ** rng.uniform(-3, 0), rng.uniform(1, 2))
    value, arguments = exact_round(
      theorem, problem, sampling, rng.uniform(0.1, 2), x, steps
    )
    assert value <= theorem.repaired(*arguments) * (1 + 1e-9)
    num_violations += bool(value > theorem.stated(*arguments) * (1 + 1e-9))
  assert num_violations >= 5


def test_repaired_theorem_18_on_random_wells():
  rng = np.random.default_rng(7)

  def within(theorem, gamma):
    return bounds.Steps(
      fraction * theorem.repaired_step_limit(gamma),
      max(1.0, theorem.global_step_size(gamma)),
    )

  for _ in range(200):
    n = int(rng.integers(2, 9))
    problem = random_wells(rng, n)
    theorem = bounds.Theorem18(problem, int(rng.integers(2, 6)))
    x = rng.standard_normal(2) * rng.lognormal(-2, 1)
    fraction = rng.uniform(0.1, 1)
    value, arguments = exact_round(
      theorem, problem, 'uniform', rng.uniform(0.01, 2), x, within
    )
    assert value <= theorem.repaired(*arguments) * (1 + 1e-9)
