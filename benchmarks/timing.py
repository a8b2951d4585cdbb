"""Times contenders in turns."""

import time
from collections.abc import Callable
from collections.abc import Mapping

import numpy as np


def take_turns(
  contenders: Mapping[str, Callable[[], object]], times: int
) -> dict[str, np.ndarray]:
  """The seconds of each contender's calls.

  The first call, which may compile, is left out. The order is reversed every
  other time, so that a drift of the machine's speed cancels out.
  """
  seconds = {name: [] for name in contenders}
  for turn in range(times + 1):
    for name in list(contenders)[:: 1 if turn % 2 else -1]:
      start = time.perf_counter()
      contenders[name]()
      if turn > 0:
        seconds[name].append(time.perf_counter() - start)
  return {name: np.array(values) for name, values in seconds.items()}
