"""Programs that tests of other programs need at their side."""

import contextlib
import pathlib
import subprocess
import sys
import time

import portpicker
import psutil

PATIENCE_SECONDS = 60
ROOT = pathlib.Path(__file__).parents[1]


class WorkerService:
  """The command tff_ocs.worker, from when it says that it is ready."""

  def __init__(self, *flags, port=None):
    self.port = port or portpicker.pick_unused_port()
    self.address = f'127.0.0.1:{self.port}'
    self.process = subprocess.Popen(
      [sys.executable, '-m', 'tff_ocs.worker', f'--port={self.port}', *flags],
      cwd=ROOT,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    )
    self.notice = ''
    self.worker = None

  def __enter__(self):
    try:
      while (line := self.process.stderr.readline()) != 'ready\n':
        assert line, f'it ended: {self.notice}'
        self.notice += line
      (self.worker,) = psutil.Process(self.process.pid).children()
      assert self.worker.cmdline()[0].endswith('worker_binary')
    except BaseException:
      self.process.kill()
      raise
    return self

  def __exit__(self, *_):
    self.process.kill()
    self.process.communicate()
    with contextlib.suppress(psutil.NoSuchProcess):
      self.worker.kill()

  def wait(self):
    """Waits for the end of both; returns what was printed since."""
    _, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_alive(self.worker):
      assert time.monotonic() < deadline, 'the worker is left'
      time.sleep(0.02)
    return errors


def is_alive(process):
  with contextlib.suppress(psutil.NoSuchProcess):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  return False
