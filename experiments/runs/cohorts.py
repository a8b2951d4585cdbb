"""The clients of each round of a run, and what a run remembers of them."""

import abc
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np

from experiments.runs import experiment_flags
from experiments.runs import user_code
from tff_ocs import cohorts
from tff_ocs import communication
from tff_ocs import simple_fedavg
from tff_ocs.tasks import task as task_lib

# Part of the seed of dropouts, so that they do not depend on the shuffles.
_DROPOUTS = 2


class Round(NamedTuple):
  """The clients of a round.

  Attributes:
    client_ids: Their ids, in the order of their places, without those that are
      lost before they report anything.
    data: The data of each for the process, the largest first, so that no core
      waits for it at the end.
    weight: The total weight N_t that the server knows when the clients have
      checked in: of all clients drawn, also of those that are lost; or that of
      the pool, if the aggregate is divided by it.
    candidates: The clients that reported a loss before the round.
  """

  client_ids: Sequence[str]
  data: list[dict[str, Any]]
  weight: float
  candidates: Sequence[str] = ()


class Source(abc.ABC):
  """Draws the cohorts of a run."""

  def __init__(self, task: task_lib.Task, seed: int):
    """Initializes `Source`.

    Args:
      task: The task with the pool.
      seed: The experiment's seed.
    """
    self._task = task
    self._seed = seed

  @abc.abstractmethod
  def draw(self, round_num: int, weights) -> Round:
    """Returns the clients of a round.

    Args:
      round_num: The number of the round.
      weights: The server's weights, `tff.learning.models.ModelWeights`.
    """

  def observe(self, round_num: int, clients: Round, rows: np.ndarray) -> int:
    """Learns from a round.

    Args:
      round_num: The number of the round.
      clients: What `draw` returned.
      rows: The `clients` of the process's measurements, sorted by place.

    Returns:
      The bits that clients sent for this.
    """
    del round_num, clients, rows
    return 0

  @property
  def state(self) -> dict[str, np.ndarray]:
    """The arrays that were learned, by name, for checkpoints."""
    return {}

  def restore(self, state: Mapping[str, np.ndarray]) -> None:
    """Sets the state."""
    del state

  def _round(self, round_num, client_ids, of_client, weight, candidates=()):
    """Builds a `Round`; `of_client` gives more data of each client."""
    sizes = self._task.train.num_examples
    places = sorted(
      range(len(client_ids)), key=lambda k: (-sizes[client_ids[k]], k)
    )
    data = []
    for place in places:
      client_id = client_ids[place]
      examples = self._task.train.examples(client_id)
      data.append(
        {
          'x': examples.x,
          'y': examples.y,
          'seed': simple_fedavg.client_seed(self._seed, round_num, client_id),
          **of_client(place),
        }
      )
    return Round(client_ids, data, weight, candidates)


class UniformSource(Source):
  """The cohorts of the paper, uniform without replacement."""

  def __init__(
    self,
    task: task_lib.Task,
    seed: int,
    clients_per_round: int,
    client_weights: Mapping[str, float],
    *,
    availability: Optional[Mapping[str, float]] = None,
    dropout_rates: Optional[tuple[float, float]] = None,
    client_costs: Optional[Mapping[str, float]] = None,
    reveals_clients: bool = False,
  ):
    """Initializes `UniformSource`.

    Args:
      task: The task with the pool.
      seed: The experiment's seed.
      clients_per_round: The size n of the cohort.
      client_weights: The weight n_i of each client of the pool, by its id.
      availability: For a process with availability: the probability q_i of each
        client, by its id.
      dropout_rates: For a process with dropouts: the probabilities with which a
        client is lost before it reports anything, and between the report of its
        norm and its update.
      client_costs: For a process with costs: the cost c_i of each client, by
        its id.
      reveals_clients: Whether the process takes the clients' places.
    """
    super().__init__(task, seed)
    self._sampler = cohorts.UniformCohorts(
      dict.fromkeys(task.train.client_ids, 1), clients_per_round, seed
    )
    self._client_weights = client_weights
    self._availability = availability
    self._dropout_rates = dropout_rates
    self._client_costs = client_costs
    self._reveals_clients = reveals_clients

  def draw(self, round_num, weights):
    del weights
    ids = self._sampler.sample(round_num).client_ids
    weight = sum(self._client_weights[i] for i in ids)
    if self._dropout_rates is not None:
      lost = {i: self._lose(round_num, i) for i in ids}
      ids = tuple(i for i in ids if not lost[i][0])

    def of_client(place):
      data = {}
      if self._dropout_rates is not None:
        data['lost'] = lost[ids[place]][1]
      if self._availability is not None:
        data['availability'] = np.float32(self._availability[ids[place]])
      if self._client_costs is not None:
        data['cost'] = np.float32(self._client_costs[ids[place]])
      if self._reveals_clients:
        data['place'] = np.float32(place)
      return data

    return self._round(round_num, ids, of_client, weight)

  def _lose(self, round_num, client_id):
    """Whether a client is lost before its report, and before its update."""
    seed = simple_fedavg.client_seed(self._seed, round_num, client_id)
    generator = np.random.default_rng([_DROPOUTS, *seed.view(np.uint64)])
    return generator.random(2) < self._dropout_rates


