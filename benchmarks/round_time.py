"""Seconds for a round of the paper's models, side by side on the same cohorts.

The workloads are

*   femnist: 200 clients, 20 of them with 300 examples and 180 with 4 to 10, of
    which 32 are drawn in a round, as in the paper's unbalanced sets;
*   femnist_128: 128 clients are drawn instead;
*   femnist_one: 32 clients of one example: what a client costs;
*   shakespeare: 32 clients of 69 batches of 8 sequences of 5 characters;
*   cifar100: 32 clients of 100 images.

Each contender trains on the same cohorts, round after round as in real use (a
round after idling is slower, for all); the first, which compiles, is left out.
All is done twice, the second time in reverse order, so that a drift of the
machine's speed cancels out.

*   bare: the fastest loop that we know of in bare TensorFlow 2, of the same
    model: a `tf.while_loop` over the batches, several clients in threads, the
    largest client first, and the mean of the updates. The floor. With
    --bare_variants come first its times for other numbers of client threads and
    of threads within a client's operations.
*   tff_ocs: this package, with full participation, AOCS, OCS and threshold
    sampling, m = n / 10; where a method needs one round trip only, also fused,
    see `tff_ocs.runtime.forms`.
*   tff.learning: `build_weighted_fed_avg` in TFF's own context, as its users
    run it; for `femnist` only.
"""

import concurrent.futures
import contextlib
import os
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import app
from absl import flags

import tff_ocs  # noqa: I001, first: it quietens TensorFlow.
from tff_ocs import simple_fedavg
from tff_ocs.runtime import forms
from tff_ocs.tasks import cifar100
from tff_ocs.tasks import femnist
from tff_ocs.tasks import shakespeare

_WORKLOAD_NAMES = (
  'femnist',
  'femnist_128',
  'femnist_one',
  'shakespeare',
  'cifar100',
)
_WORKLOADS = flags.DEFINE_multi_enum(
  'workload', list(_WORKLOAD_NAMES), _WORKLOAD_NAMES, 'What is trained.'
)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 8, 'The rounds of a turn, with the first; of cifar100 3.', 2
)
_BARE_VARIANTS = flags.DEFINE_bool(
  'bare_variants', False, 'Whether to time variants of the bare loop.'
)
_BARE_THREADS = flags.DEFINE_list(
  'bare_threads',
  None,
  'Times the bare loop alone, with this number of client threads and this of'
  ' threads within operations.',
)

_NUM_CLIENTS = 200
_NUM_LARGE = 20


class Workload(NamedTuple):
  """A model and the clients that train it.

  Attributes:
    model: The model.
    clients: (x, y) of each client.
    cohorts: The indices of each round's clients, the largest client first.
    batch_size: The size of a batch.
    learning_rate: The clients' step size.
  """

  model: tff.learning.models.FunctionalModel
  clients: list[tuple[np.ndarray, np.ndarray]]
  cohorts: list[list[int]]
  batch_size: int
  learning_rate: float


def main(argv):
  del argv
  if _BARE_THREADS.value:
    (name,) = _WORKLOADS.value
    client_threads, operation_threads = map(int, _BARE_THREADS.value)
    tf.config.threading.set_intra_op_parallelism_threads(operation_threads)
    workload = build_workload(name, _num_rounds(name))
    run = _build_bare(workload, client_threads)
    print(np.median(_time_rounds(run, workload)))
    return
  # For the bare loop, in this process.
  tf.config.threading.set_intra_op_parallelism_threads(1)
  for name in _WORKLOADS.value:
    if _BARE_VARIANTS.value:
      _compare_bare_variants(name)
    _compare(name)


def _num_rounds(name):
  return 3 if name == 'cifar100' else _ROUNDS.value


