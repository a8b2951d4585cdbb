"""Tests of --evaluate_clients and --simulate_devices, on a small task."""

import dataclasses
import shutil

import numpy as np
import pandas as pd
import pytest

from experiments.runs import devices as devices_lib
from tests.experiments import linear
from tff_ocs.records import clients
from tff_ocs.records import files
from tff_ocs.records import metrics as metrics_lib

FLAGS = ('--evaluate_clients', '--simulate_devices', '--sampling=ocs')


@pytest.fixture(scope='session')
def recorded(tmp_path_factory):
  """A finished run and its clients."""
  folder = tmp_path_factory.mktemp('recorded')
  result = linear.run_and_read(
    folder, '--client_learning_rate=0.125', '--seed=7', *FLAGS
  )
  return result, clients.read_clients(folder / 'run')


def test_each_client_has_a_line(recorded):
  _, table = recorded
  names = sorted(f'client_{k}' for k in range(linear.NUM_CLIENTS + 1))
  assert list(table['client_id']) == names
  by_id = table.set_index('client_id')
  # The last has validation examples only, the first has none.
  assert list(by_id.index[~by_id['in_pool']]) == ['client_20']
  assert by_id['validation_examples']['client_0'] == 0
  sizes = by_id['training_examples'][[f'client_{k}' for k in range(5)]]
  assert sizes.tolist() == [5, 8, 13, 21, 34]
  assert by_id['training_examples']['client_20'] == 0
  assert np.isnan(by_id['accuracy']['client_0'])
  of_others = by_id['accuracy'].drop('client_0')
  np.testing.assert_allclose(of_others * 10, np.round(of_others * 10))
  assert of_others.nunique() > 2


def test_participations_are_those_of_the_metrics(recorded):
  result, table = recorded
  metrics = result.metrics
  assert table['simulated_draws'].sum() == metrics['available'].sum() == 16
  assert table['simulated_sends'].sum() == metrics['participants'].sum()
  assert (table['simulated_sends'] <= table['simulated_draws']).all()
  assert 0 < table['simulated_sends'].sum() < 16


def test_mean_accuracy_is_close_to_that_of_the_validation_set(recorded):
  result, table = recorded
  accuracy = result.evaluated('validation_accuracy')[1][-1]
  found = clients.describe(table)
  assert found.num_clients == 20
  # 200 and 1,000 examples; 6 standard errors.
  assert found.mean == pytest.approx(accuracy, abs=6 * 0.5 / 200**0.5)
  assert found.worst < found.mean


def test_recording_changes_no_result(recorded, tmp_path):
  result, _ = recorded
  plain = linear.run_and_read(
    tmp_path, '--client_learning_rate=0.125', '--seed=7', '--sampling=ocs'
  )
  for name in plain.metrics:
    if name != 'seconds':
      np.testing.assert_array_equal(plain.metrics[name], result.metrics[name])


def test_time_is_that_of_ocs(recorded):
  result, _ = recorded
  task = linear.load_task(seed=7, unbalanced_set=None)
  devices = devices_lib.Devices(
    task.train.num_examples, 32 * linear.NUM_PARAMETERS
  )
  names = task.train.client_ids
  # No exchange of one client is faster than the fastest of all.
  fastest = min(
    devices.simulate([name], [False], exchanges=1).seconds for name in names
  )
  assert (result.metrics['simulated_seconds'] > fastest).all()


def test_uplink_seconds_are_those_of_the_clients_that_sent(recorded):
  result, table = recorded
  task = linear.load_task(seed=7, unbalanced_set=None)
  seconds = devices_lib.Devices(
    task.train.num_examples, 32 * linear.NUM_PARAMETERS
  ).uplink_seconds
  pool = table[table['in_pool']].set_index('client_id')
  sent = pool['simulated_sends']
  assert sent.sum() > 0
  assert result.metrics['simulated_uplink_seconds'].sum() == pytest.approx(
    sum(number * seconds[name] for name, number in sent.items())
  )


