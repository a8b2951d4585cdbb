"""Tests of the queue of jobs, with a stand-in for the runs."""

import itertools
import json
import os
import pathlib
import signal
import sys
import threading
import time

import psutil
import pytest

from experiments import campaigns
from experiments.campaigns import job as job_lib
from experiments.campaigns import job_settings
from experiments.campaigns import jobs
from experiments.campaigns import local_runner
from tests.experiments.campaigns import fake_run


@pytest.fixture(autouse=True)
def fake_runs(monkeypatch):
  monkeypatch.setattr(job_lib.Job, 'command', fake_run.command)
  monkeypatch.setattr(job_settings, 'read', fake_run.read_settings)


def make_job(name, do='finish', seed=0):
  return job_lib.Job(
    name, 'fake', (f'--do={do}', f'--seed={seed}', '--total_rounds=3')
  )


def run(output_dir, *all_jobs, **kwargs):
  return jobs.run_jobs(all_jobs, output_dir=output_dir, name='test', **kwargs)


def wait_until(condition):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_command_has_flags_name_and_folder(monkeypatch):
  monkeypatch.undo()
  job = job_lib.Job('run', 'femnist', ('--total_rounds=3', '--total_rounds=4'))
  assert job.command('runs')[1:] == [
    '-m',
    'experiments.femnist',
    '--total_rounds=4',
    '--run_name=run',
    '--output_dir=runs',
  ]
  assert job.total_rounds == 4


def test_jobs_of_one_name_are_one_job(tmp_path):
  with pytest.raises(job_lib.JobError, match='two runs have the name a, with'):
    run(tmp_path, make_job('a'), make_job('a', seed=1))
  assert not list(tmp_path.iterdir())
  assert run(tmp_path, make_job('a'), make_job('a')) == []
  assert fake_run.attempts(tmp_path, 'a') == 1


def test_all_run_in_one_bar_and_finished_ones_are_skipped(tmp_path, capsys):
  first, second = make_job('first'), make_job('second')
  assert run(tmp_path, first) == []
  capsys.readouterr()
  assert run(tmp_path, first, second) == []
  output = capsys.readouterr()
  assert output.out == ''
  # The bar began with the rounds of the first.
  assert 'test:  50%' in output.err
  assert '6/6' in output.err and 'finished=2, running=0' in output.err
  assert [
    fake_run.attempts(tmp_path, name) for name in ('first', 'second')
  ] == [1, 1]
  assert job_lib.log_path(tmp_path, second).read_text() == 'attempt 1\n'
  assert jobs.is_finished(second, tmp_path)


def test_failing_run_is_retried_and_listed_but_stops_no_other(tmp_path, capsys):
  all_jobs = [
    make_job('fails', 'fail'),
    make_job('recovers', 'fail once'),
    make_job('dies', 'die'),
    make_job('is_refused', 'refuse'),
    make_job('has_bad_flags', 'refuse flags'),
    make_job('finishes'),
  ]
  failed = run(tmp_path, *all_jobs)
  # A run that says what is wrong before it begins is not tried again.
  assert {job.name: reason for job, reason, _ in failed} == {
    'fails': 'RuntimeError: it was too much',
    'dies': 'ended by SIGKILL',
    'is_refused': 'error: no such data.',
    'has_bad_flags': 'error: flag --x=y: bad',
  }
  counts = [fake_run.attempts(tmp_path, job.name) for job in all_jobs]
  assert counts == [3, 2, 3, 1, 1, 1]
  logs = {job.name: log for job, _, log in failed}
  assert 'attempt 3\n' in logs['fails'].read_text()
  output = capsys.readouterr().err
  assert 'fails failed: RuntimeError' in output
  assert 'recovers failed and is tried again' in output
  # The failed runs' other rounds are no longer waited for.
  assert '10/10' in output and 'finished=2, running=0, failed=4' in output


