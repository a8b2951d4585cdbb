"""Writes folders of runs with made-up numbers."""

import json

import numpy as np

from tff_ocs.records import settings as settings_lib

FEMNIST = {
  'data_source': 'synthetic',
  'unbalanced_set': '1',
  'unbalanced_s': None,
  'unbalanced_a': None,
  'unbalanced_b': None,
}
SHAKESPEARE = {'data_source': 'tff', 'sequence_length': 5}
CIFAR100 = {'data_source': 'synthetic', 'scale_inputs': False}


def settings(seed=0, **others):
  """The settings of a run that no program made."""
  return settings_lib.Settings(
    experiment='made-up experiment',
    method='made-up method',
    data='made-up numbers',
    seed=seed,
    total_rounds=9,
    clients_per_round=32,
    others=others,
  )


def write_run(
  folder,
  sampling='aocs',
  m=3,
  seed=0,
  *,
  of=FEMNIST,
  finished=True,
  bits=None,
  accuracy=None,
  alpha=None,
  participants=None,
  **settings,
):
  """Writes a run of 9 rounds with an evaluation after every second.

  Args:
    folder: Where; made with all folders above it.
    sampling: The sampling.
    m: The expected participants.
    seed: The seed.
    of: The settings that the experiment's binary has.
    finished: Whether the last round is there.
    bits: The cumulative bits after each round.
    accuracy: The validation accuracy after each round; NaN where not evaluated.
    participants: The clients that sent, in each round, as many as were expected
      to; m if not given.
    alpha: The improvement factor of each round; not measured if not given.
    **settings: More settings.

  Returns:
    The folder.
  """
  folder.mkdir(parents=True)
  if bits is None:
    bits = (np.arange(9) + 1) * 10**8 * (32 if sampling == 'full' else m)
  config = {
    **of,
    'sampling': sampling,
    'clients_per_round': 32,
    'expected_clients': float(m),
    'max_iterations': 4,
    'total_rounds': len(bits),
    'batch_size': 20,
    'client_learning_rate': 0.125,
    'seed': seed,
    'data': 'made-up numbers',
    **settings,
    'environment': {'cpus': seed},
  }
  (folder / 'config.json').write_text(json.dumps(config))
  if accuracy is None:
    accuracy = [r / 10 if r % 2 == 0 else np.nan for r in range(9)]
  lines = [
    'round,cumulative_uplink_bits,participants,expected_participants'
    ',training_loss,validation_accuracy'
  ]
  if participants is None:
    participants = [m] * len(bits)
  for r, (b, a, p) in enumerate(zip(bits, accuracy, participants)):
    lines.append(f'{r},{b},{p},{p},{2 - r / 10},{"" if np.isnan(a) else a}')
  if alpha is not None:
    lines = [
      f'{line},{value}'
      for line, value in zip(lines, ['improvement_factor', *alpha])
    ]
  if not finished:
    lines.pop()
  (folder / 'metrics.csv').write_text('\n'.join(lines) + '\n')
  return folder
