"""A model of the clients' devices: how long a round would take on phones.

Each client has a compute speed, a downlink, an uplink and a latency, drawn once
from log-normal distributions by its id. Each step of a round's protocol
(docs/protocol.md) lasts as long as its slowest client needs:

*   With one round trip, a client uploads as soon as it has trained. The round
    ends when the last client has done both, or trained if it does not send.
*   OCS and AOCS wait for all clients before each exchange of scalars, and so
    before the first upload: 1 exchange with OCS, 1 + j with AOCS.
*   With uniform sampling, clients toss their coins first, and those that will
    not send do not train.
*   Power-of-Choice waits for the losses of its candidates before the cohort
    trains. A loss costs a third of a training step, which goes forwards and
    backwards.

Nobody waits for a client that is lost, see --dropout_rate: a server that waits
until a deadline takes longer, with each wait. A latency passes
with the model on its way to a client, and two with each exchange of scalars,
also of losses.

The medians of the links, the fixed time of a round and the factor 7 of compute
are those that Wang et al., *A Field Guide to Federated Optimization*, 2021,
Section 4, report of a real cross-device system: 0.75 MB/s down, 0.25 MB/s up,
10 s, and 7 times the time of a simulation, which is 0.56 ms an example for the
CNN of FEMNIST on one core.

The spread of the links is that of the 500,000 clients in the device trace of
FedScale (Lai et al., ICML 2022; its file client_device_capacity has bandwidths
that MobiPerf measured on Wi-Fi). Their median is 6.1 Mbit/s, and 26 % are below
3. A log-normal distribution with sigma = ln(6.1 / 3) / 0.64 = 1.1 has both. The
spread of compute, sigma = 0.7 or a factor of 10 from the 5th to the 95th
percentile, and the latency, 0.1 s with sigma = 0.7, are assumptions.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_ocs import simple_fedavg

# Medians and the standard deviations of their logarithms.
_DOWN_BYTES_PER_SECOND = (0.75e6, 1.1)
_UP_BYTES_PER_SECOND = (0.25e6, 1.1)
_SECONDS_PER_EXAMPLE = (7 * 0.56e-3, 0.7)
_LATENCY_SECONDS = (0.1, 0.7)
_FIXED_SECONDS = 10.0
_EVALUATION = 1 / 3  # Of a training step.
# The devices are the same in all runs, whatever their seed.
_SEED = 20210714


class RoundCosts(NamedTuple):
  """The costs of a round on the clients' devices.

  Attributes:
    seconds: How long the round takes; 0 if nobody trains.
    uplink_seconds: The seconds for which clients send updates, all together.
    examples: The examples on which clients compute: each of them once an epoch,
      and a third of those of candidates.
  """

  seconds: float
  uplink_seconds: float
  examples: float


class Devices:
  """The devices of a pool.

  Attributes:
    uplink_seconds: How long each client's update takes to send, by its id.
  """

  def __init__(
    self, num_examples: Mapping[str, int], bits_per_update: int, epochs: int = 1
  ):
    """Draws the devices.

    Args:
      num_examples: The number of examples of each client, by its id.
      bits_per_update: The bits of the model, down, and of an update, up.
      epochs: How often a client trains on each example in a round.
    """
    self._places = {name: place for place, name in enumerate(num_examples)}
    normal = np.array([_normal(name) for name in num_examples]).reshape(-1, 4)

    def draw(column, median_and_sigma):
      median, sigma = median_and_sigma
      return median * np.exp(sigma * normal[:, column])

    bytes_per_update = bits_per_update / 8
    self._down = bytes_per_update / draw(0, _DOWN_BYTES_PER_SECOND)
    self._up = bytes_per_update / draw(1, _UP_BYTES_PER_SECOND)
    self._num_examples = np.array(list(num_examples.values()), np.int64)
    self._pass = draw(2, _SECONDS_PER_EXAMPLE) * self._num_examples
    self._epochs = epochs
    self._latency = draw(3, _LATENCY_SECONDS)
    self.uplink_seconds = dict(zip(num_examples, self._up))

  def simulate(
    self,
    client_ids: Sequence[str],
    sends: Sequence[bool],
    *,
    exchanges: int,
    candidates: Sequence[str] = (),
  ) -> RoundCosts:
    """Returns what a round costs.

    Args:
      client_ids: The clients that train.
      sends: Whether each of them sends its update.
      exchanges: How often all clients report scalars and wait for an answer,
        between training and the upload.
      candidates: The clients that report their losses before the cohort trains.

    Raises:
      KeyError: If a client is not in the pool.
    """
    places, candidates = self._find(client_ids), self._find(candidates)
    examples = float(
      self._epochs * self._num_examples[places].sum()
      + _EVALUATION * self._num_examples[candidates].sum()
    )
    if places.size == 0:
      return RoundCosts(0.0, 0.0, examples)
    seconds = _FIXED_SECONDS
    down = self._down[places]
    if candidates.size:
      evaluation = _EVALUATION * self._pass[candidates]
      seconds += np.max(
        2 * self._latency[candidates] + self._down[candidates] + evaluation
      )
      down = 0.0  # The cohort's clients have the model already.
    trained = self._latency[places] + down + self._epochs * self._pass[places]
    uploads = np.where(sends, self._up[places], 0.0)
    if exchanges == 0:
      seconds += np.max(trained + uploads)
    else:
      round_trip = 2 * np.max(self._latency[places])
      seconds += np.max(trained) + exchanges * round_trip + np.max(uploads)
    return RoundCosts(float(seconds), float(np.sum(uploads)), examples)

  def _find(self, client_ids):
    return np.array([self._places[i] for i in client_ids], np.int64)


def _normal(client_id):
  """Returns the standard normal numbers of a client."""
  seed = simple_fedavg.client_seed(_SEED, 0, client_id)
  return np.random.default_rng(seed.view(np.uint64)).standard_normal(4)
