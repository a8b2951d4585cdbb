"""Kills real runs at several moments, continues them, and compares."""

import json
import os
import signal

import numpy as np
import pytest
import tensorflow_federated as tff

from experiments.runs import checkpoints
from experiments.runs import run_folder
from tests.experiments import linear
from tests.plots import made_up
from tff_ocs.records import files
from tff_ocs.records import norms as norms_lib


def test_killed_run_continues_to_the_same_bits(uninterrupted, tmp_path):
  folder = tmp_path / 'runs' / 'run'
  # Before the first checkpoint; while one is being saved; and between two.
  moments = (
    lambda: linear.num_rounds(folder) >= 1,
    lambda: list((folder / 'checkpoints').glob('*_temp*')),
    lambda: linear.num_rounds(folder) >= 12,
  )
  for moment in moments:
    linear.Run(tmp_path / 'runs', '--record_norms').kill_when(moment)
    assert not (folder / 'weights.npz').exists()
  status, output = linear.finish(tmp_path / 'runs', '--record_norms')
  assert status == 0, output
  assert linear.read_results(folder) == uninterrupted
  assert 'Going on from the checkpoint' in (folder / 'log.txt').read_text()
  left = {path.name for path in folder.iterdir()}
  assert left == {
    '.lock',
    'config.json',
    'events',
    'log.txt',
    'metrics.csv',
    'norms.csv',
    'weights.npz',
  }
  at_once = tmp_path / 'at_once'
  linear.run(*linear.DISTURBED, f'--output_dir={at_once}', '--record_norms')
  assert (folder / 'norms.csv').read_bytes() == (
    at_once / 'run' / 'norms.csv'
  ).read_bytes()

  # A finished run is not run again, unless asked to.
  before = (folder / 'metrics.csv').stat().st_mtime_ns
  status, output = linear.finish(tmp_path / 'runs')
  assert status == 0 and 'is finished' in output
  assert (folder / 'metrics.csv').stat().st_mtime_ns == before
  # Other flags are another run.
  status, output = linear.finish(tmp_path / 'runs', '--batch_size=10')
  assert status == 1
  assert 'a run with --batch_size=20, not 10' in output.splitlines()[-1]


@pytest.mark.parametrize('are_all_damaged', [False, True])
def test_damage_costs_rounds_but_not_the_run(
  uninterrupted, tmp_path, are_all_damaged
):
  run = linear.Run(tmp_path / 'runs')
  run.kill_when(lambda: len(linear.saved_checkpoints(run.folder)) >= 2)
  damaged = linear.saved_checkpoints(run.folder)[0 if are_all_damaged else 1 :]
  for checkpoint in damaged:
    for path in checkpoint.rglob('*'):
      if path.is_file():
        os.truncate(path, path.stat().st_size // 2)
  # And the last line of the metrics.
  metrics = run.folder / 'metrics.csv'
  os.truncate(metrics, metrics.stat().st_size - 5)
  status, output = linear.finish(tmp_path / 'runs')
  assert status == 0, output
  # Either cannot be read, or comes after the line that is lost.
  assert output.count('The checkpoint after round') == len(damaged)
  assert 'metrics.csv is cut off after' in output
  assert 'Traceback' not in output
  assert linear.read_results(run.folder) == uninterrupted


def test_norms_are_recorded_of_all_rounds_or_not_at_all(
  uninterrupted, tmp_path
):
  run = linear.Run(tmp_path / 'runs')
  run.kill_when(lambda: linear.saved_checkpoints(run.folder))
  # Rounds before the checkpoint cannot be recorded any more.
  status, output = linear.finish(tmp_path / 'runs', '--record_norms')
  assert status == 1
  assert output.splitlines()[-1] == (
    f'error: {run.folder} cannot be continued with --record_norms: the norms of'
    ' earlier rounds were not recorded. Nothing is lost. Use --norecord_norms,'
    ' or --overwrite to start the run again.'
  )
  assert not (run.folder / 'norms.csv').exists()
  assert linear.saved_checkpoints(run.folder)
  # Nor if those of a few rounds are there.
  (run.folder / 'norms.csv').write_text('round,norm_0000\n0,1.5\n')
  status, output = linear.finish(tmp_path / 'runs', '--record_norms')
  assert status == 1 and '--norecord_norms' in output.splitlines()[-1]
  assert linear.saved_checkpoints(run.folder)
  # It does not influence the run.
  status, output = linear.finish(tmp_path / 'runs', '--norecord_norms')
  assert status == 0, output
  assert linear.read_results(run.folder) == uninterrupted


def test_cut_norms_cost_rounds_but_not_the_run(uninterrupted, tmp_path):
  run = linear.Run(tmp_path / 'runs', '--record_norms')
  run.kill_when(lambda: len(linear.saved_checkpoints(run.folder)) >= 2)
  path = run.folder / 'norms.csv'
  last = int(linear.saved_checkpoints(run.folder)[-1].name.split('_')[2])
  # The row of the round of the last checkpoint is cut in the middle.
  rows = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b''.join(rows[: last + 2])[:-5])
  status, output = linear.finish(tmp_path / 'runs', '--record_norms')
  assert status == 0, output
  assert f'is left out, since norms.csv ends before round {last}.' in output
  assert linear.read_results(run.folder) == uninterrupted
  assert len(norms_lib.read_norms(run.folder)) == 24


