"""Tests of the command that draws the paper's figures."""

import pathlib
import sqlite3
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from plots import figures
from plots import sizes
from tests.plots import made_up
from tests.tasks import authors_files
from tff_ocs.records import runs

_ROOT = pathlib.Path(__file__).parents[2]


def draw(tmp_path, figure='all', **options):
  """Draws; returns the names of the figures it wrote."""
  output_dir = tmp_path / 'figures'
  options = {
    'results_dir': str(tmp_path),
    'output_dir': str(output_dir),
    **options,
  }
  figures.draw_figures(figure=figure, **options)
  return sorted(path.name for path in output_dir.iterdir())


def write_all(tmp_path, **settings):
  """All methods of figure 3, with two seeds each."""
  for sampling, m, *_ in figures._methods([3, 6]):
    for seed in (0, 1):
      made_up.write_run(
        tmp_path / f'{sampling}_{m}_{seed}', sampling, m or 3, seed, **settings
      )


def test_all_figures_with_runs_are_drawn(tmp_path, drawn, capsys):
  write_all(tmp_path, pool_clients=100, pool_examples=4000)
  made_up.write_run(tmp_path / 'cifar', of=made_up.CIFAR100)
  made_up.write_run(
    tmp_path / 'compressed',
    compression='natural',
    pool_clients=100,
    pool_examples=4000,
  )
  names = draw(tmp_path)
  assert names == [
    *(
      f'figure_{number}.{ending}'
      for number in (13, 2, 3, 8, 'compression_aocs')
      for ending in ('pdf', 'png')
    ),
    'figures.csv',
  ]
  table = pd.read_csv(tmp_path / 'figures' / 'figures.csv', dtype=str)
  assert list(dict.fromkeys(table['figure'])) == [
    '3',
    '8',
    '13',
    'compression_aocs',
  ]
  (row,) = table[
    (table['figure'] == '8')
    & (table['line'] == 'AOCS, m=3 (2 seeds)')
    & table['panel'].str.contains('bits')
  ].to_dict('records')
  # Five evaluations of 0 to 80 %; 27 times 10^8 bits after round 8.
  assert {name: float(row[name]) for name in list(row)[3:]} == {
    'points': 5,
    'last_place': 27,
    'last_mean': 80,
    'last_deviation': 0,
    'mean_of_points': 40,
  }
  errors = capsys.readouterr().err.splitlines()
  assert errors == [
    'figures without runs: 4, 5, 6, 7, 9, 10, 11, 12',
    'figure 13: no runs of full participation; uniform, m=3',
  ]


def test_seeds_and_data_stand_in_the_figure(tmp_path, monkeypatch):
  write_all(tmp_path)
  made_up.write_run(tmp_path / 'ocs', 'ocs', client_learning_rate=0.1)
  calls = []
  monkeypatch.setattr(
    figures.panels,
    'plot_panels',
    lambda *args, **kwargs: calls.append((args, kwargs)) or pd.DataFrame(),
  )
  draw(tmp_path, '3')
  (((by_label, _), options),) = calls
  assert options.pop('methods') == {
    label: runs.method_of(of_method[0].settings)
    for label, of_method in by_label.items()
  }
  assert {label: len(of_method) for label, of_method in by_label.items()} == {
    'full participation (2 seeds)': 2,
    'uniform, m=3 (2 seeds)': 2,
    'uniform, m=6 (2 seeds)': 2,
    'OCS, m=3 (1 seed)': 1,
    'AOCS, m=3 (2 seeds)': 2,
    'AOCS, m=6 (2 seeds)': 2,
  }
  assert options == {
    'caption': (
      'made-up numbers, set 1, n=32, in place of FEMNIST set 1. Data: made-up'
      ' numbers; source: synthetic. Client step size: $2^{-3}$ (full'
      ' participation, uniform, AOCS); 0.1 (OCS). Mean ± standard deviation'
      ' over seeds.'
    ),
    'best_so_far': False,
  }


