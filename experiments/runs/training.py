"""The round loop of all experiments."""

import gc
import sys
import time
from collections.abc import Callable
from typing import Optional
from typing import Union

import numpy as np
import tensorflow_federated as tff
import tqdm
from absl import logging

import tff_ocs
from experiments.runs import checkpoints
from experiments.runs import client_record as client_record_lib
from experiments.runs import cohorts
from experiments.runs import devices as devices_lib
from experiments.runs import experiment_flags
from experiments.runs import run_folder
from tff_ocs import probabilities
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
  source: cohorts.Source,
  sampling: str,
  improvement_clients: Optional[float],
  known_weight: Optional[Callable[[cohorts.Round], float]],
  total_rounds: int,
  rounds_per_eval: int,
  rounds_per_checkpoint: int,
  folder: run_folder.RunFolder,
  client_record: Optional[client_record_lib.ClientRecord] = None,
  devices: Optional[devices_lib.Devices] = None,
  norms_writer: Optional[norms_lib.NormsWriter] = None,
) -> None:
  """Trains, and writes the metrics and the final weights.

  Args:
    task: The task to train on.
    process: A process as that of `tff_ocs.build_federated_averaging_process`
      with a `tff_ocs.ClientSamplingFactory` that measures norms.
    source: The cohorts. Uniform cohorts, the clients' shuffles and their coins
      depend on the seed and the round only, so that methods under comparison
      share them.
    sampling: The sampling of the process, which decides who trains and who
      waits on the devices; also the name of the run in the progress bar.
    improvement_clients: The m of the improvement factors; `None` if they are
      not defined for the process.
    known_weight: If the process has threshold sampling, and the server knows
      the weight of a cohort before the round: a function from the cohort to it.
    total_rounds: The number of rounds.
    rounds_per_eval: The validation set is evaluated after each round whose
      number, from 0, is divisible by it, and after the last.
    rounds_per_checkpoint: The number of rounds from one checkpoint to the next;
      after the last round, which the final weights follow, one is saved only
      if there is no other.
    folder: The run's folder, started. The run continues from its last
      checkpoint.
    client_record: Where single clients are recorded, for a process that reveals
      them; opened.
    devices: The clients' devices, whose time is recorded, for a process that
      reveals its clients.
    norms_writer: If the norms of each cohort are recorded: their writer.

  Raises:
    OSError: If the folder cannot be written to.
    WorkerError: If the worker cannot be started or keeps dying.
  """
  evaluate = task_lib.build_evaluation(
    task.model, task.test, metrics=task.metrics
  )
  memories = {'source': source}
  if client_record is not None:
    memories['clients'] = client_record
  state, cumulative_bits, first_round = _start_or_resume(
    process, folder, memories
  )

  def save(round_num):
    progress = checkpoints.Progress(state, cumulative_bits, _remember(memories))
    folder.checkpoints.save(progress, round_num)
    # Saving leaves graphs with cycles, each with a copy of the weights.
    gc.collect()

  # The objects that exist by now stay, so the collector need not visit them.
  gc.collect()
  gc.freeze()
  shown = {}
  rounds = tqdm.tqdm(
    range(first_round, total_rounds),
    desc=sampling,
    initial=first_round,
    total=total_rounds,
    unit='round',
    file=sys.stderr,  # The standard output may hold results.
  )
  for round_num in rounds:
    start = time.monotonic()
    cohort = source.draw(round_num, state.weights)
    # A cohort without examples keeps the former weight.
    if known_weight is not None and (weight := known_weight(cohort)):
      state = tff_ocs.set_cohort_weight(state, weight)
    state, output = process.next(state, cohort.data)
    seconds = time.monotonic() - start
    metrics = _metrics_of_round(output, improvement_clients)
    if 'clients' in output['aggregator']:
      rows = output['aggregator']['clients']
      rows = rows[np.argsort(rows[:, 0])]
      metrics['uplink_bits'] += source.observe(round_num, cohort, rows)
      if client_record is not None:
        client_record.count(cohort, rows)
      if devices is not None:
        metrics.update(_simulate(devices, sampling, cohort, rows, metrics))
    metrics['candidate_examples'] = sum(
      task.train.num_examples[i] for i in cohort.candidates
    )
    cumulative_bits += metrics['uplink_bits']
    metrics['cumulative_uplink_bits'] = cumulative_bits
    metrics['seconds'] = round(seconds, 4)
    if round_num % rounds_per_eval == 0 or round_num == total_rounds - 1:
      metrics.update(_metrics_of_evaluation(evaluate(state.weights)))
    if norms_writer is not None:
      norms_writer.write(output['aggregator']['norms'], round_num)
    if client_record is not None:
      client_record.release(state.weights, round_num)
    is_last = round_num == total_rounds - 1
    if is_last and not folder.checkpoints.are_there:
      # Before the last row: a run that has all rows can always be continued.
      save(round_num)
    folder.release(metrics, round_num)
    logging.info('Round %d: %s', round_num, metrics)
    _warn(metrics, round_num)
    shown.update(_describe(metrics))
    rounds.set_postfix(shown)
    if not is_last and (round_num + 1) % rounds_per_checkpoint == 0:
      save(round_num)
  gc.unfreeze()
  folder.finish(state.weights)


