"""Tests of plots.clients on made-up records of clients."""

import numpy as np
import pandas as pd
import pytest

from plots import client_panels
from plots import clients as program
from tests.plots import made_up
from tff_ocs.records import clients
from tff_ocs.records import metrics

SIZES = np.array([3, 3, 3, 3, 10, 100, 100, 200])
ACCURACIES = np.array([0.1, 0.5, 0.9, 0.7, 0.8, 1.0, 0.6, 0.4])
# (mean, worst 10 %) after rounds 0, 4 and 8.
BY_ROUNDS = ((0.2, 0.0), (0.5, 0.05), (0.625, 0.1))


def write(
  folder,
  sampling='aocs',
  seed=0,
  *,
  offset=0.0,
  draws=5,
  by_rounds=True,
  **more,
):
  """A run of 8 clients of the pool, and one that is not in it."""
  made_up.write_run(folder, sampling, seed=seed, evaluate_clients=True, **more)
  in_pool = np.arange(9) < 8
  table = pd.DataFrame(
    {
      'client_id': [f'c{k}' for k in range(9)],
      'in_pool': in_pool,
      'training_examples': [*SIZES, 0],
      'validation_examples': [2] * 8 + [0],
      'accuracy': [*(ACCURACIES - offset), np.nan],
      'loss': 1.0,
      'simulated_draws': draws * in_pool,
      # Large clients send always.
      'simulated_sends': np.where([*SIZES, 0] >= np.int64(100), draws, 1)
      * in_pool,
    }
  )
  clients.write_clients(folder, table)
  if by_rounds:
    rows = [
      {
        'round': 4 * k,
        'mean': mean - offset,
        'num_clients': 8,
        'std': 0.3,
        'worst_10_percent': worst,
      }
      for k, (mean, worst) in enumerate(BY_ROUNDS)
    ]
    pd.DataFrame(rows).to_csv(folder / metrics.CLIENT_ACCURACIES, index=False)
  return folder


def draw(tmp_path):
  program.draw_clients(
    results_dir=str(tmp_path / 'runs'), output_dir=str(tmp_path / 'out')
  )


def test_panels_show_the_means_over_seeds(drawn, tmp_path):
  for seed in (0, 1):
    write(tmp_path / 'runs' / f'a{seed}', seed=seed, offset=0.1 * seed)
  write(tmp_path / 'runs' / 'full', 'full')
  draw(tmp_path)
  fig = drawn[0]
  distribution, by_rounds, participations = fig.axes
  full, aocs = distribution.get_lines()
  assert aocs.get_label() == 'AOCS, m=3 (2 seeds)'
  np.testing.assert_allclose(aocs.get_xdata(), 100 * (np.arange(8) + 0.5) / 8)
  ascending = 100 * np.sort(ACCURACIES)
  np.testing.assert_allclose(full.get_ydata(), ascending)
  np.testing.assert_allclose(aocs.get_ydata(), ascending - 5)
  # The worst 10 % are shaded.
  shaded = distribution.patches[0].get_extents()
  left_right = distribution.transData.inverted().transform(shaded)[:, 0]
  np.testing.assert_allclose(left_right, [0, 10], atol=1e-6)
  # Of each method the mean and the worst 10 %.
  _, _, mean, worst = by_rounds.get_lines()
  assert mean.get_color() == worst.get_color() == aocs.get_color()
  np.testing.assert_array_equal(mean.get_xdata(), [0, 4, 8])
  np.testing.assert_allclose(mean.get_ydata(), [15, 45, 57.5])
  np.testing.assert_allclose(worst.get_ydata(), [0, 5, 10])
  # The cohorts, which the methods share, and the updates of each of them.
  draws, _, sends = participations.get_lines()
  np.testing.assert_array_equal(draws.get_xdata(), [3, 10, 100, 200])
  np.testing.assert_array_equal(draws.get_ydata(), [5, 5, 5, 5])
  np.testing.assert_array_equal(sends.get_ydata(), [1, 1, 5, 5])
  assert participations.get_xscale() == 'log'
  assert 'a real server does not see' in fig.get_supxlabel().replace('\n', ' ')
  assert len(fig.legends) == 1


def test_cohorts_that_differ_have_a_line_each(drawn, tmp_path):
  write(tmp_path / 'runs' / 'aocs', draws=5)
  write(tmp_path / 'runs' / 'full', 'full', draws=7)
  draw(tmp_path)
  lines = drawn[0].axes[2].get_lines()
  assert [line.get_ydata()[0] for line in lines] == [7, 5, 1, 1]
  assert lines[0].get_color() == lines[2].get_color()


