"""The paper's sampling probabilities in NumPy, float64: the reference.

Equation and algorithm numbers refer to Chen, Horvath and Richtarik, *Optimal
Client Sampling for Federated Learning*, TMLR 2022.

A round has a cohort of n clients, of which m are expected to send. Client i has
the weight w_i and the update U_i. The argument `norms` holds the weighted norms
u_i = w_i ||U_i||_2, an array of shape [n]. All results depend on the ratios of
the u_i only, so the weights need not be normalised. `batch_probabilities` and
`batch_sampling_variance` take many rounds at once, as an array of shape
[..., n].

A client with u_i = 0 has nothing to send: OCS and AOCS give it the probability
0 for every m.

Where clients' uplinks differ in cost, client i costs c_i, such as seconds, and
the expected cost sum_i c_i p_i of a round is limited to a budget B. The least
variance then has p_i = min(1, u_i / (tau sqrt(c_i))), see docs/theory.md:
client i counts as c_i clients with the norm u_i / sqrt(c_i) each. With the
argument `client_costs`, `expected_clients` is B. With c_i = 1 for all, B is the
expected number of clients.

This module does not import TensorFlow.
"""

import math
from typing import NamedTuple
from typing import Optional

import numpy as np

from tff_ocs import arguments


class ApproximateProbabilities(NamedTuple):
  """The result of Algorithm 2 (AOCS).

  Attributes:
    probabilities: A float64 array of shape [n].
    num_iterations: The number of executed iterations, an int. In each of them
      the clients' (1, p_i) are summed once.
  """

  probabilities: np.ndarray
  num_iterations: int


class ThresholdState(NamedTuple):
  """The memory of one-round-trip sampling, see `update_threshold`.

  Attributes:
    threshold: tau, in the units of the norms; 0 while it is not known.
    num_rounds: The number of rounds from which a known tau was updated.
  """

  threshold: float = 0.0
  num_rounds: int = 0


def _check_rounds(norms) -> np.ndarray:
  norms = arguments.check_real_array('norms', norms)
  if norms.ndim == 0 or norms.size == 0:
    raise ValueError(
      'norms must be an array of shape [..., n] with one entry for each client'
      f' of each round, found the shape {norms.shape}.'
    )
  # The condition is false for NaN, too.
  if not (norms.min() >= 0 and norms.max() < np.inf):
    bad = norms[~(np.isfinite(norms) & (norms >= 0))]
    raise ValueError(f'norms must be finite and at least 0, found {bad[0]}.')
  return norms


def _check_norms(norms) -> np.ndarray:
  norms = arguments.check_real_array('norms', norms)
  if np.ndim(norms) != 1 or np.size(norms) == 0:
    raise ValueError(
      'norms must be a 1-D array with one entry for each client, found the'
      f' shape {np.shape(norms)}.'
    )
  return _check_rounds(norms)


def _check_costs(client_costs, norms: np.ndarray) -> np.ndarray:
  costs = arguments.check_real_array('client_costs', client_costs)
  if costs.shape != norms.shape:
    raise ValueError(
      f'client_costs must have the shape of norms, {norms.shape}, found'
      f' {costs.shape}.'
    )
  is_valid = np.isfinite(costs) & (costs > 0)
  if not is_valid.all():
    raise ValueError(
      f'client_costs must be finite and above 0, found {costs[~is_valid][0]}.'
    )
  return costs


def _check_probabilities(probabilities, norms: np.ndarray) -> np.ndarray:
  p = arguments.check_real_array('probabilities', probabilities)
  if p.shape != norms.shape:
    raise ValueError(
      f'probabilities must have the shape of norms, {norms.shape}, found'
      f' {p.shape}.'
    )
  is_valid = (p >= 0) & (p <= 1)
  if not is_valid.all():
    raise ValueError(
      f'probabilities must lie in [0, 1], found {p[~is_valid][0]}.'
    )
  return p


def _check_scalar(name: str, value) -> float:
  number = arguments.check_real_array(name, value)
  if number.ndim:
    raise TypeError(f'{name} must be a number, found {value!r}.')
  return float(number)


