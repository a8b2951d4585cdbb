"""Seconds from the start of a process to the end of its first round.

Each contender is a process of its own, a few times in turns:

*   import: `import tensorflow_federated`, and nothing else.
*   bare: that, and one training step of the FEMNIST CNN in bare TensorFlow,
    which is traced first. The floor.
*   tff_ocs: this package, with AOCS, through its first round with a client of
    one batch; then the seconds of the second to the tenth round.
"""

import json
import time

import numpy as np
from absl import app
from absl import flags

from benchmarks import processes

_TIMES = flags.DEFINE_integer('times', 5, 'How often each is timed.', 1)

_IMPORT = """
import tensorflow_federated
"""
_BARE = """
import tensorflow_federated
import numpy as np
import tensorflow as tf
from tff_ocs.tasks import femnist
model = femnist.build_model(seed=0)
weights = [tf.constant(w) for w in model.initial_weights[0]]

@tf.function
def step(weights, x, y):
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = model.loss(model.predict_on_batch((weights, ()), x), y)
  return [w - 0.1 * g for w, g in zip(weights, tape.gradient(loss, weights))]

step(weights, tf.zeros([20, 28, 28]), tf.zeros([20], tf.int32))[0].numpy()
"""
_OWN = """
import json, time
import numpy as np
import tff_ocs
from tff_ocs.tasks import femnist
process = tff_ocs.build_federated_averaging_process(
  femnist.build_model(seed=0),
  tff_ocs.ApproximateOptimalSampling(3),
  client_learning_rate=0.1,
)
client = {
  'x': np.zeros([20, 28, 28], np.float32),
  'y': np.zeros([20], np.int32),
  'seed': np.zeros([2], np.int64),
}
with tff_ocs.execution.use_local_context():
  state = process.initialize()
  times = [time.time()]
  for _ in range(10):
    state, _ = process.next(state, [client] * 4)
    times.append(time.time())
print(json.dumps(times))
"""


def main(argv):
  del argv
  seconds = {'import': [], 'bare': [], 'tff_ocs': []}
  rounds = []
  for _ in range(_TIMES.value):
    for name, code in (('import', _IMPORT), ('bare', _BARE)):
      start = time.time()
      processes.output_of('-c', code)
      seconds[name].append(time.time() - start)
    start = time.time()
    times = json.loads(processes.output_of('-c', _OWN).splitlines()[-1])
    seconds['tff_ocs'].append(times[1] - start)
    rounds.append(np.diff(times))
  bare = np.array(seconds['bare'])
  print(f'{"":10}{"seconds":>8}{"x bare":>8}')
  for name, values in seconds.items():
    ratio = np.median(values / bare)
    print(f'{name:10}{np.median(values):8.2f}{ratio:8.2f}')
  by_round = ' '.join(f'{s:.3f}' for s in np.median(rounds, axis=0))
  print(f'seconds of the rounds, 4 clients of one batch: {by_round}')


if __name__ == '__main__':
  app.run(main)
