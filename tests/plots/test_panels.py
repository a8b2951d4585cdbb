"""Tests of reading runs, and of the four panels."""

import json

import numpy as np
import pytest
from matplotlib import image

from plots import panels
from plots import runs


def write_run(folder, sampling, num_rounds=9):
  folder.mkdir()
  (folder / 'config.json').write_text(json.dumps({'sampling': sampling}))
  lines = ['round,training_loss,cumulative_uplink_bits,validation_accuracy']
  for r in range(num_rounds):
    accuracy = f'{r / 10}' if r % 2 == 0 else ''
    lines.append(f'{r},{2 - r / 10},{(r + 1) * 10**9},{accuracy}')
  (folder / 'metrics.csv').write_text('\n'.join(lines) + '\n')
  return runs.read_run(folder)


def test_empty_cells_are_nan_and_left_out_of_the_evaluated(tmp_path):
  run = write_run(tmp_path / 'run', 'aocs')
  assert run.config == {'sampling': 'aocs'}
  np.testing.assert_array_equal(
    np.isnan(run.metrics['validation_accuracy']), [0, 1] * 4 + [0]
  )
  rounds, values = run.evaluated('validation_accuracy')
  np.testing.assert_array_equal(rounds, [0, 2, 4, 6, 8])
  np.testing.assert_allclose(values, rounds / 10)


def test_bits_to_accuracy_are_those_of_the_first_evaluation(tmp_path):
  run = write_run(tmp_path / 'run', 'aocs')
  assert runs.bits_to_accuracy(run, 0.35) == 5e9  # After round 4.
  assert runs.bits_to_accuracy(run, 0.4) == 5e9
  assert runs.bits_to_accuracy(run, 0.9) == float('inf')


def test_folder_without_a_run_is_an_error(tmp_path):
  with pytest.raises(FileNotFoundError, match='config.json'):
    runs.read_run(tmp_path)


@pytest.mark.parametrize('ending', ['png', 'pdf'])
def test_panels_are_drawn(tmp_path, ending):
  by_label = {
    label: write_run(tmp_path / label, label)
    for label in ('full', 'uniform', 'ocs', 'aocs')
  }
  path = tmp_path / f'figure.{ending}'
  panels.plot_panels(by_label, path, caption='made-up numbers')
  assert path.stat().st_size > 5000
  if ending == 'png':
    pixels = image.imread(path)
    # Wide, and not all white: every method's colour is on it.
    assert pixels.shape[1] > 3 * pixels.shape[0] * 0.8
    for look in panels._LOOKS.values():
      rgb = [int(look['color'][i : i + 2], 16) / 255 for i in (1, 3, 5)]
      assert np.any(np.all(np.abs(pixels[..., :3] - rgb) < 0.02, axis=-1))
