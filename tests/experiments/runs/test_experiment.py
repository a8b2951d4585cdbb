"""Tests of what all experiments share, on a small linear task."""

import dataclasses
import json
import math

import numpy as np
import pytest
import tensorflow_federated as tff

from experiments import femnist
from experiments.runs import experiment
from tests.experiments import linear
from tff_ocs import probabilities
from tff_ocs import schemes
from tff_ocs.records import metrics as metrics_lib
from tff_ocs.records import norms as norms_lib
from tff_ocs.records import runs
from tff_ocs.records import settings as settings_lib
from tff_ocs.tasks import client_data

SAMPLINGS = ('full', 'uniform', 'ocs', 'aocs', 'threshold')


def bits_of_update(result):
  metrics = result.metrics
  scalars = 0
  if result.config['sampling'] == 'aocs':
    scalars = 1 + 2 * metrics['num_iterations']
  bits = metrics['uplink_bits'] - 4 * 32 * scalars
  sent = metrics['participants'] > 0
  (bits,) = set((bits[sent] / metrics['participants'][sent]).tolist())
  return bits


@pytest.fixture(scope='session')
def by_sampling(tmp_path_factory):
  """A finished run of each sampling, with the same seed and step size."""
  return {
    sampling: linear.run_and_read(
      tmp_path_factory.mktemp(sampling),
      f'--sampling={sampling}',
      '--client_learning_rate=0.125',
      '--seed=7',
    )
    for sampling in SAMPLINGS
  }


def test_metrics_are_complete_and_consistent(by_sampling):
  for sampling, result in by_sampling.items():
    metrics = result.metrics
    # The devices' time is recorded on request only.
    assert set(metrics) == {
      name for name in metrics_lib.COLUMNS if not name.startswith('simulated')
    }
    np.testing.assert_array_equal(metrics['round'], range(4))
    for name, values in metrics.items():
      if name.startswith('validation'):
        # Every 2 rounds, and after the last.
        np.testing.assert_array_equal(np.isnan(values), [0, 1, 0, 0])
      else:
        assert np.all(np.isfinite(values))
    np.testing.assert_array_equal(
      np.cumsum(metrics['uplink_bits']), metrics['cumulative_uplink_bits']
    )
    scalars = {
      'full': 0,
      'uniform': 0,
      'ocs': 1,
      'aocs': 1 + 2 * metrics['num_iterations'],
      'threshold': 3,
    }[sampling]
    np.testing.assert_array_equal(
      metrics['uplink_bits'],
      32 * (linear.NUM_PARAMETERS * metrics['participants'] + 4 * scalars),
    )
    assert np.all(metrics['seconds'] > 0)


def test_participation_is_as_asked(by_sampling):
  np.testing.assert_array_equal(by_sampling['full'].metrics['participants'], 4)
  for sampling in ('uniform', 'ocs', 'aocs'):
    np.testing.assert_allclose(
      by_sampling[sampling].metrics['expected_participants'], 1.5, rtol=1e-5
    )
  # The threshold is not known in the first round, and m only reached later on.
  of_threshold = by_sampling['threshold'].metrics['expected_participants']
  assert of_threshold[0] == 1.5
  assert np.all((of_threshold > 0) & (of_threshold < 4))


def test_samplings_share_cohorts_weights_and_shuffles(by_sampling):
  of_full = by_sampling['full'].metrics
  for result in by_sampling.values():
    metrics = result.metrics
    np.testing.assert_array_equal(
      metrics['cohort_examples'], of_full['cohort_examples']
    )
    # Before the first step of the server all is equal.
    assert metrics['training_loss'][0] == of_full['training_loss'][0]
  for sampling in ('uniform', 'ocs', 'aocs'):
    loss = by_sampling[sampling].metrics['training_loss']
    assert loss[1] != of_full['training_loss'][1]
  # OCS and AOCS agree as far as float32 does.
  np.testing.assert_allclose(
    by_sampling['ocs'].metrics['training_loss'],
    by_sampling['aocs'].metrics['training_loss'],
    rtol=1e-3,
  )


