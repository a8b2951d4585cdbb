"""Random clients for the paper's FEMNIST model."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from tff_ocs import simple_fedavg
from tff_ocs.tasks import femnist


def draw_clients(sizes: Iterable[int]) -> list[dict[str, Any]]:
  """The data of a round's clients, as `simple_fedavg` takes it."""
  rng = np.random.default_rng(0)
  return [
    {
      'x': rng.random((size, 28, 28), dtype=np.float32),
      'y': rng.integers(0, femnist.NUM_CLASSES, size).astype(np.int32),
      'seed': simple_fedavg.client_seed(0, 0, str(i)),
    }
    for i, size in enumerate(sizes)
  ]
