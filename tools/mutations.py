"""Shows that the tests catch small faults in the core.

  python -m tools.mutations

Each mutation changes a few characters of one module, as it is here, in a clone
of the committed tree, and runs the tests of that module until one fails. The
program first checks that these tests pass without it. It prints a line for each
mutation, and ends with status 1 if the tests let one pass. It takes about half
an hour on 2 cores.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
_PARALLEL = 2


class Mutation(NamedTuple):
  """A fault.

  Attributes:
    path: The module.
    before: A piece of its code, which occurs once.
    after: The wrong code.
    tests: The test files that should catch it.
  """

  path: str
  before: str
  after: str
  tests: tuple[str, ...]


def _of(path, tests, *changes):
  return [Mutation(path, *change, tuple(tests.split())) for change in changes]


MUTATIONS = [
  *_of(
    'tff_ocs/probabilities.py',
    'tests/test_probabilities.py',
    ('factors > 1 + tolerance', 'factors > 1'),
    ('np.minimum(factors * p, 1.0)', 'factors * p'),
    ('odds_against = (1 - p) / p', 'odds_against = 1 / p'),
  ),
  *_of(
    'tff_ocs/cohorts.py',
    'tests/test_cohorts.py',
    ('counts / pi)', '1 / pi)'),
    ('np.sqrt(self._omega + gamma)', 'self._omega + gamma'),
    ('log_p[places] += counts * steps', 'log_p[places] += steps'),
    (
      'steps = squares / self._largest *',
      'steps = squares / squares.max() *',
    ),
    (
      'self._largest = np.maximum(self._largest, squares.max())\n\n',
      'self._largest = self._largest or squares.max()\n\n',
    ),
    ("side='right'", "side='left'"),
    ('(1 - self.theta) * p + self.theta * uniform', 'p'),
  ),
  *_of(
    'tff_ocs/schemes.py',
    'tests/test_schemes.py tests/test_availability.py',
    ('tf.minimum(m / whole(', 'tf.maximum(m / whole('),
    ('num_below_1 * ascending <= sums', 'num_below_1 * ascending < sums'),
    ('lambda: thresholds[-1]', 'lambda: thresholds[0]'),
    (
      'tf.reduce_sum(costs) <= expected_clients,',
      'tf.reduce_sum(costs) <= 2.0,',
    ),
    ("client['available'], p < 1)", "client['available'], p <= 1)"),
    ('factor > 1 + CALIBRATION_TOLERANCE', 'factor > 1'),
    ('tf.where(p < 1, tf.minimum(factor * p, 1.0), p)', 'factor * p'),
    ('count(clients) <= m)', 'count(clients) < m)'),
    ("totals['clients'] - below_1['clients']", "totals['clients']"),
    ('return 1 + 2 * num_iterations', 'return 2 * num_iterations'),
    ("tf.cast(client['available'], tf.float64),\n  )", '1.0 + 0.0,\n  )'),
  ),
  *_of(
    'tff_ocs/schemes.py',
    'tests/test_costs.py',
    ("tf.where(client['available'], cost, 0.0)", '1.0 + 0.0 * cost'),
    ('norm=cost * _key(client)', 'norm=_key(client)'),
    ('probability=cost * p', 'probability=p'),
    ('norm / tf.sqrt(tf', 'norm / (tf'),
    ('tf.cumsum(costs * ascending)', 'tf.cumsum(ascending)'),
  ),
  *_of(
    'tff_ocs/probabilities.py',
    'tests/test_probabilities.py tests/experiments/theory/test_replays.py',
    ('max(eta, 1 / num_rounds)', 'eta'),
    ('math.log(c * x))', 'math.inf)'),
    ('if x <= 1 and not np.any((p > 0) & (p < 1)):', 'if False:'),
  ),
  *_of(
    'tff_ocs/schemes.py',
    'tests/test_threshold_sampling.py tests/test_cohort_weight.py',
    ('tf.logical_and(p > 0, p < 1)', 'p > 0'),
    (
      "controller['threshold'] * controller['cohort_weight']",
      "controller['threshold'] * 1.0",
    ),
    ("sums['norm'] / controller['cohort_weight'] / m", "sums['norm'] / m"),
    ('tf.exp(eta * (x - 1)), self._c * x', 'tf.exp(eta * (x - 1)), 1e9'),
    ('tf.logical_and(is_known, tf.logical_not(stays))', 'is_known'),
    ('_through_float32(tf.where(key > 0, p, 0.0))', '_through_float32(p)'),
  ),
  *_of(
    'tff_ocs/records/norms.py',
    'tests/records/test_norms.py',
    ('float(str(u))', 'float(f"{u:.6g}")'),
  ),
  *_of(
    'tff_ocs/aggregator.py',
    'tests/test_aggregator.py tests/test_availability.py',
    ("tf.math.divide_no_nan(tf.cast(prepared['weight'], tf.float64), p)", 'p'),
    ("scale /= tf.cast(prepared['q'], tf.float64)", 'scale /= 1.0'),
    ('coin.toss(client) < p', 'coin.toss(client) > p'),
    ('valid = wide >= 0', 'valid = wide >= -1e9'),
    (
      'tf.cast(weight, tf.int64)',
      'tf.cast(tf.cast(weight, tf.int32), tf.int64)',
    ),
    ('sum_precision > 1e-20', 'sum_precision > -1.0'),
    ('return tf.cond(sends, scaled, zeros)', 'return scaled()'),
    ('tf.clip_by_value(p, 0.0, 1.0)', 'p'),
    (
      "prepared['finite'], tf.math.is_finite(scaled_norm)",
      "prepared['finite']," * 2,
    ),
    (
      'tf.math.divide_no_nan(tf.cast(x, tf.float64), total_weight)',
      'tf.cast(x, tf.float64) / total_weight',
    ),
  ),
  *_of(
    'tff_ocs/coins.py',
    'tests/test_aggregator.py tests/test_availability.py',
    (
      'return tf.random.uniform([], dtype=tf.float64)',
      'return tf.random.uniform([], seed=1, dtype=tf.float64)',
    ),
    ('return tff.federated_map(_add_one, state)', 'return state'),
    ('return self._coin.advance(state)', 'return state'),
    ("[client['value'], client['weight']]", "[client['value']]"),
    (
      'stateless_uniform([], coin_seed, dtype=tf.float64)',
      'stateless_uniform([], coin_seed)',
    ),
    ('tf.logical_and(q > 0, q <= 1)', 'q <= 1'),
  ),
  *_of(
    'tff_ocs/measurements.py',
    'tests/test_aggregator.py tests/test_availability.py',
    (
      'p_as_computed >= 0, p_as_computed <= 1',
      'p_as_computed >= 0, p_as_computed >= 0',
    ),
    ("cohort_size=number['available']", "cohort_size=number['clients']"),
  ),
  *_of(
    'tff_ocs/simple_fedavg.py',
    'tests/test_simple_fedavg.py tests/test_availability.py',
    (
      'tf.argsort(\n    tf.random.stateless_uniform([num_epochs',
      'tf.sort(\n    tf.random.stateless_uniform([num_epochs',
    ),
    (
      'losses + count * tf.cast(loss, tf.float32)',
      'losses + tf.cast(loss, tf.float32)',
    ),
    ('loss_scale = learning_rate', 'loss_scale = 1.0'),
    (", unconnected_gradients='zero'", ''),
    ('return self._aggregation.trains(client)', 'return tf.constant(True)'),
    ('stateless_fold_in(seed, 1)', 'stateless_fold_in(seed, 0)'),
  ),
  *_of(
    'tff_ocs/records/metrics.py',
    'tests/records tests/experiments/runs/test_faults.py',
    ("text[: text.rfind('\\n') + 1]", 'text'),
    ("decode('utf-8-sig')", "decode('utf-8')"),
    ('if len(row) != len(names):', 'if len(row) > len(names):'),
  ),
  *_of(
    'tff_ocs/records/settings.py',
    'tests/records tests/experiments/campaigns',
    (
      'isinstance(one, bool) == isinstance(other, bool) and one == other',
      'one == other',
    ),
  ),
  *_of(
    'tff_ocs/records/files.py',
    'tests/records tests/experiments/runs/test_faults.py',
    ('lock.acquire(timeout=0)', 'lock'),
    ('    partial.replace(path)\n', '    pass\n'),
  ),
  *_of(
    'experiments/runs/checkpoints.py',
    'tests/experiments/runs/test_faults.py'
    ' tests/experiments/runs/test_resume.py',
    ('return progress, version + 1', 'return progress, version'),
    ('if version >= round_num:', 'if version > round_num:'),
    ('keep_total=2', 'keep_total=1'),
  ),
  *_of(
    'experiments/runs/run_folder.py',
    'tests/experiments/runs/test_faults.py'
    ' tests/experiments/runs/test_resume.py'
    ' tests/experiments/runs/test_experiment.py',
    ('if is_missing and self.checkpoints.are_there:', 'if False:'),
    ('if self.is_finished and not self._overwrite:', 'if False:'),
  ),
  *_of(
    'experiments/runs/training.py',
    'tests/experiments/runs/test_resume.py'
    ' tests/experiments/runs/test_experiment.py',
    (
      'progress.state, int(progress.cumulative_uplink_bits), next_round',
      'progress.state, 0, next_round',
    ),
  ),
  *_of(
    'tff_ocs/secure_sums.py',
    'tests/test_secure_sums.py',
    ('max(1.0, num_clients / expected_clients)', '(num_clients / 1.0)'),
  ),
  *_of(
    'tff_ocs/tasks/task.py',
    'tests/tasks/test_task.py tests/test_simple_fedavg.py',
    ('test_by_client=held_out_data', 'test_by_client=None'),
    ('x, training=False)', 'x, training=True)'),
  ),
  *_of(
    'experiments/runs/experiment.py',
    'tests/experiments/runs/test_cohorts.py',
    ('cost / mean for name', 'cost for name'),
  ),
  *_of(
    'experiments/runs/cohorts.py',
    'tests/experiments/runs/test_cohorts.py',
    ('self._availability[ids[place]]', 'self._availability[ids[0]]'),
    ('return self._sampler.state', 'return {}'),
    ('np.float32(cohort.scales[place])', 'np.float32(1)'),
    ('communication.BITS_PER_SCALAR * len(clients.candidates)', '0'),
  ),
  *_of(
    'experiments/runs/client_record.py',
    'tests/experiments/runs/test_client_record.py',
    ('rows[:, 2].astype(np.int64)', '1'),
    ("np.array(state['participations'])", 'self._counts'),
    ('if round_num not in self._rounds', 'if round_num != self._rounds[-1]'),
  ),
  *_of(
    'experiments/runs/devices.py',
    'tests/experiments/runs/test_devices.py',
    ('float(np.sum(uploads))', 'float(np.sum(self._up[places]))'),
    ('np.max(trained + uploads)', 'np.max(trained) + np.max(uploads)'),
    ('+ exchanges * round_trip', '+ round_trip'),
    ('seconds = _FIXED_SECONDS', 'seconds = 0.0'),
    (
      '_DOWN_BYTES_PER_SECOND = (0.75e6, 1.1)',
      '_DOWN_BYTES_PER_SECOND = (0.8e6, 1.1)',
    ),
    (
      '_SECONDS_PER_EXAMPLE = (7 * 0.56e-3, 0.7)',
      '_SECONDS_PER_EXAMPLE = (7 * 0.56e-3, 0.6)',
    ),
    ('2 * np.max(self._latency[places])', 'np.max(self._latency[places])'),
    ('down = 0.0', 'pass'),
  ),
  *_of(
    'plots/paper_claims.py',
    'tests/plots/test_claims.py',
    ('MIN_SEEDS = 3', 'MIN_SEEDS = 2'),
    (
      'runs.method_of(group.runs[0].settings).name is None',
      'group.method.name is None',
    ),
    ('if seeds >= min_seeds:', 'if seeds >= MIN_SEEDS:'),
    ('2**2.5)', '2**2.0)'),
    ("'within ±1 point', -0.01, 0.01", "'within ±1 point', -0.04, 0.04"),
    ('high=0.4)', 'high=1.0)'),
    ("'at least 80 %', 0.8", "'at least 80 %', 0.0"),
    ('if least <= low and high <= most:', 'if least <= value <= most:'),
    ('if high < least or most < low:', 'if high < least:'),
    ('    check_same_length(found)\n', ''),
    ('check_same_length(of_sets)', 'pass'),
    (
      "at_most = Tolerance('at most 1.15', high=1.15)",
      "at_most = Tolerance('at most 1.15', high=1.4)",
    ),
  ),
  *_of(
    'plots/measures.py',
    'tests/plots/test_measures.py tests/plots/test_claims.py',
    ('below[-1] + 1', 'below[0] + 1'),
    ('(end - start))', 'end)'),
    ('(seeds / (seeds - 1))', '(1)'),
  ),
  *_of(
    'experiments/theory/dropouts.py',
    'tests/experiments/theory/test_dropouts.py',
    ('(1 - arrives))[sends]', '(1 - p))[sends]'),
    (
      'factors.sum(axis=-1, keepdims=True) - factors',
      'factors.sum(axis=-1, keepdims=True)',
    ),
    ('return np.where(num_reported <= m, present > 0, p)', 'return p'),
    ('squares = of_coins + of_set', 'squares = of_coins'),
  ),
  *_of(
    'experiments/campaigns/job_settings.py',
    'tests/experiments/campaigns',
    ('program.define_flags(values)', 'experiment_flags.define(values)'),
    ('not values[name].present', 'True'),
  ),
  *_of(
    'experiments/campaigns/jobs.py',
    'tests/experiments/campaigns',
    ('failures[job] > _MAX_RETRIES', 'failures[job] > 0'),
    ('losses[job] > _MAX_LOSSES', 'losses[job] > _MAX_RETRIES'),
    (
      "reason.startswith('error: ')\n            and not",
      "reason.startswith('error: ')\n            and",
    ),
  ),
]


def find_problems() -> list[str]:
  """Returns a line for each mutation whose code does not occur once."""
  problems = []
  for mutation in MUTATIONS:
    count = (ROOT / mutation.path).read_text().count(mutation.before)
    if count != 1:
      problems.append(f'{mutation.path}: {mutation.before!r} occurs {count} x')
  return problems


def _run_tests(mutation: Mutation, content: str) -> int:
  """Runs a mutation's tests on a clone.

  Args:
    mutation: The mutation.
    content: The text of its module.

  Returns:
    The exit status of pytest, which is 1 if a test has failed.
  """
  with tempfile.TemporaryDirectory() as folder:
    subprocess.run(['git', 'clone', '-q', str(ROOT), folder], check=True)
    (pathlib.Path(folder) / mutation.path).write_text(content)
    return subprocess.run(
      [sys.executable, '-m', 'pytest', '-x', '-q', '-p', 'no:cacheprovider']
      + list(mutation.tests),
      cwd=folder,
      env={**os.environ, 'PYTHONPATH': folder},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    ).returncode


def _check_tests(mutation: Mutation) -> str:
  """Checks that the tests pass without the fault."""
  status = _run_tests(mutation, (ROOT / mutation.path).read_text())
  return '' if status == 0 else f'{" ".join(mutation.tests)} fail as they are'


def _try(mutation: Mutation) -> bool:
  """Returns whether the tests catch the fault, and prints it."""
  content = (ROOT / mutation.path).read_text()
  status = _run_tests(
    mutation, content.replace(mutation.before, mutation.after)
  )
  verdict = 'caught' if status == 1 else f'SURVIVED ({status})'
  print(
    f'{verdict}: {mutation.path}: {mutation.before!r} -> {mutation.after!r}',
    flush=True,
  )
  return status == 1


def main():
  problems = find_problems()
  with concurrent.futures.ThreadPoolExecutor(_PARALLEL) as pool:
    if not problems:
      by_tests = {mutation.tests: mutation for mutation in MUTATIONS}
      problems = list(filter(None, pool.map(_check_tests, by_tests.values())))
    if problems:
      sys.exit('\n'.join(problems))
    num_caught = sum(pool.map(_try, MUTATIONS))
  print(f'{num_caught} of {len(MUTATIONS)} caught')
  sys.exit(num_caught < len(MUTATIONS))


if __name__ == '__main__':
  main()
