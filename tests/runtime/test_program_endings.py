"""No worker outlives its program, however the program ends."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest

from tests import services
from tests.runtime import tools

_PROGRAM = """
import sys, os, time
# Neither importing the package nor making a computation starts a worker.
tff_ocs.ClientSamplingFactory(tff_ocs.UniformSampling(1.0)).create(
  tff.TensorType(np.float32, [2]), tff.TensorType(np.float32)
)
print(len(children()), flush=True)
manager = execution.use_local_context()
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
_COMPUTE = 'run_for_ever({path!r})'
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


class _Program:
  """A process of the fork server."""

  def __init__(self, connection, server_pid, text):
    self._connection = connection
    output, their_output = os.pipe()
    errors, their_errors = os.pipe()
    socket.send_fds(connection, [text.encode()], [their_output, their_errors])
    os.close(their_output)
    os.close(their_errors)
    self.stdout = open(output)
    self._stderr = open(errors)
    # An object that never signals another process that got the same id later.
    self.process = psutil.Process(self._receive('pid'))
    assert self.process.ppid() == server_pid
    self._has_ended = False

  def _receive(self, name):
    words = self._connection.recv(64).decode().split()
    assert words and words[0] == name, f'the fork server sent {words}'
    return int(words[1])

  def communicate(self):
    """Returns the output, the errors and the exit status, once all ended.

    The output ends only when no process has the other end of its pipe.
    """
    # A pipe whose writers do not end would be read for ever.
    killer = threading.Timer(tools.PATIENCE_SECONDS, self._kill_all)
    killer.start()
    try:
      errors = self._stderr.read()
      output = self.stdout.read()
      status = self._receive('status')
      self._has_ended = True
    finally:
      killer.cancel()
      killer.join()
    return output, errors, status

  def _kill_all(self):
    with contextlib.suppress(psutil.NoSuchProcess):
      for child in (*self.process.children(recursive=True), self.process):
        child.kill()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if not self._has_ended:
      self._kill_all()
      self._receive('status')
    self.stdout.close()
    self._stderr.close()


@pytest.fixture(scope='module')
def start():
  """Starts programs in processes that have imported TFF already."""
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  with ours, theirs:
    server = subprocess.Popen(
      [
        sys.executable,
        '-m',
        'tests.runtime.fork_server',
        str(theirs.fileno()),
      ],
      cwd=services.ROOT,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
      pass_fds=[theirs.fileno()],
    )
    theirs.close()
    try:
      yield lambda text: _Program(ours, server.pid, text)
    finally:
      ours.close()
      server.wait(tools.PATIENCE_SECONDS)


def _fill_in(ending, path):
  return _PROGRAM.replace('{is_entered_for_good}', str(ending is None)).replace(
    '{ending}', (ending or 'pass').format(path=str(path))
  )


@pytest.mark.parametrize('name', _ENDINGS)
def test_no_worker_survives_its_program(name, start, tmp_path):
  ending, signal_number, expected_status = _ENDINGS[name]
  started = tmp_path / 'started'
  with start(_fill_in(ending, started)) as program:
    assert program.stdout.readline() == '0\n', program.communicate()
    # Exactly one: no second worker of TFF's own default context.
    (pid,) = program.stdout.readline().split()
    # The program may be ending already, and its worker be gone.
    worker = None
    with contextlib.suppress(psutil.NoSuchProcess):
      process = psutil.Process(int(pid))
      if 'worker_binary' in ' '.join(process.cmdline()):
        worker = process
    if signal_number is not None:
      assert worker is not None and tools.is_alive(worker)
      if ending == _COMPUTE:
        tools.wait_until(started.exists, 'the computation')
      program.process.send_signal(signal_number)
    output, errors, status = program.communicate()
  assert status == expected_status, errors
  if worker is not None:
    tools.wait_for_end(worker)
  if name == 'normal exit':
    # It ended with the context, not only with the program.
    assert output == 'left 0\n'
    assert errors == ''
  if name == 'exception':
    assert errors.endswith('KeyError\n')


@pytest.mark.parametrize('signal_number', [signal.SIGINT, signal.SIGTERM])
def test_interrupt_while_the_worker_hangs_at_its_start(
  signal_number, start, tmp_path
):
  sleeper = tools.write_script(
    tmp_path / 'sleeper', '#!/bin/sh\necho $$ > "$0.pid"\nexec sleep 600\n'
  )
  pid_file = tmp_path / 'sleeper.pid'
  with start(f"""
import pathlib

worker_process._find_worker_binary = lambda: pathlib.Path({str(sleeper)!r})
with execution.use_local_context(start_timeout=600):
  total([1])
""") as program:
    tools.wait_until(
      lambda: pid_file.exists() and pid_file.read_text().endswith('\n'),
      'the sleeper',
    )
    worker = psutil.Process(int(pid_file.read_text()))
    program.process.send_signal(signal_number)
    _, errors, status = program.communicate()
  assert status == -signal_number, errors
  tools.wait_for_end(worker)


@pytest.mark.parametrize('signal_number', [signal.SIGINT, signal.SIGTERM])
def test_interrupt_of_several_workers(signal_number, start, tmp_path):
  paths = [tmp_path / '0', tmp_path / '1']
  with start(f"""
@tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
def run_all(paths):
  return tff.federated_sum(
    tff.federated_map(
      tff.tensorflow.computation(lambda path: run_for_ever(path)[0], np.str_),
      paths,
    )
  )

with execution.use_distributed_context(workers=2):
  assert total([1, 2, 3]) == 6
  print(*[child.pid for child in children()], flush=True)
  run_all({[str(path) for path in paths]!r})
""") as program:
    workers = [
      psutil.Process(int(i)) for i in program.stdout.readline().split()
    ]
    assert len(workers) == 2
    for path in paths:
      tools.wait_until(path.exists, 'the computation')
    program.process.send_signal(signal_number)
    _, errors, status = program.communicate()
  assert status == -signal_number, errors
  for worker in workers:
    tools.wait_for_end(worker)
