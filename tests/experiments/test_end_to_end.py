"""Each binary as a user meets it: swept, killed, resumed, tuned and drawn."""

import csv
import os
import pathlib
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tests.experiments import real_runs
from tff_ocs.records import runs

ROOT = pathlib.Path(__file__).parents[2]

# The paper's cohorts, since there are no figures of others.
TINY = (
  '--data_source=synthetic',
  '--total_rounds=4',
  '--rounds_per_eval=2',
  '--rounds_per_checkpoint=1',
)


def run(*arguments):
  """Runs a module as a program; returns its output and its error output."""
  result = subprocess.run(
    [sys.executable, '-m', *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert result.returncode == 0, result.stderr
  assert 'Traceback' not in result.stderr
  return result.stdout, result.stderr


@pytest.mark.parametrize(
  'experiment, method, name, figure, parameters',
  [
    ('femnist_1', 'full', 'full', 3, 1_663_370),
    ('shakespeare_32', 'full', 'full', 6, 833_622),
    ('cifar100', 'aocs', 'aocs_m3', 13, 5_897_508),
  ],
)
def test_experiment_from_sweep_to_figure(
  tmp_path, experiment, method, name, figure, parameters
):
  swept = tmp_path / 'swept'
  sweep = (
    'experiments.sweep',
    f'--experiment={experiment}',
    f'--methods={method}',
    '--repeats=1',
  )
  run(*sweep, f'--output_dir={swept}', '--', *TINY)
  run_name = f'{experiment}_{name}_seed0'
  result = runs.read_run(swept / run_name)
  assert result.config['sampling'] == method
  np.testing.assert_array_equal(result.metrics['round'], range(4))
  assert np.all(np.isfinite(result.metrics['training_loss']))
  with np.load(swept / run_name / 'weights.npz') as weights:
    assert sum(weights[n].size for n in weights) == parameters

  # The same run, by the command that the sweep prints, killed once it has a
  # checkpoint, and left to the sweep.
  killed = tmp_path / 'killed'
  printed, _ = run(*sweep, f'--output_dir={killed}', '--dry_run', '--', *TINY)
  (command,) = map(shlex.split, printed.splitlines())
  folder = killed / run_name
  process = subprocess.Popen(
    command, cwd=ROOT, stderr=subprocess.PIPE, text=True
  )
  real_runs.kill_when(process, lambda: real_runs.saved_checkpoints(folder))
  assert not (folder / 'weights.npz').exists()
  run(*sweep, f'--output_dir={killed}', '--', *TINY)
  assert 'Going on from the checkpoint' in (folder / 'log.txt').read_text()
  assert real_runs.read_results(folder) == real_runs.read_results(
    swept / run_name
  )

  figures = tmp_path / 'figures'
  output, errors = run(
    'plots.figures',
    f'--results_dir={swept}',
    f'--figure={figure}',
    f'--output_dir={figures}',
  )
  assert output.strip() == str(figures / f'figure_{figure}.png')
  assert 'no runs of ' in errors and 'uniform, m=' in errors
  assert (figures / f'figure_{figure}.pdf').read_bytes().startswith(b'%PDF')
  table, _ = run('plots.summary', f'--results_dir={swept}')
  assert table.count('| AOCS, m=3 |' if method == 'aocs' else '| full') == 1


# The search for FEMNIST is in test_tune.py.
@pytest.mark.parametrize(
  'experiment, good', [('shakespeare_32', 0.25), ('cifar100', 3e-4)]
)
def test_step_size_is_found(tmp_path, experiment, good):
  # On either side of it, one too small and one too large to learn.
  grid = [1e-12, good, 1e9]
  run(
    'experiments.tune',
    f'--experiment={experiment}',
    '--methods=full',
    f'--grid={",".join(map(str, grid))}',
    f'--parallel={min(2, len(os.sched_getaffinity(0)))}',
    f'--output_dir={tmp_path}',
    '--',
    *TINY,
  )
  with (tmp_path / 'tuning.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert [float(row['step_size']) for row in rows] == grid
  assert [row['best'] for row in rows] == ['False', 'True', 'False']
  assert (tmp_path / 'tuning.png').exists()
  assert (tmp_path / 'tuning.pdf').exists()
