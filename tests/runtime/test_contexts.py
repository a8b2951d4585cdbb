"""Workers start, are replaced and end as promised, however a program ends."""

import asyncio
import concurrent.futures
import contextlib
import gc
import http.server
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import grpc
import numpy as np
import portpicker
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs.runtime import contexts

# Starts of a worker take about a second; the rest is room for a busy machine.
_PATIENCE_SECONDS = 60


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _total(values):
  return tff.federated_sum(values)


# Writes DIRECTORY/started, then runs until there is a file DIRECTORY/go, so
# that a test knows, and decides, when it is in the middle of a computation.
@tff.tensorflow.computation(np.str_)
def _wait_for_go(directory):
  write = tf.io.write_file(directory + '/started', '')
  with tf.control_dependencies([write]):
    (turns,) = tf.while_loop(
      lambda _: tf.equal(tf.size(tf.io.matching_files(directory + '/go')), 0),
      lambda turns: (turns + 1,),
      (tf.constant(0),),
    )
  return tf.minimum(turns, 0) + 42


def _await(condition, what):
  deadline = time.monotonic() + _PATIENCE_SECONDS
  while not condition():
    assert time.monotonic() < deadline, f'waited in vain for {what}'
    time.sleep(0.02)


def _workers():
  """The workers that this process has now."""
  found = set()
  for child in psutil.Process().children(recursive=True):
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):
      if child.cmdline()[0].endswith('worker_binary'):
        found.add(child)
  return found


def _is_alive(process):
  with contextlib.suppress(psutil.NoSuchProcess):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  return False


def _await_end(worker):
  try:
    _await(lambda: not _is_alive(worker), 'the end of the worker')
  finally:
    # A test that fails leaves none behind either.
    with contextlib.suppress(psutil.NoSuchProcess):
      worker.kill()


@pytest.fixture
def new_workers():
  """Finds the workers that a test started; the session has one of its own."""
  old = _workers()
  yield lambda: _workers() - old
  assert _workers() - old == set()


def _in_thread(function):
  """Runs `function` in a thread; fails, rather than hangs, if it hangs."""
  # Not an executor: its threads are joined at the end of the program.
  future = concurrent.futures.Future()

  def run():
    try:
      future.set_result(function())
    except BaseException as error:
      future.set_exception(error)

  threading.Thread(target=run, daemon=True).start()
  return future


def _script(path, text):
  path.write_text(text)
  path.chmod(0o755)
  return path


# How a program ends.

_PROGRAM = """
import os, sys, time
import tff_ocs
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff
from tff_ocs.runtime import contexts

def children():
  return psutil.Process().children(recursive=True)

@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(values)

@tff.tensorflow.computation(np.str_)
def run_for_ever(path):
  write = tf.io.write_file(path, '')
  with tf.control_dependencies([write]):
    return tf.while_loop(lambda _: True, lambda i: (i + 1,), (tf.constant(0),))

# Neither the import nor the making of a computation starts a worker.
tff_ocs.ClientSamplingFactory(tff_ocs.UniformSampling(1.0)).create(
  tff.TensorType(np.float32, [2]), tff.TensorType(np.float32)
)
print(len(children()), flush=True)
manager = contexts.use_local_context()
if {is_entered_for_good}:
  manager.__enter__()
  assert total([1, 2, 3]) == 6
  print(*[child.pid for child in children()], flush=True)
else:
  with manager:
    assert total([1, 2, 3]) == 6
    print(*[child.pid for child in children()], flush=True)
    {ending}
print('left', len(children()), flush=True)
"""

_SLEEP = 'time.sleep(600)'
_COMPUTE = 'run_for_ever(sys.argv[1])'
_ENDINGS = {
  'normal exit': ('pass', None, 0),
  'exit without leaving the context': (None, None, 0),
  'exception': ('raise KeyError', None, 1),
  'sys.exit': ('sys.exit(3)', None, 3),
  'os._exit': ('os._exit(4)', None, 4),
  'Ctrl-C': (_SLEEP, signal.SIGINT, -signal.SIGINT),
  'Ctrl-C in a computation': (_COMPUTE, signal.SIGINT, -signal.SIGINT),
  'SIGTERM': (_SLEEP, signal.SIGTERM, -signal.SIGTERM),
  'SIGTERM in a computation': (_COMPUTE, signal.SIGTERM, -signal.SIGTERM),
  'SIGKILL in a computation': (_COMPUTE, signal.SIGKILL, -signal.SIGKILL),
}


