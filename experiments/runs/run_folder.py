"""The folder that a run leaves behind.

It holds

*   `config.json`: every setting, what the data is, the versions of the packages
    and of this code, and the threads, on which results depend bit for bit;
*   `metrics.csv`: one line a round, see `METRICS`;
*   `weights.npz`: the final weights; its presence says that the run is
    finished;
*   `checkpoints/`: while the run is not finished, see `checkpoints`;
*   `events/`: the metrics for TensorBoard;
*   `log.txt`.
"""

import asyncio
import collections
import contextlib
import importlib.metadata
import io
import json
import logging as python_logging
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from logging import handlers
from typing import Any
from typing import Optional
from typing import Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from experiments.runs import checkpoints
from tff_ocs import execution
from tff_ocs.records import locking
from tff_ocs.records import writing

METRICS = {
  'training_loss': "mean loss along the available clients' SGD paths",
  'available': 'clients of the cohort that were available',
  'participants': 'clients that sent their update',
  'expected_participants': 'the sum of the probabilities',
  'num_iterations': 'executed iterations of AOCS',
  'non_finite_clients': 'clients with a NaN or infinite update, never sent',
  'improvement_factor': 'alpha^k, Eq. (15): 1 is as uniform, 0 as full',
  'relative_improvement_factor': 'gamma^k, Eq. (16)',
  'cohort_examples': 'examples of the available clients of the cohort',
  'uplink_bits': 'bits that the clients sent in the round',
  'cumulative_uplink_bits': 'bits sent up to and including the round',
  'seconds': 'duration of the round, without evaluation',
  'validation_accuracy': 'after the round; empty where not evaluated',
  'validation_loss': 'likewise',
}


# All that a run writes, but `config.json`: without it, what an interrupted
# removal leaves would not be known as a run's. The weights, which say that the
# run is finished, come first.
_WRITTEN = (
  'weights*.npz',
  'checkpoints',
  'events',
  'log.txt',
  'metrics.csv*',
)

# What all runs were before there were flags for it.
FORMER_SETTINGS = {
  'algorithm': 'fedavg',
  'availability': None,
  'client_weighting': 'num_examples',
  'compression': 'none',
  'dithering_bits': 4,
  'random_k_fraction': 0.1,
  'uniform_skips_silent_clients': False,
}

_PARTIAL_CONFIG = 'config.json.partial'


