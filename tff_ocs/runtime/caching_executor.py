"""An executor that does not send a worker what the worker has.

TFF's `RemoteExecutor` sends the worker each argument, and the computation
itself, in each call. A training loop passes the state that the last call
returned to the next call of the same computation, untouched but for a number
such as the cohort's weight (`tff_ocs.set_cohort_weight`): with the paper's CNN,
6.7 MB that are copied a dozen times on their way.
"""

import asyncio
import functools
import weakref
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np
import tensorflow_federated as tff

# A loop repeats its computations; a distributed round has four.
MAX_COMPUTATIONS = 4


class _Part(NamedTuple):
  """A value at the server that the last call has returned.

  Attributes:
    result: The whole result in the worker.
    position: The value's index in the result, or `None` for all of it.
    type_spec: The value's type.
    leaves: The arrays and scalars that the caller got.
  """

  result: Any
  position: Optional[int]
  type_spec: tff.FederatedType
  leaves: list[object]


class CachingExecutor(tff.framework.RemoteExecutor):
  """Recognizes arguments that are results of the last call, by identity.

  Scalars in them may have been replaced; they are replaced in the worker, too.

  Whoever makes the calls passes each final result to `keep`.
  """

  def __init__(self, stub: tff.framework.RemoteExecutorStub):
    """Initializes `CachingExecutor`.

    Args:
      stub: The connection to the worker.
    """
    # TFF's executor lets values pile up in the worker, and disposes of 20 at a
    # time: several rounds' worth of clients' data and updates.
    super().__init__(stub, dispose_batch_size=1)
    # By asyncio task, since the calls of several tasks may alternate.
    self._last_calls: Any = weakref.WeakKeyDictionary()
    self._parts: list[_Part] = []
    # By identity, as hashing a computation is slow; the last used at the end.
    self._computations: dict[int, tuple[object, Any]] = {}
    self._last_replacement: tuple[object, Any] = (None, None)

  def keep(self, result: object) -> None:
    """Lets the next call use what the last call of this task has returned.

    Args:
      result: The last call's result, as the caller gets it.
    """
    value = self._last_calls.pop(asyncio.current_task(), None)
    if value is not None:
      self._parts = _find_parts(value, result)

  def forget(self) -> None:
    """Drops all values kept. Until then this object cannot be deleted."""
    self._last_calls.clear()
    self._parts = []
    self._computations = {}
    self._last_replacement = (None, None)

  async def create_value(self, value, type_spec=None):
    if isinstance(value, tff.Computation):
      known = self._computations.pop(id(value), None)
      if known is None:
        known = value, await super().create_value(value, type_spec)
      self._computations[id(value)] = known
      if len(self._computations) > MAX_COMPUTATIONS:
        del self._computations[next(iter(self._computations))]
      return known[1]
    if self._parts and _is_at_server(type_spec):
      leaves = _flatten(value)
      for part in self._parts:
        if type_spec == part.type_spec and len(leaves) == len(part.leaves):
          new = {
            position: leaf
            for position, leaf in enumerate(leaves)
            if leaf is not part.leaves[position]
          }
          if len(new) < len(leaves) and not any(map(np.ndim, new.values())):
            return await self._create_from(part, new)
    return await super().create_value(value, type_spec)

  async def _create_from(self, part: _Part, new: dict[int, object]):
    """Returns a part's value, with new scalars at some positions."""
    value = part.result
    if part.position is not None:
      value = await self.create_selection(part.result, part.position)
    if not new:
      return value
    computation = _build_replacement(part.type_spec, tuple(new))
    if self._last_replacement[0] is not computation:
      created = await super().create_value(computation)
      self._last_replacement = computation, created
    _, scalars_type = computation.type_signature.parameter
    scalars = await super().create_value(tuple(new.values()), scalars_type)
    return await super().create_call(
      self._last_replacement[1], await self.create_struct([value, scalars])
    )

  async def create_call(self, comp, arg=None):
    value = await super().create_call(comp, arg)
    self._last_calls[asyncio.current_task()] = value
    return value


@functools.lru_cache
def _build_replacement(
  type_spec: tff.FederatedType, positions: Sequence[int]
) -> tff.Computation:
  """Returns the computation that replaces scalars in a value at the server."""
  leaf_types = _flatten(
    tff.types.structure_from_tensor_type_tree(lambda t: t, type_spec.member)
  )

  @tff.tensorflow.computation(
    type_spec.member, [leaf_types[position] for position in positions]
  )
  def replace(value, scalars):
    value = tff.structure.from_container(value, recursive=True)
    leaves = tff.structure.flatten(value)
    for position, scalar in zip(positions, scalars):
      leaves[position] = scalar
    return tff.structure.pack_sequence_as(value, leaves)

  _, scalars_type = replace.type_signature.parameter

  @tff.federated_computation(
    type_spec, tff.FederatedType(scalars_type, tff.SERVER)
  )
  def replace_at_server(value, scalars):
    return tff.federated_map(replace, (value, scalars))

  return tff.backends.native.desugar_and_transform_to_native(replace_at_server)


def _find_parts(value: Any, result: Any) -> list[_Part]:
  """Returns the parts of a result that can be an argument of the next call."""
  type_spec = value.type_signature
  parts = []
  if _is_at_server(type_spec):
    parts.append(_Part(value, None, type_spec, _flatten(result)))
  elif isinstance(type_spec, tff.StructType):
    elements = tff.structure.from_container(result)
    for index, (_, part_type) in enumerate(
      tff.structure.iter_elements(type_spec)
    ):
      if _is_at_server(part_type):
        leaves = _flatten(elements[index])
        parts.append(_Part(value, index, part_type, leaves))
  return [part for part in parts if all(map(_is_unchangeable, part.leaves))]


def _is_at_server(type_spec: Any) -> bool:
  return isinstance(type_spec, tff.FederatedType) and type_spec.all_equal


def _flatten(value: Any) -> list[object]:
  """Returns the arrays and scalars in the order in which TFF sends them."""
  try:
    value = tff.structure.from_container(value, recursive=True)
  except TypeError:
    pass  # Not a container.
  return tff.structure.flatten(value)


def _is_unchangeable(leaf: object) -> bool:
  if isinstance(leaf, np.ndarray):
    return not leaf.flags.writeable
  return isinstance(leaf, np.generic)
