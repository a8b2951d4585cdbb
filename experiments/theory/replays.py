"""Replays sampling schemes on the norms that a run recorded.

What a scheme would have spent, and which variance it would have added, follows
from the norms of the cohorts alone, without training. The cohorts' updates stay
those of the recorded run: another scheme would have led to other weights, and
these to other norms.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_ocs import probabilities

# From m, the expected or long-run number of participants, to the probabilities
# of the clients in each round.
Sampler = Callable[[float], Sequence[np.ndarray]]

_MAX_STEPS = 100
_RELATIVE_TOLERANCE = 1e-6


class Trace(NamedTuple):
  """The recorded rounds of a run.

  Attributes:
    norms: The norms n_i ||U_i|| of each round's clients, arrays of shape [n];
      n may differ between rounds.
    cohort_weights: N_t of each round, the total weight of its cohort, by which
      the server divides the aggregate.
  """

  norms: Sequence[np.ndarray]
  cohort_weights: np.ndarray

  @property
  def relative_norms(self) -> list[np.ndarray]:
    """The norms u_i = n_i ||U_i|| / N_t; 0 where N_t is 0."""
    return [
      u / (weight or 1.0) for u, weight in zip(self.norms, self.cohort_weights)
    ]


class ThresholdReplay(NamedTuple):
  """The rounds of `tff_ocs.ThresholdSampling`.

  Attributes:
    probabilities: Those of the clients in each round, arrays of shape [n].
    thresholds: tau with which each round sampled; 0 in the first, in which it
      is not known.
    next_threshold: tau after the last round.
  """

  probabilities: list[np.ndarray]
  thresholds: np.ndarray
  next_threshold: float


def replay_threshold(
  rounds: Sequence[np.ndarray], m: float, *, eta: float = 0.3, c: float = 3.0
) -> ThresholdReplay:
  """Runs the controller of `tff_ocs.ThresholdSampling`.

  In the first round each client with a norm above 0 sends with probability
  min(m / n, 1), as with `first_cohort_size=n`.

  Args:
    rounds: The norms of each round: `Trace.relative_norms` if the controller
      knows N_t, `Trace.norms` if it does not.
    m: The long-run mean of the number of participants.
    eta: The step of the controller.
    c: The limit of a rise of tau.

  Returns:
    The `ThresholdReplay`.
  """
  state = probabilities.ThresholdState()
  of_rounds, thresholds = [], []
  for norms in rounds:
    if state.threshold > 0:
      p = probabilities.threshold_probabilities(norms, state.threshold)
    else:
      p = np.where(norms > 0, min(m / norms.size, 1.0), 0.0)
    of_rounds.append(p)
    thresholds.append(state.threshold)
    state = probabilities.update_threshold(state, norms, p, m, eta=eta, c=c)
  return ThresholdReplay(of_rounds, np.array(thresholds), state.threshold)


def replay_constant_threshold(
  rounds: Sequence[np.ndarray], m: float
) -> list[np.ndarray]:
  """Samples all rounds with the tau with which m clients send on average.

  That needs all rounds beforehand. No other probabilities with this mean have a
  smaller sum of variances, see docs/theory.md.

  Args:
    rounds: The norms of each round.
    m: The mean number of participants.

  Returns:
    The probabilities of the clients in each round.
  """
  # Eq. (7), with the clients of all rounds as those of one.
  p = probabilities.optimal_probabilities(
    np.concatenate(rounds), m * len(rounds)
  )
  ends = np.cumsum([norms.size for norms in rounds])
  return np.split(p, ends[:-1])


def count_participants(of_rounds: Sequence[np.ndarray]) -> np.ndarray:
  """The expected number P of participants in each round, of shape [rounds]."""
  return np.array([p.sum() for p in of_rounds])


def measure_variances(
  trace: Trace, of_rounds: Sequence[np.ndarray]
) -> np.ndarray:
  """The variance that sampling adds to the aggregate of each round.

  Args:
    trace: The recorded rounds.
    of_rounds: The probabilities of each round.

  Returns:
    Eq. (6) with u_i = n_i ||U_i|| / N_t, of shape [rounds].
  """
  return np.array(
    [
      probabilities.sampling_variance(u, p)
      for u, p in zip(trace.relative_norms, of_rounds)
    ]
  )


def scale_to_spend(sampler: Sampler, m: float) -> Sequence[np.ndarray]:
  """Runs a sampler so that m clients send on average after the first round.

  Variances of schemes can only be compared at the same number of participants.

  Args:
    sampler: The sampler. Its number of participants must grow with its target.
    m: The mean number of participants from round 1 on.

  Returns:
    The probabilities of each round with the target that gives this mean; the
    nearest that is found if none does, as where too few norms are above 0.
  """
  target, last_mean = m, 0.0
  for _ in range(_MAX_STEPS):
    of_rounds = sampler(target)
    mean = count_participants(of_rounds)[1:].mean()
    # It does not grow any more where all clients with an update send.
    if abs(mean - m) <= _RELATIVE_TOLERANCE * m or mean == last_mean:
      break
    target, last_mean = target * m / mean, mean
  return of_rounds
