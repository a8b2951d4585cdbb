"""Cohort samplers: which clients of the pool train in a round, in NumPy.

A cohort sampler chooses clients *before* they train, from what the server
remembers of them. A participation scheme (`tff_ocs.schemes`) decides *after*
local training which of those clients send their update. The two combine.

The pool has N clients. Client i has the weight n_i, usually its number of
examples, and lambda_i = n_i / sum_j n_j. A round's target is the pool's update
sum_i lambda_i U_i. With m clients a round, the samplers are

| Class | Rule |
| --- | --- |
| `UniformCohorts` | m clients without replacement (McMahan et al. 2017) |
| `MultinomialCohorts` | m draws with replacement by n_i (Li et al. 2020) |
| `ClusteredCohorts` | one draw from each of m bins (Fraboni et al. 2021) |
| `PowerOfChoiceCohorts` | the highest losses of d (Cho et al. 2020) |
| `OsmdCohorts` | m draws with replacement, learned p (Zhao et al. 2021) |
| `KVibCohorts` | independent coins, learned p (Zeng et al. 2023) |

Client i is drawn N_i times, with the expectation pi_i = E[N_i]. They sum to m.
Where no client can be drawn twice, pi_i is its inclusion probability; otherwise
it can exceed 1. The estimate of the pool's update is

    sum_{i drawn} s_i lambda_i U_i    with the scale    s_i = N_i / pi_i,

the estimator of Horvitz and Thompson (1952), or of Hansen and Hurwitz (1943)
where clients are drawn with replacement. It is unbiased, since E[s_i] = 1. A
client that is drawn twice trains once and counts twice.

A cohort is a function of the seed, the round and the state of the sampler
alone, and the state is a dictionary of arrays, for checkpoints.

This module does not import TensorFlow.
"""

import abc
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

import numpy as np

from tff_ocs import arguments
from tff_ocs import probabilities


class Cohort(NamedTuple):
  """The clients of a round. Each occurs once.

  Attributes:
    client_ids: The ids of the k clients.
    probabilities: The pi_i = E[N_i] of these clients, float64 of shape [k];
      above 1 for a client that is drawn more than once on average; NaN with a
      biased sampler.
    scales: The factors s_i of lambda_i U_i in the aggregate, float64 of shape
      [k].
  """

  client_ids: tuple[str, ...]
  probabilities: np.ndarray
  scales: np.ndarray