def test_improvement_factors_show_how_much_can_be_gained(by_sampling):
  for result in by_sampling.values():
    alpha = result.metrics['improvement_factor']
    assert np.all((alpha > 0) & (alpha < 1))
    np.testing.assert_allclose(
      result.metrics['relative_improvement_factor'],
      1.5 / (alpha * (4 - 1.5) + 1.5),
      rtol=1e-5,
    )
  # In the first round the updates are the same.
  first = [r.metrics['improvement_factor'][0] for r in by_sampling.values()]
  np.testing.assert_allclose(first, first[0], rtol=1e-6)


def test_config_says_how_to_repeat_the_run(by_sampling):
  config = by_sampling['aocs'].config
  expected = {
    'experiment': 'FEMNIST set 1',
    'method': 'AOCS, m=1.5',
    'sampling': 'aocs',
    'expected_clients': 1.5,
    'seed': 7,
    'unbalanced_set': '1',
    'data': 'made-up numbers',
    'data_source': 'synthetic',
    'client_learning_rate': 0.125,
  }
  assert {name: config[name] for name in expected} == expected
  # How and where a run is stored does not matter to it.
  assert not set(config) & {'output_dir', 'run_name', 'overwrite', 'cache_dir'}
  _, environment = settings_lib.read_config(by_sampling['aocs'].path)
  assert environment['packages']['tensorflow-federated'] == '0.87.0'
  assert environment['threads_per_client'] >= 1
  assert len(environment['git_commit'].split('+')[0]) in (40, len('unknown'))


def test_folder_has_log_events_and_weights(by_sampling):
  folder = by_sampling['aocs'].path
  log = (folder / 'log.txt').read_text()
  assert '0.125' in log and 'made-up numbers' in log and 'Round 3' in log
  assert list((folder / 'events').glob('events.*'))
  with np.load(folder / 'weights.npz') as weights:
    sizes = [weights[name].size for name in weights]
  assert sum(sizes) == linear.NUM_PARAMETERS
  assert not list(folder.glob('*partial*'))
  assert not (folder / 'checkpoints').exists()


def test_recorded_norms_are_those_of_the_metrics(by_sampling, tmp_path):
  result = linear.run_and_read(
    tmp_path,
    '--sampling=threshold',
    '--client_learning_rate=0.125',
    '--seed=7',
    '--record_norms',
  )
  assert linear.read_results(result.path) == linear.read_results(
    by_sampling['threshold'].path
  )
  assert 'record_norms' not in result.config
  rounds = norms_lib.read_norms(result.path)
  metrics = result.metrics
  assert [norms.size for norms in rounds] == [4] * 4
  for norms, alpha in zip(rounds, metrics['improvement_factor']):
    # The recorded norms are sorted, and so summed up in another order.
    assert probabilities.improvement_factor(norms, 1.5) == pytest.approx(
      alpha, rel=1e-6
    )
  # The thresholds of the run follow from its norms and examples.
  state, p = probabilities.ThresholdState(), np.full(4, 1.5 / 4)
  for round_num, norms in enumerate(rounds):
    u = norms / metrics['cohort_examples'][round_num]
    if round_num > 0:
      p = probabilities.threshold_probabilities(u, state.threshold)
    assert metrics['expected_participants'][round_num] == pytest.approx(
      p.sum(), rel=1e-6
    )
    state = probabilities.update_threshold(state, u, p, 1.5)
  assert not norms_lib.are_recorded(by_sampling['threshold'].path)


def test_same_seed_gives_the_same_bits_and_another_does_not(
  by_sampling, tmp_path
):
  first = linear.read_results(by_sampling['aocs'].path)
  for seed in (7, 8):
    linear.run_and_read(
      tmp_path / str(seed), '--client_learning_rate=0.125', f'--seed={seed}'
    )
  assert linear.read_results(tmp_path / '7' / 'run') == first
  metrics, weights = linear.read_results(tmp_path / '8' / 'run')
  assert metrics != first[0] and weights != first[1]


