"""Tests of the differences from AOCS against numbers computed by hand."""

import math

import numpy as np
import pytest

from plots import differences
from tests.plots import made_up
from tff_ocs.records import runs

AOCS = np.array([0.2, 0.5, 0.9, 0.9])
BITS = np.arange(1, 5) * 10**9


def compare(folder, accuracies=(0.85,)):
  groups, _ = runs.find_groups(folder)
  return differences.compare(groups, accuracies)


def write(folder, sampling, seed=0, *, accuracy=AOCS, bits=BITS, **more):
  made_up.write_run(
    folder / str(len(list(folder.iterdir()))),
    sampling,
    seed=seed,
    accuracy=accuracy,
    bits=bits,
    **more,
  )


def test_pairs_of_seeds(tmp_path):
  for seed, offset in enumerate((0.0, 0.02)):
    write(tmp_path, 'aocs', seed, accuracy=AOCS - 0.01 * seed)
    # One round later.
    late = np.array([0.2, 0.2, 0.5, 0.9]) - 0.01 * seed - offset
    write(tmp_path, 'threshold', seed, accuracy=late)
  # Without a partner.
  write(tmp_path, 'threshold', 2, accuracy=AOCS / 2)
  (row,) = compare(tmp_path).to_dict('records')
  assert (row['method'], row['seeds']) == ('one round trip, m=3', 2)
  assert row['final_accuracy_difference'] == pytest.approx(-0.01)
  assert row['final_accuracy_difference_low'] == pytest.approx(-0.02)
  assert row['final_accuracy_difference_high'] == pytest.approx(0, abs=1e-12)
  # The areas between the curves: 0.15 + 0.35 + 0.2, and 3 times 0.02 more.
  assert row['mean_gap_of_curves_high'] == pytest.approx(-0.7 / 3)
  assert row['mean_gap_of_curves_low'] == pytest.approx(-0.76 / 3)
  # Rounds 2 and 3.
  assert row['lasting_bits_to_0.85_of_aocs'] == pytest.approx(4 / 3)
  assert row['lasting_rounds_to_0.85_of_aocs'] == pytest.approx(4 / 3)
  assert row['lasting_expected_participants_to_0.85_of_aocs'] == 1


def test_bits_are_rounds_times_participants(tmp_path):
  write(tmp_path, 'aocs', participants=[3, 3, 3, 9])
  write(tmp_path, 'threshold', participants=[6, 5, 4, 9])
  table = compare(tmp_path)
  (row,) = table.to_dict('records')
  assert row['lasting_rounds_to_0.85_of_aocs'] == 1
  # Of the rounds 0 to 2: 5 of 3.
  assert row['lasting_expected_participants_to_0.85_of_aocs'] == pytest.approx(
    5 / 3
  )
  text = differences.format_tables(table, (0.85,))
  assert '| one round trip, m=3 | 1 × 1.67 |' in text.splitlines()


def test_what_is_never_reached_needs_infinitely_many_bits(tmp_path):
  write(tmp_path, 'aocs')
  write(tmp_path, 'uniform', accuracy=AOCS / 2)
  table = compare(tmp_path, (0.85, 0.95))
  (row,) = table.to_dict('records')
  assert row['lasting_bits_to_0.85_of_aocs'] == math.inf
  assert math.isnan(row['lasting_bits_to_0.95_of_aocs'])
  text = differences.format_tables(table, (0.85, 0.95))
  assert 'lasting 95 %' not in text
  write(tmp_path, 'ocs')
  text = differences.format_tables(compare(tmp_path), (0.85,))
  assert text.splitlines()[2:6] == [
    '| Method | Seeds | Final accuracy [points] | Mean gap of the curves'
    ' [points] | Bits to a lasting 85 % |',
    '| --- | ---: | ---: | ---: | ---: |',
    # The gap is half of AOCS' area: (0.35 + 0.7 + 0.9) / 3 / 2.
    '| uniform, m=3 | 1 | -45.00 | -32.50 | ∞ |',
    '| OCS, m=3 | 1 | +0.00 | +0.00 | 1 |',
  ]
  assert '| uniform, m=3 | ∞ × 1 |' in text.splitlines()


def test_only_runs_that_can_be_compared_are(tmp_path):
  write(tmp_path, 'aocs')
  write(tmp_path, 'full')
  write(tmp_path, 'uniform', m=6)
  write(tmp_path, 'uniform', compression='natural')
  write(tmp_path, 'ocs', seed=1)
  write(tmp_path, 'threshold', batch_size=10)
  assert compare(tmp_path).empty
  assert differences.format_tables(compare(tmp_path), (0.85,)) == ''
  # A variant is compared with the plain AOCS.
  write(tmp_path, 'threshold', cohort_weight='unknown')
  (row,) = compare(tmp_path).to_dict('records')
  assert row['method'] == 'one round trip, m=3, unknown weight'
