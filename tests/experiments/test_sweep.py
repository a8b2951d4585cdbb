"""Tests of the sweep, with a stand-in for the runs."""

import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest
from absl import flags

from experiments import sweep
from experiments.campaigns import campaign
from experiments.campaigns import job as job_lib
from experiments.campaigns import job_settings
from tests.experiments import linear
from tests.experiments.campaigns import fake_run
from tests.plots import made_up

DRIVER = """
import runpy, sys
from absl import app
from experiments import sweep
from experiments.campaigns import campaign_flags
from experiments.campaigns import job as job_lib
from experiments.campaigns import job_settings
fake_run = runpy.run_path(sys.argv.pop(1))
job_lib.Job.command = fake_run['command']
job_settings.read = fake_run['read_settings']
sweep.define_flags()
app.run(sweep.main, flags_parser=campaign_flags.parse)
"""
FIRST, SECOND = 'femnist_1_full_seed0', 'femnist_1_full_seed1'


def start(output_dir, *arguments):
  return subprocess.Popen(
    [
      sys.executable,
      '-c',
      DRIVER,
      fake_run.__file__,
      '--experiment=femnist_1',
      '--methods=full',
      '--repeats=2',
      '--parallel=1',
      f'--output_dir={output_dir}',
      *arguments,
    ],
    cwd=job_lib.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def finish(process):
  output, errors = process.communicate(timeout=300)
  return process.returncode, output, errors


def wait_until(process, condition):
  deadline = time.monotonic() + 100
  while not condition():
    if process.poll() is not None or time.monotonic() > deadline:
      process.kill()
      raise AssertionError(process.communicate())
    time.sleep(0.01)


def rounds(folder):
  lines = (folder / 'metrics.csv').read_text().splitlines()
  return [int(line.split(',')[0]) for line in lines[1:]]


def test_killed_sweep_continues_and_lists_failures(tmp_path):
  output_dir = tmp_path / 'runs'
  # The second run cannot use this folder, and must not replace it.
  (output_dir / SECOND).mkdir(parents=True)
  (output_dir / SECOND / 'precious.txt').write_text('precious')
  process = start(output_dir, '--', '--total_rounds=40')
  folder = output_dir / FIRST
  wait_until(
    process,
    lambda: (folder / 'metrics.csv').exists() and len(rounds(folder)) >= 5,
  )
  pid = int((folder / 'pid').read_text())
  process.kill()
  process.communicate()
  # Its run ends with it.
  deadline = time.monotonic() + 60
  while psutil.pid_exists(pid):
    assert time.monotonic() < deadline
    time.sleep(0.01)
  assert not (folder / 'weights.npz').exists()

  status, output, errors = finish(start(output_dir, '--', '--total_rounds=40'))
  assert status == 1
  assert output == ''
  assert rounds(folder) == list(range(40))
  assert fake_run.attempts(output_dir, FIRST) == 2
  assert (output_dir / SECOND / 'precious.txt').exists()
  lines = errors.splitlines()
  assert f'1 of 2 runs are finished: {output_dir}' in lines
  assert lines[-3].startswith(f'{SECOND} failed: error: ')
  log = pathlib.Path(lines[-2].split()[-1])
  assert log == output_dir / 'logs' / f'{SECOND}.log'
  assert 'holds files, but none of a run' in log.read_text()


def test_interrupted_sweep_says_what_to_do(tmp_path):
  process = start(tmp_path, '--', '--do=hang', '--total_rounds=3')
  pid = tmp_path / FIRST / 'pid'
  wait_until(process, pid.exists)
  process.send_signal(signal.SIGTERM)
  status, output, errors = finish(process)
  assert (status, output) == (1, '')
  assert 'Traceback' not in errors
  assert errors.splitlines()[-1] == (
    'interrupted; the same command continues where this one ended'
  )
  assert not psutil.pid_exists(int(pid.read_text()))


def test_finished_sweep_shows_the_commands_for_figures(tmp_path):
  folder = tmp_path / 'my runs'
  status, output, errors = finish(start(folder, '--', '--total_rounds=2'))
  assert (status, output) == (0, '')
  assert '2 of 2 runs are finished' in errors
  assert f"python -m plots.figures --results_dir='{folder}'" in errors


def test_wrong_flags_are_reported_in_one_line(tmp_path):
  for arguments, message in (
    (
      ['--', '--seed=1'],
      'error: --seed=1 cannot be given to each run: this program sets it.',
    ),
    (['--data_source=bundled'], '-- --data_source=bundled\n'),
  ):
    status, output, errors = finish(start(tmp_path / 'runs', *arguments))
    assert (status, output) == (1, '')
    assert message in errors and errors.count('\n') == 1
    assert not (tmp_path / 'runs').exists()


@pytest.mark.parametrize('dry_run', [(), ('--dry_run',)])
def test_wrong_flags_of_runs_start_none(tmp_path, monkeypatch, dry_run):
  started = []
  monkeypatch.setattr(campaign, 'run_jobs', lambda *_, **__: started.append(1))
  for arguments, message in (
    (('--methods=none.py:build',), 'there is no file none.py'),
    (('--experiment=custom',), 'either --task=PATH.py:FUNCTION or --data'),
  ):
    values = linear.parse(
      sweep,
      '--experiment=femnist_1',
      f'--output_dir={tmp_path / "runs"}',
      *arguments,
      *dry_run,
    )
    monkeypatch.setattr(flags, 'FLAGS', values)
    with pytest.raises(SystemExit, match=message):
      sweep.main(['sweep'])
  assert not started and not list(tmp_path.iterdir())


def test_jobs_of_one_seed_come_before_those_of_the_next():
  runs = [
    job_lib.Job('a', 'femnist', ('--x=1',)),
    job_lib.Job('b', 'cifar100', ()),
  ]
  all_jobs = sweep.build_jobs(runs, 2, ['--x=2'])
  assert [job.name for job in all_jobs] == [
    'a_seed0',
    'b_seed0',
    'a_seed1',
    'b_seed1',
  ]
  assert all_jobs[2] == job_lib.Job(
    'a_seed1', 'femnist', ('--x=1', '--x=2', '--seed=1')
  )


def test_dry_run_prints_the_commands_and_marks_finished_runs(
  tmp_path, capsys, monkeypatch
):
  monkeypatch.setattr(job_settings, 'read', fake_run.read_settings)
  # A list of workers is a single flag.
  addresses = '--worker_address=host:1,[::1]:2'
  all_jobs = sweep.build_jobs(
    [job_lib.Job('a b', 'femnist', ('--total_rounds=9',))], 2, [addresses]
  )
  assert addresses in all_jobs[1].flags
  made_up.write_run(tmp_path / 'a b_seed0')
  (tmp_path / 'a b_seed0' / 'weights.npz').write_text('')
  before = sorted(os.listdir(tmp_path))
  values = linear.parse(
    sweep, '--experiment=femnist_1', '--dry_run', f'--output_dir={tmp_path}'
  )
  with pytest.raises(SystemExit) as raised:
    campaign.check_or_print(all_jobs, values)
  assert not raised.value.code
  first, second = capsys.readouterr().out.splitlines()
  assert first.startswith('# finished: ')
  assert shlex.split(second) == all_jobs[1].command(tmp_path)
  assert sorted(os.listdir(tmp_path)) == before
