"""The flags that femnist, shakespeare, cifar100 and custom share.

This module does not import TensorFlow, so that --help and wrong flags are
answered at once.
"""

import os
import types
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Optional

from absl import flags

from experiments.runs import availability as availability_lib
from experiments.runs import user_code
from programs import definer
from tff_ocs.records import settings as settings_lib

# Flags count as those of the program that calls `define`.
flags.disclaim_key_flags()

# Flags on which a good step size depends. The paper's value is the default,
# unless `PaperStepSize.settings` names others.
_FLAGS_OF_STEP_SIZE = (
  'algorithm',
  'availability',
  'batch_size',
  'client_costs',
  'client_epochs',
  'client_weighting',
  'clients_per_round',
  'cohort_sampler',
  'compression',
  'dropout_rate',
  'expected_clients',
  'server_learning_rate',
)

# Flags that are part of the name of a run's folder, where they are not as in
# the paper.
_FLAGS_IN_NAMES = (
  'algorithm',
  'compression',
  'client_weighting',
  'cohort_weight',
  'cohort_sampler',
  'client_costs',
)
SAMPLINGS = ('full', 'uniform', 'ocs', 'aocs', 'threshold')
COHORT_SAMPLERS = (
  'none',
  'uniform',
  'multinomial',
  'clustered',
  'power_of_choice',
  'osmd',
  'kvib',
)
# Flags whose value can be PATH.py:FUNCTION.
USER_CODE = ('sampling', 'cohort_sampler')
# Of tasks that are not the paper's.
_FIRST_STEP_SIZE = 0.1


class SettingError(ValueError):
  """Raised if flags contradict each other or the data."""


class PaperStepSize(NamedTuple):
  """A client step size that the paper's authors tuned.

  Attributes:
    value: The step size.
    data: The data set on which it was tuned.
    settings: The values of flags with which the paper uses it, by name; for
      flags that are not named, their default.
  """

  value: float
  data: str
  settings: Mapping[str, Sequence[Any]]


class Experiment(NamedTuple):
  """The part of a run that its program describes from the flags.

  Attributes:
    name: The name in figures and tables.
    data: The first part of the name of the run's folder.
    step_size: The paper's client step size for the sampling; `None` if the
      task is not one of the paper's.
    own_flags: The names of the program's own flags, which are recorded too.
    load_task: A function that loads the `tff_ocs.tasks.task.Task`.
    own_settings: Further settings that are recorded, by name.
  """

  name: str
  data: str
  step_size: Optional[PaperStepSize]
  own_flags: Sequence[str]
  load_task: Callable[[], Any]
  own_settings: Mapping[str, Any] = types.MappingProxyType({})


