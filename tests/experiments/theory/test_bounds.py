"""Tests of the bounds where the expectation over the coins is exact."""

import dataclasses
import itertools

import numpy as np
import pytest

from experiments.theory import bounds
from experiments.theory import convergence
from experiments.theory import counterexamples
from experiments.theory import monte_carlo
from experiments.theory import problems
from tff_ocs import probabilities

UNEQUAL_WEIGHTS = counterexamples.examples()[0]


def exact_round(theorem, problem, sampling, m, x, choose_steps):
  """A round without noise, over all outcomes of the coins.

  Returns:
    The expectation that the theorem bounds, and the arguments of the bounds.
  """
  assert problem.noise_slope == problem.noise_variance == 0
  n = problem.num_clients
  new_gamma = min(m / n, 1.0)
  for _ in range(20):  # The local steps depend on gamma, which depends on them.
    gamma = new_gamma
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
    new_gamma = monte_carlo.improvement(sampling, norms[None], p[None], m).gamma
    if abs(new_gamma - gamma) < 1e-14:
      break
  if theorem.bounds_distance:
    mean = x - size * problem.weights @ updates
    value = np.sum((mean - problem.minimiser) ** 2)
    value += size**2 * probabilities.sampling_variance(norms, p)
  else:
    coins = np.array(list(itertools.product((0, 1), repeat=n)))
    chances = np.prod(np.where(coins, p, 1 - p), axis=-1)
    scales = np.divide(problem.weights, p, out=np.zeros(n), where=p > 0)
    after = x - size * (coins * scales) @ updates
    value = chances @ convergence.measured(theorem, after)
  return value, (bounds.position(problem, x[None]), gamma, steps)


def exceeds(value, bound):
  return bool(value > bound * (1 + 1e-9))


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


def count_excesses(kind, num, seed, largest_step=1.0):
  """Counts random problems with unequal weights that exceed a bound.

  docs/theory.md shows the result of a larger number than the tests use.

  Args:
    kind: `Theorem13` or `Theorem17`.
    num: The number of problems. They have no noise.
    seed: The seed of the problems.
    largest_step: The largest fraction of the step limit.

  Returns:
    How many problems exceed the stated and the repaired bound.
  """
  rng = np.random.default_rng(seed)
  num_stated = num_repaired = 0
  for _ in range(num):
    problem = round_quadratics(rng, int(rng.integers(2, 9)))
    theorem = kind(problem, int(rng.integers(2, 6)) if kind.is_local else 1)
    x = problem.minimiser + rng.standard_normal(2) * rng.lognormal(-3, 2)
    fraction = largest_step * 10 ** rng.uniform(-3, 0)
    # FedAvg: from the smallest global step size on, whether or not it is < 1.
    steps = of_limit(fraction, rng.uniform(1, 2) if kind.is_local else 1.0)
    value, arguments = exact_round(
      theorem, problem, 'ocs', rng.uniform(0.1, 2), x, steps
    )
    num_stated += exceeds(value, theorem.stated(*arguments))
    num_repaired += exceeds(value, theorem.repaired(*arguments))
  return num_stated, num_repaired


@pytest.mark.parametrize(
  'kind, largest_step',
  [(bounds.Theorem13, 1.0), (bounds.Theorem13, 0.5), (bounds.Theorem17, 1.0)],
)
def test_many_random_problems_exceed_the_stated_bound_and_none_the_repaired(
  kind, largest_step
):
  num_stated, num_repaired = count_excesses(kind, 600, 3, largest_step)
  assert num_stated > 20
  assert num_repaired == 0


@pytest.mark.parametrize(
  'name', ['equal weights', 'full participation, M = 0', 'all Z_i = 0']
)
def test_theorem_13_holds_as_stated_in_three_cases(name):
  rng = np.random.default_rng(4)
  for _ in range(300):
    n = int(rng.integers(2, 7))
    problem = round_quadratics(
      rng, n, np.full(n, 1 / n) if name == 'equal weights' else None
    )
    if name == 'all Z_i = 0':
      problem = dataclasses.replace(
        problem,
        curvatures=rng.uniform(0.2, 2, (n, 2)),
        strong_convexity=0.2,
        centres=np.tile(rng.standard_normal(2), (n, 1)),
      )
    theorem = bounds.Theorem13(problem)
    x = problem.minimiser + rng.standard_normal(2) * rng.lognormal(-1, 1)
    sampling = 'full' if name.startswith('full') else 'ocs'
    value, arguments = exact_round(
      theorem, problem, sampling, rng.uniform(0.3, n), x, of_limit(1.0)
    )
    # Rounding: with Z_i = 0 both can be near 0.
    assert value <= theorem.stated(*arguments) * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize(
  'smoothness, exceeded', [(1.0, [True, False]), (1.1, [False, False])]
)
def test_theorem_13_near_the_minimiser_needs_clients_of_curvature_l(
  smoothness, exceeded
):
  problem = dataclasses.replace(UNEQUAL_WEIGHTS.problem, smoothness=smoothness)
  theorem = bounds.Theorem13(problem)
  found = []
  for x in (-1e-3, 1e-3):
    value, arguments = exact_round(
      theorem, problem, 'ocs', 1, np.array([x]), of_limit(1.0)
    )
    found.append(exceeds(value, theorem.stated(*arguments)))
  assert found == exceeded