class CohortSampler(abc.ABC):
  """Chooses the clients of the pool that train in a round.

  Attributes:
    client_ids: The ids of the pool's N clients, sorted.
    shares: lambda_i for each of `client_ids`, float64 of shape [N].
    is_unbiased: Whether the estimate of the pool's update is unbiased. If not,
      it is the plain mean of the cohort's updates.
    uses_norms: Whether `observe` needs the norms of the updates.
  """

  is_unbiased = True
  uses_norms = False

  def __init__(
    self,
    client_weights: Mapping[str, float],
    clients_per_round: int,
    seed: int,
  ):
    """Initializes the sampler.

    Args:
      client_weights: The weight n_i >= 0 of each client of the pool, by its id.
      clients_per_round: The number m of draws in a round, or the expected
        number of clients; at most N.
      seed: The seed of all draws, an integer from 0 to 2^32 - 1.

    Raises:
      TypeError: If an argument is not a number of its kind.
      ValueError: If an argument is out of range.
    """
    if not isinstance(client_weights, Mapping):
      raise TypeError(
        'client_weights must be a mapping from client ids to weights, found'
        f' {client_weights!r}.'
      )
    self.client_ids = tuple(sorted(client_weights))
    self._weights = arguments.check_real_array(
      'client_weights', [client_weights[i] for i in self.client_ids]
    )
    is_valid = np.isfinite(self._weights) & (self._weights >= 0)
    if not is_valid.all():
      bad = self.client_ids[int(np.argmin(is_valid))]
      raise ValueError(
        'client_weights must be finite and at least 0, found'
        f' {client_weights[bad]!r} for the client {bad!r}.'
      )
    if not self._weights.any():
      raise ValueError(
        'client_weights must have a weight above 0, found the sum 0 of'
        f' {len(client_weights)} weights.'
      )
    self._num_draws = arguments.check_integer(
      'clients_per_round', clients_per_round
    )
    if self._num_draws > len(self.client_ids):
      raise ValueError(
        f'clients_per_round must be at most the {len(self.client_ids)} clients'
        f' of the pool, found {clients_per_round}.'
      )
    self._seed = arguments.check_integer('seed', seed, 0)
    if self._seed >= 2**32:
      raise ValueError(f'seed must be below 2^32, found {seed}.')
    self.shares = self._weights / self._weights.sum()

  @abc.abstractmethod
  def expected_draws(self) -> np.ndarray:
    """Returns pi_i for each of `client_ids`, of shape [N], in this state.

    They sum to m. A client that can be drawn twice may have more than 1. With a
    biased sampler they are NaN.
    """

  @abc.abstractmethod
  def draw(self, round_num: int) -> np.ndarray:
    """Draws a round's clients.

    Args:
      round_num: The number of the round, at least 0.

    Returns:
      The places in `client_ids` of the draws, integers of shape [number of
      draws]: a function of the seed, the round and the state alone.
    """

  def candidates(self, round_num: int) -> tuple[str, ...]:
    """Returns the clients whose losses `sample` needs in a round.

    Args:
      round_num: The number of the round, at least 0.

    Returns:
      The ids of the clients; none, unless the class says otherwise.
    """
    del round_num
    return ()

  def sample(self, round_num: int, losses: Sequence[float] = ()) -> Cohort:
    """Returns the cohort of a round.

    Args:
      round_num: The number of the round, at least 0.
      losses: The losses of the `candidates` at the current model, in order.

    Returns:
      The `Cohort`.

    Raises:
      TypeError: If `round_num` is not an integer.
      ValueError: If an argument is out of range, or what `draw` or
        `expected_draws` of a subclass returns.
    """
    round_num = arguments.check_integer('round_num', round_num, 0)
    if len(losses):
      raise ValueError(
        f'{type(self).__name__} takes no losses, found {len(losses)}.'
      )
    places, counts = self._drawn(round_num)
    pi = np.asarray(self.expected_draws(), np.float64)
    if pi.shape != self.shares.shape:
      raise ValueError(
        f'expected_draws() must have the shape {self.shares.shape}, found'
        f' {pi.shape}.'
      )
    _check_values('expected_draws()', pi)
    if abs(pi.sum() - self._num_draws) > 1e-6 * self._num_draws:
      raise ValueError(
        'expected_draws() must sum to the expected number of draws,'
        f' {self._num_draws}, found {pi.sum()}.'
      )
    pi = pi[places]
    if not pi.all():
      raise ValueError(
        'expected_draws() must be above 0 for each client that draw() returns,'
        f' found 0 for the client {self.client_ids[places[np.argmin(pi)]]!r}.'
      )
    return Cohort(self._ids(places), pi, counts / pi)

  def observe(
    self, round_num: int, client_ids: Sequence[str], norms: Sequence[float]
  ) -> None:
    """Learns from a round, which `sample` must have drawn in this state.

    It does nothing unless the sampler `uses_norms`.

    Args:
      round_num: The number of the round.
      client_ids: The clients of the round's cohort, in order.
      norms: The norms ||U_i|| of their updates, finite and at least 0; 0 for an
        update that cannot be used.

    Raises:
      ValueError: If the clients are not the round's cohort or a norm is out of
        range.
    """
    del round_num, client_ids, norms

  @property
  def state(self) -> dict[str, np.ndarray]:
    """The arrays that the sampler has learned, of fixed shapes, by name."""
    return {}

  def restore(self, state: Mapping[str, np.ndarray]) -> None:
    """Sets the state.

    Args:
      state: A `state` of a sampler with the same arguments.

    Raises:
      ValueError: If the names or shapes of the arrays are not those of `state`,
        or the class refuses their values.
    """
    found, expected = (
      {name: np.shape(array) for name, array in s.items()}
      for s in (state, self.state)
    )
    if found != expected:
      raise ValueError(
        f'state must have arrays of the shapes {expected}, found {found}.'
      )

  def generator(self, round_num: int) -> np.random.Generator:
    """Returns the generator of a round's draws, for `draw`."""
    return np.random.default_rng([self._seed, round_num])

  def _ids(self, places) -> tuple[str, ...]:
    return tuple(self.client_ids[place] for place in places)

  def _drawn(self, round_num):
    """Returns the places of the clients drawn, and how often each is drawn."""
    draws, num_clients = np.asarray(self.draw(round_num)), len(self.client_ids)
    is_valid = (
      draws.ndim == 1
      and (draws.size == 0 or np.issubdtype(draws.dtype, np.integer))
      and np.all((draws >= 0) & (draws < num_clients))
    )
    if not is_valid:
      raise ValueError(
        'draw() must return a 1-D array of integers from 0 to'
        f' {num_clients - 1}, places in client_ids, found {draws!r}.'
      )
    return np.unique(draws.astype(np.int64), return_counts=True)

  def _observed(self, round_num, client_ids, norms):
    """Checks it; returns places, draws and a_i = (lambda_i ||U_i||)^2."""
    places, counts = self._drawn(round_num)
    if tuple(client_ids) != self._ids(places):
      raise ValueError(
        f'client_ids must be the cohort of round {round_num} in the state of'
        f' this sampler, {self._ids(places)}, found {tuple(client_ids)}.'
      )
    norms = np.asarray(norms, np.float64)
    if norms.shape != places.shape:
      raise ValueError(
        f'norms must have one entry for each of the {places.size} clients,'
        f' found the shape {norms.shape}.'
      )
    _check_values('norms', norms)
    with np.errstate(over='ignore'):
      squares = (self.shares[places] * norms) ** 2
    _check_values('the squares of lambda_i times norms', squares)
    return places, counts, squares


