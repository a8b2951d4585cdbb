"""The sampling schemes as TensorFlow Federated computations.

A scheme computes the probabilities p_i with which clients send their updates
from the clients' weighted norms u_i = w_i ||U_i||. `create` returns it as a
`tff.templates.MeasuredProcess` whose `next` has the type

    (<state@SERVER, {float32}@CLIENTS> ->
     <state@SERVER, result={float32}@CLIENTS, measurements@SERVER>)

A norm that is NaN, infinite or negative counts as 0. The size n of the cohort
may change from round to round with every scheme but
`UniformSampling(m, cohort_size=n)`: AOCS, and uniform sampling without
`cohort_size`, sum it in each round. Every scheme measures

*   `num_iterations` (int32): the executed iterations of Algorithm 2; 0 for the
    other schemes;
*   `expected_participants` (float32): the sum of p_i over the cohort;
*   `scalars_per_client` (int32): the 32-bit scalars that each client sent;
*   `scalar_sum`: the measurements of the scheme's inner sums, nested.

Where not all clients of the cohort are available (Appendix E of the paper), the
scheme knows which are. The others send no scalars, do not count in n and never
send. The norms are then w_i ||U_i|| / q_i, with the probability q_i that client
i is available, see `tff_ocs.aggregator`.

Clients send float32 scalars. They are summed in float64, since C = (m - n + I)
/ P of Algorithm 2 loses digits to cancellation when n is large.

OCS, AOCS and uniform sampling with an unknown n broadcast what they have summed
in the same round. A deployment in one round trip, such as TFF's
`MapReduceForm`, can run the other schemes only, see `tff_ocs.runtime.forms`.

A scheme of your own is a subclass of `SamplingScheme` with one method, `build`;
docs/extend.md has an example.
"""

import abc
import collections
from collections.abc import Callable
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs import factory_arguments

# Algorithm 2 stops at C <= 1. The p_i in P are rounded to float32, so that C
# is known up to 2^-24 relative; C up to this much above 1 counts as 1.
CALIBRATION_TOLERANCE = 4 * float(np.finfo(np.float32).eps)

# The input of a scheme from a client: its norm u_i, finite and at least 0;
# whether it is available, and if it is not, its norm is 0; and what it costs
# that it sends, 1 unless costs are given.
CLIENT_TYPE = tff.to_type(
  collections.OrderedDict(norm=np.float32, available=np.bool_, cost=np.float32)
)


class SchemeOutput(NamedTuple):
  """The result of a scheme, as federated values.

  Attributes:
    state: The state, at `SERVER`.
    probabilities: The p_i, {float32}@CLIENTS. They must lie in [0, 1], and be
      above 0 where the norm is. `ClientSamplingFactory` ignores those of
      clients that are not available, clips the others to [0, 1], and counts the
      clients for which this changes something in `invalid_probabilities`.
    scalar_sum: The measurements of the scheme's sums, at `SERVER`.
    num_iterations: int32@SERVER.
    scalars_per_client: int32@SERVER.
  """

  state: tff.Value
  probabilities: tff.Value
  scalar_sum: tff.Value
  num_iterations: tff.Value
  scalars_per_client: tff.Value


class SchemeProgram(NamedTuple):
  """A scheme as a part of a larger federated computation.

  Attributes:
    initialize: A computation without arguments that returns the state.
    next: A Python function from the federated values (state, clients) to a
      `SchemeOutput`, to be called while a federated computation is traced;
      `clients` is a structure of `CLIENT_TYPE` at `CLIENTS`.
  """

  initialize: tff.Computation
  next: Callable[[tff.Value, tff.Value], SchemeOutput]


