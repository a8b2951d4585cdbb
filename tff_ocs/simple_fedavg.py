"""Federated Averaging and distributed SGD over any aggregation factory.

This module extends the `simple_fedavg` example of TensorFlow Federated
(Apache-2.0) by client sampling, as in Algorithm 3 of the paper. Clients train
functionally: a client's examples travel as tensors and a `tf.while_loop` walks
over its batches, with no variable and no `tf.data` in the client's graph.
"""

import collections
import contextlib
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import aggregator as aggregator_lib
from tff_ocs import arguments
from tff_ocs import coins
from tff_ocs import factory_arguments
from tff_ocs import schemes

# The weight of a client: a built-in weighting of TFF, or a function of what the
# client knows after its local update, see `build_federated_averaging_process`.
ClientWeighting = Union[
  tff.learning.ClientWeighting, Callable[[Mapping[str, tf.Tensor]], tf.Tensor]
]


class ServerState(NamedTuple):
  """The server's state from round to round.

  Attributes:
    weights: The model's weights, a `tff.learning.models.ModelWeights`.
    aggregator: The state of the aggregation process.
    optimizer: The state of the server's optimizer.
  """

  weights: Any
  aggregator: Any
  optimizer: Any


def build_federated_averaging_process(
  model: tff.learning.models.FunctionalModel,
  sampling: Union[
    schemes.SamplingScheme, tff.aggregators.WeightedAggregationFactory
  ],
  *,
  client_learning_rate: Optional[float] = None,
  client_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
  server_learning_rate: Optional[float] = None,
  server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
  client_epochs: int = 1,
  batch_size: int = 20,
  client_weighting: ClientWeighting = tff.learning.ClientWeighting.NUM_EXAMPLES,
  scalar_sum_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
  availability: bool = False,
  client_costs: bool = False,
  dropouts: bool = False,
  pool_weight: Optional[float] = None,
) -> tff.templates.IterativeProcess:
  """Builds Federated Averaging with client sampling (Algorithm 3).

  Each client i of the cohort runs `client_epochs` epochs of SGD with step size
  eta_l over its shuffled examples, from the server's weights x to y_i, and has
  the update U_i = x - y_i with the weight n_i, by default its number of
  examples. The aggregate D of the updates gives the server's step x - eta_g D.

  `next` of the process takes the state and a list with one entry for each
  client of the cohort, an `OrderedDict` of

  *   `x`, `y`: the client's examples, as `model.input_spec` says, with the
      number of examples, which may be 0, as the first dimension;
  *   `seed`: an int64 array of shape [2] that decides the client's shuffles and
      its coins, see `tff_ocs.simple_fedavg.client_seed`;
  *   `availability`, with `availability=True` only: the probability q_i with
      which the client is available (float32, above 0 and at most 1).
  *   `cost`, with `client_costs=True` only: the cost c_i of sending its update
      (float32, above 0);
  *   `lost`, with `dropouts=True` only: whether it is lost between the report
      of its norm and its update (bool);
  *   `scale`, with `pool_weight` only: its scale s_i (float32, above 0);
  *   `place`, only if `sampling` is a `ClientSamplingFactory` with
      `reveal_clients=True`: its number in the cohort, from 0 (float32).

  It returns the new state and an `OrderedDict` of metrics, at `SERVER`:

  *   `training_loss` (float32): the mean loss along the clients' SGD paths,
      over all examples of all clients of the cohort whose loss is finite, sent
      or not; NaN if there are none. Clients that are not available do not
      train, and are left out;
  *   `num_examples` (int64): the examples of the clients that train;
  *   `aggregator`: the measurements of the aggregation process.

  Args:
    model: The model. Its loss is taken as a mean over the batch. Its
      non-trainable weights are not changed.
    sampling: A sampling scheme, or any TFF weighted aggregation factory.
      Clients' coins come from their `seed`, unless a factory that is not itself
      a `ClientSamplingFactory` is given, which has its own randomness; the
      `seed` of a `ClientSamplingFactory` has no effect here.
    client_learning_rate: The clients' step size eta_l > 0, for SGD.
    client_optimizer: The clients' optimizer, in the place of
      `client_learning_rate`: exactly one of the two must be given. Its state
      starts anew at each client and in each round.
    server_learning_rate: The server's step size eta_g > 0, for SGD.
    server_optimizer: The server's optimizer, which takes D as the gradient, in
      the place of `server_learning_rate`. If neither is given, the server's
      step size is 1.
    client_epochs: The number of times that a client walks over its examples.
    batch_size: The number of examples in a batch; the last may be smaller.
    client_weighting: The weights n_i: `NUM_EXAMPLES`, `UNIFORM` (1 each), or a
      function from what a client knows, an `OrderedDict` of the scalars
      `num_examples` (float32) and `loss` (float32, the mean along its SGD path,
      NaN if it has no examples), to a scalar of at least 0.
    scalar_sum_factory: Sums the clients' losses and numbers of examples
      (structures of float64) and, where `sampling` is a scheme, the scheme's
      scalars. If not specified, `tff.aggregators.SumFactory` is used.
    availability: Whether each client is available with a known probability
      only (Appendix E of the paper), see
      `tff_ocs.ClientSamplingFactory.create_with_availability`. Who is available
      depends on the clients' `seed` alone, so that methods under comparison
      share it. The aggregate is unbiased for that of the whole cohort: weights
      of clients that are not available count, so a function `client_weighting`
      is given no `loss`. If no client is available, the aggregate is 0.
    client_costs: Whether clients' uplinks differ in cost, see
      `tff_ocs.ClientSamplingFactory.create_with_costs`.
    dropouts: Whether clients may be lost after they have reported their norms,
      in simulations, see `tff_ocs.ClientSamplingFactory.create_with_dropouts`.
    pool_weight: If a sampler of `tff_ocs.cohorts` draws the cohorts: the sum of
      the weights n_i of all clients of the pool, see
      `tff_ocs.ClientSamplingFactory.create_for_pool`. A function
      `client_weighting` is given no `loss`. At most one of `availability`,
      `client_costs`, `dropouts` and `pool_weight` can be given.

  Returns:
    A `tff.templates.IterativeProcess`; its state is a `ServerState`.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If an argument is out of range.
  """
  optimizer_of_clients = _choose_optimizer(
    client_learning_rate=client_learning_rate, client_optimizer=client_optimizer
  )
  if server_learning_rate is None and server_optimizer is None:
    server_learning_rate = 1.0
  client_epochs = arguments.check_integer('client_epochs', client_epochs)
  batch_size = arguments.check_integer('batch_size', batch_size)

  def local_update(weights, examples, seed):
    return _train_locally(
      model,
      optimizer_of_clients,
      weights,
      examples,
      seed,
      num_epochs=client_epochs,
      batch_size=batch_size,
    )

  return _build_process(
    model,
    local_update,
    _choose_aggregation(
      sampling,
      scalar_sum_factory,
      availability=availability,
      client_costs=client_costs,
      dropouts=dropouts,
      pool_weight=pool_weight,
    ),
    _choose_optimizer(
      server_learning_rate=server_learning_rate,
      server_optimizer=server_optimizer,
    ),
    client_weighting,
    scalar_sum_factory,
  )


