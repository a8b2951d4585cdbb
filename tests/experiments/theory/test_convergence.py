"""Tests of the comparison of what was measured with a bound."""

import json
import math

import numpy as np
import pytest

from experiments.theory import bounds
from experiments.theory import convergence
from experiments.theory import monte_carlo
from experiments.theory import problems


@pytest.mark.parametrize('excess, violated', [(0.1, True), (-0.1, False)])
def test_comparison_tells_an_excess(excess, violated):
  rng = np.random.default_rng(0)
  limits = rng.uniform(1, 2, 1000)
  values = limits + excess + 0.1 * rng.standard_normal(1000)
  result = monte_carlo.RoundResult(
    None, monte_carlo.Factor(0.5, 0.5, np.zeros(1000)), bounds.Steps(1.0)
  )
  comparison = convergence.compare(
    lambda *unused_args: limits, values, None, 2, 4, result
  )
  assert comparison.violated == violated
  assert comparison.excess == pytest.approx(excess, abs=0.02)
  # Of the difference: the spread of both does not count.
  assert comparison.error == pytest.approx(0.1 / math.sqrt(1000), rel=0.1)
  assert (
    convergence.compare(lambda *unused_args: None, values, None, 2, 4, result)
    is None
  )


def test_comparison_counts_the_error_of_gamma():
  influence = np.resize([0.3, -0.3], 1000)
  result = monte_carlo.RoundResult(
    None, monte_carlo.Factor(0.5, 2 / 3, influence), bounds.Steps(1.0)
  )
  comparison = convergence.compare(
    lambda before, gamma, steps: np.full(1000, 1 / gamma),
    np.zeros(1000),
    None,
    2,
    4,
    result,
  )
  # 1 / gamma = 1 + alpha (n - m) / m.
  assert comparison.error == pytest.approx(0.3 / math.sqrt(1000), rel=1e-2)


def test_same_seed_same_numbers():
  options = {'x': np.ones((20, 2)), 'rounds': 2}
  problem = problems.make_quadratics(
    num_clients=6,
    dimension=2,
    heterogeneity=0.7,
    noise_slope=0.5,
    noise_variance=0.2,
  )
  theorem = bounds.Theorem17(problem, 2)
  first, again, other = (
    convergence.compare_rounds(
      theorem, 'ocs', 2, convergence.Setting('1'), seed=seed, **options
    )
    for seed in (0, 0, 1)
  )
  assert json.dumps(first) == json.dumps(again)
  assert json.dumps(first) != json.dumps(other)
