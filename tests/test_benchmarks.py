"""A test of the benchmark that calls the training loop of the programs.

The others use public functions; their numbers, and this one's, are no matter of
a test.
"""

import re
import subprocess
import sys


def test_memory_measures_a_run():
  result = subprocess.run(
    [sys.executable, '-m', 'benchmarks.memory']
    + ['--rounds=20', '--rounds_per_sample=10'],
    capture_output=True,
    text=True,
    check=True,
  )
  header, *rows, growth = result.stdout.splitlines()
  assert header.split() == ['round', 'program', 'worker', 'MB']
  assert [int(row.split()[0]) for row in rows] == [10, 20]
  for row in rows:
    _, program, worker, total = map(float, row.split())
    assert program > 0 and worker > 0
    assert abs(program + worker - total) <= 1
  assert re.fullmatch(r'growth after round 10: [+-]\d+\.\d%', growth)