def _write_program(directory, ending):
  path = directory / 'program.py'
  path.write_text(
    _PROGRAM.replace('{is_entered_for_good}', str(ending is None)).replace(
      '{ending}', ending or 'pass'
    )
  )
  return path


@pytest.mark.parametrize('name', _ENDINGS)
def test_no_worker_survives_its_program(name, tmp_path):
  ending, signal_number, status = _ENDINGS[name]
  started = tmp_path / 'started'
  with subprocess.Popen(
    [sys.executable, _write_program(tmp_path, ending), started],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as program:
    try:
      assert program.stdout.readline() == '0\n'
      # Exactly one: no second worker of TFF's own default context.
      (pid,) = program.stdout.readline().split()
      # Made while the program may already be ending, hence perhaps in vain.
      worker = None
      with contextlib.suppress(psutil.NoSuchProcess):
        worker = psutil.Process(int(pid))
      if signal_number is not None:
        assert worker is not None and _is_alive(worker)
        if ending == _COMPUTE:
          _await(started.exists, 'the computation')
        program.send_signal(signal_number)
      # Ends only when nobody has the other end of the pipe any more, too.
      output, errors = program.communicate(timeout=_PATIENCE_SECONDS)
    finally:
      program.kill()
  assert program.returncode == status, errors
  if worker is not None:
    _await_end(worker)
  if name == 'normal exit':
    # It ended with the context, not only with the program.
    assert output == 'left 0\n'
    assert errors == ''


def test_program_in_a_pipe_ends(tmp_path):
  output = subprocess.run(
    ['sh', '-c', '"$0" "$1" 2>&1 | cat', sys.executable]
    + [_write_program(tmp_path, 'raise KeyError')],
    stdout=subprocess.PIPE,
    timeout=_PATIENCE_SECONDS,
    text=True,
    check=True,
  ).stdout
  assert output.startswith('0\n')
  assert output.endswith('KeyError\n')


@pytest.mark.parametrize('signal_number', [signal.SIGINT, signal.SIGTERM])
def test_interrupt_while_the_worker_hangs_at_its_start(signal_number, tmp_path):
  sleeper = _script(
    tmp_path / 'sleeper', '#!/bin/sh\necho $$ > "$0.pid"\nexec sleep 600\n'
  )
  program = tmp_path / 'program.py'
  program.write_text(
    textwrap.dedent(f"""
    import pathlib
    from tff_ocs import execution
    import tensorflow_federated as tff

    contexts._worker_binary = lambda: pathlib.Path({str(sleeper)!r})
    with contexts.use_local_context(start_timeout=600):
      tff.tensorflow.computation(lambda: 1)()
    """)
  )
  pid_file = tmp_path / 'sleeper.pid'
  with subprocess.Popen(
    [sys.executable, program], stderr=subprocess.DEVNULL
  ) as process:
    try:
      _await(
        lambda: pid_file.exists() and pid_file.read_text().endswith('\n'),
        'the sleeper',
      )
      worker = psutil.Process(int(pid_file.read_text()))
      process.send_signal(signal_number)
      assert process.wait(timeout=_PATIENCE_SECONDS) == -signal_number
    finally:
      process.kill()
  _await_end(worker)


# The life of a context.


def test_contexts_after_and_within_each_other(new_workers):
  with contexts.use_local_context():
    assert _total([1, 2]) == 3
    (outer,) = new_workers()
    with contexts.use_local_context():
      assert _total([1, 2, 3]) == 6
      assert len(new_workers()) == 2
    assert new_workers() == {outer}
    assert _total([1, 2, 3, 4]) == 10
    assert new_workers() == {outer}
  assert new_workers() == set()
  with contexts.use_local_context():
    assert _total([5]) == 5
    assert new_workers() != {outer}


def test_worker_starts_when_first_needed(new_workers):
  with contexts.use_local_context():
    assert new_workers() == set()


def test_exception_passes_through(new_workers):
  with pytest.raises(KeyError, match='mine'), contexts.use_local_context():
    _total([1])
    raise KeyError('mine')
  assert new_workers() == set()


def test_wrong_computation_leaves_the_worker_in_use(new_workers):
  @tff.tensorflow.computation(np.str_)
  def read(path):
    return tf.io.read_file(path)

  with contexts.use_local_context():
    assert _total([1]) == 1
    before = new_workers()
    with pytest.raises(Exception, match='is-not-there'):
      read('/is-not-there')
    assert _total([1]) == 1
    assert new_workers() == before


def test_contexts_leave_no_threads_and_files_open():
  def count():
    gc.collect()
    return threading.active_count(), psutil.Process().num_fds()

  def use():
    with contexts.use_local_context():
      _total([1])

  use()  # Whatever is made once.
  threads, files = count()
  for _ in range(4):
    use()
  # gRPC's own threads may come and go; a leak would be 4 and more.
  assert count()[0] <= threads + 1
  assert count()[1] <= files + 2


def test_left_context_starts_no_worker(new_workers):
  with contexts.use_local_context() as context:
    _total([1])
  with tff.framework.get_context_stack().install(context):
    with pytest.raises(contexts.WorkerError, match='left'):
      _total([1])
  assert new_workers() == set()


def test_context_outlives_the_thread_that_used_it_first(new_workers):
  manager = contexts.use_local_context()

  def enter():
    context = manager.__enter__()
    _total([1])
    return context

  context = _in_thread(enter).result(_PATIENCE_SECONDS)
  # A worker that ends with the thread that started it would be gone by now.
  time.sleep(1)
  (worker,) = new_workers()
  with tff.framework.get_context_stack().install(context):
    assert _total([1, 2]) == 3
  assert new_workers() == {worker}
  _in_thread(lambda: manager.__exit__(None, None, None)).result(
    _PATIENCE_SECONDS
  )
  assert new_workers() == set()


def test_contexts_of_several_threads(new_workers):
  def use(number):
    with contexts.use_local_context():
      return [_total([number] * (1 + i)) for i in range(3)]

  futures = [_in_thread(lambda i=i: use(i)) for i in range(3)]
  for i, future in enumerate(futures):
    assert future.result(_PATIENCE_SECONDS) == [i, 2 * i, 3 * i]
  assert new_workers() == set()


def test_one_context_in_several_threads(new_workers):
  with contexts.use_local_context() as context:

    def use(number):
      with tff.framework.get_context_stack().install(context):
        return [_total([number] * (1 + i)) for i in range(3)]

    futures = [_in_thread(lambda i=i: use(i)) for i in range(4)]
    for i, future in enumerate(futures):
      assert future.result(_PATIENCE_SECONDS) == [i, 2 * i, 3 * i]
    assert len(new_workers()) == 1


def test_leaving_ends_the_computation_of_another_thread(tmp_path):
  with contexts.use_local_context() as context:

    def use():
      with tff.framework.get_context_stack().install(context):
        return _wait_for_go(str(tmp_path))

    future = _in_thread(use)
    _await((tmp_path / 'started').exists, 'the computation')
  assert future.exception(_PATIENCE_SECONDS) is not None


def test_running_event_loop():
  # As in a notebook.
  async def main():
    with contexts.use_local_context():
      return _total([1, 2])

  assert asyncio.run(main()) == 3


def test_forked_process(new_workers):
  with contextlib.ExitStack() as stack:
    stack.enter_context(contexts.use_local_context())
    assert _total([1]) == 1
    (worker,) = new_workers()
    pid = os.fork()
    if pid == 0:
      signal.alarm(_PATIENCE_SECONDS)  # Ends the process should it hang.
      try:
        with pytest.raises(contexts.WorkerError, match='forked'):
          _total([1])
        stack.close()
        os._exit(0)
      except BaseException:
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    # The copy of the context has not ended the worker of the original.
    assert _total([1, 2]) == 3
    assert new_workers() == {worker}


# Workers that cannot start.


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (
      '#!/bin/sh\necho out of luck >&2\nexit 1\n',
      '(?s)could not start.*status 1.*out of luck',
    ),
    ('#!/bin/sh\nexec sleep 600\n', 'did not answer within 1 s'),
    ('#!/bin/sh\necho busy\nexec sleep 600\n', '(?s)within 1 s.*busy'),
    ('not a program', 'could not start'),
  ],
)
def test_worker_that_cannot_start(text, message, tmp_path, monkeypatch):
  binary = _script(tmp_path / 'worker', text)
  monkeypatch.setattr(contexts, '_worker_binary', lambda: binary)
  with contexts.use_local_context(start_timeout=1):
    future = _in_thread(_with_current_context(lambda: _total([1])))
    with pytest.raises(contexts.WorkerError, match=message):
      future.result(_PATIENCE_SECONDS)
    for process in psutil.Process().children(recursive=True):
      assert str(binary) not in process.cmdline()


