"""The round loop of all experiments."""

import gc
import sys
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Optional
from typing import Union

import numpy as np
import tensorflow_federated as tff
import tqdm
from absl import logging

import tff_ocs
from experiments.runs import checkpoints
from experiments.runs import experiment_flags
from experiments.runs import run_folder
from tff_ocs import probabilities
from tff_ocs import simple_fedavg
from tff_ocs.records import norms as norms_lib
from tff_ocs.records import units
from tff_ocs.tasks import task as task_lib


def check_cohort(task: task_lib.Task, clients_per_round: int) -> None:
  """Raises a `SettingError` if the pool is smaller than the cohort."""
  pool_size = len(task.train.client_ids)
  if clients_per_round > pool_size:
    raise experiment_flags.SettingError(
      f'--clients_per_round={clients_per_round} is more than the {pool_size}'
      f' clients of the pool ({task.data_name}).'
    )


def train(
  *,
  task: task_lib.Task,
  process: tff.templates.IterativeProcess,
  clients_per_round: int,
  expected_clients: float,
  known_weight: Optional[Callable[[Mapping], float]],
  total_rounds: int,
  rounds_per_eval: int,
  rounds_per_checkpoint: int,
  seed: int,
  folder: run_folder.RunFolder,
  name: str,
  availability: Optional[Mapping[str, float]] = None,
  norms_writer: Optional[norms_lib.NormsWriter] = None,
) -> None:
  """Trains, and writes the metrics and the final weights.

  The cohorts are drawn uniformly without replacement. They, the clients'
  shuffles and their coins depend on `seed` and the round only, so that methods
  under comparison share them.

  Args:
    task: The task to train on.
    process: A process as that of `tff_ocs.build_federated_averaging_process`
      with a `tff_ocs.ClientSamplingFactory` that measures norms.
    clients_per_round: The size n of the cohort.
    expected_clients: The m of the improvement factors.
    known_weight: If the process has threshold sampling, and the server knows
      the weight of a client before the round: a function from the client's data
      to it.
    total_rounds: The number of rounds.
    rounds_per_eval: The validation set is evaluated after each round whose
      number, from 0, is divisible by it, and after the last.
    rounds_per_checkpoint: The number of rounds from one checkpoint to the next;
      none is saved after the last round, which the final weights follow.
    seed: The experiment's seed.
    folder: The run's folder, started. The run continues from its last
      checkpoint.
    name: The name of the run in the progress bar.
    availability: For a process with availability: the probability q_i of each
      client, by its id.
    norms_writer: If the norms of each cohort are recorded: their writer.

  Raises:
    OSError: If the folder cannot be written to.
    WorkerError: If the worker cannot be started or keeps dying.
  """
  cohort_of = build_cohorts(task, clients_per_round, seed, availability)
  evaluate = task_lib.build_evaluation(
    task.model, task.test, metrics=task.metrics
  )
  state, cumulative_bits, first_round = _start_or_resume(process, folder)
  # The objects that exist by now stay, so the collector need not visit them.
  gc.collect()
  gc.freeze()
  shown = {}
  rounds = tqdm.tqdm(
    range(first_round, total_rounds),
    desc=name,
    initial=first_round,
    total=total_rounds,
    unit='round',
    file=sys.stderr,  # The standard output may hold results.
  )
  for round_num in rounds:
    start = time.monotonic()
    cohort = cohort_of(round_num)
    if known_weight is not None:
      state = tff_ocs.set_cohort_weight(state, sum(map(known_weight, cohort)))
    state, output = process.next(state, cohort)
    seconds = time.monotonic() - start
    cumulative_bits += int(output['aggregator']['uplink_bits'])
    metrics = _metrics_of_round(output, expected_clients)
    metrics['cumulative_uplink_bits'] = cumulative_bits
    metrics['seconds'] = round(seconds, 4)
    if round_num % rounds_per_eval == 0 or round_num == total_rounds - 1:
      evaluation = evaluate(state.weights)
      metrics['validation_loss'] = evaluation.loss
      for metric, value in evaluation.others.items():
        metrics[f'validation_{metric}'] = value
      if evaluation.accuracy is None:
        shown['validation loss'] = f'{evaluation.loss:.3g}'
      else:
        metrics['validation_accuracy'] = evaluation.accuracy
        shown['accuracy'] = f'{evaluation.accuracy:.3f}'
    if norms_writer is not None:
      norms_writer.write(output['aggregator']['norms'], round_num)
    folder.release(metrics, round_num)
    logging.info('Round %d: %s', round_num, metrics)
    _warn(metrics, round_num)
    shown['loss'] = f'{metrics["training_loss"]:.3f}'
    unit = units.choose_bits_unit(cumulative_bits)
    shown['sent'] = f'{cumulative_bits / unit.size:.2f} {unit.name}'
    rounds.set_postfix(shown)
    is_last = round_num == total_rounds - 1
    if (round_num + 1) % rounds_per_checkpoint == 0 and not is_last:
      folder.checkpoints.save(
        checkpoints.Progress(state, cumulative_bits), round_num
      )
      # Saving leaves graphs with cycles, each with a copy of the weights.
      gc.collect()
  gc.unfreeze()
  folder.finish(state.weights)


