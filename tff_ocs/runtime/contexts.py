"""TFF execution contexts that leave no worker process behind.

TFF 0.87 runs computations in a C++ worker process. Its default context starts
a worker that can outlive the program (and then keeps the program's standard
output open), and waits for ever for one that cannot start. With the contexts of
this module

*   a worker ends with its context, and in any case with this process;
*   a worker that cannot start, or keeps dying, is a `WorkerError`;
*   a worker can be reached from this host only;
*   the worker is set up for simulation, see
    `tff_ocs.runtime.worker_process.create_environment`.

Each context is a `tff.program.FederatedContext` too, so that TFF's program
logic runs in it.
"""

import atexit
import concurrent.futures
import contextlib
import os
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import cast
from typing import Optional

import tensorflow_federated as tff

from tff_ocs import arguments
from tff_ocs.runtime import distribution
from tff_ocs.runtime import worker_process
from tff_ocs.runtime import worker_threads
from tff_ocs.runtime import workers as workers_lib
from tff_ocs.runtime.worker_process import WorkerError

_INTERRUPT_SECONDS = 1.0


def use_local_context(
  *, start_timeout: float = worker_process.START_TIMEOUT_SECONDS
) -> contextlib.AbstractContextManager[tff.program.FederatedContext]:
  """Runs TFF computations in a worker process of its own.

  The worker starts at the first computation. If it dies, the computation is
  retried on a new one, at most three times. The worker listens on 127.0.0.1
  alone; where the kernel does not allow that (before Linux 5.9, or in a
  container that forbids seccomp filters), a warning is logged once.

  TFF's program logic runs in this context as well:

    with tff_ocs.execution.use_local_context():
      asyncio.run(tff.learning.programs.train_model(train_process=..., ...))

  A computation returns values, rather than references to values to come, so
  that training and evaluation take turns. One that is interrupted, for example
  by Ctrl-C in a notebook, goes on in the worker, and the next one waits for it;
  leaving the context ends both.

  Args:
    start_timeout: How long to wait for a worker to answer, in seconds.

  Returns:
    A context manager. It installs the context, a
    `tff.program.FederatedContext`, for the calling thread.

  Raises:
    ValueError: If `start_timeout` is not above 0. Also raised by a computation
      that would call a Python function in the worker.
    WorkerError: By a computation whose worker cannot be started, or dies each
      time.
  """
  return _use_one(workers_lib.LocalWorker(start_timeout))


def use_remote_context(
  address: str,
  *,
  connect_timeout: float = worker_process.START_TIMEOUT_SECONDS,
) -> contextlib.AbstractContextManager[tff.program.FederatedContext]:
  """Runs TFF computations in a worker that was started separately.

  The connection has neither encryption nor credentials: use it within a trusted
  host or network, or through a tunnel. A computation that loses it is retried
  over a new connection, at most three times.

  Args:
    address: The worker's 'host:port'.
    connect_timeout: How long to wait for the worker to answer, in seconds.

  Returns:
    A context manager. It installs the context, a
    `tff.program.FederatedContext`, for the calling thread.

  Raises:
    ValueError: If `address` is not of the form 'host:port', or
      `connect_timeout` is not above 0. Also raised by a computation that would
      call a Python function in the worker.
    WorkerError: By a computation, if the worker cannot be reached, or is lost
      each time.
  """
  return _use_one(workers_lib.RemoteWorker(address, connect_timeout))


def use_secure_test_context(
  *, start_timeout: float = worker_process.START_TIMEOUT_SECONDS
) -> contextlib.AbstractContextManager[tff.program.FederatedContext]:
  """Runs computations with secure sums, without cryptography: for tests only.

  TFF's open-source runtime has no secure summation protocol. In this context,
  as in `tff.backends.test`, secure sums are computed in the clear, with the
  same clipping and quantisation.

  Args:
    start_timeout: As for `use_local_context`.

  Returns:
    A context manager, as of `use_local_context`.

  Raises:
    ValueError: As for `use_local_context`.
    WorkerError: As for `use_local_context`.
  """

  def compile_insecurely(computation):
    computation = tff.backends.test.replace_secure_intrinsics_with_bodies(
      computation
    )
    return tff.backends.native.desugar_and_transform_to_native(computation)

  return _use_one(workers_lib.LocalWorker(start_timeout), compile_insecurely)


