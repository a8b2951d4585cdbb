"""What the experiment binaries share: common flags, and a run from them."""

import contextlib
import os
import sys
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tensorflow_federated as tff
from absl import flags
from absl import logging

import tff_ocs
from experiments.runs import availability as availability_lib
from experiments.runs import run_folder
from experiments.runs import training
from tff_ocs import compression
from tff_ocs import execution
from tff_ocs.tasks import client_data
from tff_ocs.tasks import task as task_lib

SAMPLING = flags.DEFINE_enum(
  'sampling',
  'aocs',
  ['full', 'uniform', 'ocs', 'aocs'],
  'Who sends its update: all clients of the cohort (full); each with the same'
  ' probability m / n (uniform); by optimal client sampling, with probabilities'
  ' from the norms of the updates, exactly (ocs) or from sums only (aocs).',
)
CLIENTS_PER_ROUND = flags.DEFINE_integer(
  'clients_per_round',
  32,
  'n, the size of the cohort: how many clients of the pool are drawn in each'
  ' round and compute an update.',
  lower_bound=1,
)
EXPECTED_CLIENTS = flags.DEFINE_float(
  'expected_clients',
  3,
  'm, the expected number of participants: how many of the n clients of the'
  ' cohort send their update, on average. With --sampling=full all send, and'
  ' only improvement_factor of the metrics depends on it.',
)
AVAILABILITY = flags.DEFINE_string(
  'availability',
  None,
  'The probability q_i with which each client of the cohort is available, and'
  ' computes an update: a number above 0 and at most 1, for all; or a CSV file'
  " with the header 'client_id,q' and a line for each client of the pool. Only"
  ' those that are available send, and updates are scaled by 1 / (q_i p_i), see'
  ' Appendix D of the paper. If not given, all clients are available.',
)
UNIFORM_SKIPS_SILENT_CLIENTS = flags.DEFINE_bool(
  'uniform_skips_silent_clients',
  False,
  'With --sampling=uniform: leave out the training of clients that are not'
  ' going to send. The weights are the same, bit for bit, but training_loss,'
  ' cohort_examples and non_finite_clients of the metrics are those of the'
  ' clients that send alone, and there are no improvement factors. The paper'
  ' reports the loss of the whole cohort.',
)
MAX_ITERATIONS = flags.DEFINE_integer(
  'max_iterations',
  4,
  'j_max, the limit to the recalibrations of --sampling=aocs.',
  lower_bound=0,
)
COMPRESSION = flags.DEFINE_enum(
  'compression',
  'none',
  ['none', 'random_k', 'natural', 'dithering'],
  'What the clients that send do to their updates, with each --sampling: send'
  ' some of their entries (random_k), or all of them rounded at random, to'
  ' powers of two (natural) or to a few levels (dithering), see'
  ' tff_ocs.compression.',
)
RANDOM_K_FRACTION = flags.DEFINE_float(
  'random_k_fraction',
  0.1,
  'The part of the entries that --compression=random_k sends.',
)
DITHERING_BITS = flags.DEFINE_integer(
  'dithering_bits',
  4,
  'The bits of an entry with --compression=dithering: 2, 4 or 8.',
)
ALGORITHM = flags.DEFINE_enum(
  'algorithm',
  'fedavg',
  ['fedavg', 'dsgd'],
  'Federated Averaging (fedavg), in which a client walks over its examples; or'
  ' distributed SGD (dsgd), Eq. (2) of the paper, in which it computes one'
  ' gradient, of --batch_size of them.',
)
CLIENT_WEIGHTING = flags.DEFINE_enum(
  'client_weighting',
  'num_examples',
  ['num_examples', 'uniform'],
  'What a client counts: its number of examples, or as much as each other.',
)
TOTAL_ROUNDS = flags.DEFINE_integer(
  'total_rounds', 151, 'The number of rounds.', lower_bound=1
)
ROUNDS_PER_EVAL = flags.DEFINE_integer(
  'rounds_per_eval',
  5,
  'The validation set is evaluated after each round whose number, from 0, is'
  ' divisible by this, and after the last.',
  lower_bound=1,
)
VALIDATION_SUBSET = flags.DEFINE_integer(
  'validation_subset',
  None,
  'Evaluate on so many examples of the validation set, drawn by --seed. If not'
  ' given, on all of it.',
  lower_bound=1,
)
HOLDOUT_FRACTION = flags.DEFINE_float(
  'holdout_fraction',
  None,
  'Leave this fraction of the clients of the pool out of training, and validate'
  ' on all of their examples instead of on the validation set; for the choice'
  ' of a step size, see experiments.tune.',
)
BATCH_SIZE = flags.DEFINE_integer(
  'batch_size', 20, "The examples in a batch of a client's SGD.", lower_bound=1
)
CLIENT_EPOCHS = flags.DEFINE_integer(
  'client_epochs',
  1,
  'How often a client walks over its examples in a round.',
  lower_bound=1,
)
CLIENT_LEARNING_RATE = flags.DEFINE_float(
  'client_learning_rate',
  None,
  "The clients' step size eta_l; with --algorithm=dsgd the step size eta. If"
  " not given, the paper's for the sampling and the data is used.",
)
SERVER_LEARNING_RATE = flags.DEFINE_float(
  'server_learning_rate', 1.0, "The server's step size eta_g."
)
SEED = flags.DEFINE_integer(
  'seed',
  0,
  'Decides the initial weights, the cohorts, the shuffles and the coins, the'
  ' same for all --sampling.',
  lower_bound=0,
  upper_bound=2**32 - 1,
)
CACHE_DIR = flags.DEFINE_string(
  'cache_dir',
  None,
  'For --data_source=tff: the folder of the data set files. What is not there'
  ' is downloaded to there. If not given, ~/.tff.',
)
DATA_NAME = flags.DEFINE_string(
  'data_name',
  None,
  'For --data_source=tff: what the file in --cache_dir really holds, if it is'
  ' a stand-in; for the results and captions.',
)
WORKER_ADDRESS = flags.DEFINE_string(
  'worker_address',
  None,
  "The 'host:port' of a TFF worker, started there by python -m tff_ocs.worker,"
  ' that is to do the work. If not given, one is started here.',
)
OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs', "The folder in which the run's own folder is made."
)
RUN_NAME = flags.DEFINE_string(
  'run_name',
  None,
  "The name of the run's folder. If not given, it is made of the data, the"
  ' sampling, n, m and the seed.',
)
ROUNDS_PER_CHECKPOINT = flags.DEFINE_integer(
  'rounds_per_checkpoint',
  10,
  'A checkpoint is saved after each so many rounds.',
  lower_bound=1,
)
RESUME = flags.DEFINE_bool(
  'resume',
  True,
  'Go on with a run of the same name and flags that has ended early.',
)
OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Replace the results of a former run of the same name.'
)


