"""The paper's sampling probabilities in NumPy, float64: the reference.

Equation and algorithm numbers refer to Chen, Horvath and Richtarik, *Optimal
Client Sampling for Federated Learning*, TMLR 2022.

Symbols: n clients form the cohort of a round and m of them are expected to
send. Client i has the weight w_i and the update U_i, and `norms` holds the
weighted norms u_i = w_i ||U_i||_2, a 1-D array of shape [n]. All that is
computed here depends on the u_i up to a common factor only, so weights need not
be normalised. `batch_probabilities` and `batch_sampling_variance` take many
rounds at once, an array of shape [..., n].

A client with u_i = 0 has nothing to send: OCS and AOCS give it the
probability 0, for every m.
"""

import math
import numbers
from typing import NamedTuple
from typing import Optional

import numpy as np

# Of many norms, every so many-th gives a first guess of the threshold.
_STRIDE = 64


class ApproximateProbabilities(NamedTuple):
  """What Algorithm 2 (AOCS) ends with.

  Attributes:
    probabilities: A float64 array of shape [n].
    num_iterations: How often the clients' (1, p_i) were summed, an int.
  """

  probabilities: np.ndarray
  num_iterations: int


def check_expected_clients(expected_clients: float) -> float:
  """Returns m as a float if it is a finite number above 0.

  Args:
    expected_clients: The expected number m of clients that send in a round. It
      need not be an integer.

  Raises:
    TypeError: If `expected_clients` is not a real number.
    ValueError: If it is not finite or not above 0.
  """
  if isinstance(expected_clients, (bool, np.bool_)) or not isinstance(
    expected_clients, numbers.Real
  ):
    raise TypeError(
      'expected_clients must be a number above 0, found'
      f' {expected_clients!r} of type {type(expected_clients).__name__}.'
    )
  if not (math.isfinite(expected_clients) and expected_clients > 0):
    raise ValueError(
      'expected_clients must be a finite number above 0, found'
      f' {expected_clients!r}.'
    )
  return float(expected_clients)


def check_max_iterations(max_iterations: int) -> int:
  """Returns j_max as an int if it is a whole number of at least 0.

  Args:
    max_iterations: The limit j_max of Algorithm 2. With 0 the probabilities
      min(m u_i / u, 1) are never recalibrated.

  Raises:
    TypeError: If `max_iterations` is not an integer.
    ValueError: If it is negative.
  """
  if isinstance(max_iterations, (bool, np.bool_)) or not isinstance(
    max_iterations, numbers.Integral
  ):
    raise TypeError(
      'max_iterations must be an integer of at least 0, found'
      f' {max_iterations!r} of type {type(max_iterations).__name__}.'
    )
  if max_iterations < 0:
    raise ValueError(
      f'max_iterations must be at least 0, found {max_iterations!r}.'
    )
  return int(max_iterations)


def _check_norms(norms) -> np.ndarray:
  norms = np.asarray(norms, dtype=np.float64)
  if norms.ndim != 1 or norms.size == 0:
    raise ValueError(
      'norms must be a 1-D array with one entry for each client, found the'
      f' shape {norms.shape}.'
    )
  _check_norm_values(norms)
  return norms


def _check_batch(norms) -> np.ndarray:
  norms = np.asarray(norms, dtype=np.float64)
  if norms.ndim == 0 or norms.size == 0:
    raise ValueError(
      'norms must be an array of shape [..., n] with one entry for each client'
      f' of each round, found the shape {norms.shape}.'
    )
  _check_norm_values(norms)
  return norms


def _check_norm_values(norms):
  # False for NaN, too.
  if not (norms.min() >= 0 and norms.max() < np.inf):
    bad = norms[~(np.isfinite(norms) & (norms >= 0))]
    raise ValueError(f'norms must be finite and at least 0, found {bad[0]}.')