def test_the_lost_factor_of_theorem_17_by_hand():
  # At x* all norms are equal, so that gamma = m / n = 1 / 20.
  (problem,) = (
    example.problem
    for example in counterexamples.examples()
    if example.name == 'lost 1/gamma, at x*'
  )
  theorem = bounds.Theorem17(problem, 2)
  value, arguments = exact_round(
    theorem, problem, 'ocs', 1, np.zeros(1), of_limit(1.0)
  )
  # Two steps of size eta_l = eta / 2 from 0 towards 1 and -1.
  eta = 1 / 20 / (8 * 1.05)
  update = 1 - (1 - eta / 2) ** 2
  assert value == pytest.approx(20 * 19 * (0.05 * update) ** 2)
  assert value == pytest.approx(3.36e-5, rel=2e-3)
  assert theorem.stated(*arguments) == pytest.approx(1.10e-5, rel=5e-3)
  assert theorem.repaired(*arguments) == pytest.approx(7.49e-5, rel=2e-3)


def noise_gradient_correlation(gradient, x, step_size, local_steps):
  """2 E<sum_r xi_r, sum_r grad f(y_r)> with noise of -1 and 1 in local SGD.

  The proofs of Theorems 17 and 18 take it for 0.
  """
  total = 0.0
  for noise in itertools.product((-1.0, 1.0), repeat=local_steps):
    y, gradients = x, []
    for xi in noise:
      gradients.append(gradient(y))
      y = y - step_size * (gradients[-1] + xi)
    total += 2 * sum(noise) * sum(gradients)
  return total / 2**local_steps


def test_noise_and_gradients_of_local_steps_are_correlated():
  # Quadratics: not positive up to eta_l L = 2.
  for step_size in (0.3, 1.0, 1.7, 2.0):
    for local_steps in (2, 3, 4, 5):
      correlation = noise_gradient_correlation(
        lambda y: y - 0.7, 0.2, step_size, local_steps
      )
      assert correlation <= 1e-12
      # sum_s ((1 - eta_l)^(R - 1 - s) - 1) for noise of the variance 1.
      expected = sum((1 - step_size) ** s - 1 for s in range(local_steps))
      assert correlation == pytest.approx(2 * expected, abs=1e-12)
  assert noise_gradient_correlation(lambda y: y - 0.7, 0.2, 3.5, 3) > 1
  # Convex functions, R = 2: not positive, as gradients are monotone.
  for step_size in (0.5, 5.0):
    for x in (-2.0, 0.0, 0.3, 2.0):
      assert noise_gradient_correlation(np.tanh, x, step_size, 2) <= 0
  # Where f is concave it is positive: here a tilted well.
  assert (
    noise_gradient_correlation(lambda y: y / (1 + y**2) ** 2, 1.5, 0.2, 2) > 0
  )


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


