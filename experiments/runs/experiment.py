"""One run of an experiment, as its flags describe it."""

import contextlib
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import flags
from absl import logging

import tff_ocs
from experiments.runs import availability as availability_lib
from experiments.runs import client_record
from experiments.runs import cohorts
from experiments.runs import devices
from experiments.runs import experiment_flags
from experiments.runs import run_folder
from experiments.runs import run_progress
from experiments.runs import trackers
from experiments.runs import training
from experiments.runs import user_code
from tff_ocs import compression
from tff_ocs import execution
from tff_ocs import schemes
from tff_ocs.records import files
from tff_ocs.records import settings as settings_lib
from tff_ocs.runtime import forms
from tff_ocs.tasks import client_data
from tff_ocs.tasks import task as task_lib


def run(
  values: flags.FlagValues, described: experiment_flags.Experiment
) -> None:
  """Runs an experiment with the flags of `experiment_flags`.

  Ends the program with one line if the settings, the data, the folder or the
  worker are not as they must be.
  """
  path = None
  try:
    trackers.check(values.log_to)
    availability = availability_lib.read(values.availability)
    path = pathlib.Path(
      values.output_dir,
      experiment_flags.run_name(values, described.data, availability),
    )
    folder = run_folder.RunFolder(
      path, overwrite=values.overwrite, resume=values.resume
    )
    with folder.log():
      settings = experiment_flags.settings(values, described, availability)
      folder.check_settings(settings)
      if folder.is_finished and not values.overwrite:
        _report(f'{folder.path} is finished; use --overwrite to run it again.')
        return
      _, step_size_line = experiment_flags.step_size(
        values, described.step_size
      )
      _report(step_size_line)
      _run(folder, settings, values, described.load_task, availability)
  except execution.WorkerError as error:
    sys.exit(f'error: {error} {_describe_resumption(path)}')
  except (
    ImportError,
    OSError,
    availability_lib.AvailabilityError,
    client_data.DataError,
    experiment_flags.SettingError,
    files.RecordError,
    trackers.TrackerError,
    user_code.UserCodeError,
  ) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    # Python would report a coroutine that Ctrl-C kept from running.
    warnings.simplefilter('ignore', RuntimeWarning)
    sys.exit(f'interrupted. {_describe_resumption(path)}')


def _describe_resumption(path) -> str:
  """Says what the same command does with a run that has ended early."""
  if path is not None and run_progress.has_final_weights(path):
    return f'The run in {path} is finished.'
  checkpoint = None if path is None else run_progress.newest_checkpoint(path)
  if checkpoint is None:
    return 'There is no checkpoint yet: the same command starts from round 0.'
  return (
    'The same command, without --overwrite, resumes from the last checkpoint in'
    f' {path}'
  )


def _run(folder, settings, values, load_task, availability):
  if values.sampling != 'full' and (
    values.expected_clients > values.clients_per_round
  ):
    who = experiment_flags.senders_of_all(values.sampling)
    _report(
      f'--expected_clients={values.expected_clients:g} is more than'
      f' --clients_per_round={values.clients_per_round}: {who} will send.'
    )
  task = load_task()
  # The probabilities are of the whole pool, from which clients may be held out.
  q_of_client = availability.for_clients(task.train.client_ids)
  task = _choose_validation_set(task, values)
  task.train.keep_all()
  _report(f'Data: {task.data_name}')
  training.check_cohort(task, values.clients_per_round)
  client_weights = dict(task.train.num_examples)
  if values.client_weighting == 'uniform':
    client_weights = dict.fromkeys(client_weights, 1)
  source = _build_source(values, task, client_weights, q_of_client)
  record = _build_client_record(values, task)
  sampling = tff_ocs.ClientSamplingFactory(
    _build_scheme(values),
    value_sum_factory=_build_compressor(values),
    measure_norms=True,
    reveal_clients=_reveals_clients(values),
  )
  process = build_process(
    values,
    sampling,
    task.model,
    settings['client_learning_rate'],
    availability=values.availability is not None,
    client_costs=values.client_costs != 'none',
    dropouts=values.dropout_rate > 0,
    pool_weight=(
      None
      if values.cohort_sampler == 'none'
      else float(sum(client_weights.values()))
    ),
  )
  with use_workers(values.worker_address):
    # The folder is made only if there is a worker.
    folder.start(
      settings_lib.Settings.from_json({**settings, **task.describe()}),
      worker_address=values.worker_address,
      log_to=values.log_to,
    )
    _report(f'Results: {folder.path}')
    if record is not None:
      record.open(folder)
    training.train(
      task=task,
      process=process,
      source=source,
      sampling=experiment_flags.short_value(values, 'sampling'),
      improvement_clients=_choose_improvement_clients(values),
      known_weight=_choose_known_weight(values),
      total_rounds=values.total_rounds,
      rounds_per_eval=values.rounds_per_eval,
      rounds_per_checkpoint=values.rounds_per_checkpoint,
      folder=folder,
      client_record=record,
      devices=_build_devices(values, task) if values.simulate_devices else None,
      norms_writer=folder.open_norms() if values.record_norms else None,
    )


