"""Processes of one round trip: TFF's deployment forms, and fused rounds.

TFF deploys a process in one of three forms. `MapReduceForm` and
`DistributeAggregateForm` are for fleets of devices; the mergeable form is for
one round over several workers. In all of them the server broadcasts once, then
the clients work, then it aggregates: a process that broadcasts what it has
summed in the same round, as OCS and AOCS do, has none of them. The functions of
this module are TFF's own, with an error that names a way out.

`fuse` runs a process in simulation as it would run deployed. It makes a round
faster, and its memory nearly independent of the size of the cohort.
"""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

import tensorflow_federated as tff

Process = TypeVar('Process', bound=tff.templates.IterativeProcess)


class FormError(ValueError):
  """Raised if a process does not have the form that is asked for."""


def map_reduce_form(
  process: tff.templates.IterativeProcess,
) -> tff.backends.mapreduce.MapReduceForm:
  """Compiles a round to `tff.backends.mapreduce.MapReduceForm`.

  Args:
    process: A process whose `next` takes a state at `SERVER` and the clients'
      data, and returns a new state and an output, both at `SERVER`.

  Returns:
    The form.

  Raises:
    FormError: If the process does not have this form.
    TypeError: If its `next` takes other arguments.
  """
  _check_two_arguments(process)
  with _naming_a_way_out('MapReduceForm', ''):
    return tff.backends.mapreduce.get_map_reduce_form_for_computation(
      process.next
    )


def distribute_aggregate_form(
  process: tff.templates.IterativeProcess,
) -> tff.backends.mapreduce.DistributeAggregateForm:
  """Compiles a round to `tff.backends.mapreduce.DistributeAggregateForm`.

  This form of TFF 0.87 refuses each `federated_aggregate`, and so the sum of
  senders and the compressors of this package:
  `tff_ocs.ClientSamplingFactory` needs
  `value_sum_factory=tff.aggregators.SumFactory()`.

  Args:
    process: As for `map_reduce_form`.

  Returns:
    The form.

  Raises:
    FormError: If the process does not have this form.
    TypeError: If its `next` takes other arguments.
  """
  _check_two_arguments(process)
  with _naming_a_way_out(
    'DistributeAggregateForm',
    ' This form of TFF 0.87 has no federated_aggregate either: use'
    ' value_sum_factory=tff.aggregators.SumFactory(), and no compressor.',
  ):
    return tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(
      process.next
    )


def mergeable_form(
  process: tff.templates.IterativeProcess,
) -> tff.framework.MergeableCompForm:
  """Compiles a round to `tff.framework.MergeableCompForm`.

  TFF cannot merge secure sums: a process that has some is refused.

  Args:
    process: As for `map_reduce_form`.

  Returns:
    The form.

  Raises:
    FormError: If the process does not have this form.
    TypeError: If its `next` takes other arguments.
  """
  _check_two_arguments(process)
  return mergeable_form_of(process.next)


def mergeable_form_of(
  computation: tff.Computation,
) -> tff.framework.MergeableCompForm:
  """Compiles a computation as `mergeable_form` compiles a round."""
  try:
    with _naming_a_way_out(
      'the mergeable form', ' TFF cannot merge secure sums either.'
    ):
      return tff.backends.native.compile_to_mergeable_comp_form(computation)
  except FormError as error:
    # TFF's compiler merges all other sums, or reports that they depend on each
    # other.
    if type(error.__cause__).__name__ != 'AfterMergeStructureError':
      raise
    raise FormError(
      'The computation has secure sums, which TFF cannot merge: without them it'
      ' runs over several workers, and with them in one.'
    ) from error


def fuse(process: Process) -> Process:
  """Returns the same process, with a client's round as one computation.

  TFF's worker runs each `federated_map` of a round over the whole cohort and
  keeps what it gave until the round ends: all clients' updates at a time. In
  the `MapReduceForm`, all that a client does is one computation, and only what
  it sends leaves it. The results are the same, bit for bit.

  The process is for simulation, in which secure sums are sums like others.

  Args:
    process: A `tff.templates.IterativeProcess`, or a
      `tff.learning.templates.LearningProcess`, as for `map_reduce_form`.

  Returns:
    A process of the same kind and with the same types.

  Raises:
    FormError: If the process does not have the `MapReduceForm`.
    TypeError: If its `next` takes other arguments.
  """
  plain_round = tff.backends.test.replace_secure_intrinsics_with_bodies(
    tff.backends.mapreduce.get_computation_for_map_reduce_form(
      map_reduce_form(process)
    )
  )
  next_type = process.next.type_signature
  result_type = next_type.result
  # The form has lost the Python containers of the types.
  with_containers = [
    tff.federated_computation(lambda value: value, part.member)
    for part in result_type
  ]

  # With one argument for all, their names stay as they are.
  @tff.federated_computation(next_type.parameter)
  def next_fn(given):
    state_and_output = plain_round(given[0], given[1])
    parts = [
      tff.federated_map(restore, part)
      for restore, part in zip(with_containers, state_and_output)
    ]
    names = tff.structure.name_list(result_type)
    if names:
      return result_type.python_container(**dict(zip(names, parts)))
    return result_type.python_container(parts)

  if isinstance(process, tff.learning.templates.LearningProcess):
    return tff.learning.templates.LearningProcess(
      process.initialize,
      next_fn,
      process.get_model_weights,
      process.set_model_weights,
      get_hparams_fn=process.get_hparams,
      set_hparams_fn=process.set_hparams,
    )
  return tff.templates.IterativeProcess(process.initialize, next_fn)


def _check_two_arguments(process) -> None:
  """Raises a `TypeError` unless `next` takes a state and the clients' data."""
  parameter = process.next.type_signature.parameter
  if not isinstance(parameter, tff.StructType) or len(parameter) != 2:
    raise TypeError(
      "process.next must take a state and the clients' data, found the"
      f' parameter {parameter}. An aggregation is deployed as a part of a'
      ' training process.'
    )


@contextlib.contextmanager
def _naming_a_way_out(form: str, reason_of_form: str) -> Iterator[None]:
  """Raises what TFF's compilers raise as a `FormError`.

  Args:
    form: The name of the form.
    reason_of_form: What else this form does not have.

  Yields:
    Nothing.
  """
  try:
    yield
  except Exception as error:  # TFF's compilers raise several kinds.
    raise FormError(
      f'The process does not have {form}, since a round needs more than one'
      ' round trip. OCS, AOCS, improvement factors and uniform sampling without'
      ' a cohort_size broadcast what they have summed in the same round. Use'
      ' ThresholdSampling (--sampling=threshold), FullParticipation or'
      f' UniformSampling(m, cohort_size=n) instead.{reason_of_form} TFF says:'
      f' {error}'
    ) from error
