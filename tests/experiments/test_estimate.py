"""Tests of the estimate of what client sampling would save."""

import re
import types

import numpy as np
import pandas as pd
import pytest

from experiments import estimate
from experiments.runs import data_flags
from tests.experiments import linear
from tff_ocs import probabilities

N = 8


def equal_norms(noise):
  """Rounds whose clients all have the norm 1."""
  return [estimate.Round(np.ones([2, N]), noise) for _ in range(3)]


def one_large(noise):
  """Rounds in which one client has nearly all of the norm."""
  norms = np.full([2, N], 0.01)
  norms[:, 3] = 1
  return [estimate.Round(norms, noise)] * 2


def test_variances_are_those_of_the_paper_in_units_of_the_noise():
  rng = np.random.default_rng(0)
  rounds = [
    estimate.Round(scale * rng.exponential(size=[2, N]), 3 * scale**2)
    for scale in (1, 100)
  ]
  table = estimate.tabulate(rounds, num_parameters=1000)
  assert list(table['expected_clients']) == list(range(1, N + 1))
  for m in (1, 3, 5):
    uniform, optimal, noise = [], [], []
    for round_ in rounds:
      scale = np.mean(np.sum(round_.norms**2, axis=1))
      noise.append(round_.noise / scale)
      for u in round_.norms:
        # (n - m) / m sum u^2, and Eq. (6) with the probabilities of Eq. (7).
        uniform.append((N - m) / m * np.sum(u**2) / scale)
        p = probabilities.optimal_probabilities(u, m)
        optimal.append(np.sum((1 - p) / p * u**2) / scale)
    row = table.iloc[m - 1]
    assert row['uniform_variance'] == pytest.approx(
      np.mean(uniform) / np.mean(noise)
    )
    assert row['optimal_variance'] == pytest.approx(
      np.mean(optimal) / np.mean(noise)
    )
    assert row['improvement_factor'] == pytest.approx(
      np.mean(optimal) / np.mean(uniform)
    )
    scalars = [
      1 + 2 * probabilities.approximate_probabilities(u, m).num_iterations
      for round_ in rounds
      for u in round_.norms
    ]
    bits = 32 * (m * 1000 + N * np.mean(scalars))
    assert row['uplink_bits'] == round(bits)
    assert row['uplink_of_full'] == pytest.approx(bits / (32 * N * 1000))
  last = table.iloc[-1]
  assert last['uniform_variance'] == last['optimal_variance'] == 0
  assert last['uplink_of_full'] == 1


def test_rounds_without_updates_do_not_count():
  still = estimate.Round(np.zeros([2, N]), 0.0)
  pd.testing.assert_frame_equal(
    estimate.tabulate([*one_large(1.0), still], 10),
    estimate.tabulate(one_large(1.0), 10),
  )


def say(rounds, num_parameters=10**6):
  return estimate.verdict(estimate.tabulate(rounds, num_parameters))


def test_verdict_names_the_smallest_m_that_is_enough():
  # Uniform sampling adds (8 - m) / m x 8: at most 1.7 from m = 7 on.
  assert say(equal_norms(17.0)).startswith(
    'm=7 of 8 clients is enough: optimal sampling adds 6.7% to the noise'
  )
  assert 'saves nothing over uniform sampling' in say(equal_norms(17.0))
  assert say(equal_norms(0.1)).startswith('No m below n=8 is enough')
  found = say(one_large(1.0))
  assert re.match(
    r'm=2 of 8 clients is enough: .* sends 25% of the bits', found
  )
  assert found.endswith('Uniform sampling needs all 8.')
  assert 'Uniform sampling needs m=7 for that.' in say(one_large(2.0))


def test_verdict_says_when_nothing_can_be_saved():
  assert 'no noise of their own' in say(one_large(0.0))
  assert 'So it saves nothing' in say(one_large(1.0), num_parameters=2)
  single = [estimate.Round(np.ones([2, 1]), 1.0)]
  assert say(single) == 'A cohort of one client has nothing to sample.'


def test_table_shows_what_the_verdict_names():
  norms = np.random.default_rng(1).exponential(size=[2, 100])
  table = estimate.tabulate([estimate.Round(norms, 20.0)], 10**6)
  text = estimate.format_markdown(table, 'caption')
  shown = [int(row.split('|')[1]) for row in text.splitlines()[4:]]
  assert shown[0] == 1 and shown[-1] == 100 and len(shown) <= 16
  assert estimate.smallest_enough(table, 'optimal_variance') in shown
  assert estimate.smallest_enough(table, 'uniform_variance') in shown


TASK = """
import numpy as np
from tff_ocs import tasks

def load(seed):
  rng = np.random.default_rng(0)
  clients = []
  for size in [2, 3, 4, 60, 5, 70]:
    x = rng.normal(size=(size, 3))
    clients.append((x, x @ [1.0, 2.0, 3.0]))
  return tasks.from_arrays(clients, model='mlp', seed=seed, data_name='mine')

def load_linear(seed):
  rng = np.random.default_rng(0)
  clients = [(rng.normal(size=(5, 2)), rng.normal(size=5)) for _ in range(6)]
  return tasks.from_arrays(clients)

def load_still(seed):
  return tasks.from_arrays([(np.zeros([4, 2]), np.zeros(4))] * 3)
"""