def _check_num_clients(num_clients: int) -> int:
  if isinstance(num_clients, (bool, np.bool_)) or not isinstance(
    num_clients, numbers.Integral
  ):
    raise TypeError(
      'num_clients must be an integer of at least 1, found'
      f' {num_clients!r} of type {type(num_clients).__name__}.'
    )
  if num_clients < 1:
    raise ValueError(f'num_clients must be at least 1, found {num_clients!r}.')
  return int(num_clients)


def _scaled_to_one(norms: np.ndarray) -> np.ndarray:
  """Divides by the largest norm, so that no sum or square overflows."""
  return _divided(norms, norms.max(axis=-1, keepdims=True))


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Divides, and gives 0 where `b`, which is not negative, is 0."""
  return a / np.where(b > 0, b, np.inf)


def uniform_probabilities(
  num_clients: int, expected_clients: float
) -> np.ndarray:
  """Independent uniform sampling: p_i = min(m / n, 1) (Section 3).

  Args:
    num_clients: The size n of the cohort.
    expected_clients: The expected number m > 0 of clients that send.

  Returns:
    A float64 array of shape [n].

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  num_clients = _check_num_clients(num_clients)
  expected_clients = check_expected_clients(expected_clients)
  return np.full(num_clients, min(expected_clients / num_clients, 1.0))


def sampling_threshold(norms, expected_clients: float) -> float:
  """The number tau with which Eq. (7) reads p_i = min(u_i / tau, 1).

  With the norms sorted from the smallest, u_(1) <= ... <= u_(n), l is the
  largest integer with 0 < m + l - n <= (u_(1) + ... + u_(l)) / u_(l), and tau
  = (u_(1) + ... + u_(l)) / (m + l - n). (The appendix of the paper sorts from
  the largest; the main text, followed here, is right.) For m >= n, and where
  at most m norms are above zero, tau = 0: every client with u_i > 0 sends.

  Args:
    norms: The weighted norms u_i >= 0, of shape [n].
    expected_clients: The expected number m > 0 of clients that send.

  Returns:
    tau, in the units of the norms.

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  norms = _check_norms(norms)
  expected_clients = check_expected_clients(expected_clients)
  return float(
    norms.max() * _thresholds(_scaled_to_one(norms), expected_clients)[0]
  )


def _thresholds(norms: np.ndarray, expected_clients: float) -> np.ndarray:
  """The tau of each round, [..., 1], for norms in [0, 1] of shape [..., n].

  sum_i min(u_i, tau) - m tau is concave in tau, and tau is its root above 0.
  Newton's method, which puts the number of norms above tau into Eq. (7) as
  n - l, falls to it from above, without sorting, in a few steps.
  """
  thresholds = _above_thresholds(norms, expected_clients)
  while True:
    lower, num_above = _newton_step(norms, expected_clients, thresholds)
    # All of them are below m but for rounding.
    falls = (lower < thresholds) & (num_above < expected_clients)
    if not falls.any():
      break
    thresholds = np.where(falls, lower, thresholds)
  num_positive = np.count_nonzero(norms > 0, axis=-1, keepdims=True)
  return np.where(num_positive <= expected_clients, 0.0, thresholds)


def _above_thresholds(norms, expected_clients):
  """Numbers at or above the tau of each round; near it where n is large."""
  if norms.shape[-1] >= 100 * _STRIDE:
    guess = _thresholds(norms[..., ::_STRIDE], expected_clients / _STRIDE)
    # By concavity a step from below ends above, but for where the function
    # still rises.
    near, num_above = _newton_step(norms, expected_clients, guess)
    if np.all(num_above < expected_clients):
      return near
  return norms.sum(axis=-1, keepdims=True) / expected_clients


def _newton_step(norms, expected_clients, thresholds):
  """The next tau, and how many norms are above the last."""
  is_rest = norms <= thresholds
  num_rest = np.count_nonzero(is_rest, axis=-1, keepdims=True)
  num_above = norms.shape[-1] - num_rest
  # The sum of the rest, without a copy, and without np.where, which is slow
  # where its condition is hard to foresee.
  rest = np.einsum('...i,...i->...', norms, is_rest)[..., np.newaxis]
  return _divided(rest, expected_clients - num_above), num_above


def optimal_probabilities(norms, expected_clients: float) -> np.ndarray:
  """The probabilities of Eq. (7), exact: optimal client sampling (OCS).

  They minimise the sampling variance (6) over all p with 0 <= p_i <= 1 and
  sum p_i <= m. (Among the minimisers it is the one in which clients with u_i =
  0, whose probability has no influence on the variance, do not send.)

  Args:
    norms: The weighted norms u_i = w_i ||U_i|| >= 0, of shape [n].
    expected_clients: The expected number m > 0 of clients that send. For m >= n
      all clients with u_i > 0 send.

  Returns:
    A float64 array of shape [n]. It sums to min(m, number of u_i > 0).

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  norms = _check_norms(norms)
  return _optimal(norms, check_expected_clients(expected_clients))


