"""Any sampling scheme as a TFF aggregation factory.

`ClientSamplingFactory` replaces `tff.aggregators.MeanFactory` in a
`tff.learning` pipeline.
"""

import collections
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs import coins
from tff_ocs import factory_arguments
from tff_ocs import measurements
from tff_ocs import schemes
from tff_ocs import sum_of_senders


class ClientSamplingFactory(tff.aggregators.WeightedAggregationFactory):
  """Aggregation factory for the weighted mean over sampled clients.

  The created `tff.templates.AggregationProcess` computes, from the values U_i
  and the weights n_i placed at `CLIENTS`,

      sum_{i that send} (n_i / p_i) U_i / sum_{all i} n_i

  placed at `SERVER`: an unbiased estimator of the weighted mean (Eq. (2) of the
  paper with w_i = n_i / sum_j n_j). It is 0 where all weights are 0. The scheme
  computes p_i from the weighted norms n_i ||U_i||_2, in float32, and each
  client sends with probability p_i, independently of the others. Nothing that
  belongs to one client is placed at the server, unless OCS, `measure_norms` or
  `reveal_clients` needs it there.

  A client counts as non-finite, and never sends, not even under full
  participation, if

  *   its value has a NaN or infinite entry,
  *   its weight is negative, NaN or infinite; such a weight counts as 0 in the
      denominator, whereas the weight of a client that only has a non-finite
      value counts as it is,
  *   its norm n_i ||U_i||, or that divided by p_i, is beyond float32, or
      n_i / p_i is beyond the type in which its value is summed.

  A norm below the range of float32, about 1e-38, counts as 0. Weights are
  summed in float64, integer weights in int64. Values narrower than float32 are
  scaled, sent and summed as float32, since n_i / p_i may take them out of their
  range. The mean is cast back; where it is beyond the range of their type, it
  is the end of this range.

  The measurements are

  *   `cohort_size`, `available`, `participants` (int32): the clients of the
      cohort; those that are available, see `create_with_availability`, which
      alone count in all that follows; and those that sent;
  *   `expected_participants` (float32): the sum of p_i over the finite clients;
  *   `num_iterations` (int32): the executed iterations of AOCS, otherwise 0;
  *   `non_finite_clients` (int32): see above;
  *   `invalid_probabilities` (int32): the clients whose probability, as the
      scheme computed it, was NaN or outside of [0, 1], and was replaced by the
      nearest number in it (NaN by 0), or was 0 despite a norm above 0. The
      aggregate of such a round is biased. The schemes of this package cause
      this only where p_i is below the range of float32, and
      `ThresholdSampling` in a first round whose threshold is not known;
  *   `uplink_bits` (int64): the bits that the clients sent in this round, see
      `tff_ocs.communication`;
  *   `improvement_factor`, `relative_improvement_factor` (float32), on request:
      alpha^k and gamma^k of Eq. (15) and (16), see `tff_ocs.improvement`, and
      `improvement_bits` (int64), the bits that the clients sent for them, which
      are no part of `uplink_bits`;
  *   `norms` (float32, shape [available]), on request: the norms n_i ||U_i|| of
      the available clients, 0 if not finite, in an order that means nothing;
  *   `clients` (float32, shape [cohort_size, 3]), on request: a row for each
      client, in any order, with its place in the cohort, its norm n_i ||U_i||
      (times its scale s_i with `create_for_pool`, see `cohorts.read_norms`) and
      1 if it sent, else 0;
  *   `clipped`, where one of the sums is a `tff.aggregators.SecureSumFactory`:
      how often clients had something clipped to its bounds (int32), in
      `scalars`, which makes probabilities too large, in `values` and in
      `weights`, which biases the aggregate; see `tff_ocs.secure_sums`;
  *   `scheme`, `value_sum`, `weight_sum`, `scalar_sum`: the measurements of the
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
    measure_norms: bool = False,
    reveal_clients: bool = False,
  ):
    """Initializes `ClientSamplingFactory`.

    Args:
      scheme: The `tff_ocs.schemes.SamplingScheme`.
      value_sum_factory: Sums the scaled values (n_i / p_i) U_i; a client that
        does not send contributes exact zeros. If not specified, the values of
        the clients that send are added up by a `federated_aggregate`; with
        `tff.aggregators.SumFactory` the result is the same, but takes longer.
      weight_sum_factory: Sums the weights, as float64 or, if they are integers,
        as int64. If not specified, `tff.aggregators.SumFactory` is used.
      scalar_sum_factory: Sums the scheme's scalars and the counts of the
        measurements, as structures of float64: the norms n_i ||U_i||, and
        numbers in [0, 1]. If not specified, `tff.aggregators.SumFactory` is
        used; for secure sums there is
        `tff_ocs.secure_sums.SecureScalarSumFactory`.
      seed: If `None`, clients toss truly random coins. With an integer the
        coins are a function of this seed, of the round and of a fingerprint of
        the client's own value and weight, since a client knows nothing else:
        runs repeat exactly, but clients with the same value and weight, bit for
        bit, toss the same coin in a round. Each still sends with probability
        p_i, but they send together, so that the variance is larger than Eq.
        (6). Where the clients have identities, give each its own seed, with
        `create_with_coin_seeds`.
      improvement_expected_clients: If given, the improvement factors for this m
        are measured, whatever the scheme. They need round trips of their own.
      measure_norms: Whether the clients' norms are measured, for simulations:
        the server sees all of them, as with OCS. `tff_ocs.probabilities`
        computes from them what another scheme would have done.
      reveal_clients: Whether the server sees, with names, each client's norm
        and whether it sent: for samplers of `tff_ocs.cohorts` that learn from
        norms, and for simulations. Then `next` takes one more argument, `place`
        (float32) at `CLIENTS`, the client's number in the cohort.

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
    if value_sum_factory is None:
      self._sent_sum_factory = sum_of_senders.SumOfSendersFactory()
    else:
      self._sent_sum_factory = sum_of_senders.SumOfValuesFactory(
        factory_arguments.check_sum_factory(
          'value_sum_factory', value_sum_factory
        )
      )
    self._weight_sum_factory = factory_arguments.check_sum_factory(
      'weight_sum_factory', weight_sum_factory
    )
    self._scalar_sum_factory = factory_arguments.check_sum_factory(
      'scalar_sum_factory', scalar_sum_factory
    )
    seed = arguments.check_seed(seed)
    self._coin = (
      coins.RandomCoin() if seed is None else coins.FingerprintCoin(seed)
    )
    if improvement_expected_clients is not None:
      improvement_expected_clients = arguments.check_positive(
        'improvement_expected_clients', improvement_expected_clients
      )
    self._improvement_expected_clients = improvement_expected_clients
    self._measure_norms = arguments.check_bool('measure_norms', measure_norms)
    self.reveals_clients = arguments.check_bool(
      'reveal_clients', reveal_clients
    )

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates the process with `next(state, value, weight)`.

    Args:
      value_type: The type of the values: floating point tensors of defined
        shape, or a structure of them.
      weight_type: The type of the weights: a real numeric scalar.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If a type is not as described.
      ValueError: If a tensor's shape is not fully defined.
    """
    return self._create(value_type, weight_type, self._coin)

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
    return self._create(value_type, weight_type, coins.SeededCoin())

  def create_with_availability(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates `next(state, value, weight, coin_seed, availability)`.

    For cohorts of which not all clients are available (Appendix E of the
    paper). `availability` at `CLIENTS` is an `OrderedDict` of `q` (float32),
    the probability q_i > 0 with which the client is available, and `available`
    (bool), whether it is: by a coin of the caller's, independent of the value
    and of `coin_seed`. The result is

        sum_{i that send} n_i / (q_i p_i) U_i / sum_{all i} n_i,

    unbiased for the weighted mean over the whole cohort. The scheme computes
    p_i from n_i ||U_i|| / q_i, which minimises the variance given the available
    clients, and n counts these alone. This quotient takes the place of the norm
    wherever a norm is mentioned, also where it is beyond float32.

    A client that is not available is never sent, whatever its value, and sends
    no scalars. Its weight, which the server is taken to know, counts. A
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
      value_type, weight_type, coins.SeededCoinWithAvailability()
    )

  def create_with_costs(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates `next(state, value, weight, coin_seed, cost)`.

    For clients whose uplinks differ in cost. `cost` (float32, above 0), at
    `CLIENTS`, is the cost c_i of sending the client's update, in seconds, money
    or energy, which the server knows. The scheme's `expected_clients` is the
    budget B in the same units: the least variance with sum_i c_i p_i <= B has
    p_i = min(1, u_i / (tau sqrt(c_i))), see docs/theory.md. With c_i = 1 for
    all clients the results are those of `create_with_coin_seeds`, bit for bit.
    A computation with a cost that is not finite or not above 0 fails.

    Args:
      value_type: As in `create`.
      weight_type: As in `create`.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If a type is not as described, or the scheme does not use
        costs.
      ValueError: If a tensor's shape is not fully defined, or if improvement
        factors are asked for, which compare with uniform sampling of m clients.
    """
    if self._improvement_expected_clients is not None:
      raise ValueError(
        'improvement_expected_clients cannot be combined with costs: the'
        ' improvement factors are those of m clients, not of a budget of costs.'
      )
    if not self._scheme.uses_costs:
      raise TypeError(
        'The costs of clients need a scheme that uses them: OptimalSampling,'
        ' ApproximateOptimalSampling or ThresholdSampling, found'
        f' {self._scheme!r}.'
      )
    return self._create(value_type, weight_type, coins.SeededCoinWithCosts())

  def create_with_dropouts(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Creates `next(state, value, weight, coin_seed, lost)`.

    For simulations of clients that are lost within a round. `lost` (bool), at
    `CLIENTS`, is whether the client is lost after it has reported its norm and
    its weight, and before it sends its update. It counts in the scheme's sums,
    in the denominator and in `expected_participants`, but never sends. Given
    the clients that are lost, the expected aggregate is

        sum_{i that are not lost} n_i U_i / sum_{all i} n_i.

    Clients that are lost before they report anything are not in the cohort. See
    docs/protocol.md.

    Args:
      value_type: As in `create`.
      weight_type: As in `create`.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If a type is not as described.
      ValueError: If a tensor's shape is not fully defined.
    """
    return self._create(value_type, weight_type, coins.SeededCoinWithDropouts())

  def create_for_pool(
    self, value_type: tff.Type, weight_type: tff.Type, pool_weight: float
  ) -> tff.templates.AggregationProcess:
    """Creates `next(state, value, weight, coin_seed, scale)`.

    For cohorts that a sampler of `tff_ocs.cohorts` has drawn from a pool.
    `scale` (float32, above 0), at `CLIENTS`, is the client's scale s_i in
    `tff_ocs.cohorts.Cohort`. The result is

        sum_{i that send} n_i s_i / p_i U_i / pool_weight,

    unbiased for the weighted mean over the whole pool if the sampler is. The
    scheme computes p_i from n_i s_i ||U_i||, which minimises the variance given
    the cohort. A computation with a scale that is not finite or not above 0
    fails.

    Args:
      value_type: As in `create`.
      weight_type: As in `create`.
      pool_weight: The sum of the weights n_i of all clients of the pool, above
        0.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      TypeError: If an argument is not as described.
      ValueError: If a tensor's shape is not fully defined, or `pool_weight` is
        out of range.
    """
    pool_weight = arguments.check_positive('pool_weight', pool_weight)
    coin = coins.SeededCoinWithScale()
    return self._create(value_type, weight_type, coin, pool_weight)

  def _create(
    self,
    value_type: tff.Type,
    weight_type: tff.Type,
    coin: coins.Coin,
    pool_weight: Optional[float] = None,
  ) -> tff.templates.AggregationProcess:
    """Creates the process around a coin.

    Args:
      value_type: As in `create`.
      weight_type: As in `create`.
      coin: The clients' coin.
      pool_weight: The divisor of the sum; if not given, the sum of the cohort's
        weights.

    Returns:
      A `tff.templates.AggregationProcess`.
    """
    if self.reveals_clients:
      coin = coins.CoinWithPlace(coin)
    value_type, weight_type = tff.to_type(value_type), tff.to_type(weight_type)
    factory_arguments.check_value_type(value_type)
    factory_arguments.check_weight_type(weight_type)
    prepare, send, sent_type = _client_computations(
      value_type, weight_type, coin
    )

    # Inner processes.
    scheme = self._scheme.build(self._scalar_sum_factory)
    value_sum = self._sent_sum_factory.create(sent_type)
    weight_sum = self._weight_sum_factory.create(
      prepare.type_signature.result['weight']
    )
    report = measurements.build(
      scheme=self._scheme,
      scalar_sum_factory=self._scalar_sum_factory,
      bits_per_update=self._sent_sum_factory.bits_per_update(sent_type),
      improvement_expected_clients=self._improvement_expected_clients,
      measure_norms=self._measure_norms,
    )
    divide = _division(value_sum, weight_sum, value_type, pool_weight)

    @tff.federated_computation
    def init_fn():
      return tff.federated_zip(
        collections.OrderedDict(
          scheme=scheme.initialize(),
          coin=coin.initialize(),
          value_sum=value_sum.initialize(),
          weight_sum=weight_sum.initialize(),
          report=report.initialize(),
        )
      )

    arguments_type = _arguments_type(init_fn, value_type, weight_type, coin)

    # One argument for all, since TFF has no *args; `next` is called with each.
    @tff.federated_computation(arguments_type)
    def next_fn(given):
      # Client computations.
      state = given['state']
      client = tff.federated_zip(
        collections.OrderedDict(
          value=given['value'],
          weight=given['weight'],
          **coin.known(state['coin'], given),
        )
      )
      prepared = tff.federated_map(prepare, client)
      of_scheme = scheme.next(state['scheme'], prepared['for_scheme'])
      sent, counts = tff.federated_map(
        send, (client, prepared, of_scheme.probabilities)
      )

      # Inner aggregations.
      values = value_sum.next(state['value_sum'], sent)
      weights = weight_sum.next(state['weight_sum'], prepared['weight'])

      # Server computation.
      mean = tff.federated_map(divide, (values.result, weights.result))

      # Output preparation.
      report_state, measured = report.next(
        state['report'],
        counts,
        prepared['for_scheme'],
        of_scheme,
        values.measurements,
        weights.measurements,
      )
      if self.reveals_clients:
        measured['clients'] = schemes.collect(
          tff.federated_map(_reveal(send), (client, prepared, sent)),
          'place',
          'norm',
          'sends',
        )
      new_state = collections.OrderedDict(
        scheme=of_scheme.state,
        coin=coin.advance(state['coin']),
        value_sum=values.state,
        weight_sum=weights.state,
        report=report_state,
      )
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(new_state), mean, tff.federated_zip(measured)
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)


def _arguments_type(init_fn, value_type, weight_type, coin: coins.Coin):
  """Returns the type of the arguments of `next`, by name."""
  arguments_type = collections.OrderedDict(
    state=init_fn.type_signature.result,
    value=tff.FederatedType(value_type, tff.CLIENTS),
    weight=tff.FederatedType(weight_type, tff.CLIENTS),
  )
  for name, input_type in coin.input_types.items():
    arguments_type[name] = tff.FederatedType(input_type, tff.CLIENTS)
  return tff.to_type(arguments_type)


def _client_computations(value_type, weight_type, coin: coins.Coin):
  """Returns the computations of a client, before and after the scheme.

  Args:
    value_type: The type of the values.
    weight_type: The type of the weights.
    coin: The clients' coin.

  Returns:
    `prepare`, from a client to what it knows before it has a probability;
    `send`, from that and the probability to what it contributes to the sum of
    values and to the counts; and the type of the former contribution.
  """
  client_type = tff.to_type(
    collections.OrderedDict(
      value=value_type, weight=weight_type, **coin.known_types
    )
  )
  sum_type = tff.types.structure_from_tensor_type_tree(
    lambda t: tff.TensorType(_sum_dtype(t.dtype), t.shape), value_type
  )
  sent_type = sum_of_senders.sent_type(sum_type)

  @tff.tensorflow.computation(client_type)
  def prepare(client):
    weight, has_valid_weight = _wide_weight(client['weight'])
    q, available = coin.availability(client)
    norm = _weighted_norm(client['value'], weight) / q
    finite = tf.logical_and(has_valid_weight, tf.math.is_finite(norm))
    return collections.OrderedDict(
      for_scheme=collections.OrderedDict(
        norm=tf.where(tf.logical_and(finite, available), norm, 0.0),
        available=available,
        cost=coin.cost(client),
      ),
      finite=finite,
      weight=weight,
      q=q,
    )

  @tff.tensorflow.computation(
    client_type, prepare.type_signature.result, np.float32
  )
  def send(client, prepared, p_as_computed):
    norm = prepared['for_scheme']['norm']
    available = prepared['for_scheme']['available']
    p = _valid_probability(p_as_computed)
    # The message (n_i / p_i) U_i must be finite, too.
    scaled_norm = tf.cast(
      tf.math.divide_no_nan(tf.cast(norm, tf.float64), p), tf.float32
    )
    # And the factor itself, in the type in which it multiplies.
    scale = tf.math.divide_no_nan(tf.cast(prepared['weight'], tf.float64), p)
    scale /= tf.cast(prepared['q'], tf.float64)
    finite = tf.reduce_all(
      [prepared['finite'], tf.math.is_finite(scaled_norm)]
      + [
        tf.math.is_finite(tf.cast(scale, _sum_dtype(x.dtype)))
        for x in tf.nest.flatten(client['value'])
      ]
    )
    sends = tf.logical_and(
      tf.logical_and(finite, available), coin.toss(client) < p
    )
    contribution = collections.OrderedDict(
      value=_scaled_if(sends, scale, client['value']),
      sends=sends,
    )
    return contribution, measurements.count_client(
      available=available,
      finite=finite,
      sends=sends,
      norm=norm,
      p=p,
      p_as_computed=p_as_computed,
    )

  return prepare, send, sent_type


def _reveal(send):
  """Returns the computation of what `reveal_clients` reveals of a client."""
  parameter, result = send.type_signature.parameter, send.type_signature.result

  @tff.tensorflow.computation(parameter[0], parameter[1], result[0])
  def reveal(client, prepared, contribution):
    return collections.OrderedDict(
      place=client['place'],
      norm=prepared['for_scheme']['norm'],
      sends=tf.cast(contribution['sends'], tf.float32),
      available=tf.constant(True),
    )

  return reveal


def _division(value_sum, weight_sum, value_type, pool_weight):
  """Returns the computation that divides the sums, and casts once."""
  dtypes = tf.nest.flatten(
    tff.types.structure_from_tensor_type_tree(
      lambda t: tf.as_dtype(t.dtype), value_type
    )
  )

  @tff.tensorflow.computation(
    value_sum.next.type_signature.result.result.member,
    weight_sum.next.type_signature.result.result.member,
  )
  def divide(total, total_weight):
    # In float64: the total weight may be beyond the type of the values.
    total_weight = tf.cast(total_weight, tf.float64)
    if pool_weight is not None:
      total_weight = tf.constant(pool_weight, tf.float64)
    means = []
    for x, dtype in zip(tf.nest.flatten(total), dtypes):
      mean = tf.math.divide_no_nan(tf.cast(x, tf.float64), total_weight)
      if dtype.size < tf.float32.size:
        # If few clients send, their scaled mean can be beyond the range.
        mean = tf.clip_by_value(mean, float(dtype.min), float(dtype.max))
      means.append(tf.cast(mean, dtype))
    return tf.nest.pack_sequence_as(total, means)

  return divide


def _wide_weight(weight):
  """Returns a weight in the type in which weights are summed.

  Args:
    weight: A scalar of a real numeric type.

  Returns:
    The weight as float64, or as int64 if it is an integer, or 0 if it is not
    valid; and whether it is valid: finite and at least 0.
  """
  if weight.dtype.is_floating or weight.dtype == tf.uint64:
    wide = tf.cast(weight, tf.float64)
  else:
    wide = tf.cast(weight, tf.int64)
  valid = wide >= 0
  if wide.dtype.is_floating:
    valid = tf.logical_and(valid, tf.math.is_finite(wide))
  return tf.where(valid, wide, tf.zeros_like(wide)), valid


def _weighted_norm(value, weight):
  """Returns n_i ||U_i||_2 over all tensors, float32."""

  def half_squares(dtype_of):
    # l2_loss is half the squared norm, without a temporary of the value's size.
    return tf.add_n(
      tf.cast(tf.nn.l2_loss(tf.cast(x, dtype_of(x.dtype))), tf.float64)
      for x in tf.nest.flatten(value)
    )

  # Squares leave the range of float32 long before norms do: then, and for NaN
  # and zeros, all is done again in float64.
  sum_precision = half_squares(_sum_dtype)
  in_range = tf.logical_and(
    sum_precision > 1e-20, tf.math.is_finite(sum_precision)
  )
  half_square = tf.cond(
    in_range,
    lambda: sum_precision,
    lambda: half_squares(lambda dtype: tf.float64),
  )
  norm = tf.sqrt(2.0 * half_square)
  return tf.cast(tf.cast(weight, tf.float64) * norm, tf.float32)


def _valid_probability(p):
  """Returns the nearest float64 in [0, 1]; 0 for NaN."""
  p = tf.where(tf.math.is_nan(p), tf.zeros_like(p), p)
  return tf.cast(tf.clip_by_value(p, 0.0, 1.0), tf.float64)


def _scaled_if(sends, scale, value):
  """Returns `scale` times the value, or exact zeros, as wide as sums are."""

  def scaled():
    return tf.nest.map_structure(
      lambda x: (
        tf.cast(x, _sum_dtype(x.dtype)) * tf.cast(scale, _sum_dtype(x.dtype))
      ),
      value,
    )

  def zeros():
    # Constants: a client that does not send costs no memory traffic. And by
    # selection, since 0 x NaN is NaN.
    return tf.nest.map_structure(
      lambda x: tf.constant(0, _sum_dtype(x.dtype), shape=x.shape), value
    )

  return tf.cond(sends, scaled, zeros)


def _sum_dtype(dtype):
  """Returns the type in which values are scaled and summed."""
  return np.result_type(tf.as_dtype(dtype).as_numpy_dtype, np.float32)
