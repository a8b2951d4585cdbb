"""The metrics of a run's rounds: `metrics.csv`, written and read here.

`python -m tff_ocs.records.metrics` prints docs/metrics.md, the table of all
columns.
"""

import collections
import csv
import io
import os
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np
import pandas as pd
from absl import logging

from tff_ocs.records import files
from tff_ocs.records import waiting

METRICS = 'metrics.csv'
CLIENT_ACCURACIES = 'client_accuracies.csv'


class Column(NamedTuple):
  """A column of `metrics.csv`.

  Attributes:
    unit: The unit of its numbers.
    meaning: What it measures, and when it is empty or missing.
  """

  unit: str
  meaning: str


COLUMNS = {
  'round': Column('number', 'The round, counted from 0.'),
  'training_loss': Column(
    'nats',
    'The mean loss over the examples of the training clients, whether they send'
    ' or not. Each example counts with its loss before the step that uses it.'
    ' Clients whose loss is not finite are left out; NaN if none is left.',
  ),
  'available': Column(
    'clients',
    'The clients of the cohort that were available, or that reported at least'
    ' their norm with `--dropout_rate`; without these flags, all of them. The'
    ' column is missing in records of early versions.',
  ),
  'participants': Column('clients', 'The clients that sent their update.'),
  'expected_participants': Column(
    'clients', 'The sum of the probabilities with which clients send.'
  ),
  'num_iterations': Column(
    'iterations', 'The iterations of AOCS; 0 for other samplings.'
  ),
  'non_finite_clients': Column(
    'clients',
    'The clients whose update was NaN or infinite. Such updates are not sent.',
  ),
  'invalid_probabilities': Column(
    'clients',
    'The clients for which the sampling scheme computed a probability outside'
    ' of [0, 1], or 0 although they had something to send. Such a round is'
    ' biased. The column is missing in records of early versions.',
  ),
  'improvement_factor': Column(
    'ratio in [0, 1]',
    "alpha^k of the round's updates, Eq. (15) without its expectations: the"
    ' variance that optimal sampling adds, relative to uniform sampling with'
    ' the same m. Small is good: with 0 optimal sampling is as good as full'
    ' participation, with 1 it is no better than uniform sampling. The column'
    ' is missing with `--client_costs`, with `--cohort_sampler` and full'
    ' participation, and in records that did not measure it.',
  ),
  'relative_improvement_factor': Column(
    'ratio in [m/n, 1]',
    'gamma^k, Eq. (16): m / (alpha^k (n - m) + m). Large is good: 1 is as full'
    ' participation, m/n as uniform sampling. Missing where alpha^k is.',
  ),
  'cohort_examples': Column(
    'examples', 'The training examples of the clients that trained.'
  ),
  'candidate_examples': Column(
    'examples',
    'The training examples on which candidates computed their loss before the'
    ' round, one forward pass each; 0 unless'
    ' `--cohort_sampler=power_of_choice`. The column is missing in records of'
    ' early versions.',
  ),
  'uplink_bits': Column(
    'bits',
    'The bits that the clients sent to the server in the round: the updates and'
    ' the numbers that the sampling needs. The weights n_i are not counted,'
    ' since the server knows them.',
  ),
  'cumulative_uplink_bits': Column(
    'bits', 'The bits sent up to and including this round.'
  ),
  'seconds': Column(
    'seconds',
    'The time of the round. It includes the reading of the examples of the'
    " cohort, the clients' training, the sampling and the aggregation; and the"
    ' compilation, in the first round and in the first one after a resumption.'
    ' It does not include the evaluation, the checkpoints and the writing of'
    ' this file.',
  ),
  'simulated_seconds': Column(
    'seconds',
    'The time that the round would take on phones, by the model of'
    ' `experiments/runs/devices.py`. Only with `--simulate_devices`.',
  ),
  'simulated_uplink_seconds': Column(
    'seconds',
    'The sum of the times that the updates of the round would take on the'
    " clients' links, by the same model. With `--client_costs=uplink_seconds`"
    ' it is, on average, at most that of m clients drawn at random. Only with'
    ' `--simulate_devices`.',
  ),
  'simulated_examples': Column(
    'examples',
    'The examples on which clients would compute in the round, once an epoch,'
    ' by the same model: not those of clients that know before they train that'
    ' they will not send (uniform sampling), and a third of those on which'
    ' candidates evaluate. Only with `--simulate_devices`.',
  ),
  'validation_accuracy': Column(
    'ratio in [0, 1]',
    'The fraction of the validation labels that the weights after the round'
    ' predict correctly. Empty in rounds without an evaluation.',
  ),
  'validation_loss': Column(
    'nats',
    'The mean loss of the weights after the round on the validation set. Empty'
    ' in rounds without an evaluation.',
  ),
}

