"""The norms of a run's cohorts: `norms.csv`, written and read here.

It is opt-in, and for simulations only: no server of a deployment sees it. From
it, one can compute what other samplings would have done in the same rounds.
"""

import os
import pathlib
from typing import Union

import numpy as np

from tff_ocs.records import files
from tff_ocs.records import metrics

NORMS = 'norms.csv'


class NormsWriter:
  """Writes `norms.csv`: a row for each round, with the norms of its cohort.

  The columns after `round` are `norm_0000`, `norm_0001` and so on. They have
  the norms n_i ||U_i||, the largest first, since a cohort has no order. The
  last cells of rounds with fewer clients are empty.

  Attributes:
    num_rounds: The number of rounds that were in the file when it was opened.
  """

  def __init__(self, path: Union[str, os.PathLike]):
    """Opens the file, as `metrics.MetricsWriter` does.

    Args:
      path: The run's folder.

    Raises:
      OSError: If the file cannot be read or written.
      RecordError: If the file is not one that a run wrote.
    """
    self._writer = metrics.MetricsWriter(path, NORMS)
    self.num_rounds = self._writer.num_rounds

  def write(self, norms: np.ndarray, round_num: int) -> None:
    """Adds a round, and removes those from it on, as `MetricsWriter.write`.

    Args:
      norms: The norms of the round's clients, float32 of shape [n], finite.
      round_num: The number of the round.

    Raises:
      OSError: If the file cannot be written.
    """
    descending = np.sort(norms)[::-1]
    # The shortest decimal that float32 reads as the same number.
    row = {f'norm_{i:04d}': float(str(u)) for i, u in enumerate(descending)}
    self._writer.write(row, round_num)


def read_norms(path: Union[str, os.PathLike]) -> list[np.ndarray]:
  """Reads a run's `norms.csv`.

  Args:
    path: The run's folder.

  Returns:
    For each round the norms n_i ||U_i|| of its clients, float64 of shape [n],
    the largest first.

  Raises:
    OSError: If the file is missing or cannot be read.
    RecordError: If it is not one that a run wrote.
  """
  table = metrics.read_metrics(path, NORMS)
  metrics.check_rounds(table, NORMS)
  # As they were recorded, in float32.
  values = table.drop(columns='round').to_numpy().astype(np.float32)
  if np.any((values < 0) | np.isinf(values)):
    raise files.RecordError(
      f'its {NORMS} has a norm that is not finite and at least 0'
    )
  return [
    np.sort(of_round[~np.isnan(of_round)])[::-1].astype(np.float64)
    for of_round in values
  ]


def are_recorded(path: Union[str, os.PathLike]) -> bool:
  """Whether a run's folder has its norms."""
  return (pathlib.Path(path) / NORMS).exists()
