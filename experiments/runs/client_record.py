"""The record of single clients in a run, which no real server would see.

`clients.csv` has a line for each client that is in the pool or has validation
examples: the accuracy of the final weights on these, and how often the client
was drawn and sent. For tasks with an accuracy, `client_accuracies.csv` has its
distribution over the clients after some of the rounds. Both are for
simulations.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Optional

import numpy as np
import pandas as pd

from experiments.runs import cohorts
from experiments.runs import run_folder
from tff_ocs.records import clients
from tff_ocs.tasks import client_data
from tff_ocs.tasks import task as task_lib


class ClientRecord:
  """The participations of a run's clients, and their accuracies."""

  def __init__(
    self,
    task: task_lib.Task,
    test: client_data.ClientData,
    rounds: Sequence[int],
  ):
    """Initializes `ClientRecord`.

    Args:
      task: The task.
      test: The validation examples of each client.
      rounds: The rounds after which the clients are evaluated, ascending; the
        last one is that of the run.
    """
    self._has_accuracy = 'accuracy' in task.metrics
    self._rounds = rounds
    self._folder: Optional[run_folder.RunFolder] = None
    self._writer: Optional[clients.AccuraciesWriter] = None
    self._sizes = task.train.num_examples
    self._test = test
    self._evaluate = task_lib.build_evaluator(task.model, metrics=task.metrics)
    self._places = {name: k for k, name in enumerate(self._sizes)}
    self._counts = np.zeros((2, len(self._places)), np.int64)

  def open(self, folder: run_folder.RunFolder) -> None:
    """Starts or continues the files in the run's folder, which is started.

    Raises:
      OSError: If `client_accuracies.csv` cannot be read or written.
      RecordError: If it is missing or damaged.
    """
    self._folder = folder
    if self._has_accuracy:
      self._writer = folder.open_accuracies(self._rounds)

  def release(self, weights, round_num: int) -> None:
    """Evaluates the clients if that is due after a round, and writes the files.

    Args:
      weights: The weights, `tff.learning.models.ModelWeights`.
      round_num: The number of the round.

    Raises:
      OSError: If a file cannot be written.
    """
    if round_num not in self._rounds:
      return
    table = self.tabulate(weights)
    if self._writer is not None:
      self._writer.write(clients.describe(table), round_num)
    if round_num == self._rounds[-1]:
      clients.write_clients(self._folder.path, table)

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
      weights: The weights, `tff.learning.models.ModelWeights`.
    """
    rows = []
    sizes = self._test.num_examples
    for name in sorted({*self._places, *sizes}):
      result = task_lib.Evaluation(np.nan, np.nan)
      if sizes.get(name):
        result = self._evaluate(weights, self._test.examples(name))
      place = self._places.get(name)
      drawn, sent = (0, 0) if place is None else self._counts[:, place]
      rows.append(
        (
          name,
          place is not None,
          self._sizes.get(name, 0),
          sizes.get(name, 0),
          result.accuracy,
          result.loss,
          drawn,
          sent,
        )
      )
    return pd.DataFrame(rows, columns=list(clients.COLUMNS))
