"""Runs of experiments.femnist on a small linear task.

The flags, the loop and the files are those of the program; a run takes a second
or two. As a program, `python -m tests.experiments.linear` takes its flags.
"""

import contextlib
import json
import multiprocessing
import os
import sys
import time
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import flags
from absl import logging

from experiments import femnist
from experiments.campaigns import jobs
from experiments.runs import experiment  # noqa: F401, for the forked processes.
from experiments.runs import program
from experiments.runs import training
from tff_ocs.records import runs
from tff_ocs.tasks import client_data
from tff_ocs.tasks import femnist as femnist_task
from tff_ocs.tasks import task as task_lib

NUM_INPUTS = 299
NUM_CLIENTS = 20
NUM_PARAMETERS = 2 * (NUM_INPUTS + 1)
SMALL = (
  '--data_source=synthetic',
  '--clients_per_round=4',
  '--expected_clients=1.5',
  # Each one is compiled.
  '--max_iterations=1',
  '--total_rounds=4',
  '--rounds_per_eval=2',
)
DISTURBED = (
  '--data_source=synthetic',
  '--clients_per_round=3',
  '--expected_clients=1',
  '--max_iterations=1',
  '--total_rounds=24',
  '--rounds_per_eval=6',
  '--rounds_per_checkpoint=5',
  '--run_name=run',
)


def load_task(*, seed, unbalanced_set):
  """The task in place of the digits; only the weights depend on the seed."""
  del unbalanced_set
  rng = np.random.default_rng(0)
  true_weights = rng.normal(size=NUM_INPUTS)

  def draw(size):
    x = rng.normal(size=(size, NUM_INPUTS)).astype(np.float32)
    return client_data.Examples(x, (x @ true_weights > 0).astype(np.int32))

  # Cohorts of different sizes, and clients with more than one batch.
  sizes = [5, 8, 13, 21, 34] * (NUM_CLIENTS // 5)
  return task_lib.Task(
    data_name='made-up numbers',
    model=_build_model(seed),
    train=client_data.ArrayClientData(
      {f'client_{i}': draw(size) for i, size in enumerate(sizes)}
    ),
    test=draw(1000),
    test_by_client=client_data.ArrayClientData(
      {f'client_{i}': draw(10 if i else 0) for i in range(NUM_CLIENTS + 1)}
    ),
  )


def _build_model(seed):
  rng = np.random.default_rng(seed)

  def predict(weights, x, training):
    del training
    (kernel, bias), _ = weights
    return tf.matmul(x, kernel) + bias

  return tff.learning.models.FunctionalModel(
    initial_weights=(
      (
        rng.normal(scale=0.05, size=(NUM_INPUTS, 2)).astype(np.float32),
        np.zeros(2, np.float32),
      ),
      (),
    ),
    predict_on_batch_fn=tf.function(predict),
    loss_fn=task_lib.mean_cross_entropy,
    input_spec=(
      tf.TensorSpec([None, NUM_INPUTS], tf.float32),
      tf.TensorSpec([None], tf.int32),
    ),
  )


def parse(program_module, *arguments):
  """The flags of a program, for its function `run`."""
  values = flags.FlagValues()
  program_module.define_flags(values)
  values([program_module.__name__, *arguments])
  return values


def run(*arguments):
  """Runs the program in this process with the given command line."""
  with mock.patch.object(femnist_task, 'load_synthetic', load_task):
    # A process of tests has many objects, and is done with a run afterwards.
    with mock.patch.object(training, 'gc'):
      femnist.run(parse(femnist, *arguments))


def run_and_read(output_dir, *arguments):
  """Runs with the flags of `SMALL`, and reads the record."""
  run(*SMALL, f'--output_dir={output_dir}', '--run_name=run', *arguments)
  return runs.read_run(output_dir / 'run')


def run_jobs(all_jobs, *, output_dir, name, parallel, ray_address):
  """Takes the place of `jobs.run_jobs`: runs the jobs here, one by one."""
  del name, parallel, ray_address
  for job in all_jobs:
    if not jobs.is_finished(job, output_dir):
      flags_of_run = [f'--{flag}={value}' for flag, value in job.values.items()]
      run(*flags_of_run, f'--run_name={job.name}', f'--output_dir={output_dir}')
  return []


class Run:
  """A run in a process of its own, with the flags of `DISTURBED`.

  The process is forked from one that has imported TensorFlow.
  """

  def __init__(self, output_dir, *arguments, prepare=None):
    """Starts it.

    Args:
      output_dir: The folder of the run's folder, which is called 'run'.
      *arguments: Further flags.
      prepare: A function of a module that the process calls first.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    self.folder = output_dir / 'run'
    self._output = output_dir.parent / f'{output_dir.name}_output.txt'
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload([__name__])
    self._process = context.Process(
      target=_run_in_fork,
      args=(
        str(self._output),
        prepare,
        (*DISTURBED, f'--output_dir={output_dir}', *arguments),
      ),
    )
    self._process.start()

  @property
  def pid(self):
    return self._process.pid

  @property
  def has_ended(self):
    return self._process.exitcode is not None

  def output(self):
    return self._output.read_text()

  def kill(self):
    self._process.kill()
    self._process.join()

  def finish(self):
    """Waits for the end; returns the exit status and the output."""
    self._process.join(timeout=300)
    if not self.has_ended:
      self.kill()
      raise AssertionError(f'The run does not end: {self.output()}')
    return self._process.exitcode, self.output()

  def wait_until(self, condition):
    """Waits for something to happen in the run meanwhile."""
    deadline = time.monotonic() + 300
    while not condition():
      if self.has_ended or time.monotonic() > deadline:
        self.kill()
        raise AssertionError(self.output())
      time.sleep(0.002)

  def kill_when(self, condition):
    self.wait_until(condition)
    self.kill()


def run_killed(output_dir, *arguments):
  """Kills a run after a checkpoint and finishes it; returns its folder."""
  killed = Run(output_dir, *arguments)
  killed.kill_when(lambda: num_rounds(killed.folder) >= 12)
  assert saved_checkpoints(killed.folder)
  status, output = finish(output_dir, *arguments)
  assert status == 0, output
  return killed.folder


def finish(output_dir, *arguments, **kwargs):
  return Run(output_dir, *arguments, **kwargs).finish()


def _run_in_fork(output, prepare, arguments):
  descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
  for stream in (1, 2):
    os.dup2(descriptor, stream)
  logging.use_absl_handler()
  if prepare is not None:
    prepare()
  run(*arguments)


def num_rounds(folder):
  try:
    return len(runs.read_run(folder).metrics.get('round', []))
  except (FileNotFoundError, json.JSONDecodeError):
    return 0


def saved_checkpoints(folder):
  """The whole checkpoints, not what is being written, in the rounds' order."""
  paths = (folder / 'checkpoints').glob('after_round_*')
  whole = [path for path in paths if '_temp' not in path.name]
  return sorted(whole, key=lambda path: int(path.name.split('_')[2]))


def read_results(folder):
  """Returns all metrics except for the seconds, and the weights."""
  lines = (folder / 'metrics.csv').read_text().splitlines()
  column = lines[0].split(',').index('seconds')
  rows = [line.split(',') for line in lines]
  metrics = [row[:column] + row[column + 1 :] for row in rows]
  with np.load(folder / 'weights.npz') as weights:
    return metrics, [weights[name].tobytes() for name in weights]


if __name__ == '__main__':
  with contextlib.suppress(BrokenPipeError):
    program.setup()
    logging.use_absl_handler()
    run(*sys.argv[1:])