def build_distributed_sgd_process(
  model: tff.learning.models.FunctionalModel,
  sampling: Union[
    schemes.SamplingScheme, tff.aggregators.WeightedAggregationFactory
  ],
  *,
  learning_rate: Optional[float] = None,
  optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
  batch_size: Optional[int] = None,
  client_weighting: ClientWeighting = tff.learning.ClientWeighting.NUM_EXAMPLES,
  scalar_sum_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
  availability: bool = False,
) -> tff.templates.IterativeProcess:
  """Builds distributed SGD with client sampling, Eq. (2) of the paper.

  The update U_i of client i is one stochastic gradient of its local loss at the
  server's weights x. Its weight n_i is by default its number of examples. The
  server takes the step x - eta G, where G is the aggregate of the updates. The
  process, its state, the clients' data and the metrics are those of
  `build_federated_averaging_process`, except that `training_loss` is the loss
  of the examples in the gradients.

  Args:
    model: The model. Its loss is taken as a mean over the batch.
    sampling: As for `build_federated_averaging_process`.
    learning_rate: The step size eta > 0, for SGD.
    optimizer: The server's optimizer, which takes G as the gradient, in the
      place of `learning_rate`: exactly one of the two must be given.
    batch_size: The number of a client's examples, drawn without replacement, of
      which its gradient is computed. With `None`, or on a client with fewer
      examples, all of them are used.
    client_weighting: As for `build_federated_averaging_process`.
    scalar_sum_factory: As for `build_federated_averaging_process`.
    availability: As for `build_federated_averaging_process`.

  Returns:
    A `tff.templates.IterativeProcess`; its state is a `ServerState`.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If an argument is out of range.
  """
  if batch_size is not None:
    batch_size = arguments.check_integer('batch_size', batch_size)

  def local_update(weights, examples, seed):
    return _one_gradient(model, weights, examples, seed, batch_size)

  return _build_process(
    model,
    local_update,
    _choose_aggregation(
      sampling, scalar_sum_factory, availability=availability
    ),
    _choose_optimizer(learning_rate=learning_rate, optimizer=optimizer),
    client_weighting,
    scalar_sum_factory,
  )