def test_repaired_bounds_are_the_formulas_of_the_page():
  rng = np.random.default_rng(11)
  problem = dataclasses.replace(
    round_quadratics(rng, 30), noise_slope=0.7, noise_variance=0.3
  )
  w, z = problem.weights, problem.mismatches
  gamma, smoothness, before = 0.01, 2.0, bounds.Position(0.5, 0.2, 0.0)
  theorem = bounds.Theorem13(problem)
  for fraction in (1.0, 0.5):
    eta = fraction * theorem.step_limit(gamma)
    of_z = [max(w) * (w @ z), 2 * (w**2 @ z)]
    terms = min(of_z) if fraction == 0.5 else of_z[0]
    beta_1 = 2 * smoothness * 1.7 * terms + 0.3 * np.sum(w**2)
    beta_2 = 2 * smoothness * terms
    assert theorem.repaired(before, gamma, bounds.Steps(eta)) == pytest.approx(
      (1 - smoothness * eta) * 0.5 + eta**2 * (beta_1 / gamma - beta_2)
    )
  assert of_z[1] < of_z[0]
  theorem = bounds.Theorem17(problem, 5)
  eta, slope = theorem.step_limit(gamma), 0.7 / 5
  for global_step in (theorem.global_step_size(gamma), 3.0):
    beta_1 = 2 * 0.3 / (gamma * 5) * np.sum(w**2)
    beta_1 += 4 * smoothness / gamma * (slope + 1 - gamma) * (w**2 @ z)
    beta_2 = 72 * smoothness**2 * (1 + slope) * (w @ z)
    beta_2 /= min(1, global_step**2)
    assert theorem.repaired(
      before, gamma, bounds.Steps(eta, global_step)
    ) == pytest.approx(
      (1 - smoothness * eta / 2) * 0.5
      - 3 / 8 * eta * 0.2
      + eta**2 * beta_1
      + eta**3 * beta_2
    )
  assert theorem.global_step_size(gamma) < 0.5


@pytest.mark.parametrize('seed', [8, 9])
def test_theorem_18_holds_as_stated_with_ocs_and_without_noise(seed):
  rng = np.random.default_rng(seed)
  for _ in range(100):
    n = int(rng.integers(2, 9))
    problem = random_wells(rng, n)
    theorem = bounds.Theorem18(problem, int(rng.integers(2, 6)))
    x = rng.standard_normal(2) * rng.lognormal(-2, 1)
    value, arguments = exact_round(
      theorem,
      problem,
      'ocs',
      rng.uniform(1, 2),
      x,
      lambda theorem, gamma: bounds.Steps(
        theorem.step_limit(gamma), max(1.0, theorem.global_step_size(gamma))
      ),
    )
    assert not exceeds(value, theorem.stated(*arguments))


def test_constants_of_the_repaired_proofs():
  # docs/theory.md; L = 1. K R is the sum over tau in the bound of the drift,
  # slope is 1 + M / R and steepness its product with W.
  rng = np.random.default_rng(10)
  drift = 2.81
  for num_steps in range(2, 200):
    factor = 1 + 33 / (32 * (num_steps - 1))
    assert sum(factor**t for t in range(num_steps - 1)) <= drift * num_steps
  for _ in range(2_000):
    gamma, w = 10 ** rng.uniform(-4, 0), 10 ** rng.uniform(-4, 0)
    slope = 1 + rng.choice([0, 10 ** rng.uniform(-3, 3)])
    squared_weights = w * rng.uniform(w, 1)  # Between W^2 and W.
    c = slope / gamma - 1
    # Theorem 17, at its limits.
    eta = min(1 / (1 + slope), gamma / (1 + w * slope)) / 8
    global_step = np.sqrt(gamma / squared_weights)
    per_drift = eta * (2 + eta * (12 * c * w + 5))
    of_gradients = per_drift * 4 * drift * slope * eta**2 / global_step**2
    larger_step = max(1, global_step)
    gap = -2 * eta + eta**2 * (12 * c * w + 4)
    drift_of_gap = per_drift * 4 * drift * slope * (eta / global_step) ** 2
    assert gap + drift_of_gap <= -eta / 2
    gap_at_1 = per_drift * 4 * drift * slope * (eta / larger_step) ** 2
    assert gap + gap_at_1 <= -eta / 2
    assert of_gradients * min(1, global_step) ** 2 <= 40 * slope * eta**3
    noise = 4 / 3 * eta**2 * squared_weights / gamma
    noise += per_drift * drift * eta**2 / global_step**2
    assert noise <= 1.95 * eta**2 * squared_weights / gamma
    # Theorem 18, at its limits.
    eta = min(1 / (1 + slope), gamma / ((1 - w) * gamma + w * slope)) / 8
    global_step = max(1, np.sqrt(5 * gamma / (4 * squared_weights)))
    per_drift = eta / 2 * (1 + eta * (6 * w * c + 4))
    assert per_drift <= 7 / 8 * eta * (1 + 1e-12)
    assert per_drift * 2 * drift <= 10 * eta
    noise = 3 / 4 * eta**2 * squared_weights / gamma
    noise += per_drift * drift * eta**2 / global_step**2
    assert noise <= (0.75 + 0.13) * eta**2 * squared_weights / gamma
