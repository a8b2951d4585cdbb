"""The sampling schemes as TensorFlow Federated computations.

A scheme turns the clients' weighted norms u_i = w_i ||U_i|| into the
probabilities p_i with which they send their updates. `create` gives it as a
`tff.templates.MeasuredProcess` whose `next` has the type

    (<state@SERVER, {float32}@CLIENTS> ->
     <state@SERVER, result={float32}@CLIENTS, measurements@SERVER>)

A norm that is NaN, infinite or negative counts as 0. The cohort's size n is
summed in each round, so it may change from round to round. The measurements
are, for every scheme:

*   `num_iterations` (int32): executed iterations of Algorithm 2; 0 elsewhere.
*   `expected_participants` (float32): the sum of p_i over the cohort.
*   `scalars_per_client` (int32): the 32-bit scalars that each client sent.
*   `scalar_sum`: the measurements of the inner sums, nested.

Where not all clients of the cohort are available (Appendix D of the paper), the
scheme is told which are: the others have p_i = 0, send no scalars, and do not
count in n. The norms are then w_i ||U_i|| / q_i, with the probability q_i that
client i is available, see `tff_ocs.aggregator`.

Clients send float32 scalars; the sums are carried in float64, since C = (m - n
+ I) / P of Algorithm 2 loses digits to cancellation when n is large.
"""

import abc
import collections
from collections.abc import Callable
from typing import NamedTuple
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import arguments

# Algorithm 2 stops at C <= 1. The p_i in P are rounded to float32, so that C
# is known up to 2^-24 relative; C up to this much above 1 counts as 1.
CALIBRATION_TOLERANCE = 4 * float(np.finfo(np.float32).eps)

_NORMS_TYPE = tff.FederatedType(np.float32, tff.CLIENTS)
_AVAILABLE_TYPE = tff.FederatedType(np.bool_, tff.CLIENTS)

# What clients add up to the cohort's sum of norms and its size.
TOTALS_TYPE = tff.to_type(
  collections.OrderedDict(norm=np.float64, clients=np.float64)
)


class SchemeOutput(NamedTuple):
  """What a scheme gives, as federated values.

  Attributes:
    state: The state, at the server.
    probabilities: The p_i, {float32}@CLIENTS.
    num_iterations: int32@SERVER.
    scalars_per_client: int32@SERVER.
    expected_participants: float64@SERVER.
    scalar_sum: The measurements of the inner sums, at the server.
  """

  state: tff.Value
  probabilities: tff.Value
  num_iterations: tff.Value
  scalars_per_client: tff.Value
  expected_participants: tff.Value
  scalar_sum: tff.Value


class SchemeProgram(NamedTuple):
  """A scheme as a part of a larger federated computation.

  Attributes:
    initialize: A computation without arguments that gives the state.
    next: A Python function from the federated values (state, norms) to a
      `SchemeOutput`, to be called while a federated computation is traced. With
      a third, `available` ({bool}@CLIENTS), clients for which it is false take
      no part. Parts of the output that are not used cost nothing.
  """

  initialize: tff.Computation
  next: Callable[..., SchemeOutput]


class SamplingScheme(abc.ABC):
  """How the clients that send are chosen; see the module's docstring.

  Attributes:
    expected_clients: The expected number m of clients that send; `None` for
      full participation.
  """

  expected_clients: Optional[float] = None

  @abc.abstractmethod
  def build(
    self,
    scalar_sum_factory: Optional[
      tff.aggregators.UnweightedAggregationFactory
    ] = None,
  ) -> SchemeProgram:
    """Builds the scheme for use in a larger computation.

    Args:
      scalar_sum_factory: As for `create`.

    Returns:
      A `SchemeProgram`.

    Raises:
      TypeError: As `create`.
    """

  def create(
    self,
    scalar_sum_factory: Optional[
      tff.aggregators.UnweightedAggregationFactory
    ] = None,
    *,
    availability: bool = False,
  ) -> tff.templates.MeasuredProcess:
    """Creates the process from norms to probabilities.

    Args:
      scalar_sum_factory: Sums the clients' scalars (structures of float64). If
        not specified, `tff.aggregators.SumFactory` is used.
      availability: Whether `next` takes, after the norms, which of the clients
        are available, {bool}@CLIENTS.

    Returns:
      A `tff.templates.MeasuredProcess`.

    Raises:
      TypeError: If `scalar_sum_factory` is not a
        `tff.aggregators.UnweightedAggregationFactory`.
    """
    program = self.build(scalar_sum_factory)

    state_type = program.initialize.type_signature.result

    def next_body(state, norms, available=None):
      output = program.next(state, norms, available)
      measurements = collections.OrderedDict(
        num_iterations=output.num_iterations,
        expected_participants=tff.federated_map(
          _to_float32, output.expected_participants
        ),
        scalars_per_client=output.scalars_per_client,
        scalar_sum=output.scalar_sum,
      )
      return tff.templates.MeasuredProcessOutput(
        output.state, output.probabilities, tff.federated_zip(measurements)
      )

    if availability:

      @tff.federated_computation(state_type, _NORMS_TYPE, _AVAILABLE_TYPE)
      def next_fn(state, norms, available):
        return next_body(state, norms, available)

    else:

      @tff.federated_computation(state_type, _NORMS_TYPE)
      def next_fn(state, norms):
        return next_body(state, norms)

    return tff.templates.MeasuredProcess(program.initialize, next_fn)


