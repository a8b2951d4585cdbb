"""Tests of the flags of programs that start many runs."""

import contextlib

import pytest
from absl import flags

from experiments import cifar100
from experiments import custom
from experiments import femnist
from experiments import shakespeare
from experiments import sweep
from experiments.campaigns import campaign_flags
from experiments.campaigns import job as job_lib
from tests.experiments import linear


def parse(*arguments):
  return linear.parse(sweep, *arguments)


def test_extra_flags_are_passed_on():
  arguments = ['--data_source=bundled', '--data_name=a = b', '--x=']
  values = parse('--experiment=femnist_1')
  found = campaign_flags.extra_flags(['sweep', *arguments], values, ())
  assert found == arguments


@pytest.mark.parametrize('argument', ['bundled', '-x=1', '--x', '--', '--=1'])
def test_extra_flag_of_another_form_is_refused(argument):
  values = parse('--experiment=femnist_1')
  with pytest.raises(job_lib.JobError, match='the form --name=value'):
    campaign_flags.extra_flags(['sweep', argument], values, ())


@pytest.mark.parametrize('name', ['seed', 'output_dir', 'overwrite'])
def test_flag_that_the_program_sets_is_refused(name):
  values = parse('--experiment=femnist_1')
  with pytest.raises(job_lib.JobError, match=f'--{name}=1 cannot be given'):
    campaign_flags.extra_flags(['sweep', f'--{name}=1'], values, ['seed'])


def test_n_is_given_once():
  argv = ['sweep', '--clients_per_round=4']
  values = parse('--experiment=femnist_1')
  assert campaign_flags.extra_flags(argv, values, ()) == argv[1:]
  values = parse('--experiment=femnist_1', '--clients_per_round=8')
  with pytest.raises(job_lib.JobError, match='cannot be given'):
    campaign_flags.extra_flags(argv, values, ())


def test_experiment_refuses_flags_that_it_does_not_have():
  job = job_lib.Job('run', 'femnist', ('--data_source=bundled', '--nothing=3'))
  with pytest.raises(job_lib.JobError) as raised:
    campaign_flags.check_flags([job, job])
  message = "experiments.femnist: Unknown command line flag 'nothing'"
  assert str(raised.value) == message


def test_runs_are_those_of_the_flags(capsys):
  values = parse(
    '--experiment=femnist_1',
    '--methods=uniform,aocs',
    '--expected_clients=3',
    '--clients_per_round=16',
  )
  assert [run.name for run in campaign_flags.read_runs(values)] == [
    'femnist_1_n16_uniform_m3',
    'femnist_1_n16_aocs_m3',
  ]
  assert capsys.readouterr().err == ''


def test_m_above_n_is_reported(capsys):
  values = parse(
    '--experiment=femnist_1',
    '--methods=full,aocs,threshold',
    '--expected_clients=40',
  )
  campaign_flags.read_runs(values)
  # With a threshold from earlier rounds, a small norm may be left out.
  assert capsys.readouterr().err == ''.join(
    f'femnist_1_{method}_m40: m=40 is more than n=32, so all clients of a'
    f' cohort{but} will send.\n'
    for method, but in (
      ('aocs', ''),
      ('threshold', ' but some with small updates'),
    )
  )


def test_n_is_not_for_all_experiments_at_once():
  values = parse('--experiment=paper', '--clients_per_round=16')
  with pytest.raises(job_lib.JobError, match='--experiment=paper'):
    campaign_flags.read_runs(values)


@pytest.mark.parametrize(
  'argument',
  [
    '--expected_clients=',
    '--expected_clients=0',
    '--expected_clients=3,3',
    '--expected_clients=many',
    '--expected_clients=inf',
    '--clients_per_round=0',
    '--methods=best',
    '--methods=full_m3',
    '--methods=aocs_m0',
    '--methods=aocs_m',
    '--output_dir=gs://bucket/runs',
  ],
)
def test_bad_flag_is_named(argument):
  with pytest.raises(flags.Error, match=argument.split('=')[0].strip('-')):
    parse('--experiment=femnist_1', argument)


