"""Tests of the reproduction, with stand-ins for the runs and the programs."""

import shlex
import subprocess
import sys
import time

import psutil
import pytest
from absl import flags

from experiments import reproduce
from experiments import tune
from experiments.campaigns import estimate
from experiments.campaigns import job as job_lib
from experiments.campaigns import jobs
from experiments.campaigns import paper_runs
from experiments.campaigns import sources
from tests import command_lines
from tests import services
from tests.experiments import linear
from tff_ocs.records import runs

CLAIMS = """\
claim,claim_verdict,data,quantity,verdict,why_not_judged
1,holds,digits,bits,holds,
2,holds in part,digits,gap,does not hold,
2,holds in part,text,gap,{verdict},1 seed
"""


def parse(*arguments):
  return linear.parse(reproduce, *arguments)


def touch_databases(folder, *names):
  folder.mkdir()
  for name in names:
    (folder / name).touch()


@pytest.fixture
def stand_ins(monkeypatch):
  """Replaces runs and programs; returns what was run, and may set failures."""

  class StandIns:
    ran = []
    started = []
    failing_run = None
    failing_step = None
    verdict = 'holds'

  def run_jobs(all_jobs, *, output_dir, name, parallel, ray_address):
    assert (parallel, ray_address) == (1, None)
    StandIns.ran.append((name, [job.name for job in all_jobs]))
    return [
      job_lib.FailedJob(job, 'error: no', output_dir)
      for job in all_jobs
      if job.name == StandIns.failing_run
    ]

  def measure(timed, output_dir, run_timed, num_parallel):
    output_dir.mkdir(parents=True, exist_ok=True)
    run_timed(list(timed.values()))
    assert num_parallel == 1
    return {name: estimate.Timing(1, 1, 1, 1, 1) for name in timed}

  def run_step(step, output_dir):
    StandIns.started.append(step.name)
    if step.name == 'summary':
      for page in ('summary.md', 'differences.md'):
        (output_dir / page).write_text('| another table |\n')
    if step.name == 'claims':
      text = CLAIMS.format(verdict=StandIns.verdict)
      (output_dir / 'claims.csv').write_text(text)
      (output_dir / 'claims.md').write_text('| a table |\n')
    is_failing = step.name == StandIns.failing_step
    return [f'{step.name} failed: error: no'] * is_failing

  monkeypatch.setattr(jobs, 'run_jobs', run_jobs)
  monkeypatch.setattr(estimate, 'measure', measure)
  monkeypatch.setattr(reproduce, '_run_step', run_step)
  StandIns.ran, StandIns.started = [], []
  return StandIns


def smoke(folder):
  return reproduce.run(
    parse('--scale=smoke', f'--output_dir={folder}', '--parallel=1')
  )


def test_everything_is_run_in_its_order(tmp_path, stand_ins, capsys):
  assert smoke(tmp_path / 'out') == 0
  (timed, experiments), (name, all_jobs) = stand_ins.ran
  assert timed == 'timing two rounds of each'
  assert experiments == [f'timing/{name}' for name in paper_runs.EXPERIMENTS]
  assert name == 'reproduce'
  # Everything of the first seed comes before the second.
  seeds = [name.rsplit('_seed', 1)[1] for name in all_jobs]
  assert seeds == sorted(seeds) and set(seeds) == set('01')
  assert len(set(all_jobs)) == len(all_jobs)
  assert {name.split('/')[0] for name in all_jobs} == {
    'runs',
    'tuning',
    'participation',
  }
  assert stand_ins.started == [
    'tune_femnist_1',
    'tune_shakespeare_32',
    'participation',
    'figures',
    'summary',
    'claims',
  ]
  errors = capsys.readouterr().err
  # The estimate comes before the steps and the verdicts.
  parts = ['This is a test', 'About ', 'claim 1: holds\nclaim 2: holds in part']
  assert [errors.index(part) for part in parts] == sorted(
    errors.index(part) for part in parts
  )
  for page in ('README.md', 'summary.md', 'differences.md', 'claims.md'):
    text = (tmp_path / 'out' / page).read_text()
    assert 'This is a test of the programs (--scale=smoke)' in text
  assert text.endswith('\n\n| a table |\n')
  # A page that a failing step has left from before has one label.
  reproduce._label(tmp_path / 'out' / 'claims.md')
  assert (tmp_path / 'out' / 'claims.md').read_text() == text


def test_status_says_that_claims_could_not_be_judged(
  tmp_path, stand_ins, capsys
):
  stand_ins.verdict = 'not judged'
  assert smoke(tmp_path) == 3
  assert 'not judged: claim 2, text, gap: 1 seed\n' in capsys.readouterr().err


