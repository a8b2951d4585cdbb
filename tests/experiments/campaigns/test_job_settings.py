"""Tests of the settings of jobs, against those of runs."""

import dataclasses
import json
import shutil

import pytest

from experiments.campaigns import job as job_lib
from experiments.campaigns import job_settings
from experiments.campaigns import jobs
from tests.experiments import linear
from tff_ocs.records import settings as settings_lib


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A job whose run is finished, and the folder of its run's folder."""
  folder = tmp_path_factory.mktemp('finished')
  job = job_lib.Job('run', 'femnist', (*linear.SMALL, '--seed=1'))
  linear.run(*job.flags, '--run_name=run', f'--output_dir={folder}')
  return job, folder


def test_settings_are_those_that_the_run_records(finished):
  job, folder = finished
  recorded, _ = settings_lib.read_config(folder / 'run')
  asked = job_settings.read(job)
  # Settings that depend on the data are not known before.
  assert set(recorded.to_json()) - set(asked.recorded) == {
    'data',
    'method',
    'pool_clients',
    'pool_examples',
    'validation_examples',
  }
  assert asked.recorded['seed'] == 1
  assert 'batch_size' in asked.defaults and 'seed' not in asked.defaults
  assert jobs.is_finished(job, folder)


def test_finished_run_without_the_norms_is_refused(finished, tmp_path):
  job, folder = finished
  job = job._replace(flags=(*job.flags, '--record_norms=true'))
  with pytest.raises(job_lib.JobError, match='run without --record_norms'):
    jobs.is_finished(job, folder)
  # An interrupted one says so itself when it is continued.
  shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
  (tmp_path / 'run' / 'weights.npz').unlink()
  assert not jobs.is_finished(job, tmp_path)


def test_label_of_another_version_is_no_other_run(finished, tmp_path):
  job, folder = finished
  shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
  config = tmp_path / 'run' / 'config.json'
  settings = json.loads(config.read_text())
  config.write_text(json.dumps({**settings, 'method': 'as it was called'}))
  (tmp_path / 'run' / 'weights.npz').unlink()
  with pytest.raises(SystemExit, match='has all 4 rounds'):
    linear.run(*job.flags, '--run_name=run', f'--output_dir={tmp_path}')


@pytest.mark.parametrize(
  ('name', 'value', 'its_default'),
  [
    ('batch_size', 10, 20),
    ('client_epochs', 2, 1),
    ('client_learning_rate', 0.5, 0.125),
    ('data_source', 'tff', 'synthetic'),
    ('max_iterations', 2, 4),
    ('server_learning_rate', 0.5, 1.0),
    ('uniform_skips_silent_clients', True, False),
    ('validation_subset', 500, None),
  ],
)
def test_finished_run_of_another_setting_is_refused(
  finished, tmp_path, name, value, its_default
):
  job, folder = finished
  settings, environment = settings_lib.read_config(folder / 'run')
  if hasattr(settings, name):
    settings = dataclasses.replace(settings, **{name: value})
  else:
    settings = dataclasses.replace(
      settings, others={**settings.others, name: value}
    )
  (tmp_path / 'run').mkdir()
  settings_lib.write_config(tmp_path / 'run', settings, environment)
  given = dict(job.values)
  given.pop(name, None)
  if name == 'data_source':
    given[name] = its_default
  job = job._replace(flags=tuple(f'--{k}={v}' for k, v in given.items()))
  message = f'--{name}={value}, not {its_default}'
  if name not in ('data_source', 'uniform_skips_silent_clients'):
    message += ', which is its default'
  with pytest.raises(job_lib.JobError, match=message):
    jobs.is_finished(job, tmp_path)


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--no_such=1', "experiments.femnist: Unknown command line flag 'no_such'"),
    ('--batch_size=0', 'experiments.femnist: .*batch_size=0'),
    (
      '--unbalanced_s=0.5',
      'experiments.femnist, run: .*must be given together',
    ),
    ('--sampling=no.py:f', 'experiments.femnist, run: .*there is no file'),
    ('--availability=2', 'experiments.femnist, run: --availability=2 must be'),
    ('--cohort_weight=unknown', 'needs --sampling=threshold'),
  ],
)
def test_experiment_refuses_flags(flag, message):
  job = job_lib.Job('run', 'femnist', ('--total_rounds=2', flag))
  with pytest.raises(job_lib.JobError, match=message):
    job_settings.read(job)
