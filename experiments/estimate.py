"""Estimates what client sampling would save, before anything is changed.

  python -m experiments.estimate --data=cars.csv --client_column=maker \\
    --label_column=mpg
  python -m experiments.estimate --task=my_task.py:load

The data flags are those of experiments.custom. Some rounds of full
participation are trained, and the norms of all clients' updates are recorded,
as only a simulation can. From them follows, for each m = 1, ..., n, the
variance that uniform and optimal sampling would have added to the rounds'
aggregates, Eq. (6) of the paper.

The yardstick is the noise that full participation has itself: another cohort,
and other shuffles, would have given another aggregate. So two cohorts are drawn
in each round, whose aggregates D and D' start from the same weights. Half of
||D - D'||^2 is an unbiased estimate of the variance of one of them. An m is
enough if optimal sampling adds at most a tenth of it. The estimate is for the
first rounds, the model and the step size that it is made with.

The results, estimate.csv, estimate.md, estimate.png and estimate.pdf, are
written to --output_dir.
"""

import math
import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import tqdm
from absl import app
from absl import flags
from absl import logging

from experiments.runs import data_flags
from experiments.runs import experiment_flags
from experiments.runs import program
from experiments.runs import user_code
from plots import tables
from programs import definer
from programs import entry
from tff_ocs import probabilities
from tff_ocs.records import units

# The part of the round's own noise that a sampling may add.
TOLERANCE = 0.1
# From this mean improvement factor on, norms count as nearly equal.
_NEARLY_EQUAL = 0.9
_BITS = 32
# The table on the console shows at most so many m.
_MAX_ROWS = 14


class Round(NamedTuple):
  """The measurements of one round of full participation.

  Attributes:
    norms: The weighted norms u_i of the clients of two cohorts, of shape [2,
      n], in units in which the weights of a cohort sum to 1.
    noise: Half of ||D - D'||^2, for the aggregates of the two cohorts.
  """

  norms: np.ndarray
  noise: float


class EstimateError(ValueError):
  """Raised if the rounds cannot be measured."""


def tabulate(rounds: Sequence[Round], num_parameters: int) -> pd.DataFrame:
  """Estimates the variances and the uplink for each m.

  A round counts in units of its cohorts' mean sum of u_i^2, so that early
  rounds, with larger updates, do not outweigh the others.

  Args:
    rounds: The measurements; at least one round has an update that is not 0.
    num_parameters: The number of the model's parameters.

  Returns:
    A row for each m = 1, ..., n with the columns `expected_clients`;
    `uniform_variance` and `optimal_variance`, in units of the rounds' own noise
    (infinite if they have none); `improvement_factor`, the ratio of the two;
    `uplink_bits`, those of AOCS in a round (for m = n those of full
    participation); and `uplink_of_full`, their ratio to those of full
    participation.
  """
  scales = np.array([np.mean(np.sum(r.norms**2, axis=-1)) for r in rounds])
  moving = scales > 0
  norms = np.stack([r.norms for r in rounds])[moving]
  norms /= np.sqrt(scales[moving])[:, np.newaxis, np.newaxis]
  noise = np.mean(np.array([r.noise for r in rounds])[moving] / scales[moving])
  n = norms.shape[-1]
  bits_of_full = n * _BITS * num_parameters
  rows = []
  for m in range(1, n + 1):
    uniform = _mean_variance(
      norms,
      np.broadcast_to(probabilities.uniform_probabilities(n, m), norms.shape),
    )
    p = probabilities.batch_probabilities(norms, m)
    optimal = _mean_variance(norms, p)
    bits = bits_of_full
    if m < n:  # With m = n nobody needs to compute anything.
      bits = _BITS * (
        p.sum(axis=-1).mean() * num_parameters + n * _mean_scalars(norms, m)
      )
    rows.append(
      {
        'expected_clients': m,
        'uniform_variance': _relative(uniform, noise),
        'optimal_variance': _relative(optimal, noise),
        'improvement_factor': optimal / uniform if uniform else 0.0,
        'uplink_bits': round(bits),
        'uplink_of_full': bits / bits_of_full,
      }
    )
  return pd.DataFrame(rows)


def _mean_variance(norms, p) -> float:
  return float(probabilities.batch_sampling_variance(norms, p).mean())


def _mean_scalars(norms, m) -> float:
  """The scalars that a client sends for AOCS, as a mean over the rounds."""
  iterations = [
    probabilities.approximate_probabilities(of_cohort, m).num_iterations
    for of_cohort in norms.reshape(-1, norms.shape[-1])
  ]
  return 1 + 2 * float(np.mean(iterations))


