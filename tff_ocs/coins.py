"""How a client tosses the coin that decides whether it sends its update.

A client sends where its coin, uniform in [0, 1), is below its probability p_i.
Coins are float64: a float32 coin has 2^23 sides, and would send clients with
p_i = 1e-10 about a thousand times too often.

A coin is an object with a state at the server, the inputs that it needs from
each client, and the toss itself. `tff_ocs.ClientSamplingFactory` chooses one in
each of its `create` methods.
"""

import abc
import collections
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import fingerprints

COIN_SEED_TYPE = tff.TensorType(np.int64, [2])
COST_TYPE = tff.TensorType(np.float32)
SCALE_TYPE = tff.TensorType(np.float32)
PLACE_TYPE = tff.TensorType(np.float32)
LOST_TYPE = tff.TensorType(np.bool_)
# The probability q_i with which a client is available, and whether it is.
AVAILABILITY_TYPE = tff.to_type(
  collections.OrderedDict(q=np.float32, available=np.bool_)
)


class Coin(abc.ABC):
  """A client's coin, whether the client is available, and what it costs.

  Attributes:
    input_types: The client-placed arguments that `next` of the aggregation
      process takes after the value and the weight, by name.
  """

  input_types: Mapping[str, tff.Type] = collections.OrderedDict()

  @property
  def known_types(self) -> Mapping[str, tff.Type]:
    """The types of what a client knows for the toss, by name."""
    return self.input_types

  def initialize(self) -> tff.Value:
    """Returns the first round's state, at `SERVER`."""
    return tff.federated_value((), tff.SERVER)

  def known(
    self, state: tff.Value, inputs: tff.Value
  ) -> Mapping[str, tff.Value]:
    """Returns what clients know for the toss, placed at `CLIENTS`, by name.

    Args:
      state: The state, at `SERVER`.
      inputs: A structure with the arguments of `input_types`.
    """
    del state
    return collections.OrderedDict(
      (name, inputs[name]) for name in self.input_types
    )

  def advance(self, state: tff.Value) -> tff.Value:
    """Returns the next round's state, at `SERVER`."""
    return state

  @abc.abstractmethod
  def toss(self, client: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns the coin.

    Args:
      client: The client's `value` and `weight`, and what it knows.

    Returns:
      A float64 scalar, uniform in [0, 1); 1 for a client that cannot send.
    """

  def availability(
    self, client: Mapping[str, tf.Tensor]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns q_i (float32) and whether the client is available (bool)."""
    del client
    return tf.constant(1.0), tf.constant(True)

  def cost(self, client: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns what it costs that the client sends (float32)."""
    del client
    return tf.constant(1.0)


class RandomCoin(Coin):
  """A truly random coin."""

  def toss(self, client):
    del client
    return tf.random.uniform([], dtype=tf.float64)


class FingerprintCoin(Coin):
  """A coin from a seed, the round, and all bits of the value and the weight.

  Clients with the same value and weight toss the same coin in a round.
  """

  def __init__(self, seed: int):
    """Initializes `FingerprintCoin`.

    Args:
      seed: An integer that fits into an int64.
    """
    self._seed = seed

  @property
  def known_types(self):
    return collections.OrderedDict(round=tff.TensorType(np.int64))

  def initialize(self):
    return tff.federated_value(np.int64(0), tff.SERVER)

  def known(self, state, inputs):
    del inputs
    return collections.OrderedDict(round=tff.federated_broadcast(state))

  def advance(self, state):
    return tff.federated_map(_add_one, state)

  def toss(self, client):
    seed = tf.stack([tf.constant(self._seed, tf.int64), client['round']])
    return seeded_toss(
      fingerprints.fold_in(seed, [client['value'], client['weight']])
    )


class SeededCoin(Coin):
  """A coin that is a function of a seed that each client brings."""

  input_types = collections.OrderedDict(coin_seed=COIN_SEED_TYPE)

  def toss(self, client):
    return seeded_toss(client['coin_seed'])


class SeededCoinWithAvailability(SeededCoin):
  """A seeded coin of clients that are available with known probabilities."""

  input_types = collections.OrderedDict(
    coin_seed=COIN_SEED_TYPE, availability=AVAILABILITY_TYPE
  )

  def availability(self, client):
    q = client['availability']['q']
    check = tf.debugging.Assert(
      tf.logical_and(q > 0, q <= 1),
      ['The probability q of being available must lie in (0, 1], found', q],
    )
    with tf.control_dependencies([check]):
      return tf.identity(q), client['availability']['available']


class SeededCoinWithCosts(SeededCoin):
  """A seeded coin of clients whose uplinks differ in cost."""

  input_types = collections.OrderedDict(
    coin_seed=COIN_SEED_TYPE, cost=COST_TYPE
  )

  def cost(self, client):
    return _check_positive('cost', client['cost'])


class SeededCoinWithScale(SeededCoin):
  """A seeded coin of clients that a cohort sampler has drawn.

  The scale s_i of a client multiplies its update, as 1 / q_i does where clients
  are available with the probability q_i.
  """

  input_types = collections.OrderedDict(
    coin_seed=COIN_SEED_TYPE, scale=SCALE_TYPE
  )

  def availability(self, client):
    return 1 / _check_positive('scale', client['scale']), tf.constant(True)


class SeededCoinWithDropouts(SeededCoin):
  """A seeded coin of clients that may be lost after they have reported."""

  input_types = collections.OrderedDict(
    coin_seed=COIN_SEED_TYPE, lost=LOST_TYPE
  )

  def toss(self, client):
    # No probability is above 1.
    never = tf.constant(1, tf.float64)
    return tf.where(client['lost'], never, super().toss(client))


class CoinWithPlace(Coin):
  """Any coin, of clients that know their number in the cohort."""

  def __init__(self, coin: Coin):
    """Initializes `CoinWithPlace`.

    Args:
      coin: The coin.
    """
    self._coin = coin

  @property
  def input_types(self):
    return collections.OrderedDict(self._coin.input_types, place=PLACE_TYPE)

  @property
  def known_types(self):
    return collections.OrderedDict(self._coin.known_types, place=PLACE_TYPE)

  def known(self, state, inputs):
    return collections.OrderedDict(
      self._coin.known(state, inputs), place=inputs['place']
    )

  def initialize(self):
    return self._coin.initialize()

  def advance(self, state):
    return self._coin.advance(state)

  def toss(self, client):
    return self._coin.toss(client)

  def availability(self, client):
    return self._coin.availability(client)

  def cost(self, client):
    return self._coin.cost(client)


def _check_positive(name: str, value: tf.Tensor) -> tf.Tensor:
  """Returns the value; a computation with any that is not positive fails."""
  check = tf.debugging.Assert(
    tf.logical_and(value > 0, tf.math.is_finite(value)),
    [f'The {name} of a client must be finite and above 0, found', value],
  )
  with tf.control_dependencies([check]):
    return tf.identity(value)


def seeded_toss(coin_seed: tf.Tensor) -> tf.Tensor:
  """Returns the coin of a seed.

  Args:
    coin_seed: An int64 tensor of shape [2].

  Returns:
    A float64 scalar in [0, 1).
  """
  return tf.random.stateless_uniform([], coin_seed, dtype=tf.float64)


@tff.tensorflow.computation(np.int64)
def _add_one(round_num):
  return round_num + 1
