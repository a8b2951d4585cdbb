"""Where a run's metrics are shown: TensorBoard, MLflow or Weights & Biases.

Each tracker is a release manager of TFF, to which the training loop releases
the metrics of a round. `metrics.csv` is written in any case.

MLflow keeps all runs of an --output_dir together, in its folder `mlruns`, which
`mlflow ui --backend-store-uri` shows, unless MLFLOW_TRACKING_URI names another
place. Runs on a Ray cluster need a server there. Weights & Biases is set up by
its own variables, such as WANDB_PROJECT; with WANDB_MODE=offline, it writes to
the run's folder and sends nothing.
"""

import collections
import importlib
import importlib.util
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import tensorflow_federated as tff
from absl import logging

from tff_ocs.records import files
from tff_ocs.records import waiting

TENSORBOARD = 'tensorboard'
# The packages of the other trackers, by the value of --log_to.
PACKAGES = {'mlflow': 'mlflow', 'wandb': 'wandb'}


class TrackerError(ValueError):
  """Raised if a tracker cannot be used."""


def check(name: str) -> None:
  """Checks that the package of a tracker is installed.

  Raises:
    TrackerError: If it is not.
  """
  package = PACKAGES.get(name)
  if package is not None and importlib.util.find_spec(package) is None:
    raise TrackerError(
      f'--log_to={name} needs the package {package}: pip install {package}'
    )


class Tracker:
  """The tracker of one run: it releases metrics, and is closed at the end."""

  def __init__(
    self, name: str, folder: pathlib.Path, settings: Mapping[str, Any]
  ):
    """Opens the tracker.

    Args:
      name: The value of --log_to.
      folder: The run's folder; the tracker writes to `events` in it.
      settings: The run's settings, by name.

    Raises:
      TrackerError: If it cannot be opened.
    """
    self._name = name
    events = folder / 'events'
    if name == TENSORBOARD:
      self._manager = tff.program.TensorBoardReleaseManager(events)
      return
    build = {'mlflow': _MlflowReleaseManager, 'wandb': _WandbReleaseManager}
    events.mkdir(exist_ok=True)
    try:
      self._manager = build[name](folder, settings)
    except Exception as error:  # Both packages raise many types.
      hint = '; WANDB_MODE=offline needs no server' * (name == 'wandb')
      raise TrackerError(
        f'--log_to={name}: the run cannot be opened there:'
        f' {_first_line(error)}{hint}. With --log_to={TENSORBOARD} the run does'
        f' not need {name}.'
      ) from error

  def release(self, metrics: Mapping[str, Any], round_num: int) -> None:
    """Shows the metrics of a round.

    Raises:
      OSError: If a file cannot be written.
      TrackerError: If MLflow or Weights & Biases does not take them.
    """
    released = self._manager.release(
      collections.OrderedDict(metrics), round_num
    )
    if self._name == TENSORBOARD:
      waiting.wait_for(released)
      return
    try:
      waiting.wait_for(released)
    except Exception as error:
      raise TrackerError(
        f'--log_to={self._name} does not take the metrics of round'
        f' {round_num}: {_first_line(error)}. With --log_to={TENSORBOARD} the'
        f' run goes on without {self._name}.'
      ) from error

  def close(self, *, is_finished: bool) -> None:
    """Ends the run there, as finished or as interrupted, if that is possible.

    If it is not, a warning says so: the run's own files are complete.
    """
    close = getattr(self._manager, 'close', None)
    if close is None:
      return
    try:
      close(is_finished)
    except Exception as error:
      logging.warning(
        '--log_to=%s: the run could not be ended there: %s',
        self._name,
        _first_line(error),
      )


def _id_path(folder: pathlib.Path, name: str) -> pathlib.Path:
  """The file of the id under which a tracker knows the run.

  With it, a resumed run goes on there.
  """
  return folder / 'events' / f'{name}_id.txt'


def _write_id(path: pathlib.Path, run_id: str) -> None:
  with files.replacing(path) as partial:
    partial.write_text(run_id, encoding='utf-8')


def _first_line(error: Exception) -> str:
  return (str(error).strip().splitlines() or [repr(error)])[0]


class _MlflowReleaseManager(tff.program.ReleaseManager):
  """Releases metrics to MLflow."""

  def __init__(self, folder, settings):
    mlflow = importlib.import_module('mlflow')
    self._entities = mlflow.entities
    default = (folder.parent / 'mlruns').resolve().as_uri()
    self._client = mlflow.MlflowClient(
      os.environ.get('MLFLOW_TRACKING_URI', default)
    )
    path = _id_path(folder, 'mlflow')
    if path.exists():
      self._run_id = path.read_text(encoding='utf-8')
      self._client.update_run(self._run_id, 'RUNNING')
      known = self._client.get_run(self._run_id).data.params
    else:
      run = self._client.create_run(
        self._find_experiment(settings['experiment']), run_name=folder.name
      )
      self._run_id, known = run.info.run_id, {}
      _write_id(path, self._run_id)
    for name, value in settings.items():
      if name not in known:
        self._client.log_param(self._run_id, name, value)

  def _find_experiment(self, name):
    experiment = self._client.get_experiment_by_name(name)
    if experiment is not None:
      return experiment.experiment_id
    try:
      return self._client.create_experiment(name)
    except Exception:  # Another run of a sweep has made it meanwhile.
      experiment = self._client.get_experiment_by_name(name)
      if experiment is None:
        raise
      return experiment.experiment_id

  async def release(self, value, key):
    now = int(1000 * time.time())
    self._client.log_batch(
      self._run_id,
      [
        self._entities.Metric(name, float(number), now, key)
        for name, number in value.items()
      ],
    )

  def close(self, is_finished):
    self._client.set_terminated(
      self._run_id, 'FINISHED' if is_finished else 'KILLED'
    )


class _WandbReleaseManager(tff.program.ReleaseManager):
  """Releases metrics to Weights & Biases."""

  def __init__(self, folder, settings):
    wandb = importlib.import_module('wandb')
    path = _id_path(folder, 'wandb')
    if not path.exists():
      _write_id(path, wandb.util.generate_id())
    self._run = wandb.init(
      project=os.environ.get('WANDB_PROJECT', 'tff_ocs'),
      group=settings['experiment'],
      name=folder.name,
      id=path.read_text(encoding='utf-8'),
      dir=str(folder / 'events'),
      config=dict(settings),
      resume='allow',
      # The console belongs to the progress bar.
      settings=wandb.Settings(console='off', silent=True),
    )

  async def release(self, value, key):
    self._run.log(dict(value), step=key)

  def close(self, is_finished):
    self._run.finish(exit_code=0 if is_finished else 1)
