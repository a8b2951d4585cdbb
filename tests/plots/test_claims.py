"""Tests of the claims, on made-up runs in which each verdict occurs."""

import csv
import math
import re

import numpy as np
import pandas as pd
import pytest

from plots import claims
from plots import inputs
from plots import measures
from plots import paper_claims
from tests.plots import made_up

HOLDS = paper_claims.HOLDS
IN_PART = paper_claims.IN_PART
FAILS = paper_claims.FAILS
NOT_JUDGED = paper_claims.NOT_JUDGED
SEEDS = (0, 1, 2)
# Curves of ten rounds. GOOD reaches 85 % in round 4.
GOOD = np.array([0.5, 0.6, 0.7, 0.8, 0.86, 0.87, 0.88, 0.89, 0.9, 0.9])
BAD = GOOD - 0.1


def of_set(number):
  return {**made_up.FEMNIST, 'unbalanced_set': str(number)}


@pytest.fixture
def write(tmp_path):
  """A function that writes the runs of a method, and returns the folder."""

  def write_runs(
    sampling, m, curves, *, of=made_up.FEMNIST, bits=None, seeds=SEEDS, **more
  ):
    """Writes a run for each seed; `curves` is one for all, or one a seed."""
    curves = np.broadcast_to(curves, (len(seeds), np.shape(curves)[-1]))
    bits = np.arange(1, 11) * 10**8 if bits is None else bits
    all_bits = np.broadcast_to(bits, curves.shape)
    for seed, curve, of_seed in zip(seeds, curves, all_bits):
      folder = tmp_path / str(len(list(tmp_path.iterdir())))
      made_up.write_run(
        folder, sampling, m, seed, of=of, accuracy=curve, bits=of_seed, **more
      )
    return tmp_path

  return write_runs


def judge(folder, **options):
  groups = inputs.find_groups(str(folder), None)
  tuned = claims.read_tuning(folder, None)
  evidence = paper_claims.Evidence(groups, tuned)
  judged = paper_claims.judge(evidence, **options)
  return {claim.number: claim for claim in judged}


def checks_of(folder, number, part):
  """The checks of a claim whose quantity has a word in it."""
  return [c for c in judge(folder)[number].checks if part in c.quantity]


# Claim 1: bits to 85 %.

# By round; 85 % is reached after 16 * 5 = 80, or 2^6.3, times 10^8 bits.
FEW = np.arange(1, 11) * 16 * 10**8
EIGHT_TIMES = np.array([63, 126, 252, 500, 640, 800, 900, 1000, 1100, 1200])
EIGHT_TIMES = EIGHT_TIMES * 10**8
# 80 to 90 % within 64 * 10^8 bits, which is round 3.
EARLY = np.array([0.1, 0.4, 0.7, 0.84, *GOOD[4:]])
LATE = np.array([0.1, 0.3, 0.5, 0.7, *GOOD[4:]])


def write_claim_1(write, *, bits_of_full=EIGHT_TIMES, uniform=LATE, **more):
  write('aocs', 3, EARLY, bits=FEW, **more)
  write('full', 32, LATE, bits=bits_of_full, **more)
  return write('uniform', 3, uniform, bits=EIGHT_TIMES, **more)


def test_eight_times_the_bits_hold(write):
  claim = judge(write_claim_1(write))[1]
  assert claim.verdict == HOLDS
  full, uniform, *accuracies, of_full = claim.checks
  assert full.estimate == (8, 8, 8, 3) and uniform.estimate == full.estimate
  assert of_full.estimate == (64, 64, 64, 3) and of_full.by_first_hit == 64
  values = [check.estimate.value for check in accuracies]
  assert values == pytest.approx([0.84, 0.1, 0.1])