def _split_addresses(worker_address: Optional[str]) -> list[str]:
  return [] if worker_address is None else worker_address.split(',')


@contextlib.contextmanager
def use_workers(worker_address: Optional[str]) -> Iterator[None]:
  """Enters the TFF context and waits until its workers answer."""
  addresses = _split_addresses(worker_address)
  with contextlib.ExitStack() as stack:
    try:
      if len(addresses) > 1:
        stack.enter_context(execution.use_distributed_context(addresses))
      elif addresses:
        stack.enter_context(execution.use_remote_context(*addresses))
      else:
        stack.enter_context(execution.use_local_context())
      # A client for each worker.
      _sum([1] * max(1, len(addresses)))
    except ValueError as error:
      raise experiment_flags.SettingError(
        f'--worker_address: {error}'
      ) from error
    except execution.WorkerError as error:
      # There is nothing yet that could be resumed.
      raise experiment_flags.SettingError(str(error)) from error
    yield


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _sum(values):
  return tff.federated_sum(values)


def _build_scheme(values):
  m = values.expected_clients
  if values.sampling == 'full':
    return tff_ocs.FullParticipation()
  if values.sampling == 'uniform':
    # How many clients are available is known in the round only.
    is_known = values.availability is None
    return tff_ocs.UniformSampling(
      m, values.clients_per_round if is_known else None
    )
  if values.sampling == 'ocs':
    return tff_ocs.OptimalSampling(m)
  if values.sampling == 'threshold':
    return tff_ocs.ThresholdSampling(
      m, first_cohort_size=values.clients_per_round
    )
  if user_code.is_reference(values.sampling):
    scheme = user_code.call('sampling', values.sampling, m)
    if not isinstance(scheme, schemes.SamplingScheme):
      raise user_code.UserCodeError(
        f'--sampling={values.sampling} must return a'
        f' tff_ocs.schemes.SamplingScheme, found {type(scheme).__name__}.'
      )
    return scheme
  return tff_ocs.ApproximateOptimalSampling(m, values.max_iterations)


def _choose_known_weight(values):
  """The function from a cohort to the weight that the server knows."""
  if values.sampling != 'threshold' or values.cohort_weight == 'unknown':
    return None
  return lambda cohort: cohort.weight


def _build_compressor(values):
  if values.compression == 'none':
    return None
  if values.compression == 'random_k':
    return compression.RandomKFactory(
      values.random_k_fraction, seed=values.seed
    )
  if values.compression == 'natural':
    return compression.NaturalCompressionFactory(seed=values.seed)
  return compression.RandomDitheringFactory(
    values.dithering_bits, seed=values.seed
  )


def _reveals_clients(values) -> bool:
  return (
    values.cohort_sampler != 'none'
    or values.evaluate_clients
    or values.simulate_devices
  )


def _build_devices(values, task):
  weights = tf.nest.flatten(task.model.initial_weights[0])
  return devices.Devices(
    task.train.num_examples,
    bits_per_update=32 * sum(np.size(w) for w in weights),
    epochs=values.client_epochs,
  )


def _build_client_record(values, task):
  if not values.evaluate_clients:
    return None
  if task.test_by_client is None:
    raise experiment_flags.SettingError(
      f'--evaluate_clients needs validation examples by client, and'
      f' {task.data_name} has none. With --holdout_fraction they are those of'
      ' the clients held out.'
    )
  rounds = {values.total_rounds - 1}
  if values.rounds_per_client_eval is not None:
    if 'accuracy' not in task.metrics:
      raise experiment_flags.SettingError(
        f'--rounds_per_client_eval={values.rounds_per_client_eval} needs a task'
        f' with an accuracy, and {task.data_name} has none.'
      )
    rounds |= set(range(0, values.total_rounds, values.rounds_per_client_eval))
  return client_record.ClientRecord(task, task.test_by_client, sorted(rounds))


def _choose_improvement_clients(values):
  """The m of the improvement factors, which are of Algorithm 1 and n, m."""
  # The cohort of a sampler takes part as a whole, and m is a budget of costs.
  if values.cohort_sampler != 'none' and values.sampling == 'full':
    return None
  if values.client_costs != 'none':
    return None
  return values.expected_clients


