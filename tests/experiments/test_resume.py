"""Kills real runs at several moments, continues them, and compares."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments import checkpoints
from experiments import run_folder
from plots import runs

ROOT = pathlib.Path(__file__).parents[2]

COMMAND = (
  sys.executable,
  '-m',
  'experiments.femnist',
  '--data_source=synthetic',
  '--clients_per_round=3',
  '--expected_clients=1',
  '--total_rounds=9',
  '--rounds_per_eval=3',
  '--rounds_per_checkpoint=2',
  '--run_name=run',
)


def start(output_dir, *arguments):
  return subprocess.Popen(
    [*COMMAND, f'--output_dir={output_dir}', *arguments],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def finish(output_dir, *arguments):
  process = start(output_dir, *arguments)
  output, _ = process.communicate(timeout=300)
  return process.returncode, output


def num_rounds(folder):
  try:
    return len(runs.read_run(folder).metrics.get('round', []))
  except (FileNotFoundError, json.JSONDecodeError):
    return 0


def saved_checkpoints(folder):
  """The whole checkpoints, not what is being written, in the rounds' order."""
  paths = (folder / 'checkpoints').glob('after_round_*')
  whole = [path for path in paths if '_temp' not in path.name]
  return sorted(whole, key=lambda path: int(path.name.split('_')[2]))


def kill_when(process, condition):
  while not condition():
    assert process.poll() is None, process.communicate()[0]
    time.sleep(0.005)
  process.send_signal(signal.SIGKILL)
  process.communicate()


def read_results(folder):
  """What must not differ: all metrics but the seconds, and the weights."""
  lines = (folder / 'metrics.csv').read_text().splitlines()
  column = lines[0].split(',').index('seconds')
  rows = [line.split(',') for line in lines]
  metrics = [row[:column] + row[column + 1 :] for row in rows]
  with np.load(folder / 'weights.npz') as weights:
    return metrics, [weights[name].tobytes() for name in weights]


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
  output_dir = tmp_path_factory.mktemp('uninterrupted')
  status, output = finish(output_dir)
  assert status == 0, output
  assert not (output_dir / 'run' / 'checkpoints').exists()
  return read_results(output_dir / 'run')


def test_killed_run_continues_to_the_same_bits(uninterrupted, tmp_path):
  folder = tmp_path / 'run'
  # Before the first checkpoint; in the middle of saving one, which lasts
  # longer than a round; and between two.
  moments = (
    lambda: num_rounds(folder) >= 1,
    lambda: list((folder / 'checkpoints').glob('*_temp*')),
    lambda: num_rounds(folder) >= 7,
  )
  for moment in moments:
    kill_when(start(tmp_path), moment)
    assert not (folder / 'weights.npz').exists()
  status, output = finish(tmp_path)
  assert status == 0, output
  assert read_results(folder) == uninterrupted
  assert 'Going on from the checkpoint' in (folder / 'log.txt').read_text()
  left = {path.name for path in folder.iterdir()}
  assert left == {
    'config.json',
    'events',
    'log.txt',
    'metrics.csv',
    'weights.npz',
  }

  # A finished run is not run again, unless told to.
  before = (folder / 'metrics.csv').stat().st_mtime_ns
  status, output = finish(tmp_path)
  assert status == 0 and 'is finished' in output
  assert (folder / 'metrics.csv').stat().st_mtime_ns == before
  # And other flags do not go with it.
  status, output = finish(tmp_path, '--batch_size=10')
  assert status == 1
  assert 'a run with --batch_size=20, not 10' in output.splitlines()[-1]


def test_damaged_checkpoint_costs_rounds_but_not_the_run(
  uninterrupted, tmp_path
):
  folder = tmp_path / 'run'
  kill_when(start(tmp_path), lambda: len(saved_checkpoints(folder)) >= 2)
  newest = saved_checkpoints(folder)[-1]
  for path in newest.rglob('*'):
    if path.is_file():
      os.truncate(path, path.stat().st_size // 2)
  status, output = finish(tmp_path)
  assert status == 0, output
  assert 'cannot be read' in output
  assert read_results(folder) == uninterrupted


def test_checkpoints_keep_two_and_give_back_what_was_saved(tmp_path):
  saved = checkpoints.Checkpoints(tmp_path / 'checkpoints')
  for round_num in (1, 3, 5):
    state = {'weights': np.full(3, round_num, np.float32), 'empty': ()}
    saved.save(checkpoints.Progress(state, 10**12 + round_num), round_num)
  assert len(saved_checkpoints(tmp_path)) == 2
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
  run_folder.RunFolder(tmp_path / 'run').start({'seed': 0})
  with pytest.raises(FileExistsError, match='--resume'):
    run_folder.RunFolder(tmp_path / 'run')
  again = run_folder.RunFolder(tmp_path / 'run', resume=True)
  again.check_settings({'seed': 0})
  with pytest.raises(FileExistsError, match='--seed=0, not 1'):
    again.check_settings({'seed': 1})


def test_folder_in_use_is_refused_to_another_process(tmp_path):
  folder = run_folder.RunFolder(tmp_path / 'run')
  with folder.log():
    folder.start({'seed': 0})
    for options in ({'resume': True}, {'overwrite': True}):
      other = run_folder.RunFolder(tmp_path / 'run', **options)
      with pytest.raises(FileExistsError, match='Another process is running'):
        other.start({'seed': 0})
    assert (tmp_path / 'run' / 'config.json').exists()
  run_folder.RunFolder(tmp_path / 'run', resume=True).start({'seed': 0})


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
    folder.start({'seed': 0})
  (tmp_path / 'run' / 'notes.txt').write_text('precious')
  again = run_folder.RunFolder(tmp_path / 'run', overwrite=True)
  with again.log():
    again.start({'seed': 1})
  config = json.loads((tmp_path / 'run' / 'config.json').read_text())
  assert config['seed'] == 1
  assert (tmp_path / 'run' / 'notes.txt').read_text() == 'precious'