@pytest.mark.parametrize(
  'factor, verdict',
  [
    (0.5, FAILS),
    # 8 x 0.7 = 5.6 is less than 2^2.5, and 8 x 0.71 is more.
    (0.7, FAILS),
    (0.71, HOLDS),
    ([0.5, 1, 1], IN_PART),
    (2, HOLDS),
  ],
)
def test_other_ratios_are_judged_by_their_interval(write, factor, verdict):
  bits = np.outer(np.broadcast_to(factor, 3), EIGHT_TIMES)
  folder = write_claim_1(write, bits_of_full=bits)
  assert checks_of(folder, 1, 'full / AOCS')[0].verdict == verdict


@pytest.mark.parametrize(
  'factors, where', [([0.5, 1, 1], 'within'), ([0.5, 0.5, 1], 'outside')]
)
def test_number_in_part_is_within_or_outside(write, factors, where):
  folder = write_claim_1(write, bits_of_full=np.outer(factors, EIGHT_TIMES))
  (check,) = checks_of(folder, 1, 'full / AOCS')
  text = claims.format_markdown([judge(folder)[1]])
  assert f'holds in part (the number is {where}) |' in text
  assert check.is_within == (where == 'within')


# A round that is within 2^6 x 10^8 bits has the accuracy, and the next has not.
@pytest.mark.parametrize(
  'of_aocs, of_uniform, verdicts',
  [
    (0.81, 0.39, [HOLDS, HOLDS]),
    (0.79, 0.41, [FAILS, FAILS]),
  ],
)
def test_accuracies_with_few_bits_have_limits(
  write, of_aocs, of_uniform, verdicts
):
  few = np.array([10, 20, 30, *range(100, 800, 100)]) * 10**8
  # The last accuracy counts for AOCS, and the highest for the others.
  write('aocs', 3, [0.9, 0.9, of_aocs, *GOOD[3:]], bits=few)
  folder = write('uniform', 3, [0.1, of_uniform, 0.2, *GOOD[3:]], bits=few)
  of = {check.quantity: check for check in judge(folder)[1].checks}
  assert [
    of['accuracy at 2^6 × 10^8 bits, AOCS, m=3'].verdict,
    of['highest accuracy up to 2^6 × 10^8 bits, uniform, m=3'].verdict,
  ] == verdicts


@pytest.mark.parametrize('factor, verdict', [(0.57, HOLDS), (0.56, FAILS)])
def test_bits_of_full_participation_are_judged(write, factor, verdict):
  # 2^8.5 × 10^8 are 0.566 of its 640 × 10^8 bits.
  folder = write_claim_1(write, bits_of_full=factor * EIGHT_TIMES)
  (check,) = checks_of(folder, 1, '85%, full participation')
  assert check.verdict == verdict
  assert check.estimate.value == pytest.approx(64 * factor)
  assert f'| {64 * factor:.1f} [' in claims.format_markdown([judge(folder)[1]])


def test_late_dips_are_noted(write):
  dip = [*GOOD[:8], 0.84, 0.9]
  below = [*GOOD[:9], 0.84]
  folder = write_claim_1(write, uniform=[LATE, dip, below])
  (check,) = checks_of(folder, 1, 'uniform / AOCS')
  assert check.note == (
    'uniform, m=3 from rounds 4, 9 of 10 on; uniform, m=3 never with 1 of 3'
    ' seeds'
  )
  assert checks_of(folder, 1, 'full / AOCS')[0].note == ''
  text = claims.format_markdown([*judge(folder).values()])
  assert f'first hit 8 ({check.note}) | 3 |' in text
  about = 'Where a method is named in parentheses'
  assert about in text
  assert about not in claims.format_markdown([judge(folder)[2]])


def test_uniform_that_never_stays_needs_more(write):
  down = [*LATE[:-1], 0.84]
  folder = write_claim_1(write, uniform=[LATE, LATE, down])
  (check,) = checks_of(folder, 1, 'uniform / AOCS')
  assert check.estimate == (math.inf, 8, math.inf, 3)
  assert check.verdict == HOLDS
  # It hits 85 % as soon as the others.
  assert check.by_first_hit == 8
  text = claims.format_markdown([*judge(folder).values()])
  note = 'uniform, m=3 from rounds 4 of 10 on; uniform, m=3 never with 1 of 3'
  note += ' seeds'
  assert f'| ∞ [8, ∞], first hit 8 ({note}) | 3 |' in text


