"""Federated CIFAR-100 with client sampling: Appendix G of the paper.

The defaults are the paper's. An example that needs no download:

  python -m experiments.cifar100 --data_source=synthetic --sampling=aocs
"""

from absl import app
from absl import flags

from experiments.runs import experiment_flags
from experiments.runs import program
from programs import definer
from programs import entry

# Tuned on a holdout set by the authors (Appendix G).
_UNIFORM_LEARNING_RATE = 3e-4
_LEARNING_RATE = 1e-3


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  define.enum(
    'data_source',
    'tff',
    ['tff', 'synthetic'],
    'The source of the images: Federated CIFAR-100 through TFF (tff); generated'
    ' images, without a download (synthetic).',
  )
  define.bool(
    'scale_inputs',
    False,
    "Scale the inputs from 0..255 to [0, 1]. The paper's step sizes are for"
    ' inputs that are not scaled, so give --client_learning_rate too.',
  )
  experiment_flags.define(values)
  # From the authors' code; the paper does not name them.
  values.set_default('total_rounds', 1001)
  values.set_default('rounds_per_eval', 10)


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
  scaled = '_scaled' if values.scale_inputs else ''
  return experiment_flags.Experiment(
    name='CIFAR100',
    data=f'cifar100_{values.data_source}{scaled}',
    step_size=_paper_step_size(values),
    own_flags=('data_source', 'scale_inputs'),
    load_task=lambda: _load_task(values),
  )


def _load_task(values):
  from tff_ocs.tasks import cifar100

  settings = {'seed': values.seed, 'scale_inputs': values.scale_inputs}
  if values.data_source == 'synthetic':
    return cifar100.load_synthetic(**settings)
  return cifar100.load_tff(
    cache_dir=values.cache_dir, data_name=values.data_name, **settings
  )


def _paper_step_size(values):
  return experiment_flags.PaperStepSize(
    _UNIFORM_LEARNING_RATE if values.sampling == 'uniform' else _LEARNING_RATE,
    'Federated CIFAR-100',
    {'data_source': ('tff',), 'data_name': (None,), 'scale_inputs': (False,)},
  )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
