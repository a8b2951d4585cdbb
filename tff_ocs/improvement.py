"""The improvement factors alpha^k and gamma^k of a round, from sums only.

alpha^k, Eq. (15) of the paper, is the variance of the aggregate under optimal
sampling over that under uniform sampling with the same m: 1 says that a problem
gains nothing by it, 0 that it is as good as full participation. gamma^k, Eq.
(16), is what the convergence bounds depend on.

With u = sum_i u_i, and s_i = u_i / u known to client i once u is broadcast,

    alpha^k = sum_i m (1 - p_i) / p_i s_i^2 / ((n - m) sum_i s_i^2).

Each term of the two sums lies in [0, 1], whatever the norms: p_i >= m s_i
unless p_i = 1. So they go with secure sums whose bounds are known.

Where not all clients are available, the factors are of those that are, as if
they were the cohort.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs import schemes


class ImprovementProgram(NamedTuple):
  """The computation of the factors as a part of a larger computation.

  Attributes:
    initialize: A computation without arguments that gives the state.
    next: A Python function from the federated values (state, norms,
      probabilities, and `available` as for the schemes) to the state and an
      `OrderedDict`, both at the server, of `improvement_factor` and
      `relative_improvement_factor` (float32) and `scalars_per_client` (int32),
      the scalars that each client sent for them; to be called while a federated
      computation is traced.
  """

  initialize: tff.Computation
  next: Callable[..., tuple[tff.Value, tff.Value]]


def build(
  expected_clients: float,
  scheme: schemes.SamplingScheme,
  scalar_sum_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> ImprovementProgram:
  """Builds the program.

  The optimal probabilities are those of the scheme itself, if it is OCS or AOCS
  with the same m. Else they are computed beside it, as AOCS does: then alpha^k
  is what AOCS would make of the round's updates.

  Args:
    expected_clients: m > 0.
    scheme: The scheme whose probabilities `next` is given.
    scalar_sum_factory: Sums the scalars, as for the schemes.

  Returns:
    An `ImprovementProgram`.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If `expected_clients` is out of range.
  """
  m = arguments.check_positive('expected_clients', expected_clients)
  if scalar_sum_factory is None:
    scalar_sum_factory = tff.aggregators.SumFactory()
  is_optimal = (
    isinstance(
      scheme, (schemes.OptimalSampling, schemes.ApproximateOptimalSampling)
    )
    and scheme.expected_clients == m
  )
  optimal = schemes.ApproximateOptimalSampling(m).build(scalar_sum_factory)
  terms_type = tff.to_type(
    collections.OrderedDict(variance=np.float64, square=np.float64)
  )
  totals_process = scalar_sum_factory.create(schemes.TOTALS_TYPE)
  terms_process = scalar_sum_factory.create(terms_type)

  @tff.tensorflow.computation(np.float64, np.float32, np.float64)
  def terms(norm, p, total):
    square = tf.math.divide_no_nan(norm, total) ** 2
    p = tf.cast(p, tf.float64)
    return collections.OrderedDict(
      # A client without a norm adds nothing, and has p = 0.
      variance=tf.math.divide_no_nan(m * (1.0 - p) * square, p),
      square=square,
    )

  @tff.tensorflow.computation(terms_type, np.float64, np.int32)
  def summarize(sums, num_clients, optimal_scalars):
    num_clients = tf.round(num_clients)
    capped_m = tf.minimum(tf.constant(m, tf.float64), num_clients)
    alpha = tf.math.divide_no_nan(
      sums['variance'], (num_clients - capped_m) * sums['square']
    )
    # Also where there is no client.
    gamma = tf.where(
      num_clients > capped_m, m / (alpha * (num_clients - m) + m), 1.0
    )
    return collections.OrderedDict(
      improvement_factor=tf.cast(alpha, tf.float32),
      relative_improvement_factor=tf.cast(gamma, tf.float32),
      # The norm and two terms, above what the probabilities took.
      scalars_per_client=optimal_scalars + 3,
    )

  @tff.federated_computation
  def init_fn():
    state = collections.OrderedDict(
      totals=totals_process.initialize(), terms=terms_process.initialize()
    )
    if not is_optimal:
      state['optimal'] = optimal.initialize()
    return tff.federated_zip(state)

  def next_fn(state, norms, probabilities, available=None):
    new_state = collections.OrderedDict()
    prepared = schemes.norms_and_ones(norms, available)
    totals = totals_process.next(state['totals'], prepared)
    scalars = tff.federated_value(np.int32(0), tff.SERVER)
    new_state['totals'] = totals.state
    if not is_optimal:
      output = optimal.next(state['optimal'], norms, available)
      probabilities, scalars = output.probabilities, output.scalars_per_client
    total = tff.federated_broadcast(totals.result['norm'])
    sums = terms_process.next(
      state['terms'],
      tff.federated_map(terms, (prepared['norm'], probabilities, total)),
    )
    new_state['terms'] = sums.state
    if not is_optimal:
      new_state['optimal'] = output.state
    return tff.federated_zip(new_state), tff.federated_map(
      summarize, (sums.result, totals.result['clients'], scalars)
    )

  return ImprovementProgram(init_fn, next_fn)