@pytest.mark.parametrize('is_saved', [False, True])
def test_ctrl_c_says_where_the_same_command_starts(tmp_path, is_saved):
  # It does not end before the signal. Python ignores a KeyboardInterrupt in a
  # __del__, of which TensorFlow has many while it saves: so the signal comes
  # between two checkpoints.
  run = linear.Run(
    tmp_path / 'runs', '--total_rounds=300', '--rounds_per_checkpoint=30'
  )
  metrics = run.folder / 'metrics.csv'

  def goes_on_after_a_checkpoint():
    return (
      linear.saved_checkpoints(run.folder)
      and metrics.read_bytes().count(b'\n') > 32
    )

  run.wait_until(goes_on_after_a_checkpoint if is_saved else run.folder.exists)
  os.kill(run.pid, signal.SIGINT)
  status, output = run.finish()
  assert status == 1
  line = output.splitlines()[-1]
  assert 'Traceback' not in output
  if is_saved:
    assert line == (
      'interrupted. The same command, without --overwrite, resumes from the'
      f' last checkpoint in {run.folder}'
    )
  else:
    assert line == (
      'interrupted. There is no checkpoint yet: the same command starts from'
      ' round 0.'
    )


def test_no_checkpoint_is_saved_after_the_last_round(tmp_path, monkeypatch):
  saved = []
  save = checkpoints.Checkpoints.save

  def note(self, progress, round_num):
    saved.append(round_num)
    save(self, progress, round_num)

  monkeypatch.setattr(checkpoints.Checkpoints, 'save', note)
  linear.run_and_read(tmp_path, '--rounds_per_checkpoint=2')
  assert saved == [1]


def test_checkpoints_keep_two_and_give_back_what_was_saved(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path / 'checkpoints')
  for round_num in (1, 3, 5):
    state = {'weights': np.full(3, round_num, np.float32), 'empty': ()}
    saved.save(checkpoints.Progress(state, 10**12 + round_num), round_num)
  assert len(linear.saved_checkpoints(tmp_path)) == 2
  like = checkpoints.Progress(
    {'weights': np.zeros(3, np.float32), 'empty': ()}, 0
  )
  progress, next_round = checkpoints.Checkpoints(
    tmp_path / 'checkpoints'
  ).load_latest(like)
  assert next_round == 6
  np.testing.assert_array_equal(progress.state['weights'], [5, 5, 5])
  assert int(progress.cumulative_uplink_bits) == 10**12 + 5


def test_folder_without_resume_is_refused(tmp_path):
  run_folder.RunFolder(tmp_path / 'run').start(made_up.settings())
  with pytest.raises(FileExistsError, match='--resume'):
    run_folder.RunFolder(tmp_path / 'run')
  again = run_folder.RunFolder(tmp_path / 'run', resume=True)
  again.check_settings({'seed': 0})
  with pytest.raises(FileExistsError, match='--seed=0, not 1'):
    again.check_settings({'seed': 1})


