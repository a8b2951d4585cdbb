"""Tests of the list of the paper's runs."""

import pathlib
import re

from experiments.campaigns import job as job_lib
from experiments.campaigns import paper_runs


def names(experiment, *methods, **kwargs):
  runs = paper_runs.read(experiment, methods, **kwargs)
  return [run.name for run in runs]


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
  found = names('paper', *paper_runs.METHODS)
  folder = pathlib.Path(paper_runs.__file__).parents[1] / 'flags'
  assert sorted(found) == sorted(path.stem for path in folder.glob('*.flags'))


def test_flags_agree_with_the_name():
  for run in paper_runs.read('paper', paper_runs.METHODS):
    job = job_lib.Job(*run)
    assert job.program in ('femnist', 'shakespeare', 'cifar100')
    assert job.name.startswith(job.program)
    assert f'_{job.values["sampling"]}' in job.name
    m = re.search(r'_m(\d+)$', job.name)
    assert (m and m.group(1)) == job.values.get('expected_clients')
    assert job.total_rounds in (151, 1001)
    assert job.values['data_source'] == 'tff'


def test_other_m_replaces_the_papers():
  runs = paper_runs.read(
    'femnist_1', ['full', 'uniform', 'aocs'], expected_clients=[6, 4.5]
  )
  assert [run.name for run in runs] == [
    'femnist_1_full',
    'femnist_1_uniform_m4.5',
    'femnist_1_uniform_m6',
    'femnist_1_aocs_m4.5',
    'femnist_1_aocs_m6',
  ]
  (own,) = paper_runs.read('femnist_1', ['aocs'], expected_clients=[4.5])
  values = job_lib.Job(*own).values
  assert values['expected_clients'] == '4.5'
  assert values['client_learning_rate'] == '0.125'
  # An m of the paper is the paper's run.
  (same,) = paper_runs.read('femnist_1', ['aocs'], expected_clients=[6.0])
  assert same == paper_runs.read('femnist_1', ['aocs'])[1]


def test_other_n_is_in_the_name_and_the_flags():
  assert names('shakespeare_32', 'full', 'aocs', clients_per_round=16) == [
    'shakespeare_32_n16_full',
    'shakespeare_32_n16_aocs_m2',
    'shakespeare_32_n16_aocs_m6',
  ]
  (run,) = paper_runs.read('shakespeare_32', ['full'], clients_per_round=16)
  assert job_lib.Job(*run).values['clients_per_round'] == '16'
  assert paper_runs.read(
    'shakespeare_32', ['full'], clients_per_round=32
  ) == paper_runs.read('shakespeare_32', ['full'])