def test_runs_that_end_too_early_prove_little(write):
  # All end with less than 2^6 x 10^8 bits, the two others below 85 %.
  write('aocs', 3, GOOD, bits=np.arange(1, 11) * 10**8)
  write('full', 32, BAD, bits=np.arange(1, 11) * 5 * 10**8)
  folder = write('uniform', 3, BAD, bits=np.arange(1, 11) * 10**8)
  of = {check.quantity: check for check in judge(folder)[1].checks}
  for quantity, why in (
    (
      'bits to a lasting 85%, uniform / AOCS, m=3',
      'uniform, m=3 gets there wi',
    ),
    ('accuracy at 2^6 × 10^8 bits, AOCS, m=3', 'a run ends after 1 of 6.4 Gb'),
    ('bits to a lasting 85%, full participation', 'full participation gets th'),
  ):
    assert of[quantity].verdict == NOT_JUDGED
    assert of[quantity].why.startswith(why)
  # Its 50 x 10^8 bits are more than 5.7 times the 5 x 10^8 of AOCS.
  assert of['bits to a lasting 85%, full / AOCS, m=3'].verdict == HOLDS
  # The highest accuracy is above 40 % already.
  assert of['highest accuracy up to 2^6 × 10^8 bits, uniform, m=3'].verdict == (
    FAILS
  )


def test_low_accuracies_of_runs_that_end_too_early_are_not_judged(write):
  low = np.linspace(0.1, 0.3, 10)
  folder = write('uniform', 3, low, bits=np.arange(1, 11) * 10**8)
  (check,) = checks_of(folder, 1, 'bits, uniform')
  assert check.verdict == NOT_JUDGED
  assert check.why == 'a run ends after 1 of 6.4 Gbit'
  assert check.estimate.value == pytest.approx(0.3)


# AOCS sends 160 x 10^8 bits without getting there.
@pytest.mark.parametrize('factor, verdict', [(2.2, HOLDS), (2.4, NOT_JUDGED)])
def test_aocs_that_never_gets_there_may_need_little_more(
  write, factor, verdict
):
  write('aocs', 3, BAD, bits=FEW)
  # One round trip is there after 80 x 10^8 bits, times the factor.
  folder = write('threshold', 3, GOOD, bits=factor * FEW)
  check = judge(folder)[7].checks[0]
  assert check.estimate.value == 0
  assert check.verdict == verdict
  if verdict == NOT_JUDGED:
    assert check.why.endswith('AOCS, m=3 gets there with 0 of 3 seeds')


def test_nobody_who_gets_there_is_not_judged(write):
  folder = write_claim_1(write, uniform=BAD)
  write('aocs', 3, BAD, bits=FEW, of=of_set(2))
  curves = [GOOD, BAD, GOOD]
  write('threshold', 3, curves, bits=FEW, of=of_set(2))
  check = checks_of(folder, 7, 'm=3')[1]
  assert check.verdict == NOT_JUDGED
  assert check.why == (
    'one round trip, m=3 gets there with 2 of 3 seeds, AOCS, m=3 gets there'
    ' with 0 of 3 seeds'
  )


def test_rounds_that_are_not_validated_are_not_judged(write):
  sparse = np.where(np.arange(10) % 2, np.nan, LATE)
  folder = write_claim_1(write, uniform=sparse)
  (check,) = checks_of(folder, 1, 'uniform / AOCS')
  assert check.verdict == NOT_JUDGED
  assert check.why == (
    'validated after 5 of 10 rounds; needs --rounds_per_eval=1'
  )
  # The number is there all the same.
  assert check.estimate.value == 8
  assert judge(folder)[1].verdict == IN_PART