class UniformCohorts(CohortSampler):
  """m clients, uniformly without replacement: pi_i = m / N.

  The cohorts are those of `tff.simulation.build_uniform_sampling_fn` with the
  same seed and the sorted ids, so that they equal those of an experiment
  without a cohort sampler.

  Source: McMahan et al., *Communication-Efficient Learning of Deep Networks
  from Decentralized Data*, AISTATS 2017. Their mean over the cohort's weights
  is not unbiased for the pool; that over the pool's weights, here, is.
  """

  def expected_draws(self):
    num_clients = len(self.client_ids)
    return np.full(num_clients, self._num_draws / num_clients)

  def draw(self, round_num):
    # A Lehmer generator seeds the round's generator, as in TFF.
    modulus = 2**31 - 1
    start = int(np.random.RandomState(self._seed).randint(1, modulus - 1))
    seed = pow(16807, round_num, modulus) * start % modulus
    return np.random.RandomState(seed).choice(
      len(self.client_ids), self._num_draws, replace=False
    )


class MultinomialCohorts(CohortSampler):
  """MD sampling: m draws with replacement, with p_i = lambda_i.

  pi_i = m lambda_i, and the aggregate is the plain mean (1 / m) sum U_i over
  the draws.

  Source: scheme I of Li et al., *On the Convergence of FedAvg on Non-IID Data*,
  ICLR 2020.
  """

  def expected_draws(self):
    return self._num_draws * self.shares

  def draw(self, round_num):
    points = self.generator(round_num).random(self._num_draws)
    return _clients_at(points, self._weights)