def _define_validators():
  for name in (
    'expected_clients',
    'client_learning_rate',
    'server_learning_rate',
  ):
    flags.register_validator(
      name,
      lambda value: value is None or 0 < value < float('inf'),
      message='must be a finite number above 0',
    )

  flags.register_validator(
    'holdout_fraction',
    lambda value: value is None or 0 < value < 1,
    message='must lie between 0 and 1',
  )
  flags.register_validator(
    'random_k_fraction',
    lambda value: 0 < value <= 1,
    message='must be above 0 and at most 1',
  )
  flags.register_validator(
    'dithering_bits',
    lambda value: value in (2, 4, 8),
    message='must be 2, 4 or 8',
  )
  flags.register_validator(
    'run_name',
    lambda name: (
      name is None
      or (name not in ('', '.', '..') and os.path.basename(name) == name)
    ),
    message='must be the name of a folder, without a path',
  )


_define_validators()


class SettingError(ValueError):
  """Raised if flags do not go with each other or with the data."""


def build_scheme() -> tff_ocs.schemes.SamplingScheme:
  """The sampling scheme that the flags ask for."""
  m = EXPECTED_CLIENTS.value
  if SAMPLING.value == 'full':
    return tff_ocs.FullParticipation()
  if SAMPLING.value == 'uniform':
    return tff_ocs.UniformSampling(m)
  if SAMPLING.value == 'ocs':
    return tff_ocs.OptimalSampling(m)
  return tff_ocs.ApproximateOptimalSampling(m, MAX_ITERATIONS.value)


def build_sampling() -> tff_ocs.ClientSamplingFactory:
  """The scheme with the compression that the flags ask for."""
  seed = SEED.value
  if COMPRESSION.value == 'none':
    compressor = None
  elif COMPRESSION.value == 'random_k':
    compressor = compression.RandomKFactory(RANDOM_K_FRACTION.value, seed=seed)
  elif COMPRESSION.value == 'natural':
    compressor = compression.NaturalCompressionFactory(seed=seed)
  else:
    compressor = compression.RandomDitheringFactory(
      DITHERING_BITS.value, seed=seed
    )
  return tff_ocs.ClientSamplingFactory(
    build_scheme(),
    value_sum_factory=compressor,
    improvement_expected_clients=(
      None if UNIFORM_SKIPS_SILENT_CLIENTS.value else EXPECTED_CLIENTS.value
    ),
  )


