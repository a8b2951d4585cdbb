"""The measurements of a round: participants, bits, improvement factors.

`ClientSamplingFactory` describes them for its users.
"""

import collections
from collections.abc import Callable
from collections.abc import Mapping
from typing import NamedTuple
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs import communication
from tff_ocs import improvement
from tff_ocs import schemes

# The counts of each client, see `count_client`.
COUNT_NAMES = (
  'clients',
  'available',
  'participants',
  'probability',
  'non_finite',
  'invalid_probability',
)

# In the measurements of `tff.aggregators.SecureSumFactory`, also deep inside.
_CLIPPED_NAMES = ('secure_upper_clipped_count', 'secure_lower_clipped_count')


class MeasurementsProgram(NamedTuple):
  """The measurements as a part of a larger computation.

  Attributes:
    initialize: A computation without arguments that returns the state.
    next: A Python function, to be called while a federated computation is
      traced, that returns the new state and the measurements, by name, at
      `SERVER`. Its arguments are federated values: the state; the clients'
      counts, of `COUNT_NAMES`; the clients as a scheme sees them; the
      `SchemeOutput`; and the measurements of the sums of values and of weights.
  """

  initialize: tff.Computation
  next: Callable[..., tuple[tff.Value, Mapping[str, tff.Value]]]


def count_client(*, available, finite, sends, norm, p, p_as_computed):
  """Returns what a client adds to the counts of a round.

  Args:
    available: Whether the client is available (bool).
    finite: Whether its weight and what it would send are finite (bool).
    sends: Whether it sends (bool).
    norm: Its norm (float32).
    p: Its probability (float64), in [0, 1].
    p_as_computed: The probability as the scheme computed it (float32).

  Returns:
    An `OrderedDict` of float64 scalars in [0, 1].
  """
  # A client that never sends what it has biases the aggregate, as does one
  # whose update is scaled by a probability that it does not send with.
  is_valid = tf.logical_and(
    tf.logical_and(p_as_computed >= 0, p_as_computed <= 1),
    tf.logical_or(p_as_computed > 0, norm <= 0),
  )
  counts = collections.OrderedDict(
    clients=tf.constant(True),
    available=available,
    participants=sends,
    probability=tf.where(tf.logical_and(available, finite), p, 0.0),
    non_finite=tf.logical_and(available, tf.logical_not(finite)),
    invalid_probability=tf.logical_and(available, tf.logical_not(is_valid)),
  )
  return tf.nest.map_structure(lambda x: tf.cast(x, tf.float64), counts)


def build(
  *,
  scheme: schemes.SamplingScheme,
  scalar_sum_factory: tff.aggregators.UnweightedAggregationFactory,
  bits_per_update: int,
  improvement_expected_clients: Optional[float],
  measure_norms: bool,
) -> MeasurementsProgram:
  """Builds the program.

  Args:
    scheme: The scheme that computes the probabilities.
    scalar_sum_factory: Sums the counts.
    bits_per_update: The bits that a client sends with its update.
    improvement_expected_clients: The m for which the improvement factors are
      measured; if `None`, they are not.
    measure_norms: Whether the clients' norms are revealed to the server.

  Returns:
    A `MeasurementsProgram`.
  """
  counts_sum = schemes.create_scalar_sum(scalar_sum_factory, *COUNT_NAMES)
  factors = None
  if improvement_expected_clients is not None:
    factors = improvement.build(
      improvement_expected_clients, scheme, scalar_sum_factory
    )

  @tff.tensorflow.computation(
    schemes.scalars_type(*COUNT_NAMES), np.int32, np.int32
  )
  def summarize(counts, num_iterations, scalars_per_client):
    # Quantised secure sums give counts that are not whole.
    number = tf.nest.map_structure(
      lambda x: tf.cast(schemes.whole(x), tf.int64), counts
    )
    return collections.OrderedDict(
      cohort_size=tf.cast(number['clients'], tf.int32),
      available=tf.cast(number['available'], tf.int32),
      participants=tf.cast(number['participants'], tf.int32),
      expected_participants=tf.cast(counts['probability'], tf.float32),
      num_iterations=num_iterations,
      non_finite_clients=tf.cast(number['non_finite'], tf.int32),
      invalid_probabilities=tf.cast(number['invalid_probability'], tf.int32),
      uplink_bits=communication.uplink_bits(
        participants=number['participants'],
        bits_per_update=bits_per_update,
        cohort_size=number['available'],
        scalars_per_client=tf.cast(scalars_per_client, tf.int64),
      ),
    )

  @tff.federated_computation
  def init_fn():
    state = collections.OrderedDict(counts=counts_sum.initialize())
    if factors is not None:
      state['factors'] = factors.initialize()
    return tff.federated_zip(state)

  def next_fn(state, counts, clients, of_scheme, of_values, of_weights):
    sums = counts_sum.next(state['counts'], counts)
    measurements = _by_name(
      tff.federated_map(
        summarize,
        (sums.result, of_scheme.num_iterations, of_scheme.scalars_per_client),
      )
    )
    new_state = collections.OrderedDict(counts=sums.state)
    if factors is not None:
      new_state['factors'], of_factors = factors.next(
        state['factors'], clients, of_scheme.probabilities
      )
      measurements.update(_by_name(of_factors))
    if measure_norms:
      measurements['norms'] = schemes.collect_norms(clients)
    measurements.update(
      _count_clipped(
        scalars=tff.federated_zip((of_scheme.scalar_sum, sums.measurements)),
        values=of_values,
        weights=of_weights,
      )
    )
    measurements.update(
      scheme=of_scheme.scalar_sum,
      value_sum=of_values,
      weight_sum=of_weights,
      scalar_sum=sums.measurements,
    )
    return tff.federated_zip(new_state), measurements

  return MeasurementsProgram(init_fn, next_fn)


def _by_name(structure: tff.Value) -> dict[str, tff.Value]:
  """Returns the parts of a structure at `SERVER`, by name."""
  names = tff.structure.name_list(structure.type_signature.member)
  return collections.OrderedDict((name, structure[name]) for name in names)


def _count_clipped(**of_sums: tff.Value) -> dict[str, tff.Value]:
  """Returns how often clients had something clipped, by kind of sum.

  Args:
    **of_sums: For each kind of sum its measurements, at `SERVER`.

  Returns:
    `clipped`, an `OrderedDict` at `SERVER`; nothing if none of the measurements
    counts what is clipped.
  """
  all_measurements = tff.federated_zip(collections.OrderedDict(of_sums))
  type_spec = all_measurements.type_signature.member
  if not _find_clipped(type_spec):
    return {}

  @tff.tensorflow.computation(type_spec)
  def count(measurements):
    return collections.OrderedDict(
      (kind, sum(_find_clipped(part), tf.constant(0)))
      for kind, part in measurements.items()
    )

  return {'clipped': tff.federated_map(count, all_measurements)}


def _find_clipped(measurements) -> list:
  """Returns the counts of clipped values in a structure, or in its type."""
  if isinstance(measurements, (tff.StructType, tff.structure.Struct)):
    parts = tff.structure.iter_elements(measurements)
  elif isinstance(measurements, Mapping):
    parts = measurements.items()
  elif isinstance(measurements, (tuple, list)):
    parts = [(None, part) for part in measurements]
  else:
    return []
  found = []
  for name, part in parts:
    found += [part] if name in _CLIPPED_NAMES else _find_clipped(part)
  return found
