"""TFF's program logic runs in the contexts of the package."""

import asyncio
import collections
import csv
import datetime

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_ocs
from tests import models
from tff_ocs import execution

NUM_CLIENTS = 6
CLIENTS_PER_ROUND = 4
EXPECTED_CLIENTS = 2.0
TRUE_WEIGHTS = np.array([[1], [-2], [0.5]], np.float32)


@pytest.fixture(scope='module')
def client_data():
  rng = np.random.default_rng(0)
  clients = {}
  for size in range(2, NUM_CLIENTS + 2):
    x = rng.normal(size=(size, 3)).astype(np.float32)
    clients[f'client {size}'] = collections.OrderedDict(x=x, y=x @ TRUE_WEIGHTS)
  return tff.simulation.datasets.TestClientData(clients).preprocess(
    lambda dataset: dataset.map(lambda e: (e['x'], e['y'])).batch(2)
  )


def _build_process(client_data, scheme):
  """Federated averaging, from the ids of a round's clients."""
  return tff.simulation.compose_dataset_computation_with_learning_process(
    client_data.dataset_computation,
    tff.learning.algorithms.build_weighted_fed_avg(
      models.build_linear_model(3),
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
      model_aggregator=tff_ocs.ClientSamplingFactory(scheme, seed=1),
    ),
  )


class _Program:
  """`train_model` with TFF's managers, all in one folder."""

  def __init__(self, folder, process, client_data):
    self._folder = folder
    self._process = process
    self._client_data = client_data
    self._data_source = tff.program.ClientIdDataSource(client_data.client_ids)
    self.num_rounds_run = 0
    self.models = tff.program.MemoryReleaseManager()

  def _create_state_manager(self, name):
    return tff.program.FileProgramStateManager(
      self._folder / name, keep_total=0
    )

  def _create_evaluation(self, unused_name):
    process = tff.learning.algorithms.build_fed_eval(
      models.build_linear_model(3)
    )
    return (
      tff.simulation.compose_dataset_computation_with_learning_process(
        self._client_data.dataset_computation, process
      ),
      None,
    )

  def _count_round(self, unused_result):
    self.num_rounds_run += 1
    return False

  def run(self, num_rounds):
    evaluation_manager = tff.learning.programs.EvaluationManager(
      data_source=self._data_source,
      aggregated_metrics_manager=tff.program.CSVFileReleaseManager(
        self._folder / 'evaluation.csv', key_fieldname='round'
      ),
      create_state_manager_fn=self._create_state_manager,
      create_process_fn=self._create_evaluation,
      cohort_size=NUM_CLIENTS,
      duration=datetime.timedelta(0),
    )
    asyncio.run(
      tff.learning.programs.train_model(
        train_process=self._process,
        train_data_source=self._data_source,
        train_per_round_clients=CLIENTS_PER_ROUND,
        train_total_rounds=num_rounds,
        should_discard_round=self._count_round,
        program_state_manager=self._create_state_manager('training'),
        model_output_manager=self.models,
        train_metrics_manager=tff.program.CSVFileReleaseManager(
          self._folder / 'metrics.csv', key_fieldname='round'
        ),
        evaluation_manager=evaluation_manager,
        evaluation_periodicity=2,
      )
    )

  def read(self, name):
    with open(self._folder / name, newline='') as file:
      return list(csv.DictReader(file))


def test_train_model_and_resume(client_data, tmp_path):
  process = _build_process(
    client_data, tff_ocs.ApproximateOptimalSampling(EXPECTED_CLIENTS)
  )
  with execution.use_local_context():
    program = _Program(tmp_path, process, client_data)
    program.run(num_rounds=2)
    assert program.num_rounds_run == 2
    first_rows = program.read('metrics.csv')
    # As another process would, from what the state manager has saved.
    program = _Program(tmp_path, process, client_data)
    program.run(num_rounds=4)
    assert program.num_rounds_run == 2
  rows = program.read('metrics.csv')
  assert rows[:2] == first_rows
  assert [row['round'] for row in rows] == ['1', '2', '3', '4']
  for row in rows:
    assert row['aggregator/cohort_size'] == str(CLIENTS_PER_ROUND)
    assert 0 <= int(row['aggregator/participants']) <= CLIENTS_PER_ROUND
    expected = float(row['aggregator/expected_participants'])
    assert expected == pytest.approx(EXPECTED_CLIENTS, rel=1e-5)
  assert [row['round'] for row in program.read('evaluation.csv')] == ['2', '4']
  (state,) = program.models.values().values()
  weights, _ = state.global_model_weights.trainable
  assert np.linalg.norm(weights - TRUE_WEIGHTS) < np.linalg.norm(TRUE_WEIGHTS)


def test_train_model_over_several_workers(client_data, tmp_path):
  process = _build_process(
    client_data,
    tff_ocs.ThresholdSampling(
      EXPECTED_CLIENTS, first_cohort_size=CLIENTS_PER_ROUND
    ),
  )
  program = _Program(tmp_path, process, client_data)
  with execution.use_distributed_context(workers=2):
    program.run(num_rounds=2)
  rows = program.read('metrics.csv')
  assert [row['round'] for row in rows] == ['1', '2']
  for row in rows:
    assert row['aggregator/cohort_size'] == str(CLIENTS_PER_ROUND)
  assert [row['round'] for row in program.read('evaluation.csv')] == ['2']


def test_ordinary_calls_return_values():
  with execution.use_local_context() as context:
    assert isinstance(context, tff.program.FederatedContext)
    assert tff.tensorflow.computation(lambda: tf.constant(3))() == 3