class RunFolder:
  """Where one run writes its results."""

  def __init__(
    self,
    path: Union[str, os.PathLike],
    *,
    overwrite: bool = False,
    resume: bool = False,
  ):
    """Checks that the folder can be used; changes nothing in it.

    Args:
      path: The folder; it need not exist.
      overwrite: Whether the results of a former run there are replaced.
      resume: Whether a former run there is continued, see `start`.

    Raises:
      FileExistsError: If there are files that may not be replaced.
      OSError: If the folder cannot be made or written to.
    """
    self.path = pathlib.Path(path)
    self._overwrite = overwrite
    self._is_started = False
    self._lock_descriptor = None
    # A run that could not even write its settings has left nothing else.
    if self.path.is_dir() and any(
      path.name != _PARTIAL_CONFIG for path in self.path.iterdir()
    ):
      if self._read_config() is None:
        raise FileExistsError(
          f'{self.path} holds files, but none of a run (no config.json of one):'
          ' they are not replaced, even with --overwrite. Remove the folder, or'
          ' use another --output_dir or --run_name.'
        )
      if not overwrite and not resume:
        raise FileExistsError(
          f'{self.path} already holds results. Use --overwrite to replace them,'
          ' --resume to continue, or another --output_dir or --run_name.'
        )
    existing = self.path
    while not existing.exists():
      existing = existing.parent
    if not existing.is_dir():
      raise NotADirectoryError(f'{existing} is not a folder.')
    if not os.access(existing, os.W_OK | os.X_OK):
      raise PermissionError(f'{existing} cannot be written to.')

  def _read_config(self) -> Optional[dict[str, Any]]:
    """The former run's `config.json`; `None` if there is none of a run."""
    try:
      config = json.loads((self.path / 'config.json').read_text())
    except (OSError, ValueError):
      return None
    if not isinstance(config, dict) or 'environment' not in config:
      return None
    return {**FORMER_SETTINGS, **config}

  def _lock(self) -> None:
    """Keeps other processes from the folder until the run ends."""
    try:
      self._lock_descriptor = locking.lock_folder(self.path)
    except BlockingIOError:
      raise FileExistsError(
        f'Another process is running in {self.path}. Wait for it, end it, or'
        ' use another --output_dir or --run_name.'
      ) from None

  @property
  def is_finished(self) -> bool:
    """Whether the run's final weights are there."""
    return (self.path / 'weights.npz').exists()

  def check_settings(self, settings: Mapping[str, Any]) -> None:
    """Checks that a former run in the folder, if there is one, is the same.

    Args:
      settings: The settings of this run, as for `start`.

    Raises:
      FileExistsError: If the former run is to be continued, but had other
        settings.
    """
    former = self._read_config()
    if self._overwrite or former is None:
      return
    # As they are after being written and read.
    settings = json.loads(json.dumps(settings))
    for name in settings:
      if settings[name] != former.get(name):
        raise FileExistsError(
          f'{self.path} holds a run with --{name}={former.get(name)}, not'
          f' {settings[name]}: it cannot be continued. Use the same flags,'
          ' --overwrite to replace it, or another --output_dir or --run_name.'
        )

  def start(
    self, settings: Mapping[str, Any], worker_address: Optional[str] = None
  ) -> None:
    """Makes the folder ready and writes `config.json`, or continues a run.

    Args:
      settings: The settings, JSON values by name; the environment is added.
      worker_address: Where the worker is, if not on this machine.

    Raises:
      FileExistsError: As `check_settings`.
      OSError: If the folder cannot be written to.
    """
    with writing.explained(self.path):
      self.path.mkdir(parents=True, exist_ok=True)
    self._lock()
    self.check_settings(settings)
    if self.is_finished and not self._overwrite:
      raise FileExistsError(
        f'{self.path} was finished by another process meanwhile; use'
        ' --overwrite to run it again.'
      )
    former = None if self._overwrite else self._read_config()
    with writing.explained(self.path):
      for pattern in _WRITTEN if self._overwrite else ('metrics.csv_temp*',):
        for path in self.path.glob(pattern):
          shutil.rmtree(path) if path.is_dir() else path.unlink()
    environment = _describe_environment(worker_address)
    if former is None:
      config = {**settings, 'environment': environment}
      with writing.explained(self.path / 'config.json'):
        partial = self.path / _PARTIAL_CONFIG
        partial.write_text(json.dumps(config, indent=2) + '\n')
        partial.replace(self.path / 'config.json')
    else:
      for name, value in environment.items():
        if value != former['environment'].get(name):
          logging.warning(
            'The run is continued with another %s: %s, not %s. Its metrics may'
            ' differ from those of an uninterrupted run.',
            name,
            value,
            former['environment'].get(name),
          )
    self._is_started = True
    with writing.explained(self.path / 'checkpoints'):
      self.checkpoints = checkpoints.Checkpoints(self.path / 'checkpoints')
    with writing.explained(self.path / 'metrics.csv'):
      num_rounds = self._mend_metrics()
      self._csv_manager = tff.program.CSVFileReleaseManager(
        self.path / 'metrics.csv',
        # Written whole and renamed in each round: there is never half a line.
        save_mode=tff.program.CSVSaveMode.WRITE,
        key_fieldname='round',
      )
    with writing.explained(self.path / 'checkpoints'):
      self.checkpoints.drop_from(num_rounds)
    with writing.explained(self.path / 'events'):
      self._tensorboard_manager = tff.program.TensorBoardReleaseManager(
        self.path / 'events'
      )

  def _mend_metrics(self) -> int:
    """Cuts `metrics.csv` off where it is damaged; returns its rounds.

    A run does not damage it, but the end of the machine's power may.
    """
    path = self.path / 'metrics.csv'
    if not path.exists():
      return 0
    content = path.read_bytes()
    lines = content.decode('latin-1').splitlines(keepends=True)
    num_whole = _count_whole_lines(lines)
    if num_whole < len(lines) or not lines:
      logging.warning(
        'metrics.csv is damaged from line %d on; what is missing is computed'
        ' again.',
        num_whole + 1,
      )
      if num_whole == 0:
        path.unlink()
      else:
        partial = self.path / 'metrics.csv_temp'
        partial.write_bytes(''.join(lines[:num_whole]).encode('latin-1'))
        partial.replace(path)
    return max(num_whole - 1, 0)

  def release(self, metrics: Mapping[str, Any], round_num: int) -> None:
    """Adds a round to `metrics.csv` and to the events.

    Rounds from this one on that are in `metrics.csv` already, of a run that
    ended between two checkpoints, are replaced; the events have them twice.

    Args:
      metrics: Values by name, of `METRICS`.
      round_num: The number of the round.

    Raises:
      OSError: If the folder cannot be written to.
    """
    metrics = collections.OrderedDict(metrics)
    with writing.explained(self.path / 'metrics.csv'):
      asyncio.run(self._csv_manager.release(metrics, round_num))
    with writing.explained(self.path / 'events'):
      asyncio.run(self._tensorboard_manager.release(metrics, round_num))

  def finish(self, weights: tff.learning.models.ModelWeights) -> None:
    """Writes `weights.npz`, in the model's order, and drops the checkpoints.

    Args:
      weights: The final weights.

    Raises:
      OSError: If the folder cannot be written to.
    """
    arrays = tf.nest.flatten((weights.trainable, weights.non_trainable))
    content = io.BytesIO()
    np.savez(content, *[np.asarray(array) for array in arrays])
    with writing.explained(self.path / 'weights.npz'):
      partial = self.path / 'weights.partial.npz'
      with partial.open('wb') as file:
        file.write(content.getbuffer())
        # There before the name that says so, whatever happens to the machine.
        file.flush()
        os.fsync(file.fileno())
      partial.replace(self.path / 'weights.npz')
    self.checkpoints.remove()

  @contextlib.contextmanager
  def log(self):
    """Sends what is logged, from INFO on, to `log.txt` once there is a folder.

    Meanwhile the console, which belongs to the progress bar, shows warnings and
    errors only. If the folder is never started, nothing is written.
    """
    handler = _LateFileHandler(self.path / 'log.txt', lambda: self._is_started)
    logger, console = logging.get_absl_logger(), logging.get_absl_handler()
    levels = logger.level, console.level
    # It would tell of each checkpoint.
    python_logging.getLogger('tensorflow').setLevel(python_logging.WARNING)
    logger.addHandler(handler)
    logger.setLevel(python_logging.INFO)
    console.setLevel(python_logging.WARNING)
    try:
      yield
    except BaseException as error:
      logging.info('The run ended early: %r', error)
      raise
    finally:
      logger.removeHandler(handler)
      logger.setLevel(levels[0])
      console.setLevel(levels[1])
      handler.close()
      if self._lock_descriptor is not None:
        os.close(self._lock_descriptor)
        self._lock_descriptor = None