class ClusteredCohorts(CohortSampler):
  """Clustered sampling by sample size: one draw from each of m bins.

  The clients, with the largest weight first, fill m bins of the same size, in
  turn. r_ki is the share of client i in bin k: sum_k r_ki = m lambda_i and
  sum_i r_ki = 1. Bin k draws client i with the probability r_ki. So pi_i = m
  lambda_i, and the aggregate is the plain mean (1 / m) sum U_i over the draws,
  as in MD sampling. A client's weight in it, N_i / m, has at most the variance
  of MD sampling (Theorem 1 of the source). So has the aggregate: the variance
  of a draw from the whole pool is the mean variance within the bins plus the
  variance between the means of the bins, and the latter is zero here.

  Clients of the same weight are taken in the order of their ids, which the
  source leaves open.

  Source: Algorithm 1 of Fraboni et al., *Clustered Sampling: Low-Variance and
  Improved Representativity for Clients Selection in Federated Learning*, ICML
  2021.
  """

  def expected_draws(self):
    return self._num_draws * self.shares

  def bins(self) -> np.ndarray:
    """Returns r_ki, a float64 array of shape [m, N]."""
    order = self._order()
    ends = np.cumsum(self._weights[order]) / self._weights.sum()
    ends = np.concatenate([[0.0], ends]) * self._num_draws
    # How much of bin k lies before the end of each client.
    filled = np.clip(ends - np.arange(self._num_draws)[:, np.newaxis], 0, 1)
    bins = np.empty((self._num_draws, order.size))
    bins[:, order] = np.diff(filled, axis=1)
    return bins

  def draw(self, round_num):
    order = self._order()
    points = self.generator(round_num).random(self._num_draws)
    points = (np.arange(self._num_draws) + points) / self._num_draws
    return order[_clients_at(points, self._weights[order])]

  def _order(self):
    return np.argsort(-self._weights, kind='stable')


class PowerOfChoiceCohorts(CohortSampler):
  """Power-of-Choice: the m candidates with the highest losses. Biased.

  d candidates are drawn without replacement, one after the other with
  probabilities proportional to n_i. They receive the model and report their
  loss, which takes a round trip before the cohort trains. The m candidates with
  the highest losses train; ties are broken at random. The aggregate is the
  plain mean (1 / m) sum U_i, with s_i = 1 / (m lambda_i), and it prefers
  clients with high losses.

  A loss that is NaN, as that of a client without examples, ranks last.

  Source: pow-d of Cho et al., *Client Selection in Federated Learning:
  Convergence Analysis and Power-of-Choice Selection Strategies*, 2020 (AISTATS
  2022).
  """

  is_unbiased = False

  def __init__(
    self,
    client_weights: Mapping[str, float],
    clients_per_round: int,
    seed: int,
    num_candidates: int,
  ):
    """Initializes `PowerOfChoiceCohorts`.

    Args:
      client_weights: As for `CohortSampler`.
      clients_per_round: The number m of clients in a cohort.
      seed: As for `CohortSampler`.
      num_candidates: The number d of candidates, at least m and at most the
        number of clients with a weight above 0.

    Raises:
      TypeError: If an argument is not a number of its kind.
      ValueError: If an argument is out of range.
    """
    super().__init__(client_weights, clients_per_round, seed)
    self._num_candidates = arguments.check_integer(
      'num_candidates', num_candidates
    )
    num_positive = np.count_nonzero(self._weights)
    if not self._num_draws <= num_candidates <= num_positive:
      raise ValueError(
        f'num_candidates must be at least clients_per_round={self._num_draws}'
        f' and at most the {num_positive} clients with a weight above 0, found'
        f' {num_candidates}.'
      )

  def expected_draws(self):
    return np.full(len(self.client_ids), np.nan)

  def candidates(self, round_num):
    """The ids of the d candidates; `sample` takes losses in this order."""
    round_num = arguments.check_integer('round_num', round_num, 0)
    return self._ids(self.draw(round_num))

  def sample(self, round_num, losses=()):
    places = self.draw(arguments.check_integer('round_num', round_num, 0))
    losses = np.asarray(losses, np.float64)
    if losses.shape != places.shape:
      raise ValueError(
        'losses must have one entry for each of the'
        f' {places.size} candidates, found the shape {losses.shape}.'
      )
    ties = self.generator(round_num).random((2, len(self.client_ids)))[1]
    # The last key is the first that counts; NaN ranks last.
    order = np.lexsort((ties[places], -losses))
    places = np.sort(places[order[: self._num_draws]])
    return Cohort(
      self._ids(places),
      np.full(places.size, np.nan),
      1 / (self._num_draws * self.shares[places]),
    )

  def draw(self, round_num):
    """Draws the d candidates, not the cohort; returns their sorted places."""
    # The first d arrivals of Poisson processes with the rates n_i.
    uniform = self.generator(round_num).random((2, len(self.client_ids)))[0]
    with np.errstate(divide='ignore'):
      arrivals = -np.log1p(-uniform) / self._weights
    arrivals[self._weights == 0] = np.inf
    return np.sort(np.argsort(arrivals)[: self._num_candidates])


