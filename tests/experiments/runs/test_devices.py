"""Tests of the model of the clients' devices."""

import numpy as np
import pytest

from experiments.runs import cohorts
from experiments.runs import devices as devices_lib
from experiments.runs import training

SIZES = {f'c{k}': 10 + k for k in range(2000)}
BITS = 8 * 10**6  # 1 MB.


@pytest.fixture(scope='module')
def devices():
  return devices_lib.Devices(SIZES, BITS)


def _seconds(devices, client_ids, sends, exchanges=0, candidates=()):
  return devices.simulate(
    client_ids, sends, exchanges=exchanges, candidates=candidates
  ).seconds


def test_links_have_the_published_median_and_spread(devices):
  rates = 1 / np.array(list(devices.uplink_seconds.values()))  # MB/s.
  # The median of 2,000 has a standard error of 1.25 sigma / sqrt(2000) = 3 %;
  # the devices are always the same.
  assert np.median(rates) == pytest.approx(0.25, rel=0.1)
  assert np.std(np.log(rates)) == pytest.approx(1.1, rel=0.05)


def test_devices_depend_on_the_id_alone(devices):
  other = devices_lib.Devices({'c7': SIZES['c7'], 'x': 3}, BITS)
  assert other.uplink_seconds['c7'] == devices.uplink_seconds['c7']
  assert _seconds(other, ['c7'], [True]) == _seconds(devices, ['c7'], [True])


def _by_hand(name):
  """The seconds of download, a pass over the data, upload, and latency."""
  down, up, speed, latency = devices_lib._normal(name)
  return (
    1 / (0.75 * np.exp(1.1 * down)),
    SIZES[name] * 7 * 0.56e-3 * np.exp(0.7 * speed),
    1 / (0.25 * np.exp(1.1 * up)),
    0.1 * np.exp(0.7 * latency),
  )


def test_rounds_last_as_computed_by_hand(devices):
  ids = [f'c{k}' for k in range(40)]
  sends = np.arange(40) % 7 == 3
  down, train, up, latency = np.array([_by_hand(i) for i in ids]).T
  trained = latency + down + train
  assert _seconds(devices, ids, sends) == pytest.approx(
    10 + max(trained + sends * up)
  )
  assert _seconds(devices, ids, sends, exchanges=3) == pytest.approx(
    10 + max(trained) + 3 * 2 * max(latency) + max(up[sends])
  )
  # The first 9 report their losses, and the first 3 of them train and send.
  evaluated = max((2 * latency + down + train / 3)[:9])
  assert _seconds(
    devices, ids[:3], [True] * 3, candidates=ids[:9]
  ) == pytest.approx(10 + evaluated + max((latency + train + up)[:3]))


def _parts(devices, name):
  """The time of a client alone: training, and its upload."""
  trained = _seconds(devices, [name], [False])
  return trained, _seconds(devices, [name], [True]) - trained


def test_one_round_trip_waits_for_the_slowest_sum(devices):
  parts = {f'c{k}': _parts(devices, f'c{k}') for k in range(20)}
  trainer = max(parts, key=lambda name: parts[name][0])
  uploader = max(parts, key=lambda name: parts[name][1])
  assert trainer != uploader
  names = [trainer, uploader]
  for sends in ([True, True], [False, True], [True, False]):
    assert _seconds(devices, names, sends) == pytest.approx(
      max(
        trained + is_sent * upload
        for is_sent, (trained, upload) in zip(sends, map(parts.get, names))
      )
    )


def test_exchanges_wait_for_all_clients_before_the_first_upload(devices):
  names = ['c1', 'c2', 'c3']
  parts = np.array([_parts(devices, name) for name in names])
  barrier, twice = (
    _seconds(devices, names, [True] * 3, exchanges=k) for k in (1, 2)
  )
  round_trip = twice - barrier
  assert round_trip > 0
  assert barrier - round_trip == pytest.approx(sum(parts.max(axis=0)))
  assert barrier > _seconds(devices, names, [True] * 3)


def test_uplinks_of_those_that_send_are_added_up(devices):
  up = devices.uplink_seconds
  costs = devices.simulate(
    ['c1', 'c2', 'c3'], np.array([True, False, True]), exchanges=1
  )
  assert costs.uplink_seconds == pytest.approx(up['c1'] + up['c3'])


def test_nobody_trains(devices):
  assert devices.simulate([], [], exchanges=2) == (0, 0, 0)


def test_candidates_take_a_step_of_their_own(devices):
  plain = devices.simulate(['c1'], [True], exchanges=0)
  more = devices.simulate(
    ['c1'], [True], exchanges=0, candidates=['c1', 'c5', 'c9']
  )
  assert more.seconds > plain.seconds
  assert plain.examples == SIZES['c1']
  assert more.examples == pytest.approx(
    SIZES['c1'] + (SIZES['c1'] + SIZES['c5'] + SIZES['c9']) / 3
  )


# Columns: the place, the norm, and whether the client sent.
ROWS = np.array([[0, 1, 1], [1, 1, 0], [2, 1, 1]], np.float32)


@pytest.mark.parametrize(
  ('sampling', 'trains', 'exchanges'),
  [
    ('full', ['c1', 'c2', 'c3'], 0),
    ('threshold', ['c1', 'c2', 'c3'], 0),
    ('ocs', ['c1', 'c2', 'c3'], 1),
    ('aocs', ['c1', 'c2', 'c3'], 4),
    # The coins of uniform sampling do not depend on the updates.
    ('uniform', ['c1', 'c3'], 0),
  ],
)
def test_who_trains_and_who_waits(devices, sampling, trains, exchanges):
  cohort = cohorts.Round(['c1', 'c2', 'c3'], [], 0.0)
  sends = [name != 'c2' for name in trains]
  costs = devices.simulate(trains, sends, exchanges=exchanges)
  assert training._simulate(
    devices, sampling, cohort, ROWS, {'num_iterations': 3}
  ) == {
    'simulated_seconds': costs.seconds,
    'simulated_uplink_seconds': costs.uplink_seconds,
    'simulated_examples': costs.examples,
  }
  nobody = ROWS * [1, 1, 0]
  costs = training._simulate(
    devices, sampling, cohort, nobody, {'num_iterations': 3}
  )
  assert costs['simulated_uplink_seconds'] == 0
  assert (
    (costs['simulated_seconds'] == 0)
    == (costs['simulated_examples'] == 0)
    == (sampling == 'uniform')
  )


def test_epochs_are_of_the_training_but_not_of_the_candidates():
  once, thrice = (
    devices_lib.Devices({'a': 1000}, BITS, epochs) for epochs in (1, 3)
  )
  seconds, candidate = (
    [
      _seconds(of, ['a'], [False], candidates=candidates)
      for of in (once, thrice, devices_lib.Devices({'a': 0}, BITS))
    ]
    for candidates in ((), ('a',))
  )
  one_pass = seconds[0] - seconds[2]
  assert seconds[1] - seconds[0] == pytest.approx(2 * one_pass)
  assert candidate[1] - candidate[0] == pytest.approx(2 * one_pass)
  assert candidate[0] - candidate[2] == pytest.approx((1 + 1 / 3) * one_pass)
  costs = devices_lib.Devices({'a': 1000}, BITS, 3).simulate(
    ['a'], [True], exchanges=0, candidates=['a']
  )
  assert costs.examples == pytest.approx(3000 + 1000 / 3)
