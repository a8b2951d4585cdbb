"""The effect of clients that are lost during a round on the aggregate.

Client i of a cohort is lost with the probability r_i, independently of the
others and of its coin. The wanted value is G = sum_i w_i U_i, with w_i = n_i /
sum_j n_j. There are two moments:

*   *before* the client has reported anything. The cohort is smaller: a scheme
    that counts or sums over the cohort does so over those that report.
*   *between* the report of its norm and weight, and its update. Only OCS and
    AOCS have such a moment. The norm is in the sums from which p_i follows, and
    the weight is in the denominator; (n_i / p_i) U_i never comes. With full
    participation, uniform sampling and one round trip the client has one
    message, and the numerator and the denominator lose it together. The
    probabilities are those of the whole cohort.

So there are two kinds of estimates, whatever the scheme:

*   The *mean of the arrived* divides by the weight of the clients that are not
    lost: sum_i a_i s_i (n_i / p_i) U_i / sum_i a_i n_i. Here a_i is 1 if client
    i arrives, and s_i is 1 if its coin lets it send; otherwise they are 0. The
    estimate is 0 if nobody arrives, as in `tff_ocs.ClientSamplingFactory`.
*   The *mean over all* divides by the weight of all: sum_i a_i s_i (w_i / p_i)
    U_i. Its expectation is sum_i (1 - r_i) w_i U_i.

All expectations are exact, and so is the variance of the mean over all. The
variance of the mean of the arrived is a mean over drawn sets of arrived
clients, with a standard error; given the set it is exact, by Eq. (6).
"""

from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

from experiments.theory import monte_carlo
from tff_ocs import probabilities

BEFORE = 'before'
BETWEEN = 'between'
UNCHANGED = ''
SCALED = 'scaled by 1 / (1 - r_i)'
ACKNOWLEDGED = 'weights summed with the updates'
OVER_KNOWN_WEIGHT = 'divided by N_t of all'
ONE_TRIP = 'one round trip'
# The schemes whose clients report before they send.
_REPORTING = ('OCS', 'AOCS')
METHODS = ('full', 'uniform', *_REPORTING, ONE_TRIP)

# No client is lost more often than this.
LARGEST_RATE = 0.9
# cos^2 of the angle between an update and the common direction, in the mean.
_COMMON_PART = 0.25
_DIMENSION = 20
# The step and the start of the trapezoidal rule over the logarithm of t, see
# `expect_share`. Its integrand is analytic and vanishes at both ends.
_LOG_STEP = 0.02
_FIRST_LOG = -40.0
_LAST_EXPONENT = 50.0


class Pool(NamedTuple):
  """The clients of a cohort.

  Attributes:
    weights: n_i >= 0, float64 of shape [n], of which one is above 0.
    updates: U_i, float64 of shape [n, d].
  """

  weights: np.ndarray
  updates: np.ndarray

  @property
  def norms(self) -> np.ndarray:
    """n_i ||U_i||, of shape [n]."""
    return self.weights * np.linalg.norm(self.updates, axis=-1)

  @property
  def terms(self) -> np.ndarray:
    """The w_i U_i, which add up to G, of shape [n, d]."""
    return (self.weights / self.weights.sum())[:, np.newaxis] * self.updates


class Moments(NamedTuple):
  """An estimate of G, over dropouts and coins.

  Attributes:
    mean: Its expectation, of shape [d].
    variance: E ||estimate - mean||^2.
    standard_error: That of the variance; 0 if it is exact.
    participants: The expected number of updates that arrive.
  """

  mean: np.ndarray
  variance: float
  standard_error: float
  participants: float


