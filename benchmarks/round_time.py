"""Seconds for a round of the FEMNIST CNN, side by side on the same cohorts.

200 clients, 20 of them with 300 examples and 180 with 4 to 10, of which 32 are
drawn in a round, as in the paper's unbalanced sets. Each contender trains on
the same cohorts, round after round as in real use (a round after idling is
slower, for all); the first, which compiles, is left out. All is done twice, the
second time in reverse order, so that a drift of the machine's speed cancels
out.

*   bare: the fastest loop that we know of in bare TensorFlow 2: two client
    threads with one intra-op thread each, a `tf.while_loop` over the batches,
    the largest client first, and the mean of the updates. The floor.
*   tff_ocs: this package, with full participation and with AOCS.
*   tff.learning: `build_weighted_fed_avg` in TFF's own context, as its users
    run it.
"""

import concurrent.futures
import os
import time

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import app
from absl import flags

import tff_ocs  # noqa: I001, first: it quietens TensorFlow.
from tff_ocs import simple_fedavg
from tff_ocs.tasks import femnist

_ROUNDS = flags.DEFINE_integer('rounds', 8, 'The rounds, with the first.', 2)

_NUM_CLIENTS = 200
_NUM_LARGE = 20
_CLIENTS_PER_ROUND = 32
_BATCH_SIZE = 20
_LEARNING_RATE = 2**-3
_CLIENT_THREADS = 2


def main(argv):
  del argv
  # For the bare loop, in this process.
  tf.config.threading.set_intra_op_parallelism_threads(1)
  clients, cohorts = draw_data(_ROUNDS.value)
  model = femnist.build_model(seed=0)
  contenders = {'bare': _build_bare(model)}
  own_context = tff_ocs.execution.use_local_context()
  tff_context = tff.backends.native.create_sync_local_cpp_execution_context()
  with own_context as context:
    for name, scheme in (
      ('tff_ocs, full', tff_ocs.FullParticipation()),
      ('tff_ocs, AOCS m=3', tff_ocs.ApproximateOptimalSampling(3)),
    ):
      contenders[name] = _build_own(model, scheme, context)
    for name, loop in (
      ('tff.learning, DATASET_ITERATOR', 'DATASET_ITERATOR'),
      ('tff.learning, default', 'DATASET_REDUCE'),
    ):
      contenders[name] = _build_tff_learning(model, loop, tff_context)
    seconds = {name: [] for name in contenders}
    for names in (list(contenders), list(contenders)[::-1]):
      for name in names:
        for round_num, cohort in enumerate(cohorts):
          data = [(i, *clients[i]) for i in cohort]
          start = time.perf_counter()
          contenders[name](round_num, data)
          if round_num > 0:
            seconds[name].append(time.perf_counter() - start)
  num_examples = np.median(
    [sum(len(clients[i][1]) for i in c) for c in cohorts]
  )
  print(
    f'{_CLIENTS_PER_ROUND} clients, {num_examples:.0f} examples a round'
    f' (median), {os.cpu_count()} CPUs; 2 x {len(cohorts) - 1} rounds'
  )
  print(f'{"":32}{"s/round":>8}{"x bare":>8}{"x full":>8}')
  for name, values in seconds.items():
    # Ratios of the same round, so that cohorts' sizes cancel out.
    values = np.array(values)
    of_bare = np.median(values / seconds['bare'])
    of_full = np.median(values / seconds['tff_ocs, full'])
    print(f'{name:32}{np.median(values):8.3f}{of_bare:8.2f}{of_full:8.2f}')


def draw_data(num_rounds):
  """Clients' (x, y) and the cohorts, the largest client first."""
  rng = np.random.default_rng(0)
  sizes = [300] * _NUM_LARGE
  sizes += list(rng.integers(4, 11, size=_NUM_CLIENTS - _NUM_LARGE))
  clients = [
    (
      rng.random((size, 28, 28), dtype=np.float32),
      rng.integers(0, femnist.NUM_CLASSES, size=size).astype(np.int32),
    )
    for size in sizes
  ]
  cohorts = [
    sorted(
      rng.choice(_NUM_CLIENTS, size=_CLIENTS_PER_ROUND, replace=False),
      key=lambda i: -sizes[i],
    )
    for _ in range(num_rounds)
  ]
  return clients, cohorts


