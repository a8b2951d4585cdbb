"""One computation over several workers, each with a share of the clients.

TFF's compiler brings the computation to the mergeable form: what the clients
do, a sum (more exactly, an aggregation), and what the server makes of it. All
workers do their clients' part at the same time. Then the sum is passed from
worker to worker, and each adds its own clients to it. So values are added in
the order of the clients, as in one worker, and the result is the same, bit for
bit, however many workers there are.

TFF's `MergeableCompExecutionContext` adds the workers' sums instead, in the
order in which the workers are ready. That changes the last bits, with three or
more workers from run to run. It also waits for its workers in one event loop,
which TFF's `RemoteExecutor` blocks, so that they compute one after the other.
"""

import asyncio
import concurrent.futures
import functools
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Union

import numpy as np
import tensorflow_federated as tff

from tff_ocs.runtime import executors
from tff_ocs.runtime import forms
from tff_ocs.runtime import worker_threads

_SECONDS_PER_CALL = 0.5


class _Parts(NamedTuple):
  """A computation in parts, in the order in which they are run.

  Attributes:
    work: Gives the clients' contributions, from the computation's argument.
    begin: Gives the total of the first share's contributions.
    add: Gives the total of a share's contributions and the total before.
    finish: Gives the result, from the argument and the last total.
  """

  work: tff.Computation
  begin: tff.Computation
  add: tff.Computation
  finish: tff.Computation


class Distributor:
  """Runs computations, each over all of several workers."""

  def __init__(
    self,
    threads: Sequence[worker_threads.WorkerThread],
    num_shares: int,
  ):
    """Initializes `Distributor`.

    Args:
      threads: The workers' threads, which run computations as they are given,
        without compiling them.
      num_shares: Into how many shares the clients of a computation are divided.
        Each worker takes the next one when it has finished its last.
    """
    self._threads = threads
    self._num_shares = num_shares
    self._compile = functools.lru_cache(_compile)

  def invoke(self, computation: Any, arg: Any) -> concurrent.futures.Future:
    """Runs a computation; returns its result as a future.

    A computation without values of clients in its argument, or with such values
    in its result, runs in the first worker.

    Args:
      computation: The computation.
      arg: Its argument, if it has one, as for `tff.framework.SyncContext`.

    Returns:
      The future.

    Raises:
      FormError: If the computation cannot be split.
      TypeError: If the values of clients are not in lists.
      ValueError: If the lists differ in length.
    """
    compiled = self._compile(computation)
    if not isinstance(compiled, _Parts):
      return self._threads[0].invoke(compiled, arg)
    shares = list(
      _split(arg, compiled.work.type_signature.parameter, self._num_shares)
    )
    num_workers = min(len(self._threads), len(shares))
    totals: dict[int, concurrent.futures.Future] = {
      i: concurrent.futures.Future() for i in range(len(shares))
    }
    last_total = totals[len(shares) - 1]
    for first in range(num_workers):
      indices = range(first, len(shares), num_workers)
      self._threads[first].start(
        functools.partial(_add_up, compiled, shares, totals, indices)
      )
    last_worker = (len(shares) - 1) % num_workers
    return self._threads[last_worker].start(
      functools.partial(_finish, compiled, shares[-1], last_total)
    )