# Of `clients.csv`, see `clients.write_clients`.
CLIENT_COLUMNS = {
  'client_id': Column('text', 'The id of the client.'),
  'in_pool': Column(
    'True or False', 'Whether the client is in the training pool.'
  ),
  'training_examples': Column(
    'examples',
    'Its training examples. The column is empty in records of early versions.',
  ),
  'validation_examples': Column('examples', 'Its validation examples.'),
  'accuracy': Column(
    'ratio in [0, 1]',
    'The accuracy of the final weights on its validation examples. Empty'
    ' without any.',
  ),
  'loss': Column(
    'nats', 'The mean loss of the final weights on them. Empty without any.'
  ),
  'simulated_draws': Column(
    'rounds', 'The rounds in which the client was in the cohort.'
  ),
  'simulated_sends': Column(
    'rounds', 'The rounds in which it sent its update.'
  ),
}

# Of `client_accuracies.csv`, see `clients.AccuraciesWriter`.
CLIENT_ACCURACY_COLUMNS = {
  'round': Column(
    'number',
    'The round, counted from 0, after which the clients were evaluated.',
  ),
  'mean': Column('ratio in [0, 1]', 'The mean accuracy over the clients.'),
  'num_clients': Column(
    'clients', 'The clients with validation examples, which are evaluated.'
  ),
  'std': Column(
    'ratio in [0, 1]',
    'The standard deviation of the accuracy over the clients.',
  ),
  'worst_10_percent': Column(
    'ratio in [0, 1]',
    'The mean accuracy of the worst 10 % of the clients, a number of clients'
    ' that is rounded up.',
  ),
}


def format_documentation() -> str:
  """The text of docs/metrics.md, with a table of all columns."""
  rows, rows_of_clients, rows_of_accuracies = (
    '\n'.join(
      f'| `{name}` | {column.unit} | {column.meaning} |'
      for name, column in columns.items()
    )
    for columns in (COLUMNS, CLIENT_COLUMNS, CLIENT_ACCURACY_COLUMNS)
  )
  return f"""\
# The columns of metrics.csv

Each run writes a line for each round to `metrics.csv` in its folder.
Rounds are counted from 0 in this file, in figures and in tables. The
columns after `round` are in alphabetical order.

| Column | Unit | Meaning |
| --- | --- | --- |
{rows}

A task with metrics of its own has a column `validation_NAME` for each of them,
for example `validation_mean_absolute_error`, in the metric's own unit. A task
of regression targets has no `validation_accuracy`, and its losses are in the
unit of its loss instead of nats.

## The columns of clients.csv

With `--evaluate_clients`, a run writes a line for each client that is in the
pool or has validation examples. A real server does not see these numbers.

| Column | Unit | Meaning |
| --- | --- | --- |
{rows_of_clients}

## The columns of {CLIENT_ACCURACIES}

With `--evaluate_clients`, a run of a task with an accuracy evaluates the
weights on each client's own validation examples, where each client counts the
same. Each evaluation is a line of `{CLIENT_ACCURACIES}`: one after the last
round, and with `--rounds_per_client_eval=k` also one after each round whose
number is divisible by k. A real server does not see these numbers.

| Column | Unit | Meaning |
| --- | --- | --- |
{rows_of_accuracies}

## The columns of norms.csv

With `--record_norms`, a run writes a line for each round, with the norms n_i
||U_i|| of its cohort in `norm_0000`, `norm_0001` and so on, the largest first.
The last cells are empty if other cohorts are larger.

This page is generated by
`python -m tff_ocs.records.metrics > docs/metrics.md`.
"""


def read_metrics(
  path: Union[str, os.PathLike], name: str = METRICS
) -> pd.DataFrame:
  """Reads a run's `metrics.csv`, or another table with a row for each round.

  Files that a spreadsheet has saved again, with a byte order mark and CRLF, are
  read too.

  Args:
    path: The run's folder.
    name: The file's name.

  Returns:
    The columns by name, float64, with a row for each round; NaN where a cell is
    empty.

  Raises:
    OSError: If the file is missing or cannot be read.
    RecordError: If it is not a table of numbers.
  """
  return _parse(_decode((pathlib.Path(path) / name).read_bytes(), name), name)


def check_rounds(
  table: pd.DataFrame,
  name: str = METRICS,
  rounds: Optional[Sequence[int]] = None,
) -> None:
  """Checks that the rounds of a table are 0, 1, 2 and so on, or others.

  Args:
    table: As of `read_metrics`.
    name: The file's name.
    rounds: The rounds that the table has when it is complete, ascending; if not
      given, all.

  Raises:
    RecordError: If they are not, or if there is no such column.
  """
  if 'round' not in table:
    raise files.RecordError(f'its {name} has no column round')
  for place, found in enumerate(table['round']):
    is_due = rounds is None or place < len(rounds)
    due = rounds[place] if rounds is not None and is_due else place
    if found != due or not is_due:
      is_twice = found in table['round'].iloc[:place].array
      where = f'where round {due} should be' if is_due else 'after its last one'
      raise files.RecordError(
        f'its {name} has round {found:g} {"twice" if is_twice else where}'
      )