def _with_current_context(function):
  """Makes `function` use, in any thread, the context of this one."""
  context = tff.framework.get_context_stack().current

  def run():
    with tff.framework.get_context_stack().install(context):
      return function()

  return run


def test_default_start_timeout_is_below_a_minute():
  assert contexts._START_TIMEOUT_SECONDS < 60


def test_missing_or_not_executable_worker(tmp_path, monkeypatch):
  path = tmp_path / 'worker'
  monkeypatch.setattr(contexts, '_worker_binary', lambda: path)
  with contexts.use_local_context():
    with pytest.raises(contexts.WorkerError, match='missing'):
      _total([1])
    path.write_text('#!/bin/sh\n')
    path.chmod(0o644)
    if not os.access(path, os.X_OK):
      with pytest.raises(contexts.WorkerError, match='not executable'):
        _total([1])


def test_start_can_be_tried_again(monkeypatch):
  # As in a notebook: the error stays the same, and goes away with its cause.
  with contexts.use_local_context():
    with monkeypatch.context() as patch:
      patch.setattr(
        contexts, '_worker_binary', lambda: pathlib.Path('/is-not-there')
      )
      for _ in range(6):
        with pytest.raises(contexts.WorkerError, match='is-not-there'):
          _total([1])
    assert _total([1]) == 1


