"""Megabytes of a long run's processes, round by round.

  python -m benchmarks.memory

This is the real training loop with all the files that it writes, on clients so
small that a round takes little time: the paper's FEMNIST CNN, 8 clients of 4 to
10 examples in a round, an evaluation every 5 rounds and a checkpoint every 10.
The table has the memory of this process and of the worker, in which each page
that they share counts in parts (PSS). A run reaches its working set within some
rounds. Memory that grows after that would grow without end in a run of days.
"""

import os
import sys
import tempfile

import numpy as np
from absl import app
from absl import flags

import tff_ocs  # noqa: I001, first: it quietens TensorFlow.
from benchmarks import processes
from experiments.runs import cohorts
from experiments.runs import run_folder
from experiments.runs import training
from tff_ocs.records import settings
from tff_ocs.tasks import client_data
from tff_ocs.tasks import femnist
from tff_ocs.tasks import task as task_lib

_ROUNDS = flags.DEFINE_integer('rounds', 500, 'The rounds.', 1)
_ROUNDS_PER_SAMPLE = flags.DEFINE_integer(
  'rounds_per_sample', 50, 'The rounds from one measurement to the next.', 1
)

_NUM_CLIENTS = 100
_CLIENTS_PER_ROUND = 8


def main(argv):
  del argv
  if _ROUNDS.value < 2 * _ROUNDS_PER_SAMPLE.value:
    sys.exit(
      f'--rounds={_ROUNDS.value} must be at least twice'
      f' --rounds_per_sample={_ROUNDS_PER_SAMPLE.value}.'
    )
  task = _build_task()
  process = tff_ocs.build_federated_averaging_process(
    task.model,
    tff_ocs.ClientSamplingFactory(
      tff_ocs.ApproximateOptimalSampling(3), measure_norms=True
    ),
    client_learning_rate=2**-3,
    batch_size=20,
  )
  with tempfile.TemporaryDirectory() as path:
    folder = _MeasuredFolder(os.path.join(path, 'run'))
    with folder.log():
      folder.start(
        settings.Settings(
          experiment='memory',
          method='AOCS',
          data=task.data_name,
          seed=0,
          total_rounds=_ROUNDS.value + 1,
          clients_per_round=_CLIENTS_PER_ROUND,
        )
      )
      with tff_ocs.execution.use_local_context():
        training.train(
          task=task,
          process=process,
          source=cohorts.UniformSource(
            task, 0, _CLIENTS_PER_ROUND, task.train.num_examples
          ),
          sampling='aocs',
          improvement_clients=3,
          known_weight=None,
          total_rounds=_ROUNDS.value + 1,
          rounds_per_eval=5,
          rounds_per_checkpoint=10,
          folder=folder,
        )
  print(f'{"round":>5}{"program":>10}{"worker":>10}{"MB":>10}')
  for round_num, (own, worker) in folder.samples.items():
    print(f'{round_num:5}{own:10.0f}{worker:10.0f}{own + worker:10.0f}')
  first, *_, last = (sum(sample) for sample in folder.samples.values())
  growth = last / first - 1
  print(f'growth after round {_ROUNDS_PER_SAMPLE.value}: {growth:+.1%}')


class _MeasuredFolder(run_folder.RunFolder):
  """A run's folder that notes the memory now and then."""

  def __init__(self, path):
    super().__init__(path)
    self.samples = {}

  def release(self, metrics, round_num):
    super().release(metrics, round_num)
    if round_num > 0 and round_num % _ROUNDS_PER_SAMPLE.value == 0:
      own, *others = processes.process_tree(os.getpid())
      self.samples[round_num] = (
        processes.megabytes(own),
        sum(map(processes.megabytes, others)),
      )


def _build_task():
  rng = np.random.default_rng(0)

  def draw(size):
    return client_data.Examples(
      rng.random((size, 28, 28), dtype=np.float32),
      rng.integers(0, femnist.NUM_CLASSES, size=size).astype(np.int32),
    )

  sizes = rng.integers(4, 11, size=_NUM_CLIENTS)
  return task_lib.Task(
    data_name='random images',
    model=femnist.build_model(seed=0),
    train=client_data.ArrayClientData(
      {str(i): draw(size) for i, size in enumerate(sizes)}
    ),
    test=draw(200),
  )


if __name__ == '__main__':
  app.run(main)