class MetricsWriter:
  """Writes a table with a row for each round, through TFF's release manager.

  Attributes:
    num_rounds: The first round that was missing in the file when it was opened.
  """

  def __init__(
    self,
    path: Union[str, os.PathLike],
    name: str = METRICS,
    rounds: Optional[Sequence[int]] = None,
  ):
    """Opens the file, to continue it if it exists.

    If an earlier run ended in the middle of a line, that line is cut off. A
    file that a spreadsheet has saved again is brought back to that form.
    Anything else that a run does not write is an error, and nothing is changed.

    Args:
      path: The run's folder.
      name: The file's name.
      rounds: The rounds that will be written, ascending; if not given, all.

    Raises:
      OSError: If the file cannot be read or written.
      RecordError: If the file is not one that a run wrote.
    """
    # Imported here, so that programs that only read records start quickly.
    import tensorflow_federated as tff

    self._path = pathlib.Path(path) / name
    self.num_rounds = self._restore(rounds)
    with files.explaining_write_errors(self._path):
      self._manager = tff.program.CSVFileReleaseManager(
        self._path,
        # Written to another file and renamed in each round.
        save_mode=tff.program.CSVSaveMode.WRITE,
        key_fieldname='round',
      )

  def _restore(self, rounds) -> int:
    """Cuts off an incomplete last line; returns the first round missing."""
    name, num_rounds = self._path.name, 0 if rounds is None else rounds[0]
    if not self._path.exists():
      return num_rounds
    content = self._path.read_bytes()
    try:
      text = _decode(content, name)
      whole = text[: text.rfind('\n') + 1]
      if whole:
        table = _parse(whole, name)
        check_rounds(table, name, rounds)
        num_rounds = len(table)
        if rounds is not None:
          num_rounds = [*rounds, rounds[-1] + 1][num_rounds]
    except files.RecordError as error:
      raise files.RecordError(
        f'{self._path.parent} cannot be continued: {error}. Nothing was'
        f' changed. Put the {name} that the run wrote back, or use'
        ' --overwrite to start the run again.'
      ) from error
    if whole != text or not text:
      logging.warning(
        '%s is cut off after %d rounds; the rounds that are missing are'
        ' computed again.',
        name,
        num_rounds,
      )
    with files.explaining_write_errors(self._path):
      if not whole:
        self._path.unlink()
      elif whole.encode() != content:
        with files.replacing(self._path) as partial:
          partial.write_bytes(whole.encode())
    return num_rounds

  def write(self, metrics: Mapping[str, Any], round_num: int) -> None:
    """Adds a round.

    Rounds from this one on that are in the file already are removed. They are
    those of a run that ended between two checkpoints.

    Args:
      metrics: Values by name; in `metrics.csv` of `COLUMNS`, without 'round'.
      round_num: The number of the round.

    Raises:
      OSError: If the file cannot be written.
    """
    with files.explaining_write_errors(self._path):
      waiting.wait_for(
        self._manager.release(collections.OrderedDict(metrics), round_num)
      )


def _decode(content: bytes, name: str) -> str:
  """The text of a CSV file without byte order mark and carriage returns."""
  try:
    return content.decode('utf-8-sig').replace('\r\n', '\n')
  except UnicodeDecodeError as error:
    raise files.RecordError(f'its {name} is not UTF-8 text') from error


def _parse(text: str, name: str) -> pd.DataFrame:
  """The numbers of a CSV file, strictly: pandas would fill and guess."""
  try:
    names, *rows = csv.reader(io.StringIO(text, newline=''), strict=True)
  except (ValueError, csv.Error) as error:
    reason = f'not a CSV file: {error}' if text else 'empty'
    raise files.RecordError(f'its {name} is {reason}') from error
  if len(names) == 1 and ';' in names[0]:
    raise files.RecordError(
      f"its {name} is separated by ';' instead of ',', as some spreadsheets"
      ' save it'
    )
  for heading in names:
    if names.count(heading) > 1:
      raise files.RecordError(f'its {name} has the column {heading!r} twice')
  numbers = np.empty((len(rows), len(names)))
  for index, row in enumerate(rows):
    where = f'line {index + 2} of its {name}'
    if len(row) != len(names):
      raise files.RecordError(
        f'{where} has {len(row)} cells, but the header has {len(names)}'
      )
    for column, cell in enumerate(row):
      try:
        numbers[index, column] = float(cell or 'nan')
      except ValueError:
        raise files.RecordError(
          f'{where} has {cell[:40]!r} in the column {names[column]}, which is'
          ' no number'
        ) from None
  return pd.DataFrame(numbers, columns=names)


if __name__ == '__main__':
  print(format_documentation(), end='')
