"""Computations, processes and threads for the tests of the runtime."""

import concurrent.futures
import contextlib
import pathlib
import subprocess
import threading
import time

import numpy as np
import portpicker
import psutil
import tensorflow as tf
import tensorflow_federated as tff

from tff_ocs.runtime import launcher
from tff_ocs.runtime import loopback
from tff_ocs.runtime import worker_process

# Starting a worker takes a tenth of a second; the rest is for a busy machine.
PATIENCE_SECONDS = 60


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(values)


# Writes DIRECTORY/started, then runs until the file DIRECTORY/go exists, so
# that a test knows, and decides, when it is in the middle of a computation.
@tff.tensorflow.computation(np.str_)
def wait_for_go(directory):
  write = tf.io.write_file(directory + '/started', '')
  with tf.control_dependencies([write]):
    (turns,) = tf.while_loop(
      lambda _: tf.equal(tf.size(tf.io.matching_files(directory + '/go')), 0),
      lambda turns: (turns + 1,),
      (tf.constant(0),),
    )
  return tf.minimum(turns, 0) + 42


def wait_until(condition, what):
  deadline = time.monotonic() + PATIENCE_SECONDS
  while not condition():
    assert time.monotonic() < deadline, f'waited in vain for {what}'
    time.sleep(0.02)


def find_workers():
  """The workers that this process has now."""
  found = set()
  for child in psutil.Process().children(recursive=True):
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):
      if child.cmdline()[0].endswith('worker_binary'):
        found.add(child)
  return found


def is_alive(process):
  with contextlib.suppress(psutil.NoSuchProcess):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  return False


def wait_for_end(worker):
  try:
    wait_until(lambda: not is_alive(worker), 'the end of the worker')
  except AssertionError:
    # A test that fails leaves none behind either.
    worker.kill()
    raise


def in_thread(function):
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


def start(function):
  """Runs `function` in a thread, in the context of this one."""
  context = tff.framework.get_context_stack().current

  def run():
    with tff.framework.get_context_stack().install(context):
      return function()

  return in_thread(run)


def write_script(path, text):
  path.write_text(text)
  path.chmod(0o755)
  return path


def forbid_filters(monkeypatch, tmp_path):
  """The launcher asks for a system call that no kernel has."""
  path = pathlib.Path(launcher.__file__)
  text = path.read_text()
  assert '_SYS_SECCOMP = 317\n' in text
  changed = tmp_path / 'launcher.py'
  changed.write_text(text.replace('_SYS_SECCOMP = 317', '_SYS_SECCOMP = 9999'))
  monkeypatch.setattr(launcher, '__file__', str(changed))


def forbid_sockets(monkeypatch, unused_tmp_path):
  """The kernel knows the filter, but not how to give a socket (before 5.9)."""
  monkeypatch.setattr(loopback, '_SECCOMP_IOCTL_NOTIF_ADDFD', 0x401821FF)


class Server:
  """A worker as a user would start it on another host."""

  def __init__(self, port=None):
    self.port = port or portpicker.pick_unused_port()
    self.address = f'127.0.0.1:{self.port}'
    self._process = subprocess.Popen(
      [worker_process._find_worker_binary(), f'--port={self.port}'],
      env=worker_process.create_environment(),
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
