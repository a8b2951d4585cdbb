"""Measures runs, to compare methods.

Methods are compared by pairs of runs with the same seed, which have the same
cohorts, initial weights, shuffles and coins. An accuracy is *reached* in the
round from which on no evaluation is below it. The round in which it is first
hit flatters methods whose accuracy goes up and down.
"""

import math
import statistics
from collections.abc import Callable
from collections.abc import Iterable
from typing import NamedTuple
from typing import Optional

import numpy as np
import numpy.typing as npt
from scipy import stats

from tff_ocs.records import runs

# Final accuracies count as the same if they differ by at most half a point,
# which differences of rounded numbers may miss by their rounding.
SAME_ACCURACY = 0.005 + 1e-12
# For the readers of tables with the intervals of `Estimate`.
ABOUT_INTERVALS = (
  'Intervals are those of a bootstrap over the seeds, at a level of 95 %. With'
  " 2 or 3 seeds they are the range of the seeds' values, and cover the true"
  ' mean in about 50 and 75 % of all cases only; with 5 seeds, in about 92 %.'
)
_LEVEL = 0.95
_RESAMPLES = 10_000


class Estimate(NamedTuple):
  """A mean or a ratio over seeds, with its interval at a level of 95 %.

  Attributes:
    value: The estimate.
    low: The lower end of the interval; NaN for a single seed.
    high: The upper end of the interval; NaN for a single seed.
    seeds: The number of seeds.
  """

  value: float
  low: float
  high: float
  seeds: int


def estimate_mean(values: npt.ArrayLike) -> Estimate:
  """The mean over seeds of values, for example of paired differences."""
  return _bootstrap(lambda x: x.mean(-1), values)


def estimate_ratio(
  numerators: npt.ArrayLike, denominators: npt.ArrayLike
) -> Estimate:
  """The ratio of the means of two methods, whose values are paired by seed.

  Args:
    numerators: A value for each seed, 0 or more; it may be infinite.
    denominators: The other method's values for the same seeds.

  Returns:
    The `Estimate`; NaN where both means are infinite.
  """

  def ratio(x, y):
    with np.errstate(invalid='ignore', divide='ignore'):
      return x.mean(-1) / y.mean(-1)

  return _bootstrap(ratio, numerators, denominators)


def _bootstrap(
  statistic: Callable[..., np.ndarray], *columns: npt.ArrayLike
) -> Estimate:
  """The percentile interval of 10,000 resamples of the seeds.

  The percentiles are farther out than 2.5 and 97.5, as Hesterberg, "What
  teachers should know about the bootstrap", The American Statistician 69 (2015)
  proposes: the interval of a mean is then about as wide as Student's, while
  the plain one is too narrow for few seeds. It never leaves the range of
  what resampling gives, which for 2 or 3 seeds is the range of their values.
  For normally distributed values it covers the mean in 50 % (2 seeds), 75 % (3
  seeds) and 92 % (5 seeds) of all cases.
  """
  table = np.array(columns, float)
  seeds = table.shape[1]
  value = float(statistic(*table))
  if seeds == 1:
    return Estimate(value, math.nan, math.nan, 1)
  drawn = np.random.default_rng(0).integers(seeds, size=(_RESAMPLES, seeds))
  resampled = statistic(*table[:, drawn])
  quantile = stats.t.ppf((1 - _LEVEL) / 2, seeds - 1)
  tail = statistics.NormalDist().cdf(quantile * math.sqrt(seeds / (seeds - 1)))
  # Between infinite values nothing can be interpolated.
  low = np.quantile(resampled, tail, method='lower')
  high = np.quantile(resampled, 1 - tail, method='higher')
  return Estimate(value, float(low), float(high), seeds)


