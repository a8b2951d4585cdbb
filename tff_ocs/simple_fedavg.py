"""Federated Averaging and distributed SGD over any aggregation factory.

TFF's simple_fedavg example, extended by client sampling as in Algorithm 3 of
the paper. Clients train functionally: a client's examples travel as tensors and
a `tf.while_loop` walks over its batches, with no variable and no `tf.data` in
the client's graph.
"""

import collections
import contextlib
import numbers
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
from tff_ocs import schemes

# What a client counts: a built-in weighting of TFF, or a function of what the
# client knows after its local update, see `build_federated_averaging_process`.
ClientWeighting = Union[
  tff.learning.ClientWeighting, Callable[[Mapping[str, tf.Tensor]], tf.Tensor]
]


class ServerState(NamedTuple):
  """What the server keeps from round to round.

  Attributes:
    weights: The model's weights, a `tff.learning.models.ModelWeights`.
    aggregator: The state of the aggregation process.
  """

  weights: Any
  aggregator: Any


def build_federated_averaging_process(
  model: tff.learning.models.FunctionalModel,
  sampling: Union[
    schemes.SamplingScheme, tff.aggregators.WeightedAggregationFactory
  ],
  *,
  client_learning_rate: float,
  server_learning_rate: float = 1.0,
  client_epochs: int = 1,
  batch_size: int = 20,
  client_weighting: ClientWeighting = tff.learning.ClientWeighting.NUM_EXAMPLES,
  scalar_sum_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
  availability: bool = False,
  skips_silent_clients: bool = False,
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
      its coins, see `client_seed`;
  *   `availability`, with `availability=True` only: the probability q_i with
      which the client is available (float32, above 0 and at most 1).

  It returns the new state and an `OrderedDict` of metrics, at the server:

  *   `training_loss` (float32): the mean loss along the clients' SGD paths,
      over all examples of all clients of the cohort whose loss is finite, sent
      or not; NaN if there is none;
  *   `num_examples` (int64): of the whole cohort; as in the loss, clients that
      are not available, and so do not train, are left out;
  *   `aggregator`: the aggregation process' own measurements.

  Args:
    model: The model. Its loss is taken as a mean over the batch. Its
      non-trainable weights are not changed.
    sampling: A sampling scheme; or any TFF weighted aggregation factory.
      Clients' coins come from their `seed`, unless a factory that is not itself
      a `ClientSamplingFactory` is given, which has its own randomness; the
      `seed` of a `ClientSamplingFactory` has no use here.
    client_learning_rate: The clients' step size eta_l > 0.
    server_learning_rate: The server's step size eta_g > 0.
    client_epochs: How often a client walks over its examples.
    batch_size: The number of examples in a batch; the last may be smaller.
    client_weighting: The weights n_i: `NUM_EXAMPLES`, `UNIFORM` (1 each), or a
      function from what a client knows, an `OrderedDict` of the scalars
      `num_examples` (float32) and `loss` (float32, the mean along its SGD path,
      NaN if it has no examples), to a scalar of at least 0.
    scalar_sum_factory: Sums the clients' losses and numbers of examples
      (structures of float64) and, where `sampling` is a scheme, the scheme's
      scalars. If not specified, `tff.aggregators.SumFactory` is used.
    availability: Whether each client is available with a known probability
      only (Appendix D of the paper), see
      `tff_ocs.ClientSamplingFactory.create_with_availability`. Who is, depends
      on the clients' `seed` alone, so that methods under comparison share it.
      The aggregate is unbiased for that of the whole cohort: weights of clients
      that are not available count, so a function `client_weighting` is given no
      `loss`. If nobody is available, the server makes no step.
    skips_silent_clients: With `tff_ocs.UniformSampling` only, for simulations:
      whether clients that are not going to send, which is known before they
      train, are left untrained. The weights after each round are the same, bit
      for bit. But `training_loss`, `num_examples` and `non_finite_clients` are
      then of the clients that send alone (the loss is NaN if none does), and a
      function `client_weighting` is given no `loss`.

  Returns:
    A `tff.templates.IterativeProcess`; its state is a `ServerState`.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If an argument is out of range.
  """
  client_learning_rate = arguments.check_positive(
    'client_learning_rate', client_learning_rate
  )
  client_epochs = _check_positive_integer('client_epochs', client_epochs)
  batch_size = _check_positive_integer('batch_size', batch_size)

  def local_update(weights, examples, seed):
    return _sgd_epochs(
      model,
      weights,
      examples,
      seed,
      learning_rate=client_learning_rate,
      num_epochs=client_epochs,
      batch_size=batch_size,
    )

  return _build_process(
    model,
    sampling,
    local_update,
    server_learning_rate,
    client_weighting,
    scalar_sum_factory,
    availability,
    skips_silent_clients,
  )


def build_distributed_sgd_process(
  model: tff.learning.models.FunctionalModel,
  sampling: Union[
    schemes.SamplingScheme, tff.aggregators.WeightedAggregationFactory
  ],
  *,
  learning_rate: float,
  batch_size: Optional[int] = None,
  client_weighting: ClientWeighting = tff.learning.ClientWeighting.NUM_EXAMPLES,
  scalar_sum_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
  availability: bool = False,
  skips_silent_clients: bool = False,
) -> tff.templates.IterativeProcess:
  """Builds distributed SGD with client sampling, Eq. (2) of the paper.

  The update U_i of client i is one stochastic gradient of its local loss at the
  server's weights x, its weight n_i by default its number of examples, and the
  aggregate G of the updates gives the step x - eta G. Process, state, clients'
  data and metrics are those of `build_federated_averaging_process`;
  `training_loss` is the loss of the examples in the gradients.

  Args:
    model: The model. Its loss is taken as a mean over the batch.
    sampling: A sampling scheme; or any TFF weighted aggregation factory.
    learning_rate: The step size eta > 0.
    batch_size: How many of a client's examples, drawn without replacement, its
      gradient is of. With `None`, or on a client with fewer, of all.
    client_weighting: As for `build_federated_averaging_process`.
    scalar_sum_factory: As for `build_federated_averaging_process`.
    availability: Likewise.
    skips_silent_clients: Likewise.

  Returns:
    A `tff.templates.IterativeProcess`; its state is a `ServerState`.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If an argument is out of range.
  """
  if batch_size is not None:
    batch_size = _check_positive_integer('batch_size', batch_size)

  def local_update(weights, examples, seed):
    return _one_gradient(model, weights, examples, seed, batch_size)

  return _build_process(
    model,
    sampling,
    local_update,
    learning_rate,
    client_weighting,
    scalar_sum_factory,
    availability,
    skips_silent_clients,
  )


def client_seed(experiment_seed: int, round_num: int, client_id: str):
  """The seed of one client in one round.

  It is a function of these three alone, so that methods under comparison share
  the clients' shuffles and coins.

  Args:
    experiment_seed: The experiment's seed, an integer of at least 0.
    round_num: The round's number, an integer of at least 0.
    client_id: The client's id.

  Returns:
    An int64 array of shape [2].
  """
  # Each id's bytes are words of entropy, behind their number: no two clients'
  # sequences are equal.
  name = client_id.encode()
  sequence = np.random.SeedSequence(
    [experiment_seed, round_num, len(name), int.from_bytes(name, 'big')]
  )
  return sequence.generate_state(2, np.uint64).view(np.int64)


def availability_coin(seed):
  """The coin that decides whether a client is available.

  Args:
    seed: The client's seed in the round, an int64 tensor of shape [2].

  Returns:
    A float64 in [0, 1), independent of the client's shuffles and of the coin
    with which it sends. The client is available where it is below q_i.
  """
  return tf.random.stateless_uniform(
    [], tf.random.experimental.stateless_fold_in(seed, 1), dtype=tf.float64
  )


def _build_process(
  model,
  sampling,
  local_update,
  server_learning_rate,
  client_weighting,
  scalar_sum_factory,
  availability,
  skips_silent_clients,
):
  """Builds the process around `local_update(weights, examples, seed)`.

  Args:
    model: The model.
    sampling: A scheme or a weighted aggregation factory.
    local_update: Gives a client's (update, sum of losses, number of losses).
    server_learning_rate: The server's step size.
    client_weighting: As for the public functions.
    scalar_sum_factory: Likewise.
    availability: Likewise.
    skips_silent_clients: Likewise.

  Returns:
    A `tff.templates.IterativeProcess`.
  """
  if not isinstance(model, tff.learning.models.FunctionalModel):
    raise TypeError(
      'model must be a tff.learning.models.FunctionalModel, found'
      f' {type(model).__name__}; see'
      ' tff.learning.models.functional_model_from_keras.'
    )
  server_learning_rate = arguments.check_positive(
    'server_learning_rate', server_learning_rate
  )
  client_weight = _client_weight_fn(client_weighting)
  if isinstance(sampling, schemes.SamplingScheme):
    sampling = aggregator_lib.ClientSamplingFactory(
      sampling, scalar_sum_factory=scalar_sum_factory
    )
  elif not isinstance(sampling, tff.aggregators.WeightedAggregationFactory):
    raise TypeError(
      'sampling must be a tff_ocs.schemes.SamplingScheme or a'
      f' tff.aggregators.WeightedAggregationFactory, found {sampling!r}.'
    )
  if scalar_sum_factory is None:
    scalar_sum_factory = tff.aggregators.SumFactory()

  initial_weights = tff.learning.models.ModelWeights(*model.initial_weights)

  @tff.tensorflow.computation
  def initialize_weights():
    return tf.nest.map_structure(tf.constant, initial_weights)

  weights_type = initialize_weights.type_signature.result
  update_type = weights_type.trainable
  weight_type = tff.TensorType(np.float32)
  x_spec, y_spec = model.input_spec
  client_spec = collections.OrderedDict(
    x=x_spec, y=y_spec, seed=tf.TensorSpec([2], tf.int64)
  )
  if availability:
    client_spec['availability'] = tf.TensorSpec([], tf.float32)
  client_type = tff.types.tensorflow_to_type(client_spec)
  takes_coin_seeds = isinstance(sampling, aggregator_lib.ClientSamplingFactory)
  if availability and not takes_coin_seeds:
    raise TypeError(
      'availability=True needs, as sampling, a scheme or a'
      f' tff_ocs.ClientSamplingFactory, found {sampling!r}.'
    )
  if skips_silent_clients:
    _check_can_skip(sampling, availability)
  if availability:
    aggregator = sampling.create_with_availability(update_type, weight_type)
  elif takes_coin_seeds:
    aggregator = sampling.create_with_coin_seeds(update_type, weight_type)
  else:
    aggregator = sampling.create(update_type, weight_type)
  loss_type = tff.to_type(
    collections.OrderedDict(
      loss=np.float64, num_losses=np.float64, num_examples=np.float64
    )
  )
  loss_sum = scalar_sum_factory.create(loss_type)

  def update_client(weights, client, p=None):
    seed = tf.random.experimental.stateless_split(client['seed'], 2)
    x, y = client['x'], client['y']
    known = collections.OrderedDict(
      num_examples=tf.cast(_num_examples(y), tf.float32)
    )
    if availability:
      q = client['availability']
      available = availability_coin(client['seed']) < tf.cast(q, tf.float64)
      x, y = _none_unless(available, (x, y))
    if p is not None:
      sends = aggregator_lib.seeded_coin(seed[1]) < tf.cast(p, tf.float64)
      x, y = _none_unless(sends, (x, y))
    update, losses, num_losses = local_update(weights, (x, y), seed[0])
    finite = tf.math.is_finite(losses)
    num_examples = _num_examples(y)
    if not (availability or skips_silent_clients):
      known['loss'] = losses / num_losses
    result = collections.OrderedDict(
      update=update,
      weight=client_weight(known),
      coin_seed=seed[1],
      metrics=collections.OrderedDict(
        loss=tf.where(finite, tf.cast(losses, tf.float64), 0.0),
        num_losses=tf.where(finite, tf.cast(num_losses, tf.float64), 0.0),
        num_examples=tf.cast(num_examples, tf.float64),
      ),
    )
    if availability:
      result['availability'] = collections.OrderedDict(q=q, available=available)
    return result

  if skips_silent_clients:
    # Uniform sampling needs no norms, so that it can come before the training.
    early_scheme = sampling.scheme.build(scalar_sum_factory)

    @tff.tensorflow.computation(weights_type, client_type, np.float32)
    def client_update(weights, client, p):
      return update_client(weights, client, p)

  else:

    @tff.tensorflow.computation(weights_type, client_type)
    def client_update(weights, client):
      return update_client(weights, client)

  @tff.tensorflow.computation(
    weights_type, aggregator.next.type_signature.result.result.member
  )
  def server_update(weights, aggregate):
    return tff.learning.models.ModelWeights(
      tf.nest.map_structure(
        lambda w, u: w - tf.cast(server_learning_rate, w.dtype) * u,
        weights.trainable,
        aggregate,
      ),
      weights.non_trainable,
    )

  @tff.tensorflow.computation(loss_type)
  def finalize_metrics(sums):
    return collections.OrderedDict(
      training_loss=tf.cast(sums['loss'] / sums['num_losses'], tf.float32),
      num_examples=tf.cast(tf.round(sums['num_examples']), tf.int64),
    )

  @tff.tensorflow.computation(
    weights_type, aggregator.initialize.type_signature.result.member
  )
  def pack_state(weights, of_aggregator):
    return ServerState(weights, of_aggregator)

  @tff.federated_computation
  def initialize():
    return tff.federated_map(
      pack_state,
      (
        tff.federated_eval(initialize_weights, tff.SERVER),
        aggregator.initialize(),
      ),
    )

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(client_type, tff.CLIENTS),
  )
  def next_fn(state, clients):
    inputs = [tff.federated_broadcast(state.weights), clients]
    if skips_silent_clients:
      no_norms = tff.federated_map(_no_norm, clients['seed'])
      early = early_scheme.next(early_scheme.initialize(), no_norms)
      inputs.append(early.probabilities)
    output = tff.federated_map(client_update, tuple(inputs))
    inputs = [state.aggregator, output['update'], output['weight']]
    if takes_coin_seeds:
      inputs.append(output['coin_seed'])
    if availability:
      inputs.append(output['availability'])
    aggregate = aggregator.next(*inputs)
    weights = tff.federated_map(
      server_update, (state.weights, aggregate.result)
    )
    # Measurements of the loss' sum are of no interest, and its state is that of
    # a sum: it is not carried along.
    losses = loss_sum.next(loss_sum.initialize(), output['metrics'])
    metrics = tff.federated_map(finalize_metrics, losses.result)
    return (
      tff.federated_map(pack_state, (weights, aggregate.state)),
      tff.federated_zip(
        collections.OrderedDict(
          training_loss=metrics['training_loss'],
          num_examples=metrics['num_examples'],
          aggregator=aggregate.measurements,
        )
      ),
    )

  return tff.templates.IterativeProcess(initialize, next_fn)


def _check_can_skip(sampling, availability):
  """Checks that who sends is known before the training, and nothing is lost."""
  if not isinstance(getattr(sampling, 'scheme', None), schemes.UniformSampling):
    raise ValueError(
      'skips_silent_clients=True needs, as sampling, tff_ocs.UniformSampling or'
      ' a tff_ocs.ClientSamplingFactory with it, found'
      f' {getattr(sampling, "scheme", sampling)!r}: with others, who sends'
      ' depends on the updates.'
    )
  if sampling.measures_improvement:
    raise ValueError(
      'skips_silent_clients=True goes without improvement_expected_clients of'
      ' the ClientSamplingFactory: the improvement factors need the norms of'
      ' all updates.'
    )
  if availability:
    raise ValueError(
      'skips_silent_clients=True goes without availability=True.'
    )


@tff.tensorflow.computation(tff.TensorType(np.int64, [2]))
def _no_norm(seed):
  del seed
  return tf.constant(0.0)


def _none_unless(trains, examples):
  """No examples, with which a client's update is 0, unless `trains`."""
  return tf.nest.map_structure(
    lambda t: t[: tf.where(trains, tf.shape(t)[0], 0)], examples
  )


def _client_weight_fn(client_weighting):
  """A function from what a client knows to its weight, a float32 scalar."""
  if client_weighting is tff.learning.ClientWeighting.NUM_EXAMPLES:
    return lambda known: known['num_examples']
  if client_weighting is tff.learning.ClientWeighting.UNIFORM:
    return lambda known: tf.constant(1.0)
  if not callable(client_weighting):
    raise TypeError(
      'client_weighting must be a tff.learning.ClientWeighting or a function,'
      f' found {client_weighting!r}.'
    )

  def weight(known):
    try:
      result = client_weighting(known)
    except KeyError as error:
      raise ValueError(
        f'client_weighting must do with {", ".join(known)} of a client, found'
        f' that it asks for {error}.'
      ) from error
    result = tf.cast(result, tf.float32)
    if result.shape.rank != 0:
      raise TypeError(
        'client_weighting must return a scalar, found the shape'
        f' {result.shape}.'
      )
    return result

  return weight


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


def _sgd_epochs(
  model,
  weights,
  examples,
  seed,
  *,
  learning_rate: float,
  num_epochs: int,
  batch_size: int,
):
  """Lines 5 to 10 of Algorithm 3: U_i = x - y_i, and the losses on the way."""
  num_examples = _num_examples(examples[1])
  batches_per_epoch = (num_examples + batch_size - 1) // batch_size

  # All epochs' permutations at once: no condition inside of the loop.
  orders = tf.argsort(
    tf.random.stateless_uniform([num_epochs, num_examples], seed), axis=-1
  )

  def step(index, trainable, losses, num_losses):
    start = (index % batches_per_epoch) * batch_size
    chosen = orders[index // batches_per_epoch, start : start + batch_size]
    batch = tf.nest.map_structure(lambda t: tf.gather(t, chosen), examples)
    # The step size goes into the loss: one pass over the weights less than
    # multiplying the gradient.
    loss, step_vector = _batch_loss_and_gradient(
      model,
      tff.learning.models.ModelWeights(trainable, weights.non_trainable),
      batch,
      learning_rate,
    )
    count = tf.cast(tf.size(chosen), tf.float32)
    return (
      index + 1,
      tf.nest.map_structure(lambda w, g: w - g, trainable, step_vector),
      losses + count * tf.cast(loss, tf.float32),
      num_losses + count,
    )

  _, trainable, losses, num_losses = tf.while_loop(
    lambda index, *_: index < num_epochs * batches_per_epoch,
    step,
    (0, weights.trainable, 0.0, 0.0),
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


def _check_positive_integer(name: str, value: int) -> int:
  if isinstance(value, (bool, np.bool_)) or not isinstance(
    value, numbers.Integral
  ):
    raise TypeError(
      f'{name} must be an integer of at least 1, found {value!r} of type'
      f' {type(value).__name__}.'
    )
  if value < 1:
    raise ValueError(f'{name} must be at least 1, found {value!r}.')
  return int(value)
