"""Tests of how near to x* DSGD comes, and of its largest stable step size."""

import numpy as np
import pytest

from experiments.theory import problems
from experiments.theory import step_sizes


def test_neighbourhood_and_stability_are_better_with_ocs_than_uniform():
  problem = problems.make_quadratics(
    num_clients=8,
    dimension=2,
    heterogeneity=1.0,
    strong_convexity=0.5,
    noise_variance=0.01,
  )
  near = {
    sampling: step_sizes.neighbourhood(
      problem, sampling, 2, step_size=0.1, repeats=100, rounds=150, seed=0
    )
    for sampling in ('full', 'uniform', 'ocs')
  }
  stable = {
    sampling: step_sizes.largest_stable_step_size(
      problem, sampling, 2, repeats=20_000, seed=0
    )
    for sampling in ('full', 'uniform', 'ocs')
  }
  measured = [near[s]['measured'] for s in ('full', 'ocs', 'uniform')]
  assert measured == sorted(measured)
  assert measured[2] > 1.5 * measured[1]
  for row in near.values():
    assert row['measured'] < row['repaired']
  # 2 / L for gradient descent, and all have the curvature L there.
  for row in stable.values():
    squares = np.sum(problem.weights**2)
    expected = 2 / (1 + (1 / row['gamma'] - 1) * squares)
    assert row['largest_stable'] == pytest.approx(expected, rel=0.05)
  sizes = [stable[s]['largest_stable'] for s in ('uniform', 'ocs', 'full')]
  assert sizes == sorted(sizes)
  assert sizes[1] > 1.1 * sizes[0]
  for row in stable.values():
    assert row['limit'] < row['largest_stable']
