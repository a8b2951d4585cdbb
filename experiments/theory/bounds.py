"""The right-hand sides of the paper's convergence theorems.

Each theorem is about one round: it says that E||x^{k+1} - x*||^2, or
E f(x^{k+1}) - f*, is at most the mean of `stated` over the repeats. `repaired`
is a bound that can be proved, see docs/theory.md.
"""

import abc
import math
from typing import NamedTuple
from typing import Optional

import numpy as np

from experiments.theory import problems

# Step sizes may exceed a limit by this fraction, since gamma^k is measured.
_TOLERANCE = 0.01


class Position(NamedTuple):
  """The state of the repeats before a round, as arrays of shape [repeats].

  Attributes:
    squared_distance: ||x^k - x*||^2.
    gap: f(x^k) - f*.
    squared_gradient: ||grad f(x^k)||^2.
  """

  squared_distance: np.ndarray
  gap: np.ndarray
  squared_gradient: np.ndarray


class Steps(NamedTuple):
  """The step sizes of a round.

  Attributes:
    step_size: eta^k. In FedAvg it is R eta_l^k eta_g^k.
    global_step_size: eta_g^k. It is 1 in DSGD, which has none.
  """

  step_size: float
  global_step_size: float = 1.0


def position(problem: problems.Problem, x: np.ndarray) -> Position:
  """Computes the `Position` of points x of shape [repeats, d]."""
  return Position(
    squared_distance=np.sum((x - problem.minimiser) ** 2, axis=-1),
    gap=problem.value(x) - problem.minimum,
    squared_gradient=np.sum(problem.gradient(x) ** 2, axis=-1),
  )


class Theorem(abc.ABC):
  """A theorem about one round.

  Attributes:
    number: The number of the theorem in the paper.
    bounds_distance: Whether the theorem bounds E||x^{k+1} - x*||^2. Otherwise
      it bounds E f(x^{k+1}) - f*.
    is_local: Whether clients take several local steps (FedAvg).
    problem: The clients' functions.
    local_steps: R.
  """

  number: int
  bounds_distance: bool
  is_local: bool

  def __init__(self, problem: problems.Problem, local_steps: int = 1):
    self.problem = problem
    self.local_steps = local_steps
    self._l = problem.smoothness
    self._slope = problem.noise_slope / local_steps  # M / R
    self._w = problem.largest_weight
    self._squared_weights = float(np.sum(problem.weights**2))
    self._noise = problem.noise_variance * self._squared_weights

  @abc.abstractmethod
  def step_limit(self, gamma: float) -> float:
    """The largest eta^k that the theorem allows."""

  def global_step_size(self, gamma: float) -> float:
    """The smallest eta_g^k that the theorem allows."""
    del gamma
    return 1.0

  @abc.abstractmethod
  def stated(self, before: Position, gamma: float, steps: Steps) -> np.ndarray:
    """The right-hand side in the paper, whether or not its conditions hold."""

  @abc.abstractmethod
  def repaired(
    self, before: Position, gamma: float, steps: Steps
  ) -> Optional[np.ndarray]:
    """The repaired right-hand side, or `None` if its conditions do not hold."""

  def allows(self, gamma: float, steps: Steps) -> bool:
    """Whether the conditions of the theorem hold, up to the error of gamma."""
    return steps.step_size <= (1 + _TOLERANCE) * self.step_limit(gamma) and (
      1 + _TOLERANCE
    ) * steps.global_step_size >= self.global_step_size(gamma)

  def _squared_mismatch(self):
    """The sum of w_i^2 Z_i."""
    return float(self.problem.weights**2 @ self.problem.mismatches)

  def _mismatch(self):
    """The sum of w_i Z_i."""
    return float(self.problem.weights @ self.problem.mismatches)


class Theorem13(Theorem):
  """DSGD, strongly convex."""

  number = 13
  bounds_distance = True
  is_local = False

  def step_limit(self, gamma):
    return gamma / ((1 + self._w * self._slope) * self._l)

  def stated(self, before, gamma, steps):
    return self._bound(before, gamma, steps, self._squared_mismatch())

  def repaired(self, before, gamma, steps):
    if not self.allows(gamma, steps):
      return None
    mismatch = self._w * self._mismatch()
    # For steps of at most half the limit there is a second repair.
    if 2 * steps.step_size <= (1 + _TOLERANCE) * self.step_limit(gamma):
      mismatch = min(mismatch, 2 * self._squared_mismatch())
    return self._bound(before, gamma, steps, mismatch)

  def _bound(self, before, gamma, steps, mismatch):
    eta = steps.step_size
    beta_1 = 2 * self._l * (1 + self._slope) * mismatch + self._noise
    beta_2 = 2 * self._l * mismatch
    contraction = 1 - self.problem.strong_convexity * eta
    return contraction * before.squared_distance + eta**2 * (
      beta_1 / gamma - beta_2
    )


