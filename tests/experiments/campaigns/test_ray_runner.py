"""Tests of runs on a Ray cluster, of several nodes on this machine."""

import os
import signal
import subprocess
import sys
import time

import pytest
from ray import cluster_utils

from experiments.campaigns import job as job_lib
from experiments.campaigns import jobs
from experiments.campaigns import local_runner
from experiments.campaigns import ray_runner
from experiments.runs import run_progress
from tests.experiments import linear

JOB = job_lib.Job(
  'run',
  'femnist',
  (
    '--data_source=synthetic',
    '--clients_per_round=3',
    '--expected_clients=1',
    '--total_rounds=24',
    '--rounds_per_eval=10',
    '--rounds_per_checkpoint=4',
  ),
)
NODE = {'object_store_memory': 80 * 2**20}

# A process of its own, since a driver must be in another than its nodes.
DRIVER = f"""
import sys
from experiments.campaigns import job as job_lib
from experiments.campaigns import jobs
job = job_lib.Job(*{tuple(JOB)!r})
refused = job._replace(
  name='refused', flags=(*job.flags, '--clients_per_round=1000')
)
failed = jobs.run_jobs(
  [job, refused], output_dir=sys.argv[1], name='test', ray_address=sys.argv[2]
)
assert [f.job.name for f in failed] == ['refused'], failed
assert '--clients_per_round=1000 is more than' in failed[0].reason, failed
"""


def wait_until(driver, condition):
  deadline = time.monotonic() + 300
  while not condition():
    if driver.poll() is not None or time.monotonic() > deadline:
      driver.kill()
      raise AssertionError(driver.communicate())
    time.sleep(0.01)


@pytest.fixture
def cluster(monkeypatch):
  """A cluster whose only node, the head, runs nothing."""
  monkeypatch.setenv('RAY_USAGE_STATS_ENABLED', '0')
  former = signal.getsignal(signal.SIGTERM)
  result = cluster_utils.Cluster(
    initialize_head=True,
    head_node_args={
      'num_cpus': 0,
      'include_dashboard': False,
      # By default, a lost node is noticed after half a minute.
      '_system_config': {
        'health_check_initial_delay_ms': 0,
        'health_check_period_ms': 500,
        'health_check_failure_threshold': 6,
      },
      **NODE,
    },
  )
  yield result
  result.shutdown()
  signal.signal(signal.SIGTERM, former)


def test_run_goes_on_elsewhere_when_its_node_is_lost(
  cluster, tmp_path, monkeypatch
):
  output_dir = tmp_path / 'runs'
  driver = subprocess.Popen(
    [sys.executable, '-c', DRIVER, str(output_dir), cluster.address],
    cwd=job_lib.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  log = job_lib.log_path(output_dir, JOB)
  # Only now nodes join, so that the driver cannot be at one that is lost.
  wait_until(driver, log.exists)
  node = cluster.add_node(num_cpus=2, **NODE)
  folder = output_dir / JOB.name
  wait_until(driver, lambda: linear.saved_checkpoints(folder))
  cluster.remove_node(node, allow_graceful=False)
  assert not (folder / 'weights.npz').exists()
  cluster.add_node(num_cpus=2, **NODE)
  output, errors = driver.communicate(timeout=300)
  assert driver.returncode == 0, errors
  assert output == ''
  assert 'run failed and is tried again: lost by Ray' in errors
  assert '24/24' in errors and 'raylet' not in errors
  assert 'Going on from the checkpoint' in (folder / 'log.txt').read_text()
  assert '24/24' in log.read_text()
  # On the node it was in another folder, and nothing is left of the way here.
  assert str(tmp_path) not in (folder / 'log.txt').read_text()
  assert {path.name for path in output_dir.iterdir()} == {'logs', 'run'}

  # As a run that nothing disturbs, with as many cores.
  cores = sorted(os.sched_getaffinity(0))[:2]
  monkeypatch.setattr(local_runner, 'share_cores', lambda *_: [cores])
  alone = tmp_path / 'alone'
  assert jobs.run_jobs([JOB], output_dir=alone, name='alone') == []
  assert linear.read_results(folder) == linear.read_results(alone / 'run')


def test_cluster_that_is_not_there_is_told_in_time(tmp_path, monkeypatch):
  monkeypatch.setattr(ray_runner, '_CONNECT_SECONDS', 1)
  with pytest.raises(job_lib.JobError) as raised:
    jobs.run_jobs(
      [JOB], output_dir=tmp_path, name='test', ray_address='127.0.0.1:9'
    )
  message = str(raised.value)
  assert message.startswith('--ray_address=127.0.0.1:9: ')
  assert 'no answer within 1 s' in message


def test_ray_client_is_refused(tmp_path):
  with pytest.raises(job_lib.JobError, match='auto, HOST or HOST:PORT'):
    jobs.run_jobs(
      [JOB], output_dir=tmp_path, name='test', ray_address='ray://host:10001'
    )


def make_folder(path):
  files = {
    'checkpoints/after_round_3/saved': b'3',
    'checkpoints/after_round_11/saved': b'11',
    'checkpoints/after_round_13_temp1/saved': b'half',
    'config.json': b'{}',
    'metrics.csv': b'round\n',
    'metrics.csv_temp1': b'half',
    'weights.partial.npz': b'half',
  }
  ray_runner._write_files(path, files)
  return files


def test_files_of_a_going_run_are_those_of_its_newest_checkpoint(tmp_path):
  assert run_progress.newest_checkpoint(tmp_path) is None
  files = make_folder(tmp_path)
  newest = run_progress.newest_checkpoint(tmp_path)
  assert newest == 'after_round_11'
  assert ray_runner._read_files(tmp_path) == files
  assert ray_runner._read_files(tmp_path, newest) == {
    'checkpoints/after_round_11/saved': b'11',
    'config.json': b'{}',
    'metrics.csv': b'round\n',
  }


def test_folder_is_replaced_wholly(tmp_path):
  make_folder(tmp_path / 'run')
  ray_runner._replace(tmp_path / 'run', {'config.json': b'new'})
  assert ray_runner._read_files(tmp_path) == {'run/config.json': b'new'}


@pytest.mark.parametrize('name', ['../x', 'a/../../x', '/tmp/x'])
def test_path_out_of_the_folder_is_refused(tmp_path, name):
  (tmp_path / 'run').mkdir()
  with pytest.raises(ValueError, match='not a path within'):
    ray_runner._write_files(tmp_path / 'run', {name: b''})
  assert list(tmp_path.iterdir()) == [tmp_path / 'run']


@pytest.mark.parametrize('name', ['.', 'runs'])
def test_interrupted_replacement_is_settled(tmp_path, name):
  folder = tmp_path / name
  # Between the two renames, and after both.
  for name in ('.a.former/x', '.a.partial/x', '.b.former/x', 'b/y'):
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b'')
  ray_runner._settle_replacements(tmp_path)
  assert set(ray_runner._read_files(folder)) == {'a/x', 'b/y'}


def test_runs_on_one_machine_get_different_cores(tmp_path, monkeypatch):
  monkeypatch.setattr(ray_runner.tempfile, 'gettempdir', lambda: str(tmp_path))
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: {0, 1, 2, 3, 4})
  with ray_runner._cores(2) as first:
    with ray_runner._cores(2) as second:
      with ray_runner._cores(2) as third:
        assert (first, second) == ([0, 1], [2, 3])
        # There are not enough left.
        assert third == [0, 1, 2, 3, 4]
    with ray_runner._cores(3) as again:
      assert again == [2, 3, 4]