@pytest.mark.parametrize(
  'arguments, command',
  [
    (
      ['--experiment=femnist_1', '--data_source=bundled', '--repeats=2'],
      '--experiment=femnist_1 --repeats=2 -- --data_source=bundled',
    ),
    (
      ['--experiment', 'femnist_1', '--data_source', 'bundled', '--nodry_run'],
      '--experiment femnist_1 --nodry_run -- --data_source=bundled',
    ),
    (
      ['--batch_size=10', '--experiment=cifar100', '--', '--seed=3'],
      '--experiment=cifar100 -- --batch_size=10 --seed=3',
    ),
  ],
)
def test_flag_of_the_runs_is_shown_after_the_dashes(
  arguments, command, monkeypatch
):
  values = flags.FlagValues()
  sweep.define_flags(values)
  monkeypatch.setattr(flags, 'FLAGS', values)
  with pytest.raises(SystemExit) as raised:
    campaign_flags.parse(['experiments/sweep.py', *arguments])
  message = str(raised.value)
  assert message.endswith(
    'Flags for each run go to the end, after a --: python -m experiments.sweep'
    f' {command}'
  )
  assert "Unknown command line flag '" in message and '\n' not in message


def test_paths_of_files_here_are_written_in_full(tmp_path, monkeypatch):
  """Each run is started in another folder."""
  monkeypatch.chdir(tmp_path)
  for name in ('my_task.py', 'my_scheme.py', 'my_cohorts.py', 'table.csv'):
    (tmp_path / name).touch()
  # The results of other programs; `full` below is the name of a method.
  for name in ('full', 'clustered', 'authors'):
    (tmp_path / name).mkdir()
  values = parse(
    '--experiment=custom', '--methods=full,my_scheme.py:build', '--dry_run'
  )
  arguments = [
    '--task=my_task.py:load',
    '--data=table.csv',
    '--data_dir=authors',
    '--cohort_sampler=my_cohorts.py:build',
    '--availability=experiments/sweep.py',
    '--cohort_sampler=clustered',
    '--data=',
    '--cache_dir=~nobody/elsewhere',
    '--client_column=table.csv',
    '--cache_dir=elsewhere',
  ]
  assert campaign_flags.extra_flags(['sweep', *arguments], values, ()) == [
    f'--task={tmp_path}/my_task.py:load',
    f'--data={tmp_path}/table.csv',
    f'--data_dir={tmp_path}/authors',
    f'--cohort_sampler={tmp_path}/my_cohorts.py:build',
    # Of the folder that the runs are started in.
    f'--availability={job_lib.ROOT}/experiments/sweep.py',
    *arguments[5:-1],
    # It does not exist yet.
    f'--cache_dir={tmp_path}/elsewhere',
  ]
  assert [
    run.values['sampling'] for run in campaign_flags.read_runs(values)
  ] == ['full', f'{tmp_path}/my_scheme.py:build']


def test_paths_of_all_programs_are_written_in_full(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'here').touch()
  values = parse('--experiment=custom')
  found = set()
  for program in (cifar100, custom, femnist, shakespeare):
    of_program = flags.FlagValues()
    program.define_flags(of_program)
    for name in of_program:
      with contextlib.suppress(flags.Error):
        of_program[name].parse('gs://bucket')
        continue
      # Only paths may not be those of a bucket.
      with contextlib.suppress(flags.Error):
        of_program[name].parse('here')
        found.add(name)
  found -= {'output_dir'}
  assert found == {'cache_dir', 'data', 'data_dir'}
  for name in found:
    assert campaign_flags.extra_flags(
      ['sweep', f'--{name}=here'], values, ()
    ) == [f'--{name}={tmp_path}/here']