def test_compressed_runs_have_a_figure_of_their_own(tmp_path, monkeypatch):
  write_all(tmp_path)
  drawn = {}
  monkeypatch.setattr(
    figures.panels,
    'plot_panels',
    lambda by_label, paths, **_: (
      drawn.update({paths[0].name: list(by_label)}) or pd.DataFrame()
    ),
  )
  with pytest.raises(SystemExit, match='no runs with --compression'):
    draw(tmp_path, 'compression')
  for sampling in ('full', 'aocs'):
    made_up.write_run(
      tmp_path / sampling, sampling, compression='natural', seed=0
    )
  for figure in ('3', 'compression'):
    draw(tmp_path, figure)
  assert drawn['figure_3.png'] == [
    'full participation (2 seeds)',
    'uniform, m=3 (2 seeds)',
    'uniform, m=6 (2 seeds)',
    'AOCS, m=3 (2 seeds)',
    'AOCS, m=6 (2 seeds)',
  ]
  assert drawn['figure_compression_full.png'] == [
    'full participation (2 seeds)',
    'full participation, natural compression (1 seed)',
  ]
  assert drawn['figure_compression_aocs.png'] == [
    'full participation (2 seeds)',
    'AOCS, m=3 (2 seeds)',
    'AOCS, m=3, natural compression (1 seed)',
  ]


def shown_in(drawn):
  """The names in the legend of each figure."""
  return [[t.get_text() for t in f.legends[0].get_texts()] for f in drawn]


def test_one_round_trip_has_figures_of_its_own(tmp_path, drawn):
  with pytest.raises(SystemExit, match='no runs with --sampling=threshold'):
    made_up.write_run(tmp_path / 'full', 'full')
    draw(tmp_path, 'one_round_trip')
  for m in (3, 6):
    for sampling in ('uniform', 'ocs', 'aocs', 'threshold'):
      made_up.write_run(tmp_path / f'{sampling}{m}', sampling, m)
  made_up.write_run(tmp_path / 'other', 'threshold', of=made_up.CIFAR100)
  assert draw(tmp_path, 'one_round_trip', formats=['png']) == [
    'figure_one_round_trip_cifar100_n32.png',
    'figure_one_round_trip_femnist_set_1_n32.png',
  ]
  names = shown_in(drawn)[1]
  assert len(names) == 4 and not any('m=6' in name for name in names)
  # The lines differ in colour and in dashes.
  looks = {
    (line.get_color(), line.get_linestyle(), line._unscaled_dash_pattern)
    for line in drawn[1].axes[0].lines
  }
  assert len(looks) == len({color for color, *_ in looks}) == 4
  # It is not the paper's, so that the paper's figures do not have it.
  drawn.clear()
  draw(tmp_path, '3')
  assert len(shown_in(drawn)[0]) == 7 + 1  # With a blank below full.


def test_caption_names_a_sampling_with_and_without_the_weight_once(
  tmp_path, drawn
):
  for name, sampling, more in (
    ('a', 'uniform', {'client_learning_rate': 0.25}),
    ('b', 'threshold', {}),
    ('c', 'threshold', {'cohort_weight': 'unknown'}),
  ):
    made_up.write_run(tmp_path / name, sampling, **more)
  draw(tmp_path, 'one_round_trip', formats=['png'])
  caption = drawn[0].get_supxlabel().replace('\n', ' ')
  assert '$2^{-2}$ (uniform); $2^{-3}$ (one round trip).' in caption


def test_uniform_sampling_with_two_step_sizes_is_two_methods(tmp_path, drawn):
  for name, sampling, step_size in (
    ('a', 'aocs', 1e-3),
    ('b', 'uniform', 3e-4),
    ('c', 'uniform', 1e-3),
  ):
    made_up.write_run(
      tmp_path / name,
      sampling,
      of=made_up.CIFAR100,
      client_learning_rate=step_size,
    )
  draw(tmp_path, '13', formats=['png'])
  assert shown_in(drawn) == [
    [
      'uniform, m=3 (1 seed)',
      "uniform, m=3, AOCS' step size (1 seed)",
      'AOCS, m=3 (1 seed)',
    ]
  ]
  assert (
    "0.0003 (uniform, m=3); 0.001 (uniform, m=3, AOCS' step size / AOCS)"
    in drawn[0].get_supxlabel().replace('\n', ' ')
  )
  assert len({line.get_color() for line in drawn[0].axes[0].lines}) == 3
  # Any other two kinds of runs are an error, as they are.
  made_up.write_run(
    tmp_path / 'd', 'aocs', of=made_up.CIFAR100, client_learning_rate=1e-2
  )
  with pytest.raises(SystemExit, match='both are AOCS, m=3'):
    draw(tmp_path, '13')