def test_no_interpreter_to_start_the_worker_with(monkeypatch):
  # As where Python is embedded in another program.
  monkeypatch.setattr(sys, 'executable', None)
  with contexts.use_local_context():
    future = _in_thread(_with_current_context(lambda: _total([1])))
    with pytest.raises(contexts.WorkerError, match='start a process'):
      future.result(_PATIENCE_SECONDS)


@pytest.mark.parametrize('timeout', [0, -1, float('nan')])
@pytest.mark.parametrize(
  'use', [contexts.use_local_context, contexts.use_secure_test_context]
)
def test_wrong_start_timeout(use, timeout):
  with pytest.raises(ValueError, match='start_timeout must be above 0'):
    with use(start_timeout=timeout):
      pass


# Workers that die.


def test_worker_killed_between_computations(new_workers):
  with contexts.use_local_context():
    # Executors of several cohort sizes, all of them lost with the worker.
    assert _total([1]) == 1
    assert _total([1, 2]) == 3
    (worker,) = new_workers()
    worker.kill()
    assert _total([1, 2]) == 3
    assert _total([1]) == 1
    assert _total([1, 2, 3]) == 6
    assert len(new_workers() - {worker}) == 1


def test_worker_killed_in_a_computation(new_workers, tmp_path):
  started = tmp_path / 'started'
  with contexts.use_local_context():
    future = _in_thread(
      _with_current_context(lambda: _wait_for_go(str(tmp_path)))
    )
    # As often as a computation is retried, and no more.
    for _ in range(3):
      _await(started.exists, 'the computation')
      started.unlink()
      (worker,) = new_workers()
      worker.kill()
    _await(started.exists, 'the last try')
    (tmp_path / 'go').touch()
    assert future.result(_PATIENCE_SECONDS) == 42


def test_worker_that_keeps_dying(new_workers, tmp_path):
  started = tmp_path / 'started'
  with contexts.use_local_context():
    assert _total([1]) == 1
    future = _in_thread(
      _with_current_context(lambda: _wait_for_go(str(tmp_path)))
    )
    for _ in range(4):
      _await(started.exists, 'the computation')
      started.unlink()
      (worker,) = new_workers()
      worker.kill()
    with pytest.raises(contexts.WorkerError, match='4 times.* status -9'):
      future.result(_PATIENCE_SECONDS)
    assert not started.exists()
    # The next computation gets its own tries.
    assert _total([1, 2]) == 3


