"""Tests of runs whose cohorts a sampler draws, on a small linear task."""

import numpy as np
import pytest

from experiments import femnist
from experiments.runs import cohorts as runs_cohorts
from experiments.runs import experiment
from tests.experiments import linear
from tff_ocs import cohorts
from tff_ocs.records import clients
from tff_ocs.records import labels

SAMPLERS = tuple(labels.COHORT_SAMPLERS)
M = 3
FLAGS = (
  '--sampling=full',
  f'--clients_per_round={M}',
  '--client_learning_rate=0.125',
  '--seed=7',
)


@pytest.fixture(scope='session')
def by_sampler(tmp_path_factory):
  """A finished run with each sampler, with the same seed and step size."""
  return {
    sampler: linear.run_and_read(
      tmp_path_factory.mktemp(sampler), f'--cohort_sampler={sampler}', *FLAGS
    )
    for sampler in SAMPLERS
  }


def test_all_drawn_clients_send_and_all_bits_are_counted(by_sampler):
  for name, result in by_sampler.items():
    metrics = result.metrics
    participants = metrics['participants']
    np.testing.assert_array_equal(participants, metrics['available'])
    scalars = {'osmd': participants, 'kvib': participants}.get(name, 0)
    if name == 'power_of_choice':
      scalars = 3 * M
      assert (metrics['candidate_examples'] >= 3 * M * 5).all()
    else:
      assert (metrics['candidate_examples'] == 0).all()
    np.testing.assert_array_equal(
      metrics['uplink_bits'],
      32 * (participants * linear.NUM_PARAMETERS + scalars),
    )
    if name in ('uniform', 'power_of_choice'):
      assert (participants == M).all()
    elif name != 'kvib':
      assert (participants <= M).all()
    # A round in which nobody was drawn has no loss.
    assert ((metrics['training_loss'] < 3) | (participants == 0)).all()


def test_methods_have_the_names_of_their_samplers(by_sampler):
  names = [run.settings.method for run in by_sampler.values()]
  assert names == [
    'uniform cohorts, n=3',
    'MD, n=3',
    'clustered, n=3',
    'Power-of-Choice, n=3',
    'OSMD, n=3',
    'K-Vib, n=3',
  ]


def test_cohorts_are_those_of_the_sampler(by_sampler):
  task = linear.load_task(seed=7, unbalanced_set=None)
  sizes = task.train.num_examples
  sampler = cohorts.ClusteredCohorts(sizes, M, 7)
  for round_num, examples in enumerate(
    by_sampler['clustered'].metrics['cohort_examples']
  ):
    drawn = sampler.sample(round_num).client_ids
    assert examples == sum(sizes[i] for i in drawn)


def test_source_passes_scales_on_and_norms_back():
  task = linear.load_task(seed=7, unbalanced_set=None)
  sizes = dict(task.train.num_examples)
  source, sampler = (
    cohorts.OsmdCohorts(sizes, 6, 0),
    cohorts.OsmdCohorts(sizes, 6, 0),
  )
  source = runs_cohorts.SamplerSource(task, 0, source, sizes, None)
  expected = sampler.sample(0)
  found = source.draw(0, None)
  assert tuple(found.client_ids) == expected.client_ids
  assert found.weight == sum(sizes.values())
  lengths = [len(client['y']) for client in found.data]
  assert lengths == sorted(lengths, reverse=True)
  for client in found.data:
    place = int(client['place'])
    assert client['scale'] == np.float32(expected.scales[place])
    assert len(client['y']) == sizes[expected.client_ids[place]]
  # The process reveals n_i s_i ||U_i||.
  norms = np.arange(1.0, len(expected.client_ids) + 1)
  factors = expected.scales * [sizes[i] for i in expected.client_ids]
  rows = np.stack([np.arange(norms.size), norms * factors, norms > 0], axis=1)
  assert source.observe(0, found, rows) == 32 * norms.size
  sampler.observe(0, expected.client_ids, norms)
  for name, value in sampler.state.items():
    np.testing.assert_allclose(source.state[name], value)


def test_killed_run_of_a_sampler_that_learns_continues_to_the_same_bits(
  tmp_path,
):
  flags = ('--cohort_sampler=osmd', '--sampling=full')
  whole = linear.Run(tmp_path / 'whole', *flags)
  killed = linear.run_killed(tmp_path / 'killed', *flags)
  assert whole.finish()[0] == 0
  assert linear.read_results(killed) == linear.read_results(whole.folder)


def test_sampler_and_scheme_combine(tmp_path):
  result = linear.run_and_read(
    tmp_path,
    '--cohort_sampler=multinomial',
    '--clients_per_round=8',
    '--expected_clients=2',
    '--sampling=threshold',
    '--client_learning_rate=0.125',
  )
  assert result.settings.method == 'MD, n=8 + one round trip, m=2'
  metrics = result.metrics
  assert (metrics['available'] > 3).all()
  assert (metrics['participants'] < metrics['available']).all()
  assert metrics['improvement_factor'].between(0, 1).all()