@pytest.mark.parametrize(
  'seeds, number, why',
  [
    ([0], '8, first hit 8 | 1', '1 seed of at least 3'),
    ([0, 1], '8 [8, 8], first hit 8 | 2', '2 seeds of at least 3'),
  ],
)
def test_few_seeds_are_shown_but_not_judged(write, seeds, number, why):
  folder = write_claim_1(write, seeds=seeds)
  claim = judge(folder)[1]
  assert claim.verdict == NOT_JUDGED
  assert {check.why for check in claim.checks} == {why}
  assert claim.checks[0].estimate.value == 8
  text = claims.format_markdown([claim])
  assert f'| {number} |' in text
  assert f'| not judged ({why}) |' in text
  for min_seeds in (2, 3, 4):
    assert (judge(folder, min_seeds=min_seeds)[1].verdict == NOT_JUDGED) == (
      len(seeds) < min_seeds
    )


# Claims 2 and 4: the same results.

SAME = {2: (('aocs', 6), ('full', 32)), 4: (('ocs', 3), ('aocs', 3))}


@pytest.mark.parametrize('number', SAME)
@pytest.mark.parametrize(
  'shifts, verdict',
  [
    ((0.0, 0.001, -0.001), HOLDS),
    ((-0.0049, 0.0049, 0.0049), HOLDS),
    ((-0.1, -0.1, -0.11), FAILS),
    ((0.0, 0.0, 0.05), IN_PART),
  ],
)
def test_same_results_are_those_within_the_tolerance(
  write, number, shifts, verdict
):
  one, other = SAME[number]
  # The seeds differ more than the methods do.
  others = GOOD + np.array([[0.0], [-0.05], [0.05]])
  write(*other, others)
  folder = write(*one, others + np.array(shifts)[:, np.newaxis])
  claim = judge(folder)[number]
  final, gap = claim.checks[:2]
  for check in (final, gap):
    assert check.verdict == verdict
    assert check.estimate.value == pytest.approx(np.mean(shifts))
    assert check.estimate.low == pytest.approx(min(shifts))
  # The other sets and tasks have no runs.
  assert {check.verdict for check in claim.checks[2:]} == {NOT_JUDGED}
  assert claim.verdict == (FAILS if verdict == FAILS else IN_PART)


@pytest.mark.parametrize(
  'shift, verdicts',
  [
    (0.0051, [FAILS, HOLDS]),
    (-0.0099, [FAILS, HOLDS]),
    (0.0101, [FAILS, FAILS]),
  ],
)
def test_tolerances_are_half_a_point_and_one_point(write, shift, verdicts):
  write('full', 32, GOOD)
  folder = write('aocs', 6, GOOD + shift)
  assert [c.verdict for c in judge(folder)[2].checks[:2]] == verdicts


def test_a_lag_is_seen_in_the_gap_alone(write):
  write('full', 32, GOOD)
  folder = write('aocs', 6, np.array([0.1, *GOOD[:-1]]))
  final, gap = judge(folder)[2].checks[:2]
  assert final.verdict == HOLDS and gap.verdict == FAILS


def test_all_experiments_make_a_claim_hold(write):
  for of in map(of_set, (1, 2, 3)):
    write('full', 32, GOOD, of=of)
    write('aocs', 6, GOOD, of=of)
  write('full', 32, GOOD, of=made_up.SHAKESPEARE)
  folder = write('aocs', 6, GOOD, of=made_up.SHAKESPEARE)
  assert judge(folder)[2].verdict == IN_PART
  of_128 = {'of': made_up.SHAKESPEARE, 'clients_per_round': 128}
  write('full', 128, GOOD, **of_128)
  write('aocs', 12, GOOD, **of_128)
  claim = judge(folder)[2]
  assert claim.verdict == HOLDS
  assert [check.data for check in claim.checks[-2:]] == [
    'made-up numbers, n=128'
  ] * 2