def client_seed(
  experiment_seed: int, round_num: int, client_id: str
) -> np.ndarray:
  """Returns the seed of one client in one round.

  It is a function of these three alone, so that methods under comparison share
  the clients' shuffles and coins.

  Args:
    experiment_seed: The experiment's seed, an integer of at least 0.
    round_num: The round's number, an integer of at least 0.
    client_id: The client's id.

  Returns:
    An int64 array of shape [2].

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If `experiment_seed` or `round_num` is negative.
  """
  experiment_seed = arguments.check_integer(
    'experiment_seed', experiment_seed, 0
  )
  round_num = arguments.check_integer('round_num', round_num, 0)
  if not isinstance(client_id, str):
    raise TypeError(f'client_id must be a string, found {client_id!r}.')
  # Each id's bytes are words of entropy, behind their number: no two clients'
  # sequences are equal.
  name = client_id.encode()
  sequence = np.random.SeedSequence(
    [experiment_seed, round_num, len(name), int.from_bytes(name, 'big')]
  )
  return sequence.generate_state(2, np.uint64).view(np.int64)


def availability_coin(seed):
  """Returns the coin that decides whether a client is available.

  Args:
    seed: The client's seed in the round, an int64 tensor of shape [2].

  Returns:
    A float64 in [0, 1), independent of the client's shuffles and of the coin
    with which it sends. The client is available where it is below q_i.
  """
  return coins.seeded_toss(tf.random.experimental.stateless_fold_in(seed, 1))


# How the clients' updates are aggregated.

_WEIGHT_TYPE = tff.TensorType(np.float32)


class _Aggregation:
  """Any weighted aggregation factory, with a randomness of its own.

  Attributes:
    factory: The factory.
    client_spec: The part of a client's data that the aggregation needs.
    input_types: The arguments of the process after the weight, by name.
    weight_may_depend_on_loss: Whether it may.
  """

  client_spec: Mapping[str, tf.TensorSpec] = collections.OrderedDict()
  input_types: Mapping[str, tff.Type] = collections.OrderedDict()
  weight_may_depend_on_loss = True

  def __init__(self, factory: tff.aggregators.WeightedAggregationFactory):
    self.factory = factory

  def create(self, update_type):
    """Creates the `tff.templates.AggregationProcess`."""
    return self.factory.create(update_type, _WEIGHT_TYPE)

  def trains(self, client):
    """Returns whether the client trains in this round."""
    del client
    return tf.constant(True)

  def inputs(self, client, coin_seed):
    """Returns a client's arguments of the process after the weight."""
    del client, coin_seed
    return collections.OrderedDict()