class OsmdCohorts(CohortSampler):
  """OSMD: m draws with replacement from probabilities learned by bandit.

  With K = m, a_i = lambda_i^2 ||U_i||^2 and the N_i draws of client i, online
  stochastic mirror descent on the sampling variance (1 / K) sum_i a_i / p_i
  makes, from a round to the next,

      p_i <- p_i exp(eta N_i a_i / (K^2 p_i^3)),

  projected onto {p: sum_i p_i = 1, p_i >= alpha / N} in the Kullback-Leibler
  divergence, see `project_onto_floor`. The first p is uniform. pi_i = K p_i,
  and each draw has the weight lambda_i / (K p_i).

  N_i is what makes the estimated gradient unbiased: E[N_i] = K p_i. (The
  authors' program counts a client that is drawn twice once.)

  The source's eta depends on quantities that are not known in advance, and its
  Adaptive-OSMD runs many eta at once. This class has one. The default is eta =
  K^2 alpha^3 / (N^3 a), with the largest a_i of this round and all before it as
  a: since p_i >= alpha / N and a_i <= a, a client that is drawn once multiplies
  its p_i by at most e. This is the scale of the source's grid of step sizes,
  without its factor of order sqrt(log N / T). (With a of the first round alone,
  eta would be far too large where few clients have most of the examples and the
  first cohort has none of them. The sampling variance then exceeds that of
  uniform sampling.)

  Source: OSMD Sampler of Zhao et al., *Adaptive Client Sampling in Federated
  Learning via Online Learning with Bandit Feedback*, 2021 (JMLR 2025).
  """

  uses_norms = True

  def __init__(
    self,
    client_weights: Mapping[str, float],
    clients_per_round: int,
    seed: int,
    *,
    eta: Optional[float] = None,
    alpha: float = 0.4,
  ):
    """Initializes `OsmdCohorts`.

    Args:
      client_weights: As for `CohortSampler`.
      clients_per_round: The number K of draws.
      seed: As for `CohortSampler`.
      eta: The step size eta > 0 of mirror descent; if not given, as the class
        says.
      alpha: The floor of p_i as a fraction of 1 / N, in (0, 1]; with 1 the
        probabilities stay uniform.

    Raises:
      TypeError: If an argument is not a number of its kind.
      ValueError: If an argument is out of range.
    """
    super().__init__(client_weights, clients_per_round, seed)
    self._alpha = arguments.check_fraction('alpha', alpha)
    self._eta = None if eta is None else arguments.check_positive('eta', eta)
    self._largest = np.float64(0)
    num_clients = len(self.client_ids)
    self._p = np.full(num_clients, 1 / num_clients)

  def expected_draws(self):
    return self._num_draws * self._p

  def observe(self, round_num, client_ids, norms):
    places, counts, squares = self._observed(round_num, client_ids, norms)
    if not squares.any():
      return
    floor = self._alpha / len(self.client_ids)
    self._largest = np.maximum(self._largest, squares.max())
    if self._eta is None:
      steps = squares / self._largest * (floor / self._p[places]) ** 3
    else:
      steps = self._eta * squares / (self._num_draws**2 * self._p[places] ** 3)
    log_p = np.log(self._p)
    log_p[places] += counts * steps
    # Only ratios matter, and the largest must not overflow.
    self._p = project_onto_floor(np.exp(log_p - log_p.max()), floor)

  @property
  def state(self):
    return {'p': self._p.copy(), 'largest': np.asarray(self._largest)}

  def restore(self, state):
    super().restore(state)
    _check_state(state)
    p = np.array(state['p'], np.float64)
    floor = self._alpha / p.size
    if p.min() < floor * (1 - 1e-9) or abs(p.sum() - 1) > 1e-9:
      raise ValueError(
        f"state['p'] must sum to 1 and be at least alpha / N = {floor}, found"
        f' the sum {p.sum()} and the minimum {p.min()}.'
      )
    self._p = p
    self._largest = np.float64(state['largest'])

  def draw(self, round_num):
    points = self.generator(round_num).random(self._num_draws)
    return _clients_at(points, self._p)