class FullParticipation(SamplingScheme):
  """Every client sends: p_i = 1."""

  def build(self, scalar_sum_factory=None):
    count_process = _create_sum(scalar_sum_factory, np.float64)

    @tff.tensorflow.computation(np.float32)
    def certain(_):
      return tf.constant(1.0)

    def next_fn(state, norms, available=None):
      count = count_process.next(state, _ones(norms, available))
      return _output(
        count.state,
        _zero_unless(available, tff.federated_map(certain, norms)),
        expected_participants=count.result,
        scalar_sum=count.measurements,
      )

    return SchemeProgram(count_process.initialize, next_fn)

  def __repr__(self):
    return 'FullParticipation()'


class UniformSampling(SamplingScheme):
  """Every client sends with probability min(m / n, 1), independently."""

  def __init__(self, expected_clients: float):
    """Initializes `UniformSampling`.

    Args:
      expected_clients: The expected number m > 0 of clients that send in a
        round; not necessarily an integer. With m >= n all send.

    Raises:
      TypeError: If `expected_clients` is not a number.
      ValueError: If it is not finite or not above 0.
    """
    self.expected_clients = arguments.check_positive(
      'expected_clients', expected_clients
    )

  def build(self, scalar_sum_factory=None):
    count_process = _create_sum(scalar_sum_factory, np.float64)
    expected_clients = self.expected_clients

    @tff.tensorflow.computation(np.float32, np.float64)
    def uniform(_, num_clients):
      return tf.cast(
        tf.minimum(expected_clients / _whole(num_clients), 1.0), tf.float32
      )

    @tff.tensorflow.computation(np.float64)
    def expected(num_clients):
      return tf.minimum(
        tf.constant(expected_clients, tf.float64), _whole(num_clients)
      )

    def next_fn(state, norms, available=None):
      count = count_process.next(state, _ones(norms, available))
      p = tff.federated_map(
        uniform, (norms, tff.federated_broadcast(count.result))
      )
      return _output(
        count.state,
        _zero_unless(available, p),
        expected_participants=tff.federated_map(expected, count.result),
        scalar_sum=count.measurements,
      )

    return SchemeProgram(count_process.initialize, next_fn)

  def __repr__(self):
    return f'UniformSampling(expected_clients={self.expected_clients:g})'