class _LateFileHandler(handlers.MemoryHandler):
  """Keeps records in memory until the folder of its file is ready."""

  def __init__(self, path, is_folder_ready):
    super().__init__(capacity=1)
    self._path = path
    self._is_folder_ready = is_folder_ready

  def shouldFlush(self, record):  # noqa: N802, the base class' name.
    del record
    if self.target is None and self._is_folder_ready():
      self.setTarget(_LogFile(self._path))
    return self.target is not None

  def close(self):
    target = self.target
    super().close()
    if target is not None:
      target.close()


class _LogFile(python_logging.FileHandler):
  """Does without the file if it cannot be written, and says so once.

  What keeps the log from being written most often keeps the metrics too, which
  then end the run; and the log alone is not worth a run.
  """

  def __init__(self, path):
    super().__init__(path, delay=True)
    self.setFormatter(
      python_logging.Formatter('%(asctime)s %(levelname)s %(message)s')
    )
    self._has_failed = False

  def emit(self, record):
    try:
      super().emit(record)
    except OSError:  # Raised by the opening only.
      self.handleError(record)

  def handleError(self, record):  # noqa: N802, the base class' name.
    del record
    if not self._has_failed:
      self._has_failed = True
      print(
        f'{self.baseFilename} cannot be written: {sys.exc_info()[1]}. The run'
        ' goes on without it.',
        file=sys.stderr,
      )

  def close(self):
    with contextlib.suppress(OSError):
      super().close()


def _count_whole_lines(lines) -> int:
  """How many lines from the first on are a header and the rounds 0, 1, ..."""
  fields = []
  for number, line in enumerate(lines):
    values = line.rstrip('\r\n').split(',')
    if number == 0:
      fields = values
      is_whole = values[0] == 'round'
    else:
      is_whole = len(values) == len(fields) and values[0] == str(number - 1)
    if not is_whole or not line.endswith('\n'):
      return number
  return len(lines)


def _describe_environment(worker_address) -> dict[str, Any]:
  packages = ('tensorflow', 'tensorflow-federated', 'numpy', 'jax')
  return {
    'git_commit': git_commit(),
    'python': platform.python_version(),
    'packages': {p: importlib.metadata.version(p) for p in packages},
    'machine': platform.machine(),
    'cpus': len(os.sched_getaffinity(0)),
    # Of another's worker they are not known.
    'threads_per_client': (
      execution.threads_per_client() if worker_address is None else None
    ),
    'worker_address': worker_address,
  }


def git_commit() -> str:
  """The commit of this code, with '+changes' where files differ from it."""
  # On another machine, to which only the code was sent.
  commit = os.environ.get('TFF_OCS_GIT_COMMIT')
  if commit:
    return commit

  def git(*arguments):
    return subprocess.run(
      ['git', *arguments],
      cwd=pathlib.Path(__file__).parent,
      capture_output=True,
      text=True,
    )

  try:
    commit = git('rev-parse', 'HEAD')
    changes = git('status', '--porcelain', '--untracked-files=no')
  except OSError:  # There is no git.
    return 'unknown'
  if commit.returncode:
    return 'unknown'
  return commit.stdout.strip() + ('+changes' if changes.stdout.strip() else '')