def use_distributed_context(
  addresses: Optional[Sequence[str]] = None,
  *,
  workers: Optional[int] = None,
  num_subrounds: Optional[int] = None,
  start_timeout: float = worker_process.START_TIMEOUT_SECONDS,
) -> contextlib.AbstractContextManager[tff.program.FederatedContext]:
  """Runs each TFF computation over several workers.

  The clients of a computation, in their order, are divided into shares of equal
  size. The workers do their clients' work at the same time; then the sum is
  passed from worker to worker, and each adds its clients to it. The result is
  that of `use_local_context`, bit for bit, for any number of workers and of
  shares.

  What clients send must not depend on a sum of the same computation:
  `tff_ocs.ThresholdSampling`, `tff_ocs.FullParticipation` and
  `tff_ocs.UniformSampling(m, cohort_size=n)` can be distributed, OCS and AOCS
  cannot. Neither can secure sums.

  A worker that is lost does its current share again, at most three times: a new
  local worker, or the remote one once it answers again. Computations without
  clients, and those whose result has values of clients, run in one worker.

  Args:
    addresses: The 'host:port' of workers that were started separately, as for
      `use_remote_context`.
    workers: The number of workers to start on this machine, which share its
      cores, instead of `addresses`.
    num_subrounds: The number of shares; by default the number of workers. More
      of them than workers take less memory, since a worker holds one at a time.
    start_timeout: How long to wait for each worker to answer, in seconds.

  Returns:
    A context manager, as of `use_local_context`.

  Raises:
    TypeError: If `addresses` is a string.
    ValueError: If not exactly one of `addresses` and `workers` is given, an
      address is not of the form 'host:port' or is given twice, or a number is
      not above 0. Also raised by a computation that cannot be distributed, or
      would call a Python function in a worker.
    WorkerError: By a computation, as for `use_local_context` and
      `use_remote_context`.
  """
  if (addresses is None) == (workers is None):
    raise ValueError(
      'Either addresses or workers must be given, found'
      f' addresses={addresses!r} and workers={workers!r}.'
    )
  if addresses is None:
    num_workers = arguments.check_integer('workers', cast(int, workers))
    all_workers: list[workers_lib.Worker] = [
      workers_lib.LocalWorker(start_timeout, num_on_machine=num_workers)
      for _ in range(num_workers)
    ]
  else:
    all_workers = [
      workers_lib.RemoteWorker(
        address, start_timeout, timeout_name='start_timeout'
      )
      for address in _check_addresses(addresses)
    ]
  if num_subrounds is None:
    num_subrounds = len(all_workers)
  num_shares = arguments.check_integer('num_subrounds', num_subrounds)

  def create():
    threads = [
      worker_threads.WorkerThread(worker, None) for worker in all_workers
    ]
    distributor = distribution.Distributor(threads, num_shares)
    return _Context(threads, distributor.invoke)

  return _use(create)


def _check_addresses(addresses):
  """Returns the addresses if there is one at least and none is twice there."""
  if isinstance(addresses, str):
    raise TypeError(
      f'addresses must be a list of addresses, found {addresses!r}.'
    )
  if not addresses:
    raise ValueError('addresses must not be empty.')
  for address in addresses:
    if list(addresses).count(address) > 1:
      raise ValueError(f'addresses has {address!r} more than once.')
  return addresses


class _Context(tff.program.FederatedContext):
  """Runs computations in workers, and waits for them."""

  def __init__(
    self,
    threads: Sequence[worker_threads.WorkerThread],
    start: Callable[[Any, Any], concurrent.futures.Future],
  ):
    """Initializes `_Context`.

    Args:
      threads: The workers' threads.
      start: Starts a computation, with its argument, in them.
    """
    self._threads = threads
    self._start = start
    self._pid = os.getpid()

  def invoke(self, comp, arg):
    # Would wait for ever: a forked process has none of its parent's threads.
    if os.getpid() != self._pid:
      raise WorkerError(
        'A TFF context does not work in a process forked from its own; enter'
        ' one in each process.'
      )
    future = self._start(comp, arg)
    # A Ctrl-C that comes just before Python starts to wait is seen only when
    # that wait ends.
    while not future.done():
      concurrent.futures.wait([future], _INTERRUPT_SECONDS)
    return future.result()

  def close(self) -> None:
    """Ends the computations, the threads, and the workers of this context."""
    # A forked process has a copy of the context, but what the context runs on
    # is not the copy's to end.
    if os.getpid() == self._pid:
      for thread in self._threads:
        thread.close()


def _use_one(
  worker: workers_lib.Worker, *compiler_fn: Callable
) -> contextlib.AbstractContextManager[_Context]:
  """As `_use`, with one worker."""

  def create():
    thread = worker_threads.WorkerThread(worker, *compiler_fn)
    return _Context([thread], thread.invoke)

  return _use(create)


@contextlib.contextmanager
def _use(create: Callable[[], _Context]) -> Iterator[_Context]:
  """Installs a context for the calling thread and closes it in the end."""
  context = create()
  # A context that was never left, as in a notebook, would be closed at the very
  # end of the program: without the threads that it needs, so it would hang.
  atexit.register(context.close)
  try:
    with tff.framework.get_context_stack().install(context):
      yield context
  finally:
    atexit.unregister(context.close)
    context.close()