def test_authors_curves_are_drawn_with_ours(tmp_path, drawn):
  for seed in (0, 1):
    made_up.write_run(tmp_path / f'a{seed}', 'aocs', 3, seed)
    made_up.write_run(tmp_path / f'u{seed}', 'uniform', 3, seed)
  made_up.write_run(tmp_path / 'six', 'aocs', 6)
  path = tmp_path / 'authors.csv'
  path.write_text(
    'method,round,training_loss,validation_accuracy\n'
    'uniform,0,2.5,0.1\nuniform,1,2,\nuniform,2,1,0.5\n'
    'ocs,0,2.5,0.2\nocs,1,9,0.9\n'
  )
  draw(tmp_path, 'authors', authors_curves=str(path))
  accuracy, loss = drawn[0].axes
  lines = {line.get_label(): line for line in accuracy.lines}
  assert list(lines) == [
    'uniform, m=3 (2 seeds)',
    "authors' code: uniform, m=3 (1 seed)",
    'AOCS, m=3 (2 seeds)',
    "authors' code: AOCS, m=3 (1 seed)",
  ]
  uniform = lines["authors' code: uniform, m=3 (1 seed)"]
  np.testing.assert_allclose(uniform.get_xdata(), [0, 2])
  np.testing.assert_allclose(uniform.get_ydata(), [10, 50])
  (note,) = [text.get_text() for text in loss.texts]
  assert note == 'cut off: mean up to 9'
  with pytest.raises(SystemExit, match='needs --authors_curves'):
    draw(tmp_path, 'authors')
  path.write_text('method,round,training_loss\n')
  with pytest.raises(SystemExit, match='no column validation_accuracy'):
    draw(tmp_path, 'authors', authors_curves=str(path))
  path.write_text(
    'method,round,training_loss,validation_accuracy\nours,0,1,1\n'
  )
  with pytest.raises(SystemExit, match='the method ours'):
    draw(tmp_path, 'authors', authors_curves=str(path))


def test_improvement_factors_have_a_figure(tmp_path, monkeypatch):
  made_up.write_run(tmp_path / 'former', m=9)
  with pytest.raises(SystemExit, match='no runs .* measured the improvement'):
    draw(tmp_path, 'improvement')
  alpha = np.linspace(0.1, 0.9, 9)
  for seed in (0, 1):
    made_up.write_run(
      tmp_path / f'three{seed}', m=3, seed=seed, alpha=alpha + seed / 10
    )
  made_up.write_run(tmp_path / 'six', m=6, alpha=alpha)
  made_up.write_run(tmp_path / 'full', 'full', alpha=alpha)
  made_up.write_run(tmp_path / 'other', of=made_up.CIFAR100, alpha=alpha)
  drawn = []
  monkeypatch.setattr(
    figures.panels, 'save', lambda fig, path: drawn.append(fig)
  )
  draw(tmp_path, 'improvement')
  smallest, larger = drawn[0].axes
  assert [axis.get_title() for axis in (smallest, larger)] == [
    'Smallest m',
    'Larger m',
  ]
  assert [line.get_label() for line in smallest.lines] == [
    'made-up numbers, m=3 of 32',
    'made-up numbers, set 1, m=3, 6 of 32',
  ]
  # Variants of AOCS have no line, and other settings no figure.
  made_up.write_run(tmp_path / 'own', m=3, alpha=alpha, method='AOCS, mine')
  draw(tmp_path, 'improvement')
  assert [len(axis.lines) for axis in drawn[1].axes] == [2, 1]
  made_up.write_run(
    tmp_path / 'step', m=3, alpha=alpha, client_learning_rate=0.5
  )
  with pytest.raises(SystemExit, match='differ in client_learning_rate'):
    draw(tmp_path, 'improvement')
  # All nine rounds are in one mean; and it is one over two seeds.
  np.testing.assert_allclose(smallest.lines[1].get_ydata(), [0.55])
  (six,) = larger.lines
  np.testing.assert_allclose(six.get_ydata(), [0.5])
  assert six.get_color() == smallest.lines[1].get_color()
  # Which data is whose; two runs of one method make a band.
  assert drawn[0].get_supxlabel().replace('\n', ' ') == (
    'Data: made-up numbers, in place of CIFAR100; made-up numbers, set 1, in'
    ' place of FEMNIST set 1. Client step size: $2^{-3}$. Running mean over 10'
    ' rounds. Bands: standard deviation over 1 to 2 seeds.'
  )


