"""The clients of a run, which `--evaluate_clients` records.

`clients.csv` has a line for each client, with the accuracy of the final weights
and its participations; `client_accuracies.csv` has a line for each evaluation
of all clients. A real server sees none of it: it is a simulation's view.
"""

import math
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple
from typing import Union

import numpy as np
import pandas as pd

from tff_ocs.records import files
from tff_ocs.records import metrics

CLIENTS = 'clients.csv'
# The fraction of clients whose mean accuracy counts as that of the worst.
WORST_FRACTION = 0.1
# The columns are described in `metrics.CLIENT_COLUMNS`.
COLUMNS = tuple(metrics.CLIENT_COLUMNS)
_TRAINING_EXAMPLES = 'training_examples'


class Distribution(NamedTuple):
  """The distribution of the accuracy over clients, each of the same weight.

  Attributes:
    mean: The mean accuracy, in [0, 1].
    worst: The mean accuracy of the worst 10 % of the clients, whose number is
      rounded up.
    std: The standard deviation over the clients, as of a population: the sum of
      squares is divided by their number.
    num_clients: The number of clients with validation examples.
  """

  mean: float
  worst: float
  std: float
  num_clients: int


def describe(table: pd.DataFrame) -> Distribution:
  """Describes the accuracies of a table.

  Args:
    table: As of `read_clients`.

  Returns:
    The `Distribution`.

  Raises:
    RecordError: If no client has validation examples.
  """
  accuracies = np.sort(table['accuracy'].dropna().to_numpy(np.float64))
  if accuracies.size == 0:
    raise files.RecordError(f'{CLIENTS} has no client with an accuracy.')
  # 0.1 x 30 is a little above 3.
  num_worst = math.ceil(round(WORST_FRACTION * accuracies.size, 9))
  return Distribution(
    float(accuracies.mean()),
    float(accuracies[:num_worst].mean()),
    float(accuracies.std()),
    int(accuracies.size),
  )


def write_clients(path: Union[str, os.PathLike], table: pd.DataFrame) -> None:
  """Writes a run's `clients.csv` atomically.

  Args:
    path: The run's folder.
    table: The table, with the `COLUMNS`.

  Raises:
    OSError: If the file cannot be written.
  """
  with files.replacing(pathlib.Path(path) / CLIENTS) as partial:
    table.to_csv(partial, index=False, lineterminator='\n')


def read_clients(path: Union[str, os.PathLike]) -> pd.DataFrame:
  """Reads a run's `clients.csv`.

  Args:
    path: The run's folder.

  Returns:
    The table, with the `COLUMNS`.

  Raises:
    OSError: If the file is missing or cannot be read.
    RecordError: If it does not have these columns.
  """
  path = pathlib.Path(path) / CLIENTS
  try:
    # As text, so that the clients 007 and NA keep their names.
    table = pd.read_csv(path, converters={'client_id': str})
  except (ValueError, pd.errors.ParserError) as error:
    raise files.RecordError(f'{path} cannot be read: {error}') from error
  if _TRAINING_EXAMPLES not in table and 'in_pool' in table:
    after = table.columns.get_loc('in_pool')
    table.insert(after + 1, _TRAINING_EXAMPLES, np.nan)
  if list(table.columns) != list(COLUMNS):
    raise files.RecordError(
      f'{path} must have the columns {",".join(COLUMNS)}, found'
      f' {",".join(table.columns)}.'
    )
  return table


class AccuraciesWriter:
  """Writes `client_accuracies.csv`: a row for each evaluation of the clients.

  The columns are described in `metrics.CLIENT_ACCURACY_COLUMNS`.

  Attributes:
    num_rounds: The first round to evaluate that was missing in the file when it
      was opened.
  """

  def __init__(self, path: Union[str, os.PathLike], rounds: Sequence[int]):
    """Opens the file, as `metrics.MetricsWriter` does.

    Args:
      path: The run's folder.
      rounds: The rounds after which the clients are evaluated, ascending.

    Raises:
      OSError: If the file cannot be read or written.
      RecordError: If the file is not one that a run wrote.
    """
    self._writer = metrics.MetricsWriter(
      path, metrics.CLIENT_ACCURACIES, rounds
    )
    self.num_rounds = self._writer.num_rounds

  def write(self, found: Distribution, round_num: int) -> None:
    """Writes the row of a round, and removes those of this and later rounds.

    Args:
      found: The accuracies after the round.
      round_num: The number of the round.

    Raises:
      OSError: If the file cannot be written.
    """
    row = {
      'mean': found.mean,
      'num_clients': found.num_clients,
      'std': found.std,
      'worst_10_percent': found.worst,
    }
    self._writer.write(row, round_num)


def read_accuracies(path: Union[str, os.PathLike]) -> pd.DataFrame:
  """Reads a run's `client_accuracies.csv`.

  Args:
    path: The run's folder.

  Returns:
    The `metrics.CLIENT_ACCURACY_COLUMNS`, float64, with a row for each
    evaluation.

  Raises:
    OSError: If the file is missing or cannot be read.
    RecordError: If it does not have these columns.
  """
  table = metrics.read_metrics(path, metrics.CLIENT_ACCURACIES)
  due = list(metrics.CLIENT_ACCURACY_COLUMNS)
  if list(table.columns) != due:
    raise files.RecordError(
      f'its {metrics.CLIENT_ACCURACIES} must have the columns {",".join(due)},'
      f' found {",".join(table.columns)}'
    )
  return table
