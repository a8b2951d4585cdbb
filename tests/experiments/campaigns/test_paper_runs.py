"""Tests of what programs that start many runs share."""

import pathlib
import re

import pytest

from experiments.campaigns import jobs
from experiments.campaigns import paper_runs


def names(experiment, *methods):
  return [flag_file.name for flag_file in paper_runs.read(experiment, methods)]


def test_experiment_has_its_methods_with_all_m_in_order():
  assert names('femnist_1', 'full', 'uniform', 'aocs') == [
    'femnist_1_full',
    'femnist_1_uniform_m3',
    'femnist_1_uniform_m6',
    'femnist_1_aocs_m3',
    'femnist_1_aocs_m6',
  ]
  assert names('shakespeare_128', 'ocs') == [
    'shakespeare_128_ocs_m4',
    'shakespeare_128_ocs_m12',
  ]
  assert names('cifar100', 'full', 'full') == ['cifar100_full']


def test_paper_is_every_file():
  found = names('paper', 'full', 'uniform', 'ocs', 'aocs')
  folder = pathlib.Path(paper_runs.__file__).parents[1] / 'flags'
  assert sorted(found) == sorted(path.stem for path in folder.glob('*.flags'))


def test_flags_go_with_the_name():
  for flag_file in paper_runs.read('paper', ['full', 'uniform', 'ocs', 'aocs']):
    job = jobs.Job(*flag_file)
    assert job.binary in ('femnist', 'shakespeare', 'cifar100')
    assert job.name.startswith(job.binary)
    assert f'_{job.values["sampling"]}' in job.name
    m = re.search(r'_m(\d+)$', job.name)
    assert (m and m.group(1)) == job.values.get('expected_clients')
    assert job.total_rounds in (151, 1001)
    assert job.values['data_source'] == 'tff'


def test_extra_flags_are_passed_on():
  flags = ['--data_source=bundled', '--data_name=a = b', '--x=']
  assert paper_runs.extra_flags(['sweep', *flags], ()) == flags


@pytest.mark.parametrize('argument', ['bundled', '-x=1', '--x', '--', '--=1'])
def test_extra_flag_of_another_form_is_refused(argument):
  with pytest.raises(jobs.JobError, match='the form --name=value'):
    paper_runs.extra_flags(['sweep', argument], ())


@pytest.mark.parametrize('name', ['seed', 'output_dir', 'overwrite'])
def test_decided_flag_is_refused(name):
  with pytest.raises(jobs.JobError, match=f'--{name}=1 cannot be given'):
    paper_runs.extra_flags(['sweep', f'--{name}=1'], ['seed'])


def test_binary_refuses_flags_that_it_does_not_have():
  job = jobs.Job('run', 'femnist', ('--data_source=bundled', '--nothing=3'))
  with pytest.raises(jobs.JobError) as raised:
    paper_runs.check_flags([job, job])
  message = "experiments.femnist: Unknown command line flag 'nothing'"
  assert str(raised.value) == message
