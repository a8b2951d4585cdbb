"""The folder that a run leaves behind, and how a run starts, goes on and ends.

It holds

*   `config.json`: every setting, what the data is, the versions of the packages
    and of this code, and the threads, on which results depend bit for bit;
*   `metrics.csv`: one line for each round, see docs/metrics.md;
*   `norms.csv`: with --record_norms, the norms of each round's cohort;
*   `weights.npz`: the final weights, which exist once the run is finished;
*   `checkpoints/`: while the run is not finished, see `checkpoints`;
*   `clients.csv` and `client_accuracies.csv`: with `--evaluate_clients`, a line
    for each client and for each evaluation of all clients;
*   `events/`: the metrics for TensorBoard, or what another tracker needs;
*   `log.txt`.

`tff_ocs.records` defines, writes and reads the first four.
"""

import contextlib
import importlib.metadata
import logging as python_logging
import os
import pathlib
import platform
import shutil
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from logging import handlers
from typing import Any
from typing import Optional
from typing import Union

import tensorflow_federated as tff
from absl import logging

from experiments.runs import checkpoints
from experiments.runs import code_version
from experiments.runs import trackers
from tff_ocs import execution
from tff_ocs.records import clients
from tff_ocs.records import files
from tff_ocs.records import metrics as metrics_lib
from tff_ocs.records import norms as norms_lib
from tff_ocs.records import settings as settings_lib
from tff_ocs.records import weights as weights_lib

# All that a run writes, except `config.json`: without it, the rest that an
# interrupted removal leaves would not be recognised as a run's. The weights,
# which mean that the run is finished, come first.
_WRITTEN = (
  'weights*.npz',
  'checkpoints',
  'events',
  'log.txt',
  'metrics.*csv*',
  'clients.*csv*',
  'client_accuracies.*csv*',
  'norms.*csv*',
)
# Files that were being written when an earlier run ended.
_TEMPORARY = (
  'metrics.csv_temp*',
  'norms.csv_temp*',
  'client_accuracies.csv_temp*',
)
# A run that ended before it could write its settings has left only these.
_LEFT_WITHOUT_CONFIG = (
  'config.partial.json',
  'config.json.partial',  # The name in earlier versions.
  files.LOCK,
)