def _relative(variance: float, noise: float) -> float:
  if variance == 0:
    return 0.0
  return variance / noise if noise > 0 else math.inf


def smallest_enough(table: pd.DataFrame, column: str) -> int:
  """The smallest m whose variance is at most a tenth of the own noise."""
  # With m = n nothing is added.
  return int(table['expected_clients'][(table[column] <= TOLERANCE).idxmax()])


def verdict(table: pd.DataFrame) -> str:
  """Sums up the table in a sentence or two."""
  n = len(table)
  m = smallest_enough(table, 'optimal_variance')
  of_uniform = smallest_enough(table, 'uniform_variance')
  row = table.iloc[m - 1]
  # With m = n no sampling adds anything, so the factor is that of m = n - 1.
  alpha = table['improvement_factor'].iloc[min(m, max(n - 1, 1)) - 1]
  if n == 1:
    return 'A cohort of one client has nothing to sample.'
  if np.isinf(table['uniform_variance'].iloc[0]):
    reason = (
      'Your rounds have no noise of their own: all cohorts give the same'
      ' aggregate, so that any sampling adds noise where there was none.'
    )
  elif m == n:
    reason = (
      f'No m below n={n} is enough: without one of the clients, optimal'
      f' sampling adds more than {TOLERANCE:.0%} to the noise of a round.'
    )
  else:
    reason = (
      f'm={m} of {n} clients is enough: optimal sampling adds'
      f' {row["optimal_variance"]:.1%} to the noise that a round has anyway,'
      f' and sends {row["uplink_of_full"]:.0%} of the bits of full'
      ' participation.'
    )
  if m < n and row['uplink_of_full'] >= 1:
    return (
      f'{reason} So it saves nothing: the model is so small that the numbers'
      ' that AOCS needs weigh as much as the updates.'
    )
  if alpha >= _NEARLY_EQUAL:
    return (
      f"{reason} Your clients' updates have nearly equal norms: sampling by"
      ' norm saves nothing over uniform sampling.'
    )
  if m < of_uniform == n:
    return f'{reason} Uniform sampling needs all {n}.'
  if m < of_uniform:
    return f'{reason} Uniform sampling needs m={of_uniform} for that.'
  return reason


def format_markdown(table: pd.DataFrame, caption: str) -> str:
  """The table in Markdown, for some of the m."""
  header = [
    'm',
    'Uniform sampling adds',
    'Optimal sampling adds',
    'Improvement factor',
    'Uplink a round',
    'Of full participation',
  ]
  unit = units.choose_bits_unit(table['uplink_bits'].max())
  rows = [
    [
      f'{row["expected_clients"]:.0f}',
      _format_share(row['uniform_variance']),
      _format_share(row['optimal_variance']),
      f'{row["improvement_factor"]:.3f}',
      f'{unit.format(row["uplink_bits"])} {unit.name}',
      f'{row["uplink_of_full"]:.1%}',
    ]
    for row in table.iloc[_shown_rows(table)].to_dict('records')
  ]
  return tables.format_markdown(caption, header, rows)


def _format_share(share: float) -> str:
  return tables.NONE if math.isinf(share) else f'{100 * share:.3g} %'


def _shown_rows(table) -> list[int]:
  """The smallest m, then ever fewer, the enough ones, and m = n."""
  n = len(table)
  indices = np.unique(np.geomspace(1, n, min(n, _MAX_ROWS)).round().astype(int))
  chosen = {
    *indices.tolist(),
    smallest_enough(table, 'optimal_variance'),
    smallest_enough(table, 'uniform_variance'),
  }
  return [m - 1 for m in sorted(chosen)]