def test_costs_are_those_of_the_uplinks(recorded, tmp_path):
  plain, _ = recorded
  result = linear.run_and_read(
    tmp_path,
    '--client_learning_rate=0.125',
    '--seed=7',
    '--client_costs=uplink_seconds',
    *FLAGS,
  )
  assert result.settings.method == 'OCS, m=1.5, costs'
  # The budget is of seconds: other than m clients are expected to send.
  expected = result.metrics['expected_participants']
  assert (abs(expected - 1.5) > 1e-3).any()
  np.testing.assert_allclose(plain.metrics['expected_participants'], 1.5)
  # m is that budget, and no number of clients.
  assert 'improvement_factor' not in result.metrics
  assert plain.metrics['improvement_factor'].notna().all()
  with pytest.raises(SystemExit, match='needs --sampling=ocs, aocs or thresh'):
    linear.run(
      *linear.SMALL,
      f'--output_dir={tmp_path}',
      '--client_costs=uplink_seconds',
      '--sampling=uniform',
    )


def test_data_without_clients_to_validate_on(tmp_path, monkeypatch):
  load = linear.load_task
  monkeypatch.setattr(
    linear,
    'load_task',
    lambda **kwargs: load(**kwargs).__class__(
      **{**vars(load(**kwargs)), 'test_by_client': None}
    ),
  )
  with pytest.raises(SystemExit, match='needs validation examples by client'):
    linear.run(*linear.SMALL, f'--output_dir={tmp_path}', '--evaluate_clients')
  assert not list(tmp_path.iterdir())


def test_distribution_by_hand():
  table = pd.DataFrame({'accuracy': [*np.arange(20) / 20, np.nan]})
  found = clients.describe(table)
  assert found.mean == pytest.approx(0.475)
  assert found.worst == pytest.approx(0.025)  # Of 2 of 20.
  assert found.std == pytest.approx(np.std(np.arange(20) / 20))
  # 10 % of 11 are rounded up.
  assert clients.describe(table[:11]).worst == pytest.approx(0.025)
  with pytest.raises(files.RecordError, match='no client with an accuracy'):
    clients.describe(table[20:])


def test_file_with_other_columns(tmp_path):
  (tmp_path / 'clients.csv').write_text('client_id,accuracy\na,1\n')
  with pytest.raises(files.RecordError, match='must have the columns client_'):
    clients.read_clients(tmp_path)


def test_client_keeps_its_name(tmp_path):
  names = ['NA', '007', 'None', '']
  table = pd.DataFrame({'client_id': names}).reindex(columns=clients.COLUMNS)
  clients.write_clients(tmp_path, table)
  assert list(clients.read_clients(tmp_path)['client_id']) == names


def read_rows(folder):
  """The rows of `client_accuracies.csv`, whatever the ends of the lines."""
  return (folder / metrics_lib.CLIENT_ACCURACIES).read_text().splitlines()


def test_last_accuracies_are_those_of_the_clients(recorded, tmp_path):
  result, table = recorded
  (last,) = clients.read_accuracies(result.path).to_dict('records')
  found = clients.describe(table)
  assert last == {
    'round': 3,
    'mean': found.mean,
    'num_clients': 20,
    'std': found.std,
    'worst_10_percent': found.worst,
  }
  assert 0 < last['worst_10_percent'] < last['mean'] < 1 and last['std'] > 0


def test_accuracies_by_rounds(recorded, tmp_path):
  at_end, _ = recorded
  result = linear.run_and_read(
    tmp_path,
    '--client_learning_rate=0.125',
    '--seed=7',
    '--rounds_per_client_eval=2',
    *FLAGS,
  )
  found = clients.read_accuracies(result.path)
  assert found['round'].tolist() == [0, 2, 3]
  assert result.settings.rounds_per_client_eval == 2
  # They are those of the weights after the round.
  other = linear.run_and_read(
    tmp_path / 'shorter',
    '--client_learning_rate=0.125',
    '--seed=7',
    '--total_rounds=3',
    *FLAGS,
  )
  assert read_rows(result.path)[2] == read_rows(other.path)[1]
  assert read_rows(result.path)[3] == read_rows(at_end.path)[1]
  assert found['mean'].nunique() == 3
  # And change nothing else.
  assert linear.read_results(result.path) == linear.read_results(at_end.path)


BY_ROUNDS = (*FLAGS, '--rounds_per_client_eval=3')


@pytest.fixture(scope='module')
def at_once(tmp_path_factory):
  """The folder of a run that nothing disturbs."""
  folder = tmp_path_factory.mktemp('at_once')
  linear.run(*linear.DISTURBED, f'--output_dir={folder}', *BY_ROUNDS)
  return folder / 'run'


