"""Rounds of FedJAX: the clients of its `fed_avg`, with its jit backend.

Run by `benchmarks.peers.compare`, with the requirements of
`requirements_fedjax.txt` and Python 3.10:

    python fedjax_rounds.py JOB RESULT

The server's part is written out, since that of `fed_avg` would fill a client's
last batch up with examples that the client has been through already.
"""

import sys
import time

import exchange
import fedjax
import jax
import numpy as np
from fedjax.algorithms import fed_avg


def main(job_path, result_path):
  job = exchange.read_job(job_path)
  train_for_each_client = fed_avg.create_train_for_each_client(
    jax.grad(_loss), fedjax.optimizers.sgd(job.learning_rate)
  )
  server_optimizer = fedjax.optimizers.sgd(1.0)
  batching = fedjax.BatchHParams(batch_size=job.batch_size)

  def run_round(weights, optimizer_state, cohort):
    keys = jax.random.split(jax.random.PRNGKey(0), len(cohort))
    clients = [
      (i, fedjax.ClientDataset({'x': x, 'y': y}).batch(batching), key)
      for i, ((x, y), key) in enumerate(zip(cohort, keys))
    ]
    mean = fedjax.tree_util.tree_mean(
      (update, len(cohort[i][1]))
      for i, update in train_for_each_client(weights, clients)
    )
    optimizer_state, weights = server_optimizer.apply(
      mean, optimizer_state, weights
    )
    return jax.block_until_ready((weights, optimizer_state))

  weights = [jax.numpy.asarray(w) for w in job.weights]
  state = weights, server_optimizer.init(weights)
  # One client for each size of a batch: what is compiled for them is no part of
  # any round.
  sizes = {
    len(y) % job.batch_size: (x, y) for cohort in job.rounds for x, y in cohort
  }
  run_round(*state, list(sizes.values()))
  seconds = []
  for cohort in job.rounds:
    start = time.perf_counter()
    state = run_round(*state, cohort)
    seconds.append(time.perf_counter() - start)
  exchange.write_result(result_path, [np.asarray(w) for w in state[0]], seconds)


def _loss(weights, batch, rng):
  """The mean cross entropy of the CNN of `tff_ocs.tasks.femnist`."""
  del rng
  conv1, bias1, conv2, bias2, dense1, bias3, dense2, bias4 = weights
  x = batch['x'][..., None]
  x = _max_pool(jax.nn.relu(_convolve(x, conv1) + bias1))
  x = _max_pool(jax.nn.relu(_convolve(x, conv2) + bias2))
  x = jax.nn.relu(x.reshape([-1, 3136]) @ dense1 + bias3)
  log_p = jax.nn.log_softmax(x @ dense2 + bias4)
  return -jax.numpy.take_along_axis(log_p, batch['y'][:, None], 1).mean()


def _convolve(x, kernel):
  return jax.lax.conv_general_dilated(
    x, kernel, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')
  )


def _max_pool(x):
  return jax.lax.reduce_window(
    x, -np.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'SAME'
  )


if __name__ == '__main__':
  main(*sys.argv[1:])
