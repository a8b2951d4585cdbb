"""Seconds for an evaluation, side by side with a bare loop over the batches.

The test sets are synthetic. Each contender evaluates the same weights on the
same batches; the first time, which compiles, is left out. They take turns, in
reverse order every other time, so that a drift of the machine's speed cancels
out.

*   bare: the model's outputs for each batch, and nothing else.
*   tff_ocs: `tff_ocs.tasks.task.build_evaluation`, as in the round loop.
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import app
from absl import flags

import tff_ocs  # noqa: F401, I001, first: it quietens TensorFlow.
from benchmarks import timing
from tff_ocs.tasks import cifar100
from tff_ocs.tasks import femnist
from tff_ocs.tasks import shakespeare
from tff_ocs.tasks import task as task_lib

_TIMES = flags.DEFINE_integer('times', 8, 'How often each is timed.', 2)

_BATCH_SIZE = 1000  # The default of `build_evaluation`.


def main(argv):
  del argv
  tasks = {
    'femnist': femnist.load_synthetic(seed=0, num_test_examples=10000),
    'shakespeare': shakespeare.load_synthetic(seed=0),
    'cifar100': cifar100.load_synthetic(seed=0),
  }
  print(f'{"":14}{"examples":>9}{"bare, s":>9}{"tff_ocs, s":>11}{"ratio":>7}')
  for name, task in tasks.items():
    weights = tff.learning.models.ModelWeights(*task.model.initial_weights)
    bare = _build_bare(task)
    own = task_lib.build_evaluation(
      task.model, task.test, batch_size=_BATCH_SIZE
    )
    seconds = timing.take_turns(
      {
        'bare': lambda run=bare, weights=weights: run(weights),
        'tff_ocs': lambda run=own, weights=weights: run(weights),
      },
      _TIMES.value,
    )
    bare, own = seconds.values()
    print(
      f'{name:14}{len(task.test.y):9}{np.median(bare):9.3f}'
      f'{np.median(own):11.3f}{np.median(own / bare):7.2f}'
    )


def _build_bare(task):
  @tf.function(reduce_retracing=True)
  def forward(weights, x):
    return task.model.predict_on_batch(weights, x, training=False)

  def run(weights):
    weights = tf.nest.map_structure(
      tf.convert_to_tensor, (weights.trainable, weights.non_trainable)
    )
    for start in range(0, len(task.test.y), _BATCH_SIZE):
      x = tf.constant(task.test.x[start : start + _BATCH_SIZE])
      forward(weights, x).numpy()

  return run


if __name__ == '__main__':
  app.run(main)