class SamplingScheme(abc.ABC):
  """Chooses the clients that send; see the module's docstring.

  Attributes:
    expected_clients: The expected number m of clients that send; `None` for
      full participation. If clients have costs, it is the budget B, the
      expected sum of the costs of the clients that send.
    uses_costs: Whether the scheme uses the clients' costs c_i, as in
      `probabilities.optimal_probabilities`.
  """

  expected_clients: Optional[float] = None
  uses_costs = False

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
  ) -> tff.templates.MeasuredProcess:
    """Creates the process with `next(state, norms)`.

    The norms u_i are {float32}@CLIENTS, and so are the probabilities p_i that
    it returns. The measurements at `SERVER` are those of the module's
    docstring. All clients count as available, with cost 1; for others
    `ClientSamplingFactory` calls `build`. Clients toss no coins here.

    Args:
      scalar_sum_factory: Sums the clients' scalars (structures of float64). If
        not specified, `tff.aggregators.SumFactory` is used.

    Returns:
      A `tff.templates.MeasuredProcess`.

    Raises:
      TypeError: If `scalar_sum_factory` is not a
        `tff.aggregators.UnweightedAggregationFactory`.
    """
    program = self.build(scalar_sum_factory)
    expected_sum = create_scalar_sum(scalar_sum_factory, 'probability')

    @tff.tensorflow.computation(np.float32)
    def describe_client(norm):
      valid = tf.logical_and(tf.math.is_finite(norm), norm > 0)
      return collections.OrderedDict(
        norm=tf.where(valid, norm, 0.0),
        available=tf.constant(True),
        cost=tf.constant(1.0),
      )

    @tff.tensorflow.computation(np.float32)
    def with_scalar(p):
      return p, collections.OrderedDict(probability=tf.cast(p, tf.float64))

    @tff.tensorflow.computation(scalars_type('probability'))
    def expected_participants(sums):
      return tf.cast(sums['probability'], tf.float32)

    @tff.federated_computation
    def init_fn():
      return tff.federated_zip(
        collections.OrderedDict(
          scheme=program.initialize(), expected=expected_sum.initialize()
        )
      )

    @tff.federated_computation(
      init_fn.type_signature.result, tff.FederatedType(np.float32, tff.CLIENTS)
    )
    def next_fn(state, norms):
      output = program.next(
        state['scheme'], tff.federated_map(describe_client, norms)
      )
      # Mapped, so that probabilities have one type, also if all are equal.
      p, scalars = tff.federated_map(with_scalar, output.probabilities)
      expected = expected_sum.next(state['expected'], scalars)
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(
          collections.OrderedDict(scheme=output.state, expected=expected.state)
        ),
        p,
        tff.federated_zip(
          collections.OrderedDict(
            num_iterations=output.num_iterations,
            expected_participants=tff.federated_map(
              expected_participants, expected.result
            ),
            scalars_per_client=output.scalars_per_client,
            scalar_sum=output.scalar_sum,
          )
        ),
      )

    return tff.templates.MeasuredProcess(init_fn, next_fn)


class FullParticipation(SamplingScheme):
  """Every client sends: p_i = 1."""

  def build(self, scalar_sum_factory=None):
    return _build_with_constant(np.float32(1))

  def __repr__(self):
    return 'FullParticipation()'


class UniformSampling(SamplingScheme):
  """Every client sends with probability min(m / n, 1), independently."""

  def __init__(
    self, expected_clients: float, cohort_size: Optional[int] = None
  ):
    """Initializes `UniformSampling`.

    Args:
      expected_clients: The expected number m > 0 of clients that send in a
        round; not necessarily an integer. With m >= n all clients send.
      cohort_size: The size n of the cohort, where it is known beforehand. Then
        nothing is summed, and the scheme needs one round trip. The probability
        stays min(m / n, 1) if the cohort has another size, or if some clients
        are not available; the expected number of senders is then not m. If not
        given, the available clients are counted in each round.

    Raises:
      TypeError: If an argument is not a number of its kind.
      ValueError: If an argument is out of range.
    """
    self.expected_clients = arguments.check_positive(
      'expected_clients', expected_clients
    )
    if cohort_size is not None:
      cohort_size = arguments.check_integer('cohort_size', cohort_size)
    self._cohort_size = cohort_size

  def build(self, scalar_sum_factory=None):
    if self._cohort_size is None:
      return self._build_with_count(scalar_sum_factory)
    p = np.float32(min(self.expected_clients / self._cohort_size, 1.0))
    return _build_with_constant(p)

  def _build_with_count(self, scalar_sum_factory):
    count_sum = create_scalar_sum(scalar_sum_factory, 'clients')
    m = self.expected_clients

    @tff.tensorflow.computation(CLIENT_TYPE)
    def count(client):
      return collections.OrderedDict(
        clients=tf.cast(client['available'], tf.float64)
      )

    @tff.tensorflow.computation(scalars_type('clients'))
    def probability(sums):
      return tf.cast(tf.minimum(m / whole(sums['clients']), 1.0), tf.float32)

    def next_fn(state, clients):
      total = count_sum.next(state, tff.federated_map(count, clients))
      p = tff.federated_map(probability, total.result)
      return scheme_output(
        total.state,
        tff.federated_broadcast(p),
        scalar_sum=total.measurements,
      )

    return SchemeProgram(count_sum.initialize, next_fn)

  def __repr__(self):
    size = self._cohort_size
    known_size = '' if size is None else f', cohort_size={size}'
    return (
      f'UniformSampling(expected_clients={self.expected_clients:g}{known_size})'
    )


