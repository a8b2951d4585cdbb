"""Measures how close DSGD stays to x*, and its largest stable step size."""

import math
from typing import Any

import numpy as np

from experiments.theory import bounds
from experiments.theory import convergence
from experiments.theory import monte_carlo
from experiments.theory import problems


def neighbourhood(
  problem: problems.Quadratics,
  sampling: str,
  expected_clients: float,
  *,
  step_size: float,
  repeats: int,
  rounds: int,
  seed: int,
) -> dict[str, Any]:
  """Measures how close to x* DSGD stays with a constant step size.

  Args:
    problem: The clients' functions.
    sampling: One of `monte_carlo.SCHEMES`.
    expected_clients: m.
    step_size: eta.
    repeats: The number of runs; all begin at x*.
    rounds: The number of rounds. The second half of them is measured.
    seed: The seed of the noise and the coins.

  Returns:
    A row of neighbourhood.csv. The bounds are the fixed points of Theorem 13's
    recursion at the measured gamma.
  """
  theorem = bounds.Theorem13(problem)
  steps = bounds.Steps(step_size)
  x = np.tile(problem.minimiser, (repeats, 1))
  distances, gammas = [], []
  for k in range(rounds):
    result = monte_carlo.simulate_round(
      theorem,
      sampling,
      expected_clients,
      x,
      lambda unused_gamma: steps,
      (seed, k),
    )
    x = result.x
    if k >= rounds // 2:
      distances.append(convergence.measured(theorem, x))
      gammas.append(result.factor.gamma)
  by_repeat = np.mean(distances, axis=0)
  at_minimiser = bounds.position(problem, problem.minimiser[np.newaxis])
  row = {
    'sampling': sampling,
    'expected_clients': expected_clients,
    'gamma': 1 / float(np.mean(1 / np.array(gammas))),
    'step_size': step_size,
    'measured': float(by_repeat.mean()),
    'standard_error': float(by_repeat.std(ddof=1) / math.sqrt(repeats)),
  }
  for name in ('stated', 'repaired'):
    added = getattr(theorem, name)(at_minimiser, row['gamma'], steps)
    row[name] = float(added[0]) / (problem.strong_convexity * step_size)
  return row


def largest_stable_step_size(
  problem: problems.Quadratics,
  sampling: str,
  expected_clients: float,
  *,
  repeats: int,
  seed: int,
) -> dict[str, Any]:
  """The largest step size of DSGD that still brings x nearer to x* on average.

  The point x is far from x*, in the direction in which f is steepest: there the
  distances of the clients' minimisers do not matter. E||x - eta G - x*||^2 is
  below ||x - x*||^2 up to eta = 2 <E G, x - x*> / E||G||^2.

  Args:
    problem: The clients' functions.
    sampling: One of `monte_carlo.SCHEMES`.
    expected_clients: m.
    repeats: The number of repeats of the round.
    seed: The seed of the noise and the coins.

  Returns:
    A row of step_sizes.csv, with the largest step size of Theorem 13 there.
  """
  theorem = bounds.Theorem13(problem)
  steepest = np.argmax(problem.weights @ problem.curvatures)
  offset = 1e6 * np.eye(problem.dimension)[steepest]
  x = np.tile(problem.minimiser + offset, (repeats, 1))
  result = monte_carlo.simulate_round(
    theorem,
    sampling,
    expected_clients,
    x,
    lambda unused_gamma: bounds.Steps(1.0),
    (seed,),
  )
  estimates = x - result.x
  squares = np.mean(np.sum(estimates**2, axis=-1))
  return {
    'sampling': sampling,
    'expected_clients': expected_clients,
    'gamma': result.factor.gamma,
    'largest_stable': float(2 * np.mean(estimates @ offset) / squares),
    'limit': theorem.step_limit(result.factor.gamma),
  }
