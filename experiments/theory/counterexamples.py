"""Rounds constructed to exceed the paper's bounds, see docs/theory.md."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np

from experiments.theory import bounds
from experiments.theory import convergence
from experiments.theory import monte_carlo
from experiments.theory import problems
from tff_ocs import probabilities


class Example(NamedTuple):
  """A round constructed to exceed a stated bound.

  Attributes:
    name: A short description.
    theorem: The number of the theorem.
    problem: The clients' functions.
    sampling: One of `monte_carlo.SCHEMES`.
    expected_clients: m.
    x: The point before the round, of shape [d].
    steps: Maps the theorem and gamma^k to the step sizes.
    repeats: The number of repeats of the round.
    local_steps: R.
  """

  name: str
  theorem: int
  problem: problems.Problem
  sampling: str
  expected_clients: float
  x: np.ndarray
  steps: Callable[[bounds.Theorem, float], bounds.Steps]
  repeats: int
  local_steps: int = 1


def examples() -> list[Example]:
  """The rounds of docs/theory.md, in its order."""

  def at_limit(theorem, gamma):
    return bounds.Steps(
      theorem.step_limit(gamma), theorem.global_step_size(gamma)
    )

  two_clients = problems.Quadratics(
    weights=np.array([0.9, 0.1]),
    smoothness=1.0,
    noise_slope=0.0,
    noise_variance=0.0,
    strong_convexity=1.0,
    curvatures=np.ones((2, 1)),
    centres=np.array([[1.0], [-9.0]]),
  )
  noisy = problems.Quadratics(**{**two_clients.__dict__, 'noise_slope': 4.0})
  # All norms are equal at x*, and so are the weights.
  opposed = problems.Quadratics(
    weights=np.full(20, 0.05),
    smoothness=1.0,
    noise_slope=0.0,
    noise_variance=0.0,
    strong_convexity=1.0,
    curvatures=np.ones((20, 1)),
    centres=np.resize([[1.0], [-1.0]], (20, 1)),
  )
  identical = problems.Quadratics(
    **{**opposed.__dict__, 'centres': np.zeros((20, 1))}
  )
  one_heavy = problems.TiltedWells(
    weights=np.array([0.9, *np.full(99, 0.1 / 99)]),
    smoothness=1.0,
    noise_slope=0.0,
    noise_variance=0.0,
    tilts=np.zeros((100, 1)),
  )
  return [
    Example(
      'unequal weights',
      13,
      two_clients,
      'ocs',
      1,
      np.array([-1.0]),
      at_limit,
      100_000,
    ),
    Example(
      'unequal weights, half the step size',
      13,
      two_clients,
      'ocs',
      1,
      np.array([-0.3]),
      lambda theorem, gamma: bounds.Steps(0.5 * theorem.step_limit(gamma)),
      100_000,
    ),
    Example(
      'unequal weights, no sampling, M = 4',
      13,
      noisy,
      'full',
      1,
      np.array([-0.5]),
      at_limit,
      100_000,
    ),
    Example(
      'lost 1/gamma, at x*',
      17,
      opposed,
      'ocs',
      1,
      np.array([0.0]),
      at_limit,
      100_000,
      local_steps=2,
    ),
    Example(
      'global step size far below its limit',
      17,
      identical,
      'full',
      1,
      np.array([1.0]),
      lambda theorem, gamma: bounds.Steps(theorem.step_limit(gamma), 0.01),
      2,
      local_steps=10,
    ),
    Example(
      'step size without gamma, uniform',
      18,
      one_heavy,
      'uniform',
      1,
      np.array([0.1]),
      lambda theorem, gamma: bounds.Steps(theorem.step_limit(gamma), 1.0),
      20_000,
      local_steps=2,
    ),
    _many_clients(),
  ]


def _many_clients():
  """OCS where one client has all of the gradient, and all have noise."""
  n, weight, x = 10_000, 0.01, np.array([1e-3, 0.0, 0.0, 0.0])
  weights = np.full(n, (1 - weight) / (n - 1))
  weights[0] = weight
  # At x, where the part in common has the gradient x up to x^3.
  gradient = x / (1 + x**2) ** 2
  tilts = np.tile(-gradient, (n, 1))
  tilts[0] = gradient * (1 - weight) / weight
  return Example(
    'step size without gamma, OCS',
    18,
    problems.TiltedWells(
      weights=weights,
      smoothness=1.0,
      noise_slope=0.0,
      noise_variance=0.24 * float(np.sum((gradient / weight) ** 2)),
      tilts=tilts,
    ),
    'ocs',
    1,
    x,
    # Far above the smallest allowed, so that local models hardly drift.
    lambda theorem, gamma: bounds.Steps(theorem.step_limit(gamma), 50.0),
    4_000,
    local_steps=2,
  )


def run_example(example: Example, seed: int) -> dict[str, Any]:
  """Simulates an example and returns its row of examples.csv."""
  theorem = bounds.THEOREMS[example.theorem](
    example.problem, example.local_steps
  )
  x = np.tile(example.x, (example.repeats, 1))
  before = bounds.position(example.problem, x)
  # In parts, since all repeats may not fit into memory.
  size = max(1, 2_000_000 // example.problem.num_clients)
  parts = [
    monte_carlo.simulate_round(
      theorem,
      example.problem,
      example.sampling,
      example.expected_clients,
      x[start : start + size],
      lambda gamma: example.steps(theorem, gamma),
      (seed, start),
    )
    for start in range(0, len(x), size)
  ]
  sizes = [len(part.x) for part in parts]
  alpha = float(np.average([p.factor.alpha for p in parts], weights=sizes))
  factor = monte_carlo.Factor(
    alpha,
    probabilities.relative_improvement_factor(
      alpha, example.problem.num_clients, example.expected_clients
    )
    if alpha
    else 1.0,
    np.concatenate([part.factor.influence for part in parts]),
  )
  result = monte_carlo.RoundResult(
    np.concatenate([p.x for p in parts]), factor, parts[0].steps
  )
  return {
    'name': example.name,
    'theorem': example.theorem,
    'sampling': example.sampling,
    **convergence.compare_round(
      theorem, example.problem, example.expected_clients, before, result
    ),
  }
