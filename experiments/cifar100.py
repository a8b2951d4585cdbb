"""Federated CIFAR-100 with client sampling: Appendix G of the paper.

The defaults are the paper's. An example that needs no download:

  python -m experiments.cifar100 --data_source=synthetic --sampling=aocs
"""

import sys

from absl import app
from absl import flags

from experiments.runs import experiment_flags
from tff_ocs.tasks import cifar100

_DATA_SOURCE = flags.DEFINE_enum(
  'data_source',
  'tff',
  ['tff', 'synthetic'],
  'Where the images come from: Federated CIFAR-100 through TFF (tff); generated'
  ' images, without a download (synthetic).',
)
_SCALE_INPUTS = flags.DEFINE_bool(
  'scale_inputs',
  False,
  "Scale the inputs from 0..255 to [0, 1]. The paper's step sizes belong to"
  ' inputs that are not scaled: use it with --client_learning_rate.',
)

flags.adopt_module_key_flags(experiment_flags)
# Of the authors' code; the paper does not say.
flags.set_default(experiment_flags.TOTAL_ROUNDS, 1001)
flags.set_default(experiment_flags.ROUNDS_PER_EVAL, 10)

# Tuned on a holdout set by the authors (Appendix G).
_UNIFORM_LEARNING_RATE = 3e-4
_LEARNING_RATE = 1e-3


def main(argv):
  if len(argv) > 1:
    sys.exit(f'error: unexpected argument {argv[1]!r}; flags start with --.')
  experiment_flags.check_goes_with_tff(
    _DATA_SOURCE.value,
    {
      'cache_dir': experiment_flags.CACHE_DIR.value,
      'data_name': experiment_flags.DATA_NAME.value,
    },
  )

  def load_task():
    settings = {
      'seed': experiment_flags.SEED.value,
      'scale_inputs': _SCALE_INPUTS.value,
    }
    if _DATA_SOURCE.value == 'synthetic':
      return cifar100.load_synthetic(**settings)
    return cifar100.load_tff(
      cache_dir=experiment_flags.CACHE_DIR.value,
      data_name=experiment_flags.DATA_NAME.value,
      **settings,
    )

  if experiment_flags.SAMPLING.value == 'uniform':
    learning_rate = _UNIFORM_LEARNING_RATE
  else:
    learning_rate = _LEARNING_RATE
  experiment_flags.run(
    load_task=load_task,
    data=f'cifar100_{_DATA_SOURCE.value}'
    + ('_scaled' if _SCALE_INPUTS.value else ''),
    client_learning_rate=learning_rate,
    own_flags=__name__,
  )


if __name__ == '__main__':
  app.run(main)