def _compare_bare_variants(name):
  cpus = os.cpu_count()
  print(f'{name}, bare: client threads, threads of an operation, s/round')
  for threads in sorted({(1, 1), (1, cpus), (cpus, 1), (cpus, cpus)}):
    output = subprocess.run(
      [
        sys.executable,
        '-m',
        'benchmarks.round_time',
        f'--workload={name}',
        f'--rounds={_ROUNDS.value}',
        f'--bare_threads={threads[0]},{threads[1]}',
      ],
      check=True,
      stdout=subprocess.PIPE,
      text=True,
    ).stdout
    seconds = float(output.split()[-1])
    print(f'{threads[0]:14}{threads[1]:14}{seconds:9.3f}')


def _compare(name):
  workload = build_workload(name, _num_rounds(name))
  contenders = {'bare': _build_bare(workload, os.cpu_count())}
  own_context = tff_ocs.execution.use_local_context()
  tff_context = tff.backends.native.create_sync_local_cpp_execution_context()
  n = len(workload.cohorts[0])
  full = tff_ocs.FullParticipation()
  threshold = tff_ocs.ThresholdSampling(n / 10, first_cohort_size=n)
  processes = {
    'full': _build_process(workload, full),
    'full, fused': forms.fuse(_build_process(workload, full)),
    'AOCS': _build_process(
      workload, tff_ocs.ApproximateOptimalSampling(n / 10)
    ),
    'OCS': _build_process(workload, tff_ocs.OptimalSampling(n / 10)),
    'threshold, fused': forms.fuse(_build_process(workload, threshold)),
  }
  with own_context as context:
    for method, process in processes.items():
      contenders[f'tff_ocs, {method}'] = _build_own(process, context)
    if name == 'femnist':
      for loop in ('DATASET_ITERATOR', 'DATASET_REDUCE'):
        contenders[f'tff.learning, {loop}'] = _build_tff_learning(
          workload, loop, tff_context
        )
    seconds = {contender: [] for contender in contenders}
    for order in (list(contenders), list(contenders)[::-1]):
      for contender in order:
        seconds[contender] += _time_rounds(contenders[contender], workload)
  num_examples = np.median(
    [sum(len(workload.clients[i][1]) for i in c) for c in workload.cohorts]
  )
  print(
    f'{name}: {n} clients, {num_examples:.0f} examples a round (median),'
    f' {os.cpu_count()} CPUs; 2 x {len(workload.cohorts) - 1} rounds'
  )
  print(f'{"":32}{"s/round":>8}{"x bare":>8}{"x full":>8}{"ms/client":>11}')
  for contender, values in seconds.items():
    # Ratios of the same round, so that cohorts' sizes cancel out.
    values = np.array(values)
    of_bare = np.median(values / seconds['bare'])
    of_full = np.median(values / seconds['tff_ocs, full'])
    median = np.median(values)
    print(
      f'{contender:32}{median:8.3f}{of_bare:8.2f}{of_full:8.2f}'
      f'{1e3 * median / n:11.2f}'
    )
  sys.stdout.flush()


def _time_rounds(run, workload):
  seconds = []
  for round_num, cohort in enumerate(workload.cohorts):
    data = [(i, *workload.clients[i]) for i in cohort]
    start = time.perf_counter()
    run(round_num, data)
    if round_num > 0:
      seconds.append(time.perf_counter() - start)
  return seconds