# Claim 3: uniform sampling is worse.


def write_gaps(write, gaps):
  """AOCS and uniform sampling on sets 1, 2 and 3, with a gap a seed."""
  for number, of_set_gaps in enumerate(gaps, start=1):
    write('aocs', 3, GOOD, of=of_set(number))
    curves = GOOD - np.reshape(of_set_gaps, (-1, 1))
    folder = write('uniform', 3, curves, of=of_set(number))
  return folder


@pytest.mark.parametrize(
  'gaps, verdicts',
  [
    ([[0.3] * 3, [0.2] * 3, [0.1] * 3], [HOLDS] * 5),
    ([[-0.1] * 3, [0.2] * 3, [0.1] * 3], [FAILS, HOLDS, HOLDS, FAILS, HOLDS]),
    # Paired by seed, set 2 is between the others though the seeds differ.
    ([[0.2, 0.3, 0.4], [0.1, 0.2, 0.3], [0.05, 0.1, 0.2]], [HOLDS] * 5),
    (
      [[0.2] * 3, [0.1, 0.2, 0.3], [-0.1, 0.1, 0.1]],
      [HOLDS, HOLDS, IN_PART, IN_PART, HOLDS],
    ),
    # A tie is not above 0.
    ([[0.2] * 3, [0.2] * 3, [0] * 3], [HOLDS, HOLDS, FAILS, FAILS, HOLDS]),
  ],
)
def test_gaps_are_ordered_by_imbalance(write, gaps, verdicts):
  checks = judge(write_gaps(write, gaps))[3].checks
  # Between them is Shakespeare, which has no runs.
  assert [checks[i].verdict for i in (0, 1, 2, 5, 6)] == verdicts
  assert checks[3].verdict == checks[4].verdict == NOT_JUDGED


def test_gaps_on_shakespeare_have_the_papers_m(write):
  for n, m, other in ((32, 2, 6), (128, 4, 12)):
    of = {'of': made_up.SHAKESPEARE, 'clients_per_round': n}
    write('aocs', m, GOOD, **of)
    write('aocs', other, GOOD - 0.5, **of)
    folder = write('uniform', m, GOOD - 0.1, **of)
    write('uniform', other, GOOD, **of)
  checks = judge(folder)[3].checks
  assert [checks[i].verdict for i in (3, 4)] == [HOLDS, HOLDS]
  assert [checks[i].estimate.value for i in (3, 4)] == pytest.approx([0.1] * 2)


# Claim 5: step sizes.


def write_tuning(folder, aocs, uniform, *, seeds=1, **columns):
  """Writes the table of a search, whose best step sizes are given."""
  rows = [
    {
      'experiment': 'FEMNIST set 1',
      'clients_per_round': 32,
      'data': 'made-up numbers',
      'data_source': 'synthetic',
      'title': 'made-up numbers, set 1',
      'sampling': sampling,
      'expected_clients': m,
      'step_size': step_size,
      'seeds': seeds,
      'best': step_size == best,
      **columns,
    }
    for sampling, m, best in (('aocs', 3, aocs), ('uniform', 3, uniform))
    for step_size in (0.03125, 0.125, 0.5, 2)
  ]
  folder.mkdir(parents=True)
  pd.DataFrame(rows).to_csv(folder / 'tuning.csv', index=False)


@pytest.mark.parametrize(
  'aocs, uniform, verdict',
  [(0.5, 0.125, HOLDS), (0.125, 0.125, FAILS), (0.125, 0.5, FAILS)],
)
def test_step_sizes_are_those_of_the_searches(tmp_path, aocs, uniform, verdict):
  write_tuning(tmp_path / 'a', aocs, uniform)
  set_1, shakespeare = judge(tmp_path)[5].checks
  assert set_1.verdict == verdict
  assert set_1.estimate.value == aocs / uniform
  assert set_1.data == 'made-up numbers, set 1, n=32'
  assert shakespeare.why == 'no table of experiments.tune'
  assert judge(tmp_path)[5].verdict == (IN_PART if verdict == HOLDS else FAILS)


