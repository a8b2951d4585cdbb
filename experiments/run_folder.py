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
import fcntl
import importlib.metadata
import json
import logging as python_logging
import os
import pathlib
import platform
import shutil
import subprocess
from collections.abc import Mapping
from logging import handlers
from typing import Any
from typing import Optional
from typing import Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from experiments import checkpoints
from tff_ocs import execution

METRICS = {
  'training_loss': "mean loss along the clients' SGD paths, whole cohort",
  'participants': 'clients that sent their update',
  'expected_participants': 'the sum of the probabilities',
  'num_iterations': 'executed iterations of AOCS',
  'non_finite_clients': 'clients with a NaN or infinite update, never sent',
  'cohort_examples': 'examples of the cohort',
  'uplink_bits': 'bits that the clients sent in the round',
  'cumulative_uplink_bits': 'bits sent up to and including the round',
  'seconds': 'duration of the round, without evaluation',
  'validation_accuracy': 'after the round; empty where not evaluated',
  'validation_loss': 'likewise',
}


# All that a run writes.
_WRITTEN = (
  'checkpoints',
  'config.json*',
  'events',
  'log.txt',
  'metrics.csv*',
  'weights*.npz',
)


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
    if self.path.is_dir() and any(self.path.iterdir()):
      if self._read_config() is None:
        raise FileExistsError(
          f'{self.path} holds files, but none of a run (no config.json of one):'
          ' they are not replaced, even with --overwrite.'
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
    return config

  def _lock(self) -> None:
    """Keeps other processes from the folder until the run ends."""
    self._lock_descriptor = os.open(self.path, os.O_RDONLY)
    try:
      fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      os.close(self._lock_descriptor)
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

  def start(self, settings: Mapping[str, Any]) -> None:
    """Makes the folder ready and writes `config.json`, or continues a run.

    Args:
      settings: The settings, JSON values by name; the environment is added.

    Raises:
      FileExistsError: As `check_settings`.
      OSError: If the folder cannot be written to.
    """
    self.path.mkdir(parents=True, exist_ok=True)
    self._lock()
    self.check_settings(settings)
    if self._overwrite:
      for pattern in _WRITTEN:
        for path in self.path.glob(pattern):
          shutil.rmtree(path) if path.is_dir() else path.unlink()
    # What was being written when a former run ended.
    for partial in self.path.glob('metrics.csv_temp*'):
      partial.unlink()
    environment = _describe_environment()
    config_path = self.path / 'config.json'
    former = self._read_config()
    if former is not None:
      for name, value in environment.items():
        if value != former['environment'].get(name):
          logging.warning(
            'The run is continued with another %s: %s, not %s. Its metrics may'
            ' differ from those of an uninterrupted run.',
            name,
            value,
            former['environment'].get(name),
          )
    else:
      partial = self.path / 'config.json.partial'
      partial.write_text(
        json.dumps({**settings, 'environment': environment}, indent=2) + '\n'
      )
      partial.replace(config_path)
    self._is_started = True
    self.checkpoints = checkpoints.Checkpoints(self.path / 'checkpoints')
    self._csv_manager = tff.program.CSVFileReleaseManager(
      self.path / 'metrics.csv',
      # Written whole and renamed in each round: there is never half a line.
      save_mode=tff.program.CSVSaveMode.WRITE,
      key_fieldname='round',
    )
    self._tensorboard_manager = tff.program.TensorBoardReleaseManager(
      self.path / 'events'
    )

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
    asyncio.run(self._csv_manager.release(metrics, round_num))
    asyncio.run(self._tensorboard_manager.release(metrics, round_num))

  def finish(self, weights: tff.learning.models.ModelWeights) -> None:
    """Writes `weights.npz`, in the model's order, and drops the checkpoints.

    Args:
      weights: The final weights.

    Raises:
      OSError: If the folder cannot be written to.
    """
    arrays = tf.nest.flatten((weights.trainable, weights.non_trainable))
    partial = self.path / 'weights.partial.npz'
    np.savez(partial, *[np.asarray(array) for array in arrays])
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
      if self._is_started:
        os.close(self._lock_descriptor)


class _LateFileHandler(handlers.MemoryHandler):
  """Keeps records in memory until the folder of its file is ready."""

  def __init__(self, path, is_folder_ready):
    super().__init__(capacity=1)
    self._path = path
    self._is_folder_ready = is_folder_ready

  def shouldFlush(self, record):  # noqa: N802, the base class' name.
    del record
    if self.target is None and self._is_folder_ready():
      target = python_logging.FileHandler(self._path)
      target.setFormatter(
        python_logging.Formatter('%(asctime)s %(levelname)s %(message)s')
      )
      self.setTarget(target)
    return self.target is not None

  def close(self):
    target = self.target
    super().close()
    if target is not None:
      target.close()


def _describe_environment() -> dict[str, Any]:
  packages = ('tensorflow', 'tensorflow-federated', 'numpy', 'jax')
  return {
    'git_commit': _git_commit(),
    'python': platform.python_version(),
    'packages': {p: importlib.metadata.version(p) for p in packages},
    'machine': platform.machine(),
    'cpus': len(os.sched_getaffinity(0)),
    'threads_per_client': execution.threads_per_client(),
  }


def _git_commit() -> str:
  """The commit of this code, with '+changes' where files differ from it."""

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
