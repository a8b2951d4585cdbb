"""Rounds of DSGD, Eq. (2), and FedAvg, Algorithm 3, many repeats side by side.

The clients' functions are those of `experiments.theory.problems`; the
probabilities are the library's. gamma^k is the ratio of expectations, Eq. (15)
and (16), over the repeats.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.theory import bounds
from experiments.theory import problems
from tff_ocs import probabilities

SCHEMES = ('full', 'uniform', 'ocs', 'aocs')
_AOCS_ITERATIONS = 4
_PART = 2**15


class Factor(NamedTuple):
  """The improvement factor of a round, over the repeats.

  Attributes:
    alpha: alpha^k, Eq. (15).
    gamma: gamma^k, Eq. (16).
    influence: By how much each repeat moves alpha^k, of shape [repeats]; its
      mean is 0. For the standard errors.
  """

  alpha: float
  gamma: float
  influence: np.ndarray


class Played(NamedTuple):
  """A round of all repeats.

  Attributes:
    x: The points after it, of shape [repeats, d].
    factor: Its improvement factor.
    steps: The step sizes.
  """

  x: np.ndarray
  factor: Factor
  steps: bounds.Steps


def scheme_probabilities(
  sampling: str, norms: np.ndarray, expected_clients: float
) -> np.ndarray:
  """The library's probabilities of one of `SCHEMES`, for norms [..., n]."""
  if sampling == 'full':
    return np.ones_like(norms)
  if sampling == 'uniform':
    p = probabilities.uniform_probabilities(norms.shape[-1], expected_clients)
    return np.broadcast_to(p, norms.shape)
  return probabilities.batch_probabilities(
    norms,
    expected_clients,
    _AOCS_ITERATIONS if sampling == 'aocs' else None,
  )


def improvement(
  sampling: str, norms: np.ndarray, p: np.ndarray, expected_clients: float
) -> Factor:
  """alpha^k and gamma^k of a round, from the norms [repeats, n]."""
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
    alpha = min(own.mean() / uniform.mean(), 1.0)
    influence = (own - alpha * uniform) / uniform.mean()
  gamma = probabilities.relative_improvement_factor(
    alpha, num_clients, expected_clients
  )
  return Factor(alpha, gamma, influence)


def play_round(
  theorem: bounds.Theorem,
  problem: problems.Problem,
  sampling: str,
  expected_clients: float,
  x: np.ndarray,
  choose_steps: Callable[[float], bounds.Steps],
  seed: Sequence[int],
) -> Played:
  """Plays a round of all repeats.

  Args:
    theorem: Says whether DSGD or FedAvg is meant, and the local steps.
    problem: The clients' functions.
    sampling: One of `SCHEMES`.
    expected_clients: m.
    x: The points before, of shape [repeats, d].
    choose_steps: Gives the step sizes from gamma^k.
    seed: Of the noise and the coins.

  Returns:
    What came of it.
  """
  n = problem.num_clients
  # In FedAvg gamma^k depends a little on the local steps, which depend on it.
  gamma = 1.0 if sampling == 'full' else min(expected_clients / n, 1.0)
  new_steps = choose_steps(gamma)
  for _ in range(3):
    steps = new_steps
    rng = np.random.default_rng(seed)
    updates = client_updates(theorem, problem, x, steps, rng)
    norms = problem.weights * np.linalg.norm(updates, axis=-1)
    p = scheme_probabilities(sampling, norms, expected_clients)
    factor = improvement(sampling, norms, p, expected_clients)
    new_steps = choose_steps(factor.gamma)
    if new_steps == steps or not theorem.is_local:
      break
  if theorem.is_local:
    factor_of_sum = steps.global_step_size
  else:
    steps = new_steps
    factor_of_sum = steps.step_size
  sent = rng.random(p.shape) < p
  scales = np.where(sent, problem.weights / np.where(sent, p, 1.0), 0.0)
  total = np.einsum('kn,knd->kd', scales, updates)
  return Played(x - factor_of_sum * total, factor, steps)


def client_updates(
  theorem: bounds.Theorem,
  problem: problems.Problem,
  x: np.ndarray,
  steps: bounds.Steps,
  rng: np.random.Generator,
) -> np.ndarray:
  """The U_i, of shape [repeats, n, d], at x, of shape [repeats, d]."""
  shape = (problem.num_clients, problem.dimension)
  updates = np.empty((len(x), *shape))
  # In parts that the processor's cache holds.
  size = max(1, _PART // math.prod(shape))
  for first in range(0, len(x), size):
    part = slice(first, first + size)
    start = x[part, np.newaxis]
    if not theorem.is_local:
      updates[part] = problem.noisy_gradients(start, rng)
      continue
    local = steps.step_size / (theorem.local_steps * steps.global_step_size)
    y = np.broadcast_to(start, (start.shape[0], *shape))
    for _ in range(theorem.local_steps):
      y = y - local * problem.noisy_gradients(y, rng)
    updates[part] = start - y
  return updates
