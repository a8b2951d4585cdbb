"""Secure sums of what the sampling schemes and the aggregator add up.

`tff.aggregators.SecureSumFactory` clips each number to bounds that have to be
known beforehand, and rounds it to one of 2^32 steps between them. What that
does here:

*   The probabilities follow from the sums of scalars, and each client tosses
    and scales with the very probability that it has computed. So an error in
    these sums never biases the aggregate; it changes who is likely to send.
    Clipped norms make their sum too small and the probabilities too large: more
    than m clients are expected to send, and `expected_participants` says how
    many. Rounding moves the sum of n norms by at most n / 2 steps.
*   An update's entry that is clipped biases the aggregate. Rounding moves each
    entry of the sum by at most half a step for each client, so that the bias of
    an entry of the aggregate is at most n b / (2^32 - 1) over the total weight,
    with bounds of -b and b.

`ClientSamplingFactory` reports how many were clipped; `propose_bounds` gives
bounds within which none are.
"""

import collections
from typing import NamedTuple
from typing import Union

import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs import measurements

# Norms and quotients are rounded to float32, far below this.
_MARGIN = 1.001


class SecureScalarSumFactory(tff.aggregators.UnweightedAggregationFactory):
  """Sums scalars of the clients securely, the norms within bounds of their own.

  For `scalar_sum_factory` of `tff_ocs.ClientSamplingFactory` and of the
  schemes. All that they sum but the norms lies between 0 and 1, which are the
  bounds for it. With one `SecureSumFactory` for all, probabilities would be
  rounded to steps that are as wide as the norms need.

  The state is that of the inner secure sums. The measurements are those of
  `SecureSumFactory`; where there are norms, by `norm` and `others`.
  """

  def __init__(self, norm_bound: Union[float, tff.templates.EstimationProcess]):
    """Initializes `SecureScalarSumFactory`.

    Args:
      norm_bound: The upper bound of the weighted norms n_i ||U_i||, above 0;
        larger ones are clipped. Or a `tff.templates.EstimationProcess` that
        adapts it from round to round, such as
        `tff.aggregators.PrivateQuantileEstimationProcess`; with
        `secure_estimation=True`, or else the estimation is not secure.

    Raises:
      TypeError: If it is neither.
      ValueError: If it is a number that is not finite or not above 0.
    """
    if isinstance(norm_bound, tff.templates.EstimationProcess):
      self._norm_sum_factory = tff.aggregators.SecureSumFactory(norm_bound)
    else:
      bound = arguments.check_positive('norm_bound', norm_bound)
      self._norm_sum_factory = tff.aggregators.SecureSumFactory(bound, 0.0)
    self._others_sum_factory = tff.aggregators.SecureSumFactory(1.0, 0.0)

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Creates the process with `next(state, value)`.

    Args:
      value_type: A structure of floats with the names that the schemes and the
        aggregator use.

    Returns:
      A `tff.templates.AggregationProcess`.

    Raises:
      ValueError: If a scalar has no name, or one that is not theirs, since its
        bounds are not known: for example the losses that
        `build_federated_averaging_process` sums.
    """
    value_type = tff.to_type(value_type)
    if not isinstance(value_type, tff.StructType):
      raise ValueError(
        'SecureScalarSumFactory knows the bounds of a scalar by its name, found'
        f' {value_type}, which has none. Put it into an OrderedDict.'
      )
    unknown = [
      name
      for name, _ in tff.structure.iter_elements(value_type)
      if name not in ('norm', *_NAMES_OF_OTHERS)
    ]
    if unknown:
      raise ValueError(
        'SecureScalarSumFactory knows the bounds of the scalars of sampling'
        f' schemes and of ClientSamplingFactory only, found {unknown[0]!r}. Sum'
        ' that by a tff.aggregators.SecureSumFactory with bounds of its own.'
      )
    if 'norm' not in tff.structure.name_list(value_type):
      return self._others_sum_factory.create(value_type)
    norm_sum = self._norm_sum_factory.create(value_type['norm'])
    if len(value_type) == 1:
      return _of_norm_alone(norm_sum, value_type)
    others_sum = self._others_sum_factory.create(
      tff.to_type(
        collections.OrderedDict(
          (name, t)
          for name, t in tff.structure.iter_elements(value_type)
          if name != 'norm'
        )
      )
    )

    @tff.federated_computation
    def init_fn():
      return tff.federated_zip(
        collections.OrderedDict(
          norm=norm_sum.initialize(), others=others_sum.initialize()
        )
      )

    @tff.federated_computation(
      init_fn.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      names = tff.structure.name_list(value_type)
      norm = norm_sum.next(state['norm'], value['norm'])
      others = others_sum.next(
        state['others'],
        tff.federated_zip(
          collections.OrderedDict(
            (name, value[name]) for name in names if name != 'norm'
          )
        ),
      )
      result = collections.OrderedDict(
        (name, norm.result if name == 'norm' else others.result[name])
        for name in names
      )
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(
          collections.OrderedDict(norm=norm.state, others=others.state)
        ),
        tff.federated_zip(result),
        tff.federated_zip(
          collections.OrderedDict(
            norm=norm.measurements, others=others.measurements
          )
        ),
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)


def _of_norm_alone(norm_sum, value_type) -> tff.templates.AggregationProcess:
  """The same for a scheme that sums nothing but norms."""

  @tff.federated_computation(
    norm_sum.initialize.type_signature.result,
    tff.FederatedType(value_type, tff.CLIENTS),
  )
  def next_fn(state, value):
    summed = norm_sum.next(state, value['norm'])
    return tff.templates.MeasuredProcessOutput(
      summed.state,
      tff.federated_zip(collections.OrderedDict(norm=summed.result)),
      tff.federated_zip(collections.OrderedDict(norm=summed.measurements)),
    )

  return tff.templates.AggregationProcess(norm_sum.initialize, next_fn)


_NAMES_OF_OTHERS = (
  *measurements.COUNT_NAMES,
  'variance',
  'square',
)


class Bounds(NamedTuple):
  """Bounds for secure sums, see `propose_bounds`.

  Attributes:
    norm: The `norm_bound` of `SecureScalarSumFactory`.
    value: The bound b of the entries of what a client sends, which lie in [-b,
      b]: for the `value_sum_factory`.
    weight: The upper bound of the weights, which are at least 0: for the
      `weight_sum_factory`.
  """

  norm: float
  value: float
  weight: float


def propose_bounds(
  *,
  max_update_norm: float,
  max_weight: float,
  cohort_size: int,
  expected_clients: float,
) -> Bounds:
  """Bounds within which uniform sampling, OCS and AOCS have nothing clipped.

  Norms n_i ||U_i|| are at most `max_update_norm` x `max_weight`. An entry of
  what client i sends, (n_i / p_i) U_i, is at most n_i ||U_i|| / p_i: with
  uniform sampling n / m times the norm; and since neither Eq. (7) nor Algorithm
  2 gives less than p_i = m u_i / sum_j u_j, with u_i = n_i ||U_i||, unless p_i
  = 1, that is at most u_i or sum_j u_j / m with OCS and AOCS. So for all of
  them it is at most max(1, n / m) times the largest norm.

  Threshold sampling needs a larger bound of `value`: multiply it by c (3 by
  default), since tau is at most c sum_j u_j / m of the last round that it was
  learnt from; and where the cohort's weight is set, further by its largest
  ratio to that of another round. Its `initial_threshold` may be larger.

  Args:
    max_update_norm: The largest norm ||U_i|| of an update over all tensors;
      `tff.aggregators.clipping_factory` around `ClientSamplingFactory` sees to
      it. Where not all clients are available, over the smallest q_i; with
      `create_for_pool`, times the largest scale s_i.
    max_weight: The largest weight n_i of a client, such as its number of
      examples.
    cohort_size: The size n of the cohort, or the largest.
    expected_clients: m; for full participation n. With costs, the budget, in a
      unit in which no client's cost is above 1.

  Returns:
    The `Bounds`, with a margin of a thousandth for rounding.

  Raises:
    TypeError: If an argument is not a number.
    ValueError: If one is not finite or not above 0.
  """
  max_update_norm = arguments.check_positive('max_update_norm', max_update_norm)
  max_weight = arguments.check_positive('max_weight', max_weight)
  num_clients = arguments.check_positive('cohort_size', cohort_size)
  expected_clients = arguments.check_positive(
    'expected_clients', expected_clients
  )
  norm = _MARGIN * max_update_norm * max_weight
  return Bounds(
    norm=norm,
    value=_MARGIN * norm * max(1.0, num_clients / expected_clients),
    weight=_MARGIN * max_weight,
  )