def test_unrelated_deaths_do_not_add_up(new_workers):
  # As in a job of many hours: more deaths than retries of one computation.
  with contexts.use_local_context():
    for i in range(6):
      assert _total([i, 1]) == i + 1
      (worker,) = new_workers()
      worker.kill()
      _await(lambda: not _is_alive(worker), 'the death')  # noqa: B023


# The worker's surroundings.


def _environment_of_worker(find_workers):
  with contexts.use_local_context():
    _total([1])
    (worker,) = find_workers()
    return worker.environ()


@pytest.mark.parametrize(
  ('threads', 'divisor'), [(None, 1), ('1', 1), ('2', 2), ('1000', None)]
)
def test_as_many_clients_in_parallel_as_keep_the_cores_busy(
  threads, divisor, new_workers, monkeypatch
):
  if threads is None:
    monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  else:
    monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', threads)
  cores = len(os.sched_getaffinity(0))
  expected = max(1, cores // divisor) if divisor else 1
  with contexts.use_local_context():
    assert _total([1, 2, 3, 4, 5]) == 15
    (worker,) = new_workers()
    assert f'--max_concurrent_computation_calls={expected}' in worker.cmdline()


@pytest.mark.parametrize('threads', ['0', '-1'])
def test_threads_of_all_cores_for_one_client(threads, monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', threads)
  assert contexts._parallel_clients() == 1


def test_threads_that_are_no_number(monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', 'many')
  with contexts.use_local_context():
    with pytest.raises(
      contexts.WorkerError, match="TF_NUM_INTRAOP_THREADS.*'many'"
    ):
      _total([1])


def test_threads_per_client(new_workers, monkeypatch):
  monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  environment = _environment_of_worker(new_workers)
  assert environment['TF_NUM_INTRAOP_THREADS'] == '1'
  assert environment['TF_NUM_INTEROP_THREADS'] == '-1'
  # The kernel shows the first only: glibc cuts the others off in place.
  assert 'glibc.malloc.mmap_threshold' in environment['GLIBC_TUNABLES']
  assert contexts.threads_per_client() == 1


def test_own_environment_wins(new_workers, monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '3')
  monkeypatch.setenv('GLIBC_TUNABLES', 'glibc.malloc.arena_max=7')
  environment = _environment_of_worker(new_workers)
  assert environment['TF_NUM_INTRAOP_THREADS'] == '3'
  assert environment['GLIBC_TUNABLES'] == 'glibc.malloc.arena_max=7'
  assert contexts.threads_per_client() == 3


def test_web_proxy_is_not_asked_for_the_worker(monkeypatch):
  for name in ('http_proxy', 'https_proxy', 'grpc_proxy'):
    monkeypatch.setenv(name, 'http://127.0.0.1:1')
  for name in ('no_proxy', 'no_grpc_proxy'):
    monkeypatch.delenv(name, raising=False)
  with contexts.use_local_context(start_timeout=15):
    assert _total([1]) == 1


def test_modules_in_the_working_directory_are_not_loaded(tmp_path, monkeypatch):
  for name in ('ctypes', 'signal'):
    (tmp_path / f'{name}.py').write_text('raise SystemExit("not this one")')
  monkeypatch.chdir(tmp_path)
  with contexts.use_local_context():
    assert _total([1]) == 1


# Workers that somebody else started.


class _Server:
  """A worker as a user would start it on another host."""

  def __init__(self, port=None):
    self.port = port or portpicker.pick_unused_port()
    self.address = f'127.0.0.1:{self.port}'
    self._process = subprocess.Popen(
      [contexts._worker_binary(), f'--port={self.port}'],
      env=contexts._worker_environment(),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )

  def memory(self):
    """The bytes that the worker has in use."""
    return psutil.Process(self._process.pid).memory_info().rss

  def stop(self):
    self._process.kill()
    self._process.wait()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.stop()


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType((np.float32, [3]), tff.CLIENTS),
)
def _round(scale, values):
  @tff.tensorflow.computation
  def multiply(value, factor):
    return tf.exp(value * factor)

  products = tff.federated_map(
    multiply, (values, tff.federated_broadcast(scale))
  )
  return tff.federated_mean(products)


def test_remote_worker_gives_what_a_local_one_gives(new_workers):
  values = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
  # More cohort sizes, in turn, than a lost connection would be retried.
  sizes = (1, 2, 3, 1, 4, 5, 6, 7, 1)
  with contexts.use_local_context():
    expected = [_round(np.float32(0.5), list(values[:n])) for n in sizes]
  with _Server() as server:
    before = new_workers()
    with contexts.use_remote_context(server.address):
      actual = [_round(np.float32(0.5), list(values[:n])) for n in sizes]
      assert new_workers() == before
    # Not this context's to end.
    assert new_workers() == before
    np.testing.assert_array_equal(actual, expected)
    # And it serves the next.
    with contexts.use_remote_context(server.address):
      assert _total([1, 2]) == 3


@pytest.mark.parametrize(
  'address',
  [
    '',
    'host',
    'host:',
    ':8000',
    'host:port',
    'host:0',
    'host:65536',
    'host:-1',
    'host:\N{SUPERSCRIPT TWO}',
    'http://host:8000',
    'host:8000/',
    'a host:8000',
    '::1:8000',
    8000,
    None,
  ],
)
def test_wrong_address(address):
  with pytest.raises(ValueError, match="'host:port'.*1 to 65535") as error:
    with contexts.use_remote_context(address):
      pass
  assert repr(address) in str(error.value)


def test_wrong_connect_timeout():
  with pytest.raises(ValueError, match='connect_timeout must be above 0'):
    with contexts.use_remote_context('host:8000', connect_timeout=0):
      pass


def test_nobody_listens():
  address = f'127.0.0.1:{portpicker.pick_unused_port()}'
  with contexts.use_remote_context(address, connect_timeout=1):
    for _ in range(2):
      future = _in_thread(_with_current_context(lambda: _total([1])))
      with pytest.raises(contexts.WorkerError, match=f'{address} within 1 s'):
        future.result(_PATIENCE_SECONDS)


def test_remote_worker_is_lost_and_comes_back(tmp_path):
  with _Server() as server:
    with contexts.use_remote_context(server.address, connect_timeout=1):
      assert _total([1]) == 1
      assert _total([1, 2]) == 3
      compute = _with_current_context(lambda: _wait_for_go(str(tmp_path)))
      future = _in_thread(compute)
      _await((tmp_path / 'started').exists, 'the computation')
      server.stop()
      with pytest.raises(contexts.WorkerError, match='No TFF worker answers'):
        future.result(_PATIENCE_SECONDS)
      with _Server(server.port):
        assert _total([1, 2]) == 3
        assert _total([1]) == 1


def test_remote_worker_that_keeps_dying(tmp_path):
  started = tmp_path / 'started'
  with _Server() as first, contextlib.ExitStack() as stack:
    with contexts.use_remote_context(first.address):
      future = _in_thread(
        _with_current_context(lambda: _wait_for_go(str(tmp_path)))
      )
      server = first
      for _ in range(4):
        _await(started.exists, 'the computation')
        started.unlink()
        server.stop()
        server = stack.enter_context(_Server(first.port))
      with pytest.raises(
        contexts.WorkerError, match=f'4 times.*{first.address}'
      ):
        future.result(_PATIENCE_SECONDS)


def test_remote_worker_forgets_contexts_that_were_left():
  value = np.ones(2_000_000, np.float32)

  @tff.federated_computation(
    tff.FederatedType((np.float32, value.shape), tff.CLIENTS)
  )
  def total(values):
    return tff.federated_sum(values)

  def use():
    with contexts.use_remote_context(server.address):
      assert total([value] * 4)[0] == 4

  with _Server() as server:
    use()  # Whatever is kept once.
    before = server.memory()
    for _ in range(3):
      use()
    # Three contexts that are not forgotten take 700 MB.
    assert server.memory() - before < 200e6


def test_left_context_disturbs_no_other_on_its_remote_worker(tmp_path):
  with _Server() as server, contexts.use_remote_context(server.address):
    future = _in_thread(
      _with_current_context(lambda: _wait_for_go(str(tmp_path)))
    )
    _await((tmp_path / 'started').exists, 'the computation')
    with contexts.use_remote_context(server.address):
      # Of no clients, as the other.
      assert tff.tensorflow.computation(lambda: 7)() == 7
    (tmp_path / 'started').unlink()
    (tmp_path / 'go').touch()
    assert future.result(_PATIENCE_SECONDS) == 42
    # It was not lost and repeated.
    assert not (tmp_path / 'started').exists()


class _Path:
  """The network to a worker, with a hole in it on demand."""

  def __init__(self, port):
    self._port = port
    self._is_whole = threading.Event()
    self._is_whole.set()
    self._listener = socket.create_server(('127.0.0.1', 0))
    self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
    threading.Thread(target=self._accept, daemon=True).start()

  def tear(self):
    self._is_whole.clear()

  def mend(self):
    self._is_whole.set()

  def _accept(self):
    with contextlib.suppress(OSError):
      while True:
        client, _ = self._listener.accept()
        try:
          server = socket.create_connection(('127.0.0.1', self._port))
        except ConnectionRefusedError:  # It only starts.
          client.close()
          continue
        for pair in ((client, server), (server, client)):
          threading.Thread(target=self._pass, args=pair, daemon=True).start()

  def _pass(self, source, destination):
    with contextlib.suppress(OSError), source, destination:
      while data := source.recv(2**16):
        self._is_whole.wait()
        destination.sendall(data)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.mend()
    self._listener.close()


def test_remote_worker_vanishes_without_a_word(tmp_path, monkeypatch):
  # As if the worker's host was cut off: connections stay, nothing is answered.
  options = {
    **dict(contexts._REMOTE_CHANNEL_OPTIONS),
    # Not the real 5 minutes.
    'grpc.keepalive_time_ms': 1000,
    'grpc.keepalive_timeout_ms': 1000,
    # Of a ping that is on its way for other reasons; then no other is sent.
    'grpc.http2.ping_timeout_ms': 1000,
  }
  monkeypatch.setattr(
    contexts, '_REMOTE_CHANNEL_OPTIONS', tuple(options.items())
  )
  with _Server() as server, _Path(server.port) as path:
    with contexts.use_remote_context(path.address, connect_timeout=5):
      compute = _with_current_context(lambda: _wait_for_go(str(tmp_path)))
      future = _in_thread(compute)
      _await((tmp_path / 'started').exists, 'the computation')
      path.tear()
      with pytest.raises(contexts.WorkerError, match=f'No.*{path.address}'):
        future.result(_PATIENCE_SECONDS)
      path.mend()
      (tmp_path / 'go').touch()
      assert _total([1, 2]) == 3


def test_keepalive_is_not_more_than_a_worker_bears():
  # gRPC's servers hang up on clients that ask more often than each 5 minutes.
  options = dict(contexts._REMOTE_CHANNEL_OPTIONS)
  assert options['grpc.keepalive_time_ms'] > 300_000


def test_web_server_instead_of_a_worker():
  server = http.server.ThreadingHTTPServer(
    ('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler
  )
  threading.Thread(target=server.serve_forever, daemon=True).start()
  address = f'127.0.0.1:{server.server_port}'
  with server, contexts.use_remote_context(address, connect_timeout=1):
    future = _in_thread(_with_current_context(lambda: _total([1])))
    with pytest.raises(contexts.WorkerError, match=f'No.*{address} within'):
      future.result(_PATIENCE_SECONDS)
    server.shutdown()


def test_other_grpc_server_instead_of_a_worker():
  server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
  address = f'127.0.0.1:{server.add_insecure_port("127.0.0.1:0")}'
  server.start()
  try:
    with contexts.use_remote_context(address):
      future = _in_thread(_with_current_context(lambda: _total([1])))
      with pytest.raises(
        contexts.WorkerError, match=f'not a TFF worker.*{address}'
      ):
        future.result(_PATIENCE_SECONDS)
  finally:
    server.stop(None)


# Secure sums.


def test_secure_sum():
  factory = tff.aggregators.SecureSumFactory(
    upper_bound_threshold=10.0, lower_bound_threshold=-10.0
  )
  process = factory.create(tff.TensorType(np.float32))
  with contexts.use_secure_test_context():
    output = process.next(process.initialize(), [1.0, 2.5, -4.0])
    assert output.result == pytest.approx(-0.5, abs=1e-4)
    # The values are clipped, as a secure sum would.
    output = process.next(output.state, [1.0, 100.0, -100.0])
    assert output.result == pytest.approx(1.0, abs=1e-4)