class _SeededAggregation(_Aggregation):
  """A `ClientSamplingFactory` whose coins come from the clients' seeds."""

  input_types = coins.SeededCoin.input_types

  def create(self, update_type):
    return self.factory.create_with_coin_seeds(update_type, _WEIGHT_TYPE)

  def inputs(self, client, coin_seed):
    del client
    return collections.OrderedDict(coin_seed=coin_seed)


class _AggregationWithAvailability(_Aggregation):
  """The same, for clients that are available with known probabilities."""

  client_spec = collections.OrderedDict(
    availability=tf.TensorSpec([], tf.float32)
  )
  input_types = coins.SeededCoinWithAvailability.input_types
  # The weights of clients that do not train count, too.
  weight_may_depend_on_loss = False

  def create(self, update_type):
    return self.factory.create_with_availability(update_type, _WEIGHT_TYPE)

  def trains(self, client):
    q = tf.cast(client['availability'], tf.float64)
    return availability_coin(client['seed']) < q

  def inputs(self, client, coin_seed):
    return collections.OrderedDict(
      coin_seed=coin_seed,
      availability=collections.OrderedDict(
        q=client['availability'], available=self.trains(client)
      ),
    )


class _AggregationWithCosts(_SeededAggregation):
  """The same as `_SeededAggregation`, for clients with costs."""

  client_spec = collections.OrderedDict(cost=tf.TensorSpec([], tf.float32))
  input_types = coins.SeededCoinWithCosts.input_types

  def create(self, update_type):
    return self.factory.create_with_costs(update_type, _WEIGHT_TYPE)

  def inputs(self, client, coin_seed):
    return collections.OrderedDict(coin_seed=coin_seed, cost=client['cost'])


class _AggregationWithDropouts(_SeededAggregation):
  """The same, for clients that may be lost after they have reported."""

  client_spec = collections.OrderedDict(lost=tf.TensorSpec([], tf.bool))
  input_types = coins.SeededCoinWithDropouts.input_types

  def create(self, update_type):
    return self.factory.create_with_dropouts(update_type, _WEIGHT_TYPE)

  def inputs(self, client, coin_seed):
    return collections.OrderedDict(coin_seed=coin_seed, lost=client['lost'])


class _AggregationForPool(_SeededAggregation):
  """The same, for clients that a cohort sampler has drawn from a pool."""

  client_spec = collections.OrderedDict(scale=tf.TensorSpec([], tf.float32))
  input_types = coins.SeededCoinWithScale.input_types
  # The weights of clients that were not drawn count, too.
  weight_may_depend_on_loss = False

  def __init__(self, factory, pool_weight):
    super().__init__(factory)
    self._pool_weight = pool_weight

  def create(self, update_type):
    return self.factory.create_for_pool(
      update_type, _WEIGHT_TYPE, self._pool_weight
    )

  def inputs(self, client, coin_seed):
    return collections.OrderedDict(coin_seed=coin_seed, scale=client['scale'])


class _AggregationWithPlaces(_Aggregation):
  """Any of these, for clients that know their number in the cohort."""

  def __init__(self, aggregation):
    super().__init__(aggregation.factory)
    self._aggregation = aggregation
    self.client_spec = collections.OrderedDict(
      aggregation.client_spec, place=tf.TensorSpec([], tf.float32)
    )
    self.input_types = collections.OrderedDict(
      aggregation.input_types, place=coins.PLACE_TYPE
    )
    self.weight_may_depend_on_loss = aggregation.weight_may_depend_on_loss

  def create(self, update_type):
    return self._aggregation.create(update_type)

  def trains(self, client):
    return self._aggregation.trains(client)

  def inputs(self, client, coin_seed):
    return collections.OrderedDict(
      self._aggregation.inputs(client, coin_seed), place=client['place']
    )