def build_workload(name: str, num_rounds: int) -> Workload:
  """Builds a workload of random data, with so many cohorts."""
  rng = np.random.default_rng(0)
  if name in ('femnist', 'femnist_128'):
    sizes = [300] * _NUM_LARGE
    sizes += list(rng.integers(4, 11, size=_NUM_CLIENTS - _NUM_LARGE))
  elif name == 'femnist_one':
    sizes = [1] * _NUM_CLIENTS
  elif name == 'shakespeare':
    sizes = [69 * shakespeare.BATCH_SIZE] * _NUM_CLIENTS
  else:
    sizes = [100] * _NUM_CLIENTS

  if name == 'shakespeare':
    model = shakespeare.build_model(seed=0)
    shape = [shakespeare.SEQUENCE_LENGTH]

    def draw(size):
      x, y = rng.integers(
        len(shakespeare.VOCABULARY), size=(2, size, *shape), dtype=np.int32
      )
      return x, y

  elif name == 'cifar100':
    model = cifar100.build_model(seed=0, scale_inputs=True)

    def draw(size):
      x = rng.integers(256, size=(size, 32, 32, 3), dtype=np.uint8)
      y = rng.integers(cifar100.NUM_CLASSES, size=size)
      return x, y.astype(np.int32)

  else:
    model = femnist.build_model(seed=0)

    def draw(size):
      x = rng.random((size, 28, 28), dtype=np.float32)
      return x, rng.integers(femnist.NUM_CLASSES, size=size).astype(np.int32)

  clients = [draw(size) for size in sizes]
  cohort_size = 128 if name == 'femnist_128' else 32
  cohorts = [
    sorted(
      rng.choice(_NUM_CLIENTS, size=cohort_size, replace=False),
      key=lambda i: -sizes[i],
    )
    for _ in range(num_rounds)
  ]
  batch_size = shakespeare.BATCH_SIZE if name == 'shakespeare' else 20
  # Small for the deep network on noise.
  learning_rate = 1e-3 if name == 'cifar100' else 2**-3
  return Workload(model, clients, cohorts, batch_size, learning_rate)


def _build_bare(workload, client_threads):
  """A round in bare TensorFlow; the state is the list of weights."""
  model, batch_size = workload.model, workload.batch_size
  weights = [tf.constant(w) for w in model.initial_weights[0]]
  state = {'weights': weights}

  @tf.function(
    input_signature=[
      [tf.TensorSpec(w.shape, w.dtype) for w in weights],
      *model.input_spec,
      tf.TensorSpec([2], tf.int64),
    ]
  )
  def train_client(weights, x, y, seed):
    num_examples = tf.shape(y)[0]
    order = tf.argsort(tf.random.stateless_uniform([num_examples], seed))
    num_batches = (num_examples + batch_size - 1) // batch_size

    def step(index, local):
      chosen = order[index * batch_size : (index + 1) * batch_size]
      with tf.GradientTape() as tape:
        tape.watch(local)
        logits = model.predict_on_batch((local, ()), tf.gather(x, chosen))
        loss = workload.learning_rate * model.loss(logits, tf.gather(y, chosen))
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

  pool = concurrent.futures.ThreadPoolExecutor(client_threads)

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


def _build_process(workload, scheme):
  return tff_ocs.build_federated_averaging_process(
    workload.model,
    scheme,
    client_learning_rate=workload.learning_rate,
    batch_size=workload.batch_size,
  )


def _build_own(process, context):
  """A round of this package."""
  with tff.framework.get_context_stack().install(context):
    state = {'state': process.initialize()}

  def run_round(round_num, cohort):
    data = [
      {'x': x, 'y': y, 'seed': simple_fedavg.client_seed(0, round_num, str(i))}
      for i, x, y in cohort
    ]
    before = state['state']
    with contextlib.suppress(ValueError):  # Only threshold sampling has one.
      before = tff_ocs.set_cohort_weight(
        before, sum(len(y) for _, _, y in cohort)
      )
    with tff.framework.get_context_stack().install(context):
      state['state'], _ = process.next(before, data)

  return run_round


def _build_tff_learning(workload, loop_implementation, context):
  """A round of `tff.learning`'s weighted Federated Averaging."""
  process = tff.learning.algorithms.build_weighted_fed_avg(
    workload.model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(
      workload.learning_rate
    ),
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
      .batch(workload.batch_size)
      for _, x, y in cohort
    ]
    with tff.framework.get_context_stack().install(context):
      state['state'] = process.next(state['state'], data).state

  return run_round


if __name__ == '__main__':
  app.run(main)