def test_rounds_without_an_improvement_factor_are_left_out(
  tmp_path, monkeypatch
):
  """As where no client was available."""
  alpha = np.full(9, 0.5)
  alpha[[0, 4]] = np.nan
  made_up.write_run(tmp_path / 'three', m=3, alpha=alpha)
  made_up.write_run(tmp_path / 'six', m=6, alpha=np.full(9, np.nan))
  drawn = []
  monkeypatch.setattr(
    figures.panels, 'save', lambda fig, path: drawn.append(fig)
  )
  draw(tmp_path, 'improvement')
  three, six = (axis.lines[0] for axis in drawn[0].axes)
  # Between rounds 1 and 8, the first and the last of the mean.
  np.testing.assert_allclose(three.get_xydata(), [[4.5, 0.5]])
  assert not len(six.get_xydata())


def test_longer_runs_are_cut_off(tmp_path, monkeypatch):
  for number, rounds in ((1, 20), (2, 20), (3, 200)):
    of = {**made_up.FEMNIST, 'unbalanced_set': str(number)}
    made_up.write_run(
      tmp_path / str(number),
      of=of,
      alpha=np.full(rounds, 0.5),
      bits=np.arange(1, rounds + 1) * 10**8,
      accuracy=np.full(rounds, 0.5),
    )
  drawn = []
  monkeypatch.setattr(
    figures.panels, 'save', lambda fig, path: drawn.append(fig)
  )
  draw(tmp_path, 'improvement')
  (axis,) = drawn[0].axes
  # The last running mean of 20 rounds is in the middle of its ten.
  assert axis.get_xlim()[1] == pytest.approx(1.03 * 14.5)
  assert drawn[0].get_supxlabel().endswith('Longer runs are cut off.')


def test_missing_and_unfinished_runs_are_named(tmp_path, drawn, capsys):
  made_up.write_run(tmp_path / 'full', 'full')
  made_up.write_run(tmp_path / 'aocs', 'aocs', 6)
  made_up.write_run(tmp_path / 'uniform', 'uniform', finished=False)
  assert draw(tmp_path, '3') == ['figure_3.pdf', 'figure_3.png']
  assert capsys.readouterr().err.splitlines() == [
    f'{tmp_path / "uniform"} is left out: the run is not finished, its'
    ' metrics.csv has 8 of 9 rounds.',
    'figure 3: no runs of uniform, m=3; uniform, m=6; AOCS, m=3',
  ]


def test_figure_without_runs_is_an_error(tmp_path):
  made_up.write_run(tmp_path / 'run', 'full')
  with pytest.raises(
    SystemExit,
    match='figure 7 .*no runs of Shakespeare with n=128, but of FEMNIST set 1',
  ):
    draw(tmp_path, '7')


def test_no_runs_at_all_are_an_error(tmp_path):
  with pytest.raises(SystemExit, match='no finished run below --results_dir='):
    draw(tmp_path)
  with pytest.raises(SystemExit, match='nowhere is not a folder'):
    draw(tmp_path, results_dir=str(tmp_path / 'nowhere'))


def test_experiments_that_the_paper_does_not_have_are_drawn(tmp_path, drawn):
  made_up.write_run(
    tmp_path / 'a', of=made_up.SHAKESPEARE, clients_per_round=16
  )
  for name in ('Tweets!', 'tweets?'):
    folder = made_up.write_run(
      tmp_path / name, 'root', of={}, experiment=name, method=f'best of {name}'
    )
    assert folder.exists()
  names = [
    f'figure_of_{name}.{ending}'
    for name in ('shakespeare_n16', 'tweets_n32', 'tweets_n32_3')
    for ending in ('pdf', 'png')
  ]
  assert draw(tmp_path, 'others') == names
  assert draw(tmp_path) == [*names, 'figures.csv']
  captions = {fig.get_supxlabel() for fig in drawn}
  assert (
    'Tweets!, n=32. Data: made-up numbers. Client step size: $2^{-3}$.'
    in (captions)
  )
  labels = {fig.legends[0].get_texts()[0].get_text() for fig in drawn}
  assert labels == {
    'AOCS, m=3 (1 seed)',
    'best of Tweets! (1 seed)',
    'best of tweets? (1 seed)',
  }