def _choose_costs(values, task):
  """The clients' costs, with a mean of 1 over the pool."""
  if values.client_costs == 'none':
    return None
  seconds = _build_devices(values, task).uplink_seconds
  mean = np.mean(list(seconds.values()))
  return {name: cost / mean for name, cost in seconds.items()}


def _choose_dropout_rates(values):
  """The rates before a client's first report, and before its update."""
  if values.dropout_rate == 0:
    return None
  # With the other schemes a client sends one message.
  reports = values.sampling in ('ocs', 'aocs')
  return values.dropout_rate, values.dropout_rate if reports else 0.0


def _build_source(values, task, client_weights, q_of_client):
  """The source of the cohorts."""
  if values.cohort_sampler == 'none':
    return cohorts.UniformSource(
      task,
      values.seed,
      values.clients_per_round,
      client_weights,
      availability=q_of_client,
      dropout_rates=_choose_dropout_rates(values),
      client_costs=_choose_costs(values, task),
      reveals_clients=_reveals_clients(values),
    )
  sampler = cohorts.build_sampler(
    values.cohort_sampler,
    client_weights,
    clients_per_round=values.clients_per_round,
    num_candidates=values.num_candidates,
    seed=values.seed,
    total_rounds=values.total_rounds,
  )
  evaluate = task_lib.build_evaluator(task.model, metrics={})
  return cohorts.SamplerSource(
    task,
    values.seed,
    sampler,
    client_weights,
    lambda weights, i: evaluate(weights, task.train.examples(i)).loss,
  )


def build_process(
  values: flags.FlagValues,
  sampling: tff_ocs.ClientSamplingFactory,
  model: tff.learning.models.FunctionalModel,
  learning_rate: float,
  *,
  availability: bool = False,
  client_costs: bool = False,
  dropouts: bool = False,
  pool_weight: Optional[float] = None,
) -> tff.templates.IterativeProcess:
  """Builds the training process that the flags of training describe.

  Rounds of one round trip are fused.

  Args:
    values: The flags.
    sampling: The clients that send.
    model: The model.
    learning_rate: The clients' step size, or that of distributed SGD.
    availability: Whether clients are available with a probability only.
    client_costs: Whether clients have costs.
    dropouts: Whether clients may be lost.
    pool_weight: With a cohort sampler, the total weight of the pool.

  Returns:
    The process.

  Raises:
    SettingError: If there are several workers, over which a round of the
      sampling cannot be divided.
  """
  common = dict(
    batch_size=values.batch_size,
    client_weighting=tff.learning.ClientWeighting[
      values.client_weighting.upper()
    ],
    availability=availability,
  )
  if values.algorithm == 'dsgd':
    process = tff_ocs.build_distributed_sgd_process(
      model, sampling, learning_rate=learning_rate, **common
    )
  else:
    process = tff_ocs.build_federated_averaging_process(
      model,
      sampling,
      client_learning_rate=learning_rate,
      server_learning_rate=values.server_learning_rate,
      client_epochs=values.client_epochs,
      client_costs=client_costs,
      dropouts=dropouts,
      pool_weight=pool_weight,
      **common,
    )
  try:
    process = forms.fuse(process)
  except forms.FormError as error:  # Of more than one round trip.
    if len(_split_addresses(values.worker_address)) > 1:
      raise experiment_flags.SettingError(
        f'--worker_address={values.worker_address} names several workers, over'
        f' which a round of --sampling={values.sampling} cannot be divided,'
        ' because what a client sends depends on a sum of the same round. Use'
        ' one worker; or --sampling=threshold, full, or uniform without'
        ' --availability.'
      ) from error
  return process


def _choose_validation_set(task, values):
  """The task with the validation set that the flags describe."""
  fraction, num_examples = values.holdout_fraction, values.validation_subset
  if fraction is not None:
    try:
      task = task_lib.hold_out(task, fraction)
    except ValueError as error:
      raise experiment_flags.SettingError(
        f'--holdout_fraction={fraction:g}: {error}'
      ) from error
  if num_examples is not None:
    try:
      task = task_lib.draw_validation_subset(task, num_examples, values.seed)
    except ValueError as error:
      raise experiment_flags.SettingError(
        f'--validation_subset={num_examples} is more than the'
        f' {len(task.test.y)} examples to validate on ({task.data_name}).'
      ) from error
  return task


def _report(message: str) -> None:
  """Shows a message on the console and in the log."""
  print(message, file=sys.stderr)
  logging.info(message)