def test_panels_without_a_record_are_left_out(drawn, tmp_path):
  folder = write(tmp_path / 'runs' / 'run', by_rounds=False)
  table = clients.read_clients(folder)
  table.drop(columns='training_examples').to_csv(
    folder / clients.CLIENTS, index=False
  )
  draw(tmp_path)
  (axis,) = drawn[0].axes
  assert 'worst first' in axis.get_xlabel()
  caption = drawn[0].get_supxlabel()
  assert 'by rounds' not in caption and 'drawn' not in caption


def test_pool_of_equal_clients_is_one_point(drawn, tmp_path):
  folder = write(tmp_path / 'runs' / 'run')
  table = clients.read_clients(folder)
  table.loc[table['in_pool'], 'training_examples'] = 40
  clients.write_clients(folder, table)
  draw(tmp_path)
  draws, sends = drawn[0].axes[2].get_lines()
  np.testing.assert_array_equal(draws.get_xdata(), [40])
  np.testing.assert_array_equal(sends.get_ydata(), [(5 * 1 + 3 * 5) / 8])


def test_table_has_means_over_seeds(drawn, tmp_path, capsys):
  for seed in (0, 1):
    write(tmp_path / 'runs' / f'a{seed}', seed=seed, offset=0.1 * seed)
  write(tmp_path / 'runs' / 'full', 'full')
  draw(tmp_path)
  table = pd.read_csv(tmp_path / 'out' / 'client_summary.csv').set_index(
    'method'
  )
  of_aocs, of_full = table.loc['AOCS, m=3'], table.loc['full participation']
  assert (of_aocs['seeds'], of_aocs['clients']) == (2, 8)
  assert of_aocs['mean'] == pytest.approx(0.575)
  assert of_aocs['mean_std'] == pytest.approx(0.1 / 2**0.5)
  assert of_aocs['worst_10_percent'] == pytest.approx(0.05)
  assert of_full['worst_10_percent'] == pytest.approx(0.1)
  assert of_full['std_over_clients'] == pytest.approx(ACCURACIES.std())
  assert np.isnan(of_full['mean_std'])
  text = (tmp_path / 'out' / 'client_summary.md').read_text()
  assert text in capsys.readouterr().out
  assert '| AOCS, m=3 | 2 | 8 | 57.5 ± 7.1 | 5.0 ± 7.1 | 27.3 ± 0.0 |' in text
  assert 'a real server does not see it' in text


def test_each_experiment_has_a_figure(drawn, tmp_path):
  write(tmp_path / 'runs' / 'one')
  write(tmp_path / 'runs' / 'other', of=made_up.CIFAR100)
  draw(tmp_path)
  assert {path.name for path in (tmp_path / 'out').iterdir()} == {
    'client_summary.csv',
    'client_summary.md',
    'clients_cifar100_n32.pdf',
    'clients_cifar100_n32.png',
    'clients_femnist_set_1_n32.pdf',
    'clients_femnist_set_1_n32.png',
  }


def test_runs_without_clients_are_not_drawn(drawn, tmp_path, capsys):
  made_up.write_run(tmp_path / 'runs' / 'plain', 'full')
  with pytest.raises(SystemExit, match='run with --evaluate_clients'):
    draw(tmp_path)
  write(tmp_path / 'runs' / 'run')
  lost = write(tmp_path / 'runs' / 'lost', 'uniform')
  (lost / clients.CLIENTS).unlink()
  draw(tmp_path)
  assert f'{lost} is left out' in capsys.readouterr().err
  assert len(drawn[0].axes[0].get_lines()) == 1


def test_methods_of_different_training_are_not_compared(tmp_path):
  write(tmp_path / 'runs' / 'aocs')
  write(tmp_path / 'runs' / 'full', 'full', batch_size=10)
  with pytest.raises(SystemExit, match='batch_size=20'):
    draw(tmp_path)


def test_other_columns_are_refused(tmp_path, capsys):
  folder = write(tmp_path / 'runs' / 'run')
  (folder / metrics.CLIENT_ACCURACIES).write_text('round,mean\n0,0.5\n')
  with pytest.raises(SystemExit, match='no finished run'):
    draw(tmp_path)
  assert 'must have the columns round,mean,num_c' in capsys.readouterr().err


def test_figure_is_rendered(tmp_path):
  write(tmp_path / 'runs' / 'run')
  groups = program.inputs.find_groups(str(tmp_path / 'runs'), None)
  (recorded,) = program.read(groups).values()
  client_panels.plot(recorded, [tmp_path / 'x.png'])
  assert (tmp_path / 'x.png').read_bytes().startswith(b'\x89PNG')
