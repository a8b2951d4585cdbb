"""Tests of what is measured on runs, against numbers computed by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from plots import measures
from tests.plots import made_up
from tff_ocs.records import runs

_NAN = float('nan')


@pytest.fixture
def run_with(tmp_path):
  """A function that writes a run with the given accuracies and reads it."""
  count = iter(range(100))

  def write(accuracy, **settings):
    settings.setdefault('bits', 10 * np.arange(1, len(accuracy) + 1))
    folder = tmp_path / str(next(count))
    made_up.write_run(folder, accuracy=accuracy, **settings)
    return runs.read_run(folder)

  return write


@pytest.mark.parametrize(
  'accuracy, first, lasting',
  [
    ([0.5, 0.9, 0.8, 0.85, 0.95], 1, 3),
    ([0.9, 0.9, 0.9], 0, 0),
    ([0.5, 0.9, 0.84], 1, math.inf),
    ([0.1, 0.2, 0.3], math.inf, math.inf),
    # Only the evaluations are known.
    ([0.9, _NAN, 0.8, _NAN, 0.9], 0, 4),
  ],
)
def test_an_accuracy_is_reached_when_it_lasts(
  run_with, accuracy, first, lasting
):
  run = run_with(accuracy)
  assert runs.round_of_accuracy(run, 0.85) == first
  assert measures.lasting_round(run, 0.85) == lasting
  bits = math.inf if lasting == math.inf else 10 * (lasting + 1)
  assert measures.bits_of_round(run, lasting) == bits


def test_accuracy_within_a_budget_is_that_of_the_last_evaluation(run_with):
  run = run_with([_NAN, 0.5, _NAN, 0.7])
  assert [measures.accuracy_within(run, b) for b in (20, 39, 40)] == [
    0.5,
    0.5,
    0.7,
  ]
  assert math.isnan(measures.accuracy_within(run, 19))


def test_gap_is_the_area_between_the_curves_over_its_length(run_with):
  one = run_with([0.0, 0.4, 0.4])
  other = run_with([0.0, _NAN, 0.2])
  # Differences 0, 0.3, 0.2: (0.15 + 0.25) / 2.
  assert measures.gap(one, other) == pytest.approx(0.2)
  assert measures.gap(other, one) == pytest.approx(-0.2)
  # Up to the last round of the shorter run.
  assert measures.gap(run_with([0.1, 0.3]), one) == pytest.approx(0)
  assert measures.gap(run_with([0.3]), one) == pytest.approx(0.3)
  # From the first round with an evaluation of both: 0.2 and 0.1.
  late = run_with([_NAN, 0.2, 0.3])
  assert measures.gap(one, late) == pytest.approx(0.15)


def test_runs_are_paired_by_seed(tmp_path):
  for sampling, m, seeds in (('full', 32, (0, 1, 2)), ('aocs', 3, (1, 2, 5))):
    for seed in seeds:
      made_up.write_run(tmp_path / f'{sampling}{seed}', sampling, m, seed)
  full, aocs = runs.find_groups(tmp_path)[0]
  pairs = measures.pair(full, aocs)
  assert [
    [(run.settings.sampling, run.settings.seed) for run in of_seed]
    for of_seed in pairs
  ] == [[('full', s), ('aocs', s)] for s in (1, 2)]
  of_others = runs.Group(
    aocs.experiment, aocs.method, aocs.settings, aocs.runs[2:]
  )
  with pytest.raises(runs.RunsError, match='no seed .*full part.* and AOCS'):
    measures.pair(full, of_others)


def test_one_seed_has_no_interval():
  estimate = measures.estimate_mean([0.5])
  assert estimate.value == 0.5 and estimate.seeds == 1
  assert math.isnan(estimate.low) and math.isnan(estimate.high)


def test_interval_of_few_seeds_is_their_range_and_of_many_students():
  assert measures.estimate_mean([1, 2, 6]) == (3, 1, 6, 3)
  assert measures.estimate_mean([2, 2]) == (2, 2, 2, 2)
  values = np.random.default_rng(0).normal(size=40)
  estimate = measures.estimate_mean(values)
  expected = stats.t.interval(
    0.95, len(values) - 1, values.mean(), stats.sem(values)
  )
  assert estimate[1:3] == pytest.approx(expected, abs=0.04)
  # The same numbers give the same interval.
  assert measures.estimate_mean(values) == estimate


def test_interval_has_the_percentiles_of_few_seeds():
  # Resamples of 3 ones in 10 have a mean of 0.7 or more in 1.06 % of all cases.
  # This is more than the tail of Hesterberg's interval, 0.86 %.
  assert measures.estimate_mean([1] * 3 + [0] * 7).high == pytest.approx(0.7)


def test_interval_covers_as_often_as_its_docstring_says():
  # With this seed always the same; the deviation of each share is 0.01.
  rng = np.random.default_rng(1)
  for seeds, share in ((3, 0.75), (5, 0.93)):
    intervals = [
      measures.estimate_mean(rng.normal(size=seeds)) for _ in range(800)
    ]
    covered = np.mean([low <= 0 <= high for _, low, high, _ in intervals])
    assert covered == pytest.approx(share, abs=0.03)


def test_ratio_is_one_of_means_of_paired_seeds():
  estimate = measures.estimate_ratio([10, 30, 50], [1, 3, 5])
  # The pairs agree, however much the seeds differ.
  assert estimate == pytest.approx((10, 10, 10, 3))
  assert measures.estimate_ratio([1, 3], [1, 1])[:3] == (2, 1, 3)
  # Not the mean of the ratios, which is 2.
  assert measures.estimate_ratio([1, 9], [1, 3]).value == 2.5


def test_what_is_never_reached_is_infinite():
  inf = math.inf
  assert measures.estimate_ratio([1, inf], [1, 1])[:3] == (inf, 1, inf)
  assert measures.estimate_ratio([1, 1], [inf, inf])[:3] == (0, 0, 0)
  assert math.isnan(measures.estimate_ratio([1, inf], [1, inf]).value)


def test_rounds_without_a_sender_are_counted(run_with):
  run = run_with([0.1] * 4, participants=[0, 3, 0, 1])
  assert measures.rounds_without_sender(run) == 2