def test_names_with_dollar_signs_are_drawn(tmp_path):
  made_up.write_run(
    tmp_path / 'a',
    'root',
    of={},
    experiment='prices',
    method='$ and $_$',
    data='bills of $5_{ to $10',
    client_learning_rate=0.0,
  )
  names = [f'figure_of_prices_n32.{ending}' for ending in ('pdf', 'png')]
  assert draw(tmp_path, 'others') == names


def test_unknown_data_source_has_no_figure_of_sizes(tmp_path, drawn, capsys):
  of = {**made_up.FEMNIST, 'data_source': 'elsewhere'}
  made_up.write_run(tmp_path / 'a', 'full', of=of)
  assert 'figure_3.png' in draw(tmp_path)
  assert 'figure 2 is not drawn' in capsys.readouterr().err


def test_no_others_are_an_error(tmp_path):
  made_up.write_run(tmp_path / 'run', 'full')
  with pytest.raises(
    SystemExit, match='no runs of other experiments .*of FEMNIST set 1'
  ):
    draw(tmp_path, 'others')


def test_damaged_runs_are_named_and_the_others_drawn(tmp_path, drawn, capsys):
  made_up.write_run(tmp_path / 'full', 'full')
  folder = made_up.write_run(tmp_path / 'damaged')
  metrics = folder / 'metrics.csv'
  metrics.write_text(metrics.read_text().replace('1.5', 'see notes'))
  (made_up.write_run(tmp_path / 'list') / 'config.json').write_text('[]')
  assert draw(tmp_path, '3') == ['figure_3.pdf', 'figure_3.png']
  errors = capsys.readouterr().err.splitlines()
  assert errors[0].startswith(
    f'{folder} is left out: line 7 of its metrics.csv'
  )
  assert errors[1].startswith(
    f'{tmp_path / "list"} is left out: its config.json'
  )


def test_several_data_sources_are_an_error_until_one_is_chosen(
  tmp_path, drawn, capsys
):
  made_up.write_run(
    tmp_path / 'a', 'full', pool_clients=100, pool_examples=4000
  )
  made_up.write_run(
    tmp_path / 'b',
    'full',
    of={**made_up.FEMNIST, 'data_source': 'tff'},
    data='the real thing',
  )
  with pytest.raises(SystemExit, match='data_source=synthetic.*--data,'):
    draw(tmp_path, '3')
  with pytest.raises(SystemExit, match='not drawn: figures 3, 8'):
    draw(tmp_path)
  assert 'figure 3 is not drawn' in capsys.readouterr().err
  for data in ('tff', 'real thing'):
    assert 'figure_3.png' in draw(tmp_path, '3', data=data)
  with pytest.raises(SystemExit, match='--data=nothing'):
    draw(tmp_path, '3', data='nothing')


def test_diverged_runs_are_named(tmp_path, drawn, capsys):
  folder = made_up.write_run(tmp_path / 'run', 'full')
  metrics = folder / 'metrics.csv'
  metrics.write_text(metrics.read_text().replace(',1.5,', ',nan,'))
  draw(tmp_path, '3')
  assert f'{folder} diverged' in capsys.readouterr().err


def test_figure_that_cannot_be_written_is_an_error(tmp_path):
  made_up.write_run(tmp_path / 'run', 'full')
  (tmp_path / 'file').touch()
  with pytest.raises(SystemExit, match='figure 3 cannot be drawn: .*file'):
    draw(tmp_path, '3', output_dir=str(tmp_path / 'file'))