def test_folder_of_other_flags_stops_all_before_any_work(tmp_path):
  run(tmp_path, make_job('run', seed=1))
  with pytest.raises(job_lib.JobError, match='--seed=1, not 2.*--output_dir'):
    run(tmp_path, make_job('other'), make_job('run', seed=2))
  assert fake_run.attempts(tmp_path, 'other') == 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason='needs two cores')
def test_parallel_runs_share_all_cores_and_none_twice(tmp_path):
  both = make_job('a', 'meet'), make_job('b', 'meet')
  assert run(tmp_path, *both, parallel=2) == []
  shares = [json.loads(p.read_text()) for p in tmp_path.glob('*/cores')]
  cores = sorted(itertools.chain(*shares))
  assert len(shares) == 2
  assert cores == sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
  ('cores', 'num_jobs', 'gigabytes', 'expected'),
  [
    (2, 10, 100, [[0], [1]]),
    (4, 2, 100, [[0, 1], [2, 3]]),
    (4, 10, 10, [[0], [1], [2, 3]]),
    (2, 10, 1, [[0, 1]]),
    (1, 10, 100, [[0]]),
  ],
)
def test_one_run_for_each_core_with_enough_memory(
  cores, num_jobs, gigabytes, expected, monkeypatch
):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(cores)))
  memory = psutil.virtual_memory()._replace(available=int(gigabytes * 1e9))
  monkeypatch.setattr(psutil, 'virtual_memory', lambda: memory)
  assert local_runner.share_cores(None, num_jobs) == expected


@pytest.mark.parametrize('parallel', [0, 10**6])
def test_impossible_parallel_is_refused(tmp_path, parallel):
  with pytest.raises(job_lib.JobError, match='--parallel must be from 1 to'):
    run(tmp_path, make_job('run'), parallel=parallel)


def test_parallel_is_not_for_ray(tmp_path):
  with pytest.raises(
    job_lib.JobError, match='--parallel .* cannot be combined'
  ):
    run(tmp_path, make_job('run'), parallel=1, ray_address='auto')


@pytest.mark.parametrize('uri', [None, '', 'mlruns', 'file:///mlruns'])
def test_mlflow_on_ray_needs_a_server(tmp_path, monkeypatch, uri):
  monkeypatch.delenv('MLFLOW_TRACKING_URI', raising=False)
  if uri is not None:
    monkeypatch.setenv('MLFLOW_TRACKING_URI', uri)
  job = make_job('run').extended('', '--log_to=mlflow')
  with pytest.raises(
    job_lib.JobError, match=f'MLFLOW_TRACKING_URI, found {uri or ""!r}'
  ):
    run(tmp_path, job, ray_address='auto')
  assert not (tmp_path / 'run').exists()


def test_missing_ray_is_explained(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  monkeypatch.delitem(
    sys.modules, 'experiments.campaigns.ray_runner', raising=False
  )
  monkeypatch.delattr(campaigns, 'ray_runner', raising=False)
  with pytest.raises(
    job_lib.JobError, match='needs the package ray.*pip install'
  ):
    run(tmp_path, make_job('run'), ray_address='auto')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_interruption_ends_the_runs(tmp_path, number):
  pid = tmp_path / 'run' / 'pid'
  refused = []

  def interrupt():
    wait_until(lambda: pid.exists() and pid.read_text())
    # Meanwhile the folder is not for others.
    try:
      run(tmp_path, make_job('other'))
    except job_lib.JobError as error:
      refused.append(str(error))
    os.kill(os.getpid(), number)

  thread = threading.Thread(target=interrupt)
  thread.start()
  with pytest.raises(KeyboardInterrupt):
    run(tmp_path, make_job('run', 'hang'))
  thread.join()
  assert not pathlib.Path(f'/proc/{pid.read_text()}').exists()
  assert len(refused) == 1 and 'Another process' in refused[0]
  assert fake_run.attempts(tmp_path, 'other') == 0