class SamplerSource(Source):
  """The cohorts of a sampler of `tff_ocs.cohorts`."""

  def __init__(
    self,
    task: task_lib.Task,
    seed: int,
    sampler: cohorts.CohortSampler,
    client_weights: Mapping[str, float],
    evaluate_loss: Callable[[Any, str], float],
  ):
    """Initializes `SamplerSource`.

    Args:
      task: The task with the pool.
      seed: The experiment's seed.
      sampler: The sampler.
      client_weights: The weight n_i of each client of the pool, by its id.
      evaluate_loss: A function from weights and a client's id to its mean loss
        at these weights.
    """
    super().__init__(task, seed)
    self._sampler = sampler
    self._client_weights = client_weights
    self._evaluate_loss = evaluate_loss
    self._cohort = None
    self._weight = float(sum(client_weights.values()))

  def draw(self, round_num, weights):
    candidates = self._sampler.candidates(round_num)
    losses = [self._evaluate_loss(weights, i) for i in candidates]
    cohort = self._sampler.sample(round_num, losses)
    self._cohort = cohort
    return self._round(
      round_num,
      cohort.client_ids,
      lambda place: {
        'scale': np.float32(cohort.scales[place]),
        'place': np.float32(place),
      },
      self._weight,
      candidates,
    )

  def observe(self, round_num, clients, rows):
    bits = communication.BITS_PER_SCALAR * len(clients.candidates)
    if not self._sampler.uses_norms:
      return bits
    norms = cohorts.read_norms(rows, self._cohort, self._client_weights)
    self._sampler.observe(round_num, clients.client_ids, norms)
    return bits + communication.BITS_PER_SCALAR * len(clients.client_ids)

  @property
  def state(self):
    return self._sampler.state

  def restore(self, state):
    self._sampler.restore(state)


def _check_sampler(name, sampler):
  """Raises a `UserCodeError` unless it is a sampler with a first cohort."""
  if not isinstance(sampler, cohorts.CohortSampler):
    raise user_code.UserCodeError(
      f'--cohort_sampler={name} must return a tff_ocs.cohorts.CohortSampler,'
      f' found {type(sampler).__name__}.'
    )
  try:
    if not sampler.candidates(0):
      sampler.sample(0)
  except Exception as error:  # The user's code may raise anything.
    raise user_code.UserCodeError(
      f'--cohort_sampler={name}: the first cohort:'
      f' {type(error).__name__}: {error}'
    ) from error


def build_sampler(
  name: str,
  client_weights: Mapping[str, float],
  *,
  clients_per_round: int,
  num_candidates: Optional[int],
  seed: int,
  total_rounds: int,
) -> cohorts.CohortSampler:
  """Builds the sampler that the flag --cohort_sampler names.

  Args:
    name: The value of the flag, but not 'none'. A function of the user's own is
      called with `client_weights`, `clients_per_round` and `seed`.
    client_weights: The weight n_i of each client of the pool, by its id.
    clients_per_round: The number of draws, or the expected number of clients.
    num_candidates: For 'power_of_choice'; if `None`, three times
      `clients_per_round`.
    seed: The experiment's seed.
    total_rounds: The number of rounds.

  Returns:
    The sampler.

  Raises:
    SettingError: If the pool is too small.
    UserCodeError: If a function of the user's own fails, or what it returns is
      no sampler that can draw a first cohort.
  """
  if user_code.is_reference(name):
    sampler = user_code.call(
      'cohort_sampler', name, client_weights, clients_per_round, seed
    )
    _check_sampler(name, sampler)
    return sampler
  classes = {
    'uniform': cohorts.UniformCohorts,
    'multinomial': cohorts.MultinomialCohorts,
    'clustered': cohorts.ClusteredCohorts,
    'osmd': cohorts.OsmdCohorts,
  }
  arguments = (client_weights, clients_per_round, seed)
  if name == 'kvib':
    return cohorts.KVibCohorts(*arguments, total_rounds)
  if name == 'power_of_choice':
    if num_candidates is None:
      num_candidates = 3 * clients_per_round
    try:
      return cohorts.PowerOfChoiceCohorts(*arguments, num_candidates)
    except ValueError as error:
      raise experiment_flags.SettingError(
        f'--num_candidates={num_candidates}: {error}'
      ) from error
  return classes[name](*arguments)
