"""Reads the folders that runs leave behind, see `experiments.run_folder`."""

import csv
import dataclasses
import json
import os
import pathlib
from typing import Any
from typing import Union

import numpy as np


@dataclasses.dataclass(frozen=True)
class Run:
  """One finished or unfinished run.

  Attributes:
    config: What `config.json` holds.
    metrics: The columns of `metrics.csv` by name, float64 arrays of shape
      [num_rounds]; NaN where a cell is empty.
  """

  config: dict[str, Any]
  metrics: dict[str, np.ndarray]

  def evaluated(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The rounds with a value of a metric, as indices, and the values."""
    values = self.metrics[name]
    (rounds,) = np.nonzero(~np.isnan(values))
    return rounds, values[rounds]


def read_run(path: Union[str, os.PathLike]) -> Run:
  """Reads a run's folder.

  Args:
    path: The folder.

  Returns:
    The `Run`, with the rounds that are there.

  Raises:
    FileNotFoundError: If the folder is not one of a run.
  """
  path = pathlib.Path(path)
  config = json.loads((path / 'config.json').read_text())
  with (path / 'metrics.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  names = rows[0] if rows else []
  metrics = {
    name: np.array([float(row[name] or 'nan') for row in rows])
    for name in names
  }
  return Run(config, metrics)


def bits_to_accuracy(run: Run, accuracy: float) -> float:
  """The uplink bits until a validation accuracy is first reached.

  Args:
    run: The run.
    accuracy: The validation accuracy, in [0, 1].

  Returns:
    The cumulative bits at the first evaluation that reaches it, or infinity.
  """
  rounds, values = run.evaluated('validation_accuracy')
  (reached,) = np.nonzero(values >= accuracy)
  if reached.size == 0:
    return float('inf')
  return float(run.metrics['cumulative_uplink_bits'][rounds[reached[0]]])
