"""Tests of the drawn panels."""

import numpy as np
import pytest
from matplotlib import image

from plots import panels
from tests.plots import made_up
from tff_ocs.records import runs


def read(path, *args, **kwargs):
  return runs.read_run(made_up.write_run(path, *args, **kwargs))


def dashes_of(line):
  return line._unscaled_dash_pattern[1]


def test_panels_are_written_in_the_asked_formats(tmp_path):
  by_label = {
    label: [read(tmp_path / label, label)]
    for label in ('full', 'uniform', 'ocs', 'aocs', 'threshold')
  }
  paths = [tmp_path / 'figure.png', tmp_path / 'figure.pdf']
  panels.plot_panels(by_label, paths, caption='made-up numbers')
  assert paths[1].read_bytes().startswith(b'%PDF')
  pixels = image.imread(paths[0])
  assert pixels.shape[1] == 7 * 200
  # Every method's colour is on it.
  for look in panels._LOOKS.values():
    rgb = [int(look['color'][i : i + 2], 16) / 255 for i in (1, 3, 5)]
    assert np.any(np.all(np.abs(pixels[..., :3] - rgb) < 0.02, axis=-1))


def test_same_figure_is_the_same_file(tmp_path):
  by_label = {'aocs': [read(tmp_path / 'run')]}
  for ending in ('png', 'pdf', 'svg'):
    paths = [tmp_path / f'{name}.{ending}' for name in 'ab']
    for path in paths:
      panels.plot_panels(by_label, [path], caption='')
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_lines_are_means_and_bands_deviations(tmp_path, drawn):
  accuracies = ([0.1, 0.5, 0.3], [0.3, 0.7, 0.9])
  by_label = {
    'AOCS': [
      read(
        tmp_path / str(seed),
        seed=seed,
        accuracy=accuracies[seed],
        bits=[10**8, 2 * 10**8, 4 * 10**8],
      )
      for seed in (0, 1)
    ]
  }
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  accuracy, loss, accuracy_by_bits, _ = drawn[0].axes
  (line,) = accuracy.lines
  np.testing.assert_allclose(line.get_xdata(), [0, 1, 2])
  np.testing.assert_allclose(line.get_ydata(), [20, 60, 60])
  (line,) = accuracy_by_bits.lines
  np.testing.assert_allclose(line.get_xdata(), [1, 2, 4])  # In 10^8 bits.
  np.testing.assert_allclose(line.get_ydata(), [20, 60, 60])
  # Deviations: sqrt(2) times 10, 10, 30.
  (band,) = accuracy.collections
  vertices = band.get_paths()[0].vertices
  for x, low, high in zip(
    [0, 1, 2],
    [20 - 200**0.5, 60 - 200**0.5, 60 - 1800**0.5],
    [20 + 200**0.5, 60 + 200**0.5, 60 + 1800**0.5],
  ):
    at_x = vertices[vertices[:, 0] == x, 1]
    np.testing.assert_allclose([at_x.min(), at_x.max()], [low, high])
  # The losses are equal, so there is nothing to draw a band of.
  assert not loss.collections
  # Up to the ten above the best of all.
  assert accuracy.get_ylim() == (0, 90)


def test_single_rounds_are_seen(tmp_path, drawn):
  run = read(tmp_path / 'run', accuracy=[0.1], bits=[10**8])
  panels.plot_panels({'AOCS': [run]}, [tmp_path / 'x.png'], caption='')
  for axis in drawn[0].axes:
    (line,) = axis.lines
    assert len(line.get_xdata()) == 1
    assert line.get_marker() not in (None, '', 'None')


def test_best_so_far_has_two_panels(tmp_path, drawn):
  run = read(tmp_path / 'run', accuracy=[0.1, 0.5, 0.3])
  panels.plot_panels(
    {'AOCS': [run]}, [tmp_path / 'x.png'], caption='', best_so_far=True
  )
  by_rounds, by_bits = drawn[0].axes
  for axis in (by_rounds, by_bits):
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [10, 50, 50])
  assert by_bits.get_xscale() == 'log'


def test_spikes_do_not_squeeze_the_loss(tmp_path, drawn):
  run = read(tmp_path / 'run')
  run.metrics['training_loss'] = [2, 2, 2, 1, 500, 1, np.nan, 1, 1]
  panels.plot_panels({'AOCS': [run]}, [tmp_path / 'x.png'], caption='')
  assert drawn[0].axes[1].get_ylim() == (0, pytest.approx(2.3))


