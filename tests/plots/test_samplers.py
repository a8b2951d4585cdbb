"""Tests of the figure of the comparison of samplers."""

import numpy as np
import pandas as pd

from plots import samplers


def curve(accuracies, factor=1.0):
  rounds = np.arange(len(accuracies))
  costs = factor * (rounds + 1.0)
  return pd.DataFrame(
    {
      'round': rounds,
      'accuracy': accuracies,
      'bits': costs,
      'examples': 2 * costs,
      'seconds': 3 * costs,
    }
  )


def test_lines_are_means_over_the_seeds(drawn, tmp_path):
  by_method = {
    'OCS, m=3': [curve([0.2, 0.4]), curve([0.4, 0.8], factor=3)],
    'MD, n=3': [curve([0.1, 0.2])],
  }
  samplers.plot_costs(
    {'set 1': by_method, 'set 3': by_method},
    [tmp_path / 'x.png'],
    caption='Made-up numbers.',
  )
  (fig,) = drawn
  assert len(fig.axes) == 6
  for axis, factor in zip(fig.axes, (1, 2, 3, 1, 2, 3)):
    ocs, md = axis.get_lines()
    np.testing.assert_allclose(ocs.get_xdata(), [2 * factor, 4 * factor])
    np.testing.assert_allclose(ocs.get_ydata(), [30, 60])
    np.testing.assert_allclose(md.get_ydata(), [10, 20])
    assert axis.get_xscale() == 'log'
  assert [axis.get_title() for axis in fig.axes[::3]] == ['set 1', 'set 3']
  assert (tmp_path / 'x.png').exists()


def test_kinds_of_methods_differ_in_their_lines():
  names = ('OCS, m=3', 'AOCS, m=3', 'OCS, m=3, costs', 'MD, n=3', 'OSMD, n=3')
  looks = samplers._looks([*names, 'MD, n=32 + one round trip, m=3'])
  styles = [look['linestyle'] for look in looks.values()]
  assert styles[0] == styles[1] == '-'
  assert styles[3] == styles[4]
  assert len(set(styles)) == 4
  # With costs, a scheme keeps its colour; others of a kind differ in theirs.
  assert looks['OCS, m=3, costs']['color'] == looks['OCS, m=3']['color']
  assert looks['OCS, m=3']['color'] != looks['AOCS, m=3']['color']
  assert looks['MD, n=3']['color'] != looks['OSMD, n=3']['color']
  # Also where the scheme without costs is not drawn.
  colors = {look['color'] for look in samplers._looks(names[1:]).values()}
  assert len(colors) == 2
  alone = samplers._looks(['AOCS, m=3, costs', 'OCS, m=3, costs'])
  assert len({look['color'] for look in alone.values()}) == 2
