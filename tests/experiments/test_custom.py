"""Tests of training on data of one's own, with schemes of one's own."""

import pathlib
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from experiments import custom
from experiments import femnist
from experiments.campaigns import job as job_lib
from experiments.campaigns import job_settings
from experiments.campaigns import jobs
from experiments.runs import data_flags
from plots import figures
from plots import summary
from tests.experiments import linear
from tff_ocs.records import runs
from tff_ocs.tasks import client_data

SMALL = ('--clients_per_round=4', '--total_rounds=3', '--rounds_per_eval=2')
SCHEME = """
import tff_ocs

def build(expected_clients):
  return tff_ocs.UniformSampling(expected_clients)

def build_number(expected_clients):
  return expected_clients
"""
TASK = """
import numpy as np
from tff_ocs import tasks

def load(seed):
  rng = np.random.default_rng(0)
  clients = []
  for size in [4, 7, 20, 3, 9, 5]:
    x = rng.normal(size=(size, 3))
    clients.append((x, (x.sum(axis=1) > 0).astype(int)))
  return tasks.from_arrays(clients, model='mlp', seed=seed, data_name='mine')

def load_nothing(seed):
  return None

def load_bad(seed):
  return tasks.from_arrays([(np.array([[np.nan]]), np.array([0]))])
"""


def run(*arguments):
  custom.run(linear.parse(custom, *arguments))


def error_of(*arguments, program=custom):
  """The one line with which the program ends."""
  with pytest.raises(SystemExit) as error:
    program.run(linear.parse(program, *arguments))
  message = str(error.value)
  assert message.startswith('error: ') and len(message.splitlines()) == 1
  return message


