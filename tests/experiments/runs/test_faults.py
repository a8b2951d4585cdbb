"""A run that meets a fault loses nothing and says what to do in one line.

The tests run as root too, whom permissions do not stop: a limit to the size of
files stands for the full disk.
"""

import contextlib
import functools
import os
import resource
import shutil
import time

import numpy as np
import pandas as pd
import psutil
import pytest
import tensorflow_federated as tff
from absl import logging

from experiments.runs import checkpoints
from experiments.runs import run_folder
from experiments.runs import trackers
from tests.experiments import linear
from tests.plots import made_up
from tff_ocs.records import files
from tff_ocs.records import metrics as metrics_lib

METRICS = dict.fromkeys(list(metrics_lib.COLUMNS)[1:], 1.5)
STATE = {'weights': [np.arange(5000, dtype=np.float32)], 'empty': ()}
WEIGHTS = tff.learning.models.ModelWeights(STATE['weights'], [])


def limit_file_size(num_bytes):
  """Lets writes of larger files fail from now on; returns the old limit."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
  return soft


@contextlib.contextmanager
def full_disk(num_bytes=0):
  former = limit_file_size(num_bytes)
  try:
    yield
  finally:
    limit_file_size(former)


def progress(round_num):
  return checkpoints.Progress(STATE, 10**12 + round_num)


@contextlib.contextmanager
def started(path):
  """The folder of a run that is started or continued there."""
  folder = run_folder.RunFolder(path, resume=True)
  with folder.log():
    folder.start(made_up.settings())
    yield folder


@pytest.fixture
def interrupted(tmp_path):
  """The folder of a run with rounds 0 to 4, and checkpoints after 1 and 3."""
  with started(tmp_path / 'run') as folder:
    for round_num in range(5):
      folder.release(METRICS, round_num)
      if round_num in (1, 3):
        folder.checkpoints.save(progress(round_num), round_num)
  return tmp_path / 'run'


def next_round(path):
  with started(path) as folder:
    loaded, round_num = folder.checkpoints.load_latest(progress(0))
  if loaded is None:
    assert round_num == 0
  else:
    np.testing.assert_array_equal(
      loaded.state['weights'][0], STATE['weights'][0]
    )
    assert int(loaded.cumulative_uplink_bits) == 10**12 + round_num - 1
  return round_num


def read_saved(path):
  """Returns the content of the files that a fault must not change."""
  paths = [path / 'config.json', path / 'metrics.csv']
  for checkpoint in linear.saved_checkpoints(path):
    paths += [file for file in checkpoint.rglob('*') if file.is_file()]
  return {file: file.read_bytes() for file in paths}


# Writes that fail.

WRITERS = {
  'metrics.csv': lambda folder: folder.release(METRICS, 5),
  'events': lambda folder: folder.release(METRICS, 5),
  'after_round_5': lambda folder: folder.checkpoints.save(progress(5), 5),
  'weights.npz': lambda folder: folder.finish(WEIGHTS),
}


@pytest.mark.parametrize('name', WRITERS)
def test_full_disk_is_told_and_costs_nothing(interrupted, name):
  with started(interrupted) as folder:
    before = read_saved(interrupted)
    # Enough for the metrics, which are written before the events.
    room = 2000 if name == 'events' else 200
    with full_disk(room), pytest.raises(OSError) as error:
      for _ in range(10):
        WRITERS[name](folder)
    message = str(error.value)
    assert f'{name} in {interrupted}' in message
    assert 'File too large. Make room' in message
    assert 'start the same command again' in message
    assert '\n' not in message and 'function_node' not in message
    if name == 'events':
      del before[interrupted / 'metrics.csv']
    assert read_saved(interrupted).items() >= before.items()
  with started(interrupted) as folder:
    _, round_num = folder.checkpoints.load_latest(progress(0))
    assert round_num == 4
    WRITERS[name](folder)


def test_full_disk_before_the_first_file(tmp_path):
  folder = run_folder.RunFolder(tmp_path / 'run')
  with full_disk(100), pytest.raises(OSError, match='config.json in .*Make'):
    with folder.log():
      folder.start(made_up.settings())
  # The same command again.
  assert next_round(tmp_path / 'run') == 0


@pytest.mark.parametrize('name', ['metrics.csv', 'weights.npz'])
@pytest.mark.parametrize('is_replaced', [False, True])
def test_folder_that_is_gone(interrupted, name, is_replaced):
  with started(interrupted) as folder:
    shutil.rmtree(interrupted)
    if is_replaced:
      interrupted.write_text('in the way')
    with pytest.raises(OSError, match=f'{name} in .* mend the folder') as error:
      WRITERS[name](folder)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('is_folder', [False, True])
def test_log_that_cannot_be_written_is_told_once(
  interrupted, capsys, is_folder
):
  log = interrupted / 'log.txt'
  if is_folder:  # It cannot be opened.
    log.unlink(missing_ok=True)
    log.mkdir()
  else:  # Longer than what this test itself writes to the console.
    log.write_text(100000 * '.')
  with started(interrupted) as folder:
    with full_disk(100000):
      for _ in range(3):
        logging.error('hello')
    folder.release(METRICS, 5)
  output = capsys.readouterr().err
  assert output.count('log.txt cannot be written') == 1
  assert 'Traceback' not in output


# Files that are damaged when the run is resumed.


def truncate(path, num_bytes):
  os.truncate(path, path.stat().st_size - num_bytes)


def cut_within_line(path, index):
  lines = path.read_bytes().splitlines(keepends=True)
  os.truncate(path, sum(map(len, lines[:index])) + len(lines[index]) // 2)


@pytest.mark.parametrize(
  'damage, lost_rounds, expected_round',
  [
    (lambda path: None, 0, 4),
    # Within the last line; and all of it, and half of the one before.
    (lambda path: truncate(path, 1), 1, 4),
    (lambda path: cut_within_line(path, -2), 2, 2),
    (lambda path: cut_within_line(path, -4), 4, 0),
    (lambda path: os.truncate(path, 0), 5, 0),
  ],
)
def test_run_goes_on_from_where_the_metrics_are_whole(
  interrupted, damage, lost_rounds, expected_round
):
  path = interrupted / 'metrics.csv'
  whole = path.read_bytes().splitlines()
  damage(path)
  assert next_round(interrupted) == expected_round
  kept = path.read_bytes().splitlines()
  if lost_rounds < 5:
    assert kept == whole[: 6 - lost_rounds]
  else:
    assert kept == [b'round']
  # All that is computed again can be saved again.
  with started(interrupted) as folder:
    for round_num in range(expected_round, 5):
      folder.release(METRICS, round_num)
      if round_num in (1, 3):
        folder.checkpoints.save(progress(round_num), round_num)
  assert path.read_bytes().splitlines() == whole
  assert next_round(interrupted) == 4


def replace_in(path, *replacements):
  content = path.read_bytes()
  for old, new in replacements:
    assert old in content
    content = content.replace(old, new)
  path.write_bytes(content)


def test_metrics_that_a_spreadsheet_saved_again_are_continued(interrupted):
  path = interrupted / 'metrics.csv'
  whole = path.read_bytes().replace(b'\r\n', b'\n')
  path.write_bytes(b'\xef\xbb\xbf' + whole.replace(b'\n', b'\r\n'))
  checkpoints_before = linear.saved_checkpoints(interrupted)
  assert next_round(interrupted) == 4
  assert linear.saved_checkpoints(interrupted) == checkpoints_before
  with started(interrupted) as folder:
    folder.release(METRICS, 5)
  table = metrics_lib.read_metrics(interrupted)
  assert table['round'].tolist() == [0, 1, 2, 3, 4, 5]
  assert path.read_bytes().startswith(whole.split(b'\n')[0])


@pytest.mark.parametrize(
  'damage, reason',
  [
    (lambda path: path.unlink(), 'has checkpoints, but no metrics.csv'),
    (lambda path: replace_in(path, (b',', b';')), "separated by ';'"),
    (lambda path: path.write_bytes(bytes(range(256))), 'not UTF-8'),
    (lambda path: path.write_text('name,age\nAda,36\n'), "'Ada' in .* name"),
    (lambda path: path.write_text('name\n36\n'), 'no column round'),
    (lambda path: replace_in(path, (b'\n3,', b'\n2,')), 'round 2 twice'),
    (
      lambda path: replace_in(path, (b'\n2,', b'\n7,')),
      'round 7 where round 2',
    ),
    (
      lambda path: replace_in(path, (b'\n2,1.5', b'\n2,x')),
      "'x' in the column",
    ),
    (lambda path: replace_in(path, (b'\n2,', b'\n2,1,')), 'line 4 .* cells'),
    (lambda path: replace_in(path, (b'\n2,', b'\n\n2,')), 'line 4 .* 0 cells'),
  ],
)
def test_metrics_that_no_run_wrote_stop_the_run_and_cost_nothing(
  interrupted, damage, reason
):
  damage(interrupted / 'metrics.csv')
  before = {
    path: path.read_bytes()
    for path in interrupted.rglob('*')
    if path.is_file() and path.name != 'log.txt'
  }
  with pytest.raises(files.RecordError, match=reason) as error:
    next_round(interrupted)
  message = str(error.value)
  assert 'Nothing was changed' in message and '\n' not in message
  for path, content in before.items():
    assert path.read_bytes() == content


def halve(path):
  for file in path.rglob('*'):
    if file.is_file():
      os.truncate(file, file.stat().st_size // 2)


def scramble(path):
  for file in path.rglob('*'):
    if file.is_file():
      content = np.frombuffer(file.read_bytes(), np.uint8)
      file.write_bytes((content ^ 85).tobytes())


def empty(path):
  shutil.rmtree(path)
  path.mkdir()


def replace_by_file(path):
  shutil.rmtree(path)
  path.write_text('in the way')


def replace_by_foreign(path, state):
  shutil.rmtree(path)
  other = path.parents[1] / 'other'
  round_num = int(path.name.split('_')[2])
  checkpoints.Checkpoints(other).save(checkpoints.Progress(state, 1), round_num)
  (other / path.name).rename(path)


DAMAGES = {
  'halved': halve,
  'scrambled': scramble,
  'emptied': empty,
  'file': replace_by_file,
}
OTHER_VERSIONS = {
  'another structure': functools.partial(
    replace_by_foreign, state={'weights': [np.zeros(5000, np.float32)] * 2}
  ),
  'another shape': functools.partial(
    replace_by_foreign, state={**STATE, 'weights': [np.zeros(4999, np.float32)]}
  ),
  'another type': functools.partial(
    replace_by_foreign, state={**STATE, 'weights': [np.zeros(5000, np.float64)]}
  ),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_damaged_checkpoints_are_left_out(interrupted, damage, capsys):
  for expected_round in (2, 0):
    DAMAGES[damage](linear.saved_checkpoints(interrupted)[-1])
    capsys.readouterr()
    assert next_round(interrupted) == expected_round
    log = (interrupted / 'log.txt').read_text()
    assert (
      f'The checkpoint after round {expected_round + 1} cannot be read' in log
    )
  assert linear.saved_checkpoints(interrupted) == []
  with started(interrupted) as folder:
    folder.checkpoints.save(progress(1), 1)
  assert next_round(interrupted) == 2


@pytest.mark.parametrize('version', OTHER_VERSIONS)
def test_checkpoints_of_another_version_stop_the_run_and_cost_nothing(
  interrupted, version
):
  OTHER_VERSIONS[version](linear.saved_checkpoints(interrupted)[-1])
  before = read_saved(interrupted)
  del before[interrupted / 'metrics.csv']  # The ends of its lines may change.
  table = metrics_lib.read_metrics(interrupted)
  with pytest.raises(
    files.RecordError, match='after_round_3 is not .* this version'
  ) as error:
    next_round(interrupted)
  message = str(error.value)
  assert 'Nothing is lost' in message and '\n' not in message
  assert read_saved(interrupted).items() >= before.items()
  pd.testing.assert_frame_equal(metrics_lib.read_metrics(interrupted), table)


@pytest.mark.parametrize('content', ['', '{"seed": 0, "enviro'])
def test_truncated_config_is_told(interrupted, content):
  (interrupted / 'config.json').write_text(content)
  before = read_saved(interrupted)
  with pytest.raises(FileExistsError, match='no config.json.*Remove'):
    run_folder.RunFolder(interrupted, resume=True)
  assert read_saved(interrupted) == before


# Real runs.


def worker_of(run):
  """The TFF worker of a run, once it has begun to compute."""
  with contextlib.suppress(psutil.NoSuchProcess, IndexError):
    for child in psutil.Process(run.pid).children():
      is_worker = child.cmdline()[0].endswith('worker_binary')
      if is_worker and child.cpu_times().user > 0.1:
        return child
  return None


def test_lost_worker_costs_no_bit(uninterrupted, tmp_path):
  run = linear.Run(tmp_path / 'runs')
  for round_num in (2, 12):
    run.wait_until(
      lambda: (
        linear.num_rounds(run.folder) >= round_num  # noqa: B023
        and worker_of(run)
      )
    )
    worker_of(run).kill()
  status, output = run.finish()
  assert status == 0, output
  assert 'The TFF worker was lost' in output
  log = (run.folder / 'log.txt').read_text()
  assert log.count('The TFF worker was lost') >= 2
  assert linear.read_results(run.folder) == uninterrupted


def check_reported(output, message):
  assert message in output.splitlines()[-1]
  assert output.splitlines()[-1].startswith('error: ')
  assert 'Traceback' not in output


def fill_disk():
  # A checkpoint has a file of 14,011 bytes; the others are smaller.
  limit_file_size(13_000)


def test_run_that_fails_twice_ends_with_the_same_bits(uninterrupted, tmp_path):
  run = linear.Run(tmp_path / 'runs')
  run.wait_until(lambda: linear.saved_checkpoints(run.folder))
  # From now on each worker dies as soon as it computes.
  while not run.has_ended:
    worker = worker_of(run)
    if worker is not None:
      with contextlib.suppress(psutil.NoSuchProcess):
        worker.kill()
    time.sleep(0.005)
  status, output = run.finish()
  assert status == 1
  check_reported(output, 'The TFF worker')
  assert 'resumes from the last checkpoint' in output.splitlines()[-1]
  saved = linear.saved_checkpoints(run.folder)
  assert saved
  # The next checkpoint finds the disk full.
  status, output = linear.finish(tmp_path / 'runs', prepare=fill_disk)
  assert status == 1
  check_reported(output, 'File too large. Make room')
  assert set(saved) <= set(linear.saved_checkpoints(run.folder))
  status, output = linear.finish(tmp_path / 'runs')
  assert status == 0, output
  assert linear.read_results(run.folder) == uninterrupted


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
  """The results of a run that is too short for a checkpoint on the way."""
  folder = tmp_path_factory.mktemp('undisturbed')
  linear.run(*linear.SMALL, f'--output_dir={folder}', '--run_name=run')
  return linear.read_results(folder / 'run')


@pytest.mark.parametrize(
  ('owner', 'name', 'rows'),
  [
    (checkpoints.Checkpoints, 'save', 3),
    (trackers.Tracker, 'release', 4),
    (run_folder.weights_lib, 'write_weights', 4),
  ],
)
def test_run_without_a_checkpoint_on_the_way_survives_its_last_round(
  tmp_path, monkeypatch, undisturbed, owner, name, rows
):
  """Whatever fails there: the checkpoint, the tracker or the weights."""
  flags = (*linear.SMALL, f'--output_dir={tmp_path}', '--run_name=run')
  function = getattr(owner, name)

  def fail_at_the_end(*arguments):
    if name != 'release' or arguments[-1] == 3:
      raise OSError('no room')
    return function(*arguments)

  with monkeypatch.context() as patch:
    patch.setattr(owner, name, fail_at_the_end)
    with pytest.raises(SystemExit, match='no room'):
      linear.run(*flags)
  assert linear.num_rounds(tmp_path / 'run') == rows
  linear.run(*flags)
  assert linear.read_results(tmp_path / 'run') == undisturbed


def test_finished_run_without_weights_is_not_replaced(tmp_path):
  path = tmp_path / 'run'
  total_rounds = made_up.settings().total_rounds
  with started(path) as folder:
    for round_num in range(total_rounds):
      folder.release(METRICS, round_num)
    folder.finish(WEIGHTS)
  (path / 'weights.npz').unlink()
  with pytest.raises(
    files.RecordError, match=f'has all {total_rounds} rounds, .*--overwrite'
  ):
    next_round(path)
  assert len(metrics_lib.read_metrics(path)) == total_rounds
  overwritten = run_folder.RunFolder(path, overwrite=True)
  with overwritten.log():
    overwritten.start(made_up.settings())