def test_random_k_sends_the_fraction_that_is_asked_for(tmp_path):
  result = linear.run_and_read(
    tmp_path,
    '--total_rounds=3',
    '--compression=random_k',
    '--random_k_fraction=0.5',
  )
  assert bits_of_update(result) == 32 * linear.NUM_PARAMETERS / 2
  assert np.all(np.isfinite(result.metrics['training_loss']))


def test_dithering_has_the_bits_that_are_asked_for(tmp_path):
  few, many = (
    bits_of_update(
      linear.run_and_read(
        tmp_path / str(bits),
        '--total_rounds=2',
        '--sampling=full',
        '--compression=dithering',
        f'--dithering_bits={bits}',
      )
    )
    for bits in (2, 8)
  )
  # A norm for each bucket, and the entries with those that fill a bucket up.
  assert 2 * 600 < few < 2 * 1024 + 4 * 32
  assert (many - few) % 6 == 0 and 6 * 600 <= many - few <= 6 * 1024


def test_compressed_runs_repeat(tmp_path):
  first, again = (
    linear.run_and_read(tmp_path / name, '--compression=natural')
    for name in ('a', 'b')
  )
  assert bits_of_update(first) == 9 * linear.NUM_PARAMETERS
  assert linear.read_results(first.path) == linear.read_results(again.path)


def test_algorithm_and_weighting_change_the_training_alone(
  by_sampling, tmp_path
):
  plain = by_sampling['full'].metrics
  dsgd, uniform = (
    linear.run_and_read(
      tmp_path / str(i),
      '--sampling=full',
      '--client_learning_rate=0.125',
      '--seed=7',
      argument,
    ).metrics
    for i, argument in enumerate(
      ['--algorithm=dsgd', '--client_weighting=uniform']
    )
  )
  for other in (dsgd, uniform):
    np.testing.assert_array_equal(
      other['cohort_examples'], plain['cohort_examples']
    )
    assert other['training_loss'][1] != plain['training_loss'][1]
  # The first round's losses are along the clients' paths, or of one gradient.
  assert uniform['training_loss'][0] == plain['training_loss'][0]
  assert dsgd['training_loss'][0] != plain['training_loss'][0]


def test_flags_of_training_reach_the_process(by_sampling, tmp_path):
  common = ('--client_learning_rate=0.125', '--seed=7', '--total_rounds=2')
  plain = by_sampling['full'].metrics
  for flag in ('--batch_size=5', '--client_epochs=2'):
    found = linear.run_and_read(
      tmp_path / flag, '--sampling=full', *common, flag
    ).metrics
    # The first loss is one along the clients' paths.
    change = found['training_loss'][0] - plain['training_loss'][0]
    assert abs(change) > 0.01
  found = linear.run_and_read(tmp_path / 'aocs', *common, '--max_iterations=0')
  assert (found.metrics['num_iterations'] == 0).all()
  assert (by_sampling['aocs'].metrics['num_iterations'] > 0).any()


def test_devices_compute_in_each_epoch():
  task = linear.load_task(seed=0, unbalanced_set=None)
  once, thrice = (
    experiment._build_devices(
      linear.parse(femnist, f'--client_epochs={epochs}'), task
    ).simulate(['client_4'], [True], exchanges=0)
    for epochs in (1, 3)
  )
  assert thrice.examples == 3 * once.examples > 0


