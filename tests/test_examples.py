"""Runs the example scripts as a reader would."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def _run(name):
  result = subprocess.run(
    [sys.executable, f'examples/{name}.py'],
    cwd=ROOT,
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert result.returncode == 0, result.stderr
  assert result.stderr == ''
  return result.stdout.splitlines()


def test_fed_prox_with_aocs_under_secure_aggregation():
  first, _, *rounds = _run('fed_prox_secure')
  assert first == 'Every sum of the round is secure.'
  cells = [line.split() for line in rounds]
  assert [int(row[0]) for row in cells] == list(range(8))
  # m = 3 of 16 in each of 8 rounds. More than 60 of the 128 send with a
  # probability below 2e-8 (Bernstein's inequality).
  assert 0 < sum(int(row[1]) for row in cells) <= 60
  assert any(int(row[3]) > 0 for row in cells)  # Updates are clipped,
  assert all(int(row[4]) == 0 for row in cells)  # and no scalars are.
  assert float(cells[-1][-1].rstrip('%')) > 70


def test_aocs_with_compression():
  _, _, *rows = _run('compressed_aocs')
  by_name = {
    row[:20].strip(): [float(cell.rstrip('%')) for cell in row[20:].split()]
    for row in rows
  }
  accuracy, bits = (
    {name: cells[i] for name, cells in by_name.items()} for i in (0, 1)
  )
  assert min(accuracy.values()) > 70
  # The clients' coins have fixed seeds.
  assert bits['AOCS'] < 0.3 * bits['full participation']
  # 4 bits an entry instead of 32, and 32 for each 512 entries.
  assert 0.12 < bits['AOCS and dithering'] / bits['AOCS'] < 0.135


def test_threshold_sampling_in_its_map_reduce_form():
  first, _, *rounds, last = _run('deployable_ocs')
  assert first == 'MapReduceForm, with secure sums: True'
  cells = [line.split() for line in rounds]
  assert [int(row[0]) for row in cells] == [4, 9, 14, 19, 24, 29]
  assert all(row[3:5] == ['0', '0'] for row in cells)  # Nothing is clipped.
  assert float(cells[-1][-1].rstrip('%')) > 85
  # The clients' coins have fixed seeds. With m = 3, the mean over 30 rounds is
  # above 5 with a probability below 1e-8 (Bernstein's inequality), and the mean
  # of the probabilities is within 1 of m.
  assert 1 < float(last.split()[0]) < 5
