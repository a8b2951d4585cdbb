"""Simulates rounds of DSGD, Eq. (2), and FedAvg, Algorithm 3.

A round is simulated in many independent repeats at once. The clients' functions
are those of `experiments.theory.problems`, and the probabilities are those of
`tff_ocs.probabilities`. gamma^k, Eq. (16), comes from a ratio of expectations,
Eq. (15), which are estimated by means over the repeats.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.theory import bounds
from tff_ocs import probabilities

SCHEMES = ('full', 'uniform', 'ocs', 'aocs')
_AOCS_ITERATIONS = 4
# Repeats are simulated in blocks that fit into the cache: this many numbers.
_BLOCK_SIZE = 2**15


class Factor(NamedTuple):
  """The improvement factor of a round, over the repeats.

  Attributes:
    alpha: alpha^k, Eq. (15).
    gamma: gamma^k, Eq. (16).
    influence: The first-order effect of each repeat on alpha^k, of shape
      [repeats], with the mean 0. Standard errors need it.
  """

  alpha: float
  gamma: float
  influence: np.ndarray


class RoundResult(NamedTuple):
  """The result of a simulated round.

  Attributes:
    x: The points after the round, of shape [repeats, d].
    factor: The improvement factor of the round.
    steps: The step sizes of the round.
  """

  x: np.ndarray
  factor: Factor
  steps: bounds.Steps


def scheme_probabilities(
  sampling: str, norms: np.ndarray, expected_clients: float
) -> np.ndarray:
  """The probabilities of one of `SCHEMES` for norms of shape [..., n]."""
  if sampling == 'full':
    return np.ones_like(norms)
  if sampling == 'uniform':
    p = probabilities.uniform_probabilities(norms.shape[-1], expected_clients)
    return np.broadcast_to(p, norms.shape)
  return probabilities.batch_probabilities(
    norms, expected_clients, _AOCS_ITERATIONS if sampling == 'aocs' else None
  )


def improvement(
  sampling: str, norms: np.ndarray, p: np.ndarray, expected_clients: float
) -> Factor:
  """The improvement factor of a round with norms of shape [repeats, n]."""
  num_clients = norms.shape[-1]
  influence = np.zeros(len(norms))
  if sampling == 'full' or expected_clients >= num_clients:
    return Factor(0.0, 1.0, influence)
  alpha = 1.0
  if sampling != 'uniform':
    uniform = probabilities.batch_sampling_variance(
      norms, scheme_probabilities('uniform', norms, expected_clients)
    )
    if not uniform.any():
      return Factor(0.0, 1.0, influence)
    own = probabilities.batch_sampling_variance(norms, p)
    # Rounding, or AOCS with too few iterations, can make the ratio exceed 1.
    alpha = min(own.mean() / uniform.mean(), 1.0)
    influence = (own - alpha * uniform) / uniform.mean()
  gamma = probabilities.relative_improvement_factor(
    alpha, num_clients, expected_clients
  )
  return Factor(alpha, gamma, influence)


def simulate_round(
  theorem: bounds.Theorem,
  sampling: str,
  expected_clients: float,
  x: np.ndarray,
  choose_steps: Callable[[float], bounds.Steps],
  seed: Sequence[int],
) -> RoundResult:
  """Simulates a round in all repeats.

  Args:
    theorem: The clients' functions, DSGD or FedAvg, and the number of local
      steps.
    sampling: One of `SCHEMES`.
    expected_clients: m.
    x: The points before the round, of shape [repeats, d].
    choose_steps: Maps gamma^k to the step sizes.
    seed: The seed of the noise and the coins.

  Returns:
    The result. In FedAvg, gamma^k depends on the local steps and the step sizes
    on gamma^k; three iterations solve for both.
  """
  problem = theorem.problem
  gamma = (
    1.0
    if sampling == 'full'
    else min(expected_clients / problem.num_clients, 1.0)
  )
  new_steps = choose_steps(gamma)
  for _ in range(3):
    steps = new_steps
    rng = np.random.default_rng(seed)
    updates = client_updates(theorem, x, steps, rng)
    norms = problem.weights * np.linalg.norm(updates, axis=-1)
    p = scheme_probabilities(sampling, norms, expected_clients)
    factor = improvement(sampling, norms, p, expected_clients)
    new_steps = choose_steps(factor.gamma)
    if new_steps == steps or not theorem.is_local:
      break
  if theorem.is_local:
    sum_step_size = steps.global_step_size
  else:
    steps = new_steps
    sum_step_size = steps.step_size
  sent = rng.random(p.shape) < p
  scales = np.where(sent, problem.weights / np.where(sent, p, 1.0), 0.0)
  total = np.einsum('kn,knd->kd', scales, updates)
  return RoundResult(x - sum_step_size * total, factor, steps)


def client_updates(
  theorem: bounds.Theorem,
  x: np.ndarray,
  steps: bounds.Steps,
  rng: np.random.Generator,
) -> np.ndarray:
  """The U_i, of shape [repeats, n, d], at points x of shape [repeats, d]."""
  problem = theorem.problem
  shape = (problem.num_clients, problem.dimension)
  updates = np.empty((len(x), *shape))
  size = max(1, _BLOCK_SIZE // math.prod(shape))
  for first in range(0, len(x), size):
    block = slice(first, first + size)
    start = x[block, np.newaxis]
    if not theorem.is_local:
      updates[block] = problem.noisy_gradients(start, rng)
      continue
    local = steps.step_size / (theorem.local_steps * steps.global_step_size)
    y = np.broadcast_to(start, (start.shape[0], *shape))
    for _ in range(theorem.local_steps):
      y = y - local * problem.noisy_gradients(y, rng)
    updates[block] = start - y
  return updates