def run(
  *,
  load_task: Callable[[], task_lib.Task],
  data: str,
  client_learning_rate: float,
  own_flags: str,
) -> None:
  """Runs the experiment that the flags describe.

  What is wrong with the settings, the data, the folder or the worker ends the
  program with one line that says so.

  Args:
    load_task: Loads the task.
    data: What the run's folder is called by, in front of the sampling.
    client_learning_rate: The paper's step size, where the flag is not given.
    own_flags: The name of the binary's module, whose flags are recorded too.
  """
  try:
    availability = availability_lib.read(AVAILABILITY.value)
  except availability_lib.AvailabilityError as error:
    sys.exit(f'error: {error}')
  path = os.path.join(
    OUTPUT_DIR.value, RUN_NAME.value or _run_name(data, availability)
  )
  try:
    folder = run_folder.RunFolder(
      path, overwrite=OVERWRITE.value, resume=RESUME.value
    )
    with folder.log():
      _run(folder, load_task, client_learning_rate, own_flags, availability)
  except execution.WorkerError as error:
    sys.exit(
      f'error: {error} The same command, without --overwrite, resumes from the'
      f' last checkpoint in {path}'
    )
  except (
    ImportError,
    OSError,
    availability_lib.AvailabilityError,
    client_data.DataError,
    SettingError,
  ) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit(
      'interrupted; the same command, without --overwrite, resumes from the'
      f' last checkpoint in {path}'
    )


def _run(folder, load_task, default_learning_rate, own_flags, availability):
  learning_rate = CLIENT_LEARNING_RATE.value
  if learning_rate is None:
    learning_rate = default_learning_rate
    source = "the paper's for this sampling"
  else:
    source = 'as given'
  settings = {
    **_settings_from_flags(own_flags),
    'client_learning_rate': learning_rate,
    'availability': availability.setting,
  }
  _check_flags_of_algorithm()
  _check_flags_of_skipping()
  folder.check_settings(settings)
  if folder.is_finished and not OVERWRITE.value:
    _tell(f'{folder.path} is finished; use --overwrite to run it again.')
    return
  _tell(f'Client step size: {learning_rate:g}, {source}')
  task = load_task()
  # Of the whole pool, also where clients are held out.
  q_of_client = availability.for_clients(task.train.client_ids)
  task = _choose_validation_set(task)
  task.train.keep_all()
  _tell(f'Data: {task.data_name}')
  try:
    training.check_cohort(task, CLIENTS_PER_ROUND.value)
  except ValueError as error:
    raise SettingError(error) from error
  process = _build_process(task.model, learning_rate)
  with _use_worker():
    # Without a worker nothing is written.
    folder.start(
      {**settings, **task.describe()}, worker_address=WORKER_ADDRESS.value
    )
    _tell(f'Results: {folder.path}')
    training.train(
      task=task,
      process=process,
      clients_per_round=CLIENTS_PER_ROUND.value,
      total_rounds=TOTAL_ROUNDS.value,
      rounds_per_eval=ROUNDS_PER_EVAL.value,
      rounds_per_checkpoint=ROUNDS_PER_CHECKPOINT.value,
      seed=SEED.value,
      folder=folder,
      name=SAMPLING.value,
      availability=q_of_client,
    )


@contextlib.contextmanager
def _use_worker():
  """Enters the TFF context that the flags ask for; its worker answers."""
  address = WORKER_ADDRESS.value
  with contextlib.ExitStack() as stack:
    try:
      if address is None:
        stack.enter_context(execution.use_local_context())
      else:
        stack.enter_context(execution.use_remote_context(address))
      tff.tensorflow.computation(lambda: True)()
    except ValueError as error:
      raise SettingError(f'--worker_address: {error}') from error
    except execution.WorkerError as error:
      raise SettingError(str(error)) from error
    yield