@pytest.mark.parametrize(
  'aocs, uniform, methods',
  [
    (2, 0.125, 'AOCS, m=3'),
    (0.5, 0.03125, 'uniform, m=3'),
    (2, 0.03125, 'AOCS, m=3 and uniform, m=3'),
  ],
)
def test_searches_without_an_end_are_not_judged(
  tmp_path, aocs, uniform, methods
):
  write_tuning(tmp_path / 'a', aocs, uniform)
  check = judge(tmp_path)[5].checks[0]
  assert check.verdict == NOT_JUDGED
  assert check.estimate.value == aocs / uniform
  assert check.why == (
    f'the best step size of {methods} is the last one that was tried'
  )


def test_searches_that_do_not_say_what_they_are_of_are_named(tmp_path, capsys):
  write_tuning(tmp_path / 'a', 0.5, 0.125)
  write_tuning(tmp_path / 'b', 0.5, 0.125)
  assert (
    judge(tmp_path)[5].checks[0].why == 'several tables of experiments.tune'
  )
  former = pd.read_csv(tmp_path / 'b' / 'tuning.csv').drop(columns='experiment')
  former.to_csv(tmp_path / 'b' / 'tuning.csv', index=False)
  assert judge(tmp_path)[5].checks[0].verdict == HOLDS
  assert 'no column experiment' in capsys.readouterr().err
  (tmp_path / 'b' / 'tuning.csv').write_text('')
  assert judge(tmp_path)[5].checks[0].verdict == HOLDS
  assert 'tuning.csv is left out: No columns' in capsys.readouterr().err
  assert claims.read_tuning(tmp_path, 'other data') == {}
  assert len(claims.read_tuning(tmp_path, 'synthetic')) == 1


def test_searches_are_found_through_links_and_once(tmp_path):
  write_tuning(tmp_path / 'there' / 'a', 0.5, 0.125)
  (tmp_path / 'here').mkdir()
  for name in ('one', 'other'):
    (tmp_path / 'here' / name).symlink_to(tmp_path / 'there')
    # And back, in circles.
    (tmp_path / 'there' / name).symlink_to(tmp_path / 'here')
  assert judge(tmp_path / 'here')[5].checks[0].verdict == HOLDS


# Claim 6: balanced data.


@pytest.mark.parametrize(
  'own, same, verdicts',
  [
    (BAD, BAD, [HOLDS, HOLDS]),
    # By the step size alone.
    (BAD, GOOD, [HOLDS, FAILS]),
    (GOOD, GOOD, [FAILS, FAILS]),
    (None, BAD, [NOT_JUDGED, HOLDS]),
    (BAD, None, [HOLDS, NOT_JUDGED]),
    (None, None, [NOT_JUDGED, NOT_JUDGED]),
  ],
)
def test_gain_on_balanced_data_is_by_sampling_or_by_step_size(
  write, own, same, verdicts
):
  of = {'of': made_up.CIFAR100}
  folder = write('aocs', 3, GOOD, client_learning_rate=1e-3, **of)
  for curve, step_size in ((own, 3e-4), (same, 1e-3)):
    if curve is not None:
      write('uniform', 3, curve, client_learning_rate=step_size, **of)
  judged = judge(folder)
  assert [judged[6].verdict, judged[8].verdict] == verdicts
  if own is None:
    assert judged[6].checks[0].why == (
      'no runs of uniform, m=3 with step size of its own'
    )
  if same is None:
    assert judged[8].checks[0].why == (
      'no runs of uniform, m=3 with step size 0.001'
    )