def _compile(computation) -> Union[_Parts, tff.Computation]:
  """Returns the computation as workers can run it, in parts if it is split."""
  type_spec = computation.type_signature
  if not isinstance(type_spec, tff.FunctionType):
    return computation  # An error of TFF's.
  is_split = _has_clients(type_spec.parameter) and not _has_clients(
    type_spec.result
  )
  if not is_split:
    return _to_native(computation)
  form = forms.mergeable_form_of(computation)
  up_to_merge = tff.framework.to_call_dominant(
    form.up_to_merge.to_building_block()
  )
  # The last of the local values is the aggregation, which is the result.
  *local_values, (_, aggregation) = up_to_merge.result.locals
  contributions, zero, *functions = aggregation.argument
  create = tff.framework.ConcreteComputation.from_building_block
  work = create(
    tff.framework.Lambda(
      up_to_merge.parameter_name,
      up_to_merge.parameter_type,
      tff.framework.Block(local_values, contributions),
    )
  )
  create_zero = create(dict(local_values)[zero.name].function)
  accumulate, merge, report = map(create, functions)
  total_type = accumulate.type_signature.parameter[0]

  @tff.federated_computation(contributions.type_signature)
  def begin(contributions):
    return tff.federated_aggregate(
      contributions, create_zero(), accumulate, merge, report
    )

  @tff.federated_computation(contributions.type_signature, total_type)
  def add(contributions, total):
    return tff.federated_aggregate(
      contributions, total, accumulate, merge, report
    )

  return _Parts(*map(_to_native, (work, begin, add, form.after_merge)))


def _to_native(computation):
  """Compiles a computation to what a worker runs; keeps its Python types."""
  return tff.framework.ConcreteComputation.with_type(
    tff.backends.native.desugar_and_transform_to_native(computation),
    computation.type_signature,
  )


def _has_clients(type_spec: Any) -> bool:
  """Whether a type has values that differ between clients."""
  if isinstance(type_spec, tff.FederatedType):
    return type_spec.placement is tff.CLIENTS and not type_spec.all_equal
  return isinstance(type_spec, tff.StructType) and any(
    _has_clients(part) for _, part in tff.structure.iter_elements(type_spec)
  )


# Coroutines of the threads.


async def _add_up(
  parts: _Parts,
  shares: Sequence['_Share'],
  totals: dict[int, concurrent.futures.Future],
  indices: Sequence[int],
  context: executors.WorkerContext,
) -> None:
  """Adds a worker's shares, one after the other, to the totals before them."""
  for position, i in enumerate(indices):
    contributions = _Contributions(parts.work, shares[i])
    try:
      if i == 0:
        total = await context.invoke(parts.begin, contributions)
      else:
        total_type = parts.add.type_signature.parameter[1]
        total = await context.invoke(
          parts.add,
          tff.structure.Struct.unnamed(
            contributions, _Total(totals[i - 1], total_type)
          ),
        )
    except Exception as error:
      # The computation has failed. A worker that is lost would let each of its
      # other shares wait.
      for j in indices[position:]:
        totals[j].set_exception(error)
      return
    totals[i].set_result(total)
    # As large as a model, and not needed any more.
    totals.pop(i - 1, None)


async def _finish(
  parts: _Parts,
  share: '_Share',
  total: concurrent.futures.Future,
  context: executors.WorkerContext,
) -> Any:
  """Returns the result, once there is the last total."""
  return await context.invoke(
    parts.finish,
    tff.structure.Struct.unnamed(share.arg, await asyncio.wrap_future(total)),
  )


class _Contributions(
  tff.framework.Ingestable, tff.framework.CardinalityCarrying
):
  """The contributions of a share's clients, which stay in the worker."""

  def __init__(self, work: tff.Computation, share: '_Share'):
    self._work = work
    self._share = share

  @property
  def type_signature(self):
    return self._work.type_signature.result

  @property
  def cardinality(self):
    return {tff.CLIENTS: self._share.num_clients}

  async def ingest(self, executor):
    work_type = self._work.type_signature
    arg = await _send(executor, self._share.arg, work_type.parameter)
    work = await executor.create_value(self._work, work_type)
    # The worker begins at once, and does not wait for the total.
    return await executor.create_call(work, arg)


