"""How near to x* DSGD comes, and with which step sizes it is stable."""

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
  """How near to x* DSGD comes with a constant step size.

  Args:
    problem: The clients' functions.
    sampling: One of `monte_carlo.SCHEMES`.
    expected_clients: m.
    step_size: eta.
    repeats: How many runs begin at x*.
    rounds: So many rounds are played; the second half is measured.
    seed: Of the noise and the coins.

  Returns:
    A row of neighbourhood.csv. The bounds are the fixed points of Theorem 13's
    recursion at the measured gamma.
  """
  theorem = bounds.Theorem13(problem)
  steps = bounds.Steps(step_size)
  x = np.tile(problem.minimiser, (repeats, 1))
  distances, gammas = [], []
  for k in range(rounds):
    played = monte_carlo.play_round(
      theorem,
      problem,
      sampling,
      expected_clients,
      x,
      lambda unused_gamma: steps,
      (seed, k),
    )
    x = played.x
    if k >= rounds // 2:
      distances.append(convergence.measured(theorem, problem, x))
      gammas.append(played.factor.gamma)
  of_repeats = np.mean(distances, axis=0)
  here = bounds.position(problem, problem.minimiser[np.newaxis])
  row = {
    'sampling': sampling,
    'expected_clients': expected_clients,
    'gamma': 1 / float(np.mean(1 / np.array(gammas))),
    'step_size': step_size,
    'measured': float(of_repeats.mean()),
    'standard_error': float(of_repeats.std(ddof=1) / math.sqrt(repeats)),
  }
  for name in ('stated', 'repaired'):
    added = getattr(theorem, name)(here, row['gamma'], steps)
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

  From afar, where the minimisers of the clients look the same, in the direction
  in which f is steepest. E||x - eta G - x*||^2 is below ||x - x*||^2 up to eta
  = 2 <E G, x - x*> / E||G||^2.

  Args:
    problem: The clients' functions.
    sampling: One of `monte_carlo.SCHEMES`.
    expected_clients: m.
    repeats: How often the round is played.
    seed: Of the noise and the coins.

  Returns:
    A row of step_sizes.csv, with the largest step size of Theorem 13 there.
  """
  theorem = bounds.Theorem13(problem)
  steepest = np.argmax(problem.weights @ problem.curvatures)
  offset = 1e6 * np.eye(problem.dimension)[steepest]
  x = np.tile(problem.minimiser + offset, (repeats, 1))
  played = monte_carlo.play_round(
    theorem,
    problem,
    sampling,
    expected_clients,
    x,
    lambda unused_gamma: bounds.Steps(1.0),
    (seed,),
  )
  estimates = x - played.x
  squares = np.mean(np.sum(estimates**2, axis=-1))
  return {
    'sampling': sampling,
    'expected_clients': expected_clients,
    'gamma': played.factor.gamma,
    'largest_stable': float(2 * np.mean(estimates @ offset) / squares),
    'limit': theorem.step_limit(played.factor.gamma),
  }