def _check_state(state: ThresholdState) -> ThresholdState:
  """Returns it with Python numbers; a state of TFF has arrays."""
  threshold = _check_scalar('state.threshold', state.threshold)
  if not 0 <= threshold < math.inf:
    raise ValueError(
      'state.threshold must be finite and at least 0, found'
      f' {state.threshold!r}.'
    )
  num_rounds = _check_scalar('state.num_rounds', state.num_rounds)
  if num_rounds < 0 or not num_rounds.is_integer():
    raise ValueError(
      'state.num_rounds must be an integer of at least 0, found'
      f' {state.num_rounds!r}.'
    )
  return ThresholdState(threshold, int(num_rounds))


def _scaled(norms: np.ndarray) -> np.ndarray:
  """Divides each round by a power of 2, exactly, so that no sum overflows.

  The largest norm of a round comes to lie in [1/2, 1). Positive norms that are
  less than 2^-1000 then count as 2^-1000: none becomes 0.
  """
  scaled = np.ldexp(norms, -np.frexp(norms.max(axis=-1, keepdims=True))[1])
  return np.where(norms > 0, np.maximum(scaled, 2.0**-1000), 0.0)


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Divides by b >= 0; the quotient is 0 where b is 0."""
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
  num_clients = arguments.check_integer('num_clients', num_clients)
  m = arguments.check_positive('expected_clients', expected_clients)
  return np.full(num_clients, min(m / num_clients, 1.0))


def sampling_threshold(
  norms, expected_clients: float, client_costs=None
) -> float:
  """The number tau with which Eq. (7) reads p_i = min(u_i / tau, 1).

  With the norms sorted from the smallest, u_(1) <= ... <= u_(n), l is the
  largest integer with 0 < m + l - n <= (u_(1) + ... + u_(l)) / u_(l), and tau
  = (u_(1) + ... + u_(l)) / (m + l - n). (Lemma 20 in the paper's appendix sorts
  from the largest. Its main text sorts from the smallest, which is right.)

  Args:
    norms: The weighted norms u_i >= 0, of shape [n].
    expected_clients: The expected number m > 0 of clients that send.
    client_costs: The costs c_i > 0, of shape [n]; if given, `expected_clients`
      is the budget B, in the units of the costs.

  Returns:
    tau, in the units of the norms (over the root of those of the costs). It is
    0 if at most m norms are above 0, as they are for m >= n, or if the budget
    is enough for all of them: then every client with u_i > 0 sends.

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  norms = _check_norms(norms)
  m = arguments.check_positive('expected_clients', expected_clients)
  if client_costs is None:
    scaled = _thresholds(_scaled(norms), m)[0]
  else:
    costs = _check_costs(client_costs, norms)
    scaled = _threshold_of_costs(_scaled(norms) / np.sqrt(costs), costs, m)
  return float(np.ldexp(scaled, np.frexp(norms.max())[1]))


def _thresholds(norms: np.ndarray, m: float) -> np.ndarray:
  """The tau of each round, of shape [..., 1], for norms of shape [..., n]."""
  # l = n - m + 1 always fits Eq. (7), so that only the candidates u_(l) among
  # the ceil(m) largest norms need a look.
  num_candidates = min(math.ceil(m), norms.shape[-1])
  ascending = np.sort(norms, axis=-1)
  others, candidates = np.split(ascending, [-num_candidates], axis=-1)
  # Extended precision, since rounding must not decide whether l fits.
  sums = np.cumsum(candidates, axis=-1, dtype=np.longdouble)
  sums += others.sum(axis=-1, keepdims=True)
  # m + l - n, exactly: n - l first, since m may be far below n.
  budgets = m - np.arange(num_candidates - 1, -1, -1)
  fits = budgets * candidates <= sums
  largest = num_candidates - 1 - np.argmax(fits[..., ::-1], axis=-1)
  largest = largest[..., np.newaxis]
  tau = np.take_along_axis(sums, largest, axis=-1) / budgets[largest]
  num_positive = np.count_nonzero(norms, axis=-1, keepdims=True)
  return np.where(num_positive <= m, 0.0, tau).astype(np.float64)