def write_pool(path, num_examples):
  """A database of TFF's with clients' sizes alone."""
  with sqlite3.connect(path) as connection:
    connection.execute(
      'CREATE TABLE examples (split_name TEXT, client_id TEXT,'
      ' serialized_example_proto BLOB)'
    )
    connection.execute(
      'CREATE TABLE client_metadata (client_id TEXT, split_name TEXT,'
      ' num_examples INTEGER)'
    )
    connection.executemany(
      "INSERT INTO client_metadata VALUES (?, 'digits_only_train', ?)",
      [(f'writer_{i}', n) for i, n in enumerate(num_examples)],
    )
    connection.executemany(
      "INSERT INTO examples VALUES ('digits_only_train', ?, x'')",
      [(f'writer_{i}',) for i, _ in enumerate(num_examples)],
    )
  connection.close()


def test_sizes_are_made_from_the_file(tmp_path):
  # 2 of 20 are large; of the 18 others set 2 keeps 8, and set 3 keeps 2.
  write_pool(tmp_path / 'emnist_all.sqlite', [100] * 2 + [50] * 18)
  of_set, caption = sizes.find_sizes([], str(tmp_path))
  assert {k: sorted(v) for k, v in of_set.items()} == {
    1: [3] * 18 + [100] * 2,
    2: [3] * 8 + [100] * 2,
    3: [3] * 2 + [100] * 2,
  }
  assert caption.startswith(
    'Data: digits in emnist_all.sqlite, 20 writers. Large'
  )
  assert draw(tmp_path, '2', cache_dir=str(tmp_path)) == [
    'figure_2.pdf',
    'figure_2.png',
  ]


def test_sizes_of_runs_on_the_authors_files_are_read_from_them(tmp_path):
  authors_files.write_files(tmp_path)
  made_up.write_run(
    tmp_path / 'runs' / 'run',
    of={**made_up.FEMNIST, 'data_source': 'authors'},
    pool_clients=20,
    pool_examples=100,
  )
  groups, _ = runs.find_groups(tmp_path / 'runs')
  of_set, caption = sizes.find_sizes(groups, str(tmp_path))
  assert {number: sorted(of)[::-1] for number, of in of_set.items()} == (
    authors_files.SIZES
  )
  assert caption.startswith(
    "Data: the authors' unbalanced Federated EMNIST, digits; source: authors."
  )


def test_sizes_of_other_data_than_the_runs_are_an_error(tmp_path):
  write_pool(tmp_path / 'emnist_all.sqlite', [100] * 2 + [50] * 18)
  made_up.write_run(
    tmp_path / 'run',
    of={**made_up.FEMNIST, 'data_source': 'tff'},
    pool_clients=836,
    pool_examples=12517,
  )
  groups, _ = runs.find_groups(tmp_path)
  with pytest.raises(runs.RunsError, match='836 clients with 12517.* 20 with'):
    sizes.find_sizes(groups, str(tmp_path))


def test_sizes_of_data_without_a_file_are_those_of_the_runs(tmp_path):
  made_up.write_run(tmp_path / 'run', pool_clients=100, pool_examples=4000)
  groups, _ = runs.find_groups(tmp_path)
  of_set, caption = sizes.find_sizes(groups, None)
  assert {k: len(v) for k, v in of_set.items()} == dict.fromkeys((1, 2, 3), 100)
  assert 'source: synthetic' in caption


def test_sizes_without_a_source_are_skipped_with_a_line(tmp_path, capsys):
  made_up.write_run(
    tmp_path / 'run', of={**made_up.FEMNIST, 'data_source': 'tff'}
  )
  assert 'figure_3.png' in draw(tmp_path)
  assert 'figure 2 is not drawn: ' in capsys.readouterr().err
  with pytest.raises(SystemExit, match='figure 2 cannot.*--cache_dir'):
    draw(tmp_path, '2')
  with pytest.raises(SystemExit, match='emnist_all.sqlite'):
    draw(tmp_path, '2', cache_dir=str(tmp_path))
  assert not list(tmp_path.glob('*.sqlite'))  # Nothing was downloaded.


def test_bad_command_line_is_named():
  ended = subprocess.run(
    [sys.executable, '-m', 'plots.figures', '--results_dir=.', '--figure=1'],
    cwd=_ROOT,
    capture_output=True,
    text=True,
  )
  assert ended.returncode == 1
  assert '--figure=1' in ended.stderr


def test_unexpected_argument_is_named():
  with pytest.raises(SystemExit, match="unexpected argument 'x'"):
    figures.main(['plots.figures', 'x'])