def measure(
  values: flags.FlagValues, task, learning_rate: float
) -> list[Round]:
  """Trains rounds of full participation and measures them.

  Args:
    values: The program's flags.
    task: The `tff_ocs.tasks.task.Task`.
    learning_rate: The clients' step size.

  Returns:
    The rounds.

  Raises:
    EstimateError: If training diverges, or no update has a norm.
  """
  import tensorflow as tf

  import tff_ocs
  from experiments.runs import cohorts
  from experiments.runs import experiment
  from experiments.runs import training

  training.check_cohort(task, values.clients_per_round)
  process = experiment.build_process(
    values,
    tff_ocs.ClientSamplingFactory(
      tff_ocs.FullParticipation(), measure_norms=True
    ),
    task.model,
    learning_rate,
  )
  source = cohorts.UniformSource(
    task, values.seed, values.clients_per_round, task.train.num_examples
  )
  step = learning_rate
  if values.algorithm == 'fedavg':
    step = values.server_learning_rate
  rounds = []
  with experiment.use_workers(values.worker_address):
    state = process.initialize()
    for round_num in tqdm.trange(
      values.total_rounds, desc='full', unit='round', file=sys.stderr
    ):
      pair = [
        process.next(state, source.draw(2 * round_num + i, state.weights).data)
        for i in range(2)
      ]
      outputs = [output for _, output in pair]
      _check_outputs(outputs, round_num)
      weights = [
        tf.nest.flatten(next_state.weights.trainable) for next_state, _ in pair
      ]
      distance = sum(
        np.sum((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2)
        for a, b in zip(*weights)
      )
      rounds.append(
        Round(
          np.stack([_normalized(values, output) for output in outputs]),
          float(distance) / step**2 / 2,
        )
      )
      state = pair[0][0]
  if not any(r.norms.any() for r in rounds):
    raise EstimateError(
      'all updates are 0, so there is nothing to sample; the step size may be'
      ' too small, or the model may not depend on its weights.'
    )
  return rounds


def _check_outputs(outputs, round_num) -> None:
  for output in outputs:
    num_bad = int(output['aggregator']['non_finite_clients'])
    if num_bad:
      raise EstimateError(
        f'in round {round_num} the updates of {num_bad} clients are NaN or'
        ' infinite; use a smaller --client_learning_rate.'
      )


def _normalized(values, output) -> np.ndarray:
  """The clients' norms, for weights whose sum is 1."""
  norms = np.asarray(output['aggregator']['norms'], np.float64)
  if values.client_weighting == 'uniform':
    return norms / len(norms)
  return norms / float(output['num_examples'])


def write_results(
  output_dir: pathlib.Path, table: pd.DataFrame, text: str, caption: str
) -> None:
  """Writes estimate.csv, estimate.md, estimate.png and estimate.pdf."""
  from plots import estimates

  output_dir.mkdir(parents=True, exist_ok=True)
  path = output_dir / 'estimate'
  tables.write(path, table, text)
  estimates.plot_estimate(
    table,
    [path.with_suffix(ending) for ending in ('.png', '.pdf')],
    tolerance=TOLERANCE,
    caption=caption,
  )


def count_parameters(model) -> int:
  """The number of trainable parameters of a functional model."""
  import tensorflow as tf

  trainable, _ = model.initial_weights
  return sum(np.size(tensor) for tensor in tf.nest.flatten(trainable))


def run(values: flags.FlagValues) -> None:
  """Estimates; ends the program with one line if it cannot."""
  try:
    experiment_flags.check_training(values)
    data_flags.check(values)
  except (
    experiment_flags.SettingError,
    user_code.UserCodeError,
  ) as error:
    sys.exit(f'error: {error}')
  program.setup()
  from tff_ocs import execution
  from tff_ocs.tasks import client_data

  # Otherwise every font that goes into a PDF is reported at length.
  logging.set_verbosity(logging.WARNING)
  output_dir = pathlib.Path(values.output_dir)
  try:
    learning_rate, line = experiment_flags.step_size(values, None)
    print(line, file=sys.stderr)
    task = data_flags.load(values)
    print(f'Data: {task.data_name}', file=sys.stderr)
    rounds = measure(values, task, learning_rate)
    table = tabulate(rounds, count_parameters(task.model))
    caption = (
      f'{data_flags.name(values)}, n={values.clients_per_round}. Data:'
      f' {task.data_name}. {values.total_rounds} rounds of full participation,'
      f' client step size {units.format_step_size(learning_rate)}. Variance in'
      ' per cent of the noise that a round has itself.'
    )
    sentence = verdict(table)
    text = f'{format_markdown(table, caption)}\n{sentence}\n'
    print(text)
    write_results(output_dir, table, text, caption)
  except (
    ImportError,
    OSError,
    EstimateError,
    client_data.DataError,
    execution.WorkerError,
    experiment_flags.SettingError,
    user_code.UserCodeError,
  ) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted')
  print(f'Figure: {output_dir / "estimate.png"}')


def main(argv):
  entry.refuse_arguments(argv)
  run(flags.FLAGS)


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  data_flags.define(values)
  experiment_flags.define_training(define)
  values.set_default('total_rounds', 10)
  define.path('output_dir', 'estimate', 'The folder of the results.')


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