def test_several_step_sizes_of_uniform_sampling_are_not_judged(write):
  of = {'of': made_up.CIFAR100}
  write('aocs', 3, GOOD, client_learning_rate=1e-3, **of)
  write('uniform', 3, BAD, client_learning_rate=1e-4, **of)
  folder = write('uniform', 3, GOOD, client_learning_rate=3e-4, **of)
  for check in judge(folder)[6].checks:
    assert check.verdict == NOT_JUDGED
    assert check.why == (
      'runs of uniform with several step sizes: 0.0001, 0.0003'
    )


# Claim 7: one round trip.


@pytest.mark.parametrize(
  'factors, verdict',
  [
    ((1.1, 1.0, 1.14), HOLDS),
    ((1.2, 1.2, 1.3), FAILS),
    ((1.0, 1.1, 1.3), IN_PART),
  ],
)
def test_one_round_trip_may_cost_a_little(write, factors, verdict):
  write('aocs', 3, GOOD, bits=FEW)
  folder = write('threshold', 3, GOOD, bits=np.outer(factors, FEW))
  check = judge(folder)[7].checks[0]
  assert check.verdict == verdict
  assert check.estimate.value == pytest.approx(np.mean(factors))
  # Variants are not judged.
  write('threshold', 3, BAD, cohort_weight='unknown')
  assert judge(folder)[7].checks[0] == check


# All claims.


def test_runs_that_cannot_be_compared_are_not_judged(write):
  write('full', 32, GOOD)
  folder = write('aocs', 6, GOOD, batch_size=10)
  check = judge(folder)[2].checks[0]
  assert check.why == 'AOCS, m=6 and full participation differ in batch_size'
  write('aocs', 6, GOOD, batch_size=20)
  check = judge(folder)[2].checks[0]
  assert check.why == 'runs of AOCS, m=6 that differ in batch_size'
  write('aocs', 6, GOOD, data='other numbers')
  check = judge(folder)[2].checks[0]
  assert check.why == 'runs on several kinds of data; choose by --data'


def test_runs_of_different_lengths_are_not_compared(write):
  write('aocs', 3, GOOD[:5], bits=FEW[:5])
  folder = write('uniform', 3, GOOD)
  assert checks_of(folder, 3, 'm=3')[0].why == (
    'AOCS, m=3 has 5 and uniform, m=3 has 10 rounds'
  )
  # Nor are those of two sets.
  for number, curve in ((2, GOOD), (3, GOOD[:5])):
    for sampling in ('aocs', 'uniform'):
      bits = FEW[: len(curve)]
      write(sampling, 3, curve, bits=bits, of=of_set(number))
  assert 'has 5 rounds' in checks_of(folder, 3, 'on set 3')[0].why


@pytest.mark.parametrize(
  'setting, value',
  [
    ('algorithm', 'dsgd'),
    ('availability', 0.5),
    ('client_epochs', 5),
    ('client_weighting', 'uniform'),
    ('compression', 'natural'),
    ('holdout_fraction', 0.1),
    ('max_iterations', 1),
    ('server_learning_rate', 0.5),
    ('validation_subset', 100),
  ],
)
def test_runs_unlike_the_papers_are_left_aside(write, setting, value):
  folder = write('full', 32, GOOD)
  assert judge(folder)[2].checks[0].why == 'no runs of AOCS, m=6'
  write('aocs', 6, GOOD, **{setting: value})
  (why,) = {check.why for check in judge(folder)[2].checks[:2]}
  assert re.fullmatch(
    f'the runs of AOCS, m=6.* differ from the paper in {setting}', why
  )
  write('aocs', 6, GOOD)
  assert judge(folder)[2].checks[0].verdict == HOLDS


@pytest.mark.parametrize(
  'other, why',
  [
    ({'client_learning_rate': 0.5}, ''),
    ({'optimizer': 'b'}, 'the runs of the sets differ in optimizer'),
    ({'data_name': 'b'}, 'the runs of the sets differ in data_name'),
    ({'data_source': 'b'}, 'the runs of the sets differ in data_source'),
  ],
)
def test_sets_are_compared_on_the_same_data_with_the_same_settings(
  write, other, why
):
  for number, more in ((1, {}), (2, {'pool_examples': 5, **other})):
    of = {**of_set(number), 'data': f'set {number}', **more}
    for sampling, gap in (('aocs', 0), ('uniform', 0.2 / number)):
      folder = write(sampling, 3, GOOD - gap, of=of)
  (check,) = checks_of(folder, 3, 'set 1 −')
  assert check.why == why
  assert check.verdict == (NOT_JUDGED if why else HOLDS)


