"""The improvement factors alpha^k and gamma^k of a round, from sums only.

alpha^k, Eq. (15) of the paper, is the variance of the aggregate under optimal
sampling over that under uniform sampling with the same m: 0 is as good as full
participation, 1 no better than uniform sampling. gamma^k, Eq. (16), is the
quantity on which the convergence bounds depend. Both are measured given the
round's updates; the expectations of Eq. (15) also average over the noise of the
clients' gradients.

With u = sum_i u_i, and s_i = u_i / u known to client i once u is broadcast,

    alpha^k = sum_i m (1 - p_i) / p_i s_i^2 / ((n - m) sum_i s_i^2).

Each term of the two sums lies in [0, 1], whatever the norms: p_i >= m s_i
unless p_i = 1. So secure sums with these bounds clip nothing.

AOCS that is stopped before its probabilities sum to m can be worse than uniform
sampling. Its alpha^k is then above 1, and gamma^k below m / n: 2.2 for n = 100,
m = 95, 50 norms of 1 / 75 and 50 of 1 / 150, and no iteration at all.

Where not all clients are available, the factors are those of the available
clients, as if they were the cohort.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import communication
from tff_ocs import schemes


class ImprovementProgram(NamedTuple):
  """The computation of the factors as a part of a larger computation.

  Attributes:
    initialize: A computation without arguments that returns the state.
    next: A Python function from the federated values (state, clients,
      probabilities), as of a scheme, to the state and an `OrderedDict`, both at
      `SERVER`, of `improvement_factor` and `relative_improvement_factor`
      (float32) and `improvement_bits` (int64), the bits that all clients sent
      for them; to be called while a federated computation is traced.
  """

  initialize: tff.Computation
  next: Callable[[tff.Value, tff.Value, tff.Value], tuple[tff.Value, tff.Value]]


def build(
  expected_clients: float,
  scheme: schemes.SamplingScheme,
  scalar_sum_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
) -> ImprovementProgram:
  """Builds the program.

  The optimal probabilities are those of the scheme itself, if it is OCS or AOCS
  with the same m. Otherwise they are computed in addition, by AOCS: alpha^k is
  then what AOCS would have made of the round's updates.

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
  is_optimal = (
    isinstance(
      scheme, (schemes.OptimalSampling, schemes.ApproximateOptimalSampling)
    )
    and scheme.expected_clients == expected_clients
  )
  aocs = schemes.ApproximateOptimalSampling(expected_clients).build(
    scalar_sum_factory
  )
  totals_sum = schemes.create_scalar_sum(scalar_sum_factory, 'norm', 'clients')
  terms_sum = schemes.create_scalar_sum(
    scalar_sum_factory, 'variance', 'square'
  )
  terms, summarize = _factor_computations(expected_clients)

  @tff.federated_computation
  def init_fn():
    return tff.federated_zip(
      collections.OrderedDict(
        aocs=aocs.initialize(),
        totals=totals_sum.initialize(),
        terms=terms_sum.initialize(),
      )
    )

  def next_fn(state, clients, probabilities):
    scalars = tff.federated_value(np.int32(0), tff.SERVER)
    aocs_state = state['aocs']
    if not is_optimal:
      output = aocs.next(aocs_state, clients)
      aocs_state, probabilities = output.state, output.probabilities
      scalars = output.scalars_per_client
    totals = totals_sum.next(
      state['totals'], tff.federated_map(schemes.norm_and_count, clients)
    )
    total_norm = tff.federated_broadcast(totals.result['norm'])
    sums = terms_sum.next(
      state['terms'],
      tff.federated_map(terms, (clients, probabilities, total_norm)),
    )
    new_state = tff.federated_zip(
      collections.OrderedDict(
        aocs=aocs_state, totals=totals.state, terms=sums.state
      )
    )
    return new_state, tff.federated_map(
      summarize, (sums.result, totals.result['clients'], scalars)
    )

  return ImprovementProgram(init_fn, next_fn)


def _factor_computations(m: float):
  """Returns the computation of a client's terms, and that of the factors."""

  @tff.tensorflow.computation(schemes.CLIENT_TYPE, np.float32, np.float64)
  def terms(client, p, total_norm):
    norm = tf.cast(client['norm'], tf.float64)
    square = tf.math.divide_no_nan(norm, total_norm) ** 2
    p = tf.cast(p, tf.float64)
    return collections.OrderedDict(
      # A client without a norm adds nothing, and has p = 0.
      variance=tf.math.divide_no_nan(m * (1.0 - p) * square, p),
      square=square,
    )

  @tff.tensorflow.computation(
    schemes.scalars_type('variance', 'square'), np.float64, np.int32
  )
  def summarize(sums, num_clients, optimal_scalars):
    num_clients = schemes.whole(num_clients)
    capped_m = tf.minimum(tf.constant(m, tf.float64), num_clients)
    alpha = tf.math.divide_no_nan(
      sums['variance'], (num_clients - capped_m) * sums['square']
    )
    # 1 also for an empty cohort.
    gamma = tf.where(
      num_clients > capped_m, m / (alpha * (num_clients - m) + m), 1.0
    )
    return collections.OrderedDict(
      improvement_factor=tf.cast(alpha, tf.float32),
      relative_improvement_factor=tf.cast(gamma, tf.float32),
      improvement_bits=communication.uplink_bits(
        participants=0,
        bits_per_update=0,
        cohort_size=tf.cast(num_clients, tf.int64),
        # The norm and two terms, on top of the scalars of the probabilities.
        scalars_per_client=tf.cast(optimal_scalars + 3, tf.int64),
      ),
    )

  return terms, summarize