def define(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags of a program with --data_source."""
  define_common(values)
  _define_source(definer.Definer(values))


def define_common(values: flags.FlagValues) -> None:
  """Defines the flags that do not depend on where the data is from."""
  define = definer.Definer(values)
  _define_sampling(define)
  _define_cohorts(define)
  _define_compression(define)
  define_training(define)
  _define_validation(define)
  _define_folder(define)


def _define_sampling(define):
  define.string(
    'sampling',
    'aocs',
    f'{", ".join(SAMPLINGS)}, or PATH.py:FUNCTION. The clients that send their'
    ' update: all clients of the cohort (full); each with the same probability'
    ' m / n (uniform); or by optimal client sampling, with probabilities that'
    ' are computed from the norms of the updates, exactly (ocs), from sums only'
    ' (aocs), or in one round trip, with a threshold that is learnt from'
    ' earlier rounds (threshold). Or a scheme of your own, which a function of'
    ' a file of yours returns for m; see docs/extend.md.',
  )
  _validate_choice(define, 'sampling', SAMPLINGS)
  define.float(
    'expected_clients',
    3,
    'm, the expected number of participants: how many of the n clients of the'
    ' cohort send their update, on average. If m is at least n, all send; with'
    ' --sampling=threshold, some small updates may still be left out. With'
    ' --sampling=full all send, and only the improvement factors in the metrics'
    ' depend on m.',
  )
  define.integer(
    'max_iterations',
    4,
    'j_max, the largest number of recalibrations with --sampling=aocs.',
    lower_bound=0,
  )
  define.enum(
    'cohort_weight',
    'known',
    ['known', 'unknown'],
    'With --sampling=threshold: whether the server knows the total weight of a'
    ' cohort before the round, and so takes it into account.',
  )
  _validate_positive(define, 'expected_clients')


def _define_cohorts(define):
  define.string(
    'cohort_sampler',
    'none',
    f'{", ".join(COHORT_SAMPLERS)}, or PATH.py:FUNCTION. How the cohorts are'
    ' drawn from the pool, see tff_ocs.cohorts: uniformly, and their updates'
    ' are divided by the weight of the cohort (none); or by a sampler whose'
    ' aggregate is divided by the weight of the pool. With a sampler,'
    ' --clients_per_round is its number of draws, and --sampling acts on the'
    ' clients that it has drawn. A sampler of your own is what a function of a'
    ' file of yours returns for the weights of the clients, the number of draws'
    ' and the seed; see docs/samplers.md. Cannot be combined with'
    ' --client_costs, --dropout_rate or --availability.',
  )
  _validate_choice(define, 'cohort_sampler', COHORT_SAMPLERS)
  define.integer(
    'num_candidates',
    None,
    'd, the number of clients that report their loss, with'
    ' --cohort_sampler=power_of_choice. If not given, 3 times'
    ' --clients_per_round.',
    lower_bound=1,
  )
  define.enum(
    'client_costs',
    'none',
    ['none', 'uplink_seconds'],
    'With --sampling=ocs, aocs or threshold: whether the uplinks of the clients'
    ' differ in cost, by the time that an update takes on the links of'
    ' experiments/runs/devices.py (uplink_seconds). The mean cost of the pool'
    ' is 1, and --expected_clients is the budget of a round in these units.'
    ' Cannot be combined with --cohort_sampler, --dropout_rate or'
    ' --availability.',
  )
  define.string(
    'availability',
    None,
    'The probability q_i with which each client of the cohort is available and'
    ' computes an update: a number above 0 and at most 1, for all clients; or'
    " the path of a CSV file with the header 'client_id,q' and a line for each"
    ' client of the pool. Only available clients send, and their updates are'
    ' scaled by 1 / (q_i p_i), see Appendix E of the paper. If not given, all'
    ' clients are available. Cannot be combined with --cohort_sampler,'
    ' --client_costs, --dropout_rate or --simulate_devices.',
  )
  define.float(
    'dropout_rate',
    0.0,
    'The probability with which a client of the cohort is lost before it'
    ' reports anything; and, with --sampling=ocs or aocs, again between the'
    ' report of its norm and its update, which biases the aggregate, see'
    ' docs/protocol.md. Cannot be combined with --cohort_sampler,'
    ' --client_costs or --availability.',
  )
  define.validate(
    'dropout_rate',
    lambda value: 0 <= value < 1,
    message='must be at least 0 and below 1',
  )


def _define_compression(define):
  define.enum(
    'compression',
    'none',
    ['none', 'random_k', 'natural', 'dithering'],
    'How the clients that send compress their updates, with each --sampling:'
    ' they send some of the entries (random_k), or all entries rounded at'
    ' random to powers of two (natural) or to a few levels (dithering), see'
    ' tff_ocs.compression.',
  )
  define.float(
    'random_k_fraction',
    0.1,
    'The fraction of the entries that --compression=random_k sends.',
  )
  define.integer(
    'dithering_bits',
    4,
    'The bits of an entry with --compression=dithering: 2, 4 or 8.',
  )
  define.validate(
    'random_k_fraction',
    lambda value: 0 < value <= 1,
    message='must be above 0 and at most 1',
  )
  define.validate(
    'dithering_bits',
    lambda value: value in (2, 4, 8),
    message='must be 2, 4 or 8',
  )


def define_training(define: definer.Definer) -> None:
  """Defines the flags that describe the rounds and how clients train."""
  define.integer(
    'clients_per_round',
    32,
    'n, the size of the cohort: how many clients of the pool are drawn in each'
    ' round and compute an update.',
    lower_bound=1,
  )
  define.enum(
    'algorithm',
    'fedavg',
    ['fedavg', 'dsgd'],
    'Federated Averaging (fedavg), in which a client trains on all of its'
    ' examples; or distributed SGD (dsgd), Eq. (2) of the paper, in which it'
    ' computes one gradient, of --batch_size examples.',
  )
  define.enum(
    'client_weighting',
    'num_examples',
    ['num_examples', 'uniform'],
    'The weight of a client in the mean: its number of examples, or the same'
    ' for all clients.',
  )
  define.integer('total_rounds', 151, 'The number of rounds.', lower_bound=1)
  define.integer(
    'batch_size',
    20,
    "The examples in a batch of a client's SGD.",
    lower_bound=1,
  )
  define.integer(
    'client_epochs',
    1,
    'The number of epochs that a client trains in a round.',
    lower_bound=1,
  )
  define.float(
    'client_learning_rate',
    None,
    "The clients' step size eta_l; with --algorithm=dsgd the step size eta. If"
    " not given, the paper's for the sampling and the data set, or 0.1 for data"
    ' of your own.',
  )
  define.float('server_learning_rate', 1.0, "The server's step size eta_g.")
  define.integer(
    'seed',
    0,
    'The seed of the initial weights, the cohorts, the shuffles and the coins,'
    ' which are the same for each --sampling.',
    lower_bound=0,
    upper_bound=2**32 - 1,
  )
  define.string(
    'worker_address',
    None,
    "The 'host:port' of a TFF worker that is to do the work, started there by"
    ' python -m tff_ocs.worker; or of several, separated by commas, among which'
    ' the clients of a round are divided (with --sampling=threshold, full, or'
    ' uniform without --availability). The results do not depend on it. If not'
    ' given, one worker is started on this machine.',
  )
  _validate_positive(define, 'client_learning_rate')
  _validate_positive(define, 'server_learning_rate')


def _define_source(define):
  define.path(
    'cache_dir',
    None,
    'With --data_source=tff: the folder of the data set files. Files that are'
    ' missing are downloaded to it. If not given, ~/.tff.',
  )
  define.string(
    'data_name',
    None,
    'With --data_source=tff: the name of the data that the file in --cache_dir'
    ' really holds, if it is a stand-in; for the results and captions.',
  )


def _define_validation(define):
  define.integer(
    'rounds_per_eval',
    5,
    'The validation set is evaluated after each round whose number, from 0, is'
    ' divisible by this, and after the last.',
    lower_bound=1,
  )
  define.integer(
    'validation_subset',
    None,
    'The number of examples of the validation set to evaluate on, drawn with'
    ' --seed. If not given, all of them.',
    lower_bound=1,
  )
  define.float(
    'holdout_fraction',
    None,
    'The fraction of the clients of the pool that are left out of training, and'
    ' on whose examples the model is validated instead of on the validation'
    ' set. For the choice of a step size, see experiments.tune.',
  )
  define.validate(
    'holdout_fraction',
    lambda value: value is None or 0 < value < 1,
    message='must lie between 0 and 1',
  )
  define.bool(
    'evaluate_clients',
    False,
    'Record single clients in clients.csv: the accuracy of the final weights on'
    " each client's own validation examples, and how often it was drawn and"
    ' sent; and in client_accuracies.csv the mean accuracy over the clients,'
    ' that of the worst 10 %, and the standard deviation. A real server would'
    ' not see this.',
  )
  define.integer(
    'rounds_per_client_eval',
    None,
    'With --evaluate_clients: the clients are evaluated, for a line of'
    ' client_accuracies.csv, after each round whose number, from 0, is'
    ' divisible by this, and after the last. If not given, after the last.',
    lower_bound=1,
  )
  define.bool(
    'simulate_devices',
    False,
    'Record what each round would cost on phones, in the columns of'
    ' metrics.csv whose names begin with simulated_: how long it takes, how'
    ' long uplinks are in use, and on how many examples clients compute, see'
    ' experiments/runs/devices.py. Updates count as uncompressed.',
  )


def _define_folder(define):
  define.path(
    'output_dir', 'runs', "The folder in which the run's own folder is made."
  )
  define.string(
    'run_name',
    None,
    "The name of the run's folder. If not given, it consists of the data, the"
    ' sampling, n, m and the seed.',
  )
  define.enum(
    'log_to',
    'tensorboard',
    ['tensorboard', 'mlflow', 'wandb'],
    'Where the metrics of the rounds are shown, in addition to metrics.csv:'
    " TensorBoard, from the run's folder events; MLflow, from the folder mlruns"
    ' in --output_dir or the place that MLFLOW_TRACKING_URI names (for runs on'
    ' Ray, a server); or Weights & Biases (wandb; with WANDB_MODE=offline it'
    ' needs no server). The last two are packages of their own.',
  )
  define.integer(
    'rounds_per_checkpoint',
    10,
    'The number of rounds from one checkpoint to the next.',
    lower_bound=1,
  )
  define.bool(
    'record_norms',
    False,
    "Record the norms of all clients of each cohort in norms.csv in the run's"
    ' folder, for experiments.threshold. In a deployment no server sees them.',
  )
  define.bool(
    'resume',
    True,
    'Continue a run of the same name and flags that ended early.',
  )
  define.bool(
    'overwrite',
    False,
    'Replace the results of an earlier run of the same name.',
  )
  define.validate(
    'run_name',
    lambda name: (
      name is None
      or (name not in ('', '.', '..') and os.path.basename(name) == name)
    ),
    message='must be the name of a folder, without a path',
  )


def _validate_choice(define, name, allowed):
  define.validate(
    name,
    lambda value: value in allowed or user_code.is_reference(value),
    message=f'must be one of {", ".join(allowed)}, or PATH.py:FUNCTION',
  )


def _validate_positive(define, name):
  define.validate(
    name,
    lambda value: value is None or 0 < value < float('inf'),
    message='must be a finite number above 0',
  )


def check(values: flags.FlagValues, data_flags: Sequence[str] = ()) -> None:
  """Raises a `SettingError` if flags contradict each other.

  Args:
    values: The flags.
    data_flags: The names of the program's own flags that only
      --data_source=tff uses.
  """
  if 'data_source' in values and values.data_source != 'tff':
    for name in ('cache_dir', 'data_name', *data_flags):
      if values[name].value is not None:
        raise SettingError(
          f'--{name}={values[name].value} needs --data_source=tff, found'
          f' --data_source={values.data_source}.'
        )
  if values.cohort_weight == 'unknown' and values.sampling != 'threshold':
    raise SettingError(
      '--cohort_weight=unknown needs --sampling=threshold, found'
      f' --sampling={values.sampling}: no other sampling uses it.'
    )
  if values.client_costs != 'none' and (
    values.sampling not in ('ocs', 'aocs', 'threshold')
  ):
    raise SettingError(
      f'--client_costs={values.client_costs} needs --sampling=ocs, aocs or'
      f' threshold, found --sampling={values.sampling}.'
    )
  if values.dropout_rate > 0 and values.sampling not in SAMPLINGS:
    raise SettingError(
      f'--dropout_rate={values.dropout_rate:g} needs'
      f' --sampling={", ".join(SAMPLINGS)}, found --sampling={values.sampling}.'
    )
  for name, compression in (
    ('dithering_bits', 'dithering'),
    ('random_k_fraction', 'random_k'),
  ):
    value = values[name].value
    if value != values[name].default and values.compression != compression:
      raise SettingError(
        f'--{name}={value:g} needs --compression={compression}, found'
        f' --compression={values.compression}.'
      )
  _check_single(values)
  _check_devices(values)
  if values.rounds_per_client_eval is not None and not values.evaluate_clients:
    raise SettingError(
      f'--rounds_per_client_eval={values.rounds_per_client_eval} needs'
      ' --evaluate_clients, found --noevaluate_clients.'
    )
  if values.num_candidates is not None and (
    values.cohort_sampler != 'power_of_choice'
  ):
    raise SettingError(
      f'--num_candidates={values.num_candidates} needs'
      ' --cohort_sampler=power_of_choice, found'
      f' --cohort_sampler={values.cohort_sampler}.'
    )
  if values.num_candidates is not None and (
    values.num_candidates < values.clients_per_round
  ):
    raise SettingError(
      f'--num_candidates={values.num_candidates} must be at least'
      f' --clients_per_round={values.clients_per_round}.'
    )
  check_training(values)


def _check_single(values):
  """Raises a `SettingError` if flags change the aggregate in two ways."""
  given = [
    f'--{name}={values[name].value}'
    for name in (
      'cohort_sampler',
      'client_costs',
      'dropout_rate',
      'availability',
    )
    if values[name].value != values[name].default
  ]
  if len(given) > 1:
    raise SettingError(f'{given[0]} cannot be combined with {given[1]}.')
  if given and values.availability is None and values.algorithm == 'dsgd':
    raise SettingError(f'{given[0]} needs --algorithm=fedavg.')


def _check_devices(values):
  """Raises a `SettingError` if the model of devices does not fit the round."""
  if not values.simulate_devices:
    return
  if values.sampling not in SAMPLINGS:
    raise SettingError(
      f'--simulate_devices needs --sampling={", ".join(SAMPLINGS)}, found'
      f' --sampling={values.sampling}: how often its clients wait for each'
      ' other is not known.'
    )
  if values.algorithm == 'dsgd':
    raise SettingError('--simulate_devices needs --algorithm=fedavg.')
  if values.availability is not None:
    raise SettingError(
      '--simulate_devices cannot be combined with'
      f' --availability={values.availability}: which clients are available, so'
      ' that others wait for them, is not recorded.'
    )


def check_training(values: flags.FlagValues) -> None:
  """Raises a `SettingError` if flags of training contradict each other."""
  if values.algorithm == 'dsgd':
    for name in ('client_epochs', 'server_learning_rate'):
      if values[name].value != 1:
        raise SettingError(
          f'--{name}={values[name].value:g} needs --algorithm=fedavg:'
          ' distributed SGD is one step of --client_learning_rate a round.'
        )


def settings(
  values: flags.FlagValues,
  described: Experiment,
  availability: availability_lib.Availability,
) -> dict[str, Any]:
  """The settings that a run records, except for those that depend on the data.

  Args:
    values: The flags.
    described: The part of the run that its program describes.
    availability: The value of --availability.

  Returns:
    All that determines the run's results, by name. The program's own flags come
    first, and the name of the experiment, which is no flag, comes last.

  Raises:
    UserCodeError: If a file of PATH.py:FUNCTION cannot be read.
  """
  common = flags.FlagValues()
  define(common)
  recorded = {
    name: values[name].value
    for name in (*described.own_flags, *common)
    if name in values and name not in settings_lib.NOT_SETTINGS
  }
  for name in USER_CODE:
    if user_code.is_reference(values[name].value):
      recorded[name] = user_code.describe(name, values[name].value)
  learning_rate, _ = step_size(values, described.step_size)
  return {
    **recorded,
    **described.own_settings,
    'client_learning_rate': learning_rate,
    'availability': availability.setting,
    # Earlier versions had a flag for it.
    'uniform_skips_silent_clients': False,
    'experiment': described.name,
  }


def step_size(
  values: flags.FlagValues, of_paper: Optional[PaperStepSize]
) -> tuple[float, str]:
  """The client step size, and a line that says where it is from."""
  if values.client_learning_rate is not None:
    step_size = values.client_learning_rate
    return step_size, f'Client step size: {step_size:g}, as given.'
  if of_paper is None:
    return _FIRST_STEP_SIZE, (
      f'Client step size: {_FIRST_STEP_SIZE:g}, a first guess;'
      ' --client_learning_rate sets another, and experiments.tune searches for'
      ' a good one.'
    )
  # The paper has neither --sampling=threshold, which is optimal sampling, too,
  # nor schemes of one's own.
  sampling = values.sampling
  if sampling == 'threshold' or user_code.is_reference(sampling):
    sampling = 'ocs'
  differing = []
  if sampling != values.sampling:
    differing.append(f'--sampling={values.sampling}')
  for name in dict.fromkeys((*_FLAGS_OF_STEP_SIZE, *of_paper.settings)):
    if name == 'expected_clients' and values.sampling == 'full':
      continue
    value = values[name].value
    if value not in of_paper.settings.get(name, (values[name].default,)):
      differing.append(f'--{name}={value}')
  line = (
    f"Client step size: {of_paper.value:g}, the paper's for {of_paper.data}"
    f' with --sampling={sampling}.'
  )
  if differing:
    line += (
      f' This run has {", ".join(differing)}, for which the paper has no step'
      ' size; experiments.tune searches for a good one.'
    )
  return of_paper.value, line


def senders_of_all(sampling: str) -> str:
  """The clients that send if m is more than n, in words."""
  if sampling == 'threshold':
    return 'all clients of a cohort but some with small updates'
  return 'all clients of a cohort'


def short_value(values: flags.FlagValues, name: str) -> str:
  """A flag's value in names of folders: of a file, without its folder."""
  value = str(values[name].value)
  if name in USER_CODE and user_code.is_reference(value):
    return user_code.short_name(value)
  return value


def run_name(
  values: flags.FlagValues,
  data: str,
  availability: availability_lib.Availability,
) -> str:
  """The name of the run's folder, which begins with `data` if not given."""
  if values.run_name is not None:
    return values.run_name
  m = '' if values.sampling == 'full' else f'_m{values.expected_clients:g}'
  others = ''.join(
    f'_{short_value(values, name)}'
    for name in _FLAGS_IN_NAMES
    if values[name].value != values[name].default
  )
  if availability.setting is not None:
    others += f'_q{availability.short_name}'
  if values.dropout_rate > 0:
    others += f'_dropouts{values.dropout_rate:g}'
  sampling = short_value(values, 'sampling')
  return (
    f'{data}_{sampling}_n{values.clients_per_round}{m}{others}'
    f'_seed{values.seed}'
  )