def test_legend_has_each_method_and_m_is_told_by_dashes(tmp_path, drawn):
  by_label = {
    f'{sampling} {m}': [read(tmp_path / f'{sampling}{m}', sampling, m)]
    for sampling, m in [
      ('full', 3),
      ('uniform', 3),
      ('uniform', 6),
      ('aocs', 3),
      ('aocs', 6),
    ]
  }
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  (legend,) = drawn[0].legends
  texts = [text.get_text() for text in legend.get_texts()]
  # A column for each sampling.
  assert texts == ['full 3', '', 'uniform 3', 'uniform 6', 'aocs 3', 'aocs 6']
  lines = {line.get_label(): line for line in drawn[0].axes[0].lines}
  assert lines['aocs 3'].get_color() == lines['aocs 6'].get_color()
  # No two of them have the same dashes and the same colour, and AOCS never
  # those of full participation, with which it coincides.
  assert len({dashes_of(line) for line in lines.values()}) == 3
  assert dashes_of(lines['aocs 3']) != dashes_of(lines['aocs 6'])
  assert dashes_of(lines['uniform 3']) != dashes_of(lines['uniform 6'])
  for name in ('aocs 3', 'aocs 6'):
    assert dashes_of(lines[name]) != dashes_of(lines['full 3'])


def test_wide_legends_have_several_colours_in_a_column(tmp_path, drawn):
  names = ['full', 'uniform', 'aocs', 'threshold']
  runs_ = {name: [read(tmp_path / name, name)] for name in names}
  long = {
    f'{name}, with a long name in the legend': runs_[name] for name in names
  }
  panels.plot_panels(long, [tmp_path / 'x.png'], caption='')
  fig = drawn[0]
  fig.draw_without_rendering()
  (legend,) = fig.legends
  assert [text.get_text() for text in legend.get_texts()] == [*long]
  box = legend.get_window_extent()
  assert 0 <= box.x0 and box.x1 <= fig.bbox.x1
  assert len({round(t.get_window_extent().x0) for t in legend.get_texts()}) == 2


def test_compressions_differ_in_colour_marker_and_dashes(tmp_path, drawn):
  by_label = {
    compression: [read(tmp_path / compression, compression=compression)]
    for compression in ('none', 'natural', 'dithering', 'random_k')
  }
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  lines = {line.get_label(): line for line in drawn[0].axes[0].lines}
  assert len({line.get_color() for line in lines.values()}) == 4
  assert len({line.get_marker() for line in list(lines.values())[1:]}) == 3
  assert len({dashes_of(line) for line in list(lines.values())[1:]}) == 3


def test_markers_of_another_m_are_open(tmp_path, drawn):
  by_label = {
    f'{sampling}, m={m}': [read(tmp_path / f'{sampling}{m}', sampling, m)]
    for sampling in ('uniform', 'aocs')
    for m in (3, 6)
  }
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  lines = drawn[0].axes[0].lines
  assert [line.get_markerfacecolor() == 'white' for line in lines] == [
    False,
    True,
  ] * 2


@pytest.mark.parametrize(
  'num_evaluations, marked',
  [
    (4, [0, 1, 2, 3]),
    (60, [0, 1, 2, 3, 4, 6, 8, 11, 16, 22, 31, 43, 59]),
  ],
)
def test_markers_are_at_evaluations(tmp_path, drawn, num_evaluations, marked):
  run = read(
    tmp_path / 'run',
    bits=np.arange(1, num_evaluations + 1) * 10**8,
    accuracy=np.linspace(0, 0.5, num_evaluations),
  )
  panels.plot_panels({'AOCS': [run]}, [tmp_path / 'x.png'], caption='')
  accuracy, loss, by_bits, _ = drawn[0].axes
  for axis in (accuracy, by_bits):
    assert axis.lines[0].get_marker() == '^'
    assert len(axis.lines[0].get_xdata()) == num_evaluations
    assert axis.lines[0].get_markevery() == marked
  assert loss.lines[0].get_marker() == 'None'


def test_means_by_bits_are_of_rounds(tmp_path, drawn):
  by_label = {
    'AOCS': [
      read(
        tmp_path / str(seed),
        seed=seed,
        bits=np.array([2, 4]) * 10**8 * (1 + seed),
        accuracy=[0.2, 0.4 + 0.2 * seed],
      )
      for seed in (0, 1)
    ]
  }
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  (line,) = drawn[0].axes[2].lines
  np.testing.assert_allclose(line.get_xdata(), [3, 6])
  np.testing.assert_allclose(line.get_ydata(), [20, 50])


def test_curves_by_bits_begin_with_the_first_update(tmp_path, drawn):
  one_round_trip = read(
    tmp_path / 'x',
    bits=np.array([3072, 4e8, 6e8]),
    accuracy=[0.1, 0.2, 0.4],
    participants=[0, 2, 1],
  )
  panels.plot_panels(
    {'one round trip': [one_round_trip]}, [tmp_path / 'x.png'], caption=''
  )
  by_rounds, _, by_bits, _ = drawn[0].axes
  assert len(by_rounds.lines[0].get_xdata()) == 3
  np.testing.assert_allclose(by_bits.lines[0].get_xdata(), [4, 6])
  np.testing.assert_allclose(by_bits.lines[0].get_ydata(), [20, 40])


def insets(fig):
  return [child for child in fig.axes[0].child_axes]