def _check_flags_of_algorithm():
  """Checks that no flag is given that has no meaning for distributed SGD."""
  if ALGORITHM.value != 'dsgd':
    return
  for flag in (CLIENT_EPOCHS, SERVER_LEARNING_RATE):
    if flag.value != 1:
      raise SettingError(
        f'--{flag.name}={flag.value:g} goes with --algorithm=fedavg only:'
        ' distributed SGD is one step of --client_learning_rate a round.'
      )


def _check_flags_of_skipping():
  """Checks that clients can be left out, if they are to be."""
  if not UNIFORM_SKIPS_SILENT_CLIENTS.value:
    return
  name = UNIFORM_SKIPS_SILENT_CLIENTS.name
  if SAMPLING.value != 'uniform':
    raise SettingError(
      f'--{name} goes with --sampling=uniform only, found'
      f' --sampling={SAMPLING.value}: who sends depends on the updates there.'
    )
  if AVAILABILITY.value is not None:
    raise SettingError(f'--{name} goes without --availability.')


def _build_process(model, learning_rate):
  """The process that the flags ask for."""
  common = dict(
    batch_size=BATCH_SIZE.value,
    client_weighting=tff.learning.ClientWeighting[
      CLIENT_WEIGHTING.value.upper()
    ],
    availability=AVAILABILITY.value is not None,
    skips_silent_clients=UNIFORM_SKIPS_SILENT_CLIENTS.value,
  )
  if ALGORITHM.value == 'dsgd':
    return tff_ocs.build_distributed_sgd_process(
      model, build_sampling(), learning_rate=learning_rate, **common
    )
  return tff_ocs.build_federated_averaging_process(
    model,
    build_sampling(),
    client_learning_rate=learning_rate,
    server_learning_rate=SERVER_LEARNING_RATE.value,
    client_epochs=CLIENT_EPOCHS.value,
    **common,
  )


def _choose_validation_set(task):
  """The task with the validation set that the flags ask for."""
  fraction, num_examples = HOLDOUT_FRACTION.value, VALIDATION_SUBSET.value
  if fraction is not None:
    try:
      task = task_lib.hold_out(task, fraction)
    except ValueError as error:
      raise SettingError(f'--holdout_fraction={fraction:g}: {error}') from error
  if num_examples is not None:
    try:
      task = task_lib.draw_validation_subset(task, num_examples, SEED.value)
    except ValueError as error:
      raise SettingError(
        f'--validation_subset={num_examples} is more than the'
        f' {len(task.test.y)} examples to validate on ({task.data_name}).'
      ) from error
  return task


def _tell(message: str) -> None:
  """Says it on the console and in the log."""
  print(message, file=sys.stderr)
  logging.info(message)


def check_goes_with_tff(data_source: str, values: Mapping[str, Any]) -> None:
  """Ends the program if a flag does not go with the data source.

  Args:
    data_source: The value of --data_source.
    values: Names and values of flags that only --data_source=tff uses.
  """
  given = [name for name, value in values.items() if value is not None]
  if given and data_source != 'tff':
    sys.exit(
      f'error: --{given[0]}={values[given[0]]} goes with --data_source=tff'
      f' only, found --data_source={data_source}.'
    )


def _run_name(data: str, availability: availability_lib.Availability) -> str:
  m = '' if SAMPLING.value == 'full' else f'_m{EXPECTED_CLIENTS.value:g}'
  others = ''.join(
    f'_{flag.value}'
    for flag in (ALGORITHM, COMPRESSION, CLIENT_WEIGHTING)
    if flag.value != flag.default
  )
  if UNIFORM_SKIPS_SILENT_CLIENTS.value:
    others += '_skipping'
  if availability.setting is not None:
    others += f'_q{availability.short_name}'
  return (
    f'{data}_{SAMPLING.value}_n{CLIENTS_PER_ROUND.value}{m}{others}'
    f'_seed{SEED.value}'
  )


# What a run is called, and how often it is saved, is no part of its settings.
_NOT_SETTINGS = (
  'cache_dir',
  'output_dir',
  'overwrite',
  'resume',
  'rounds_per_checkpoint',
  'run_name',
  'worker_address',
)


def _settings_from_flags(own_flags: str) -> dict[str, Any]:
  """The values of the binary's own and the common flags, for `config.json`."""
  by_module = flags.FLAGS.flags_by_module_dict()
  # The main module's flags are listed under the name of its program.
  modules = {own_flags, sys.argv[0], __name__}
  return {
    flag.name: flag.value
    for module in sorted(modules & set(by_module))
    for flag in by_module[module]
    if flag.name not in _NOT_SETTINGS
  }