@pytest.mark.parametrize('weighting', ['num_examples', 'uniform'])
def test_whole_pool_has_one_mean_with_and_without_a_sampler(
  weighting, tmp_path
):
  plain, drawn = (
    linear.run_and_read(
      tmp_path / sampler,
      '--sampling=full',
      f'--clients_per_round={linear.NUM_CLIENTS}',
      f'--client_weighting={weighting}',
      f'--cohort_sampler={sampler}',
      '--client_learning_rate=0.125',
      '--total_rounds=3',
    ).metrics
    for sampler in ('none', 'uniform')
  )
  np.testing.assert_allclose(
    drawn['training_loss'], plain['training_loss'], rtol=1e-4
  )


def test_improvement_factors_are_of_schemes_only(by_sampler):
  # All clients of the cohort send: there is nothing to improve.
  for result in by_sampler.values():
    assert 'improvement_factor' not in result.metrics
    assert 'relative_improvement_factor' not in result.metrics


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (
      ['--cohort_sampler=osmd', '--availability=0.5'],
      'cannot be combined with --availability=0.5',
    ),
    (
      ['--cohort_sampler=osmd', '--algorithm=dsgd'],
      'needs --algorithm=fedavg',
    ),
    (
      ['--dropout_rate=0.1', '--availability=0.5'],
      '--dropout_rate=0.1 cannot be combined with --availability=0.5',
    ),
    (
      ['--dropout_rate=0.1', '--algorithm=dsgd'],
      '--dropout_rate=0.1 needs --algorithm=fedavg',
    ),
    (
      ['--simulate_devices', '--availability=0.5'],
      '--simulate_devices cannot be combined with --availability=0.5',
    ),
    (
      ['--simulate_devices', '--algorithm=dsgd'],
      '--simulate_devices needs --algorithm=fedavg',
    ),
    (
      ['--simulate_devices', '--sampling=my_code.py:build'],
      'needs --sampling=full, .* found --sampling=my_code.py:build',
    ),
    (
      ['--num_candidates=5'],
      'needs --cohort_sampler=power_of_choice',
    ),
    (
      ['--cohort_sampler=power_of_choice', '--num_candidates=3'],
      '--num_candidates=3 must be at least --clients_per_round=4',
    ),
    (
      ['--cohort_sampler=power_of_choice', '--num_candidates=21'],
      r'--num_candidates=21: .* at most the 20 clients',
    ),
  ],
)
def test_flags_that_contradict_each_other(flags, message, tmp_path):
  with pytest.raises(SystemExit, match=message):
    linear.run(*linear.SMALL, f'--output_dir={tmp_path}', *flags)
  assert not list(tmp_path.iterdir())


OWN = """
import numpy as np
from tff_ocs import cohorts


class Half(cohorts.MultinomialCohorts):
  def expected_draws(self):
    return super().expected_draws() * FACTOR


def nothing(client_weights, clients_per_round, seed):
  return len(client_weights)


def fails(client_weights, clients_per_round, seed):
  raise KeyError(seed)
"""


COUNTING = """
import numpy as np
from tff_ocs import cohorts


class Counting(cohorts.UniformCohorts):
  uses_norms = True
  participations = np.zeros(())

  def observe(self, round_num, client_ids, norms):
    self.participations = self.participations + 1

  @property
  def state(self):
    return {'participations': self.participations}

  def restore(self, state):
    super().restore(state)
    assert state['participations'] in (5, 10, 15, 20), state
    self.participations = state['participations']
"""


def test_state_of_a_sampler_can_have_any_name(tmp_path):
  file = tmp_path / 'counting.py'
  file.write_text(COUNTING)
  flags = (
    f'--cohort_sampler={file}:Counting',
    '--sampling=full',
    # Its counts are saved as well, under the same name.
    '--evaluate_clients',
  )
  folder = linear.run_killed(tmp_path / 'runs', *flags)
  table = clients.read_clients(folder)
  assert table['simulated_draws'].sum() == 24 * 3


def test_sampler_of_a_file_is_that_of_its_class(by_sampler, tmp_path):
  file = tmp_path / 'mine.py'
  file.write_text(OWN.replace('FACTOR', '1'))
  result = linear.run_and_read(
    tmp_path / 'runs', f'--cohort_sampler={file}:Half', *FLAGS
  )
  assert result.settings.cohort_sampler.startswith('mine.py:Half@sha256:')
  assert result.settings.method == 'mine.py:Half, n=3'
  for name in ('uplink_bits', 'training_loss', 'validation_accuracy'):
    np.testing.assert_array_equal(
      result.metrics[name], by_sampler['multinomial'].metrics[name]
    )