def _start_or_resume(process, folder):
  """The state, the bits sent so far and the number of the next round."""
  state = process.initialize()
  progress, next_round = folder.checkpoints.load_latest(
    checkpoints.Progress(state, 0)
  )
  if progress is None:
    return state, 0, 0
  logging.info('Going on from the checkpoint, with round %d.', next_round)
  return progress.state, int(progress.cumulative_uplink_bits), next_round


# Warnings for rounds in which a metric is not 0.
_WARNINGS = {
  'non_finite_clients': (
    'Round %d: the updates of %d clients are NaN or infinite; the step size may'
    ' be too large.'
  ),
  'invalid_probabilities': (
    'Round %d: the sampling scheme computed invalid probabilities for %d'
    ' clients, so that the aggregate is biased.'
  ),
}


def _warn(metrics, round_num):
  for name, message in _WARNINGS.items():
    if metrics[name]:
      logging.warning(message, round_num, metrics[name])


def _metrics_of_round(
  output, expected_clients: float
) -> dict[str, Union[int, float]]:
  """The metrics that the output of a process's `next` determines."""
  of_aggregator = output['aggregator']
  metrics = {'training_loss': float(output['training_loss'])}
  for name in (
    'available',
    'participants',
    'num_iterations',
    'non_finite_clients',
    'invalid_probabilities',
    'uplink_bits',
  ):
    metrics[name] = int(of_aggregator[name])
  metrics['expected_participants'] = float(
    of_aggregator['expected_participants']
  )
  norms = of_aggregator['norms']
  if norms.size > 0:  # Unless no client was available.
    alpha = probabilities.improvement_factor(norms, expected_clients)
    metrics['improvement_factor'] = alpha
    metrics['relative_improvement_factor'] = (
      probabilities.relative_improvement_factor(
        alpha, norms.size, expected_clients
      )
    )
  metrics['cohort_examples'] = int(output['num_examples'])
  return metrics


def build_cohorts(
  task: task_lib.Task,
  clients_per_round: int,
  seed: int,
  availability: Optional[Mapping[str, float]] = None,
) -> Callable[[int], list]:
  """Builds a function from the round to the data of its cohort.

  Args:
    task: The task.
    clients_per_round: The size n of the cohort.
    seed: The experiment's seed.
    availability: As for `train`.

  Returns:
    The function. Its result is what `next` of a training process takes.
  """
  draw = tff.simulation.build_uniform_sampling_fn(
    task.train.client_ids, replace=False, random_seed=seed
  )

  def client(client_id, round_num):
    examples = task.train.examples(client_id)
    data = {
      'x': examples.x,
      'y': examples.y,
      'seed': simple_fedavg.client_seed(seed, round_num, client_id),
    }
    if availability is not None:
      data['availability'] = np.float32(availability[client_id])
    return data

  def cohort_of(round_num):
    # The largest client first, so that no core waits for it at the end.
    client_ids = sorted(
      draw(round_num, clients_per_round),
      key=lambda client_id: (-task.train.num_examples[client_id], client_id),
    )
    return [client(client_id, round_num) for client_id in client_ids]

  return cohort_of