def _choose_aggregation(
  sampling,
  scalar_sum_factory,
  *,
  availability=False,
  client_costs=False,
  dropouts=False,
  pool_weight=None,
):
  """Returns the `_Aggregation` that the arguments of a builder ask for."""
  # The probabilities and costs themselves are parts of the clients' data.
  given = {
    'availability=True': arguments.check_bool('availability', availability),
    'client_costs=True': arguments.check_bool('client_costs', client_costs),
    'dropouts=True': arguments.check_bool('dropouts', dropouts),
    'pool_weight': pool_weight is not None,
  }
  given = [name for name, is_given in given.items() if is_given]
  if len(given) > 1:
    raise ValueError(f'{given[0]} and {given[1]} cannot be combined.')
  if isinstance(sampling, schemes.SamplingScheme):
    sampling = aggregator_lib.ClientSamplingFactory(
      sampling, scalar_sum_factory=scalar_sum_factory
    )
  elif not isinstance(sampling, tff.aggregators.WeightedAggregationFactory):
    raise TypeError(
      'sampling must be a tff_ocs.schemes.SamplingScheme or a'
      f' tff.aggregators.WeightedAggregationFactory, found {sampling!r}.'
    )
  if isinstance(sampling, aggregator_lib.ClientSamplingFactory):
    aggregation = _SeededAggregation(sampling)
    if availability:
      aggregation = _AggregationWithAvailability(sampling)
    if client_costs:
      aggregation = _AggregationWithCosts(sampling)
    if dropouts:
      aggregation = _AggregationWithDropouts(sampling)
    if pool_weight is not None:
      aggregation = _AggregationForPool(sampling, pool_weight)
    if sampling.reveals_clients:
      aggregation = _AggregationWithPlaces(aggregation)
    return aggregation
  if given:
    raise TypeError(
      f'{given[0]} needs, as sampling, a scheme or a'
      f' tff_ocs.ClientSamplingFactory, found {sampling!r}.'
    )
  return _Aggregation(sampling)


# Optimizers.


class _Sgd:
  """Plain SGD, with its step size as a factor of the loss.

  The gradient of the scaled loss is the step: one pass over the weights less
  than with a gradient that is scaled, on clients that are bound by memory.

  Attributes:
    loss_scale: The factor of the loss.
  """

  def __init__(self, learning_rate: float):
    self.loss_scale = learning_rate

  def initialize(self, weights):
    del weights
    return ()

  def next(self, state, weights, gradient):
    return state, tf.nest.map_structure(
      lambda w, step: w - step, weights, gradient
    )


class _AnyOptimizer:
  """A `tff.learning.optimizers.Optimizer`; attributes as of `_Sgd`."""

  loss_scale = 1.0

  def __init__(self, optimizer: tff.learning.optimizers.Optimizer):
    self._optimizer = optimizer

  def initialize(self, weights):
    return tf.nest.map_structure(
      tf.convert_to_tensor,
      self._optimizer.initialize(
        tf.nest.map_structure(
          lambda w: tf.TensorSpec(w.shape, w.dtype), weights
        )
      ),
    )

  def next(self, state, weights, gradient):
    return self._optimizer.next(state, weights, gradient)


def _choose_optimizer(**given):
  """Returns the optimizer for a step size or a TFF optimizer.

  Args:
    **given: The arguments of a builder, a step size and an optimizer, by their
      names; exactly one must not be `None`.

  Returns:
    An `_Sgd` or an `_AnyOptimizer`.
  """
  (rate_name, learning_rate), (optimizer_name, optimizer) = given.items()
  if (learning_rate is None) == (optimizer is None):
    raise ValueError(
      f'Exactly one of {rate_name} and {optimizer_name} must be given, found'
      f' {learning_rate!r} and {optimizer!r}.'
    )
  if optimizer is None:
    return _Sgd(arguments.check_positive(rate_name, learning_rate))
  if not isinstance(optimizer, tff.learning.optimizers.Optimizer):
    raise TypeError(
      f'{optimizer_name} must be a tff.learning.optimizers.Optimizer, found'
      f' {optimizer!r}. A step size for SGD is {rate_name}.'
    )
  return _AnyOptimizer(optimizer)


# The process.


