"""Measures what the paper's convergence theorems bound, and prints both.

  python -m experiments.quadratic

DSGD, Eq. (2), and FedAvg, Algorithm 3, with each sampling, on problems of which
all constants are known (`tff_ocs.tasks.quadratic`): quadratics for Theorems 13
and 17, and tilted wells, which are not convex, for Theorems 15 and 18. In each
round, E||x^{k+1} - x*||^2 or E f(x^{k+1}) - f*, as a mean over the repeats, is
compared with the theorem's right-hand side at what was measured before it; so
are the bounds with the faults of their derivations repaired (docs/theory.md).

gamma^k is the ratio of expectations, Eq. (15) and (16), over the repeats. A
bound counts as violated if it is exceeded by more than 6 standard errors of the
mean of the difference, which a bound that holds is once in 10^9 comparisons.
The table shows of each sampling and step size the round that is nearest to the
bound; bounds.csv in --output_dir has all rounds.

Then come examples made to violate a bound, and the data of two figures: the
neighbourhood of x* that is reached, by m, and the largest stable step size, by
heterogeneity. `python -m plots.theory` draws them.

The exit status is 1 if a repaired bound is violated: then the program is wrong.
"""

import csv
import json
import math
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np
from absl import app
from absl import flags

from experiments import bounds
from plots import files
from tff_ocs import probabilities
from tff_ocs.tasks import quadratic

SCHEMES = ('full', 'uniform', 'ocs', 'aocs')
STANDARD_ERRORS = 6
_AOCS_ITERATIONS = 4
_PART = 2**15
_CSV_FILES = ('bounds', 'examples', 'neighbourhood', 'step_sizes')
# Rounding.
_RELATIVE_TOLERANCE = 1e-9
_HETEROGENEITIES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


class Setting(NamedTuple):
  """How long the steps are.

  Attributes:
    step: Of the largest step size that the theorem allows; or 'repaired': the
      largest with which the proof of Theorem 18 goes through.
    global_step: 'smallest' that the theorem allows, that or 1 if it is below
      ('at least 1'), or 'a tenth' of it.
  """

  step: str
  global_step: str = 'smallest'


_SETTINGS = {
  13: (Setting('1'), Setting('0.5'), Setting('0.1')),
  15: (Setting('1'), Setting('0.5'), Setting('0.1')),
  17: (
    Setting('1'),
    Setting('0.5'),
    Setting('0.1'),
    Setting('1', 'at least 1'),
    Setting('1', 'a tenth'),
  ),
  18: (
    Setting('1'),
    Setting('0.5'),
    Setting('0.1'),
    Setting('repaired', 'at least 1'),
    Setting('1', 'a tenth'),
  ),
}


class Factor(NamedTuple):
  """The improvement factor of a round, over the repeats.

  Attributes:
    alpha: alpha^k, Eq. (15).
    gamma: gamma^k, Eq. (16).
    influence: By how much each repeat moves alpha^k, of shape [repeats]; its
      mean is 0. For the standard errors.
  """

  alpha: float
  gamma: float
  influence: np.ndarray


class Played(NamedTuple):
  """A round of all repeats.

  Attributes:
    x: The points after it, of shape [repeats, d].
    factor: Its improvement factor.
    steps: The step sizes.
  """

  x: np.ndarray
  factor: Factor
  steps: bounds.Steps


class Comparison(NamedTuple):
  """A measured mean and a bound.

  Attributes:
    bound: The mean of the right-hand side.
    excess: Measured minus bound, as a mean over the repeats.
    error: Its standard error.
    violated: Whether the excess is above 0 beyond doubt.
  """

  bound: float
  excess: float
  error: float
  violated: bool


