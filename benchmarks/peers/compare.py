"""Seconds for a round of the FEMNIST CNN here and in other simulators.

The cohorts are those of `benchmarks.round_time`, the weights and the order of
each client's examples are the same for all, and there is full participation, in
fused rounds.
Each peer has its own interpreter, with the packages of its requirements file
in this folder:

    python -m benchmarks.peers.compare --pfl_python=PFL/bin/python \
      --fedjax_python=FEDJAX/bin/python --flower_python=FLOWER/bin/python

First comes one round with a small step size: after it, the update by a peer
must be that by this package but for rounding. Then this package and the peer
take turns, twice, the second time in reverse order, so that a drift of the
machine's speed cancels out; the first round of each turn is left out. The
peers' examples are already in order: shuffles are within this package's time
alone.
"""

import os
import subprocess
import tempfile
import time

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags

import tff_ocs  # noqa: I001, first: it quietens TensorFlow.
from benchmarks import round_time
from benchmarks.peers import exchange
from tff_ocs import simple_fedavg
from tff_ocs.runtime import forms
from tff_ocs.tasks import femnist

_PYTHONS = {
  name: flags.DEFINE_string(f'{name}_python', None, f'Interpreter with {what}.')
  for name, what in (
    ('pfl', 'pfl-research'),
    ('fedjax', 'FedJAX'),
    ('flower', 'Flower'),
  )
}

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_COMMANDS = {
  'pfl': [
    '-m',
    'torch.distributed.run',
    '--standalone',
    f'--nproc_per_node={os.cpu_count()}',
    'pfl_research.py',
  ],
  'fedjax': ['fedjax_rounds.py'],
  'flower': ['flower.py'],
}
_BATCH_SIZE = 20
_LEARNING_RATE = 2**-3
# Small, so that rounding does not grow along a client's path; a smaller one
# would leave too few digits of the update.
_CHECK_LEARNING_RATE = 1e-2
# The norm of the updates' difference, to that of this package's update.
_TOLERANCE = 1e-3


def main(argv):
  del argv
  pythons = {name: flag.value for name, flag in _PYTHONS.items() if flag.value}
  if not pythons:
    raise app.UsageError(
      'There must be a peer to compare with, found none; give at least one of'
      f' {", ".join(f"--{name}_python" for name in _PYTHONS)}.'
    )
  for name, path in pythons.items():
    if not os.access(path, os.X_OK):
      raise app.UsageError(
        f'--{name}_python must be an interpreter, found {path!r}.'
      )
  model = femnist.build_model(seed=0)
  # The flag of `benchmarks.round_time`.
  rounds = _draw_rounds(flags.FLAGS.rounds)
  with tempfile.TemporaryDirectory() as folder:
    with tff_ocs.execution.use_local_context():
      differences = _compare_updates(folder, pythons, model, rounds[:1])
      seconds = _compare_seconds(folder, pythons, model, rounds)
  num_examples = np.median([sum(len(c['y']) for c in r) for r in rounds])
  print(
    f'{len(rounds[0])} clients, {num_examples:.0f} examples a round (median),'
    f' {os.cpu_count()} CPUs; 2 x {len(rounds) - 1} rounds'
  )
  print(f'{"":8}{"s/round":>8}{"tff_ocs":>9}{"ratio":>7}{"difference":>12}')
  for name, values in seconds.items():
    own, peer = np.array(values).swapaxes(0, 1)
    # Ratios of the same round, so that cohorts' sizes cancel out.
    print(
      f'{name:8}{np.median(peer):8.3f}{np.median(own):9.3f}'
      f'{np.median(peer / own):7.2f}{differences[name]:12.1e}'
    )


def _draw_rounds(num_rounds):
  """The clients' data for each round, as this package takes it."""
  workload = round_time.build_workload('femnist', num_rounds)
  rounds = []
  for round_num, cohort in enumerate(workload.cohorts):
    data = []
    for i in cohort:
      x, y = workload.clients[i]
      seed = simple_fedavg.client_seed(0, round_num, str(i))
      data.append({'x': x, 'y': y, 'seed': seed})
    rounds.append(data)
  return rounds


def _compare_updates(folder, pythons, model, rounds):
  """Each peer's relative difference of the update of a round."""
  initial = model.initial_weights[0]
  own, _ = _run_own(_build_own(model, _CHECK_LEARNING_RATE), rounds)
  job_path = os.path.join(folder, 'check.npz')
  _write_job(job_path, model, rounds, _CHECK_LEARNING_RATE)
  differences = {}
  for name, python in pythons.items():
    peer, _ = _run_peer(name, python, job_path)
    error = _norm([p - w for p, w in zip(peer, own)])
    differences[name] = error / _norm([w - v for w, v in zip(own, initial)])
    # Also if it is NaN.
    if not differences[name] <= _TOLERANCE:
      raise ValueError(
        f"{name}'s update must be that of this package but for rounding, a"
        f' relative difference of at most {_TOLERANCE}, found'
        f' {differences[name]:.2g}.'
      )
  return differences


def _compare_seconds(folder, pythons, model, rounds):
  """For each peer the pairs (this package's, peer's) of seconds by round."""
  process = _build_own(model, _LEARNING_RATE)
  job_path = os.path.join(folder, 'rounds.npz')
  _write_job(job_path, model, rounds, _LEARNING_RATE)
  seconds = {}
  for name, python in pythons.items():
    turns = []
    for own_first in (True, False):
      if own_first:
        _, own = _run_own(process, rounds)
      _, peer = _run_peer(name, python, job_path)
      if not own_first:
        _, own = _run_own(process, rounds)
      turns += zip(own[1:], peer[1:])
    seconds[name] = turns
  return seconds


def _build_own(model, learning_rate):
  return forms.fuse(
    tff_ocs.build_federated_averaging_process(
      model,
      tff_ocs.FullParticipation(),
      client_learning_rate=learning_rate,
      batch_size=_BATCH_SIZE,
    )
  )


def _run_own(process, rounds):
  """The weights after the rounds, and the seconds of each."""
  state = process.initialize()
  seconds = []
  for data in rounds:
    start = time.perf_counter()
    state, _ = process.next(state, data)
    seconds.append(time.perf_counter() - start)
  return state.weights.trainable, seconds


def _write_job(path, model, rounds, learning_rate):
  job = exchange.Job(
    weights=model.initial_weights[0],
    rounds=[[_in_order(**client) for client in data] for data in rounds],
    learning_rate=learning_rate,
    batch_size=_BATCH_SIZE,
  )
  exchange.write_job(path, job)


def _in_order(x, y, seed):
  """A client's examples in the order in which this package walks over them."""
  # As in simple_fedavg; the check of the updates would find any difference.
  seed = tf.random.experimental.stateless_split(seed, 2)[0]
  order = tf.argsort(tf.random.stateless_uniform([1, len(y)], seed), axis=-1)
  return x[order[0]], y[order[0]]


def _run_peer(name, python, job_path):
  """As `_run_own`, by a peer in a process of its own."""
  *options, script = _COMMANDS[name]
  result_path = f'{job_path}.{name}.npz'
  result = subprocess.run(
    [python, *options, os.path.join(_FOLDER, script), job_path, result_path],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  if result.returncode != 0:
    raise RuntimeError(f'{name} failed:\n{result.stdout}')
  return exchange.read_result(result_path)


def _norm(arrays):
  return np.sqrt(sum(np.sum(np.square(a, dtype=np.float64)) for a in arrays))


if __name__ == '__main__':
  app.run(main)
