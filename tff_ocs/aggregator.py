"""Any sampling scheme as a TFF aggregation factory.

`ClientSamplingFactory` stands where `tff.aggregators.MeanFactory` stands in a
`tff.learning` pipeline.
"""

import collections
import functools
from collections.abc import Mapping
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs import communication
from tff_ocs import fingerprints
from tff_ocs import improvement as improvement_lib
from tff_ocs import schemes
from tff_ocs import sum_of_senders

COIN_SEED_TYPE = tff.TensorType(np.int64, [2])
# The probability q_i with which a client is available, and whether it is.
AVAILABILITY_TYPE = tff.to_type(
  collections.OrderedDict(q=np.float32, available=np.bool_)
)


class ClientSamplingFactory(tff.aggregators.WeightedAggregationFactory):
  """Aggregation factory for the weighted mean over sampled clients.

  The created `tff.templates.AggregationProcess` computes, from the values U_i
  and the weights n_i placed at `CLIENTS`,

      sum_{i that send} (n_i / p_i) U_i / sum_{all i} n_i

  placed at `SERVER`: an unbiased estimator of the weighted mean (Eq. (2) of the
  paper with w_i = n_i / sum_j n_j). It is 0 where all weights are 0. The scheme
  computes p_i from the weighted norms n_i ||U_i||_2, in float32, and each
  client sends with probability p_i, independently of the others. Nothing that
  belongs to one client is placed at the server, except what the scheme itself
  needs there (only OCS does).

  A value with a NaN or infinite entry makes a non-finite client, and so does
  one of which n_i ||U_i||, or that divided by p_i, is beyond float32: its norm
  counts as 0, it is never sent (not even under full participation), its weight
  still counts in the denominator if it is finite, and `non_finite_clients`
  counts it. A norm below the range of float32, about 1e-38, counts as 0.
  Weights are at least 0. Of float16 values also (n_i / p_i) U_i must be within
  float16.

  The measurements are

  *   `cohort_size`, `participants` (clients that sent), `non_finite_clients`
      (int32),
  *   `expected_participants` (float32): the sum of p_i over the finite clients,
  *   `num_iterations` (int32): executed iterations of AOCS, else 0,
  *   `available` (int32), with `create_with_availability` only: the number of
      clients that were available; they alone count in all of the above but
      `cohort_size`,
  *   `uplink_bits` (int64): what the clients sent in this round, see
      `tff_ocs.communication`: an update counts as what `value_sum_factory`
      makes clients send,
  *   `improvement_factor`, `relative_improvement_factor` (float32), if asked
      for: alpha^k and gamma^k of Eq. (15) and (16), see `tff_ocs.improvement`;
      and `improvement_bits` (int64), what the clients sent for them in
      addition, which is no part of `uplink_bits`,
  *   `clipped`, where one of the sums is a `tff.aggregators.SecureSumFactory`:
      how often clients had something clipped to its bounds (int32), in
      `scalars`, so that probabilities are too large, in `values` and in
      `weights`, which biases the aggregate; see `tff_ocs.secure_sums`,
  *   `scheme`, `value_sum`, `weight_sum`, `scalar_sum`: measurements of the
      inner processes.

  ```
  tff.learning.algorithms.build_weighted_fed_avg(
      model_fn=...,
      client_optimizer_fn=...,
      model_aggregator=tff_ocs.ClientSamplingFactory(
          tff_ocs.ApproximateOptimalSampling(expected_clients=3)
      ),
  )
  ```
  """

  def __init__(
    self,
    scheme: schemes.SamplingScheme,
    *,
    value_sum_factory: Optional[
      tff.aggregators.UnweightedAggregationFactory
    ] = None,
    weight_sum_factory: Optional[
      tff.aggregators.UnweightedAggregationFactory
    ] = None,
    scalar_sum_factory: Optional[
      tff.aggregators.UnweightedAggregationFactory
    ] = None,
    seed: Optional[int] = None,
    improvement_expected_clients: Optional[float] = None,
  ):
    """Initializes `ClientSamplingFactory`.

    Args:
      scheme: The `tff_ocs.schemes.SamplingScheme`.
      value_sum_factory: Sums the scaled values (n_i / p_i) U_i; a client that
        does not send contributes exact zeros. If not specified, they are summed
        by a `federated_aggregate` that adds up those of the clients that send:
        with `tff.aggregators.SumFactory` the result is the same, but takes
        longer.
      weight_sum_factory: Sums the weights. If not specified,
        `tff.aggregators.SumFactory` is used, as for the next.
      scalar_sum_factory: Sums the scheme's scalars and the counts of the
        measurements, as structures of float64: the norms n_i ||U_i||, and
        numbers in [0, 1]. For secure sums there is
        `tff_ocs.secure_sums.SecureScalarSumFactory`.
      seed: If `None`, clients toss truly random coins. With an integer the
        coins are a function of this seed, of the round and of a fingerprint of
        the client's own value and weight, since a client knows nothing else:
        runs repeat exactly, but clients with the same value and weight, bit for
        bit, toss the same coin in a round. Each still sends with probability
        p_i, but together, so that the variance is larger than Eq. (6). Where
        the clients have identities, give each its own seed, with
        `create_with_coin_seeds`.
      improvement_expected_clients: If given, the improvement factors for this m
        are measured, whatever the scheme.

    Raises:
      TypeError: If an argument is not of its type.
      ValueError: If `seed` does not fit into an int64, or
        `improvement_expected_clients` is not a finite number above 0.
    """
    if not isinstance(scheme, schemes.SamplingScheme):
      raise TypeError(
        'scheme must be a tff_ocs.schemes.SamplingScheme, such as'
        f' ApproximateOptimalSampling(3), found {scheme!r}.'
      )
    self._scheme = scheme
    self._leaves_out_zeros = value_sum_factory is None
    self._value_sum_factory = arguments.check_sum_factory(
      'value_sum_factory', value_sum_factory
    )
    self._weight_sum_factory = arguments.check_sum_factory(
      'weight_sum_factory', weight_sum_factory
    )
    self._scalar_sum_factory = arguments.check_sum_factory(
      'scalar_sum_factory', scalar_sum_factory
    )
    self._seed = arguments.check_seed(seed)
    if improvement_expected_clients is not None:
      arguments.check_positive(
        'improvement_expected_clients', improvement_expected_clients
      )
    self._improvement_expected_clients = improvement_expected_clients

  @property
  def scheme(self) -> schemes.SamplingScheme:
    """The sampling scheme."""
    return self._scheme

  @property
  def measures_improvement(self) -> bool:
    """Whether the improvement factors are measured."""
    return self._improvement_expected_clients is not None

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates the process with `next(state, value, weight)`.

    Args:
      value_type: The type of the values: floating point tensors of defined
        shape, or a structure of them.
      weight_type: The type of the weights: a numeric scalar.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If a type is not as described.
      ValueError: If a tensor's shape is not fully defined.
    """
    if self._seed is None:
      return self._create(value_type, weight_type, _random_coin)

    return self._create(
      value_type,
      weight_type,
      functools.partial(_fingerprint_coin, self._seed),
      counts_rounds=True,
    )

  def create_with_coin_seeds(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates the process with `next(state, value, weight, coin_seed)`.

    The coin of a client is a function of its `coin_seed`, an int64 tensor of
    shape [2] placed at `CLIENTS`, alone. Different seeds give independent
    coins; schemes compared under the same seeds share the coins' randomness.

    Args:
      value_type: As in `create`.
      weight_type: As in `create`.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If a type is not as described.
      ValueError: If a tensor's shape is not fully defined.
    """
    return self._create(
      value_type, weight_type, _seeded_coin, takes_coin_seeds=True
    )

  def create_with_availability(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates `next(state, value, weight, coin_seed, availability)`.

    For cohorts of which not all clients are available (Appendix D of the
    paper). `availability` at `CLIENTS` is an `OrderedDict` of `q` (float32),
    the probability q_i > 0 with which the client is available, and `available`
    (bool), whether it is: by a coin of the caller's, independent of the value
    and of `coin_seed`. The result is

        sum_{i that send} n_i / (q_i p_i) U_i / sum_{all i} n_i,

    unbiased for the weighted mean over the whole cohort. The scheme computes
    p_i from n_i ||U_i|| / q_i, which minimises the variance given who is
    available, and counts the available clients alone. That is what is called
    the norm of a client elsewhere, also where it is beyond float32.

    A client that is not available is never sent, whatever its value, and sends
    no scalars. Its weight, which the server of the paper knows, counts. A
    computation with a `q` that is not above 0 and at most 1 fails.

    Args:
      value_type: As in `create`.
      weight_type: As in `create`.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If a type is not as described.
      ValueError: If a tensor's shape is not fully defined.
    """
    return self._create(
      value_type,
      weight_type,
      _seeded_coin,
      takes_coin_seeds=True,
      takes_availability=True,
    )

  def _create(
    self,
    value_type,
    weight_type,
    coin,
    *,
    counts_rounds=False,
    takes_coin_seeds=False,
    takes_availability=False,
  ):
    """Creates the process around a coin.

    Args:
      value_type: As in `create`.
      weight_type: As in `create`.
      coin: A function from what a client has, tensors by name, to a float64 in
        [0, 1).
      counts_rounds: Whether clients are told the number of the round.
      takes_coin_seeds: Whether clients have a coin_seed.
      takes_availability: Whether they have an availability, too.

    Returns:
      A `tff.templates.AggregationProcess`.
    """
    value_type, weight_type = tff.to_type(value_type), tff.to_type(weight_type)
    arguments.check_value_type(value_type)
    _check_weight_type(weight_type)
    scheme = self._scheme.build(self._scalar_sum_factory)
    value_sum = self._value_sum_factory.create(value_type)
    bits_per_update = communication.message_bits(value_sum.next)
    weight_sum = self._weight_sum_factory.create(weight_type)
    counts_type = _counts_type(takes_availability)
    # What clients' scalars are counted by.
    senders = 'available' if takes_availability else 'clients'
    scalar_sum = self._scalar_sum_factory.create(counts_type)
    improvement = None
    if self._improvement_expected_clients is not None:
      improvement = improvement_lib.build(
        self._improvement_expected_clients,
        self._scheme,
        self._scalar_sum_factory,
      )

    if takes_availability:

      @tff.tensorflow.computation(value_type, weight_type, AVAILABILITY_TYPE)
      def prepare(value, weight, availability):
        return collections.OrderedDict(
          norm=_norm_if_available(value, weight, availability),
          weight=_zero_if_not_finite(weight),
        )

    else:

      @tff.tensorflow.computation(value_type, weight_type)
      def prepare(value, weight):
        return collections.OrderedDict(
          norm=_weighted_norm(value, weight), weight=_zero_if_not_finite(weight)
        )

    client_type = collections.OrderedDict(
      value=value_type, weight=weight_type, norm=np.float32, p=np.float32
    )
    if counts_rounds:
      client_type['round'] = np.int64
    if takes_coin_seeds:
      client_type['coin_seed'] = COIN_SEED_TYPE
    if takes_availability:
      client_type['availability'] = AVAILABILITY_TYPE

    @tff.tensorflow.computation(tff.to_type(client_type))
    def toss(client):
      return _select(client, coin(client))

    sum_type = value_sum.next.type_signature.result.result.member

    @tff.tensorflow.computation(sum_type, weight_type)
    def divide(total, total_weight):
      return tf.nest.map_structure(
        lambda x: tf.math.divide_no_nan(x, tf.cast(total_weight, x.dtype)),
        total,
      )

    @tff.tensorflow.computation(counts_type, np.int32, np.int32)
    def summarize(counts, num_iterations, scalars_per_client):
      def whole(name):
        # Quantised secure sums give counts that are not whole.
        return tf.cast(tf.round(counts[name]), tf.int64)

      summary = collections.OrderedDict(
        cohort_size=tf.cast(whole('clients'), tf.int32),
        participants=tf.cast(whole('participants'), tf.int32),
        expected_participants=tf.cast(counts['probability'], tf.float32),
        num_iterations=num_iterations,
        non_finite_clients=tf.cast(whole('non_finite'), tf.int32),
        uplink_bits=communication.uplink_bits(
          participants=whole('participants'),
          bits_per_update=bits_per_update,
          cohort_size=whole(senders),
          scalars_per_client=tf.cast(scalars_per_client, tf.int64),
        ),
      )
      if takes_availability:
        summary['available'] = tf.cast(whole('available'), tf.int32)
      return summary

    @tff.federated_computation
    def init_fn():
      state = collections.OrderedDict(
        scheme=scheme.initialize(),
        value_sum=value_sum.initialize(),
        weight_sum=weight_sum.initialize(),
        scalar_sum=scalar_sum.initialize(),
      )
      if improvement is not None:
        state['improvement'] = improvement.initialize()
      if counts_rounds:
        state['round'] = tff.federated_value(np.int64(0), tff.SERVER)
      return tff.federated_zip(state)

    def next_body(state, value, weight, coin_seed=None, availability=None):
      if takes_availability:
        prepared = tff.federated_map(prepare, (value, weight, availability))
        available = availability['available']
      else:
        prepared = tff.federated_map(prepare, (value, weight))
        available = None
      scheme_output = scheme.next(state['scheme'], prepared['norm'], available)
      client = collections.OrderedDict(
        value=value,
        weight=weight,
        norm=prepared['norm'],
        p=scheme_output.probabilities,
      )
      if counts_rounds:
        client['round'] = tff.federated_broadcast(state['round'])
      if takes_coin_seeds:
        client['coin_seed'] = coin_seed
      if takes_availability:
        client['availability'] = availability
      sent, counts = tff.federated_map(toss, tff.federated_zip(client))
      if self._leaves_out_zeros:
        value_output = tff.templates.MeasuredProcessOutput(
          state['value_sum'],
          sum_of_senders.sum_of_senders(sent),
          tff.federated_value((), tff.SERVER),
        )
      else:
        value_output = value_sum.next(state['value_sum'], sent['value'])
      weight_output = weight_sum.next(state['weight_sum'], prepared['weight'])
      scalar_output = scalar_sum.next(state['scalar_sum'], counts)
      mean = tff.federated_map(
        divide, (value_output.result, weight_output.result)
      )
      new_state = collections.OrderedDict(
        scheme=scheme_output.state,
        value_sum=value_output.state,
        weight_sum=weight_output.state,
        scalar_sum=scalar_output.state,
      )
      if improvement is not None:
        new_state['improvement'], factors = improvement.next(
          state['improvement'],
          prepared['norm'],
          scheme_output.probabilities,
          available,
        )
      if counts_rounds:
        new_state['round'] = tff.federated_map(_add_one, state['round'])
      summary = tff.federated_map(
        summarize,
        (
          scalar_output.result,
          scheme_output.num_iterations,
          scheme_output.scalars_per_client,
        ),
      )
      measurements = collections.OrderedDict(
        (name, summary[name])
        for name in tff.structure.name_list(summary.type_signature.member)
      )
      if improvement is not None:
        measurements['improvement_factor'] = factors['improvement_factor']
        measurements['relative_improvement_factor'] = factors[
          'relative_improvement_factor'
        ]
        measurements['improvement_bits'] = tff.federated_map(
          _bits_of_scalars,
          (
            summary['available' if takes_availability else 'cohort_size'],
            factors['scalars_per_client'],
          ),
        )
      clipped = _count_clipped(
        scalars=tff.federated_zip(
          (scheme_output.scalar_sum, scalar_output.measurements)
        ),
        values=value_output.measurements,
        weights=weight_output.measurements,
      )
      if clipped is not None:
        measurements['clipped'] = clipped
      measurements.update(
        scheme=scheme_output.scalar_sum,
        value_sum=value_output.measurements,
        weight_sum=weight_output.measurements,
        scalar_sum=scalar_output.measurements,
      )
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(new_state), mean, tff.federated_zip(measurements)
      )

    state_type = init_fn.type_signature.result
    values_type = tff.FederatedType(value_type, tff.CLIENTS)
    weights_type = tff.FederatedType(weight_type, tff.CLIENTS)
    next_types = [state_type, values_type, weights_type]
    coin_seeds_type = tff.FederatedType(COIN_SEED_TYPE, tff.CLIENTS)
    if takes_availability:
      availability_type = tff.FederatedType(AVAILABILITY_TYPE, tff.CLIENTS)

      @tff.federated_computation(
        *next_types, coin_seeds_type, availability_type
      )
      def next_fn(state, value, weight, coin_seed, availability):
        return next_body(state, value, weight, coin_seed, availability)

    elif takes_coin_seeds:

      @tff.federated_computation(*next_types, coin_seeds_type)
      def next_fn(state, value, weight, coin_seed):
        return next_body(state, value, weight, coin_seed)

    else:

      @tff.federated_computation(*next_types)
      def next_fn(state, value, weight):
        return next_body(state, value, weight)

    return tff.templates.AggregationProcess(init_fn, next_fn)


def _counts_type(takes_availability):
  names = ['clients', 'participants', 'probability', 'non_finite']
  if takes_availability:
    names.append('available')
  return tff.to_type(
    collections.OrderedDict((name, np.float64) for name in names)
  )


# In the measurements of `tff.aggregators.SecureSumFactory`, also deep inside.
_CLIPPED_NAMES = ('secure_upper_clipped_count', 'secure_lower_clipped_count')


def _count_clipped(**measurements):
  """How often clients had something clipped, by kind of sum, at the server.

  Args:
    **measurements: For each kind the measurements of its sums, at the server.

  Returns:
    An `OrderedDict`, or `None` if none of the measurements counts it.
  """
  measurements = tff.federated_zip(collections.OrderedDict(measurements))
  type_spec = measurements.type_signature.member
  if not _find_clipped(type_spec):
    return None

  @tff.tensorflow.computation(type_spec)
  def count(measurements):
    return collections.OrderedDict(
      (kind, sum(_find_clipped(part), tf.constant(0)))
      for kind, part in measurements.items()
    )

  return tff.federated_map(count, measurements)


def _find_clipped(measurements) -> list:
  """The counts of clipped values in a structure, or in its type."""
  if isinstance(measurements, tff.StructType):
    parts = tff.structure.iter_elements(measurements)
  elif isinstance(measurements, Mapping):
    parts = measurements.items()
  elif isinstance(measurements, tuple):
    parts = [(None, part) for part in measurements]
  else:
    return []
  found = []
  for name, part in parts:
    found += [part] if name in _CLIPPED_NAMES else _find_clipped(part)
  return found


def _weighted_norm(value, weight):
  """n_i ||U_i||_2 over all tensors, float32; not finite where U_i is not."""

  def half_squares(dtype=None):
    # l2_loss is half the squared norm, without a temporary of the value's size.
    return tf.add_n(
      tf.cast(
        tf.nn.l2_loss(x if dtype is None else tf.cast(x, dtype)), tf.float64
      )
      for x in tf.nest.flatten(value)
    )

  # Squares leave the range of float32 long before norms do: then, and for NaN
  # and zeros, all is done again in float64.
  own_precision = half_squares()
  in_range = tf.logical_and(
    own_precision > 1e-20, tf.math.is_finite(own_precision)
  )
  half_square = tf.cond(
    in_range, lambda: own_precision, lambda: half_squares(tf.float64)
  )
  norm = tf.sqrt(2.0 * half_square)
  return tf.cast(tf.abs(tf.cast(weight, tf.float64)) * norm, tf.float32)


def _norm_if_available(value, weight, availability):
  """n_i ||U_i||_2 / q_i of a client that is available, else 0, float32."""
  q = availability['q']
  check = tf.debugging.Assert(
    tf.logical_and(q > 0, q <= 1),
    ['The probability q of being available must lie in (0, 1], found', q],
  )
  with tf.control_dependencies([check]):
    q = tf.identity(q)
  return tf.cond(
    availability['available'],
    lambda: _weighted_norm(value, weight) / q,
    lambda: tf.constant(0.0),
  )


def _zero_if_not_finite(weight):
  if not weight.dtype.is_floating:
    return weight
  return tf.where(tf.math.is_finite(weight), weight, tf.zeros_like(weight))


def _select(client, coin_value):
  """A client's contribution to the sum, whether it sends, and its counts."""
  value = client['value']
  p = tf.cast(client['p'], tf.float64)
  # Also what is sent, (n_i / p_i) U_i, must be finite.
  scaled_norm = tf.cast(
    tf.math.divide_no_nan(tf.cast(client['norm'], tf.float64), p), tf.float32
  )
  finite = tf.logical_and(
    tf.math.is_finite(client['norm']), tf.math.is_finite(scaled_norm)
  )
  sends = tf.logical_and(finite, coin_value < p)

  def scaled():
    scale = tf.cast(client['weight'], tf.float64) / p
    if 'availability' in client:
      scale /= tf.cast(client['availability']['q'], tf.float64)
    return tf.nest.map_structure(lambda x: x * tf.cast(scale, x.dtype), value)

  def zeros():
    # Constants: a client that does not send costs no memory traffic. And by
    # selection, since 0 x NaN is NaN.
    return tf.nest.map_structure(
      lambda x: tf.constant(0, x.dtype, shape=x.shape), value
    )

  counts = collections.OrderedDict(
    clients=tf.constant(1.0, tf.float64),
    participants=tf.cast(sends, tf.float64),
    probability=tf.where(finite, p, 0.0),
    non_finite=tf.cast(tf.logical_not(finite), tf.float64),
  )
  if 'availability' in client:
    counts['available'] = tf.cast(
      client['availability']['available'], tf.float64
    )
  sent = collections.OrderedDict(
    value=tf.cond(sends, scaled, zeros), sends=sends
  )
  return sent, counts


# The coins are float64: a float32 coin has 2^23 sides, and would send clients
# with p_i = 1e-10 about a thousand times too often.


def _random_coin(client):
  del client
  return tf.random.uniform([], dtype=tf.float64)


def seeded_coin(coin_seed):
  """The coin of `create_with_coin_seeds`: a client sends where it is below p_i.

  Args:
    coin_seed: An int64 tensor of shape [2].

  Returns:
    A float64 in [0, 1).
  """
  return tf.random.stateless_uniform([], coin_seed, dtype=tf.float64)


def _seeded_coin(client):
  return seeded_coin(client['coin_seed'])


def _fingerprint_coin(seed, client):
  """A coin from the seed, the round and all bits of the value and weight."""
  coin_seed = fingerprints.fold_in(
    tf.stack([tf.constant(seed, tf.int64), client['round']]),
    [client['value'], client['weight']],
  )
  return tf.random.stateless_uniform([], coin_seed, dtype=tf.float64)


@tff.tensorflow.computation(np.int32, np.int32)
def _bits_of_scalars(num_clients, scalars_per_client):
  return communication.uplink_bits(
    participants=0,
    bits_per_update=0,
    cohort_size=tf.cast(num_clients, tf.int64),
    scalars_per_client=tf.cast(scalars_per_client, tf.int64),
  )


@tff.tensorflow.computation(np.int64)
def _add_one(round_num):
  return round_num + 1


def _check_weight_type(weight_type):
  if not (
    isinstance(weight_type, tff.TensorType)
    and weight_type.shape is not None
    and tuple(weight_type.shape) == ()
    and np.issubdtype(weight_type.dtype, np.number)
    and not np.issubdtype(weight_type.dtype, np.complexfloating)
  ):
    raise TypeError(
      f'weight_type must be a real numeric scalar, found {weight_type}.'
    )