class OptimalSampling(SamplingScheme):
  """Optimal client sampling (OCS): Algorithm 1 with Eq. (7).

  The server sees the cohort's norms, without names, and broadcasts one number:
  the threshold tau of `probabilities.sampling_threshold`, with which p_i =
  min(u_i / tau, 1). That the server sees the norms is the known cost of
  Algorithm 1: no secure sum can hide them. Clients with u_i = 0 do not send.

  With costs, the server sees pairs of a norm and a cost. A cost that only one
  client has identifies that client's norm.
  """

  uses_costs = True

  def __init__(self, expected_clients: float):
    """Initializes `OptimalSampling`.

    Args:
      expected_clients: The expected number m > 0 of clients that send in a
        round; not necessarily an integer. With m >= n all clients with u_i > 0
        send.

    Raises:
      TypeError: If `expected_clients` is not a number.
      ValueError: If it is not finite or not above 0.
    """
    self.expected_clients = arguments.check_positive(
      'expected_clients', expected_clients
    )

  def build(self, scalar_sum_factory=None):
    m = self.expected_clients

    @tff.tensorflow.computation(tff.TensorType(np.float32, [None, 2]))
    def threshold_from(rows):
      norms, costs = tf.unstack(tf.cast(rows, tf.float64), axis=1)
      return _threshold(norms / tf.sqrt(costs), costs, m)

    @tff.tensorflow.computation(CLIENT_TYPE, np.float64)
    def probability(client, threshold):
      # For tau = 0 the quotient is infinite: the client is sure to send.
      p = tf.minimum(_key(client) / threshold, 1.0)
      return tf.cast(tf.where(client['norm'] > 0, p, 0.0), tf.float32)

    @tff.federated_computation
    def init_fn():
      return tff.federated_value((), tff.SERVER)

    def next_fn(state, clients):
      threshold = tff.federated_map(
        threshold_from, collect(clients, 'norm', 'cost')
      )
      p = tff.federated_map(
        probability, (clients, tff.federated_broadcast(threshold))
      )
      return scheme_output(state, p, scalars_per_client=1)

    return SchemeProgram(init_fn, next_fn)

  def __repr__(self):
    return f'OptimalSampling(expected_clients={self.expected_clients:g})'