def test_killed_run_has_each_evaluation_once(tmp_path, at_once):
  folder = tmp_path / 'runs' / 'run'
  due = [0, 3, 6, 9, 12, 15, 18, 21, 23]
  written = clients.read_accuracies(at_once)
  assert written['round'].tolist() == due
  # After an evaluation that no checkpoint follows; and between two of them.
  for num_rounds in (4, 13):
    run = linear.Run(tmp_path / 'runs', *BY_ROUNDS)
    run.kill_when(lambda n=num_rounds: linear.num_rounds(folder) >= n)
    assert len(read_rows(folder)) > 1
  status, output = linear.finish(tmp_path / 'runs', *BY_ROUNDS)
  assert status == 0, output
  for name in (metrics_lib.CLIENT_ACCURACIES, clients.CLIENTS):
    assert (folder / name).read_bytes() == (at_once / name).read_bytes()
  assert linear.read_results(folder) == linear.read_results(at_once)
  # Each round counts once.
  assert clients.read_clients(folder)['simulated_draws'].sum() == 24 * 3
  assert not list(folder.glob('client_accuracies.csv_temp*'))


def test_lost_evaluations_are_computed_again(tmp_path, at_once):
  run = linear.Run(tmp_path / 'runs', *BY_ROUNDS)
  run.kill_when(lambda: len(linear.saved_checkpoints(run.folder)) >= 2)
  path = run.folder / metrics_lib.CLIENT_ACCURACIES
  whole = path.read_bytes()
  # Without the file, the checkpoints are kept, and nothing is made up.
  path.unlink()
  status, output = linear.finish(tmp_path / 'runs', *BY_ROUNDS)
  assert status == 1
  assert output.splitlines()[-1] == (
    f'error: {run.folder} cannot be continued: it has checkpoints, but no'
    ' client_accuracies.csv. Nothing was changed. Put that file back, or use'
    ' --overwrite to start the run again.'
  )
  assert not path.exists() and linear.saved_checkpoints(run.folder)
  # Cut in the middle of the row of round 9, of which there is a checkpoint.
  rows = whole.splitlines(keepends=True)
  path.write_bytes(b''.join(rows[:5])[:-5])
  status, output = linear.finish(tmp_path / 'runs', *BY_ROUNDS)
  assert status == 0, output
  assert 'since client_accuracies.csv ends before round 9.' in output
  assert read_rows(run.folder) == read_rows(at_once)


def test_other_rounds_are_another_run(tmp_path, at_once):
  shutil.copytree(at_once, tmp_path / 'runs' / 'run')
  (tmp_path / 'runs' / 'run' / 'weights.npz').unlink()
  status, output = linear.finish(tmp_path / 'runs', *FLAGS)
  assert status == 1
  assert 'a run with --rounds_per_client_eval=3, not None' in output


def test_evaluations_need_the_flag_and_an_accuracy(tmp_path, monkeypatch):
  flags = (*linear.SMALL, f'--output_dir={tmp_path}')
  message = '--rounds_per_client_eval=2 needs --evaluate_clients, found --noev'
  with pytest.raises(SystemExit, match=message):
    linear.run(*flags, '--rounds_per_client_eval=2')
  load = linear.load_task
  monkeypatch.setattr(
    linear,
    'load_task',
    lambda **kwargs: dataclasses.replace(load(**kwargs), metrics={}),
  )
  with pytest.raises(SystemExit, match='needs a task with an accuracy, and ma'):
    linear.run(*flags, '--evaluate_clients', '--rounds_per_client_eval=2')
  assert not list(tmp_path.iterdir())
  # The losses of the clients are still recorded.
  linear.run(*flags, '--evaluate_clients', '--run_name=run')
  table = clients.read_clients(tmp_path / 'run')
  assert table['accuracy'].isna().all() and table['loss'].notna().sum() == 20
  assert not (tmp_path / 'run' / metrics_lib.CLIENT_ACCURACIES).exists()


def test_record_of_an_early_version_has_no_training_examples(
  recorded, tmp_path
):
  _, table = recorded
  table.drop(columns='training_examples').to_csv(
    tmp_path / clients.CLIENTS, index=False
  )
  found = clients.read_clients(tmp_path)
  assert found['training_examples'].isna().all()
  pd.testing.assert_frame_equal(
    found.drop(columns='training_examples'),
    table.drop(columns='training_examples'),
  )