def pair(*groups: runs.Group) -> list[tuple[runs.Run, ...]]:
  """The runs of groups, put together by seed.

  Args:
    *groups: The groups to compare.

  Returns:
    A tuple for each seed that all groups have, with a run of each group, by
    seed.

  Raises:
    RunsError: If the groups have no seed in common.
  """
  by_seed = [{run.settings.seed: run for run in g.runs} for g in groups]
  seeds = sorted(set.intersection(*map(set, by_seed)))
  if not seeds:
    names = ' and '.join(group.method.label for group in groups)
    raise runs.RunsError(f'no seed is there for each of {names}')
  return [tuple(of_group[seed] for of_group in by_seed) for seed in seeds]


def find_reference(
  group: runs.Group, method: runs.Method, groups: Iterable[runs.Group]
) -> Optional[runs.Group]:
  """Finds the group of a method to compare with.

  Args:
    group: The group that is compared.
    method: The other method.
    groups: The groups that there are.

  Returns:
    The group of the other method with the same experiment, settings and number
    of rounds; `None` if there is not exactly one.
  """
  candidates = [
    other
    for other in groups
    if other.experiment == group.experiment
    and other.method == method
    and runs.common_settings(other) == runs.common_settings(group)
    and other.settings.get('total_rounds') == group.settings.get('total_rounds')
  ]
  return candidates[0] if len(candidates) == 1 else None


def final_accuracy(run: runs.Run) -> float:
  """The validation accuracy of the last evaluation."""
  return float(run.evaluated('validation_accuracy')[1][-1])


def lasting_round(run: runs.Run, accuracy: float) -> float:
  """The round from which on no evaluation is below a validation accuracy.

  Args:
    run: The run.
    accuracy: The validation accuracy, in [0, 1].

  Returns:
    The number of the round, counted from 0; infinity if the last evaluation is
    below the accuracy, or the run has no accuracies.
  """
  if 'validation_accuracy' not in run.metrics:
    return math.inf
  rounds, accuracies = run.evaluated('validation_accuracy')
  below = np.flatnonzero(accuracies < accuracy)
  after = below[-1] + 1 if len(below) else 0
  return float(rounds[after]) if after < len(rounds) else math.inf


def bits_of_round(run: runs.Run, round_num: float) -> float:
  """The bits sent up to and including a round; infinite as the round is."""
  if round_num == math.inf:
    return math.inf
  return float(run.metrics['cumulative_uplink_bits'][int(round_num)])


def accuracy_within(run: runs.Run, num_bits: float) -> float:
  """The accuracy of the last evaluation at which at most `num_bits` were sent.

  Returns:
    The validation accuracy; NaN if more bits were sent before the first
    evaluation.
  """
  is_within = run.metrics['cumulative_uplink_bits'] <= num_bits
  accuracies = run.metrics['validation_accuracy'][is_within].dropna()
  return float(accuracies.iloc[-1]) if len(accuracies) else math.nan


def highest_accuracy_within(run: runs.Run, num_bits: float) -> float:
  """The highest accuracy until more than `num_bits` are sent; or NaN."""
  is_within = run.metrics['cumulative_uplink_bits'] <= num_bits
  return float(run.metrics['validation_accuracy'][is_within].max())


def gap(one: runs.Run, other: runs.Run) -> float:
  """The area between two curves of accuracy by rounds, over its length.

  Returns:
    The mean over the rounds of the difference of the validation accuracies of
    `one` and `other`, from the first to the last round in which both are known.
    Between evaluations a curve is taken as straight.
  """
  curves = [run.evaluated('validation_accuracy') for run in (one, other)]
  start = max(rounds[0] for rounds, _ in curves)
  end = min(rounds[-1] for rounds, _ in curves)
  grid = np.unique(np.concatenate([rounds for rounds, _ in curves]))
  grid = grid[(start <= grid) & (grid <= end)]
  first, second = (np.interp(grid, *curve) for curve in curves)
  if start >= end:
    return float(np.mean(first - second))
  return float(np.trapz(first - second, grid) / (end - start))


def rounds_without_sender(run: runs.Run) -> int:
  """The number of rounds in which no client sent its update."""
  return int((run.metrics['participants'] == 0).sum())