def test_run_that_another_process_finished_meanwhile_is_kept(tmp_path):
  folder = run_folder.RunFolder(tmp_path / 'run', resume=True)
  other = run_folder.RunFolder(tmp_path / 'run')
  with other.log():
    other.start(made_up.settings())
    (tmp_path / 'run' / 'weights.npz').touch()
  with folder.log(), pytest.raises(FileExistsError, match='meanwhile'):
    folder.start(made_up.settings())


def test_folder_in_use_is_refused_to_another_process(tmp_path):
  folder = run_folder.RunFolder(tmp_path / 'run')
  with folder.log():
    folder.start(made_up.settings())
    for options in ({'resume': True}, {'overwrite': True}):
      other = run_folder.RunFolder(tmp_path / 'run', **options)
      with pytest.raises(FileExistsError, match='Another process is running'):
        other.start(made_up.settings())
    assert (tmp_path / 'run' / 'config.json').exists()
  run_folder.RunFolder(tmp_path / 'run', resume=True).start(made_up.settings())


@pytest.mark.parametrize('config', ['not json', '[]', '{"model": "bert"}'])
def test_folder_with_another_config_is_never_replaced(tmp_path, config):
  (tmp_path / 'config.json').write_text(config)
  (tmp_path / 'precious.txt').write_text('precious')
  with pytest.raises(FileExistsError, match='none of a run'):
    run_folder.RunFolder(tmp_path, overwrite=True)
  assert (tmp_path / 'precious.txt').exists()


def test_overwriting_removes_only_what_a_run_writes(tmp_path):
  folder = run_folder.RunFolder(tmp_path / 'run')
  with folder.log():
    folder.start(made_up.settings())
  (tmp_path / 'run' / 'notes.txt').write_text('precious')
  written = {
    *('weights.npz', 'metrics.csv', 'metrics.csv_temp1', 'log.txt'),
    *('norms.csv', 'clients.csv', 'client_accuracies.csv'),
    *('checkpoints/after_round_1', 'events/events.former'),
  }
  for name in written:
    path = tmp_path / 'run' / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('former')
  again = run_folder.RunFolder(tmp_path / 'run', overwrite=True)
  with again.log():
    again.start(made_up.settings(seed=1))
  config = json.loads((tmp_path / 'run' / 'config.json').read_text())
  assert config['seed'] == 1
  assert (tmp_path / 'run' / 'notes.txt').read_text() == 'precious'
  for name in written:
    path = tmp_path / 'run' / name
    assert not path.exists() or path.read_text() != 'former'


def test_continuing_elsewhere_is_warned_of(tmp_path, monkeypatch):
  folder = run_folder.RunFolder(tmp_path / 'run')
  with folder.log():
    folder.start(made_up.settings())
  describe = run_folder._describe_environment
  monkeypatch.setattr(
    run_folder,
    '_describe_environment',
    lambda address: {**describe(address), 'python': '4.0'},
  )
  again = run_folder.RunFolder(tmp_path / 'run', resume=True)
  with again.log():
    again.start(made_up.settings())
  log = (tmp_path / 'run' / 'log.txt').read_text()
  assert 'The run is continued with another python: 4.0, not 3.' in log
  assert 'another machine' not in log


def test_folder_is_free_however_a_run_ends(tmp_path):
  weights = tff.learning.models.ModelWeights([np.zeros(2, np.float32)], [])
  folder = run_folder.RunFolder(tmp_path / 'finished')
  folder.start(made_up.settings())
  folder.finish(weights)
  files.lock_folder(tmp_path / 'finished').release()
  # The start itself fails.
  again = run_folder.RunFolder(tmp_path / 'finished', resume=True)
  with pytest.raises(FileExistsError, match='meanwhile'):
    again.start(made_up.settings())
  files.lock_folder(tmp_path / 'finished').release()
  # Nobody has it any more.
  folder = run_folder.RunFolder(tmp_path / 'abandoned')
  folder.start(made_up.settings())
  with pytest.raises(BlockingIOError):
    files.lock_folder(tmp_path / 'abandoned')
  del folder
  files.lock_folder(tmp_path / 'abandoned').release()