def test_status_says_that_a_step_failed(tmp_path, stand_ins, capsys):
  stand_ins.failing_step = 'figures'
  assert smoke(tmp_path) == 1
  # The others are taken all the same.
  assert stand_ins.started[-1] == 'claims'
  errors = capsys.readouterr().err
  assert 'figures failed: error: no\nerror: the same command' in errors


def test_status_says_that_a_run_failed(tmp_path, stand_ins, capsys):
  stand_ins.failing_run = 'runs/cifar100_full_seed1'
  assert smoke(tmp_path) == 1
  assert 'runs/cifar100_full_seed1 failed: error: no' in capsys.readouterr().err
  stand_ins.failing_run = 'timing/cifar100'
  with pytest.raises(job_lib.JobError, match='timing/cifar100 failed'):
    smoke(tmp_path)


def test_run_of_other_flags_is_found_before_any_work(tmp_path, stand_ins):
  folder = tmp_path / 'runs' / 'femnist_1_full_seed0'
  linear.run(
    *linear.SMALL, f'--output_dir={folder.parent}', f'--run_name={folder.name}'
  )
  with pytest.raises(job_lib.JobError, match='holds a run with --'):
    smoke(tmp_path)
  assert not stand_ins.ran


def test_papers_plan_is_that_of_the_data_that_is_there(tmp_path):
  cache_dir = tmp_path / 'data'
  touch_databases(cache_dir, 'emnist_all.sqlite', 'cifar100.sqlite')
  plan = reproduce.build_plan(
    parse(
      f'--cache_dir={cache_dir}',
      f'--output_dir={tmp_path / "out"}',
      '--femnist_name=a stand-in',
      '--ray_address=auto',
    )
  )
  assert plan.left_out == [
    f'{name} is left out: shakespeare.sqlite not in {cache_dir}.'
    for name in ('shakespeare_32', 'shakespeare_128')
  ]
  published = {
    part.experiment: len(
      paper_runs.read(part.experiment, part.methods) * part.repeats
    )
    for part in paper_runs.PUBLISHED
  }
  # 3 methods with 5 step sizes; 6 m below each n but 4 below 16 ... and n.
  others = {'femnist_1': 3 * 5 + 5 * 4 * 7}
  assert {name: len(of_name) for name, of_name in plan.jobs.items()} == {
    name: published[name] + others.get(name, 0)
    for name in ('femnist_1', 'femnist_2', 'femnist_3', 'cifar100')
  }
  for name, of_name in plan.jobs.items():
    for job in of_name:
      data = job.values.get('data_name')
      assert data == ('a stand-in' if 'femnist' in name else None)
      assert job.values['data_source'] == 'tff'
      assert job.values['cache_dir'] == str(cache_dir)
  rounds = {
    job.name.split('/')[0] + str(job.total_rounds)
    for of_name in plan.jobs.values()
    for job in of_name
  }
  assert rounds == {'runs151', 'runs301', 'tuning41', 'participation41'}
  commands = {step.name: shlex.join(step.command) for step in plan.steps}
  assert list(commands) == [
    'tune_femnist_1',
    'participation',
    'figures',
    'summary',
    'claims',
  ]
  assert f'--cache_dir={cache_dir}' in commands['figures']
  assert '--ray_address=auto' in commands['participation']


@pytest.mark.parametrize('scale', ['smoke', 'paper'])
def test_searches_find_the_runs_of_the_plan(tmp_path, scale):
  cache_dir = tmp_path / 'data'
  touch_databases(cache_dir, 'emnist_all.sqlite', 'shakespeare.sqlite')
  data = [f'--cache_dir={cache_dir}'] if scale == 'paper' else []
  plan = reproduce.build_plan(
    parse(f'--scale={scale}', f'--output_dir={tmp_path}', *data)
  )
  for step in plan.steps:
    if not step.name.startswith('tune'):
      continue
    # The runs that the program of the step starts first.
    values = flags.FlagValues()
    tune.define_flags(values)
    arguments = values(['tune', *step.command[2:]])
    first = tune.build_jobs(
      tune.campaign_flags.read_runs(values),
      [float(step_size) for step_size in values.grid],
      values.repeats,
      tune.campaign_flags.extra_flags(arguments, values, tune._RESERVED),
    )
    folder = f'tuning/{values.experiment}'
    assert values.output_dir == str(tmp_path / folder)
    planned = {
      job.name: job.values
      for job in plan.jobs[values.experiment]
      if job.name.startswith('tuning/')
    }
    assert planned == {f'{folder}/{job.name}': job.values for job in first}


def test_steps_are_commands_with_flags_that_exist(tmp_path):
  plan = reproduce.build_plan(
    parse('--scale=smoke', f'--output_dir={tmp_path}', '--parallel=1')
  )
  commands = [tuple(step.command) for step in plan.steps]
  errors = command_lines.find_errors(commands)
  assert errors == [None] * len(commands)