def _threshold_of_costs(keys: np.ndarray, costs: np.ndarray, budget: float):
  """The tau with sum_i c_i min(v_i / tau, 1) = B, for the keys v_i; or 0."""
  if costs[keys > 0].sum() <= budget:
    return 0.0
  order = np.argsort(keys, kind='stable')
  keys, costs = keys[order], costs[order]
  # All clients with p_i = 1 together cost less than the budget, so that only
  # the largest keys need a look. Sums are as in `_thresholds`, bit for bit.
  num_others = keys.size - 1 - np.sum(np.cumsum(np.sort(costs)) < budget)
  num_others = max(num_others, 0)
  others, candidates = np.split(costs * keys, [num_others])
  keys, costs = keys[num_others:], costs[num_others:]
  sums = np.cumsum(candidates, dtype=np.longdouble) + others.sum()
  left = budget - (np.cumsum(costs[::-1])[::-1] - costs)
  # Where the one before has nothing left, left <= c_i and the condition holds;
  # rounding must not decide that it does not.
  is_first = np.concatenate([[0.0], left[:-1]]) <= 0
  last = np.flatnonzero((left > 0) & (is_first | (left * keys <= sums)))[-1]
  return np.float64(sums[last] / left[last])


def optimal_probabilities(
  norms, expected_clients: float, client_costs=None
) -> np.ndarray:
  """The probabilities of Eq. (7), exact: optimal client sampling (OCS).

  Among all p with 0 <= p_i <= 1 and sum p_i <= m they minimise Eq. (6), the
  variance of independent sampling. A client with u_i = 0 does not send,
  although its probability has no influence on the variance.

  Args:
    norms: The weighted norms u_i = w_i ||U_i|| >= 0, of shape [n].
    expected_clients: The expected number m > 0 of clients that send. For m >= n
      all clients with u_i > 0 send.
    client_costs: The costs c_i > 0, of shape [n]; if given, `expected_clients`
      is the budget B, in the units of the costs.

  Returns:
    A float64 array of shape [n]. It sums to min(m, number of u_i > 0); with
    costs, sum c_i p_i is the smaller of B and the costs of all u_i > 0.

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  norms = _check_norms(norms)
  if client_costs is None:
    return batch_probabilities(norms, expected_clients)
  m = arguments.check_positive('expected_clients', expected_clients)
  costs = _check_costs(client_costs, norms)
  keys = _scaled(norms) / np.sqrt(costs)
  tau = _threshold_of_costs(keys, costs, m)
  return np.minimum(keys / tau, 1.0) if tau else (norms > 0).astype(np.float64)


def _optimal(norms, m):
  norms = _scaled(norms)
  tau = _thresholds(norms, m)
  p = np.minimum(_divided(norms, tau), 1.0)
  return p if tau.all() else np.where(tau > 0, p, norms > 0)


def approximate_probabilities(
  norms,
  expected_clients: float,
  max_iterations: int = 4,
  client_costs=None,
) -> ApproximateProbabilities:
  """The probabilities of Algorithm 2 (AOCS), from sums of scalars only.

  Algorithm 2 as printed is not defined for all norms. This function differs
  from it in three points: the factor C is at least 1, since rounding could
  otherwise lower a probability of 1; C = 1 if the probabilities P to rescale
  sum to 0; and for m >= n every client with u_i > 0 sends, after no iteration.

  With costs, a client counts as c_i clients with the norm u_i / sqrt(c_i): the
  sums are of c_i and of c_i p_i.

  Args:
    norms: The weighted norms u_i = w_i ||U_i|| >= 0, of shape [n].
    expected_clients: The expected number m > 0 of clients that send.
    max_iterations: The limit j_max >= 0. With 0, the probabilities stay at
      min(m u_i / u, 1), and their variance can exceed that of uniform sampling.
    client_costs: The costs c_i > 0, of shape [n]; if given, `expected_clients`
      is the budget B, in the units of the costs.

  Returns:
    `ApproximateProbabilities`. The probabilities equal `optimal_probabilities`
    unless `max_iterations` is too small; then their sum is below m.

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  norms = _check_norms(norms)
  m = arguments.check_positive('expected_clients', expected_clients)
  limit = arguments.check_integer('max_iterations', max_iterations, 0)
  costs = np.ones_like(norms)
  if client_costs is not None:
    costs = _check_costs(client_costs, norms)
  p, num_iterations = _approximate(norms, m, limit, costs)
  return ApproximateProbabilities(p, int(num_iterations))


