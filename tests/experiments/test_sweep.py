"""Tests of the sweep, end to end on small synthetic data."""

import shlex
import subprocess
import sys
import time

from experiments import sweep
from experiments.campaigns import jobs
from experiments.campaigns import paper_runs
from tests.experiments import real_runs
from tests.plots import made_up
from tff_ocs.records import files
from tff_ocs.records import settings

COMMAND = (
  sys.executable,
  '-m',
  'experiments.sweep',
  '--experiment=femnist_1',
  '--methods=full',
  '--repeats=2',
  '--parallel=1',
)
RUN_FLAGS = (
  '--data_source=synthetic',
  '--clients_per_round=3',
  '--total_rounds=9',
  '--rounds_per_checkpoint=2',
)
FIRST, SECOND = 'femnist_1_full_seed0', 'femnist_1_full_seed1'


def start(output_dir, *arguments):
  return subprocess.Popen(
    [*COMMAND, f'--output_dir={output_dir}', *arguments],
    cwd=jobs.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def finish(process):
  output, errors = process.communicate(timeout=300)
  return process.returncode, output, errors


def is_locked(folder):
  try:
    files.lock_folder(folder).release()
  except BlockingIOError:
    return True
  return False


def test_killed_sweep_goes_on_and_lists_what_fails(tmp_path):
  # The printed commands are those of the runs.
  status, output, errors = finish(
    start(tmp_path / 'alone', '--dry_run', '--', *RUN_FLAGS)
  )
  assert status == 0, errors
  assert not (tmp_path / 'alone').exists()
  first, second = output.splitlines()
  assert f'--run_name={FIRST}' in first and f'--run_name={SECOND}' in second
  subprocess.run(
    first, shell=True, check=True, cwd=jobs.ROOT, capture_output=True
  )

  output_dir = tmp_path / 'runs'
  # What the second run cannot use, and must not replace.
  (output_dir / SECOND).mkdir(parents=True)
  (output_dir / SECOND / 'precious.txt').write_text('precious')
  process = start(output_dir, '--', *RUN_FLAGS)
  folder = output_dir / FIRST
  real_runs.kill_when(process, lambda: real_runs.num_rounds(folder) >= 5)
  assert not (folder / 'weights.npz').exists()
  # Its run ends with it.
  deadline = time.monotonic() + 60
  while is_locked(folder):
    assert time.monotonic() < deadline
    time.sleep(0.01)

  status, output, errors = finish(start(output_dir, '--', *RUN_FLAGS))
  assert status == 1
  assert output == ''
  assert real_runs.read_results(folder) == real_runs.read_results(
    tmp_path / 'alone' / FIRST
  )
  assert 'Going on from the checkpoint' in (folder / 'log.txt').read_text()
  assert (output_dir / SECOND / 'precious.txt').exists()
  lines = errors.splitlines()
  assert f'1 of 2 runs are finished: {output_dir}' in lines
  assert lines[-3].startswith(f'{SECOND} failed: error: ')
  log = lines[-2].split()[-1]
  assert log == str(output_dir / 'logs' / f'{SECOND}.log')
  assert (
    'holds files, but none of a run'
    in (output_dir / 'logs' / f'{SECOND}.log').read_text()
  )


def test_interrupted_sweep_says_what_to_do(tmp_path):
  process = start(tmp_path / 'runs', '--', *RUN_FLAGS)
  real_runs.wait_until(
    process, (tmp_path / 'runs' / FIRST / 'config.json').exists
  )
  process.terminate()
  status, output, errors = finish(process)
  assert (status, output) == (1, '')
  assert 'Traceback' not in errors
  assert errors.splitlines()[-1] == (
    'interrupted; the same command goes on where this one ended'
  )


def test_what_is_wrong_is_told_in_one_line(tmp_path):
  status, output, errors = finish(start(tmp_path / 'runs', '--', '--seed=1'))
  assert (status, output) == (1, '')
  assert errors == (
    'error: --seed=1 cannot be given to each run: it is decided here.\n'
  )
  assert not (tmp_path / 'runs').exists()


def test_jobs_of_one_seed_come_before_those_of_the_next():
  flag_files = [
    paper_runs.FlagFile('a', 'femnist', ('--x=1',)),
    paper_runs.FlagFile('b', 'cifar100', ()),
  ]
  all_jobs = sweep.build_jobs(flag_files, 2, ['--x=2'])
  assert [job.name for job in all_jobs] == [
    'a_seed0',
    'b_seed0',
    'a_seed1',
    'b_seed1',
  ]
  assert all_jobs[2] == jobs.Job(
    'a_seed1', 'femnist', ('--x=1', '--x=2', '--seed=1')
  )


def test_dry_run_marks_finished_runs(tmp_path, capsys):
  all_jobs = sweep.build_jobs(
    [paper_runs.FlagFile('a b', 'femnist', ())], 2, []
  )
  folder = tmp_path / 'a b_seed0'
  folder.mkdir()
  settings.write_config(folder, made_up.settings(), {})
  (folder / 'weights.npz').write_text('')
  sweep._print_commands(all_jobs, tmp_path)
  first, second = capsys.readouterr().out.splitlines()
  assert first.startswith('# finished: ')
  assert shlex.split(second) == all_jobs[1].command(tmp_path)