def _optimal(norms, expected_clients):
  norms = _scaled_to_one(norms)
  thresholds = _thresholds(norms, expected_clients)
  p = _divided(norms, thresholds)
  np.minimum(p, 1.0, out=p)
  if thresholds.all():
    return p
  return np.where(thresholds > 0, p, norms > 0)


def approximate_probabilities(
  norms, expected_clients: float, max_iterations: int = 4
) -> ApproximateProbabilities:
  """The probabilities of Algorithm 2 (AOCS), from sums of scalars only.

  Differences from the letter of Algorithm 2, each needed for it to be defined
  for all norms: the factor C is held at >= 1, since otherwise rounding makes a
  sure client unsure; C = 1 where the probabilities P to rescale sum to 0; and
  for m >= n every client with u_i > 0 sends, with no iteration.

  Args:
    norms: The weighted norms u_i = w_i ||U_i|| >= 0, of shape [n].
    expected_clients: The expected number m > 0 of clients that send.
    max_iterations: The limit j_max >= 0.

  Returns:
    `ApproximateProbabilities`. The probabilities equal `optimal_probabilities`
    unless `max_iterations` did not suffice, in which case their sum is below m.

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  norms = _check_norms(norms)
  expected_clients = check_expected_clients(expected_clients)
  max_iterations = check_max_iterations(max_iterations)
  p, num_iterations = _approximate(norms, expected_clients, max_iterations)
  return ApproximateProbabilities(p, int(num_iterations))


def _approximate(norms, expected_clients, max_iterations):
  norms = _scaled_to_one(norms)
  num_clients = norms.shape[-1]
  num_iterations = np.zeros(norms.shape[:-1], np.int64)
  if expected_clients >= num_clients:
    return (norms > 0).astype(np.float64), num_iterations
  shares = _divided(norms, norms.sum(axis=-1, keepdims=True))
  p = np.minimum(expected_clients * shares, 1.0)
  # A sum of n float64 terms is known up to n roundings.
  tolerance = num_clients * np.finfo(np.float64).eps
  goes_on = np.ones((*norms.shape[:-1], 1), np.bool_)
  for _ in range(max_iterations):
    num_iterations += goes_on[..., 0]
    unsure = p < 1
    rescalable = p.sum(axis=-1, keepdims=True, where=unsure)
    # m - n + I, with the integers first: m - n alone is rounded, and m may be
    # far below n.
    num_sure = num_clients - unsure.sum(axis=-1, keepdims=True)
    factors = _divided(expected_clients - num_sure, rescalable)
    goes_on &= factors > 1 + tolerance
    if not goes_on.any():
      break
    p = np.where(goes_on & unsure, np.minimum(factors * p, 1.0), p)
  return p, num_iterations


def batch_probabilities(
  norms, expected_clients: float, max_iterations: Optional[int] = None
) -> np.ndarray:
  """`optimal_probabilities` or `approximate_probabilities` of many rounds.

  Args:
    norms: The weighted norms u_i >= 0, of shape [..., n].
    expected_clients: The expected number m > 0 of clients that send.
    max_iterations: The limit j_max of Algorithm 2 (AOCS). If not given, the
      probabilities are those of Eq. (7) (OCS).

  Returns:
    A float64 array of the shape of `norms`.

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  norms = _check_batch(norms)
  expected_clients = check_expected_clients(expected_clients)
  if max_iterations is None:
    return _optimal(norms, expected_clients)
  max_iterations = check_max_iterations(max_iterations)
  return _approximate(norms, expected_clients, max_iterations)[0]


