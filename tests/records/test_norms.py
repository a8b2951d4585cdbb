"""Tests of norms.csv."""

import numpy as np
import pytest

from tff_ocs.records import files
from tff_ocs.records import norms as norms_lib


def test_norms_are_read_bit_for_bit_with_the_largest_first(tmp_path):
  rng = np.random.default_rng(0)
  # More than ten columns, whose names sort as numbers do; and rounds in which
  # fewer clients, or none, were available.
  rounds = [
    rng.lognormal(0, 20, size).astype(np.float32) for size in (12, 3, 0, 12, 14)
  ]
  rounds[0][:2] = [0.0, np.finfo(np.float32).max]
  assert not norms_lib.are_recorded(tmp_path)
  writer = norms_lib.NormsWriter(tmp_path)
  assert norms_lib.are_recorded(tmp_path)
  for round_num, norms in enumerate(rounds):
    writer.write(norms, round_num)
  for norms, read in zip(rounds, norms_lib.read_norms(tmp_path)):
    assert read.dtype == np.float64
    np.testing.assert_array_equal(read, np.sort(norms)[::-1])
  header = (tmp_path / 'norms.csv').read_text().splitlines()[0]
  assert header.split(',') == ['round', *(f'norm_{i:04d}' for i in range(14))]


def test_rounds_after_a_checkpoint_are_replaced(tmp_path):
  writer = norms_lib.NormsWriter(tmp_path)
  for round_num in range(3):
    writer.write(np.float32([1, 2]), round_num)
  again = norms_lib.NormsWriter(tmp_path)
  assert again.num_rounds == 3
  again.write(np.float32([3, 4]), 1)
  read = norms_lib.read_norms(tmp_path)
  np.testing.assert_array_equal(read, [[2, 1], [4, 3]])


@pytest.mark.parametrize(
  'text, reason',
  [
    ('round,norm_0000\n0,-1\n', 'its norms.csv has a norm that is not finite'),
    ('round,norm_0000\n0,inf\n', 'its norms.csv has a norm that is not finite'),
    ('round,norm_0000\n1,1\n', 'its norms.csv has round 1 where round 0'),
    ('round,norm_0000\n0,1,2\n', 'line 2 of its norms.csv has 3 cells'),
    ('', 'its norms.csv is empty'),
  ],
)
def test_other_files_are_refused(tmp_path, text, reason):
  (tmp_path / 'norms.csv').write_text(text)
  with pytest.raises(files.RecordError, match=reason):
    norms_lib.read_norms(tmp_path)