def test_methods_that_coincide_are_magnified(tmp_path, drawn):
  rise = np.array([0.1, 0.6, 0.9, 0.94, 0.95, 0.95, 0.96, 0.96, 0.96])
  by_label = {
    'full': [read(tmp_path / 'full', 'full', 32, accuracy=rise)],
    'AOCS': [read(tmp_path / 'aocs', accuracy=rise - 0.01)],
    'uniform': [read(tmp_path / 'uniform', 'uniform', accuracy=rise / 2)],
  }
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  (inset,) = insets(drawn[0])
  low, high = inset.get_ylim()
  assert 91 < low < 93 and 96 < high < 97
  assert inset.get_xlim()[0] == pytest.approx(8 / 3)
  np.testing.assert_allclose(inset.lines[0].get_ydata(), 100 * rise)
  # Where methods differ there is nothing to magnify.
  del by_label['AOCS']
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  assert not insets(drawn[1])


def test_insets_are_below_the_curves(tmp_path, drawn):
  rounds = 101
  rise = 0.5 - 0.4 / np.arange(1, rounds + 1)
  dips = rise - 0.02
  # Left of the middle there is no room.
  dips[20:42:5] = 0.05
  settings = {'bits': np.arange(1, rounds + 1) * 10**8}
  by_label = {
    'full': [read(tmp_path / 'full', 'full', accuracy=rise, **settings)],
    'AOCS': [read(tmp_path / 'aocs', accuracy=rise - 0.01, **settings)],
    'uniform': [
      read(tmp_path / 'uniform', 'uniform', accuracy=dips, **settings)
    ],
  }
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  fig = drawn[0]
  fig.draw_without_rendering()
  (inset,) = insets(fig)
  box = inset.get_tightbbox()
  for line in fig.axes[0].lines:
    places = fig.axes[0].transData.transform(line.get_xydata())
    assert not any(box.contains(*place) for place in places)
  # Without room there is none.
  by_label['uniform'][0].metrics.loc[90, 'validation_accuracy'] = 0.05
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  assert not insets(drawn[1])


def test_losses_that_are_cut_off_are_noted(tmp_path, drawn):
  run = read(tmp_path / 'run')
  panels.plot_panels({'AOCS': [run]}, [tmp_path / 'x.png'], caption='')
  assert not drawn[0].axes[1].texts
  run.metrics.loc[4, 'training_loss'] = 51.234
  panels.plot_panels({'AOCS': [run]}, [tmp_path / 'x.png'], caption='')
  for axis in (drawn[1].axes[1], drawn[1].axes[3]):
    (note,) = axis.texts
    assert note.get_text() == 'cut off: mean up to 51.2'


def test_lines_are_described(tmp_path, drawn):
  run = read(tmp_path / 'run', accuracy=[0.1, 0.5, 0.3], bits=[10**8] * 3)
  table = panels.plot_panels(
    {'AOCS': [run]}, [tmp_path / 'x.png'], caption='', best_so_far=True
  )
  assert list(table['panel']) == [
    'Best accuracy so far [%] by Communication round',
    'Best accuracy so far [%] by Uplink [$10^8$ bits]',
  ]
  row = table.iloc[0]
  assert (row['line'], row['points'], row['last_place']) == ('AOCS', 3, 2)
  assert row['last_mean'] == 50
  assert row['mean_of_points'] == pytest.approx(110 / 3)


def test_methods_of_others_have_colours_of_their_own(tmp_path, drawn):
  names = ['aocs', *(f'method {i}' for i in range(6))]
  by_label = {
    name: [read(tmp_path / name, name, total_rounds=9)] for name in names
  }
  # A name of its own makes another method of a known sampling.
  by_label['renamed'] = [read(tmp_path / 'renamed', method='renamed')]
  panels.plot_panels(by_label, [tmp_path / 'x.png'], caption='')
  lines = {line.get_label(): line for line in drawn[0].axes[0].lines}
  looks = [(line.get_color(), line.get_linestyle()) for line in lines.values()]
  assert len(set(looks)) == len(by_label)
  assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [
    *by_label
  ]


@pytest.mark.parametrize(
  'bits, unit, last',
  [
    ([10**8, 3 * 10**8], '$10^8$ bits', 3),
    ([10**6, 2 * 10**6], 'Mbit', 2),
    ([100, 4000], 'kbit', 4),
    ([0, 0], 'bit', 0),
  ],
)
def test_bits_have_a_fitting_unit(tmp_path, drawn, bits, unit, last):
  run = read(tmp_path / 'run', bits=bits, accuracy=[0.1, 0.2])
  panels.plot_panels({'AOCS': [run]}, [tmp_path / 'x.png'], caption='')
  axis = drawn[0].axes[2]
  assert axis.get_xlabel() == f'Uplink [{unit}]'
  assert axis.lines[0].get_xdata()[-1] == last


def test_long_captions_make_the_figure_higher(tmp_path, drawn):
  run = read(tmp_path / 'run')
  for caption in ('short', 30 * 'rather long '):
    panels.plot_panels({'AOCS': [run]}, [tmp_path / 'x.png'], caption=caption)
  short, long = drawn
  num_lines = long.get_supxlabel().count('\n') + 1
  assert num_lines > 1
  assert long.get_figheight() == pytest.approx(
    short.get_figheight() + 0.1 * (num_lines - 1)
  )
