"""Tests of the data that is there."""

import os

from experiments.campaigns import paper_runs
from experiments.campaigns import sources
from tff_ocs.tasks import cifar100
from tff_ocs.tasks import femnist
from tff_ocs.tasks import shakespeare


def test_names_are_those_of_the_tasks():
  assert sources.DATABASES == {
    'femnist': femnist.DATABASE,
    'shakespeare': shakespeare.DATABASE,
    'cifar100': cifar100.DATABASE,
  }
  assert sources.AUTHORS_FILES == {
    f'femnist_{number}': (name, femnist.AUTHORS_TEST_FILE)
    for number, name in femnist.AUTHORS_FILES.items()
  }


def test_database_is_found(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'data').mkdir()
  (tmp_path / 'data' / 'shakespeare.sqlite').touch()
  found = {
    name: sources.find(name, cache_dir='data', data_name='a stand-in')
    for name in paper_runs.EXPERIMENTS
  }
  flags = (
    '--data_source=tff',
    f'--cache_dir={tmp_path / "data"}',
    '--data_name=a stand-in',
  )
  assert found['shakespeare_32'] == found['shakespeare_128'] == (flags, '')
  assert found['femnist_3'] == ((), 'emnist_all.sqlite not in data')
  assert found['cifar100'] == ((), 'cifar100.sqlite not in data')


def test_authors_files_are_used_for_femnist_if_their_folder_is_given(tmp_path):
  for name in ('emnist_all.sqlite', 'cookup_train_2.h5', 'test.h5'):
    (tmp_path / name).touch()

  def find(experiment):
    return sources.find(
      experiment, cache_dir=str(tmp_path), data_dir=str(tmp_path)
    )

  flags = ('--data_source=authors', f'--data_dir={tmp_path}')
  assert find('femnist_2') == (flags, '')
  assert find('femnist_1').missing == f'cookup_train_1.h5 not in {tmp_path}'
  (tmp_path / 'test.h5').unlink()
  missing = f'cookup_train_1.h5 and test.h5 not in {tmp_path}'
  assert find('femnist_1').missing == missing
  assert find('cifar100').missing == f'cifar100.sqlite not in {tmp_path}'


def test_folder_is_that_of_tff_if_none_is_given():
  home = os.path.expanduser('~')
  assert str(sources.cache_folder(None)) == f'{home}/.tff'