def sampling_variance(norms, probabilities) -> float:
  """The variance that sampling adds to the aggregate, Eq. (6).

  It is sum_i (1 - p_i) / p_i u_i^2 = E || sum_{i sent} w_i/p_i U_i -
  sum_i w_i U_i ||^2 for independent sampling.

  Args:
    norms: The weighted norms u_i = w_i ||U_i|| >= 0, of shape [n].
    probabilities: The probabilities p_i in [0, 1], of shape [n].

  Returns:
    The variance, in squared units of the norms. A client with u_i = 0 adds 0
    whatever its p_i; one with u_i > 0 that never sends makes it infinite.

  Raises:
    ValueError: If an argument is out of range or the shapes differ.
  """
  return float(_variance(_check_norms(norms), probabilities))


def batch_sampling_variance(norms, probabilities) -> np.ndarray:
  """`sampling_variance` of many rounds.

  Args:
    norms: The weighted norms u_i >= 0, of shape [..., n].
    probabilities: The probabilities p_i in [0, 1], of the same shape.

  Returns:
    A float64 array of shape [...].

  Raises:
    ValueError: If an argument is out of range or the shapes differ.
  """
  return _variance(_check_batch(norms), probabilities)


def _variance(norms, probabilities):
  probabilities = np.asarray(probabilities, dtype=np.float64)
  if probabilities.shape != norms.shape:
    raise ValueError(
      f'probabilities must have the shape of norms, {norms.shape}, found'
      f' {probabilities.shape}.'
    )
  if not np.all((probabilities >= 0) & (probabilities <= 1)):
    bad = probabilities[~((probabilities >= 0) & (probabilities <= 1))]
    raise ValueError(f'probabilities must lie in [0, 1], found {bad[0]}.')
  # A zero norm adds 0 whatever its p_i.
  probabilities = np.where(norms > 0, probabilities, 1.0)
  with np.errstate(divide='ignore'):
    odds_against = (1 - probabilities) / probabilities
  # Not times norms**2, which may overflow: 0 x inf is NaN.
  return np.sum(odds_against * norms * norms, axis=-1)


def improvement_factor(norms, expected_clients: float) -> float:
  """The improvement factor alpha^k of one round, Eq. (15).

  Args:
    norms: The weighted norms u_i = w_i ||U_i|| >= 0, of shape [n].
    expected_clients: The expected number m > 0 of clients that send.

  Returns:
    The variance of optimal sampling over that of uniform sampling, in [0, 1]: 0
    is as good as full participation, 1 no better than uniform sampling. It is 0
    also where both variances are 0 (m >= n, or all norms zero).

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  norms = _scaled_to_one(_check_norms(norms))
  uniform = sampling_variance(
    norms, uniform_probabilities(norms.size, expected_clients)
  )
  if uniform == 0:
    return 0.0
  optimal = sampling_variance(
    norms, optimal_probabilities(norms, expected_clients)
  )
  return min(optimal / uniform, 1.0)


def relative_improvement_factor(
  alpha: float, num_clients: int, expected_clients: float
) -> float:
  """The relative improvement factor gamma^k, Eq. (16).

  Args:
    alpha: The improvement factor alpha^k in [0, 1].
    num_clients: The size n of the cohort.
    expected_clients: The expected number m > 0 of clients that send; above n it
      counts as n.

  Returns:
    m / (alpha (n - m) + m), in [m / n, 1].

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  num_clients = _check_num_clients(num_clients)
  expected_clients = min(check_expected_clients(expected_clients), num_clients)
  if not 0 <= alpha <= 1:
    raise ValueError(f'alpha must lie in [0, 1], found {alpha!r}.')
  return expected_clients / (
    alpha * (num_clients - expected_clients) + expected_clients
  )