class KVibCohorts(CohortSampler):
  """K-Vib: independent coins with probabilities learned from variances.

  With K = m and a_i = lambda_i^2 ||U_i||^2, the clients of each round's cohort
  add omega_i <- omega_i + a_i / pi_i, and the next round has

      pi_i = (1 - theta) p_i + theta K / N,

  where p is Eq. (7) of optimal client sampling for the norms sqrt(omega_i +
  gamma): it minimises sum_i (omega_i + gamma) / p_i subject to sum p_i = K and
  p_i <= 1. Each client joins the cohort with the probability pi_i,
  independently. A cohort has K clients on average and can be empty.

  theta = (N / (T K))^(1/3) for T rounds, or 0.3 for N > T, as the source has it
  in its experiments on FEMNIST. gamma = G^2 N / (K theta) with the
  bound G of lambda_i ||U_i||. G is not known in advance, and the source does
  not say how to choose it: this class takes the largest lambda_i ||U_i|| so
  far, of all rounds. As long as it is 0, p_i = K / N.

  (The authors' program takes omega_i + gamma without the square root as the
  norms, and its Eq. (7) scales one client too many, so that a probability can
  exceed 1.)

  Source: Algorithm 2 of Zeng et al., *Enhanced Federated Optimization: Adaptive
  Unbiased Client Sampling with Reduced Variance*, 2023 (TMLR 2025).

  Attributes:
    theta: The weight of the uniform part of pi_i, above 0 and at most 1. It is
      1 for N = T and K = 1: then the cohorts stay uniform.
  """

  uses_norms = True

  def __init__(
    self,
    client_weights: Mapping[str, float],
    clients_per_round: int,
    seed: int,
    total_rounds: int,
    *,
    gamma: Optional[float] = None,
  ):
    """Initializes `KVibCohorts`.

    Args:
      client_weights: As for `CohortSampler`.
      clients_per_round: The expected size K of a cohort.
      seed: As for `CohortSampler`.
      total_rounds: The number T of rounds, which determines theta.
      gamma: The regularisation gamma > 0; if not given, as the class says.

    Raises:
      TypeError: If an argument is not a number of its kind.
      ValueError: If an argument is out of range.
    """
    super().__init__(client_weights, clients_per_round, seed)
    num_clients = len(self.client_ids)
    total_rounds = arguments.check_integer('total_rounds', total_rounds)
    self.theta = 0.3
    if num_clients <= total_rounds:
      self.theta = (num_clients / (total_rounds * self._num_draws)) ** (1 / 3)
    self._gamma = (
      None if gamma is None else arguments.check_positive('gamma', gamma)
    )
    self._largest = np.float64(0)
    self._omega = np.zeros(num_clients)

  def expected_draws(self):
    num_clients = len(self.client_ids)
    uniform = self._num_draws / num_clients
    gamma = self._gamma
    if gamma is None:
      gamma = self._largest * num_clients / (self._num_draws * self.theta)
    if gamma == 0:
      return np.full(num_clients, uniform)
    p = probabilities.optimal_probabilities(
      np.sqrt(self._omega + gamma), self._num_draws
    )
    return (1 - self.theta) * p + self.theta * uniform

  def observe(self, round_num, client_ids, norms):
    places, _, squares = self._observed(round_num, client_ids, norms)
    if not squares.any():
      return
    self._omega[places] += squares / self.expected_draws()[places]
    self._largest = np.maximum(self._largest, squares.max())

  @property
  def state(self):
    return {'omega': self._omega.copy(), 'largest': np.asarray(self._largest)}

  def restore(self, state):
    super().restore(state)
    _check_state(state)
    self._omega = np.array(state['omega'], np.float64)
    self._largest = np.float64(state['largest'])

  def draw(self, round_num):
    coins = self.generator(round_num).random(len(self.client_ids))
    return np.flatnonzero(coins < self.expected_draws())