def test_runs_of_former_versions_are_recognised(tmp_path):
  linear.run_and_read(tmp_path, '--total_rounds=1')
  path = tmp_path / 'run' / 'config.json'
  config = json.loads(path.read_text())
  for name in (
    'algorithm',
    'availability',
    'client_weighting',
    'compression',
    'dithering_bits',
    'experiment',
    'method',
    'random_k_fraction',
    'uniform_skips_silent_clients',
  ):
    del config[name]
  path.write_text(json.dumps(config))
  before = (tmp_path / 'run' / 'metrics.csv').stat().st_mtime_ns
  # It is finished, and not begun again.
  linear.run_and_read(tmp_path, '--total_rounds=1')
  assert (tmp_path / 'run' / 'metrics.csv').stat().st_mtime_ns == before
  with pytest.raises(SystemExit, match='--compression=none, not natural'):
    linear.run_and_read(tmp_path, '--total_rounds=1', '--compression=natural')


def test_results_are_not_overwritten_unless_asked_to(tmp_path):
  linear.run_and_read(tmp_path, '--total_rounds=1')
  before = (tmp_path / 'run' / 'metrics.csv').read_bytes()
  with pytest.raises(SystemExit, match='already holds results.*--overwrite'):
    linear.run_and_read(tmp_path, '--noresume')
  with pytest.raises(SystemExit, match='--total_rounds=1, not 4'):
    linear.run_and_read(tmp_path)
  assert (tmp_path / 'run' / 'metrics.csv').read_bytes() == before
  result = linear.run_and_read(tmp_path, '--total_rounds=2', '--overwrite')
  assert len(result.metrics['round']) == 2


def test_folder_of_something_else_is_never_replaced(tmp_path):
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'thesis.tex').write_text('precious')
  with pytest.raises(SystemExit, match='no config.json'):
    linear.run_and_read(tmp_path, '--overwrite')
  assert (tmp_path / 'run' / 'thesis.tex').read_text() == 'precious'


def test_validation_can_be_on_a_subset_or_on_held_out_clients(
  by_sampling, tmp_path
):
  whole = by_sampling['aocs']
  common = ('--client_learning_rate=0.125', '--seed=7')
  subset = linear.run_and_read(
    tmp_path / 'subset', *common, '--validation_subset=300'
  )
  assert subset.config['validation_subset'] == 300
  assert subset.config['validation_examples'] == 300
  assert '300 validation examples drawn' in subset.config['data']
  # Training is the same, and the evaluation is not.
  np.testing.assert_array_equal(
    subset.metrics['training_loss'], whole.metrics['training_loss']
  )
  accuracy = subset.evaluated('validation_accuracy')[1]
  np.testing.assert_allclose(accuracy * 300, np.round(accuracy * 300))
  assert np.any(
    subset.evaluated('validation_loss')[1]
    != whole.evaluated('validation_loss')[1]
  )

  held_out = linear.run_and_read(
    tmp_path / 'held_out', *common, '--holdout_fraction=0.1'
  )
  assert held_out.config['holdout_fraction'] == 0.1
  assert held_out.config['pool_clients'] == linear.NUM_CLIENTS - 2
  # All examples of the pool are in one or the other.
  assert (
    held_out.config['pool_examples'] + held_out.config['validation_examples']
    == whole.config['pool_examples']
  )


def test_methods_share_the_available_clients(tmp_path):
  results = [
    linear.run_and_read(
      tmp_path / sampling,
      f'--sampling={sampling}',
      '--availability=0.5',
      '--total_rounds=6',
    )
    for sampling in ('full', 'aocs')
  ]
  full, aocs = (result.metrics for result in results)
  assert results[0].config['availability'] == 0.5
  for name in ('available', 'cohort_examples'):
    np.testing.assert_array_equal(full[name], aocs[name])
  assert full['training_loss'][0] == aocs['training_loss'][0]
  np.testing.assert_array_equal(full['participants'], full['available'])
  # Of cohorts of 4.
  assert np.any(full['available'] < 4) and np.any(full['available'] > 0)
  np.testing.assert_allclose(
    aocs['expected_participants'], np.minimum(aocs['available'], 1.5), rtol=1e-5
  )