class OptimalSampling(SamplingScheme):
  """Optimal client sampling (OCS): Algorithm 1 with Eq. (7).

  The server sees the cohort's norms, without names, and broadcasts one number:
  the threshold tau of `probabilities.sampling_threshold`, with which p_i =
  min(u_i / tau, 1). That it sees them is the known cost of Algorithm 1: no
  secure sum can hide them. Clients with u_i = 0 do not send.
  """

  def __init__(self, expected_clients: float):
    """Initializes `OptimalSampling`.

    Args:
      expected_clients: The expected number m > 0 of clients that send in a
        round; not necessarily an integer. With m >= n all (with u_i > 0) send.

    Raises:
      TypeError: If `expected_clients` is not a number.
      ValueError: If it is not finite or not above 0.
    """
    self.expected_clients = arguments.check_positive(
      'expected_clients', expected_clients
    )

  def build(self, scalar_sum_factory=None):
    sum_process = _create_sum(scalar_sum_factory, np.float64)
    expected_clients = self.expected_clients
    all_norms_type = tff.TensorType(np.float64, [None])

    @tff.tensorflow.computation
    def no_norms():
      # Of a shape unknown to tracing, as `federated_aggregate` wants it.
      return tf.reshape(tf.constant([], tf.float64), [-1])

    @tff.tensorflow.computation(all_norms_type, np.float64)
    def append(all_norms, norm):
      return tf.concat([all_norms, [norm]], axis=0)

    @tff.tensorflow.computation(all_norms_type, all_norms_type)
    def join(some_norms, other_norms):
      return tf.concat([some_norms, other_norms], axis=0)

    @tff.tensorflow.computation(all_norms_type)
    def threshold_from(all_norms):
      return _threshold(all_norms, expected_clients)

    @tff.tensorflow.computation(np.float64, np.float64)
    def probability(norm, threshold):
      # For tau = 0 the quotient is infinite: the client is sure to send.
      p = tf.minimum(norm / threshold, 1.0)
      return tf.cast(tf.where(norm > 0, p, 0.0), tf.float32)

    def next_fn(state, norms, available=None):
      # A zero more changes nothing in Eq. (7): m + l - n and the sums are as
      # without it.
      norms = tff.federated_map(_valid_norm, _zero_unless(available, norms))
      all_norms = tff.federated_aggregate(
        norms,
        no_norms(),
        append,
        join,
        tff.tensorflow.computation(lambda all_norms: all_norms, all_norms_type),
      )
      threshold = tff.federated_map(threshold_from, all_norms)
      p = tff.federated_map(
        probability, (norms, tff.federated_broadcast(threshold))
      )
      expected = sum_process.next(state, tff.federated_map(_to_float64, p))
      return _output(
        expected.state,
        p,
        expected_participants=expected.result,
        scalars_per_client=tff.federated_value(np.int32(1), tff.SERVER),
        scalar_sum=expected.measurements,
      )

    return SchemeProgram(sum_process.initialize, next_fn)

  def __repr__(self):
    return f'OptimalSampling(expected_clients={self.expected_clients:g})'