def _approximate(norms, m, max_iterations, costs):
  keys = _scaled(norms) / np.sqrt(costs)
  num_clients = norms.shape[-1]
  num_iterations = np.zeros(norms.shape[:-1], np.int64)
  total_cost = costs.sum(axis=-1, keepdims=True)
  if m >= total_cost.max():
    return (norms > 0).astype(np.float64), num_iterations
  total = (costs * keys).sum(axis=-1, keepdims=True)
  p = np.minimum(m * _divided(keys, total), 1.0)
  # The relative error of a sum of n float64 terms is at most n roundings.
  tolerance = num_clients * np.finfo(np.float64).eps
  running = np.ones((*norms.shape[:-1], 1), np.bool_)
  for _ in range(max_iterations):
    num_iterations += running[..., 0]
    below_1 = p < 1
    rescalable = (costs * p).sum(axis=-1, keepdims=True, where=below_1)
    # m - n + I, exactly: n - I first, since m may be far below n.
    certain = total_cost - (costs * below_1).sum(axis=-1, keepdims=True)
    factors = _divided(m - certain, rescalable)
    running &= factors > 1 + tolerance
    if not running.any():
      break
    p = np.where(running, np.minimum(factors * p, 1.0), p)
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
  norms = _check_rounds(norms)
  m = arguments.check_positive('expected_clients', expected_clients)
  if max_iterations is None:
    return _optimal(norms, m)
  limit = arguments.check_integer('max_iterations', max_iterations, 0)
  return _approximate(norms, m, limit, np.ones(norms.shape[-1]))[0]


def threshold_probabilities(
  norms, threshold: float, client_costs=None
) -> np.ndarray:
  """The probabilities p_i = min(u_i / tau, 1) for a given threshold tau.

  With `sampling_threshold` they are those of Eq. (7). With a threshold that
  does not depend on the norms this is the threshold sampling of Duffield, Lund
  and Thorup, *Learn more, sample less*, IEEE Transactions on Information Theory
  51(5), 2005: of all p with the same sum it has the smallest variance Eq. (6).

  Args:
    norms: The weighted norms u_i = w_i ||U_i|| >= 0, of shape [n].
    threshold: tau > 0, in the units of the norms.
    client_costs: The costs c_i > 0, of shape [n], with which p_i = min(u_i /
      (tau sqrt(c_i)), 1). If not given, they are 1.

  Returns:
    A float64 array of shape [n].

  Raises:
    TypeError: If `threshold` is not a number.
    ValueError: If an argument is out of range.
  """
  tau = arguments.check_positive('threshold', threshold)
  norms = _check_norms(norms)
  if client_costs is not None:
    norms = norms / np.sqrt(_check_costs(client_costs, norms))
  return np.minimum(norms / tau, 1.0)


