"""Tests of the files that --data names."""

import builtins
import hashlib

import numpy as np
import pandas as pd
import pytest

from experiments import custom
from experiments.runs import data_flags
from tests.experiments import linear
from tff_ocs.tasks import client_data

FRAME = pd.DataFrame(
  {'user': ['007', '7', '007', '7'], 'x': [1.0, 2, 3, 4], 'y': [0, 1, 1, 0]}
)


def load(path, *arguments):
  values = linear.parse(
    custom,
    f'--data={path}',
    '--client_column=user',
    '--label_column=y',
    *arguments,
  )
  data_flags.check(values)
  return data_flags.load(values)


def examples(task):
  return {i: task.train.examples(i).x.tolist() for i in task.train.client_ids}


@pytest.mark.parametrize('name', ['table.csv', 'table.csv.gz', 'table.parquet'])
def test_tables_give_the_same_task(tmp_path, name):
  path = tmp_path / name
  if path.suffix == '.parquet':
    FRAME.to_parquet(path)
  else:
    FRAME.to_csv(path, index=False)
  task = load(path)
  assert task.data_name == name
  # A client keeps the zeros of its name.
  assert task.train.client_ids == ['007', '7']
  FRAME.to_csv(tmp_path / 'reference.csv', index=False)
  assert examples(task) == examples(load(tmp_path / 'reference.csv'))


def test_missing_pyarrow_is_one_line(tmp_path, monkeypatch):
  path = tmp_path / 'table.parquet'
  path.write_bytes(b'')
  original = builtins.__import__

  def import_module(name, *args, **kwargs):
    if name.startswith('pyarrow'):
      raise ImportError(name)
    return original(name, *args, **kwargs)

  monkeypatch.setattr(builtins, '__import__', import_module)
  with pytest.raises(
    client_data.DataError,
    match='table.parquet cannot be read without the package pyarrow; install',
  ):
    load(path)


def test_digest_of_a_file_is_its_content_and_name_of_a_folder_all_files(
  tmp_path,
):
  file = tmp_path / 'table.csv'
  file.write_text('a')
  content = hashlib.sha256(b'a').hexdigest()
  assert data_flags.describe_file(file) == f'table.csv@sha256:{content}'
  folder = tmp_path / 'clients'
  folder.mkdir()
  np.savez(folder / 'a.npz', x=[1])
  first = data_flags.describe_file(folder)
  assert first.startswith('clients@sha256:')
  (folder / 'a.npz').rename(folder / 'b.npz')
  renamed = data_flags.describe_file(folder)
  np.savez(folder / 'b.npz', x=[2])
  changed = data_flags.describe_file(folder)
  assert len({first, renamed, changed}) == 3