class ApproximateOptimalSampling(SamplingScheme):
  """Approximate optimal client sampling (AOCS): Algorithm 2.

  The server sees sums over the cohort only: of the norms, and at most j_max
  times of (1, p_i) over the clients with p_i < 1. With a secure sum as
  `scalar_sum_factory` it learns nothing else. The j_max iterations are unrolled
  in the computation. After the first with C <= 1 (up to
  `CALIBRATION_TOLERANCE`) nothing changes any more, and what is exchanged after
  it is not counted: this is the `break` of Algorithm 2. Clients with u_i = 0 do
  not send. `probabilities.approximate_probabilities` is the reference.

  With costs, a client counts as c_i clients in all sums. For
  `tff_ocs.secure_sums.SecureScalarSumFactory`, whose bounds are those of
  clients without costs, no cost may be above 1.
  """

  uses_costs = True

  def __init__(self, expected_clients: float, max_iterations: int = 4):
    """Initializes `ApproximateOptimalSampling`.

    Args:
      expected_clients: The expected number m > 0 of clients that send in a
        round; not necessarily an integer. With m >= n all clients with u_i > 0
        send.
      max_iterations: The limit j_max >= 0 of Algorithm 2.

    Raises:
      TypeError: If an argument is not a number of its kind.
      ValueError: If an argument is out of range.
    """
    self.expected_clients = arguments.check_positive(
      'expected_clients', expected_clients
    )
    self._max_iterations = arguments.check_integer(
      'max_iterations', max_iterations, minimum=0
    )

  def build(self, scalar_sum_factory=None):
    totals_sum = create_scalar_sum(scalar_sum_factory, 'norm', 'clients')
    below_1_sum = create_scalar_sum(
      scalar_sum_factory, 'clients', 'probability'
    )
    steps = _Algorithm2(self.expected_clients)

    @tff.federated_computation
    def init_fn():
      return tff.federated_zip(
        collections.OrderedDict(
          totals=totals_sum.initialize(),
          # One for each iteration, each with its own state.
          below_1=tuple(
            below_1_sum.initialize() for _ in range(self._max_iterations)
          ),
        )
      )

    def next_fn(state, clients):
      totals = totals_sum.next(
        state['totals'], tff.federated_map(steps.norm_and_cost, clients)
      )
      p, below_1 = tff.federated_map(
        steps.first_probability,
        (clients, tff.federated_broadcast(totals.result)),
      )
      progress = tff.federated_map(steps.start, totals.result)
      states, measurements = [], []
      for index in range(self._max_iterations):
        sums = below_1_sum.next(state['below_1'][index], below_1)
        states.append(sums.state)
        measurements.append(sums.measurements)
        progress = tff.federated_map(
          steps.iterate, (progress, totals.result, sums.result)
        )
        p, below_1 = tff.federated_map(
          steps.recalibrated_probability,
          (clients, p, tff.federated_broadcast(progress['factor'])),
        )
      return scheme_output(
        tff.federated_zip(
          collections.OrderedDict(totals=totals.state, below_1=tuple(states))
        ),
        tff.federated_map(_to_float32, p),
        num_iterations=progress['num_iterations'],
        scalars_per_client=tff.federated_map(
          steps.num_scalars, progress['num_iterations']
        ),
        scalar_sum=tff.federated_zip(
          collections.OrderedDict(
            totals=totals.measurements, below_1=tuple(measurements)
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


class ThresholdSampling(SamplingScheme):
  """Optimal client sampling in one round trip, with a carried threshold.

  Eq. (7) of the paper reads p_i = min(u_i / tau, 1). OCS and AOCS compute tau
  from the norms of the round, so that all clients wait for an answer before
  they send. This scheme takes tau from earlier rounds: a client decides as soon
  as it has trained, and the server sees sums only, once. In round t

      u_i = n_i ||U_i|| / N_t,        p_i = min(u_i / tau, 1),

  with N_t the total weight of the cohort. It is 1 unless
  `tff_ocs.set_cohort_weight` sets it before the round; where the server knows
  it, it should: the aggregate is divided by the cohort's own total weight, so
  that without it small cohorts are given too few participants.

  Clients add u_i, p_i and whether 0 < p_i < 1 to three sums. With x = sum_i p_i
  / m, and t the number of rounds learnt from, this one included, the server
  sets

      log tau <- log tau + min(max(eta, 1 / t) (x - 1), log(c x)).

  The threshold stays as it is if all norms are 0, and if x <= 1 although all
  clients with u_i > 0 are sure to send. In the first round, tau is not known:
  nobody sends, unless `first_cohort_size` or `initial_threshold` is given, and
  tau becomes sum_i u_i / m.

  The aggregate is unbiased, since tau is fixed before the coins are tossed;
  except for a first round in which tau is not known, whose aggregate is 0. In a
  single round more or fewer than m clients are expected to send. In the long
  run the mean is m, or above m if norms keep changing by large factors from
  round to round; docs/theory.md has the proofs.

  Sampling with p_i = min(u_i / tau, 1) is threshold sampling: Duffield, Lund
  and Thorup, *Learn more, sample less*, IEEE Transactions on Information Theory
  51(5), 2005. `probabilities.threshold_probabilities` and
  `probabilities.update_threshold` are the reference.

  The state has, next to that of the sums, `threshold` and `cohort_weight`
  (float64; a threshold of 0 is not known) and `num_rounds` (int32). Clients
  with u_i = 0 do not send.

  With costs, p_i = min(u_i / (tau sqrt(c_i)), 1), and clients add u_i sqrt(c_i)
  and c_i p_i. For `tff_ocs.secure_sums.SecureScalarSumFactory`, whose bounds
  are those of clients without costs, no cost may be above 1.
  """

  uses_costs = True

  def __init__(
    self,
    expected_clients: float,
    *,
    eta: float = 0.3,
    c: float = 3.0,
    first_cohort_size: Optional[float] = None,
    initial_threshold: Optional[float] = None,
  ):
    """Initializes `ThresholdSampling`.

    Args:
      expected_clients: The long-run mean m > 0 of the number of clients that
        send in a round; not necessarily an integer.
      eta: The step of the controller, above 0. Lower it if the number of
        participants changes too much from round to round; raise it if it is too
        slow to return to m after the norms have changed.
      c: How far tau may rise after a round with too many participants, above 1:
        the same cohort would keep at least m / c. Lower it if a burst is
        followed by rounds without participants; raise it if bursts last.
      first_cohort_size: The size n_0 of the first cohort. In that round, each
        client with u_i > 0 sends with probability min(m / n_0, 1). With costs,
        give the sum of the first cohort's costs.
      initial_threshold: A first value of tau, above 0, for example that of an
        earlier run. One that is wrong by a factor of 10 costs two rounds.

    Raises:
      TypeError: If an argument is not a number of its kind.
      ValueError: If an argument is out of range, or both `first_cohort_size`
        and `initial_threshold` are given.
    """
    self.expected_clients = arguments.check_positive(
      'expected_clients', expected_clients
    )
    self._eta = arguments.check_positive('eta', eta)
    self._c = arguments.check_positive('c', c)
    if self._c <= 1:
      raise ValueError(f'c must be above 1, found {c}.')
    if first_cohort_size is not None and initial_threshold is not None:
      raise ValueError(
        'At most one of first_cohort_size and initial_threshold can be given,'
        f' found {first_cohort_size!r} and {initial_threshold!r}: with a'
        ' threshold, the first round is like the others.'
      )
    self._first_probability = 0.0
    if first_cohort_size is not None:
      size = arguments.check_positive('first_cohort_size', first_cohort_size)
      self._first_probability = min(self.expected_clients / size, 1.0)
    self._initial_threshold = 0.0
    if initial_threshold is not None:
      self._initial_threshold = arguments.check_positive(
        'initial_threshold', initial_threshold
      )

  def build(self, scalar_sum_factory=None):
    scalars_sum = create_scalar_sum(
      scalar_sum_factory, 'norm', 'probability', 'clients'
    )
    controller_type = tff.to_type(
      collections.OrderedDict(
        threshold=np.float64, num_rounds=np.int32, cohort_weight=np.float64
      )
    )

    @tff.tensorflow.computation
    def start():
      return collections.OrderedDict(
        threshold=tf.constant(self._initial_threshold, tf.float64),
        num_rounds=tf.constant(0, tf.int32),
        cohort_weight=tf.constant(1.0, tf.float64),
      )

    @tff.tensorflow.computation(controller_type)
    def norm_threshold(controller):
      # In the units of the norms n_i ||U_i||, which clients know and sum:
      # secure sums have bounds in these units.
      return controller['threshold'] * controller['cohort_weight']

    @tff.tensorflow.computation(CLIENT_TYPE, np.float64)
    def decide(client, threshold):
      key, cost = _key(client), tf.cast(client['cost'], tf.float64)
      p = tf.where(
        threshold > 0,
        tf.minimum(tf.math.divide_no_nan(key, threshold), 1.0),
        tf.constant(self._first_probability, tf.float64),
      )
      # The sum is of the probabilities with which clients send.
      p = _through_float32(tf.where(key > 0, p, 0.0))
      return tf.cast(p, tf.float32), collections.OrderedDict(
        norm=cost * key,
        probability=cost * p,
        clients=tf.cast(tf.logical_and(p > 0, p < 1), tf.float64),
      )

    @tff.tensorflow.computation(
      controller_type, scalars_type('norm', 'probability', 'clients')
    )
    def learn(controller, sums):
      return self._learn(controller, sums)

    @tff.federated_computation
    def init_fn():
      return tff.federated_zip(
        collections.OrderedDict(
          controller=tff.federated_eval(start, tff.SERVER),
          scalars=scalars_sum.initialize(),
        )
      )

    def next_fn(state, clients):
      threshold = tff.federated_map(norm_threshold, state['controller'])
      p, scalars = tff.federated_map(
        decide, (clients, tff.federated_broadcast(threshold))
      )
      sums = scalars_sum.next(state['scalars'], scalars)
      controller = tff.federated_map(learn, (state['controller'], sums.result))
      return scheme_output(
        tff.federated_zip(
          collections.OrderedDict(controller=controller, scalars=sums.state)
        ),
        p,
        scalar_sum=sums.measurements,
        scalars_per_client=3,
      )

    return SchemeProgram(init_fn, next_fn)

  def _learn(self, controller, sums):
    """`probabilities.update_threshold`, on tensors."""
    tau, m = controller['threshold'], self.expected_clients
    num_rounds = controller['num_rounds'] + 1
    x = sums['probability'] / m
    eta = tf.maximum(
      tf.constant(self._eta, tf.float64), 1 / tf.cast(num_rounds, tf.float64)
    )
    mean_norm = sums['norm'] / controller['cohort_weight'] / m
    is_known = tf.logical_and(tau > 0, x > 0)
    all_are_sure = tf.logical_and(x <= 1, whole(sums['clients']) <= 0)
    stays = tf.logical_or(
      sums['norm'] <= 0, tf.logical_and(is_known, all_are_sure)
    )
    learnt = tf.where(
      is_known, tau * tf.minimum(tf.exp(eta * (x - 1)), self._c * x), mean_norm
    )
    is_a_round = tf.logical_and(is_known, tf.logical_not(stays))
    return collections.OrderedDict(
      threshold=tf.where(stays, tau, learnt),
      num_rounds=tf.where(is_a_round, num_rounds, controller['num_rounds']),
      cohort_weight=controller['cohort_weight'],
    )

  def __repr__(self):
    return (
      f'ThresholdSampling(expected_clients={self.expected_clients:g},'
      f' eta={self._eta:g}, c={self._c:g})'
    )


class _Algorithm2:
  """The steps of Algorithm 2, as TensorFlow computations.

  Attributes:
    norm_and_cost: The terms of the sums of norms and of clients, at a client.
    first_probability: p_i = min(m u_i / u, 1), at a client.
    start: The progress before the first iteration, at the server.
    iterate: One iteration's C = (m - n + I) / P, at the server.
    recalibrated_probability: p_i = min(C p_i, 1) where p_i < 1, at a client.
    num_scalars: The scalars that a client has sent: 1 norm, 2 an iteration.
  """

  def __init__(self, m: float):
    totals_type = scalars_type('norm', 'clients')
    below_1_type = scalars_type('clients', 'probability')
    progress_type = tff.to_type(
      collections.OrderedDict(
        factor=np.float64, running=np.bool_, num_iterations=np.int32
      )
    )

    def share_of_below_1(client, p):
      """Returns what a client sends in one iteration: (1, p_i) or (0, 0)."""
      is_below_1 = tf.logical_and(client['available'], p < 1)
      cost = tf.cast(client['cost'], tf.float64)
      return collections.OrderedDict(
        clients=tf.where(is_below_1, cost, 0.0),
        # Sent as float32, 32 bits.
        probability=tf.where(is_below_1, _through_float32(cost * p), 0.0),
      )

    def count(clients):
      """Undoes the rounding of a quantised sum, if it is of whole numbers.

      A sum of costs that happens to lie this close to a whole number changes
      the budget by 0.1 % at most.
      """
      nearest = tf.round(clients)
      is_close = tf.abs(clients - nearest) <= 1e-3 * m
      return tf.where(is_close, nearest, clients)

    @tff.tensorflow.computation(CLIENT_TYPE)
    def norm_and_cost(client):
      cost = tf.cast(client['cost'], tf.float64)
      return collections.OrderedDict(
        norm=cost * _key(client),
        clients=tf.where(client['available'], cost, 0.0),
      )

    @tff.tensorflow.computation(CLIENT_TYPE, totals_type)
    def first_probability(client, totals):
      key, clients = _key(client), totals['clients']
      one = tf.constant(1.0, tf.float64)
      # A quantised sum of small norms can be 0: then as in uniform sampling.
      share = tf.where(
        totals['norm'] > 0,
        tf.math.divide_no_nan(key, totals['norm']),
        tf.where(key > 0, tf.math.divide_no_nan(one, clients), 0.0),
      )
      p = tf.minimum(m * share, 1.0)
      all_send = tf.logical_and(key > 0, count(clients) <= m)
      p = tf.where(all_send, one, p)
      return p, share_of_below_1(client, p)

    @tff.tensorflow.computation(CLIENT_TYPE, np.float64, np.float64)
    def recalibrated_probability(client, p, factor):
      p = tf.where(p < 1, tf.minimum(factor * p, 1.0), p)
      return p, share_of_below_1(client, p)

    @tff.tensorflow.computation(totals_type)
    def start(totals):
      return collections.OrderedDict(
        factor=tf.constant(1.0, tf.float64),
        running=m < count(totals['clients']),
        num_iterations=tf.constant(0, tf.int32),
      )

    @tff.tensorflow.computation(progress_type, totals_type, below_1_type)
    def iterate(progress, totals, below_1):
      factor = tf.math.divide_no_nan(
        m - count(totals['clients'] - below_1['clients']),
        below_1['probability'],
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

    self.norm_and_cost = norm_and_cost
    self.first_probability, self.start, self.iterate = (
      first_probability,
      start,
      iterate,
    )
    self.recalibrated_probability = recalibrated_probability
    self.num_scalars = num_scalars


# Parts of schemes.


def _build_with_constant(p: np.float32) -> SchemeProgram:
  """Builds a scheme in which all clients have the same known probability."""

  @tff.federated_computation
  def init_fn():
    return tff.federated_value((), tff.SERVER)

  def next_fn(state, clients):
    del clients
    return scheme_output(state, tff.federated_value(p, tff.CLIENTS))

  return SchemeProgram(init_fn, next_fn)


def scalars_type(*names: str) -> tff.Type:
  """Returns the type of the scalars that a client adds to a sum.

  Args:
    *names: The scalars' names.

  Returns:
    The type of an `OrderedDict` of float64.
  """
  return tff.to_type(
    collections.OrderedDict((name, np.float64) for name in names)
  )


def create_scalar_sum(
  scalar_sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory],
  *names: str,
) -> tff.templates.AggregationProcess:
  """Creates the process that sums scalars of the clients.

  Args:
    scalar_sum_factory: The factory that `build` was given. If `None`,
      `tff.aggregators.SumFactory` is used.
    *names: The scalars' names. `tff_ocs.secure_sums.SecureScalarSumFactory`
      knows the bounds of a scalar by its name.

  Returns:
    The process; its values are of `scalars_type(*names)`.

  Raises:
    TypeError: If `scalar_sum_factory` is not a
      `tff.aggregators.UnweightedAggregationFactory`.
  """
  factory = factory_arguments.check_sum_factory(
    'scalar_sum_factory', scalar_sum_factory
  )
  return factory.create(scalars_type(*names))


def scheme_output(
  state: tff.Value,
  probabilities: tff.Value,
  *,
  scalar_sum: Optional[tff.Value] = None,
  num_iterations: Union[tff.Value, int] = 0,
  scalars_per_client: Union[tff.Value, int] = 0,
) -> SchemeOutput:
  """Returns a `SchemeOutput`; Python integers are placed at `SERVER`.

  Args:
    state: The state, at `SERVER`.
    probabilities: {float32}@CLIENTS.
    scalar_sum: The measurements of the scheme's sums, if it has sums.
    num_iterations: int32@SERVER, or an integer.
    scalars_per_client: int32@SERVER, or an integer.

  Returns:
    The `SchemeOutput`.
  """
  if scalar_sum is None:
    scalar_sum = tff.federated_value((), tff.SERVER)
  return SchemeOutput(
    state,
    probabilities,
    scalar_sum,
    _int32_at_server(num_iterations),
    _int32_at_server(scalars_per_client),
  )


def whole(count: tf.Tensor) -> tf.Tensor:
  """Returns the number of clients in a sum of ones.

  Args:
    count: The sum, which is not a whole number if the sum is quantised.

  Returns:
    The nearest whole number.
  """
  return tf.round(count)


@tff.tensorflow.computation(CLIENT_TYPE)
def norm_and_count(client):
  """Returns a client's terms of the cohort's sum of norms and size."""
  return collections.OrderedDict(
    norm=tf.cast(client['norm'], tf.float64),
    clients=tf.cast(client['available'], tf.float64),
  )


def collect_norms(clients: tff.Value) -> tff.Value:
  """Reveals the norms of the available clients to the server.

  Args:
    clients: A structure of `CLIENT_TYPE` at `CLIENTS`.

  Returns:
    Their norms, without names, in an order that means nothing: float32 of shape
    [number of available clients], at `SERVER`.
  """

  @tff.tensorflow.computation(tff.TensorType(np.float32, [None, 1]))
  def only_column(rows):
    return tf.reshape(rows, [-1])

  return tff.federated_map(only_column, collect(clients, 'norm'))


def collect(clients: tff.Value, *names: str) -> tff.Value:
  """Reveals scalars of the available clients to the server, in any order.

  Args:
    clients: A structure with these scalars and `available` (bool), at
      `CLIENTS`, such as one of `CLIENT_TYPE`.
    *names: The names of float32 scalars in it.

  Returns:
    A float32 tensor of shape [number of available clients, len(names)], at
    `SERVER`.
  """
  rows_type = tff.TensorType(np.float32, [None, len(names)])

  @tff.tensorflow.computation
  def no_rows():
    # `federated_aggregate` needs a shape that is unknown to tracing.
    return tf.reshape(tf.constant([], tf.float32), [-1, len(names)])

  @tff.tensorflow.computation(rows_type, clients.type_signature.member)
  def append(rows, client):
    row = [[client[name] for name in names]]
    new = tf.boolean_mask(row, [client['available']])
    return tf.concat([rows, new], axis=0)

  @tff.tensorflow.computation(rows_type, rows_type)
  def join(some_rows, other_rows):
    return tf.concat([some_rows, other_rows], axis=0)

  @tff.tensorflow.computation(rows_type)
  def report(rows):
    return rows

  return tff.federated_aggregate(clients, no_rows(), append, join, report)


def _key(client):
  """Returns v_i = u_i / sqrt(c_i), by which p_i = min(v_i / tau, 1)."""
  norm = tf.cast(client['norm'], tf.float64)
  return norm / tf.sqrt(tf.cast(client['cost'], tf.float64))


def _int32_at_server(value):
  if isinstance(value, int):
    return tff.federated_value(np.int32(value), tff.SERVER)
  return value


def _threshold(keys, costs, expected_clients: float):
  """`probabilities.sampling_threshold` on float64 tensors of shape [n].

  Args:
    keys: The v_i = u_i / sqrt(c_i).
    costs: The costs c_i.
    expected_clients: m, or the budget.

  Returns:
    tau.
  """
  order = tf.argsort(keys, stable=True)
  ascending, costs = tf.gather(keys, order), tf.gather(costs, order)
  sums = tf.cumsum(costs * ascending)
  # m + l - n, with n - l first: without costs, these are whole numbers, so that
  # a small m keeps its digits.
  num_below_1 = expected_clients - tf.cumsum(
    costs, exclusive=True, reverse=True
  )
  # Where the one before has nothing left, the condition holds; with costs,
  # rounding must not decide that it does not.
  is_first = tf.concat([[0.0], num_below_1[:-1]], 0) <= 0
  fits = tf.logical_or(is_first, num_below_1 * ascending <= sums)
  holds = tf.logical_and(num_below_1 > 0, fits)
  # The thresholds at which the condition holds; Eq. (7) takes the last.
  thresholds = tf.boolean_mask(sums / num_below_1, holds)
  return tf.cond(
    tf.reduce_sum(costs) <= expected_clients,
    lambda: tf.constant(0.0, tf.float64),
    lambda: thresholds[-1],
  )


def _through_float32(x):
  return tf.cast(tf.cast(x, tf.float32), tf.float64)


@tff.tensorflow.computation(np.float64)
def _to_float32(x):
  return tf.cast(x, tf.float32)