class Example(NamedTuple):
  """A round made to violate a bound.

  Attributes:
    name: What it shows.
    theorem: The number.
    problem: The clients' functions.
    sampling: One of `SCHEMES`.
    expected_clients: m.
    x: Where the round begins, of shape [d].
    steps: Its step sizes, from gamma^k.
    repeats: How often the round is played.
    local_steps: R.
  """

  name: str
  theorem: int
  problem: quadratic.Problem
  sampling: str
  expected_clients: float
  x: np.ndarray
  steps: Callable[[bounds.Theorem, float], bounds.Steps]
  repeats: int
  local_steps: int = 1


def scheme_probabilities(
  sampling: str, norms: np.ndarray, expected_clients: float
) -> np.ndarray:
  """The library's probabilities of one of `SCHEMES`, for norms [..., n]."""
  if sampling == 'full':
    return np.ones_like(norms)
  if sampling == 'uniform':
    p = probabilities.uniform_probabilities(norms.shape[-1], expected_clients)
    return np.broadcast_to(p, norms.shape)
  return probabilities.batch_probabilities(
    norms,
    expected_clients,
    _AOCS_ITERATIONS if sampling == 'aocs' else None,
  )


def improvement(
  sampling: str, norms: np.ndarray, p: np.ndarray, expected_clients: float
) -> Factor:
  """alpha^k and gamma^k of a round, from the norms [repeats, n]."""
  num_clients = norms.shape[-1]
  influence = np.zeros(len(norms))
  if sampling == 'full' or expected_clients >= num_clients:
    return Factor(0.0, 1.0, influence)
  alpha = 1.0
  if sampling != 'uniform':
    uniform = probabilities.batch_sampling_variance(
      norms, scheme_probabilities('uniform', norms, expected_clients)
    )
    if not uniform.any():
      return Factor(0.0, 1.0, influence)
    own = probabilities.batch_sampling_variance(norms, p)
    alpha = min(own.mean() / uniform.mean(), 1.0)
    influence = (own - alpha * uniform) / uniform.mean()
  gamma = probabilities.relative_improvement_factor(
    alpha, num_clients, expected_clients
  )
  return Factor(alpha, gamma, influence)


def play_round(
  theorem: bounds.Theorem,
  problem: quadratic.Problem,
  sampling: str,
  expected_clients: float,
  x: np.ndarray,
  choose_steps: Callable[[float], bounds.Steps],
  seed: Sequence[int],
) -> Played:
  """Plays a round of all repeats.

  Args:
    theorem: Says whether DSGD or FedAvg is meant, and the local steps.
    problem: The clients' functions.
    sampling: One of `SCHEMES`.
    expected_clients: m.
    x: The points before, of shape [repeats, d].
    choose_steps: Gives the step sizes from gamma^k.
    seed: Of the noise and the coins.

  Returns:
    What came of it.
  """
  n = problem.num_clients
  # In FedAvg gamma^k depends a little on the local steps, which depend on it.
  gamma = 1.0 if sampling == 'full' else min(expected_clients / n, 1.0)
  new_steps = choose_steps(gamma)
  for _ in range(3):
    steps = new_steps
    rng = np.random.default_rng(seed)
    updates = _updates(theorem, problem, x, steps, rng)
    norms = problem.weights * np.linalg.norm(updates, axis=-1)
    p = scheme_probabilities(sampling, norms, expected_clients)
    factor = improvement(sampling, norms, p, expected_clients)
    new_steps = choose_steps(factor.gamma)
    if new_steps == steps or not theorem.is_local:
      break
  if theorem.is_local:
    factor_of_sum = steps.global_step_size
  else:
    steps = new_steps
    factor_of_sum = steps.step_size
  sent = rng.random(p.shape) < p
  scales = np.where(sent, problem.weights / np.where(sent, p, 1.0), 0.0)
  total = np.einsum('kn,knd->kd', scales, updates)
  return Played(x - factor_of_sum * total, factor, steps)