def _build_process(
  model: tff.learning.models.FunctionalModel,
  local_update,
  aggregation: _Aggregation,
  server_optimizer,
  client_weighting: ClientWeighting,
  scalar_sum_factory,
) -> tff.templates.IterativeProcess:
  """Builds the process around a client's work.

  Args:
    model: The model.
    local_update: A function from (weights, examples, seed) to a client's
      update, the sum of its losses and their number.
    aggregation: The aggregation of the updates.
    server_optimizer: An `_Sgd` or `_AnyOptimizer`.
    client_weighting: As for the public functions.
    scalar_sum_factory: As for the public functions.

  Returns:
    A `tff.templates.IterativeProcess`.
  """
  initialize_weights = _weights_computation(model)
  weights_type = initialize_weights.type_signature.result
  aggregator = aggregation.create(weights_type.trainable)
  loss_sum = factory_arguments.check_sum_factory(
    'scalar_sum_factory', scalar_sum_factory
  ).create(schemes.scalars_type('loss', 'num_losses', 'num_examples'))
  state_type = loss_sum.initialize.type_signature.result.member
  if tf.nest.flatten(tff.types.type_to_tf_tensor_specs(state_type)):
    raise ValueError(
      'scalar_sum_factory must not have a state, such as bounds that are'
      f' adapted, found one of type {state_type.compact_representation()}: it'
      ' also sums the losses, and their bounds would stay as they are at first.'
      ' Give it to ClientSamplingFactory alone, and here one with fixed bounds.'
    )
  client_update = _client_computation(
    model,
    weights_type,
    local_update,
    aggregation,
    _client_weight_fn(client_weighting, aggregation.weight_may_depend_on_loss),
  )
  initialize_optimizer, server_update = _server_computations(
    server_optimizer,
    weights_type,
    aggregator.next.type_signature.result.result.member,
  )

  @tff.tensorflow.computation(
    weights_type,
    aggregator.initialize.type_signature.result.member,
    initialize_optimizer.type_signature.result,
  )
  def pack_state(weights, of_aggregator, of_optimizer):
    return ServerState(weights, of_aggregator, of_optimizer)

  @tff.federated_computation
  def initialize():
    return tff.federated_map(
      pack_state,
      (
        tff.federated_eval(initialize_weights, tff.SERVER),
        aggregator.initialize(),
        tff.federated_eval(initialize_optimizer, tff.SERVER),
      ),
    )

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(
      client_update.type_signature.parameter['client'], tff.CLIENTS
    ),
  )
  def next_fn(state, clients):
    # Client computation.
    of_clients = tff.federated_map(
      client_update, (tff.federated_broadcast(state.weights), clients)
    )

    # Aggregation.
    aggregate = aggregator.next(
      state.aggregator,
      of_clients['update'],
      of_clients['weight'],
      *(of_clients[name] for name in aggregation.input_types),
    )
    # The sum has no state.
    losses = loss_sum.next(loss_sum.initialize(), of_clients['losses'])

    # Server computation.
    optimizer_state, weights = tff.federated_map(
      server_update, (state.optimizer, state.weights, aggregate.result)
    )

    # Output preparation.
    metrics = tff.federated_map(_finalize_losses, losses.result)
    return (
      tff.federated_map(
        pack_state, (weights, aggregate.state, optimizer_state)
      ),
      tff.federated_zip(
        collections.OrderedDict(
          training_loss=metrics['training_loss'],
          num_examples=metrics['num_examples'],
          aggregator=aggregate.measurements,
        )
      ),
    )

  return tff.templates.IterativeProcess(initialize, next_fn)


def _weights_computation(model):
  """Returns the computation of the model's initial weights."""
  if not isinstance(model, tff.learning.models.FunctionalModel):
    raise TypeError(
      'model must be a tff.learning.models.FunctionalModel, found'
      f' {type(model).__name__}; see'
      ' tff.learning.models.functional_model_from_keras.'
    )
  weights = tff.learning.models.ModelWeights(*model.initial_weights)

  @tff.tensorflow.computation
  def initialize_weights():
    return tf.nest.map_structure(tf.constant, weights)

  return initialize_weights