class Theorem15(Theorem):
  """DSGD, non-convex.

  The theorem has no step limit. `step_limit` is the eta that maximises eta (1 -
  (1 + M) L / (2 gamma) eta), the factor of ||grad f||^2.
  """

  number = 15
  bounds_distance = False
  is_local = False

  def step_limit(self, gamma):
    return gamma / ((1 + self._slope) * self._l)

  def stated(self, before, gamma, steps):
    eta, m = steps.step_size, self._slope
    dissimilarity = self._w * self.problem.dissimilarity
    beta = (
      self._l / (2 * gamma) * ((1 + m - gamma) * dissimilarity + self._noise)
    )
    descent = eta * (1 - (1 + m) * self._l / (2 * gamma) * eta)
    return before.gap - descent * before.squared_gradient + eta**2 * beta

  def repaired(self, before, gamma, steps):
    return self.stated(before, gamma, steps)


class Theorem17(Theorem):
  """FedAvg, strongly convex; solved for E||x^{k+1} - x*||^2."""

  number = 17
  bounds_distance = True
  is_local = True

  def step_limit(self, gamma):
    return min(
      1 / (2 + self._slope), gamma / (1 + self._w * (1 + self._slope))
    ) / (8 * self._l)

  def global_step_size(self, gamma):
    return math.sqrt(gamma / self._squared_weights)

  def stated(self, before, gamma, steps):
    return self._bound(before, gamma, steps, self._squared_mismatch(), 1.0)

  def repaired(self, before, gamma, steps):
    if not self.allows(gamma, steps):
      return None
    return self._bound(
      before,
      gamma,
      steps,
      self._squared_mismatch() / gamma,
      min(1.0, steps.global_step_size**2),
    )

  def _bound(self, before, gamma, steps, mismatch, drift_divisor):
    eta = steps.step_size
    beta_1 = (
      2 * self._noise / (gamma * self.local_steps)
      + 4 * self._l * (self._slope + 1 - gamma) * mismatch
    )
    beta_2 = 72 * self._l**2 * (1 + self._slope) * self._mismatch()
    return (
      (1 - self.problem.strong_convexity * eta / 2) * before.squared_distance
      - 3 / 8 * eta * before.gap
      + eta**2 * beta_1
      + eta**3 * beta_2 / drift_divisor
    )


class Theorem18(Theorem):
  """FedAvg, non-convex."""

  number = 18
  bounds_distance = False
  is_local = True

  def step_limit(self, gamma):
    return 1 / (8 * self._l * (2 + self._slope))

  def repaired_step_limit(self, gamma: float) -> float:
    """The largest eta^k with which the proof is valid, in docs/theory.md."""
    w = self._w
    return min(
      self.step_limit(gamma),
      gamma / (8 * self._l * ((1 - w) * gamma + w * (1 + self._slope))),
    )

  def global_step_size(self, gamma):
    return math.sqrt(5 * gamma / (4 * self._squared_weights))

  def stated(self, before, gamma, steps):
    eta, rho = steps.step_size, self.problem.dissimilarity
    beta = self._l * (rho / 4 + self._noise / (gamma * self.local_steps))
    descent = 3 / 8 * eta * (1 - 10 / 3 * eta * self._l)
    return (
      before.gap
      - descent * before.squared_gradient
      + eta * rho / 8
      + eta**2 * beta
    )

  def repaired(self, before, gamma, steps):
    limit = (1 + _TOLERANCE) * self.repaired_step_limit(gamma)
    if (
      not self.allows(gamma, steps)
      or steps.step_size > limit
      or (1 + _TOLERANCE) * steps.global_step_size < 1
    ):
      return None
    return self.stated(before, gamma, steps)


THEOREMS = {
  theorem.number: theorem
  for theorem in (Theorem13, Theorem15, Theorem17, Theorem18)
}
