"""The record of single clients in a run, which no real server would see.

`clients.csv` has a line for each client that is in the pool or has validation
examples: the accuracy of the final weights on these, and how often the client
was drawn and sent. The table is for simulations.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from experiments.runs import cohorts
from tff_ocs.records import clients
from tff_ocs.tasks import client_data
from tff_ocs.tasks import task as task_lib


class ClientRecord:
  """The participations of a run's clients, and their accuracies in the end."""

  def __init__(self, task: task_lib.Task, test: client_data.ClientData):
    """Initializes `ClientRecord`.

    Args:
      task: The task.
      test: The validation examples of each client.
    """
    self._test = test
    self._evaluate = task_lib.build_evaluator(task.model, metrics=task.metrics)
    self._places = {name: k for k, name in enumerate(task.train.client_ids)}
    self._counts = np.zeros((2, len(self._places)), np.int64)

  def count(self, drawn: cohorts.Round, rows: np.ndarray) -> None:
    """Counts the clients of a round.

    Args:
      drawn: The clients of the round.
      rows: The `clients` of the process's measurements, sorted by place.
    """
    places = [self._places[name] for name in drawn.client_ids]
    self._counts[0, places] += 1
    self._counts[1, places] += rows[:, 2].astype(np.int64)

  @property
  def state(self) -> dict[str, np.ndarray]:
    """The counts, for checkpoints."""
    return {'participations': self._counts.copy()}

  def restore(self, state: Mapping[str, np.ndarray]) -> None:
    """Sets the counts."""
    self._counts = np.array(state['participations'])

  def tabulate(self, weights) -> pd.DataFrame:
    """The table of `clients.csv`, see `tff_ocs.records.clients`.

    Args:
      weights: The final weights, `tff.learning.models.ModelWeights`.
    """
    rows = []
    sizes = self._test.num_examples
    for name in sorted({*self._places, *sizes}):
      result = task_lib.Evaluation(np.nan, np.nan)
      if sizes.get(name):
        result = self._evaluate(weights, self._test.read(name))
      place = self._places.get(name)
      drawn, sent = (0, 0) if place is None else self._counts[:, place]
      rows.append(
        (
          name,
          place is not None,
          sizes.get(name, 0),
          result.accuracy,
          result.loss,
          drawn,
          sent,
        )
      )
    return pd.DataFrame(rows, columns=list(clients.COLUMNS))