def _client_computation(
  model,
  weights_type,
  local_update,
  aggregation: _Aggregation,
  client_weight,
):
  """Returns the computation of a client's round, from weights and its data."""
  x_spec, y_spec = model.input_spec
  client_type = tff.types.tensorflow_to_type(
    collections.OrderedDict(
      x=x_spec,
      y=y_spec,
      seed=tf.TensorSpec([2], tf.int64),
      **aggregation.client_spec,
    )
  )

  @tff.tensorflow.computation(weights_type, client_type)
  def client_update(weights, client):
    shuffle_seed, coin_seed = tf.unstack(
      tf.random.experimental.stateless_split(client['seed'], 2)
    )
    examples = _none_unless(
      aggregation.trains(client), (client['x'], client['y'])
    )
    update, losses, num_losses = local_update(weights, examples, shuffle_seed)
    is_finite = tf.math.is_finite(losses)
    return collections.OrderedDict(
      update=update,
      weight=client_weight(_num_examples(client['y']), losses / num_losses),
      losses=collections.OrderedDict(
        loss=tf.where(is_finite, tf.cast(losses, tf.float64), 0.0),
        num_losses=tf.where(is_finite, tf.cast(num_losses, tf.float64), 0.0),
        num_examples=tf.cast(_num_examples(examples[1]), tf.float64),
      ),
      **aggregation.inputs(client, coin_seed),
    )

  return client_update


def _server_computations(optimizer, weights_type, aggregate_type):
  """Returns the computations of the optimizer's first state, and of a step."""

  @tff.tensorflow.computation
  def initialize_optimizer():
    return optimizer.initialize(
      tff.types.type_to_tf_tensor_specs(weights_type.trainable)
    )

  @tff.tensorflow.computation(
    initialize_optimizer.type_signature.result, weights_type, aggregate_type
  )
  def server_update(state, weights, aggregate):
    step = tf.nest.map_structure(
      lambda u: tf.cast(optimizer.loss_scale, u.dtype) * u, aggregate
    )
    state, trainable = optimizer.next(state, weights.trainable, step)
    return state, tff.learning.models.ModelWeights(
      trainable, weights.non_trainable
    )

  return initialize_optimizer, server_update


@tff.tensorflow.computation(
  schemes.scalars_type('loss', 'num_losses', 'num_examples')
)
def _finalize_losses(sums):
  return collections.OrderedDict(
    training_loss=tf.cast(sums['loss'] / sums['num_losses'], tf.float32),
    num_examples=tf.cast(tf.round(sums['num_examples']), tf.int64),
  )


def _none_unless(trains, examples):
  """Returns no examples, with which a client's update is 0, unless `trains`."""
  return tf.nest.map_structure(
    lambda t: t[: tf.where(trains, tf.shape(t)[0], 0)], examples
  )


def _client_weight_fn(client_weighting, may_depend_on_loss):
  """Returns a function from (num_examples, loss) to a weight, float32."""
  if client_weighting is tff.learning.ClientWeighting.NUM_EXAMPLES:
    return lambda num_examples, loss: tf.cast(num_examples, tf.float32)
  if client_weighting is tff.learning.ClientWeighting.UNIFORM:
    return lambda num_examples, loss: tf.constant(1.0)
  if not callable(client_weighting):
    raise TypeError(
      'client_weighting must be a tff.learning.ClientWeighting or a function,'
      f' found {client_weighting!r}.'
    )

  def weight(num_examples, loss):
    known = collections.OrderedDict(
      num_examples=tf.cast(num_examples, tf.float32)
    )
    if may_depend_on_loss:
      known['loss'] = loss
    try:
      result = client_weighting(known)
    except KeyError as error:
      raise ValueError(
        f'client_weighting is given {", ".join(known)} of a client, found that'
        f' it asks for {error}.'
      ) from error
    result = tf.cast(result, tf.float32)
    if result.shape.rank != 0:
      raise TypeError(
        'client_weighting must return a scalar, found the shape'
        f' {result.shape}.'
      )
    return result

  return weight


