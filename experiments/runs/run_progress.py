"""The progress of a run, read from its folder while the run goes on.

This module is also sent to the nodes of a Ray cluster, so it does not import
TensorFlow.
"""

import pathlib
from typing import Optional

CHECKPOINT_PREFIX = 'after_round_'


def count_rounds(folder: pathlib.Path) -> int:
  """The number of rounds in the `metrics.csv` of a run's folder."""
  try:
    lines = (folder / 'metrics.csv').read_bytes().count(b'\n')
  except FileNotFoundError:
    return 0
  return max(lines - 1, 0)


def has_final_weights(folder: pathlib.Path) -> bool:
  """Whether a run's folder holds the final weights: the run is finished."""
  return (folder / 'weights.npz').exists()


def newest_checkpoint(folder: pathlib.Path) -> Optional[str]:
  """The name of the newest whole checkpoint in a run's folder."""
  paths = (folder / 'checkpoints').glob(f'{CHECKPOINT_PREFIX}*')
  # The name of one that is being written has more at its end.
  numbers = [path.name[len(CHECKPOINT_PREFIX) :] for path in paths]
  rounds = [int(number) for number in numbers if number.isdigit()]
  return f'{CHECKPOINT_PREFIX}{max(rounds)}' if rounds else None
