"""Tests of `--availability`."""

import hashlib
import json

import pytest

from experiments.campaigns import job as job_lib
from experiments.campaigns import job_settings
from experiments.campaigns import jobs
from experiments.runs import availability
from tests.experiments import linear
from tests.plots import made_up


def write(path, *lines):
  path.write_text('\n'.join(['client_id,q', *lines]) + '\n')
  return str(path)


def test_constant_is_for_all_clients():
  read = availability.read('0.5')
  assert read.setting == 0.5
  assert read.for_clients(['a', 'b']) == {'a': 0.5, 'b': 0.5}
  assert availability.read('1').setting == 1


def test_nothing_is_nothing():
  read = availability.read(None)
  assert read.setting is None
  assert read.for_clients(['a']) is None


@pytest.mark.parametrize('mark', [b'', b'\xef\xbb\xbf'])
def test_file_has_a_line_for_each_client(tmp_path, mark):
  path = tmp_path / 'q.csv'
  content = mark + b'client_id,q\r\n"b, c",0.25\na,1\n'
  path.write_bytes(content)
  read = availability.read(str(path))
  assert read.for_clients(['a', 'b, c']) == {'a': 1, 'b, c': 0.25}
  assert read.setting == f'sha256:{hashlib.sha256(content).hexdigest()}'


@pytest.mark.parametrize(
  'content, message',
  [
    ('', r"line 1: the header must be client_id,q, found ''"),
    ('id,q\na,1\n', "line 1: the header .*found 'id,q'"),
    ('client_id,q\na,1\nb\n', "line 3: a line must be .*found 'b'"),
    ('client_id,q\na,1\n\n', "line 3: a line must be client_id,q, found ''"),
    ('client_id,q\na,1,2\n', "line 2: .*found 'a,1,2'"),
    ('client_id,q\na,1\nb,1\na,1\n', "line 4: the client 'a' occurs twice"),
    ('client_id,q\na,half\n', "line 2: q must be a number, found 'half'"),
    ('client_id,q\na,0\n', 'line 2: q must be above 0 and at most 1, found 0'),
    ('client_id,q\na,1.01\n', 'line 2: q must be above 0 .* found 1.01'),
    ('client_id,q\na,nan\n', 'line 2: q must be above 0 .* found nan'),
    # It would be 0 in float32.
    ('client_id,q\na,1e-50\n', 'line 2: q must be above 0 .* found 1e-50'),
    ('client_id,q\na,1\nb,1\n', "line 3: there is no client 'b' in the pool"),
    ('client_id,q\n', "has no line for the client 'a'; .* lacks 1"),
    # Not in UTF-8.
    ('client_id,q\nä,1\n', 'neither a number nor a CSV file'),
    (None, 'neither a number nor a CSV file .*No such file'),
  ],
)
def test_bad_file_is_named_with_its_line(tmp_path, content, message):
  path = tmp_path / 'q.csv'
  if content is not None:
    path.write_text(content, encoding='latin-1')
  with pytest.raises(
    availability.AvailabilityError, match=f'--availability={path}.*{message}'
  ) as error:
    availability.read(str(path)).for_clients(['a'])
  assert '\n' not in str(error.value)


def test_home_folder_is_expanded_and_urls_are_refused(tmp_path, monkeypatch):
  write(tmp_path / 'q.csv', 'a,0.5')
  monkeypatch.setenv('HOME', str(tmp_path))
  assert availability.read('~/q.csv').for_clients(['a']) == {'a': 0.5}
  with pytest.raises(availability.AvailabilityError, match='found a URL'):
    availability.read('gs://bucket/q.csv')


@pytest.mark.parametrize('text', ['0', '-1', '1.5', 'nan', 'inf', ''])
def test_bad_constant_is_named_before_any_work(tmp_path, text):
  with pytest.raises(SystemExit, match=f'--availability={text}') as error:
    linear.run(
      *linear.SMALL, f'--output_dir={tmp_path}', f'--availability={text}'
    )
  assert '\n' not in str(error.value)
  assert not list(tmp_path.iterdir())


def test_file_of_another_pool_is_named_before_any_work(tmp_path):
  path = write(tmp_path / 'q.csv', 'nobody,1')
  with pytest.raises(SystemExit, match='no line for the client'):
    linear.run(
      *linear.SMALL, f'--output_dir={tmp_path}/runs', f'--availability={path}'
    )
  assert not (tmp_path / 'runs').exists()


def test_job_with_another_file_is_another_run(tmp_path):
  path = write(tmp_path / 'q.csv', 'a,0.5')
  moved = write(tmp_path / 'moved.csv', 'a,0.5')
  other = write(tmp_path / 'other.csv', 'a,0.25')

  def check(recorded, *job_flags):
    (tmp_path / 'run').mkdir(exist_ok=True)
    of_flags = job_settings.read(job_lib.Job('run', 'femnist', ())).recorded
    config = {**made_up.settings().to_json(), **of_flags, **recorded}
    if not recorded:
      del config['availability']
    (tmp_path / 'run' / 'config.json').write_text(json.dumps(config))
    return jobs.is_finished(job_lib.Job('run', 'femnist', job_flags), tmp_path)

  recorded = {'availability': availability.read(path).setting}
  for same in (path, moved):
    assert not check(recorded, f'--availability={same}')
  assert not check({'availability': 0.5}, '--availability=.5')
  assert not check({'availability': None})
  assert not check({})
  for config, job_flags in (
    (recorded, [f'--availability={other}']),
    (recorded, ['--availability=0.5']),
    (recorded, []),
    ({'availability': 0.5}, []),
    ({'availability': None}, ['--availability=0.5']),
    ({}, ['--availability=0.5']),
    (recorded, ['--availability=nowhere.csv']),
  ):
    with pytest.raises(job_lib.JobError, match='--availability='):
      check(config, *job_flags)
