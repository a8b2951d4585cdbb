"""The files that the driver and the peers' scripts exchange, with NumPy only.

The driver writes a `Job`. A peer's script reads it, runs its rounds, and writes
the seconds of each round and the weights after the last. Each script has its
own interpreter, so they share nothing else.
"""

import os
from typing import NamedTuple

import numpy as np


class Job(NamedTuple):
  """Rounds of Federated Averaging: one local epoch, server step size 1.

  Attributes:
    weights: The initial weights of the CNN, as in `tff_ocs.tasks.femnist`.
    rounds: For each round the clients' (x, y), the largest client first. The
      examples are in the order in which a client walks over them.
    learning_rate: The clients' step size.
    batch_size: The number of examples in a batch; a client's last is smaller.
  """

  weights: list
  rounds: list
  learning_rate: float
  batch_size: int


def write_job(path: str, job: Job):
  """Writes a job as an .npz file."""
  arrays = {f'weights/{i}': w for i, w in enumerate(job.weights)}
  for round_num, cohort in enumerate(job.rounds):
    for i, (x, y) in enumerate(cohort):
      arrays[f'x/{round_num}/{i}'] = x
      arrays[f'y/{round_num}/{i}'] = y
  _write(
    path,
    shape=[len(job.weights), len(job.rounds), len(job.rounds[0])],
    learning_rate=job.learning_rate,
    batch_size=job.batch_size,
    **arrays,
  )


def read_job(path: str) -> Job:
  """Reads a job."""
  with np.load(path) as arrays:
    num_weights, num_rounds, num_clients = arrays['shape']
    return Job(
      weights=[arrays[f'weights/{i}'] for i in range(num_weights)],
      rounds=[
        [
          (arrays[f'x/{round_num}/{i}'], arrays[f'y/{round_num}/{i}'])
          for i in range(num_clients)
        ]
        for round_num in range(num_rounds)
      ],
      learning_rate=float(arrays['learning_rate']),
      batch_size=int(arrays['batch_size']),
    )


def write_result(path: str, weights, seconds):
  """Writes the last weights, and the seconds of each round."""
  _write(
    path,
    num_weights=len(weights),
    seconds=seconds,
    **{f'weights/{i}': w for i, w in enumerate(weights)},
  )


def read_result(path: str):
  """Reads the last weights, and the seconds of each round."""
  with np.load(path) as arrays:
    num_weights = int(arrays['num_weights'])
    weights = [arrays[f'weights/{i}'] for i in range(num_weights)]
    return weights, arrays['seconds']


def _write(path, **arrays):
  partial = f'{path}.partial.npz'
  np.savez(partial, **arrays)
  os.replace(partial, path)
