"""Rounds of Flower: `FedAvg` in its simulation on Ray, one core per client.

Run by `benchmarks.peers.compare`, with the requirements of
`requirements_flower.txt`:

    python flower.py JOB RESULT

There is one SuperNode for each client of a cohort, and the server assigns the
examples to the nodes. Flower decides which node's message is sent first.
"""

import os
import sys
import time

os.environ['FLWR_TELEMETRY_ENABLED'] = '0'
os.environ['RAY_USAGE_STATS_ENABLED'] = '0'

import exchange
import flower_client
import numpy as np
import torch_cnn
from flwr.app import ArrayRecord
from flwr.app import ConfigRecord
from flwr.app import Message
from flwr.app import RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def main(job_path, result_path):
  job = exchange.read_job(job_path)
  server_app = ServerApp()

  @server_app.main()
  def serve(grid, context):
    times = []
    strategy = _FixedCohorts(
      job_path, fraction_evaluate=0.0, min_available_nodes=len(job.rounds[0])
    )
    result = strategy.start(
      grid=grid,
      initial_arrays=ArrayRecord(torch_cnn.state_from_weights(job.weights)),
      num_rounds=len(job.rounds),
      # Called before the first round, and after each.
      evaluate_fn=lambda *_: times.append(time.perf_counter()),
    )
    weights = torch_cnn.weights_from_state(result.arrays.to_torch_state_dict())
    exchange.write_result(result_path, weights, np.diff(times))

  run_simulation(
    server_app,
    flower_client.app,
    num_supernodes=len(job.rounds[0]),
    backend_config={'client_resources': {'num_cpus': 1, 'num_gpus': 0.0}},
  )


class _FixedCohorts(FedAvg):
  """Deals the clients of the job's cohorts to the nodes."""

  def __init__(self, job_path, **kwargs):
    super().__init__(**kwargs)
    self._job_path = job_path

  def configure_train(self, server_round, arrays, config, grid):
    messages = super().configure_train(server_round, arrays, config, grid)
    for client, message in enumerate(messages):
      config = ConfigRecord(
        {
          'job_path': self._job_path,
          'round': server_round - 1,
          'client': client,
        }
      )
      yield Message(
        RecordDict({'arrays': arrays, 'config': config}),
        dst_node_id=message.metadata.dst_node_id,
        message_type=message.metadata.message_type,
      )


if __name__ == '__main__':
  main(*sys.argv[1:])