def _build_bare(model):
  """A round in bare TensorFlow; the state is the list of weights."""
  weights = [tf.constant(w) for w in model.initial_weights[0]]
  state = {'weights': weights}

  @tf.function(
    input_signature=[
      [tf.TensorSpec(w.shape, w.dtype) for w in weights],
      tf.TensorSpec([None, 28, 28], tf.float32),
      tf.TensorSpec([None], tf.int32),
      tf.TensorSpec([2], tf.int64),
    ]
  )
  def train_client(weights, x, y, seed):
    num_examples = tf.size(y)
    order = tf.argsort(tf.random.stateless_uniform([num_examples], seed))
    num_batches = (num_examples + _BATCH_SIZE - 1) // _BATCH_SIZE

    def step(index, local):
      chosen = order[index * _BATCH_SIZE : (index + 1) * _BATCH_SIZE]
      with tf.GradientTape() as tape:
        tape.watch(local)
        logits = model.predict_on_batch((local, ()), tf.gather(x, chosen))
        loss = _LEARNING_RATE * model.loss(logits, tf.gather(y, chosen))
      gradients = tape.gradient(loss, local)
      return index + 1, [w - g for w, g in zip(local, gradients)]

    _, local = tf.while_loop(
      lambda index, _: index < num_batches,
      step,
      (0, weights),
      parallel_iterations=1,
    )
    weight = tf.cast(num_examples, tf.float32)
    return [weight * (w - v) for w, v in zip(weights, local)]

  pool = concurrent.futures.ThreadPoolExecutor(_CLIENT_THREADS)

  def run_round(round_num, cohort):
    weights = state['weights']
    futures = [
      pool.submit(
        train_client,
        weights,
        tf.constant(x),
        tf.constant(y),
        tf.constant([round_num, i], tf.int64),
      )
      for i, x, y in cohort
    ]
    total = None
    for future in futures:
      update = future.result()
      if total is None:
        total = update
      else:
        total = [t + u for t, u in zip(total, update)]
    total_weight = float(sum(len(y) for _, _, y in cohort))
    state['weights'] = [w - t / total_weight for w, t in zip(weights, total)]

  return run_round


def _build_own(model, scheme, context):
  """A round of this package."""
  process = tff_ocs.build_federated_averaging_process(
    model, scheme, client_learning_rate=_LEARNING_RATE, batch_size=_BATCH_SIZE
  )
  with tff.framework.get_context_stack().install(context):
    state = {'state': process.initialize()}

  def run_round(round_num, cohort):
    data = [
      {'x': x, 'y': y, 'seed': simple_fedavg.client_seed(0, round_num, str(i))}
      for i, x, y in cohort
    ]
    with tff.framework.get_context_stack().install(context):
      state['state'], _ = process.next(state['state'], data)

  return run_round


def _build_tff_learning(model, loop_implementation, context):
  """A round of `tff.learning`'s weighted Federated Averaging."""
  process = tff.learning.algorithms.build_weighted_fed_avg(
    model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    loop_implementation=getattr(
      tff.learning.LoopImplementation, loop_implementation
    ),
  )
  with tff.framework.get_context_stack().install(context):
    state = {'state': process.initialize()}

  def run_round(round_num, cohort):
    data = [
      tf.data.Dataset.from_tensor_slices((x, y))
      .shuffle(len(y), seed=round_num)
      .batch(_BATCH_SIZE)
      for _, x, y in cohort
    ]
    with tff.framework.get_context_stack().install(context):
      state['state'] = process.next(state['state'], data).state

  return run_round


if __name__ == '__main__':
  app.run(main)