class _Total(tff.framework.Ingestable, tff.framework.CardinalityCarrying):
  """The total of all shares before, once it is there."""

  def __init__(self, total: concurrent.futures.Future, type_spec: tff.Type):
    self._total = total
    self._type_spec = type_spec

  @property
  def type_signature(self):
    return self._type_spec

  @property
  def cardinality(self):
    return {}

  async def ingest(self, executor):
    future = asyncio.wrap_future(self._total)
    while not (await asyncio.wait([future], timeout=_SECONDS_PER_CALL))[0]:
      # Raises an error if the worker is lost, so that it starts again at once.
      await executor.create_value(True, tff.TensorType(np.bool_))
    return await executor.create_value(future.result(), self._type_spec)


async def _send(executor, value, type_spec):
  """Sends a value to the worker, placement by placement."""
  if not isinstance(type_spec, tff.StructType):
    return await executor.create_value(value, type_spec)
  return await executor.create_struct(
    tff.structure.Struct(
      [
        (name, await _send(executor, part, part_type))
        for part, (name, part_type) in zip(
          value, tff.structure.iter_elements(type_spec)
        )
      ]
    )
  )


# Shares.


class _Share(NamedTuple):
  """A share of the clients.

  Attributes:
    arg: The computation's argument, with the values of these clients only.
    num_clients: The number of clients.
  """

  arg: Any
  num_clients: int


def _split(arg: Any, type_spec: Any, num_shares: int) -> Iterator[_Share]:
  """Divides clients into shares whose sizes differ by at most 1.

  Args:
    arg: An argument.
    type_spec: Its type.
    num_shares: The number of shares.

  Yields:
    The shares in the order of the clients; fewer if there are fewer clients,
    and one if there is none.
  """
  num_clients = _count_clients(arg, type_spec)
  num_shares = max(1, min(num_shares, num_clients))
  for i in range(num_shares):
    start, stop = (num_clients * k // num_shares for k in (i, i + 1))
    yield _Share(_take(arg, type_spec, slice(start, stop)), stop - start)


def _count_clients(arg, type_spec):
  """Returns the number of clients; 0 if the argument has no clients' values."""
  if isinstance(type_spec, tff.StructType):
    cardinalities = {}
    for _, part_type, part in _iter_elements(arg, type_spec):
      if _has_clients(part_type):
        cardinalities = tff.framework.merge_cardinalities(
          cardinalities, {tff.CLIENTS: _count_clients(part, part_type)}
        )
    return cardinalities.get(tff.CLIENTS, 0)
  if not isinstance(arg, (list, tuple)):
    raise TypeError(
      'The values of clients must be in a list, one for each client, found'
      f' {type(arg)}.'
    )
  return len(arg)


def _take(value, type_spec, clients):
  """Returns the value for a slice of the clients."""
  if isinstance(type_spec, tff.StructType):
    return tff.structure.Struct(
      [
        (name, _take(part, part_type, clients))
        for name, part_type, part in _iter_elements(value, type_spec)
      ]
    )
  if _has_clients(type_spec):
    return [_to_arrays(x, type_spec.member) for x in value[clients]]
  if isinstance(type_spec, tff.FederatedType):
    return _to_arrays(value, type_spec.member)
  return _to_arrays(value, type_spec)


def _to_arrays(value, type_spec):
  """Replaces TensorFlow's tensors by arrays, as TFF's contexts do."""
  if isinstance(type_spec, tff.StructType):
    return tff.structure.Struct(
      [
        (name, _to_arrays(part, part_type))
        for name, part_type, part in _iter_elements(value, type_spec)
      ]
    )
  return tff.tensorflow.transform_args(value)


def _iter_elements(value, type_spec):
  """Yields the name, the type and the value of each element of a structure."""
  value = tff.structure.from_container(value)
  names = tff.structure.name_list_with_nones(value)
  expected = tff.structure.name_list_with_nones(type_spec)
  if len(names) != len(expected) or any(
    found not in (None, name) for found, name in zip(names, expected)
  ):
    raise TypeError(
      f'Expected a structure with the elements {expected}, found {names}.'
    )
  for (name, part_type), part in zip(
    tff.structure.iter_elements(type_spec), value
  ):
    yield name, part_type, part
