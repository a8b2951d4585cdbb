"""Tests of the estimate of time and disk space."""

import json

import pytest

from experiments.campaigns import estimate
from experiments.campaigns import job as job_lib

RUN = job_lib.Job(
  'femnist_1_full',
  'femnist',
  (
    '--clients_per_round=32',
    '--rounds_per_eval=5',
    '--total_rounds=151',
    '--seed=3',
  ),
)
LOG = """\
2026-11-29 23:59:00,000 INFO Results: runs/x
2026-11-29 23:59:58,500 INFO Round 0: {'seconds': 9.0}
2026-11-30 00:00:01,250 INFO Round 1: {'seconds': 2.0}
"""


def write_timed(folder):
  """Two rounds: 2 s for the second one, and 0.75 s for its evaluation."""
  folder.mkdir(parents=True)
  (folder / 'metrics.csv').write_text('round,seconds\n0,9.0\n1,2.0\n')
  (folder / 'log.txt').write_text(LOG)
  (folder / 'weights.npz').write_bytes(b'x' * 5000)
  others = len(LOG) + len('round,seconds\n0,9.0\n1,2.0\n')
  return 5000, others / 2


@pytest.fixture
def clock(monkeypatch):
  """The seconds that `estimate` sees; they go on while runs are timed."""
  now = [1000.0]
  monkeypatch.setattr(estimate.time, 'monotonic', lambda: now[0])
  return now


def test_timed_run_is_the_same_but_short():
  job = estimate.build_job('femnist_1', RUN)
  assert job.name == 'timing/femnist_1'
  assert job.program == 'femnist'
  assert job.values == {
    'clients_per_round': '32',
    'rounds_per_eval': '1',
    'total_rounds': '2',
    'seed': '0',
  }


def test_experiments_are_timed_once(tmp_path, clock):
  timed = {
    name: RUN._replace(name=f'timing/{name}') for name in ('a', 'b', 'c')
  }
  started = []

  def run_jobs(all_jobs):
    started.append([job.name for job in all_jobs])
    for job in all_jobs:
      sizes.append(write_timed(tmp_path / job.name))
    clock[0] += 31.0

  sizes = []
  first = {name: timed[name] for name in ('a', 'b')}
  # One after the other: each took 15.5 s, of which 2 x 2.75 s were rounds.
  timings = estimate.measure(first, tmp_path, run_jobs, 1)
  assert timings['a'] == timings['b'] == (10.0, 2.0, 0.75, *sizes[0])
  # Two at the same time: 31 s are two rows.
  timings = estimate.measure(timed, tmp_path, run_jobs, 2)
  assert timings['c'].startup_seconds == 31.0 - 5.5
  assert timings['a'].startup_seconds == 10.0
  estimate.measure(timed, tmp_path, run_jobs, 2)
  assert started == [['timing/a', 'timing/b'], ['timing/c']]
  assert set(json.loads((tmp_path / 'timing.json').read_text())) == set('abc')
  # The others are kept, and are not timed again later.
  estimate.measure({'c': timed['c']}, tmp_path, run_jobs, 2)
  estimate.measure(first, tmp_path, run_jobs, 2)
  assert len(started) == 2
  # Of other flags, or damaged: timed again, as runs that are not there yet.
  timed['b'] = timed['b'].extended('', '--batch_size=5')
  estimate.measure(timed, tmp_path, run_jobs, 2)
  (tmp_path / 'timing.json').write_text('{"a": {')
  estimate.measure(timed, tmp_path, run_jobs, 2)
  (tmp_path / 'timing.json').write_text('{"a": {"round_seconds": 3}}')
  estimate.measure(timed, tmp_path, run_jobs, 2)
  every = ['timing/a', 'timing/b', 'timing/c']
  assert started[2:] == [['timing/b'], every, every]


def test_estimate_counts_what_remains(tmp_path):
  timing = estimate.Timing(10.0, 2.0, 0.5, 5000, 100)
  jobs = [
    RUN,
    RUN._replace(name='begun'),
    RUN._replace(name='finished'),
    RUN.extended('_n16', '--clients_per_round=16', '--total_rounds=5'),
  ]
  (tmp_path / 'begun').mkdir()
  (tmp_path / 'begun' / 'metrics.csv').write_text('round\n' + '0\n' * 51)
  (tmp_path / 'finished').mkdir()
  (tmp_path / 'finished' / 'weights.npz').touch()
  found = estimate.estimate(jobs, timing, 32, tmp_path)
  # A cohort of half the size takes half the time.
  of_runs = [10 + 302 + 15.1, 10 + 200 + 10, 10 + 5 + 0.5]
  assert found.runs == 3
  assert found.rounds == 151 + 100 + 5
  assert found.seconds == pytest.approx(sum(of_runs))
  assert found.longest_seconds == pytest.approx(of_runs[0])
  assert found.num_bytes == 3 * 5000 + 256 * 100


def test_total_is_no_less_than_the_longest_run():
  timings = {'a': estimate.Timing(1, 1, 1, 10**9, 1)}
  estimates = {'a': estimate.Estimate(2, 10, 7200.0, 5400.0, 3e9)}
  assert estimate.total(estimates, timings, 1) == (2.0, 3e9 + 2e9)
  assert estimate.total(estimates, timings, 2) == (1.5, 3e9 + 4e9)
  text = estimate.describe(estimates, timings, 2)
  assert text.splitlines()[1].split() == [
    'a',
    '2',
    '10',
    '1.00',
    '1.00',
    '3.00',
  ]
  assert text.splitlines()[-1] == (
    'About 1.5 hours and 7.00 GB, with 2 runs at the same time.'
  )


def test_full_disk_is_found_before_the_start(tmp_path):
  estimate.check_space(tmp_path, 1000)
  with pytest.raises(job_lib.JobError, match=r'take about 10{9}.00 GB in .*'):
    estimate.check_space(tmp_path, 1e18)