class ApproximateOptimalSampling(SamplingScheme):
  """Approximate optimal client sampling (AOCS): Algorithm 2.

  The server sees sums over the cohort only: of the norms, and at most j_max
  times of (1, p_i) over the clients with p_i < 1. With a secure sum as
  `scalar_sum_factory` it learns nothing else. The j_max iterations are unrolled
  in the computation; after the first with C <= 1 (up to
  `CALIBRATION_TOLERANCE`) nothing changes any more, and what is exchanged after
  it is not counted: the `break` of Algorithm 2. Clients with u_i = 0 do not
  send. `probabilities.approximate_probabilities` is the reference.
  """

  def __init__(self, expected_clients: float, max_iterations: int = 4):
    """Initializes `ApproximateOptimalSampling`.

    Args:
      expected_clients: The expected number m > 0 of clients that send in a
        round; not necessarily an integer. With m >= n all (with u_i > 0) send.
      max_iterations: The limit j_max >= 0 of Algorithm 2.

    Raises:
      TypeError: If an argument is not a number of its kind.
      ValueError: If an argument is out of range.
    """
    self.expected_clients = arguments.check_positive(
      'expected_clients', expected_clients
    )
    self._max_iterations = arguments.check_integer(
      'max_iterations', max_iterations, 0
    )

  def build(self, scalar_sum_factory=None):
    m = self.expected_clients
    unsure_type = tff.to_type(
      collections.OrderedDict(clients=np.float64, probability=np.float64)
    )
    totals_process = _create_sum(scalar_sum_factory, TOTALS_TYPE)
    unsure_process = _create_sum(scalar_sum_factory, unsure_type)
    expected_process = _create_sum(scalar_sum_factory, np.float64)

    def unsure_part(p):
      """What a client sends in one iteration: (1, p_i) or (0, 0)."""
      unsure = p < 1
      return collections.OrderedDict(
        clients=tf.cast(unsure, tf.float64),
        # Sent as float32, 32 bits.
        probability=tf.where(unsure, _through_float32(p), 0.0),
      )

    @tff.tensorflow.computation(TOTALS_TYPE, TOTALS_TYPE)
    def first_probability(client, totals):
      norm = client['norm']
      p = tf.minimum(m * tf.math.divide_no_nan(norm, totals['norm']), 1.0)
      sure = tf.logical_and(norm > 0, _whole(totals['clients']) <= m)
      # As if it were sure a client that is not available stays out of the
      # iterations, with (0, 0).
      sure = tf.logical_or(sure, tf.equal(client['clients'], 0))
      p = tf.where(sure, tf.constant(1.0, tf.float64), p)
      return p, unsure_part(p)

    @tff.tensorflow.computation(np.float64, np.float64)
    def recalibrated_probability(p, factor):
      p = tf.where(p < 1, tf.minimum(factor * p, 1.0), p)
      return p, unsure_part(p)

    progress_type = tff.to_type(
      collections.OrderedDict(
        factor=np.float64, running=np.bool_, num_iterations=np.int32
      )
    )

    @tff.tensorflow.computation(TOTALS_TYPE)
    def before_first_iteration(totals):
      return collections.OrderedDict(
        factor=tf.constant(1.0, tf.float64),
        running=m < _whole(totals['clients']),
        num_iterations=tf.constant(0, tf.int32),
      )

    @tff.tensorflow.computation(progress_type, TOTALS_TYPE, unsure_type)
    def iterate(progress, totals, unsure):
      factor = tf.math.divide_no_nan(
        m - _whole(totals['clients'] - unsure['clients']),
        unsure['probability'],
      )
      running = tf.logical_and(
        progress['running'], factor > 1 + CALIBRATION_TOLERANCE
      )
      return collections.OrderedDict(
        factor=tf.where(running, factor, 1.0),
        running=running,
        num_iterations=progress['num_iterations']
        + tf.cast(progress['running'], tf.int32),
      )

    @tff.tensorflow.computation(np.int32)
    def num_scalars(num_iterations):
      return 1 + 2 * num_iterations

    @tff.federated_computation
    def init_fn():
      return tff.federated_zip(
        collections.OrderedDict(
          totals=totals_process.initialize(),
          # One for each iteration, with its own state.
          unsure=tuple(
            unsure_process.initialize() for _ in range(self._max_iterations)
          ),
          expected=expected_process.initialize(),
        )
      )

    def next_fn(state, norms, available=None):
      clients = norms_and_ones(norms, available)
      totals = totals_process.next(state['totals'], clients)
      p, unsure = tff.federated_map(
        first_probability, (clients, tff.federated_broadcast(totals.result))
      )
      progress = tff.federated_map(before_first_iteration, totals.result)
      unsure_states, unsure_measurements = [], []
      for index in range(self._max_iterations):
        unsure_sum = unsure_process.next(state['unsure'][index], unsure)
        unsure_states.append(unsure_sum.state)
        unsure_measurements.append(unsure_sum.measurements)
        progress = tff.federated_map(
          iterate, (progress, totals.result, unsure_sum.result)
        )
        p, unsure = tff.federated_map(
          recalibrated_probability,
          (p, tff.federated_broadcast(progress['factor'])),
        )
      p = _zero_unless(available, p)
      expected = expected_process.next(state['expected'], p)
      return _output(
        tff.federated_zip(
          collections.OrderedDict(
            totals=totals.state,
            unsure=tuple(unsure_states),
            expected=expected.state,
          )
        ),
        tff.federated_map(_to_float32, p),
        num_iterations=progress['num_iterations'],
        expected_participants=expected.result,
        scalars_per_client=tff.federated_map(
          num_scalars, progress['num_iterations']
        ),
        scalar_sum=tff.federated_zip(
          collections.OrderedDict(
            totals=totals.measurements,
            unsure=tuple(unsure_measurements),
            expected=expected.measurements,
          )
        ),
      )

    return SchemeProgram(init_fn, next_fn)

  def __repr__(self):
    return (
      'ApproximateOptimalSampling('
      f'expected_clients={self.expected_clients:g},'
      f' max_iterations={self._max_iterations})'
    )


def norms_and_ones(norms, available=None) -> tff.Value:
  """What each client adds to the totals: zeros if it is not available.

  Args:
    norms: {float32}@CLIENTS.
    available: {bool}@CLIENTS; if not specified, all are.

  Returns:
    The structures of `TOTALS_TYPE`, at the clients.
  """
  if available is None:
    return tff.federated_map(_norm_and_one, norms)
  return tff.federated_map(_norm_and_one_if_available, (norms, available))