def update_threshold(
  state: ThresholdState,
  norms,
  probabilities,
  expected_clients: float,
  *,
  eta: float = 0.3,
  c: float = 3.0,
  client_costs=None,
) -> ThresholdState:
  """The threshold for the next round, from sums over this one.

  With x = sum_i p_i / m and t = `state.num_rounds` + 1,

      log tau <- log tau + min(max(eta, 1 / t) (x - 1), log(c x)).

  The state stays as it is if all norms are 0, and if x <= 1 although no p_i
  lies between 0 and 1: then all clients with u_i > 0 are sure to send. If tau
  is not known yet, or nobody has a positive probability, tau becomes sum_i u_i
  / m, which is at least the threshold of Eq. (7). See docs/theory.md. With
  costs, x = sum_i c_i p_i / B, and the first tau is sum_i u_i sqrt(c_i) / B.

  Args:
    state: The `ThresholdState` before the round.
    norms: The round's norms u_i = n_i ||U_i|| / N_t >= 0, of shape [n].
    probabilities: The round's p_i in [0, 1], of shape [n].
    expected_clients: The long-run mean m > 0 of the number of participants.
    eta: The step of the controller, above 0: log tau changes by eta times the
      relative excess x - 1 of participants.
    c: Above 1. tau becomes at most c x times its value, so that the same cohort
      would keep at least about m / c participants.
    client_costs: The costs c_i > 0, of shape [n]; if given,
      `expected_clients` is the budget B, in the units of the costs.

  Returns:
    The `ThresholdState` after the round.

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  m = arguments.check_positive('expected_clients', expected_clients)
  eta = arguments.check_positive('eta', eta)
  c = arguments.check_positive('c', c)
  if c <= 1:
    raise ValueError(f'c must be above 1, found {c!r}.')
  state = _check_state(state)
  norms = _check_norms(norms)
  p = _check_probabilities(probabilities, norms)
  costs = np.ones_like(norms)
  if client_costs is not None:
    costs = _check_costs(client_costs, norms)
  total_norm, x = (norms * np.sqrt(costs)).sum(), (costs * p).sum() / m
  if total_norm == 0:
    return state
  if state.threshold == 0 or x == 0:
    return ThresholdState(float(total_norm / m), state.num_rounds)
  if x <= 1 and not np.any((p > 0) & (p < 1)):
    return state
  num_rounds = state.num_rounds + 1
  step = min(max(eta, 1 / num_rounds) * (x - 1), math.log(c * x))
  return ThresholdState(float(state.threshold * math.exp(step)), num_rounds)


def sampling_variance(norms, probabilities) -> float:
  """The variance that independent sampling adds to the aggregate, Eq. (6).

  It is sum_i (1 - p_i) / p_i u_i^2 = E || sum_{i sent} w_i / p_i U_i -
  sum_i w_i U_i ||^2. Samplings that are not independent can have a smaller
  variance with the same p_i.

  Args:
    norms: The weighted norms u_i = w_i ||U_i|| >= 0, of shape [n].
    probabilities: The probabilities p_i in [0, 1], of shape [n].

  Returns:
    The variance, in squared units of the norms. A client with u_i = 0 adds 0
    whatever its p_i is. A client with u_i > 0 and p_i = 0 makes it infinite.

  Raises:
    TypeError: If an argument is not real numbers.
    ValueError: If an argument is out of range or the shapes differ.
  """
  return float(batch_sampling_variance(_check_norms(norms), probabilities))


def batch_sampling_variance(norms, probabilities) -> np.ndarray:
  """`sampling_variance` of many rounds.

  Args:
    norms: The weighted norms u_i >= 0, of shape [..., n].
    probabilities: The probabilities p_i in [0, 1], of the same shape.

  Returns:
    A float64 array of shape [...].

  Raises:
    TypeError: If an argument is not real numbers.
    ValueError: If an argument is out of range or the shapes differ.
  """
  norms = _check_rounds(norms)
  p = np.where(norms > 0, _check_probabilities(probabilities, norms), 1.0)
  with np.errstate(divide='ignore'):
    odds_against = (1 - p) / p
  # Not times norms**2, which may overflow: 0 x inf is NaN.
  return np.sum(odds_against * norms * norms, axis=-1)


def improvement_factor(norms, expected_clients: float) -> float:
  """The improvement factor alpha^k of one round, given its updates.

  This function conditions on the realised updates: it is the ratio of the
  variances that sampling adds to them. The paper's alpha^k, Eq. (15), is a
  ratio of expectations, which average over the noise of the updates as well.
  With noisy updates the two differ, and the mean of this function over many
  rounds is not Eq. (15) either.

  Args:
    norms: The weighted norms u_i = w_i ||U_i|| >= 0, of shape [n].
    expected_clients: The expected number m > 0 of clients that send.

  Returns:
    The variance with the probabilities of Eq. (7) over that of uniform
    sampling, in [0, 1]: 0 is as good as full participation, 1 is no better than
    uniform sampling. It is 0 also if both variances are 0, that is for m >= n
    and if all norms are 0.

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  norms = _scaled(_check_norms(norms))
  uniform = sampling_variance(
    norms, uniform_probabilities(norms.size, expected_clients)
  )
  if uniform == 0:
    return 0.0
  optimal = sampling_variance(
    norms, optimal_probabilities(norms, expected_clients)
  )
  # Only rounding can make the ratio exceed 1, since Eq. (7) is optimal.
  return min(optimal / uniform, 1.0)


def relative_improvement_factor(
  alpha: float, num_clients: int, expected_clients: float
) -> float:
  """The relative improvement factor gamma^k, Eq. (16).

  Args:
    alpha: The improvement factor alpha^k in [0, 1].
    num_clients: The size n of the cohort.
    expected_clients: The expected number m > 0 of clients that send. If it is
      above n, n takes its place.

  Returns:
    m / (alpha (n - m) + m), in [m / n, 1].

  Raises:
    TypeError: If an argument is not a number of its kind.
    ValueError: If an argument is out of range.
  """
  num_clients = arguments.check_integer('num_clients', num_clients)
  m = arguments.check_positive('expected_clients', expected_clients)
  m = min(m, num_clients)
  alpha = _check_scalar('alpha', alpha)
  if not 0 <= alpha <= 1:
    raise ValueError(f'alpha must lie in [0, 1], found {alpha!r}.')
  return m / (alpha * (num_clients - m) + m)