def make_unbalanced(
  num_clients: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Weights and norms that differ as much as those of clients' data do.

  Args:
    num_clients: n.
    seed: The seed.

  Returns:
    The weights n_i, integers with the median 50, and the norms ||U_i||. Both
    are log-normal and float64 of shape [n]. They do not depend on each other.
  """
  rng = np.random.default_rng(seed)
  weights = np.ceil(50 * rng.lognormal(0, 1, num_clients))
  return weights, rng.lognormal(0, 0.5, num_clients)


def make_pool(weights: np.ndarray, norms: np.ndarray, seed: int) -> Pool:
  """Gives updates random directions with a common part.

  Args:
    weights: n_i, of shape [n].
    norms: ||U_i||, of shape [n].
    seed: The seed of the directions.

  Returns:
    The `Pool`.
  """
  rng = np.random.default_rng([seed, 1])
  own = rng.normal(size=(len(norms), _DIMENSION)) / np.sqrt(_DIMENSION)
  directions = np.sqrt(1 - _COMMON_PART) * own
  directions[:, 0] += np.sqrt(_COMMON_PART)
  directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
  return Pool(
    np.asarray(weights, np.float64), np.reshape(norms, (-1, 1)) * directions
  )


def equal_rates(weights: np.ndarray, mean: float) -> np.ndarray:
  """The same r_i for all clients, of shape [n]."""
  return np.full(len(weights), mean)


def growing_rates(weights: np.ndarray, mean: float) -> np.ndarray:
  """The r_i in proportion to n_i, at most `LARGEST_RATE`, of shape [n].

  Clients with more examples are slower, and are lost more often.
  """
  if mean == 0:
    return np.zeros(len(weights))
  # As Eq. (7) shares a sum among clients with an upper limit.
  shares = probabilities.optimal_probabilities(
    weights, len(weights) * mean / LARGEST_RATE
  )
  return LARGEST_RATE * shares


RATES = {'equal': equal_rates, 'growing with n_i': growing_rates}


def expect_share(weights: np.ndarray, rates: np.ndarray) -> np.ndarray:
  """Expects the share of each client in the weight of those that arrive.

  With S the weight of the others that arrive, the share is n_i / (n_i + S) if
  client i arrives, and E[1 / (n_i + S)] is the integral over t > 0 of

      exp(-n_i t) prod_{j != i} (q_j + (1 - q_j) exp(-n_j t)).

  Args:
    weights: n_i >= 0, of shape [n].
    rates: r_i in [0, 1), of shape [n].

  Returns:
    E[a_i n_i / sum_j a_j n_j], of shape [n], with 0 where nobody arrives.
  """
  positive = weights > 0
  n, r = weights[positive] / weights.sum(), rates[positive]
  logs = np.arange(
    _FIRST_LOG, np.log(_LAST_EXPONENT / n.min()) + _LOG_STEP, _LOG_STEP
  )
  exponents = -np.exp(logs)[:, np.newaxis] * n
  with np.errstate(divide='ignore'):
    factors = np.logaddexp(np.log(r), np.log1p(-r) + exponents)
  others = factors.sum(axis=-1, keepdims=True) - factors
  integrand = np.exp(exponents + others + logs[:, np.newaxis])
  shares = np.zeros(len(weights))
  shares[positive] = (1 - r) * n * integrand.sum(axis=0) * _LOG_STEP
  return shares


def measure_over_all(
  pool: Pool, rates: np.ndarray, p: np.ndarray, scales: np.ndarray
) -> Moments:
  """The moments of the mean over all.

  Args:
    pool: The clients.
    rates: r_i, of shape [n].
    p: The probabilities p_i of the whole cohort, of shape [n], above 0 where
      n_i ||U_i|| is.
    scales: By what each client's update is multiplied, of shape [n].

  Returns:
    The `Moments`; all are exact.
  """
  terms = scales[:, np.newaxis] * pool.terms
  arrives = p * (1 - rates)
  # Eq. (6) for terms that are divided by p_i, and sent with `arrives`.
  squares = np.sum(terms * terms, axis=-1)
  sends = p > 0
  variance = np.sum((squares * (1 - rates) * (1 - arrives))[sends] / p[sends])
  return Moments(
    (1 - rates) @ terms, float(variance), 0.0, float(arrives.sum())
  )


def measure_of_arrived(
  pool: Pool, rates: np.ndarray, arrived: np.ndarray, p: np.ndarray
) -> Moments:
  """The moments of the mean of the arrived.

  Args:
    pool: The clients.
    rates: r_i, of shape [n].
    arrived: The drawn sets, bool of shape [draws, n].
    p: The probabilities p_i in each of them, of shape [draws, n]; those of lost
      clients do not count.

  Returns:
    The `Moments`; the expectation is exact.
  """
  # The coins have no influence on it: given the set, the mean is unbiased.
  mean = expect_share(pool.weights, rates) @ pool.updates
  weights = np.where(arrived, pool.weights, 0.0)
  totals = weights.sum(axis=-1, keepdims=True)
  shares = np.divide(
    weights, totals, out=np.zeros_like(weights), where=totals > 0
  )
  of_coins = probabilities.batch_sampling_variance(
    shares * np.linalg.norm(pool.updates, axis=-1), p
  )
  of_set = np.sum((shares @ pool.updates - mean) ** 2, axis=-1)
  squares = of_coins + of_set
  return Moments(
    mean,
    float(squares.mean()),
    float(squares.std(ddof=1) / np.sqrt(len(squares))),
    float(np.where(arrived, p, 0.0).sum(axis=-1).mean()),
  )


def sample(
  method: str, norms: np.ndarray, m: float, reported: np.ndarray
) -> np.ndarray:
  """The probabilities of a method, given who reports.

  Args:
    method: One of `METHODS`.
    norms: n_i ||U_i|| of the cohort, of shape [n].
    m: The expected number of participants.
    reported: Sets of clients, bool of shape [draws, n].

  Returns:
    p_i of shape [draws, n]. In one round trip the threshold is what earlier
    rounds without dropouts have led to: that of OCS for these norms.
  """
  if method == ONE_TRIP:
    tau = probabilities.sampling_threshold(norms, m)
    p = norms > 0
    if tau > 0:
      p = probabilities.threshold_probabilities(norms, tau)
    return np.broadcast_to(p, reported.shape).astype(np.float64)
  if method == 'full':
    return np.ones(reported.shape)
  num_reported = reported.sum(axis=-1, keepdims=True)
  if method == 'uniform':
    p = np.minimum(m / np.maximum(num_reported, 1), 1.0)
    return np.broadcast_to(p, reported.shape)
  present = np.where(reported, norms, 0.0)
  p = monte_carlo.scheme_probabilities(method.lower(), present, m)
  # A norm of 0 stands for a lost client, but Algorithm 2 counts it in n.
  return np.where(num_reported <= m, present > 0, p)


def measure(
  pool: Pool, rates: np.ndarray, m: float, num_draws: int, seed: int
) -> Iterator[dict[str, Any]]:
  """Measures every method, with both kinds of dropouts, and variants.

  Args:
    pool: The clients; G must not be 0.
    rates: r_i in [0, 1), of shape [n].
    m: The expected number of participants.
    num_draws: How many sets of arrived clients to draw.
    seed: Their seed. All methods have the same sets.

  Yields:
    A row for each case: `method`, `lost`, `variant`, and the numbers of
    `describe`.
  """
  rng = np.random.default_rng([seed, 2])
  arrived = rng.random((num_draws, len(rates))) >= rates
  everybody = np.ones_like(arrived[:1])
  as_they_are = np.ones(len(rates))

  def row(method, lost, variant, moments):
    return {
      'method': method,
      'lost': lost,
      'variant': variant,
      **describe(moments, pool),
    }

  for method in METHODS:
    p = sample(method, pool.norms, m, arrived)
    moments = measure_of_arrived(pool, rates, arrived, p)
    yield row(method, BEFORE, UNCHANGED, moments)
  of_arrived, over_all = {}, {}
  for method in METHODS:
    p = sample(method, pool.norms, m, everybody)
    of_arrived[method] = measure_of_arrived(
      pool, rates, arrived, np.broadcast_to(p, arrived.shape)
    )
    over_all[method] = measure_over_all(pool, rates, p[0], as_they_are)
    moments = (over_all if method in _REPORTING else of_arrived)[method]
    yield row(method, BETWEEN, UNCHANGED, moments)
  for method in _REPORTING:
    p = sample(method, pool.norms, m, everybody)[0]
    moments = measure_over_all(pool, rates, p, 1 / (1 - rates))
    yield row(method, BETWEEN, SCALED, moments)
  for method in _REPORTING:
    yield row(method, BETWEEN, ACKNOWLEDGED, of_arrived[method])
  yield row(ONE_TRIP, BETWEEN, OVER_KNOWN_WEIGHT, over_all[ONE_TRIP])


def describe(moments: Moments, pool: Pool) -> dict[str, float]:
  """The moments relative to G.

  Args:
    moments: The moments.
    pool: The clients.

  Returns:
    `bias`, ||E[estimate] - G|| / ||G||; `along`, the component of E[estimate]
    along G, over ||G||; `std`, the root of the variance over ||G||, with
    `std_error`, its standard error; and `participants`.
  """
  wanted = pool.terms.sum(axis=0)
  size = np.linalg.norm(wanted)
  std = np.sqrt(moments.variance)
  # To first order, d sqrt(x) = dx / (2 sqrt(x)).
  std_error = moments.standard_error / (2 * std) if std > 0 else 0.0
  return {
    'bias': float(np.linalg.norm(moments.mean - wanted) / size),
    'along': float(moments.mean @ wanted / size**2),
    'std': float(std / size),
    'std_error': float(std_error / size),
    'participants': moments.participants,
  }
