"""Tests of the figure of the comparison of samplers."""

import numpy as np
import pandas as pd

from plots import samplers


def row(data, method, seed, bits, first_hit=1e9):
  return {
    'data': data,
    'method': method,
    'seed': seed,
    'accuracy': 0.9 + seed / 100,
    'bits_to_target': bits,
    'examples_to_target': 2 * bits,
    'seconds_to_target': 3 * bits,
    'bits_at_first_hit': first_hit,
    'examples_at_first_hit': 2 * first_hit,
    'seconds_at_first_hit': 3 * first_hit,
  }


def draw(rows, tmp_path):
  samplers.plot_costs(
    pd.DataFrame(rows),
    [tmp_path / 'x.png'],
    caption='Made-up numbers.',
    target=0.85,
  )


def points(axis):
  """The places of each set of points, by the marker and the size."""
  return [
    (line.get_marker(), line.get_markersize(), line.get_xydata().tolist())
    for line in axis.lines
    if line.get_marker() not in ('None', samplers._FIRST_HIT)
  ]


def first_hits(axis):
  """The lines that begin at a first hit."""
  return [
    line.get_xdata().tolist()
    for line in axis.lines
    if line.get_marker() == samplers._FIRST_HIT
  ]


def test_methods_have_rows_and_data_sets_have_markers(drawn, tmp_path):
  draw(
    [
      row('set 1', 'OCS, m=3', 0, 2e9),
      row('set 1', 'OCS, m=3', 1, 4e9),
      row('set 1', 'MD, n=3', 0, 8e9),
      row('set 3', 'OCS, m=3', 0, 5e9),
      row('set 3', 'MD, n=3', 0, 6e9),
    ],
    tmp_path,
  )
  (fig,) = drawn
  bits, examples, seconds, error = fig.axes
  labels = [text.get_text() for text in bits.get_yticklabels()]
  assert labels == ['OCS, m=3', 'MD, n=3']
  large = {
    (marker, *xy)
    for marker, size, places in points(bits)
    if size == samplers._MARKER_SIZE
    for xy in places
  }
  up, down = -0.12, 0.12
  assert large == {
    ('o', 3.0, 0 + up),
    ('o', 8.0, 1 + up),
    ('s', 5.0, 0 + down),
    ('s', 6.0, 1 + down),
  }
  small = sorted(
    x
    for _, size, places in points(bits)
    if size == samplers._SEED_SIZE
    for x, _ in places
  )
  np.testing.assert_allclose(small, [2, 4, 5, 6, 8])
  for axis, factor in ((examples, 2 * 1e6), (seconds, 3 * 1e9 / 3600)):
    assert max(x for *_, places in points(axis) for x, _ in places) == (
      8 * factor
    )
  assert {axis.get_xscale() for axis in fig.axes} == {'log'}
  errors = sorted(
    x
    for _, size, places in points(error)
    if size == samplers._SEED_SIZE
    for x, _ in places
  )
  np.testing.assert_allclose(errors, [9, 10, 10, 10, 10])
  assert (tmp_path / 'x.png').exists()


def test_seeds_that_do_not_get_there_count_as_infinite(drawn, tmp_path):
  draw(
    [
      # Most seeds of OCS get there, and most of MD do not.
      row('set 1', 'OCS, m=3', 0, 2e9),
      row('set 1', 'OCS, m=3', 1, np.nan),
      row('set 1', 'OCS, m=3', 2, 4e9),
      row('set 1', 'MD, n=3', 0, 2e9),
      row('set 1', 'MD, n=3', 1, np.nan),
      row('set 1', 'MD, n=3', 2, np.nan),
    ],
    tmp_path,
  )
  bits, *_, error = drawn[0].axes
  large, open_and_small = (
    [(marker, *places[0]) for marker, of, places in points(bits) if of == size]
    for size in (samplers._MARKER_SIZE, samplers._SEED_SIZE)
  )
  assert large == [('o', 4.0, 0.0), ('>', 1.0, 1.0)]
  assert ('>', 1.0, 0.0) in open_and_small
  # The final error is there all the same.
  assert all(marker == 'o' for marker, *_ in points(error))
  assert 'right edge: not reached for good' in (
    drawn[0].get_supxlabel().replace('\n', ' ')
  )


def test_lines_begin_at_the_first_hits(drawn, tmp_path):
  draw(
    [
      row('set 1', 'OCS, m=3', 0, 5e9, 1e9),
      row('set 1', 'OCS, m=3', 1, 7e9, 2e9),
      # Hit by all seeds, but only one stays there, so that the median does not.
      row('set 1', 'MD, n=3', 0, 8e9, 3e9),
      row('set 1', 'MD, n=3', 1, np.nan, 4e9),
      # Not hit by most seeds.
      row('set 1', 'OSMD, n=3', 0, 8e9, 3e9),
      row('set 1', 'OSMD, n=3', 1, np.nan, np.nan),
      row('set 1', 'OSMD, n=3', 2, np.nan, np.nan),
    ],
    tmp_path,
  )
  bits, examples, *_, error = drawn[0].axes
  assert first_hits(bits) == [[1.5, 6.0], [3.5]]
  assert first_hits(examples) == [[3e6, 12e6], [7e6]]
  assert first_hits(error) == []