def _ones(norms, available):
  """1.0 for each client, or 0.0 if it is not available, as float64."""
  if available is None:
    return tff.federated_map(_one, norms)
  return tff.federated_map(_one_if_available, available)


def _zero_unless(available, x):
  """What clients have, at the clients; 0 for those that are not available."""
  if available is None:
    return x

  @tff.tensorflow.computation(np.bool_, x.type_signature.member)
  def select(available, x):
    return tf.where(available, x, tf.zeros_like(x))

  return tff.federated_map(select, (available, x))


def _create_sum(scalar_sum_factory, value_type):
  """Creates the process that sums scalars of the clients."""
  if scalar_sum_factory is None:
    scalar_sum_factory = tff.aggregators.SumFactory()
  if not isinstance(
    scalar_sum_factory, tff.aggregators.UnweightedAggregationFactory
  ):
    raise TypeError(
      'scalar_sum_factory must be a'
      ' tff.aggregators.UnweightedAggregationFactory, found'
      f' {scalar_sum_factory!r}.'
    )
  return scalar_sum_factory.create(tff.to_type(value_type))


def _output(
  state,
  probabilities,
  *,
  expected_participants,
  scalar_sum,
  num_iterations=None,
  scalars_per_client=None,
) -> SchemeOutput:
  """A `SchemeOutput`; what is not given is 0."""
  zero = tff.federated_value(np.int32(0), tff.SERVER)
  return SchemeOutput(
    state=state,
    probabilities=probabilities,
    num_iterations=zero if num_iterations is None else num_iterations,
    scalars_per_client=(
      zero if scalars_per_client is None else scalars_per_client
    ),
    expected_participants=expected_participants,
    scalar_sum=scalar_sum,
  )


def _threshold(norms, expected_clients: float):
  """`probabilities.sampling_threshold` on a float64 tensor of shape [n]."""
  num_clients = tf.cast(tf.size(norms), tf.float64)
  ascending = tf.sort(norms)
  sums = tf.cumsum(ascending)
  # m + l - n, with l - n first: whole numbers, so that a small m keeps its
  # digits.
  unsaturated = expected_clients + tf.range(1 - num_clients, 1.0)
  holds = tf.logical_and(unsaturated > 0, unsaturated * ascending <= sums)
  # The thresholds at which the condition holds; Eq. (7) takes the last, which
  # exists for m < n.
  thresholds = tf.boolean_mask(sums / unsaturated, holds)
  return tf.cond(
    num_clients <= expected_clients,
    lambda: tf.constant(0.0, tf.float64),
    lambda: thresholds[-1],
  )


def _whole(count):
  """The number of clients in a sum of ones: quantised sums are not whole."""
  return tf.round(count)


def valid_norm(norm):
  """The norm in float64; 0 if it is NaN, infinite or negative."""
  valid = tf.logical_and(tf.math.is_finite(norm), norm > 0)
  return tf.cast(tf.where(valid, norm, 0.0), tf.float64)


def _through_float32(x):
  return tf.cast(tf.cast(x, tf.float32), tf.float64)


@tff.tensorflow.computation(np.float32)
def _valid_norm(norm):
  return valid_norm(norm)


@tff.tensorflow.computation(np.float32)
def _one(_):
  return tf.constant(1.0, tf.float64)


@tff.tensorflow.computation(np.bool_)
def _one_if_available(available):
  return tf.cast(available, tf.float64)


@tff.tensorflow.computation(np.float32)
def _norm_and_one(norm):
  return collections.OrderedDict(
    norm=valid_norm(norm), clients=tf.constant(1.0, tf.float64)
  )


@tff.tensorflow.computation(np.float32, np.bool_)
def _norm_and_one_if_available(norm, available):
  return collections.OrderedDict(
    norm=tf.where(available, valid_norm(norm), 0.0),
    clients=tf.cast(available, tf.float64),
  )


@tff.tensorflow.computation(np.float32)
def _to_float64(x):
  return tf.cast(x, tf.float64)


@tff.tensorflow.computation(np.float64)
def _to_float32(x):
  return tf.cast(x, tf.float32)