@pytest.mark.parametrize(
  ('function', 'message'),
  [
    ('Half', 'the first cohort: ValueError: .* must sum to .* 3, found 1.4999'),
    ('nothing', 'must return a tff_ocs.cohorts.CohortSampler, found int'),
    ('fails', r'mine.py:fails: line 16, KeyError: 7'),
    ('absent', 'has no function absent'),
  ],
)
def test_bad_samplers_of_a_file(function, message, tmp_path):
  file = tmp_path / 'mine.py'
  file.write_text(OWN.replace('FACTOR', '0.5'))
  output = tmp_path / 'runs'
  output.mkdir()
  with pytest.raises(SystemExit, match=message):
    linear.run(
      *linear.SMALL,
      f'--output_dir={output}',
      f'--cohort_sampler={file}:{function}',
      *FLAGS,
    )
  assert not list(output.iterdir())


def test_each_client_has_its_own_availability_and_cost():
  task = linear.load_task(seed=7, unbalanced_set=None)
  ids = list(task.train.client_ids)
  of_client = {name: (k + 1) / 32 for k, name in enumerate(ids)}
  source = runs_cohorts.UniformSource(
    task,
    7,
    6,
    task.train.num_examples,
    availability=of_client,
    client_costs=of_client,
    reveals_clients=True,
  )
  drawn = source.draw(0, None)
  assert len(drawn.data) == 6
  for client in drawn.data:
    name = drawn.client_ids[int(client['place'])]
    assert client['availability'] == client['cost'] == of_client[name]
    np.testing.assert_array_equal(client['x'], task.train.examples(name).x)


def test_costs_have_a_mean_of_1_over_the_pool():
  task = linear.load_task(seed=7, unbalanced_set=None)
  costs = experiment._choose_costs(
    linear.parse(femnist, '--client_costs=uplink_seconds'), task
  )
  assert set(costs) == set(task.train.client_ids)
  assert np.mean(list(costs.values())) == pytest.approx(1)
  assert np.std(list(costs.values())) > 0.1


def test_candidates_report_their_own_losses():
  task = linear.load_task(seed=7, unbalanced_set=None)
  ids = list(task.train.client_ids)
  loss_of = {name: float(k * 7 % 20) for k, name in enumerate(ids)}
  source = runs_cohorts.SamplerSource(
    task,
    0,
    cohorts.PowerOfChoiceCohorts(task.train.num_examples, 3, 0, 8),
    task.train.num_examples,
    lambda weights, name: loss_of[name] + weights,
  )
  for round_num in range(10):
    drawn = source.draw(round_num, 0.5)
    highest = sorted(drawn.candidates, key=loss_of.get)[-3:]
    assert set(drawn.client_ids) == set(highest)


def _draw(round_num, rates, clients_per_round=20):
  task = linear.load_task(seed=7, unbalanced_set=None)
  source = runs_cohorts.UniformSource(
    task, 7, clients_per_round, task.train.num_examples, dropout_rates=rates
  )
  return source.draw(round_num, None)


def test_lost_clients_are_a_part_of_the_cohort():
  before, between = 0.3, 0.2
  rounds, n = 200, 20
  whole = _draw(0, None)
  assert len(whole.client_ids) == n
  reported = lost = 0
  for round_num in range(rounds):
    drawn = _draw(round_num, (before, between))
    # The server knows the weight of all that have checked in.
    assert drawn.weight == whole.weight
    assert len(drawn.data) == len(drawn.client_ids)
    reported += len(drawn.data)
    lost += sum(bool(client['lost']) for client in drawn.data)
  # 5.5 standard deviations: a false alarm in 4e-8 of all cases for each.
  total = rounds * n
  bound = 5.5 * np.sqrt(total * before * (1 - before))
  assert abs(reported - total * (1 - before)) < bound
  bound = 5.5 * np.sqrt(reported * between * (1 - between))
  assert abs(lost - reported * between) < bound


def test_methods_lose_the_same_clients():
  # A client that is lost before its report is so in whatever scheme.
  one_message, two_messages = _draw(3, (0.3, 0.0)), _draw(3, (0.3, 0.2))
  assert one_message.client_ids == two_messages.client_ids
  assert not any(client['lost'] for client in one_message.data)
  assert _draw(4, (0.3, 0.0)).client_ids != one_message.client_ids


@pytest.mark.parametrize(
  'sampling', ['full', 'uniform', 'ocs', 'aocs', 'threshold']
)
def test_runs_with_dropouts(sampling, tmp_path):
  result = linear.run_and_read(
    tmp_path,
    f'--sampling={sampling}',
    '--clients_per_round=8',
    '--expected_clients=8',
    '--dropout_rate=0.4',
    '--client_learning_rate=0.125',
  )
  assert result.settings.method.endswith(', dropouts 40%')
  metrics = result.metrics
  assert (metrics['available'] < 8).any()
  # With m = n all send, but for those that are lost after their report.
  if sampling in ('ocs', 'aocs'):
    assert (metrics['participants'] < metrics['available']).any()
  elif sampling == 'threshold':
    # The threshold is not known in the first round.
    assert metrics['participants'][0] == metrics['available'][0]
  else:
    np.testing.assert_array_equal(metrics['participants'], metrics['available'])