class RunFolder:
  """The folder of one run, from its start to its end."""

  def __init__(
    self,
    path: Union[str, os.PathLike],
    *,
    overwrite: bool = False,
    resume: bool = False,
  ):
    """Checks that the folder can be used; changes nothing in it."""
    self.path = pathlib.Path(path)
    self._overwrite = overwrite
    # Keeps what is logged while it has no target: until the start.
    self._log = handlers.MemoryHandler(capacity=1)
    self._lock = None
    self._tracker: Optional[trackers.Tracker] = None
    if self.path.is_dir() and any(
      path.name not in _LEFT_WITHOUT_CONFIG for path in self.path.iterdir()
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

  def _read_config(
    self,
  ) -> Optional[tuple[settings_lib.Settings, dict[str, Any]]]:
    """The settings and the environment of an earlier run, if there is one."""
    try:
      return settings_lib.read_config(self.path)
    except (OSError, files.RecordError):
      return None

  @property
  def is_finished(self) -> bool:
    """Whether the run's final weights are there."""
    return (self.path / weights_lib.WEIGHTS).exists()

  def check_settings(self, settings: Mapping[str, Any]) -> None:
    """Checks that an earlier run in the folder, if there is one, is the same.

    Args:
      settings: The settings of this run by name, or those that are known yet.

    Raises:
      FileExistsError: If the earlier run is to be continued, but had other
        settings.
    """
    former = self._read_config()
    if self._overwrite or former is None:
      return
    for name, recorded, asked in former[0].differences(settings):
      # Its other settings determine it, by rules that differ between versions.
      if name == 'method':
        continue
      raise FileExistsError(
        f'{self.path} holds a run with --{name}={recorded}, not {asked}: it'
        ' cannot be continued. Use the same flags, --overwrite to replace it,'
        ' or another --output_dir or --run_name.'
      )

  def start(
    self,
    settings: settings_lib.Settings,
    worker_address: Optional[str] = None,
    log_to: str = trackers.TENSORBOARD,
  ) -> None:
    """Locks the folder and writes `config.json`, or continues an earlier run.

    Args:
      settings: The settings.
      worker_address: Where the worker is, if not on this machine.
      log_to: The tracker, see `trackers`.

    Raises:
      FileExistsError: As `check_settings`; or if another process uses the
        folder, or has finished the run meanwhile.
      OSError: If the folder cannot be written to.
      RecordError: If `metrics.csv` of the earlier run is damaged.
      TrackerError: If the tracker cannot be opened.
    """
    with files.explaining_write_errors(self.path):
      self.path.mkdir(parents=True, exist_ok=True)
    try:
      self._lock = files.lock_folder(self.path)
    except BlockingIOError:
      raise FileExistsError(
        f'Another process is running in {self.path}. Wait for it, end it, or'
        ' use another --output_dir or --run_name.'
      ) from None
    try:
      self._start(settings, worker_address, log_to)
    except BaseException:
      self.close()
      raise

  def _start(self, settings, worker_address, log_to):
    self.check_settings(settings.to_json())
    if self.is_finished and not self._overwrite:
      raise FileExistsError(
        f'{self.path} was finished by another process meanwhile; use'
        ' --overwrite to run it again.'
      )
    former = None if self._overwrite else self._read_config()
    with files.explaining_write_errors(self.path):
      for pattern in _WRITTEN if self._overwrite else _TEMPORARY:
        for path in self.path.glob(pattern):
          shutil.rmtree(path) if path.is_dir() else path.unlink()
    environment = _describe_environment(worker_address)
    if former is None:
      with files.explaining_write_errors(self.path / settings_lib.CONFIG):
        settings_lib.write_config(self.path, settings, environment)
    else:
      _warn_of_changes(former[1], environment)
    self._log.setTarget(_LogFile(self.path / 'log.txt'))
    self._log.flush()
    with files.explaining_write_errors(self.path / 'checkpoints'):
      self.checkpoints = checkpoints.Checkpoints(self.path / 'checkpoints')
    self._check_metrics_of_checkpoints()
    self._metrics = metrics_lib.MetricsWriter(self.path)
    self._check_weights_of_metrics(settings.total_rounds)
    self.checkpoints.drop_from(self._metrics.num_rounds, metrics_lib.METRICS)
    with files.explaining_write_errors(self.path / 'events'):
      self._tracker = trackers.Tracker(log_to, self.path, settings.to_json())

  def _check_metrics_of_checkpoints(self):
    """Checks that good checkpoints are not dropped for want of metrics.csv."""
    is_missing = not (self.path / metrics_lib.METRICS).exists()
    if is_missing and self.checkpoints.are_there:
      raise files.RecordError(
        f'{self.path} cannot be continued: it has checkpoints, but no'
        f' {metrics_lib.METRICS}. Nothing was changed. Put that file back, or'
        ' use --overwrite to start the run again.'
      )

  def _check_weights_of_metrics(self, total_rounds):
    """Checks that the metrics of all rounds are not replaced from round 0 on.

    The weights of a record need not be kept: those in results/runs are not.
    """
    if self._metrics.num_rounds >= total_rounds and (
      not self.checkpoints.are_there
    ):
      raise files.RecordError(
        f'{self.path} cannot be continued: its {metrics_lib.METRICS} has all'
        f' {total_rounds} rounds, but there are no {weights_lib.WEIGHTS} and no'
        ' checkpoints. Nothing is lost. Use --overwrite to run it again.'
      )

  def release(self, metrics: Mapping[str, Any], round_num: int) -> None:
    """Adds a round to `metrics.csv` and to the events.

    Rounds from this one on that are in `metrics.csv` already, of a run that
    ended between two checkpoints, are replaced; the events have them twice.
    """
    self._metrics.write(metrics, round_num)
    with files.explaining_write_errors(self.path / 'events'):
      self._tracker.release(metrics, round_num)

  def open_norms(self) -> norms_lib.NormsWriter:
    """Opens `norms.csv`, to start or continue it.

    Returns:
      Its writer. A round is to be written there before it is released.

    Raises:
      OSError: If the file cannot be read or written.
      RecordError: If the run can only be continued without it, since rounds up
        to its first checkpoint were not recorded, or if the file is damaged.
    """
    is_missing = self.checkpoints.are_there and not norms_lib.are_recorded(
      self.path
    )
    if not is_missing:
      writer = norms_lib.NormsWriter(self.path)
      is_missing = self.checkpoints.are_all_from(writer.num_rounds)
    if is_missing:
      raise files.RecordError(
        f'{self.path} cannot be continued with --record_norms: the norms of'
        ' earlier rounds were not recorded. Nothing is lost. Use'
        ' --norecord_norms, or --overwrite to start the run again.'
      )
    self.checkpoints.drop_from(writer.num_rounds, norms_lib.NORMS)
    return writer

  def open_accuracies(self, rounds: Sequence[int]) -> clients.AccuraciesWriter:
    """Opens `client_accuracies.csv`, to start or continue it.

    Args:
      rounds: The rounds after which the clients are evaluated, ascending.

    Returns:
      Its writer. A round is to be written there before it is released.

    Raises:
      OSError: If the file cannot be read or written.
      RecordError: If the file is damaged, or missing though the run has passed
        a round that it should have.
    """
    name = metrics_lib.CLIENT_ACCURACIES
    is_missing = not (self.path / name).exists()
    if is_missing and rounds[0] == 0 and self.checkpoints.are_there:
      raise files.RecordError(
        f'{self.path} cannot be continued: it has checkpoints, but no {name}.'
        ' Nothing was changed. Put that file back, or use --overwrite to start'
        ' the run again.'
      )
    writer = clients.AccuraciesWriter(self.path, rounds)
    self.checkpoints.drop_from(writer.num_rounds, name)
    return writer

  def finish(self, weights: tff.learning.models.ModelWeights) -> None:
    """Writes `weights.npz`, drops the checkpoints and frees the folder."""
    weights_lib.write_weights(self.path, weights)
    self.checkpoints.remove()
    self._close_tracker(is_finished=True)
    self.close()

  def close(self) -> None:
    """Frees the folder for other processes; does nothing if it is free."""
    self._close_tracker(is_finished=False)
    if self._lock is not None:
      self._lock.release()
      self._lock = None

  def _close_tracker(self, *, is_finished):
    if self._tracker is not None:
      tracker, self._tracker = self._tracker, None
      tracker.close(is_finished=is_finished)

  @contextlib.contextmanager
  def log(self):
    """Sends what is logged, from INFO on, to `log.txt` once there is a folder.

    Meanwhile the console, which belongs to the progress bar, shows warnings and
    errors only. If the folder is never started, nothing is written. In the end
    the folder is freed for other processes.
    """
    handler = self._log
    logger, console = logging.get_absl_logger(), logging.get_absl_handler()
    verbosity, console_level = logging.get_verbosity(), console.level
    # TensorFlow logs each checkpoint.
    python_logging.getLogger('tensorflow').setLevel(python_logging.WARNING)
    logger.addHandler(handler)
    # Not the logger's level, which TensorFlow sets back to the verbosity.
    logging.set_verbosity(logging.INFO)
    console.setLevel(python_logging.WARNING)
    try:
      yield
    except BaseException as error:
      logging.info('The run ended early: %r', error)
      raise
    finally:
      # It may have something to log.
      self._close_tracker(is_finished=False)
      logger.removeHandler(handler)
      logging.set_verbosity(verbosity)
      console.setLevel(console_level)
      file = handler.target
      handler.close()
      if file is not None:
        file.close()
      self.close()


def _warn_of_changes(former, environment):
  """Warns of each difference from the environment that the run began in."""
  for name, value in environment.items():
    if value != former.get(name):
      logging.warning(
        'The run is continued with another %s: %s, not %s. Its metrics may'
        ' differ from those of an uninterrupted run.',
        name,
        value,
        former.get(name),
      )


class _LogFile(python_logging.FileHandler):
  """Gives up if the file cannot be written, and says so once.

  A run is worth more than its log. A fault that stops the log usually stops the
  metrics too, and these end the run.
  """

  def __init__(self, path):
    super().__init__(path, encoding='utf-8', delay=True)
    self.setFormatter(
      python_logging.Formatter('%(asctime)s %(levelname)s %(message)s')
    )
    self._has_failed = False

  def emit(self, record):
    try:
      super().emit(record)
    except OSError:  # Raised only when the file is opened.
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


def _describe_environment(worker_address) -> dict[str, Any]:
  packages = ('tensorflow', 'tensorflow-federated', 'numpy', 'jax')
  return {
    'git_commit': code_version.git_commit(),
    'python': platform.python_version(),
    'packages': {p: importlib.metadata.version(p) for p in packages},
    'machine': platform.machine(),
    'cpus': len(os.sched_getaffinity(0)),
    # Those of a remote worker are not known.
    'threads_per_client': (
      execution.threads_per_client() if worker_address is None else None
    ),
    'worker_address': worker_address,
  }
