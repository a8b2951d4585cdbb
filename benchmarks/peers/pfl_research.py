"""Rounds of pfl-research: `FederatedAveraging` on its `SimulatedBackend`.

Run by `benchmarks.peers.compare`, with the requirements of
`requirements_pfl.txt`, as one worker process per core, among which pfl
deals a cohort's clients by their numbers of examples:

    python -m torch.distributed.run --standalone --nproc_per_node=2 \
      pfl_research.py JOB RESULT
"""

import itertools
import os
import sys
import time

import exchange
import numpy as np
import torch
import torch_cnn
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel


def main(job_path, result_path):
  np.random.seed(0)  # Workers must agree on pfl's own random state.
  job = exchange.read_job(job_path)
  users = [
    PyTorchTensorDataset((torch.tensor(x), torch.tensor(y).long()))
    for cohort in job.rounds
    for x, y in cohort
  ]
  dataset = FederatedDataset(
    users.__getitem__,
    itertools.cycle(range(len(users))).__next__,
    user_id_to_weight={i: len(user) for i, user in enumerate(users)},
  )
  module = _Module()
  module.load_state_dict(torch_cnn.state_from_weights(job.weights))
  timer = _Timer()
  FederatedAveraging().run(
    NNAlgorithmParams(
      central_num_iterations=len(job.rounds),
      evaluation_frequency=len(job.rounds),
      train_cohort_size=len(job.rounds[0]),
      val_cohort_size=0,
    ),
    SimulatedBackend(
      training_data=dataset,
      val_data=dataset,
      postprocessors=[WeightByDatapoints()],
    ),
    PyTorchModel(
      module,
      local_optimizer_create=torch.optim.SGD,
      central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    ),
    NNTrainHyperParams(
      local_batch_size=job.batch_size,
      local_num_epochs=1,
      local_learning_rate=job.learning_rate,
    ),
    callbacks=[timer],
  )
  if os.environ.get('RANK', '0') == '0':
    exchange.write_result(
      result_path,
      torch_cnn.weights_from_state(module.state_dict()),
      np.diff(timer.times),
    )


class _Module(torch_cnn.Cnn):
  """With what pfl asks of a module."""

  def loss(self, x, y):
    return torch.nn.functional.cross_entropy(self(x), y)

  @torch.no_grad()
  def metrics(self, x, y):
    # pfl evaluates in the first iteration, which is not counted, at least.
    return {'loss': Weighted(self.loss(x, y).item() * len(y), len(y))}


class _Timer(TrainingProcessCallback):
  """When training began, and when each iteration ended."""

  def __init__(self):
    self.times = []

  def on_train_begin(self, *, model):
    self.times.append(time.perf_counter())
    return super().on_train_begin(model=model)

  def after_central_iteration(
    self, aggregate_metrics, model, *, central_iteration
  ):
    self.times.append(time.perf_counter())
    return super().after_central_iteration(
      aggregate_metrics, model, central_iteration=central_iteration
    )


if __name__ == '__main__':
  main(*sys.argv[1:])
