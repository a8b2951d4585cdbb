"""Tests of the figure of replays."""

import numpy as np
import pandas as pd
import pytest

from plots import threshold_replays as plotted

NUM_ROUNDS = 6
SAMPLINGS = (
  'OCS',
  'AOCS',
  'uniform',
  plotted.KNOWN,
  plotted.UNKNOWN,
  plotted.CONSTANT,
)


def rounds_of(title):
  """Made-up rounds; the k-th sampling has k times the variance of OCS."""
  parts = []
  for k, sampling in enumerate(SAMPLINGS, start=1):
    part = pd.DataFrame(
      {
        'title': title,
        'sampling': sampling,
        'round': range(NUM_ROUNDS),
        'expected_clients': 3.0,
        'participants': 3.0 * k,
        'threshold': 0.1 * k,
        'variance': 7.0,
        'variance_equal_spend': 7.0 * k,
      }
    )
    # In the first round, which is left out, nothing is known.
    part.loc[0, ['variance', 'variance_equal_spend']] = np.inf
    parts.append(part)
  return pd.concat(parts)


@pytest.fixture
def fig(drawn, tmp_path):
  plotted.plot_replays(
    pd.concat([rounds_of('set 1'), rounds_of('set $2')]),
    [tmp_path / 'x.png'],
    caption='Made-up numbers.',
  )
  return drawn[-1]


def test_panels_show_participants_thresholds_and_variances(fig):
  assert len(fig.axes) == 6
  for row in (fig.axes[:3], fig.axes[3:]):
    participants, thresholds, variances = row
    ratios = [line.get_ydata() for line in participants.lines]
    np.testing.assert_allclose(ratios, np.outer([1, 5, 4], np.ones(5)))
    dots, line = thresholds.lines
    assert dots.get_marker() == 'o' and dots.get_linestyle() == 'None'
    np.testing.assert_allclose(dots.get_ydata(), 0.1)
    np.testing.assert_allclose(line.get_ydata(), 0.4)
    of_label = {
      line.get_label(): line.get_ydata()[-1] for line in variances.lines
    }
    assert list(of_label.values()) == pytest.approx([4, 5, 1, 3, 6])
    for axis in row:
      assert axis.get_yscale() == 'log'
      for line in axis.lines:
        np.testing.assert_array_equal(line.get_xdata(), range(1, NUM_ROUNDS))


def test_rows_are_titled_and_the_legend_names_all_lines(fig):
  titles = [axis.get_title(loc='left') for axis in fig.axes]
  assert titles == ['set 1', '', '', r'set \$2', '', '']
  (legend,) = fig.legends
  assert [text.get_text() for text in legend.get_texts()] == [
    'one round trip, $N_t$ known',
    '$N_t$ unknown',
    'OCS of each round',
    'uniform',
    'constant threshold, in hindsight',
  ]
  assert fig.get_supxlabel().startswith('Made-up numbers. Left: expected')