def _describe(metrics):
  """The metrics that the progress bar shows, those of a validation included."""
  shown = {}
  if 'validation_accuracy' in metrics:
    shown['accuracy'] = f'{metrics["validation_accuracy"]:.3f}'
  elif 'validation_loss' in metrics:
    shown['validation loss'] = f'{metrics["validation_loss"]:.3g}'
  shown['loss'] = f'{metrics["training_loss"]:.3f}'
  bits = metrics['cumulative_uplink_bits']
  unit = units.choose_bits_unit(bits)
  shown['sent'] = f'{bits / unit.size:.2f} {unit.name}'
  return shown


def _simulate(devices, sampling, cohort, rows, metrics):
  """The metrics of the devices, by the protocol of the sampling."""
  sends = rows[:, 2] > 0
  # With uniform sampling, clients toss their coins before they train.
  trains = sends if sampling == 'uniform' else np.ones_like(sends)
  exchanges = {'ocs': 1, 'aocs': 1 + metrics['num_iterations']}
  costs = devices.simulate(
    [i for i, does in zip(cohort.client_ids, trains) if does],
    sends[trains],
    exchanges=exchanges.get(sampling, 0),
    candidates=cohort.candidates,
  )
  return {f'simulated_{cost}': v for cost, v in costs._asdict().items()}


def _remember(memories):
  """The states of the memories that have one, by name; `()` if none has."""
  states = {name: memory.state for name, memory in memories.items()}
  return {name: state for name, state in states.items() if state} or ()


def _start_or_resume(process, folder, memories):
  """The state, the bits sent so far and the number of the next round."""
  state = process.initialize()
  progress, next_round = folder.checkpoints.load_latest(
    checkpoints.Progress(state, 0, _remember(memories))
  )
  if progress is None:
    return state, 0, 0
  for name, state_of_memory in dict(progress.memory).items():
    memories[name].restore(state_of_memory)
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


def _metrics_of_evaluation(evaluation) -> dict[str, float]:
  metrics = {
    'validation_loss': evaluation.loss,
    **{f'validation_{name}': v for name, v in evaluation.others.items()},
  }
  if evaluation.accuracy is not None:
    metrics['validation_accuracy'] = evaluation.accuracy
  return metrics


def _metrics_of_round(
  output, improvement_clients: Optional[float]
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
  # Unless no client was available.
  if norms.size > 0 and improvement_clients is not None:
    alpha = probabilities.improvement_factor(norms, improvement_clients)
    metrics['improvement_factor'] = alpha
    metrics['relative_improvement_factor'] = (
      probabilities.relative_improvement_factor(
        alpha, norms.size, improvement_clients
      )
    )
  metrics['cohort_examples'] = int(output['num_examples'])
  return metrics
