"""Tests of the model of the clients' devices."""

import numpy as np
import pytest

from experiments.runs import devices as devices_lib

SIZES = {f'c{k}': 10 + k for k in range(2000)}
BITS = 8 * 10**6  # 1 MB.


@pytest.fixture(scope='module')
def devices():
  return devices_lib.Devices(SIZES, BITS)


def test_links_have_the_published_median_and_spread(devices):
  rates = 1 / np.array(list(devices.uplink_seconds.values()))  # MB/s.
  # The median of 2,000 has a standard error of 1.25 sigma / sqrt(2000) = 3 %;
  # the devices are always the same.
  assert np.median(rates) == pytest.approx(0.25, rel=0.1)
  assert np.std(np.log(rates)) == pytest.approx(1.1, rel=0.05)


def test_devices_depend_on_the_id_alone(devices):
  other = devices_lib.Devices({'c7': SIZES['c7'], 'x': 3}, BITS)
  assert other.uplink_seconds['c7'] == devices.uplink_seconds['c7']
  assert other.round_seconds(['c7'], [True], exchanges=0) == (
    devices.round_seconds(['c7'], [True], exchanges=0)
  )


def _parts(devices, name):
  """The time of a client alone: training, and its upload."""
  trained = devices.round_seconds([name], [False], exchanges=0)
  return trained, devices.round_seconds([name], [True], exchanges=0) - trained


def test_one_round_trip_waits_for_the_slowest_sum(devices):
  parts = {f'c{k}': _parts(devices, f'c{k}') for k in range(20)}
  trainer = max(parts, key=lambda name: parts[name][0])
  uploader = max(parts, key=lambda name: parts[name][1])
  assert trainer != uploader
  names = [trainer, uploader]
  for sends in ([True, True], [False, True], [True, False]):
    seconds = devices.round_seconds(names, sends, exchanges=0)
    assert seconds == pytest.approx(
      max(
        trained + is_sent * upload
        for is_sent, (trained, upload) in zip(sends, map(parts.get, names))
      )
    )


def test_exchanges_wait_for_all_clients_before_the_first_upload(devices):
  names = ['c1', 'c2', 'c3']
  parts = np.array([_parts(devices, name) for name in names])
  barrier, twice = (
    devices.round_seconds(names, [True] * 3, exchanges=k) for k in (1, 2)
  )
  round_trip = twice - barrier
  assert round_trip > 0
  assert barrier - round_trip == pytest.approx(sum(parts.max(axis=0)))
  assert barrier > devices.round_seconds(names, [True] * 3, exchanges=0)


def test_uplinks_of_those_that_send_are_added_up(devices):
  up = devices.uplink_seconds
  assert devices.sum_uplinks(
    ['c1', 'c2', 'c3'], np.array([True, False, True])
  ) == pytest.approx(up['c1'] + up['c3'])
  assert devices.sum_uplinks([], np.array([], bool)) == 0


def test_candidates_take_a_step_of_their_own(devices):
  plain = devices.round_seconds(['c1'], [True], exchanges=0)
  more = devices.round_seconds(
    ['c1'], [True], exchanges=0, candidates=['c1', 'c5', 'c9']
  )
  assert more > plain
  assert devices.round_seconds([], [], exchanges=0) == 0


def test_epochs_are_of_the_training_but_not_of_the_candidates():
  once, thrice = (
    devices_lib.Devices({'a': 1000}, BITS, epochs) for epochs in (1, 3)
  )
  seconds, candidate = (
    [
      of.round_seconds(['a'], [False], exchanges=0, candidates=candidates)
      for of in (once, thrice, devices_lib.Devices({'a': 0}, BITS))
    ]
    for candidates in ((), ('a',))
  )
  one_pass = seconds[0] - seconds[2]
  assert seconds[1] - seconds[0] == pytest.approx(2 * one_pass)
  assert candidate[1] - candidate[0] == pytest.approx(2 * one_pass)
  assert candidate[0] - candidate[2] == pytest.approx((1 + 1 / 3) * one_pass)


def test_time_grows_with_the_examples():
  small, large = (
    devices_lib.Devices({'a': n}, BITS).round_seconds(
      ['a'], [False], exchanges=0
    )
    for n in (0, 1000)
  )
  # 7 x 0.56 ms an example is the median.
  assert 0.1 < (large - small) / (1000 * 7 * 0.56e-3) < 10
