"""Tests of `--availability`."""

import hashlib
import json

import numpy as np
import pytest

from experiments.campaigns import jobs
from experiments.runs import availability
from tests.experiments.test_femnist import run
from tests.experiments.test_femnist import run_and_read
from tff_ocs.records import runs
from tff_ocs.tasks import femnist


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
  # A path is relative to a folder, as a run's is.
  assert availability.read('q.csv', folder=tmp_path)[1:] == read[1:]


@pytest.mark.parametrize(
  'content, message',
  [
    ('', r"line 1: the header must be client_id,q, found ''"),
    ('id,q\na,1\n', "line 1: the header .*found 'id,q'"),
    ('client_id,q\na,1\nb\n', "line 3: a line must be .*found 'b'"),
    ('client_id,q\na,1\n\n', "line 3: a line must be client_id,q, found ''"),
    ('client_id,q\na,1,2\n', "line 2: .*found 'a,1,2'"),
    ('client_id,q\na,1\nb,1\na,1\n', "line 4: the client 'a' is there twice"),
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


@pytest.mark.parametrize('text', ['0', '-1', '1.5', 'nan', 'inf', ''])
def test_bad_constant_is_named_before_any_work(tmp_path, text):
  with pytest.raises(SystemExit, match=f'--availability={text}') as error:
    run(f'--output_dir={tmp_path}', f'--availability={text}')
  assert '\n' not in str(error.value)
  assert not list(tmp_path.iterdir())


def test_file_of_another_pool_is_named_before_any_work(tmp_path):
  path = write(tmp_path / 'q.csv', 'nobody,1')
  with pytest.raises(SystemExit, match='no line for the client'):
    run(f'--output_dir={tmp_path}/runs', f'--availability={path}')
  assert not (tmp_path / 'runs').exists()


def test_job_with_another_file_is_another_run(tmp_path):
  path = write(tmp_path / 'q.csv', 'a,0.5')
  moved = write(tmp_path / 'moved.csv', 'a,0.5')
  other = write(tmp_path / 'other.csv', 'a,0.25')

  def check(recorded, *job_flags):
    (tmp_path / 'run').mkdir(exist_ok=True)
    (tmp_path / 'run' / 'config.json').write_text(json.dumps(recorded))
    return jobs.is_finished(jobs.Job('run', 'femnist', job_flags), tmp_path)

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
    with pytest.raises(jobs.JobError, match='--availability='):
      check(config, *job_flags)


def test_methods_share_who_is_available(tmp_path):
  results = [
    run_and_read(
      tmp_path / sampling, f'--sampling={sampling}', '--availability=0.5'
    )
    for sampling in ('full', 'aocs')
  ]
  full, aocs = (result.metrics for result in results)
  assert results[0].config['availability'] == 0.5
  for name in ('available', 'cohort_examples'):
    np.testing.assert_array_equal(full[name], aocs[name])
  assert full['training_loss'][0] == aocs['training_loss'][0]
  np.testing.assert_array_equal(full['participants'], full['available'])
  # Of cohorts of 4.
  assert np.any(full['available'] < 4) and np.any(full['available'] > 0)
  np.testing.assert_allclose(
    aocs['expected_participants'],
    np.minimum(aocs['available'], 1.5),
    rtol=1e-5,
  )


def test_run_with_a_file_is_known_by_its_content(tmp_path):
  plain = run_and_read(tmp_path / 'plain', '--total_rounds=2')
  np.testing.assert_array_equal(plain.metrics['available'], 4)
  assert plain.config['availability'] is None
  pool = femnist.load_synthetic(seed=0, unbalanced_set=1).train.client_ids
  path = write(tmp_path / 'q.csv', *(f'{name},1' for name in pool))
  arguments = (f'--output_dir={tmp_path}', '--total_rounds=2')
  run(*arguments, f'--availability={path}')
  (folder,) = tmp_path.glob('femnist_*')
  digest = hashlib.sha256((tmp_path / 'q.csv').read_bytes()).hexdigest()
  assert folder.name.endswith(f'_q{digest[:8]}_seed0')
  assert runs.read_run(folder).config['availability'] == f'sha256:{digest}'
  # All are always available.
  metrics = runs.read_run(folder).metrics
  for name in ('training_loss', 'uplink_bits', 'validation_loss', 'available'):
    np.testing.assert_array_equal(metrics[name], plain.metrics[name])

  same = (*arguments, f'--run_name={folder.name}')
  before = (folder / 'metrics.csv').read_bytes()
  moved = tmp_path / 'moved.csv'
  (tmp_path / 'q.csv').rename(moved)
  run(*same, f'--availability={moved}')
  assert (folder / 'metrics.csv').read_bytes() == before
  moved.write_text(moved.read_text().replace(',1\n', ',0.5\n', 1))
  for other in ([f'--availability={moved}'], []):
    with pytest.raises(SystemExit, match='holds a run with --availability=sha'):
      run(*same, *other)
