"""Tests of the list of the paper's runs."""

import pathlib
import re

import pytest

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


def test_method_with_an_m_has_this_m_only():
  assert names('femnist_1', 'ocs_m3', 'aocs', 'uniform_m4.5') == [
    'femnist_1_ocs_m3',
    'femnist_1_aocs_m3',
    'femnist_1_aocs_m6',
    'femnist_1_uniform_m4.5',
  ]
  # A method of its own m is the same run, and is there once.
  assert names('femnist_1', 'aocs', 'aocs_m6') == names('femnist_1', 'aocs')
  assert names('femnist_1', 'ocs_m3', 'aocs', expected_clients=[6]) == [
    'femnist_1_ocs_m3',
    'femnist_1_aocs_m6',
  ]


def test_method_that_an_experiment_lacks_is_refused():
  with pytest.raises(job_lib.JobError, match='femnist_1 .* uniform_ocs_step'):
    names('femnist_1', 'full', 'uniform_ocs_step', expected_clients=[3])
  assert names('paper', 'uniform_ocs_step') == ['cifar100_uniform_ocs_step_m3']


def test_methods_of_a_data_set_have_the_step_size_of_their_kind():
  step_sizes = {}
  for run in paper_runs.read('paper', paper_runs.METHODS):
    is_uniform = run.values['sampling'] == 'uniform'
    has_own = is_uniform and 'ocs_step' not in run.name
    data = run.name.split('_full')[0].split('_uniform')[0]
    data = re.sub('_(aocs|ocs|threshold)_m.*', '', data)
    step_size = float(run.values['client_learning_rate'])
    step_sizes.setdefault((data, has_own), set()).add(step_size)
  assert step_sizes == {
    ('femnist_1', False): {2**-3},
    ('femnist_1', True): {2**-5},
    ('femnist_2', False): {2**-3},
    ('femnist_2', True): {2**-4},
    ('femnist_3', False): {2**-3},
    ('femnist_3', True): {2**-4},
    ('shakespeare_32', False): {2**-2},
    ('shakespeare_32', True): {2**-3},
    ('shakespeare_128', False): {2**-2},
    ('shakespeare_128', True): {2**-3},
    ('cifar100', False): {1e-3},
    ('cifar100', True): {3e-4},
  }


def test_published_runs_are_there():
  published = {}
  for part in paper_runs.PUBLISHED:
    runs = paper_runs.read(part.experiment, part.methods)
    prefix = f'{part.experiment}_'
    published[part.experiment] = ' '.join(
      run.name[len(prefix) :] for run in runs
    )
    if part.experiment.startswith('femnist'):
      assert {run.values['rounds_per_eval'] for run in runs} == {'1'}
  femnist = (
    'full uniform_m3 uniform_m6 ocs_m3 aocs_m3 aocs_m6 threshold_m3'
    ' threshold_m6'
  )
  assert published == {
    'femnist_1': femnist,
    'femnist_2': femnist,
    'femnist_3': femnist,
    'shakespeare_32': 'full uniform_m2 uniform_m6 aocs_m2 aocs_m6 threshold_m2',
    'shakespeare_128': 'full uniform_m4 aocs_m4 aocs_m12 threshold_m4',
    'cifar100': 'full uniform_m3 uniform_ocs_step_m3 aocs_m3',
  }


def test_custom_data_has_runs_of_all_methods():
  found = paper_runs.read(
    'custom',
    ['full', 'uniform_m2', 'aocs', 'here/my_scheme.py:build', 'aocs'],
    expected_clients=[6, 3],
    clients_per_round=16,
  )
  assert [run.name for run in found] == [
    'custom_n16_full',
    'custom_n16_uniform_m2',
    'custom_n16_aocs_m3',
    'custom_n16_aocs_m6',
    'custom_n16_my_scheme_build_m3',
    'custom_n16_my_scheme_build_m6',
  ]
  assert {run.program for run in found} == {'custom'}
  assert found[-1].values == {
    'sampling': 'here/my_scheme.py:build',
    'total_rounds': '151',
    'clients_per_round': '16',
    'expected_clients': '6',
  }
  assert paper_runs.read('custom', ['ocs'])[0].values['expected_clients'] == '3'
  with pytest.raises(
    job_lib.JobError, match='custom has no runs of .*_ocs_step'
  ):
    paper_runs.read('custom', ['uniform_ocs_step'])


def test_scheme_of_ones_own_has_the_flags_of_aocs():
  own, aocs = (
    paper_runs.read('femnist_1', [method])[0]
    for method in ('my.py:build_m3', 'aocs')
  )
  assert own.name == 'femnist_1_my_build_m3_m3'
  assert own.values == {**aocs.values, 'sampling': 'my.py:build_m3'}


@pytest.mark.parametrize('experiment', ['custom', 'cifar100'])
def test_two_schemes_of_one_file_are_two_runs(experiment):
  methods = ['my.py:first', 'my.py:second', 'my.py:first']
  assert names(experiment, *methods) == [
    f'{experiment}_my_first_m3',
    f'{experiment}_my_second_m3',
  ]
  with pytest.raises(
    job_lib.JobError,
    match=f'two runs have the name {experiment}_my_first_m3, with'
    ' --sampling=a/my.py:first and --sampling=b/my.py:first',
  ):
    names(experiment, 'a/my.py:first', 'b/my.py:first')