# A client's work.


def _num_examples(y):
  return tf.shape(tf.nest.flatten(y)[0])[0]


@contextlib.contextmanager
def _inlined_functions():
  """Traces the `tf.function`s that are called into the calling graph.

  TFF's worker does not optimise a function that is called within a loop; the
  model's is, in each step.
  """
  before = tf.config.functions_run_eagerly()
  tf.config.run_functions_eagerly(True)
  try:
    yield
  finally:
    tf.config.run_functions_eagerly(before)


def _predict_and_loss(model, weights, batch):
  """The model's loss on a batch, traced into the calling graph if possible."""
  x, y = batch
  weights = (weights.trainable, weights.non_trainable)
  try:
    with _inlined_functions():
      return model.loss(model.predict_on_batch(weights, x, training=True), y)
  except TypeError:
    # Python control flow on tensors needs AutoGraph, which inlining goes past.
    return model.loss(model.predict_on_batch(weights, x, training=True), y)


def _batch_loss_and_gradient(model, weights, batch, scale):
  """The batch's mean loss, and the gradient of `scale` x that loss."""
  with tf.GradientTape() as tape:
    tape.watch(weights.trainable)
    loss = _predict_and_loss(model, weights, batch)
    scaled_loss = scale * loss
  return loss, tape.gradient(
    scaled_loss, weights.trainable, unconnected_gradients='zero'
  )


def _train_locally(
  model, optimizer, weights, examples, seed, *, num_epochs: int, batch_size: int
):
  """Lines 5 to 10 of Algorithm 3: U_i = x - y_i, and the losses on the way."""
  num_examples = _num_examples(examples[1])
  batches_per_epoch = (num_examples + batch_size - 1) // batch_size

  # The permutations of all epochs at once: no condition inside the loop.
  orders = tf.argsort(
    tf.random.stateless_uniform([num_epochs, num_examples], seed), axis=-1
  )

  def step(index, state, trainable, losses, num_losses):
    start = (index % batches_per_epoch) * batch_size
    chosen = orders[index // batches_per_epoch, start : start + batch_size]
    batch = tf.nest.map_structure(lambda t: tf.gather(t, chosen), examples)
    loss, gradient = _batch_loss_and_gradient(
      model,
      tff.learning.models.ModelWeights(trainable, weights.non_trainable),
      batch,
      optimizer.loss_scale,
    )
    state, trainable = optimizer.next(state, trainable, gradient)
    count = tf.cast(tf.size(chosen), tf.float32)
    return (
      index + 1,
      state,
      trainable,
      losses + count * tf.cast(loss, tf.float32),
      num_losses + count,
    )

  *_, trainable, losses, num_losses = tf.while_loop(
    lambda index, *_: index < num_epochs * batches_per_epoch,
    step,
    (0, optimizer.initialize(weights.trainable), weights.trainable, 0.0, 0.0),
    # Steps depend on each other; more only costs memory.
    parallel_iterations=1,
  )
  update = tf.nest.map_structure(
    lambda x, y: x - y, weights.trainable, trainable
  )
  return update, losses, num_losses


def _one_gradient(model, weights, examples, seed, batch_size: Optional[int]):
  """U_i = g_i of Eq. (2), and its examples' losses; zeros without examples."""
  num_examples = _num_examples(examples[1])
  if batch_size is not None:
    order = tf.argsort(tf.random.stateless_uniform([num_examples], seed))
    chosen = order[:batch_size]
    examples = tf.nest.map_structure(lambda t: tf.gather(t, chosen), examples)
    num_examples = _num_examples(examples[1])

  def gradient():
    loss, vector = _batch_loss_and_gradient(model, weights, examples, 1.0)
    count = tf.cast(num_examples, tf.float32)
    return vector, count * tf.cast(loss, tf.float32), count

  def nothing():
    zeros = tf.nest.map_structure(tf.zeros_like, weights.trainable)
    return zeros, tf.constant(0.0), tf.constant(0.0)

  return tf.cond(num_examples > 0, gradient, nothing)