def test_verdict_of_a_claim_is_that_of_its_checks():
  def claim(*verdicts):
    tolerance = paper_claims.Tolerance('1 to 3', 1, 3)
    ends = {HOLDS: (1, 3), IN_PART: (2, 4), FAILS: (4, 5)}
    checks = [
      paper_claims.Check('', '', 'ratio', '', tolerance)
      if verdict == NOT_JUDGED
      else paper_claims.Check(
        '',
        '',
        'ratio',
        '',
        tolerance,
        measures.Estimate(2, *ends[verdict], 5),
      )
      for verdict in verdicts
    ]
    assert [check.verdict for check in checks] == [*verdicts]
    return paper_claims.Judged(1, '', '', checks).verdict

  for verdict in (HOLDS, IN_PART, FAILS, NOT_JUDGED):
    assert claim(verdict) == claim(verdict, verdict) == verdict
  assert claim(FAILS, NOT_JUDGED) == FAILS
  for verdicts in (
    (HOLDS, NOT_JUDGED),
    (HOLDS, FAILS),
    (HOLDS, IN_PART),
    (IN_PART, FAILS),
    (IN_PART, NOT_JUDGED),
    (HOLDS, FAILS, NOT_JUDGED),
  ):
    assert claim(*verdicts) == IN_PART


def test_command_prints_and_writes_the_table(write, tmp_path, capsys):
  folder = write_gaps(write, [[0.3] * 3, [0.2] * 3, [0.1] * 3])
  judged = claims.write_claims(results_dir=str(folder))
  printed = capsys.readouterr().out
  assert printed.count('\n| ') > 30
  assert (
    '| 3. Uniform sampling is worse round by round, the more so the more'
    ' unbalanced the data is. (Section 5.4 and a footnote to 5.2) |'
    ' holds in part | 5 as claimed, 2 not judged |'
  ) in printed.splitlines()
  assert '| made-up numbers, set 2, n=32 | 6 | 10 | ' in printed
  assert (
    '| made-up numbers, set 1, n=32 | mean gap of the curves, AOCS − uniform,'
    ' m=3 | much above 0 | +30.00 [+30.00, +30.00] | 3 | above 0 | holds |'
  ) in printed.splitlines()
  output_dir = tmp_path / 'new' / 'folder'
  again = claims.write_claims(
    results_dir=str(folder), output_dir=str(output_dir)
  )
  assert [claim.verdict for claim in again] == [c.verdict for c in judged]
  assert (output_dir / 'claims.md').read_text() == printed
  with (output_dir / 'claims.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == sum(len(claim.checks) for claim in judged)
  (row,) = [
    row
    for row in rows
    if row['claim'] == '3' and row['data'].startswith('made-up numbers, set 2,')
    if row['quantity'].startswith('mean gap')
  ]
  assert float(row['value']) == pytest.approx(0.2)
  assert (row['seeds'], row['verdict']) == ('3', HOLDS)


def test_folder_of_searches_must_exist(tmp_path):
  with pytest.raises(SystemExit, match='--tuning_dir=typo is not a folder'):
    claims.write_claims(results_dir=str(tmp_path), tuning_dir='typo')


def test_no_runs_are_an_error(tmp_path):
  with pytest.raises(SystemExit, match='no finished run below --results_dir='):
    claims.write_claims(results_dir=str(tmp_path))
  with pytest.raises(SystemExit, match='is not a folder'):
    claims.write_claims(results_dir=str(tmp_path / 'nowhere'))