def test_run_with_a_file_of_availabilities_is_known_by_its_content(tmp_path):
  clients = [f'client_{i}' for i in range(linear.NUM_CLIENTS)]
  path = tmp_path / 'q.csv'
  path.write_text('\n'.join(['client_id,q', *(f'{c},1' for c in clients)]))
  arguments = (
    *linear.SMALL,
    '--total_rounds=2',
    f'--output_dir={tmp_path / "runs"}',
  )
  linear.run(*arguments, f'--availability={path}')
  (folder,) = (tmp_path / 'runs').iterdir()
  recorded = runs.read_run(folder).config['availability']
  assert folder.name.endswith(f'_q{recorded[7:15]}_seed0')

  same = (*arguments, f'--run_name={folder.name}')
  before = (folder / 'metrics.csv').read_bytes()
  moved = path.rename(tmp_path / 'moved.csv')
  linear.run(*same, f'--availability={moved}')
  assert (folder / 'metrics.csv').read_bytes() == before
  moved.write_text(moved.read_text().replace(',1\n', ',0.5\n', 1))
  for other in ([f'--availability={moved}'], []):
    with pytest.raises(SystemExit, match='holds a run with --availability=sha'):
      linear.run(*same, *other)


def test_more_participants_than_clients_are_reported_once(tmp_path, capsys):
  result = linear.run_and_read(
    tmp_path, '--expected_clients=5', '--total_rounds=2'
  )
  np.testing.assert_array_equal(result.metrics['participants'], 4)
  output = capsys.readouterr().err
  assert output.count('all clients of a cohort will send') == 1
  assert '--expected_clients=5 is more than --clients_per_round=4' in output


def test_cohorts_without_examples_send_nothing(tmp_path, monkeypatch):
  load_task = linear.load_task

  def load_nearly_empty(**options):
    task = load_task(**options)
    examples = {i: task.train.examples(i) for i in task.train.client_ids}
    for client_id in task.train.client_ids[5:]:
      examples[client_id] = client_data.Examples(
        *(array[:0] for array in examples[client_id])
      )
    train = client_data.ArrayClientData(examples)
    return dataclasses.replace(task, train=train)

  monkeypatch.setattr(linear, 'load_task', load_nearly_empty)
  metrics = linear.run_and_read(
    tmp_path, '--sampling=threshold', '--clients_per_round=2'
  ).metrics
  is_empty = metrics['cohort_examples'] == 0
  assert is_empty.any() and not is_empty.all()
  assert not metrics['expected_participants'][is_empty].any()


def test_bits_are_shown_in_a_unit_that_suits_them(tmp_path, capsys):
  result = linear.run_and_read(tmp_path, '--sampling=full')
  bits = result.metrics['cumulative_uplink_bits'].iloc[-1]
  assert math.isclose(bits, 32 * 600 * 4 * 4)
  assert f'sent={bits / 1000:.2f} kbit' in capsys.readouterr().err
  assert 'all clients' not in capsys.readouterr().err


class Doubled(schemes.UniformSampling):
  """Uniform sampling with probabilities of twice m / n, unlimited."""

  def build(self, scalar_sum_factory=None):
    program = super().build(scalar_sum_factory)

    @tff.tensorflow.computation(np.float32)
    def double(p):
      return 2 * p

    def next_fn(state, clients):
      output = program.next(state, clients)
      p = tff.federated_map(double, output.probabilities)
      return output._replace(probabilities=p)

    return program._replace(next=next_fn)


def test_invalid_probabilities_are_warned_of(tmp_path, monkeypatch):
  monkeypatch.setattr(experiment, '_build_scheme', lambda values: Doubled(3))
  run = linear.run_and_read(tmp_path, '--total_rounds=1')
  # Four clients, each with 2 x 3 / 4.
  assert run.metrics['invalid_probabilities'][0] == 4
  log = (tmp_path / 'run' / 'log.txt').read_text()
  assert 'invalid probabilities for 4 clients' in log
