"""Compares the measured left-hand side of a theorem with its bounds."""

import math
from collections.abc import Callable
from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np

from experiments.theory import bounds
from experiments.theory import monte_carlo
from tff_ocs import probabilities

STANDARD_ERRORS = 6
# Allows for rounding.
_RELATIVE_TOLERANCE = 1e-9


class Setting(NamedTuple):
  """A choice of step sizes, relative to the limits of a theorem.

  Attributes:
    step: The fraction of the largest eta^k that the theorem allows, or
      'repaired' for the largest with which the proof of Theorem 18 is valid.
    global_step: The choice of eta_g^k: the 'smallest' that the theorem allows,
      the larger of this and 1 ('at least 1'), or 'a tenth' of it.
  """

  step: str
  global_step: str = 'smallest'


# The step sizes with which each theorem is tried.
SETTINGS = {
  13: (Setting('1'), Setting('0.5'), Setting('0.1')),
  15: (Setting('1'), Setting('0.5'), Setting('0.1')),
  17: (
    Setting('1'),
    Setting('0.5'),
    Setting('0.1'),
    Setting('1', 'at least 1'),
    Setting('1', 'a tenth'),
  ),
  18: (
    Setting('1'),
    Setting('0.5'),
    Setting('0.1'),
    Setting('repaired', 'at least 1'),
    Setting('1', 'a tenth'),
  ),
}


class Comparison(NamedTuple):
  """A measured mean and a bound.

  Attributes:
    bound: The mean of the right-hand side over the repeats.
    excess: The mean of the measured value minus the bound.
    error: The standard error of `excess`.
    violated: Whether `excess` is above 0 by more than `STANDARD_ERRORS`.
  """

  bound: float
  excess: float
  error: float
  violated: bool


def measured(theorem: bounds.Theorem, x: np.ndarray) -> np.ndarray:
  """The quantity that the theorem bounds, in each repeat."""
  after = bounds.position(theorem.problem, x)
  return after.squared_distance if theorem.bounds_distance else after.gap


def compare(
  bound: Callable[..., Optional[np.ndarray]],
  values: np.ndarray,
  before: bounds.Position,
  expected_clients: float,
  num_clients: int,
  result: monte_carlo.RoundResult,
) -> Optional[Comparison]:
  """Compares measured values with a bound; `None` if the bound does not apply.

  The standard error is that of the differences. It accounts, to first order,
  for gamma^k being an estimate from the same repeats.
  """
  factor, steps = result.factor, result.steps
  limits = bound(before, factor.gamma, steps)
  if limits is None:
    return None
  excesses = values - limits
  if factor.influence.any():
    shift = 1e-6 if factor.alpha < 0.5 else -1e-6
    shifted = probabilities.relative_improvement_factor(
      factor.alpha + shift, num_clients, expected_clients
    )
    slope = (bound(before, shifted, steps) - limits).mean() / shift
    excesses = excesses - slope * factor.influence
  excess = float(excesses.mean())
  error = float(excesses.std(ddof=1) / math.sqrt(len(excesses)))
  rounding = _RELATIVE_TOLERANCE * abs(float(limits.mean()))
  return Comparison(
    bound=float(limits.mean()),
    excess=excess,
    error=error,
    violated=excess > STANDARD_ERRORS * error + rounding,
  )


def compare_round(
  theorem: bounds.Theorem,
  expected_clients: float,
  before: bounds.Position,
  result: monte_carlo.RoundResult,
) -> dict[str, Any]:
  """Compares a round with both bounds, as columns of a CSV file."""
  values = measured(theorem, result.x)
  row = {
    'gamma': result.factor.gamma,
    'step_size': result.steps.step_size,
    'global_step_size': result.steps.global_step_size,
    'allowed': theorem.allows(result.factor.gamma, result.steps),
    'measured': float(values.mean()),
    'standard_error': float(values.std(ddof=1) / math.sqrt(len(values))),
  }
  for name in ('stated', 'repaired'):
    comparison = compare(
      getattr(theorem, name),
      values,
      before,
      expected_clients,
      theorem.problem.num_clients,
      result,
    )
    for field in Comparison._fields:
      row[f'{name}_{field}'] = (
        '' if comparison is None else getattr(comparison, field)
      )
  return row


def compare_rounds(
  theorem: bounds.Theorem,
  sampling: str,
  expected_clients: float,
  setting: Setting,
  *,
  x: np.ndarray,
  rounds: int,
  seed: int,
) -> list[dict[str, Any]]:
  """Simulates many rounds and compares each with the bounds.

  Args:
    theorem: The theorem.
    sampling: One of `monte_carlo.SCHEMES`.
    expected_clients: m.
    setting: The step sizes.
    x: The points at which the repeats begin, of shape [repeats, d].
    rounds: The number K of rounds.
    seed: The seed of the noise and the coins.

  Returns:
    The rows of bounds.csv, one for each round.
  """

  def choose_steps(gamma):
    if setting.step == 'repaired':
      step_size = theorem.repaired_step_limit(gamma)
    else:
      step_size = float(setting.step) * theorem.step_limit(gamma)
    global_step_size = theorem.global_step_size(gamma)
    if setting.global_step == 'at least 1':
      global_step_size = max(global_step_size, 1.0)
    elif setting.global_step == 'a tenth':
      global_step_size /= 10
    return bounds.Steps(step_size, global_step_size)

  rows = []
  from_start = {}
  for k in range(rounds):
    before = bounds.position(theorem.problem, x)
    result = monte_carlo.simulate_round(
      theorem, sampling, expected_clients, x, choose_steps, (seed, k)
    )
    x = result.x
    for name in ('stated', 'repaired'):
      from_start[name] = _next_from_start(
        theorem, getattr(theorem, name), before, result, from_start.get(name)
      )
    rows.append(
      {
        'theorem': theorem.number,
        'sampling': sampling,
        'step': setting.step,
        'global_step': setting.global_step if theorem.is_local else '',
        'round': k + 1,
        **compare_round(theorem, expected_clients, before, result),
        **{f'{name}_from_start': value for name, value in from_start.items()},
      }
    )
  return rows


def _next_from_start(theorem, bound, before, result, previous):
  """A bound from the start: of a round, with the previous bound on its right.

  f(x^k) - f*, which Theorem 17 subtracts, is dropped. The norm of the gradient
  in Theorems 15 and 18 is the measured one.
  """
  start = before.squared_distance if theorem.bounds_distance else before.gap
  if previous is None:
    previous = start.mean()
  if previous == '':
    return ''
  limit = bound(
    bounds.Position(
      squared_distance=previous,
      gap=0.0 if theorem.bounds_distance else previous,
      squared_gradient=before.squared_gradient.mean(),
    ),
    result.factor.gamma,
    result.steps,
  )
  return '' if limit is None else float(limit)