def test_parameters_are_counted_in_any_structure():
  kernel, bias = np.zeros([3, 2]), np.zeros(2)
  for trainable in (
    (kernel, bias),
    {'kernel': kernel, 'bias': bias},
    ({'dense': (kernel, [bias])},),
  ):
    model = types.SimpleNamespace(initial_weights=(trainable, (kernel,)))
    assert estimate.count_parameters(model) == 8


@pytest.fixture(scope='module')
def task(tmp_path_factory):
  path = tmp_path_factory.mktemp('estimate') / 'my_task.py'
  path.write_text(TASK)
  return path


def run(*arguments):
  estimate.run(linear.parse(estimate, *arguments))


def test_program_measures_norms_and_noise(task, tmp_path, capsys, monkeypatch):
  measured = []
  measure = estimate.measure

  def spy(*args):
    measured.append(measure(*args))
    return measured[-1]

  monkeypatch.setattr(estimate, 'measure', spy)
  flags = (
    f'--task={task}:load',
    '--clients_per_round=4',
    '--total_rounds=3',
    '--client_learning_rate=0.02',
    '--server_learning_rate=0.5',
  )
  run(*flags, f'--output_dir={tmp_path / "out"}')
  output = capsys.readouterr().out
  assert 'my_task, n=4. Data: mine. 3 rounds' in output
  assert 'clients is enough' in output or 'No m below' in output
  assert {path.name for path in (tmp_path / 'out').iterdir()} == {
    f'estimate.{ending}' for ending in ('csv', 'md', 'png', 'pdf')
  }
  table = pd.read_csv(tmp_path / 'out' / 'estimate.csv')
  assert len(table) == 4
  assert (table['optimal_variance'] <= table['uniform_variance'] + 1e-12).all()
  # A large client outweighs the others, whatever the updates are.
  assert table['improvement_factor'][1] < 0.8
  (rounds,) = measured
  assert len(rounds) == 3
  for round_ in rounds:
    assert round_.norms.shape == (2, 4) and round_.noise > 0
    # The two cohorts are not the same clients.
    assert not np.array_equal(*round_.norms)
  # Neither the norms nor the noise depend on the server's step size.
  run(*flags[:-1], f'--output_dir={tmp_path / "other"}')
  first, other = measured[0][0], measured[1][0]
  np.testing.assert_allclose(other.norms, first.norms, rtol=1e-5)
  assert other.noise == pytest.approx(first.noise, rel=1e-3)


def test_noise_is_half_the_squared_distance_of_aggregates(task):
  values = linear.parse(
    estimate,
    f'--task={task}:load_linear',
    '--clients_per_round=1',
    '--total_rounds=1',
    '--algorithm=dsgd',
    '--client_weighting=uniform',
    '--batch_size=100',
  )
  loaded = data_flags.load(values)
  (round_,) = estimate.measure(values, loaded, 0.3)
  # The gradients of the mean squared error at zero weights.
  gradients = {}
  for client_id in loaded.train.client_ids:
    x, y = loaded.train.examples(client_id)
    of_client = -2 * np.mean(np.column_stack([x, np.ones(len(x))]) * y, axis=0)
    gradients[np.linalg.norm(of_client)] = of_client
  one, other = (
    gradients[min(gradients, key=lambda norm: abs(norm - measured))]
    for measured in round_.norms[:, 0]
  )
  assert round_.norms[0, 0] == pytest.approx(np.linalg.norm(one), rel=1e-5)
  assert round_.norms[1, 0] == pytest.approx(np.linalg.norm(other), rel=1e-5)
  assert round_.noise == pytest.approx(np.sum((one - other) ** 2) / 2, rel=1e-4)
  assert round_.noise > 0


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--task={}:load_still'], 'error: all updates are 0'),
    (
      ['--task={}:load', '--client_learning_rate=1e30'],
      'error: in round 0 the updates of . clients are NaN',
    ),
    (['--task={}:nothing'], 'has no function nothing'),
    ([], 'either --task=PATH.py:FUNCTION or --data=FILE'),
    (['--task={}:load', '--clients_per_round=9'], 'more than the 6 clients'),
    (
      ['--task={}:load', '--algorithm=dsgd', '--client_epochs=2'],
      '--client_epochs=2 needs --algorithm=fedavg',
    ),
  ],
)
def test_what_cannot_be_estimated_ends_in_one_line(
  task, tmp_path, arguments, message
):
  output = tmp_path / 'out'
  with pytest.raises(SystemExit, match=message) as error:
    run(
      '--clients_per_round=3',
      *(argument.format(task) for argument in arguments),
      f'--output_dir={output}',
    )
  assert len(str(error.value).splitlines()) == 1
  assert not output.exists()