def build_table():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(60, 2))
  return pd.DataFrame(
    {
      # Names that are numbers must not lose their zeros.
      'user': [f'0{i}' for i in rng.integers(6, size=60)],
      'x0': x[:, 0],
      'x1': x[:, 1],
      'y': x @ [1.0, 2.0],
      'label': np.where(x[:, 0] > 0, 'high', 'low'),
    }
  )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with data and code, and finished runs of it."""
  path = tmp_path_factory.mktemp('custom')
  (path / 'my_task.py').write_text(TASK)
  (path / 'my_scheme.py').write_text(SCHEME)
  build_table().to_csv(path / 'table.csv', index=False)
  clients = path / 'clients'
  clients.mkdir()
  for name, rows in build_table().groupby('user'):
    np.savez(
      clients / f'{name}.npz',
      x=rows[['x0', 'x1']].to_numpy(),
      y=(rows['label'] == 'high').to_numpy(int),
    )
  output = f'--output_dir={path / "runs"}'
  table = (
    f'--data={path / "table.csv"}',
    '--client_column=user',
    '--label_column=y',
    '--feature_columns=x0,x1',
  )
  for sampling in ('full', 'aocs'):
    run(*SMALL, output, *table, f'--sampling={sampling}')
  run(*SMALL, output, f'--task={path}/my_task.py:load', '--seed=1')
  run(
    *SMALL,
    output,
    f'--task={path}/my_task.py:load',
    f'--sampling={path}/my_scheme.py:build',
    '--seed=1',
  )
  run(*SMALL, output, f'--data={clients}', '--model=mlp', '--data_name=arrays')
  return path


def test_each_kind_of_data_trains_and_is_recorded(folder):
  names = {path.name for path in (folder / 'runs').iterdir()}
  assert names == {
    'table_full_n4_seed0',
    'table_aocs_n4_m3_seed0',
    'my_task_aocs_n4_m3_seed1',
    'my_task_my_scheme_build_n4_m3_seed1',
    'clients_aocs_n4_m3_seed0',
  }
  table = runs.read_run(folder / 'runs' / 'table_aocs_n4_m3_seed0')
  config = table.config
  assert config['experiment'] == 'table'
  assert config['data'] == 'table.csv'
  assert config['data_file'].startswith('table.csv@sha256:')
  assert config['client_column'] == 'user'
  assert config['feature_columns'] == ['x0', 'x1']
  assert config['client_learning_rate'] == 0.1
  assert config['pool_clients'] == 6
  assert config['pool_examples'] + config['validation_examples'] == 60
  mine = runs.read_run(folder / 'runs' / 'my_task_my_scheme_build_n4_m3_seed1')
  assert mine.config['task'].startswith('my_task.py:load@sha256:')
  assert mine.config['sampling'].startswith('my_scheme.py:build@sha256:')
  assert runs.method_of(mine.settings).label == 'my_scheme.py:build, m=3'
  arrays = runs.read_run(folder / 'runs' / 'clients_aocs_n4_m3_seed0')
  assert arrays.config['data'] == 'arrays'
  assert arrays.config['data_file'].startswith('clients@sha256:')


def test_regression_has_its_own_metrics(folder):
  metrics = runs.read_run(folder / 'runs' / 'table_aocs_n4_m3_seed0').metrics
  assert 'validation_accuracy' not in metrics
  error = metrics['validation_mean_absolute_error'].dropna()
  assert list(error.index) == [0, 2]
  assert error[2] < error[0]
  assert metrics['validation_loss'][2] < metrics['validation_loss'][0]
  labels = runs.read_run(folder / 'runs' / 'my_task_aocs_n4_m3_seed1').metrics
  assert 0 <= labels['validation_accuracy'][2] <= 1


def test_scheme_of_ones_own_is_used(folder):
  metrics = runs.read_run(
    folder / 'runs' / 'my_task_my_scheme_build_n4_m3_seed1'
  ).metrics
  np.testing.assert_allclose(metrics['expected_participants'], 3)
  # Uniform sampling sends no scalars: only updates of 3 x 64 + 64 + 64 x 2 + 2.
  np.testing.assert_array_equal(
    metrics['uplink_bits'], 32 * 386 * metrics['participants']
  )


def test_figures_and_summary_show_accuracy_or_loss(folder, tmp_path, capsys):
  figures.draw_figures(
    results_dir=str(folder / 'runs'),
    figure='others',
    output_dir=str(tmp_path),
  )
  assert {path.name for path in tmp_path.glob('*.png')} == {
    'figure_of_table_n4.png',
    'figure_of_my_task_n4.png',
    'figure_of_clients_n4.png',
  }
  capsys.readouterr()
  summary.write_summary(
    results_dir=str(folder / 'runs'), accuracies=[0.5], output_dir=str(tmp_path)
  )
  tables = capsys.readouterr().out.split('**')
  of_table = tables[
    tables.index(next(t for t in tables if 'table, n=4' in t)) + 1
  ]
  assert 'Final loss' in of_table and 'accuracy' not in of_table
  assert 'my_scheme.py:build, m=3' in ''.join(tables)
  full = runs.read_run(folder / 'runs' / 'table_full_n4_seed0').metrics
  assert f'{full["validation_loss"].iloc[-1]:.4g}' in of_table
  saved = pd.read_csv(tmp_path / 'summary.csv').set_index('name')
  assert saved.loc['table', 'final_loss_mean'].notna().all()
  assert saved.loc[['my_task'], 'final_loss_mean'].isna().all()


def test_changed_files_are_not_continued(folder, tmp_path):
  shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
  (tmp_path / 'my_scheme.py').write_text(SCHEME + '# changed')
  flags = (*SMALL, f'--output_dir={tmp_path / "runs"}', '--seed=1')
  message = error_of(
    *flags,
    f'--task={tmp_path}/my_task.py:load',
    f'--sampling={tmp_path}/my_scheme.py:build',
  )
  assert 'holds a run with --sampling=my_scheme.py:build@sha256:' in message
  (tmp_path / 'my_task.py').write_text(TASK + '# changed')
  message = error_of(*flags, f'--task={tmp_path}/my_task.py:load')
  assert 'holds a run with --task=my_task.py:load@sha256:' in message
  build_table().iloc[1:].to_csv(tmp_path / 'table.csv', index=False)
  message = error_of(
    *SMALL,
    f'--output_dir={tmp_path / "runs"}',
    f'--data={tmp_path / "table.csv"}',
    '--client_column=user',
    '--label_column=y',
    '--feature_columns=x0,x1',
  )
  assert 'holds a run with --data_file=table.csv@sha256:' in message


def test_finished_runs_are_recognised_by_sweeps(folder):
  job = job_lib.Job(
    'my_task_my_scheme_build_n4_m3_seed1',
    'custom',
    (
      '--clients_per_round=4',
      '--total_rounds=3',
      '--rounds_per_eval=2',
      '--seed=1',
      f'--task={folder}/my_task.py:load',
      f'--sampling={folder}/my_scheme.py:build',
    ),
  )
  assert jobs.is_finished(job, folder / 'runs')
  table = job_lib.Job(
    'table_aocs_n4_m3_seed0',
    'custom',
    (
      '--clients_per_round=4',
      '--total_rounds=3',
      '--rounds_per_eval=2',
      f'--data={folder}/table.csv',
      '--client_column=user',
      '--label_column=y',
      # As the flags of a program read a list.
      '--feature_columns="x0", x1',
    ),
  )
  assert jobs.is_finished(table, folder / 'runs')
  other = table._replace(flags=(*table.flags, '--feature_columns=x0'))
  with pytest.raises(job_lib.JobError, match='--feature_columns'):
    jobs.is_finished(other, folder / 'runs')
  (folder / 'other.csv').write_text('x')
  other = table._replace(flags=(*table.flags, f'--data={folder}/other.csv'))
  with pytest.raises(job_lib.JobError, match='--data_file=table.csv@sha256'):
    jobs.is_finished(other, folder / 'runs')
  # A flag that is not given has its default.
  other = table._replace(flags=(*table.flags, '--model=mlp'))
  with pytest.raises(job_lib.JobError, match='--model=linear, not mlp'):
    jobs.is_finished(other, folder / 'runs')


def test_data_is_hashed_once_for_many_jobs(folder, tmp_path, monkeypatch):
  shutil.copy(folder / 'table.csv', tmp_path)
  opened = []
  read = pathlib.Path.open

  def count(path, *arguments, **kwargs):
    opened.append(path)
    return read(path, *arguments, **kwargs)

  monkeypatch.setattr(pathlib.Path, 'open', count)
  job = job_lib.Job(
    'run',
    'custom',
    (*SMALL, f'--data={tmp_path / "table.csv"}', *TABLE),
  )
  of_first = job_settings.read(job).recorded['data_file']
  assert job_settings.read(job).recorded['data_file'] == of_first
  assert opened == [tmp_path / 'table.csv']
  # Another version of the file is another one.
  (tmp_path / 'table.csv').write_text('user,y\na,1\n')
  assert job_settings.read(job).recorded['data_file'] != of_first


@pytest.mark.parametrize('suffix', ['csv', 'csv.gz'])
def test_classes_keep_their_names(tmp_path, suffix):
  path = tmp_path / f'table.{suffix}'
  labels = ['None', 'NA', 'mild'] * 6
  frame = pd.DataFrame({'user': list('ab') * 9, 'x': 0.5, 'grade': labels})
  frame.to_csv(path, index=False)
  flags = ('--client_column=user', '--label_column=grade')
  task = data_flags.load(linear.parse(custom, f'--data={path}', *flags))
  assert set(task.train.read_all().y) == {0, 1, 2}
  frame.loc[3, 'grade'] = ''
  frame.to_csv(path, index=False)
  with pytest.raises(client_data.DataError, match="'grade' must have no gaps"):
    data_flags.load(linear.parse(custom, f'--data={path}', *flags))


TABLE = ('--client_column=user', '--label_column=y')


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ([], 'either --task=PATH.py:FUNCTION or --data=FILE is needed, .*neither'),
    (['--task=my_task.py:load', '--data=table.csv'], 'found both'),
    (['--task=my_task.py:load', '--model=mlp'], '--model=mlp needs --data'),
    (['--task=no_task.py:load'], 'there is no file no_task.py'),
    (['--task=my_task.py'], 'must have the form PATH.py:FUNCTION'),
    (['--task=my_task.py:load_nothing'], 'must return .* found NoneType'),
    (['--task=my_task.py:load_bad'], "x of client 'client_0' must be finite"),
    (['--data=table.txt'], 'must be a folder or end with one of .csv'),
    (['--data=none.csv', *TABLE], '--data=none.csv does not exist'),
    (['--data=table.csv', TABLE[0]], '--label_column must name its column'),
    (['--data=clients', TABLE[0]], '--client_column=user needs a table'),
    (['--data=runs'], 'must hold a file CLIENT.npz for each client'),
    (
      ['--data=table.csv', '--client_column=who', '--label_column=y'],
      "client_column: there is no column 'who'",
    ),
    (['--data=broken.csv', *TABLE], 'broken.csv cannot be read: '),
    (['--data=broken.parquet', *TABLE], 'broken.parquet cannot be read'),
    (['--data=broken'], 'a.npz must hold the arrays x and y'),
    (
      ['--task=my_task.py:load', '--sampling=my_scheme.py:build_number'],
      'must return a tff_ocs.schemes.SamplingScheme, found float',
    ),
    (
      ['--task=my_task.py:load', '--clients_per_round=7'],
      '--clients_per_round=7 is more than the 6 clients of the pool',
    ),
  ],
)
def test_bad_flags_and_data_end_in_one_line(
  folder, monkeypatch, tmp_path, arguments, message
):
  monkeypatch.chdir(folder)
  (folder / 'broken.csv').write_text('user,y\n"a,1\n')
  (folder / 'broken.parquet').write_text('no parquet')
  (folder / 'broken').mkdir(exist_ok=True)
  np.savez(folder / 'broken' / 'a.npz', z=[1])
  output = tmp_path / 'runs'
  found = error_of(
    '--clients_per_round=4', *arguments, f'--output_dir={output}'
  )
  assert pathlib.Path(folder, 'runs').exists()
  assert not output.exists()
  assert re.search(message, found), found


def test_paper_programs_take_schemes_too(folder, tmp_path):
  linear.run(
    *linear.SMALL,
    f'--sampling={folder}/my_scheme.py:build',
    f'--output_dir={tmp_path}',
  )
  (run_folder,) = tmp_path.iterdir()
  assert (
    run_folder.name == 'femnist_synthetic_set_1_my_scheme_build_n4_m1.5_seed0'
  )
  assert 'no file' in error_of(
    '--sampling=none.py:build', f'--output_dir={tmp_path}', program=femnist
  )
  with pytest.raises(
    Exception, match='full, uniform, ocs, aocs, threshold, or'
  ):
    linear.parse(femnist, '--sampling=none')
