"""Rounds constructed to exceed the paper's bounds, see docs/theory.md."""

from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np

from experiments.theory import bounds
from experiments.theory import convergence
from experiments.theory import monte_carlo
from experiments.theory import problems
from tff_ocs import probabilities

# m of all examples.
_EXPECTED_CLIENTS = 1


class Example(NamedTuple):
  """A round constructed to exceed a stated bound.

  Attributes:
    name: A short description.
    theorem: The number of the theorem.
    problem: The clients' functions.
    sampling: One of `monte_carlo.SCHEMES`.
    x: The point before the round, of shape [d].
    step: The fraction of the largest eta^k that the theorem allows.
    global_step_size: eta_g^k; `None` is the smallest that the theorem allows.
    repeats: The number of repeats of the round.
    local_steps: R.
  """

  name: str
  theorem: int
  problem: problems.Problem
  sampling: str
  x: np.ndarray
  step: float = 1.0
  global_step_size: Optional[float] = None
  repeats: int = 100_000
  local_steps: int = 1

  def steps(self, theorem: bounds.Theorem, gamma: float) -> bounds.Steps:
    """The step sizes of the round."""
    global_step_size = self.global_step_size
    if global_step_size is None:
      global_step_size = theorem.global_step_size(gamma)
    return bounds.Steps(self.step * theorem.step_limit(gamma), global_step_size)


def _parabolas(weights, centres, noise_slope=0.0):
  """f_i(x) = 1/2 (x - b_i)^2."""
  centres = np.reshape(centres, (-1, 1)).astype(float)
  return problems.Quadratics(
    weights=np.array(weights),
    smoothness=1.0,
    noise_slope=noise_slope,
    noise_variance=0.0,
    strong_convexity=1.0,
    curvatures=np.ones_like(centres),
    centres=centres,
  )


def _wells(weights, tilts, noise_variance=0.0):
  return problems.TiltedWells(
    weights=weights,
    smoothness=1.0,
    noise_slope=0.0,
    noise_variance=noise_variance,
    tilts=tilts,
  )


def examples() -> list[Example]:
  """The rounds of docs/theory.md, in its order."""
  two_clients = _parabolas([0.9, 0.1], [1, -9])
  noisy = _parabolas([0.9, 0.1], [1, -9], noise_slope=4.0)
  # All norms are equal at x*, and so are the weights.
  opposed = _parabolas(np.full(20, 0.05), np.resize([1, -1], 20))
  identical = _parabolas(np.full(20, 0.05), np.zeros(20))
  one_heavy = _wells(
    np.array([0.9, *np.full(99, 0.1 / 99)]), np.zeros((100, 1))
  )
  return [
    Example('unequal weights', 13, two_clients, 'ocs', np.array([-1.0])),
    Example(
      'unequal weights, half the step size',
      13,
      two_clients,
      'ocs',
      np.array([-0.3]),
      step=0.5,
    ),
    Example(
      'unequal weights, no sampling, M = 4', 13, noisy, 'full', np.array([-0.5])
    ),
    Example(
      'lost 1/gamma, at x*', 17, opposed, 'ocs', np.array([0.0]), local_steps=2
    ),
    Example(
      'global step size far below its limit',
      17,
      identical,
      'full',
      np.array([1.0]),
      global_step_size=0.01,
      repeats=2,
      local_steps=10,
    ),
    Example(
      'step size without gamma, uniform',
      18,
      one_heavy,
      'uniform',
      np.array([0.1]),
      global_step_size=1.0,
      repeats=20_000,
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
  noise_variance = 0.24 * float(np.sum((gradient / weight) ** 2))
  return Example(
    'step size without gamma, OCS',
    18,
    _wells(weights, tilts, noise_variance),
    'ocs',
    x,
    # Far above the smallest allowed, so that local models hardly drift.
    global_step_size=50.0,
    repeats=4_000,
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
      example.sampling,
      _EXPECTED_CLIENTS,
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
      alpha, example.problem.num_clients, _EXPECTED_CLIENTS
    ),
    np.concatenate([part.factor.influence for part in parts]),
  )
  result = monte_carlo.RoundResult(
    np.concatenate([p.x for p in parts]), factor, parts[0].steps
  )
  return {
    'name': example.name,
    'theorem': example.theorem,
    'sampling': example.sampling,
    **convergence.compare_round(theorem, _EXPECTED_CLIENTS, before, result),
  }
