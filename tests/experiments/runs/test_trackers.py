"""Tests of the trackers, offline: MLflow's file store, wandb's offline mode."""

import importlib.util
import json

import pytest

from experiments.runs import trackers
from tests.experiments import linear


def test_tensorboard_is_the_default_and_writes_events(tmp_path):
  result = linear.run_and_read(tmp_path)
  assert list((result.path / 'events').glob('events.*'))
  assert 'log_to' not in result.config
  assert not (tmp_path / 'mlruns').exists()


@pytest.mark.parametrize('name', ['mlflow', 'wandb'])
def test_missing_package_is_named_before_any_work(name, tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(
    SystemExit, match=f'^error: --log_to={name} needs .*: pip install {name}$'
  ):
    linear.run(*linear.SMALL, f'--log_to={name}', f'--output_dir={tmp_path}/a')
  assert not (tmp_path / 'a').exists()


def test_tracker_that_cannot_be_opened_is_one_line(tmp_path, monkeypatch):
  class Broken:
    def __init__(self, folder, settings):
      raise RuntimeError('no such server\nmore')

  monkeypatch.setattr(trackers, '_MlflowReleaseManager', Broken)
  with pytest.raises(
    trackers.TrackerError,
    match='^--log_to=mlflow: the run cannot be opened there: no such server.'
    ' With --log_to=tensorboard the run does not need mlflow.$',
  ):
    trackers.Tracker('mlflow', tmp_path, {})


class Unreachable:
  """A manager whose server has gone."""

  def __init__(self, folder, settings):
    del folder, settings

  async def release(self, value, key):
    raise RuntimeError('no such server\nmore')

  def close(self, is_finished):
    raise RuntimeError(f'gone, finished: {is_finished}')


def test_tracker_that_fails_costs_no_round(tmp_path, monkeypatch, capsys):
  flags = (*linear.SMALL, f'--output_dir={tmp_path}', '--run_name=run')
  monkeypatch.setattr(trackers, '_WandbReleaseManager', Unreachable)
  with pytest.raises(
    SystemExit,
    match='^error: --log_to=wandb does not take the metrics of round 0: no such'
    ' server. With --log_to=tensorboard the run goes on without wandb.$',
  ):
    linear.run(*flags, '--log_to=wandb')
  log = (tmp_path / 'run' / 'log.txt').read_text()
  assert 'the run could not be ended there: gone, finished: False' in log
  # The folder is free, and another tracker goes on.
  linear.run(*flags)
  assert (tmp_path / 'run' / 'weights.npz').exists()


def test_run_is_finished_though_its_tracker_is_not(tmp_path, monkeypatch):
  monkeypatch.setattr(trackers, '_MlflowReleaseManager', Unreachable)
  monkeypatch.setattr(trackers.Tracker, 'release', lambda *args: None)
  flags = (*linear.SMALL, f'--output_dir={tmp_path}', '--run_name=run')
  linear.run(*flags, '--log_to=mlflow')
  assert (tmp_path / 'run' / 'weights.npz').exists()
  assert not (tmp_path / 'run' / 'checkpoints').exists()
  log = (tmp_path / 'run' / 'log.txt').read_text()
  assert '--log_to=mlflow: the run could not be ended there: gone' in log


def test_run_that_is_interrupted_after_its_end_is_finished(
  tmp_path, monkeypatch
):
  def close(self, is_finished):
    raise KeyboardInterrupt

  monkeypatch.setattr(Unreachable, 'close', close)
  monkeypatch.setattr(trackers, '_WandbReleaseManager', Unreachable)
  monkeypatch.setattr(trackers.Tracker, 'release', lambda *args: None)
  flags = (*linear.SMALL, f'--output_dir={tmp_path}', '--run_name=run')
  with pytest.raises(SystemExit, match=f'The run in {tmp_path}/run is finish'):
    linear.run(*flags, '--log_to=wandb')


class InterruptionError(Exception):
  pass


def run_in_two_parts(output_dir, monkeypatch, name):
  """A run that ends early in round 3, after a checkpoint, and is resumed."""
  flags = (
    *linear.SMALL,
    f'--output_dir={output_dir}',
    '--run_name=run',
    '--rounds_per_checkpoint=2',
    f'--log_to={name}',
  )
  release = trackers.Tracker.release

  def release_or_end(self, metrics, round_num):
    if round_num == 3:
      raise InterruptionError
    release(self, metrics, round_num)

  monkeypatch.setattr(trackers.Tracker, 'release', release_or_end)
  with pytest.raises(InterruptionError):
    linear.run(*flags)
  monkeypatch.setattr(trackers.Tracker, 'release', release)
  linear.run(*flags)
  return linear.read_results(output_dir / 'run')


def test_mlflow_has_all_rounds_of_a_resumed_run(tmp_path, monkeypatch):
  import mlflow

  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  metrics, _ = run_in_two_parts(tmp_path, monkeypatch, 'mlflow')
  client = mlflow.MlflowClient((tmp_path / 'mlruns').as_uri())
  experiment = client.get_experiment_by_name('FEMNIST set 1')
  (found,) = client.search_runs([experiment.experiment_id])
  assert found.info.run_name == 'run'
  assert found.info.status == 'FINISHED'
  assert found.data.params['sampling'] == 'aocs'
  history = client.get_metric_history(found.info.run_id, 'training_loss')
  column = metrics[0].index('training_loss')
  by_step = {metric.step: metric.value for metric in history}
  assert by_step == {
    int(row[0]): pytest.approx(float(row[column])) for row in metrics[1:]
  }
  assert set(by_step) == {0, 1, 2, 3}


def test_mlflow_run_whose_settings_fail_is_taken_up(tmp_path, monkeypatch):
  import mlflow

  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  folder = tmp_path / 'run'
  folder.mkdir()
  with monkeypatch.context() as patch:
    patch.setattr(mlflow.MlflowClient, 'log_param', lambda *_: 1 / 0)
    with pytest.raises(trackers.TrackerError, match='division by zero'):
      trackers.Tracker('mlflow', folder, {'experiment': 'x'})
  trackers.Tracker('mlflow', folder, {'experiment': 'x'})
  client = mlflow.MlflowClient((tmp_path / 'mlruns').as_uri())
  experiment = client.get_experiment_by_name('x')
  (found,) = client.search_runs([experiment.experiment_id])
  assert found.data.params == {'experiment': 'x'}


def test_wandb_writes_offline(tmp_path, monkeypatch):
  import wandb

  monkeypatch.setenv('WANDB_MODE', 'offline')
  metrics, _ = run_in_two_parts(tmp_path, monkeypatch, 'wandb')
  files = sorted((tmp_path / 'run' / 'events' / 'wandb').glob('*/run-*.wandb'))
  # Both parts have the same id, so that `wandb sync` makes one run of them.
  identifier = (tmp_path / 'run' / 'events' / 'wandb_id.txt').read_text()
  assert {file.name for file in files} == {f'run-{identifier}.wandb'}
  losses = {}
  for file in files:
    store = wandb.sdk.internal.datastore.DataStore()
    store.open_for_scan(str(file))
    while True:
      data = store.scan_data()
      if data is None:
        break
      record = wandb.proto.wandb_internal_pb2.Record()
      record.ParseFromString(data)
      for item in record.history.item:
        if [item.key or '.'.join(item.nested_key)] == ['training_loss']:
          losses[record.history.step.num] = json.loads(item.value_json)
  column = metrics[0].index('training_loss')
  assert losses == {
    int(row[0]): pytest.approx(float(row[column])) for row in metrics[1:]
  }