def _updates(theorem, problem, x, steps, rng):
  """The U_i, of shape [repeats, n, d]."""
  shape = (problem.num_clients, problem.dimension)
  updates = np.empty((len(x), *shape))
  # In parts that the processor's cache holds.
  size = max(1, _PART // math.prod(shape))
  for first in range(0, len(x), size):
    part = slice(first, first + size)
    start = x[part, np.newaxis]
    if not theorem.is_local:
      updates[part] = problem.noisy_gradients(start, rng)
      continue
    local = steps.step_size / (theorem.local_steps * steps.global_step_size)
    y = np.broadcast_to(start, (start.shape[0], *shape))
    for _ in range(theorem.local_steps):
      y = y - local * problem.noisy_gradients(y, rng)
    updates[part] = start - y
  return updates


def measured(
  theorem: bounds.Theorem, problem: quadratic.Problem, x: np.ndarray
) -> np.ndarray:
  """What the theorem bounds, in each repeat."""
  after = bounds.position(problem, x)
  return after.squared_distance if theorem.bounds_distance else after.gap


def compare(
  bound: Callable[..., Optional[np.ndarray]],
  values: np.ndarray,
  before: bounds.Position,
  expected_clients: float,
  num_clients: int,
  played: Played,
) -> Optional[Comparison]:
  """Compares what was measured with a bound; `None` where there is none.

  The difference is taken in each repeat. That gamma^k is an estimate from the
  same repeats is accounted for to first order.
  """
  factor, steps = played.factor, played.steps
  limits = bound(before, factor.gamma, steps)
  if limits is None:
    return None
  excesses = values - limits
  if factor.influence.any():
    shift = 1e-6 if factor.alpha < 0.5 else -1e-6
    shifted = probabilities.relative_improvement_factor(
      factor.alpha + shift, num_clients, expected_clients
    )
    slope = (bound(before, shifted, steps) - limits).mean() / shift
    excesses = excesses - slope * factor.influence
  excess = float(excesses.mean())
  error = float(excesses.std(ddof=1) / math.sqrt(len(excesses)))
  rounding = _RELATIVE_TOLERANCE * abs(float(limits.mean()))
  return Comparison(
    bound=float(limits.mean()),
    excess=excess,
    error=error,
    violated=excess > STANDARD_ERRORS * error + rounding,
  )


def compare_rounds(
  theorem: bounds.Theorem,
  problem: quadratic.Problem,
  sampling: str,
  expected_clients: float,
  setting: Setting,
  *,
  x: np.ndarray,
  rounds: int,
  seed: int,
) -> list[dict[str, Any]]:
  """Plays many rounds and compares each with the bounds.

  Args:
    theorem: The theorem.
    problem: The clients' functions.
    sampling: One of `SCHEMES`.
    expected_clients: m.
    setting: The step sizes.
    x: Where all repeats begin, of shape [repeats, d].
    rounds: The number K of rounds.
    seed: Of the noise and the coins.

  Returns:
    The rows of bounds.csv, one for each round.
  """

  def choose_steps(gamma):
    if setting.step == 'repaired':
      step_size = theorem.repaired_step_limit(gamma)
    else:
      step_size = float(setting.step) * theorem.step_limit(gamma)
    global_step_size = theorem.global_step_size(gamma)
    if setting.global_step == 'at least 1':
      global_step_size = max(global_step_size, 1.0)
    elif setting.global_step == 'a tenth':
      global_step_size /= 10
    return bounds.Steps(step_size, global_step_size)

  rows = []
  from_start = {}
  for k in range(rounds):
    before = bounds.position(problem, x)
    played = play_round(
      theorem, problem, sampling, expected_clients, x, choose_steps, (seed, k)
    )
    x = played.x
    for name in ('stated', 'repaired'):
      from_start[name] = _next_from_start(
        theorem, getattr(theorem, name), before, played, from_start.get(name)
      )
    rows.append(
      {
        'theorem': theorem.number,
        'sampling': sampling,
        'step': setting.step,
        'global_step': setting.global_step if theorem.is_local else '',
        'round': k + 1,
        **_comparisons(theorem, problem, expected_clients, before, played),
        **{f'{name}_from_start': value for name, value in from_start.items()},
      }
    )
  return rows


def _next_from_start(theorem, bound, before, played, former):
  """The bound of a round at the bound of the one before, not at the measured.

  f(x^k) - f* is dropped from Theorem 17's, where it is subtracted; the norm of
  the gradient in Theorems 15 and 18 is the measured one.
  """
  start = before.squared_distance if theorem.bounds_distance else before.gap
  if former is None:
    former = start.mean()
  if former == '':
    return ''
  limit = bound(
    bounds.Position(
      squared_distance=former,
      gap=0.0 if theorem.bounds_distance else former,
      squared_gradient=before.squared_gradient.mean(),
    ),
    played.factor.gamma,
    played.steps,
  )
  return '' if limit is None else float(limit)


def play_example(example: Example, seed: int) -> dict[str, Any]:
  """Plays an example's round; returns its row of examples.csv."""
  theorem = bounds.THEOREMS[example.theorem](
    example.problem, example.local_steps
  )
  x = np.tile(example.x, (example.repeats, 1))
  before = bounds.position(example.problem, x)
  # In parts, since there may be many clients.
  size = max(1, 2_000_000 // example.problem.num_clients)
  parts = [
    play_round(
      theorem,
      example.problem,
      example.sampling,
      example.expected_clients,
      x[start : start + size],
      lambda gamma: example.steps(theorem, gamma),
      (seed, start),
    )
    for start in range(0, len(x), size)
  ]
  sizes = [len(part.x) for part in parts]
  alpha = float(np.average([p.factor.alpha for p in parts], weights=sizes))
  factor = Factor(
    alpha,
    probabilities.relative_improvement_factor(
      alpha, example.problem.num_clients, example.expected_clients
    )
    if alpha
    else 1.0,
    np.concatenate([part.factor.influence for part in parts]),
  )
  played = Played(np.concatenate([p.x for p in parts]), factor, parts[0].steps)
  return {
    'name': example.name,
    'theorem': example.theorem,
    'sampling': example.sampling,
    **_comparisons(
      theorem, example.problem, example.expected_clients, before, played
    ),
  }


def _comparisons(theorem, problem, expected_clients, before, played):
  values = measured(theorem, problem, played.x)
  row = {
    'gamma': played.factor.gamma,
    'step_size': played.steps.step_size,
    'global_step_size': played.steps.global_step_size,
    'allowed': theorem.allows(played.factor.gamma, played.steps),
    'measured': float(values.mean()),
    'standard_error': float(values.std(ddof=1) / math.sqrt(len(values))),
  }
  for name in ('stated', 'repaired'):
    comparison = compare(
      getattr(theorem, name),
      values,
      before,
      expected_clients,
      problem.num_clients,
      played,
    )
    for field in Comparison._fields:
      row[f'{name}_{field}'] = (
        '' if comparison is None else getattr(comparison, field)
      )
  return row


def examples() -> list[Example]:
  """The rounds made to violate the bounds, see docs/theory.md."""

  def at_limit(theorem, gamma):
    return bounds.Steps(
      theorem.step_limit(gamma), theorem.global_step_size(gamma)
    )

  two_clients = quadratic.Quadratics(
    weights=np.array([0.9, 0.1]),
    smoothness=1.0,
    noise_slope=0.0,
    noise_variance=0.0,
    strong_convexity=1.0,
    curvatures=np.ones((2, 1)),
    centres=np.array([[1.0], [-9.0]]),
  )
  noisy = quadratic.Quadratics(**{**two_clients.__dict__, 'noise_slope': 4.0})
  # All norms are equal at x*, and so are the weights.
  opposed = quadratic.Quadratics(
    weights=np.full(20, 0.05),
    smoothness=1.0,
    noise_slope=0.0,
    noise_variance=0.0,
    strong_convexity=1.0,
    curvatures=np.ones((20, 1)),
    centres=np.resize([[1.0], [-1.0]], (20, 1)),
  )
  identical = quadratic.Quadratics(
    **{**opposed.__dict__, 'centres': np.zeros((20, 1))}
  )
  one_heavy = quadratic.TiltedWells(
    weights=np.array([0.9, *np.full(99, 0.1 / 99)]),
    smoothness=1.0,
    noise_slope=0.0,
    noise_variance=0.0,
    tilts=np.zeros((100, 1)),
  )
  return [
    Example(
      'unequal weights',
      13,
      two_clients,
      'ocs',
      1,
      np.array([-1.0]),
      at_limit,
      100_000,
    ),
    Example(
      'unequal weights, half the step size',
      13,
      two_clients,
      'ocs',
      1,
      np.array([-0.3]),
      lambda theorem, gamma: bounds.Steps(0.5 * theorem.step_limit(gamma)),
      100_000,
    ),
    Example(
      'unequal weights, no sampling, M = 4',
      13,
      noisy,
      'full',
      1,
      np.array([-0.5]),
      at_limit,
      100_000,
    ),
    Example(
      'lost 1/gamma, at x*',
      17,
      opposed,
      'ocs',
      1,
      np.array([0.0]),
      lambda theorem, gamma: bounds.Steps(
        0.1 * theorem.step_limit(gamma),
        max(1.0, theorem.global_step_size(gamma)),
      ),
      100_000,
      local_steps=2,
    ),
    Example(
      'global step size far below its limit',
      17,
      identical,
      'full',
      1,
      np.array([1.0]),
      lambda theorem, gamma: bounds.Steps(theorem.step_limit(gamma), 0.01),
      2,
      local_steps=10,
    ),
    Example(
      'step size without gamma, uniform',
      18,
      one_heavy,
      'uniform',
      1,
      np.array([0.1]),
      lambda theorem, gamma: bounds.Steps(theorem.step_limit(gamma), 1.0),
      20_000,
      local_steps=2,
    ),
    _many_clients(),
  ]


def _many_clients():
  """OCS with one heavy client, which alone has a gradient, among the noise."""
  n, weight, x = 10_000, 0.01, np.array([1e-3, 0.0, 0.0, 0.0])
  weights = np.full(n, (1 - weight) / (n - 1))
  weights[0] = weight
  # At x, where the part in common has the gradient x up to x^3.
  gradient = x / (1 + x**2) ** 2
  tilts = np.tile(-gradient, (n, 1))
  tilts[0] = gradient * (1 - weight) / weight
  return Example(
    'step size without gamma, OCS',
    18,
    quadratic.TiltedWells(
      weights=weights,
      smoothness=1.0,
      noise_slope=0.0,
      noise_variance=0.24 * float(np.sum((gradient / weight) ** 2)),
      tilts=tilts,
    ),
    'ocs',
    1,
    x,
    # Far above the smallest, so that local models hardly drift.
    lambda theorem, gamma: bounds.Steps(theorem.step_limit(gamma), 50.0),
    4_000,
    local_steps=2,
  )


def neighbourhood(
  problem: quadratic.Quadratics,
  sampling: str,
  expected_clients: float,
  *,
  step_size: float,
  repeats: int,
  rounds: int,
  seed: int,
) -> dict[str, Any]:
  """How near to x* DSGD comes with a constant step size.

  Args:
    problem: The clients' functions.
    sampling: One of `SCHEMES`.
    expected_clients: m.
    step_size: eta.
    repeats: How many runs begin at x*.
    rounds: So many rounds are played; the second half is measured.
    seed: Of the noise and the coins.

  Returns:
    A row of neighbourhood.csv. The bounds are the fixed points of Theorem 13's
    recursion at the measured gamma.
  """
  theorem = bounds.Theorem13(problem)
  steps = bounds.Steps(step_size)
  x = np.tile(problem.minimiser, (repeats, 1))
  distances, gammas = [], []
  for k in range(rounds):
    played = play_round(
      theorem,
      problem,
      sampling,
      expected_clients,
      x,
      lambda unused_gamma: steps,
      (seed, k),
    )
    x = played.x
    if k >= rounds // 2:
      distances.append(measured(theorem, problem, x))
      gammas.append(played.factor.gamma)
  of_repeats = np.mean(distances, axis=0)
  here = bounds.position(problem, problem.minimiser[np.newaxis])
  row = {
    'sampling': sampling,
    'expected_clients': expected_clients,
    'gamma': 1 / float(np.mean(1 / np.array(gammas))),
    'step_size': step_size,
    'measured': float(of_repeats.mean()),
    'standard_error': float(of_repeats.std(ddof=1) / math.sqrt(repeats)),
  }
  for name in ('stated', 'repaired'):
    added = getattr(theorem, name)(here, row['gamma'], steps)
    row[name] = float(added[0]) / (problem.strong_convexity * step_size)
  return row


def largest_stable_step_size(
  problem: quadratic.Quadratics,
  sampling: str,
  expected_clients: float,
  *,
  repeats: int,
  seed: int,
) -> dict[str, Any]:
  """The largest step size with which a round of DSGD is no step back.

  From afar, where the minimisers of the clients look the same, in the direction
  in which f is steepest. E||x - eta G - x*||^2 is below ||x - x*||^2 up to eta
  = 2 <E G, x - x*> / E||G||^2.

  Args:
    problem: The clients' functions.
    sampling: One of `SCHEMES`.
    expected_clients: m.
    repeats: How often the round is played.
    seed: Of the noise and the coins.

  Returns:
    A row of step_sizes.csv, with the largest step size of Theorem 13 there.
  """
  theorem = bounds.Theorem13(problem)
  steepest = np.argmax(problem.weights @ problem.curvatures)
  offset = 1e6 * np.eye(problem.dimension)[steepest]
  x = np.tile(problem.minimiser + offset, (repeats, 1))
  played = play_round(
    theorem,
    problem,
    sampling,
    expected_clients,
    x,
    lambda unused_gamma: bounds.Steps(1.0),
    (seed,),
  )
  estimates = x - played.x
  squares = np.mean(np.sum(estimates**2, axis=-1))
  return {
    'sampling': sampling,
    'expected_clients': expected_clients,
    'gamma': played.factor.gamma,
    'largest_stable': float(2 * np.mean(estimates @ offset) / squares),
    'limit': theorem.step_limit(played.factor.gamma),
  }


def write_rows(path: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
  """Writes a CSV file, whole or not at all."""
  with files.replacing(path) as partial, open(partial, 'w', newline='') as file:
    writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)


def main(argv):
  if len(argv) > 1:
    sys.exit(f'error: unexpected argument {argv[1]!r}; flags start with --.')
  values = flags.FLAGS
  settings = {
    flag.name: flag.value for flag in values.get_key_flags_for_module(__name__)
  }
  if values.expected_clients > values.num_clients:
    sys.exit(
      'error: --expected_clients must be at most --num_clients,'
      f' {values.num_clients}, found {values.expected_clients}.'
    )
  output_dir = pathlib.Path(settings.pop('output_dir'))
  try:
    output_dir.mkdir(parents=True, exist_ok=True)
    # Never figures of new settings from old numbers.
    for name in _CSV_FILES:
      (output_dir / f'{name}.csv').unlink(missing_ok=True)
    with files.replacing(output_dir / 'config.json') as partial:
      partial.write_text(json.dumps(settings, indent=2) + '\n')
    is_right = run(values, output_dir)
  except OSError as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted')
  if not is_right:
    sys.exit('error: a repaired bound is violated: the program is wrong.')


def run(values, output_dir: pathlib.Path) -> bool:
  """Measures, prints and writes all; returns whether repaired bounds hold."""
  shape = {
    'num_clients': values.num_clients,
    'dimension': values.dimension,
    'noise_slope': values.noise_slope,
    'noise_variance': values.noise_variance,
    'seed': values.seed,
  }
  shape_of_convex = {**shape, 'strong_convexity': values.strong_convexity}
  convex = quadratic.make_quadratics(
    heterogeneity=values.heterogeneity, **shape_of_convex
  )
  wells = quadratic.make_tilted_wells(
    heterogeneity=values.heterogeneity, **shape
  )
  m, seed = values.expected_clients, values.seed
  rows = []
  for name in values.theorems:
    kind = bounds.THEOREMS[int(name)]
    problem = convex if kind.bounds_distance else wells
    theorem = kind(problem, values.local_steps if kind.is_local else 1)
    x = np.tile(
      problem.minimiser + values.start / math.sqrt(problem.dimension),
      (values.repeats, 1),
    )
    of_theorem = [
      compare_rounds(
        theorem,
        problem,
        sampling,
        m,
        setting,
        x=x,
        rounds=values.rounds,
        seed=seed,
      )
      for sampling in SCHEMES
      for setting in _SETTINGS[theorem.number]
    ]
    _print_theorem(theorem, of_theorem)
    rows += [row for group in of_theorem for row in group]
  write_rows(output_dir / 'bounds.csv', rows)
  of_examples = [
    play_example(example, seed)
    for example in examples()
    if str(example.theorem) in values.theorems
  ]
  if of_examples:
    write_rows(output_dir / 'examples.csv', of_examples)
    _print_examples(of_examples)
  write_rows(
    output_dir / 'neighbourhood.csv',
    list(_neighbourhoods(convex, values)),
  )
  write_rows(
    output_dir / 'step_sizes.csv', list(_step_sizes(shape_of_convex, values))
  )
  print(f'\nFigures: python -m plots.theory --results_dir={output_dir}')
  return _print_verdict(rows + of_examples)


def _neighbourhoods(problem, values) -> Iterable[dict[str, Any]]:
  n = values.num_clients
  numbers = [2**k for k in range(int(math.log2(n)) + 1)]
  # The same for all: what the theorem allows uniform sampling with m = 1.
  step_size = bounds.Theorem13(problem).step_limit(1 / n)
  # Till the start is forgotten, up to a fiftieth.
  rounds = math.ceil(2 * 4 / (step_size * problem.strong_convexity))
  options = {
    'step_size': step_size,
    'repeats': max(2, values.repeats // 10),
    'rounds': rounds,
    'seed': values.seed,
  }
  yield neighbourhood(problem, 'full', n, **options)
  for sampling in ('uniform', 'ocs'):
    for m in numbers:
      yield neighbourhood(problem, sampling, m, **options)


def _step_sizes(shape, values) -> Iterable[dict[str, Any]]:
  for heterogeneity in _HETEROGENEITIES:
    problem = quadratic.make_quadratics(heterogeneity=heterogeneity, **shape)
    for sampling in ('full', 'uniform', 'ocs'):
      yield {
        'heterogeneity': heterogeneity,
        **largest_stable_step_size(
          problem,
          sampling,
          values.expected_clients,
          repeats=values.repeats,
          seed=values.seed,
        ),
      }


def _print_theorem(theorem, groups):
  """Prints of each group the round nearest to the bound, or most beyond it."""
  left = 'E||x - x*||^2' if theorem.bounds_distance else 'E f(x) - f*'
  print(f'\nTheorem {theorem.number}: {left}, measured and bounds')
  columns = (
    '{:8} {:>8} {:>10} {:>5} {:>6} {:>7} {:>6} {:>10} {:>8} {:>10} {:>10}  {}'
  )
  print(
    columns.format(
      'sampling',
      'step',
      'global',
      'round',
      'gamma',
      'eta',
      'eta_g',
      'measured',
      f'± {STANDARD_ERRORS} SE',
      'stated',
      'repaired',
      'verdict',
    )
  )
  for group in groups:
    row = max(group, key=lambda r: r['stated_excess'] / abs(r['stated_bound']))
    print(
      columns.format(
        row['sampling'],
        row['step'],
        row['global_step'],
        row['round'],
        f'{row["gamma"]:.3f}',
        f'{row["step_size"]:.4f}',
        f'{row["global_step_size"]:.2f}',
        *_numbers(row),
        _verdict(group),
      )
    )


def _print_examples(rows):
  print('\nExamples made to violate a bound, one round')
  columns = '{:42} {:>7} {:8} {:>6} {:>10} {:>8} {:>10} {:>10}  {}'
  print(
    columns.format(
      'example',
      'theorem',
      'sampling',
      'gamma',
      'measured',
      f'± {STANDARD_ERRORS} SE',
      'stated',
      'repaired',
      'verdict',
    )
  )
  for row in rows:
    print(
      columns.format(
        row['name'],
        row['theorem'],
        row['sampling'],
        f'{row["gamma"]:.3f}',
        *_numbers(row),
        _verdict([row]),
      )
    )


def _numbers(row):
  repaired = row['repaired_bound']
  return (
    f'{row["measured"]:.4g}',
    f'{STANDARD_ERRORS * row["standard_error"]:.1g}',
    f'{row["stated_bound"]:.4g}',
    '–' if repaired == '' else f'{repaired:.4g}',
  )


def _verdict(rows):
  violated = sum(row['stated_violated'] for row in rows)
  verdict = 'holds'
  if violated:
    allowed = all(row['allowed'] for row in rows)
    verdict = 'VIOLATED' if allowed else 'exceeded, with eta_g too small'
    if len(rows) > 1:
      verdict += f' in {violated} of {len(rows)} rounds'
  if any(row['repaired_violated'] for row in rows):
    verdict += ', REPAIRED BOUND VIOLATED'
  return verdict


def _print_verdict(rows):
  violated = {
    row['theorem'] for row in rows if row['stated_violated'] and row['allowed']
  }
  wrong = {row['theorem'] for row in rows if row['repaired_violated']}
  if violated:
    print(
      'VIOLATED: the stated bounds of Theorems'
      f' {", ".join(map(str, sorted(violated)))}, beyond {STANDARD_ERRORS}'
      ' standard errors; docs/theory.md says why.'
    )
  if not wrong:
    print('All repaired bounds hold.')
  return not wrong


def _define_flags():
  flags.DEFINE_multi_enum(
    'theorems',
    [str(number) for number in bounds.THEOREMS],
    [str(number) for number in bounds.THEOREMS],
    'The theorems; given once for each.',
  )
  flags.DEFINE_integer('num_clients', 32, 'n.', lower_bound=2)
  flags.DEFINE_float('expected_clients', 3, 'm.', lower_bound=0.01)
  flags.DEFINE_integer('dimension', 4, 'd.', lower_bound=2)
  flags.DEFINE_float(
    'heterogeneity',
    0.5,
    'From 0, identical clients, to 1, very unequal ones.',
    lower_bound=0,
    upper_bound=1,
  )
  flags.DEFINE_float(
    'strong_convexity',
    0.2,
    'mu; L is 1.',
    lower_bound=1e-3,
    upper_bound=1,
  )
  flags.DEFINE_float('noise_slope', 0.5, 'M of Assumptions 7 and 8.', 0)
  flags.DEFINE_float('noise_variance', 0.1, 'sigma^2 there.', 0)
  flags.DEFINE_integer('local_steps', 4, 'R of FedAvg.', lower_bound=2)
  flags.DEFINE_float(
    'start', 1.0, 'The distance from x* at which all repeats begin.', 0
  )
  flags.DEFINE_integer('repeats', 1000, 'The repeats.', lower_bound=10)
  flags.DEFINE_integer('rounds', 20, 'K.', lower_bound=1)
  flags.DEFINE_integer('seed', 0, 'The seed.', lower_bound=0)
  flags.DEFINE_string(
    'output_dir',
    'quadratic',
    'The folder of the results; former ones there are replaced.',
  )


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