def read_norms(
  clients: np.ndarray, cohort: Cohort, client_weights: Mapping[str, float]
) -> np.ndarray:
  """Returns the norms that `CohortSampler.observe` takes, after a round.

  Args:
    clients: The measurement `clients` of a `tff_ocs.ClientSamplingFactory` with
      `reveal_clients=True`, of shape [k, 3] and in any order. Its places are
      those in the cohort, and its norms n_i s_i ||U_i||.
    cohort: The `Cohort` of the round, of k clients.
    client_weights: The weight n_i of each client, by its id.

  Returns:
    The norms ||U_i|| in the order of the cohort, float64 of shape [k]; 0 for an
    update that cannot be used, and for a client of weight 0.

  Raises:
    ValueError: If `clients` has not one row for each place in the cohort.
  """
  clients = np.asarray(clients, np.float64)
  size = len(cohort.client_ids)
  rows = clients[np.argsort(clients[:, 0])] if clients.ndim == 2 else clients
  if rows.shape != (size, 3) or not np.array_equal(rows[:, 0], np.arange(size)):
    raise ValueError(
      f'clients must have a row of 3 entries for each of the places 0 to'
      f' {size - 1}, found {clients.tolist()}.'
    )
  factors = cohort.scales * [client_weights[i] for i in cohort.client_ids]
  return np.divide(rows[:, 1], factors, out=np.zeros(size), where=factors > 0)


def project_onto_floor(values: np.ndarray, floor: float) -> np.ndarray:
  """Projects onto the probabilities of at least `floor`, in KL divergence.

  The projection minimises sum_i p_i log(p_i / v_i) subject to sum p_i = 1 and
  p_i >= floor. By its KKT conditions p_i = max(c v_i, floor) with one c for all
  i.

  Args:
    values: The v_i >= 0, not all 0, of shape [N].
    floor: A number above 0 and at most 1 / N.

  Returns:
    A float64 array of shape [N] that sums to 1.
  """
  ascending = np.sort(values)
  # c if the l smallest values lie on the floor, for each l.
  num_on_floor = np.arange(values.size)
  sums = np.cumsum(ascending[::-1])[::-1]
  factors = np.maximum(1 - num_on_floor * floor, 0) / sums
  # The fewest on the floor such that the next is above it. The largest value,
  # which is at least the mean, is never below.
  above = factors * ascending >= floor
  above[-1] = True
  return np.maximum(factors[np.argmax(above)] * values, floor)


def _check_state(state: Mapping[str, np.ndarray]) -> None:
  for name, array in state.items():
    _check_values(f'state[{name!r}]', np.asarray(array, np.float64))


def _check_values(name: str, values: np.ndarray) -> None:
  is_valid = np.isfinite(values) & (values >= 0)
  if not is_valid.all():
    raise ValueError(
      f'{name} must be finite and at least 0, found {values[~is_valid][0]}.'
    )


def _clients_at(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Returns the clients at points of [0, 1), split in proportion to weights."""
  ends = np.cumsum(weights)
  places = np.searchsorted(ends, points * ends[-1], side='right')
  # Rounding can carry a point to the end of the last client.
  return np.minimum(places, np.flatnonzero(weights)[-1])