def test_step_leaves_its_output_and_its_reason(tmp_path):
  (tmp_path / 'logs').mkdir()
  step = reproduce.Step('good', ['-c', 'print("a table")'])
  assert reproduce._run_step(step, tmp_path) == []
  assert (tmp_path / 'logs' / 'good.log').read_text() == 'a table\n'
  step = reproduce.Step('bad', ['-c', 'import sys; sys.exit("error: no")'])
  assert reproduce._run_step(step, tmp_path) == [
    f'bad failed: error: no\n  log: {tmp_path / "logs" / "bad.log"}'
  ]


def test_step_ends_with_the_program(tmp_path):
  """Otherwise the same command finds its folder in use."""
  (tmp_path / 'logs').mkdir()
  script = f"""
import pathlib
from experiments import reproduce
sleep = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'
step = reproduce.Step('s', ['-c', sleep])
reproduce._run_step(step, pathlib.Path({str(tmp_path)!r}))
"""
  program = subprocess.Popen([sys.executable, '-c', script], cwd=job_lib.ROOT)
  try:
    log = tmp_path / 'logs' / 's.log'
    wait_until(lambda: log.exists() and log.read_text().endswith('\n'))
    step = psutil.Process(int(log.read_text()))
    program.terminate()
    program.wait()
    wait_until(lambda: not services.is_alive(step))
  finally:
    program.kill()
    program.wait()


def wait_until(is_over):
  deadline = time.monotonic() + services.PATIENCE_SECONDS
  while not is_over():
    assert time.monotonic() < deadline
    time.sleep(0.05)


def test_no_data_at_all_is_one_line(tmp_path):
  with pytest.raises(job_lib.JobError, match='there is no data. --cache_dir'):
    reproduce.run(
      parse(f'--cache_dir={tmp_path}', f'--output_dir={tmp_path / "out"}')
    )
  assert not (tmp_path / 'out').exists()


def test_guide_says_how_many_runs_there_are(tmp_path):
  cache_dir = tmp_path / 'data'
  touch_databases(cache_dir, *sources.DATABASES.values())
  plan = reproduce.build_plan(parse(f'--cache_dir={cache_dir}'))
  num_runs = sum(map(len, plan.jobs.values()))
  guide = (job_lib.ROOT / 'docs' / 'reproduce.md').read_text()
  assert f'these are {num_runs}: ' in guide.replace('\n', ' ')


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    # It names TFF's file, not those of the authors.
    (['--data_dir=x', '--femnist_name=x'], '--femnist_name=x cannot be comb'),
    (['--scale=smoke', '--cache_dir=x'], '--cache_dir=x cannot be combined'),
    (['--scale=smoke', '--data_dir=x'], '--data_dir=x cannot be combined'),
    (
      ['--femnist_name=x', '--experiments=cifar100,shakespeare_32'],
      '--femnist_name=x needs .* found --experiments=cifar100,shakespeare_32',
    ),
    (
      ['--cifar100_name=x', '--experiments=femnist_2'],
      '100_name=x needs',
    ),
  ],
)
def test_flags_without_effect_are_refused(arguments, message):
  with pytest.raises(job_lib.JobError, match=message):
    reproduce.build_plan(parse(*arguments))


def test_unknown_experiment_is_named():
  with pytest.raises(flags.Error, match='--experiments.*must be some of femni'):
    parse('--experiments=femnist_4')


def test_runs_in_folders_are_run_and_found(tmp_path):
  """`Job.name` may be a path: one command for runs of several folders."""
  job = job_lib.Job(
    'runs/a_seed0', 'femnist', (*linear.SMALL, '--client_learning_rate=0.1')
  )
  command = job.command(tmp_path)
  assert command[-2:] == [
    '--run_name=a_seed0',
    f'--output_dir={tmp_path / "runs"}',
  ]
  linear.run(*command[3:])
  assert jobs.is_finished(job, tmp_path)
  assert len(runs.read_run(tmp_path / job.name).metrics) == job.total_rounds


def test_figure_2_is_drawn_from_the_data_of_the_runs(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  cache = tmp_path / '.tff'

  def folder(*arguments):
    plan = reproduce.build_plan(parse(*arguments))
    (step,) = (step for step in plan.steps if step.name == 'figures')
    flag = '--cache_dir='
    return [a[len(flag) :] for a in step.command if a.startswith(flag)]

  assert folder() == []
  touch_databases(cache, 'emnist_all.sqlite')
  assert folder() == folder(f'--cache_dir={cache}') == [str(cache)]
  assert folder('--scale=smoke') == []
  authors = tmp_path / 'authors'
  touch_databases(authors, 'cookup_train_1.h5', 'cookup_train_2.h5', 'test.h5')
  # All three sets are in the figure.
  assert folder(f'--data_dir={authors}') == []
  (authors / 'cookup_train_3.h5').touch()
  assert folder(f'--data_dir={authors}') == [str(authors)]
