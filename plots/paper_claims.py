"""The paper's claims, and how runs are judged by them.

A claim consists of checks. Each check is a number that is measured on runs,
with an interval over the seeds, and a tolerance: the range that the number
must be in. The tolerances are chosen as follows.

*   A number of bits that the paper reads off an axis with powers of two may
    differ by half a power, a factor of 1.41.
*   Two methods have the same accuracy if it differs by at most half a point
    after the last round, and by at most one point on average over the rounds.
    Where accuracy rises by 80 points within 151 rounds, a lag of two rounds
    makes one point.
*   'About 85 %' and 'below 40 %' may be missed by five and by no points: the
    more an accuracy of OCS is above 85 %, the better for the claim.
*   'Better', 'worse' and 'much above 0' mean that the interval of the
    difference is above 0; the number itself says how much.

An interval of one or two seeds says little, so that a number needs three to be
judged, unless `judge` is asked for fewer.
"""

import math
import pathlib
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np
import pandas as pd

from plots import measures
from tff_ocs.records import labels
from tff_ocs.records import runs
from tff_ocs.records import units

HOLDS = 'holds'
IN_PART = 'holds in part'
FAILS = 'does not hold'
NOT_JUDGED = 'not judged'
# Of one number or several.
_LABELS = {
  HOLDS: 'as claimed',
  IN_PART: 'in part',
  FAILS: 'not as claimed',
  NOT_JUDGED: 'not judged',
}

_TARGET = 0.85
# The bits after which the paper compares the methods on set 1.
_BUDGET = 2**6 * 10**8
_SETS = ('FEMNIST set 1', 'FEMNIST set 2', 'FEMNIST set 3')
_SHAKESPEARE = 'Shakespeare'
_CIFAR100 = 'CIFAR100'
MIN_SEEDS = 3
# How all runs of the paper were made; runs that differ in this are left aside.
_PAPER_SETTINGS = {
  'algorithm': 'fedavg',
  'availability': None,
  'client_epochs': 1,
  'client_weighting': 'num_examples',
  'compression': 'none',
  'holdout_fraction': None,
  'max_iterations': 4,
  'server_learning_rate': 1,
  'validation_subset': None,
}
# In which runs of two sets of FEMNIST differ.
_SETTINGS_OF_SET = (
  'data',
  'pool_clients',
  'pool_examples',
  'sha256_of_files',
  'unbalanced_a',
  'unbalanced_b',
  'unbalanced_s',
  'unbalanced_set',
)


class Tolerance(NamedTuple):
  """The range that a number must be in; its ends belong to it."""

  text: str
  low: float = -math.inf
  high: float = math.inf


_EIGHT_OR_MORE = Tolerance('at least 5.7 (2^2.5)', 2**2.5)
_SAME_FINAL = Tolerance(
  'within ±0.5 points', -measures.SAME_ACCURACY, measures.SAME_ACCURACY
)
_SAME_CURVE = Tolerance('within ±1 point', -0.01, 0.01)
_ABOVE_0 = Tolerance('above 0', math.nextafter(0, 1))
_ABOVE_1 = Tolerance('above 1', math.nextafter(1, 2))
# In the last tenth of a run, a lasting accuracy hangs on where the run ends.
_LATE = 0.9


class Check(NamedTuple):
  """A number of a claim.

  Attributes:
    data: The data that the runs were trained on.
    quantity: What is measured.
    unit: 'ratio', 'Gbit', '%' or 'points'; accuracies are fractions all the
      same.
    paper: The paper's number.
    tolerance: The range that the number must be in.
    estimate: The number; `None` if it cannot be measured.
    why: Why the number is not judged; empty if it is.
    is_exact: Whether it is judged without an interval.
    by_first_hit: The number if an accuracy counts as reached once one
      evaluation is there, which is not judged; NaN for other quantities.
    note: What a reader of the number has to know; may be empty.
  """

  data: str
  quantity: str
  unit: str
  paper: str
  tolerance: Tolerance
  estimate: Optional[measures.Estimate] = None
  why: str = ''
  is_exact: bool = False
  by_first_hit: float = math.nan
  note: str = ''

  @property
  def is_within(self) -> bool:
    """Whether the number itself is within the tolerance."""
    return self.tolerance.low <= self.estimate.value <= self.tolerance.high

  @property
  def verdict(self) -> str:
    """The verdict.

    A check holds if the whole interval is within the tolerance, does not hold
    if all of it is outside, and holds in part if it reaches over an end. If
    there is a reason why it is not judged, its number is shown all the same.
    """
    if self.why or self.estimate is None:
      return NOT_JUDGED
    value, low, high, _ = self.estimate
    if self.is_exact:
      low = high = value
    least, most = self.tolerance.low, self.tolerance.high
    if least <= low and high <= most:
      return HOLDS
    if high < least or most < low:
      return FAILS
    return IN_PART


class Judged(NamedTuple):
  """A claim with its checks.

  Attributes:
    number: The number of the claim.
    statement: The claim, in a sentence.
    source: The part of the paper that makes it.
    checks: The checks.
  """

  number: int
  statement: str
  source: str
  checks: list[Check]

  @property
  def verdict(self) -> str:
    """The verdict: that of all checks that are judged, if they agree.

    It is 'holds in part' if they do not, and if a check is not judged while
    the others hold.
    """
    verdicts = {check.verdict for check in self.checks}
    if verdicts in ({FAILS, NOT_JUDGED}, {FAILS}):
      return FAILS
    return verdicts.pop() if len(verdicts) == 1 else IN_PART

  @property
  def counts(self) -> str:
    """How many of the checks have which verdict, in words."""
    verdicts = [check.verdict for check in self.checks]
    return ', '.join(
      f'{verdicts.count(verdict)} {label}'
      for verdict, label in _LABELS.items()
      if verdict in verdicts
    )


class Evidence:
  """The runs and the tables of step sizes that claims are judged by."""

  def __init__(
    self,
    groups: Iterable[runs.Group],
    tuned: Mapping[pathlib.Path, pd.DataFrame],
  ):
    """Keeps what can bear on a claim.

    Args:
      groups: The groups of runs. Those with settings that the paper does not
        have, such as compression, and variants of a method whose runs have a
        name of their own, such as one round trip with unknown weight, are left
        aside.
      tuned: The tables tuning.csv of `experiments.tune`, by their paths.
    """
    self.groups, self._aside = [], []
    for group in groups:
      if runs.method_of(group.runs[0].settings).name is None:
        is_aside = bool(_unlike_the_paper(group))
        (self._aside if is_aside else self.groups).append(group)
    self.tuned = tuned

  def title(self, name: str, n: int) -> str:
    """The name of an experiment's data; the paper's if there are no runs."""
    titles = {
      group.experiment.title
      for group in self.groups
      if group.experiment[:2] == (name, n)
    }
    return (
      ', '.join([*sorted(titles), f'n={n}']) if titles else f'{name}, n={n}'
    )

  def find(self, name: str, n: int, *methods: tuple) -> list[runs.Group]:
    """The groups of several methods in one experiment.

    Args:
      name: The name of the experiment.
      n: The size of the cohort.
      *methods: The sampling, m, and, if the method is there with several, the
        step size of each method.

    Returns:
      The groups, in the order of `methods`.

    Raises:
      RunsError: If a method has no runs or several kinds of runs, or if the
        groups cannot be compared.
    """
    found = []
    for sampling, m, *step_size in methods:
      method = runs.Method(sampling, m)
      candidates = [
        group
        for group in self.groups
        if group.experiment[:2] == (name, n)
        and group.method[:3] == method[:3]
        and step_size in ([], [group.settings.get('client_learning_rate')])
      ]
      if not candidates:
        raise self._missing(name, n, method, *step_size)
      if len({group.experiment for group in candidates}) > 1:
        raise runs.RunsError('runs on several kinds of data; choose by --data')
      if len(candidates) > 1:
        names = runs.differing(candidates[0].settings, candidates[1].settings)
        raise runs.RunsError(
          f'runs of {method.label} that differ in {", ".join(names)}'
        )
      found += candidates
    reference = found[0]
    check_same_length(found)
    for group in found[1:]:
      names = runs.differing(
        runs.common_settings(reference), runs.common_settings(group)
      )
      if names or group.experiment != reference.experiment:
        raise runs.RunsError(
          f'{reference.method.label} and {group.method.label} differ in'
          f' {", ".join(names) or "the data"}'
        )
    return found

  def _missing(self, name, n, method, step_size=None) -> runs.RunsError:
    """The error that a method has no runs like those of the paper."""
    for group in self._aside:
      of_group = *group.experiment[:2], *group.method[:2]
      if of_group == (name, n, *method[:2]):
        names = ', '.join(_unlike_the_paper(group))
        return runs.RunsError(
          f'the runs of {group.method.label} differ from the paper in {names}'
        )
    of = ''
    if step_size is not None:
      size = 'of its own' if math.isnan(step_size) else f'{step_size:g}'
      of = f' with step size {size}'
    return runs.RunsError(f'no runs of {method.label}{of}')


def _unlike_the_paper(group: runs.Group) -> list[str]:
  """The settings of a group that no run of the paper has."""
  return [
    name
    for name, value in _PAPER_SETTINGS.items()
    if group.settings.get(name, value) != value
  ]


def check_same_length(groups: Sequence[runs.Group]) -> None:
  """Raises a `RunsError` if groups are of different numbers of rounds."""
  rounds = [group.runs[0].settings.total_rounds for group in groups]
  if len(set(rounds)) > 1:
    lengths = [
      f'{group.method.label} has {number}'
      for group, number in zip(groups, rounds)
    ]
    raise runs.RunsError(f'{" and ".join(lengths)} rounds')


# Some of the attributes of a check, by name; among them the estimate.
_Measured = dict[str, Any]


def _measure(check: Check, measure: Callable[[], _Measured]) -> Check:
  """The check with its number, or with the reason why it is not judged.

  Args:
    check: The check without its number.
    measure: Returns some of the attributes of the check, among them the
      estimate. Where runs end too early to know the number, `extremes` are the
      smallest and the largest estimate that longer runs could give, and
      `unknown` is the reason. The check is judged if both have one verdict.

  Returns:
    The check.
  """
  try:
    measured = measure()
  except runs.RunsError as error:
    return check._replace(why=str(error))
  extremes, unknown = measured.pop('extremes', ()), measured.pop('unknown', '')
  check = check._replace(**measured)
  if math.isnan(check.estimate.value):
    why = check.why or unknown or 'no evaluation within these bits'
    return check._replace(estimate=None, why=why)
  verdicts = {check._replace(estimate=each).verdict for each in extremes}
  if len(verdicts) > 1:
    return check._replace(why=unknown)
  return check


def _require_seeds(check: Check, min_seeds: int) -> Check:
  """The check, not judged if its number has fewer seeds than that."""
  if check.estimate is None or check.is_exact:
    return check
  seeds = check.estimate.seeds
  if seeds >= min_seeds:
    return check
  few = f'{seeds} seed{"s" if seeds > 1 else ""} of at least {min_seeds}'
  return check._replace(why='; '.join(filter(None, [few, check.why])))


def _difference(evidence, name, n, one, other, difference):
  """A paired difference of two methods."""

  def measure():
    pairs = measures.pair(*evidence.find(name, n, one, other))
    differences = [difference(*of_seed) for of_seed in pairs]
    return {'estimate': measures.estimate_mean(differences)}

  return measure


def _final(one, other):
  return measures.final_accuracy(one) - measures.final_accuracy(other)


def _ratio_of_bits(evidence, name, n, one, other):
  """The bits of one method to a lasting 85 %, divided by those of another."""

  def measure():
    pairs = measures.pair(*evidence.find(name, n, one, other))

    above, below = _bits_to_target(pairs, measures.lasting_round)
    sent_above, sent_below = _bits_sent_to_target(pairs)
    first_hit = _bits_to_target(pairs, runs.round_of_accuracy)
    return {
      'estimate': measures.estimate_ratio(above, below),
      'extremes': [
        measures.estimate_ratio(sent_above, below),
        measures.estimate_ratio(above, sent_below),
      ],
      'unknown': _who_gets_there(pairs),
      'by_first_hit': measures.estimate_ratio(*first_hit).value,
      'note': _describe_late(pairs),
      'why': _coarseness(pairs),
    }

  return measure


def _bits_to_target(pairs, round_of) -> np.ndarray:
  """The bits to 85 %, in a sense of reaching it: of shape [methods, seeds]."""
  return np.transpose(
    [
      [measures.bits_of_round(run, round_of(run, _TARGET)) for run in of_seed]
      for of_seed in pairs
    ]
  )


def _bits_sent_to_target(pairs) -> np.ndarray:
  """All bits of a run that never stays there, which needs more than these."""
  sent = [
    [measures.bits_of_round(run, len(run.metrics) - 1) for run in of_seed]
    for of_seed in pairs
  ]
  lasting = _bits_to_target(pairs, measures.lasting_round)
  return np.minimum(lasting, np.transpose(sent))


def _describe_late(pairs) -> str:
  """The methods that stay at the target only shortly before their end."""
  described = []
  for of_method in zip(*pairs):
    rounds = [measures.lasting_round(run, _TARGET) for run in of_method]
    of_all = of_method[0].settings.total_rounds
    if max(rounds) >= _LATE * of_all:
      label = of_method[0].settings.method
      known = sorted(
        {round_num for round_num in rounds if round_num < math.inf}
      )
      if known:
        spans = ', '.join(f'{round_num:g}' for round_num in known)
        described.append(f'{label} from rounds {spans} of {of_all} on')
      if num_never := rounds.count(math.inf):
        described.append(
          f'{label} never with {num_never} of {len(rounds)} seeds'
        )
  return '; '.join(described)


def _who_gets_there(pairs) -> str:
  """With how many seeds each method stays at the target."""
  described = []
  for of_method in zip(*pairs):
    rounds = [measures.lasting_round(run, _TARGET) for run in of_method]
    described.append(
      f'{of_method[0].settings.method} gets there with'
      f' {np.isfinite(rounds).sum()} of {len(rounds)} seeds'
    )
  return ', '.join(described)


def _coarseness(pairs) -> str:
  """Why the round of a threshold is not known; empty if it is."""
  for run in (run for of_seed in pairs for run in of_seed):
    rounds, _ = run.evaluated('validation_accuracy')
    if len(rounds) < len(run.metrics):
      return (
        f'validated after {len(rounds)} of {len(run.metrics)} rounds; needs'
        ' --rounds_per_eval=1'
      )
  return ''


def _bits(evidence: Evidence) -> list[Check]:
  name, n = _SETS[0], 32
  full, uniform, aocs = ('full', None), ('uniform', 3), ('aocs', 3)
  data = evidence.title(name, n)

  def within(method, accuracy_of=measures.highest_accuracy_within):
    def measure():
      pairs = measures.pair(*evidence.find(name, n, method))
      accuracies = np.array([accuracy_of(run, _BUDGET) for (run,) in pairs])
      sent = [
        measures.bits_of_round(run, len(run.metrics) - 1) for (run,) in pairs
      ]
      measured = {
        'estimate': measures.estimate_mean(accuracies),
        'why': _coarseness(pairs),
      }
      ends_early = np.less(sent, _BUDGET)
      if not ends_early.any():
        return measured
      # More bits cannot make the highest accuracy lower.
      is_highest = accuracy_of is measures.highest_accuracy_within
      least = np.where(ends_early & (not is_highest), 0.0, accuracies)
      most = np.where(ends_early, 1.0, accuracies)
      sent_and_needed = f'{min(sent) / 1e9:.2g} of {_BUDGET / 1e9:g} Gbit'
      return {
        **measured,
        'extremes': [measures.estimate_mean(end) for end in (least, most)],
        'unknown': f'a run ends after {sent_and_needed}',
      }

    return measure

  def accuracy_of(label, paper, tolerance, which='highest accuracy up to'):
    quantity = f'{which} 2^6 × 10^8 bits, {label}'
    return Check(data, quantity, '%', paper, tolerance)

  to_target = f'bits to a lasting {_TARGET:.0%}'
  below_40 = Tolerance('at most 40 %', high=0.4)
  about_85 = Tolerance('at least 80 %', 0.8)
  return [
    _measure(
      Check(
        data, f'{to_target}, full / AOCS, m=3', 'ratio', '8', _EIGHT_OR_MORE
      ),
      _ratio_of_bits(evidence, name, n, full, aocs),
    ),
    _measure(
      Check(
        data,
        f'{to_target}, uniform / AOCS, m=3',
        'ratio',
        'about 8 or more',
        _EIGHT_OR_MORE,
      ),
      _ratio_of_bits(evidence, name, n, uniform, aocs),
    ),
    _measure(
      accuracy_of('AOCS, m=3', 'about 85', about_85, 'accuracy at'),
      within(aocs, measures.accuracy_within),
    ),
    _measure(
      accuracy_of('full participation', 'below 40', below_40), within(full)
    ),
    _measure(
      accuracy_of('uniform, m=3', 'below 40', below_40), within(uniform)
    ),
    _measure(
      Check(
        data,
        f'{to_target}, full participation',
        'Gbit',
        'above 51.2 (2^9 × 10^8 bits)',
        Tolerance('at least 36.2 (2^8.5 × 10^8 bits)', 2**8.5 / 10),
      ),
      _gbit(evidence, name, n, full),
    ),
  ]


def _gbit(evidence, name, n, method):
  """The bits of a method to a lasting 85 %."""

  def measure():
    pairs = measures.pair(*evidence.find(name, n, method))

    (bits,) = _bits_to_target(pairs, measures.lasting_round)
    (sent,) = _bits_sent_to_target(pairs)
    (first_hit,) = _bits_to_target(pairs, runs.round_of_accuracy)
    estimate = measures.estimate_mean(bits / 1e9)
    return {
      'estimate': estimate,
      'extremes': [measures.estimate_mean(sent / 1e9), estimate],
      'unknown': _who_gets_there(pairs),
      'by_first_hit': measures.estimate_mean(first_hit / 1e9).value,
      'note': _describe_late(pairs),
      'why': _coarseness(pairs),
    }

  return measure


def _same(evidence, name, n, one, other, labels) -> list[Check]:
  """Two methods should have the same accuracy, at the end and on average."""
  data = evidence.title(name, n)
  return [
    _measure(
      Check(data, f'final accuracy, {labels}', 'points', '0', _SAME_FINAL),
      _difference(evidence, name, n, one, other, _final),
    ),
    _measure(
      Check(
        data, f'mean gap of the curves, {labels}', 'points', '0', _SAME_CURVE
      ),
      _difference(evidence, name, n, one, other, measures.gap),
    ),
  ]


def _enough(evidence: Evidence) -> list[Check]:
  return [
    check
    for name, n, m in (
      *((name, 32, 6) for name in _SETS),
      (_SHAKESPEARE, 32, 6),
      (_SHAKESPEARE, 128, 12),
    )
    for check in _same(
      evidence, name, n, ('aocs', m), ('full', None), f'AOCS, m={m} − full'
    )
  ]


def _uniform_is_worse(evidence: Evidence) -> list[Check]:
  checks = [
    _measure(
      Check(
        evidence.title(name, n),
        f'mean gap of the curves, AOCS − uniform, m={m}',
        'points',
        'much above 0',
        _ABOVE_0,
      ),
      _difference(evidence, name, n, ('aocs', m), ('uniform', m), measures.gap),
    )
    for name, n, m in (
      *((name, 32, 3) for name in _SETS),
      (_SHAKESPEARE, 32, 2),
      (_SHAKESPEARE, 128, 4),
    )
  ]
  for more, less in zip(_SETS, _SETS[1:]):
    quantity = (
      f'that gap on set {more[-1]} − that on set {less[-1]}, AOCS − uniform,'
      ' m=3'
    )
    checks.append(
      _measure(
        Check(
          evidence.title(more, 32), quantity, 'points', 'above 0', _ABOVE_0
        ),
        lambda more=more, less=less: _difference_of_gaps(evidence, more, less),
      )
    )
  return checks


def _difference_of_gaps(evidence, more, less):
  gaps, of_sets = [], []
  for name in (more, less):
    groups = evidence.find(name, 32, ('aocs', 3), ('uniform', 3))
    of_sets += groups
    gaps.append(
      {
        pair[0].settings.seed: measures.gap(*pair)
        for pair in measures.pair(*groups)
      }
    )
  check_same_length(of_sets)
  first, _, second, _ = map(runs.common_settings, of_sets)
  names = [
    name
    for name in runs.differing(first, second)
    if name not in _SETTINGS_OF_SET
  ]
  if names:
    raise runs.RunsError(f'the runs of the sets differ in {", ".join(names)}')
  seeds = sorted(set(gaps[0]) & set(gaps[1]))
  if not seeds:
    raise runs.RunsError('no seed is there for both sets')
  differences = [gaps[0][seed] - gaps[1][seed] for seed in seeds]
  return {'estimate': measures.estimate_mean(differences)}


def _ocs_and_aocs(evidence: Evidence) -> list[Check]:
  return [
    check
    for name in _SETS
    for check in _same(
      evidence, name, 32, ('ocs', 3), ('aocs', 3), 'OCS − AOCS, m=3'
    )
  ]


def _step_sizes(evidence: Evidence) -> list[Check]:
  """Compares the chosen step sizes of methods with the same m."""
  checks = []
  for name, n in ((_SETS[0], 32), (_SHAKESPEARE, 32)):
    paper = '4' if name == _SETS[0] else '2'
    of_name = [
      table
      for table in evidence.tuned.values()
      if set(table['experiment']) == {name}
      and set(table['clients_per_round']) == {n}
    ]
    check = Check(
      f'{name}, n={n}',
      'best client step size, AOCS / uniform',
      'ratio',
      paper,
      _ABOVE_1,
      is_exact=True,
    )
    if len(of_name) != 1:
      found = 'several tables' if of_name else 'no table'
      checks.append(check._replace(why=f'{found} of experiments.tune'))
      continue
    (table,) = of_name
    best = table[table['best']].set_index(['sampling', 'expected_clients'])
    data = f'{table["title"].iloc[0]}, n={n}'
    shared = [
      m for s, m in best.index if s == 'aocs' and ('uniform', m) in best.index
    ]
    if not shared:
      why = 'no m was tuned for both methods'
      checks.append(check._replace(data=data, why=why))
    for m in shared:
      aocs, uniform = best.loc[('aocs', m)], best.loc[('uniform', m)]
      open_ended = [
        labels.method_label(sampling, m, None)
        for sampling in ('aocs', 'uniform')
        if _is_open_ended(table, sampling, m)
      ]
      why = ''
      if open_ended:
        of = ' and '.join(open_ended)
        why = f'the best step size of {of} is the last one that was tried'
      sizes = [
        units.format_step_size(row['step_size']) for row in (aocs, uniform)
      ]
      quantity = f'{check.quantity}, m={m:g} ({sizes[0]} and {sizes[1]})'
      checks.append(
        check._replace(
          data=data,
          quantity=quantity,
          estimate=measures.Estimate(
            aocs['step_size'] / uniform['step_size'],
            math.nan,
            math.nan,
            int(min(aocs['seeds'], uniform['seeds'])),
          ),
          why=why,
        )
      )
  return checks


def _is_open_ended(table: pd.DataFrame, sampling: str, m: float) -> bool:
  """Whether a better step size may lie beyond those that were tried.

  This is so, too, if all of them diverged: then the smallest counts as the
  best.
  """
  of_method = table[
    (table['sampling'] == sampling) & (table['expected_clients'] == m)
  ]
  sizes = of_method['step_size']
  return sizes[of_method['best']].item() in (sizes.min(), sizes.max())


def _balanced(evidence: Evidence) -> list[Check]:
  of_uniform, of_aocs = _step_sizes_on_cifar100(evidence)
  label = 'uniform with its own step size'
  own = of_uniform - of_aocs
  return _better_on_cifar100(evidence, own, 'uniform', label, 'above 0')


def _balanced_by_sampling(evidence: Evidence) -> list[Check]:
  _, of_aocs = _step_sizes_on_cifar100(evidence)
  label = "uniform with AOCS' step size"
  return _better_on_cifar100(evidence, of_aocs, 'AOCS', label, '–')


def _better_on_cifar100(
  evidence, step_sizes, whose, label, paper
) -> list[Check]:
  name, n, m = _CIFAR100, 32, 3

  def minus_uniform(difference):
    def measure():
      if len(step_sizes) > 1:
        found = ', '.join(f'{size:g}' for size in sorted(step_sizes))
        raise runs.RunsError(
          f'runs of {whose} with several step sizes: {found}'
        )
      # Where there is none, NaN is that of no run.
      uniform = ('uniform', m, *(step_sizes or [math.nan]))
      return _difference(evidence, name, n, ('aocs', m), uniform, difference)()

    return measure

  return [
    _measure(
      Check(
        evidence.title(name, n),
        f'{quantity}, AOCS − {label}, m={m}',
        'points',
        paper,
        _ABOVE_0,
      ),
      minus_uniform(difference),
    )
    for quantity, difference in (
      ('final accuracy', _final),
      ('mean gap of the curves', measures.gap),
    )
  ]


def _step_sizes_on_cifar100(evidence) -> tuple[set[float], set[float]]:
  """The step sizes of uniform sampling and of AOCS, with n = 32 and m = 3."""
  of_uniform, of_aocs = (
    {
      group.settings.get('client_learning_rate')
      for group in evidence.groups
      if group.experiment[:2] == (_CIFAR100, 32)
      and group.method[:2] == (sampling, 3)
    }
    for sampling in ('uniform', 'aocs')
  )
  return of_uniform, of_aocs


def _one_round_trip(evidence: Evidence) -> list[Check]:
  at_most = Tolerance('at most 1.15', high=1.15)
  return [
    _measure(
      Check(
        evidence.title(name, 32),
        f'bits to a lasting {_TARGET:.0%}, one round trip / AOCS, m={m}',
        'ratio',
        '–',
        at_most,
      ),
      _ratio_of_bits(evidence, name, 32, ('threshold', m), ('aocs', m)),
    )
    for name in _SETS
    for m in (3, 6)
  ]


class Claim(NamedTuple):
  """A claim of the paper, or our own.

  Attributes:
    number: Its number.
    statement: What it says, in a sentence.
    source: The part of the paper that makes it.
    measure: From the evidence to the checks.
  """

  number: int
  statement: str
  source: str
  measure: Callable[[Evidence], list[Check]]


CLAIMS = (
  Claim(
    1,
    'On FEMNIST set 1, optimal sampling with m = 3 reaches about 85 % with'
    ' 2^6 × 10^8 bits. Full participation and uniform sampling are below 40 %'
    ' then, and need 8 times as many bits or more, which is above 2^9 × 10^8'
    ' for full participation.',
    'Section 5.4',
    _bits,
  ),
  Claim(
    2,
    'Optimal sampling with m = 6 of 32 and with m = 12 of 128 matches full'
    ' participation round by round.',
    'Section 5.4',
    _enough,
  ),
  Claim(
    3,
    'Uniform sampling is worse round by round, the more so the more unbalanced'
    ' the data is.',
    'Section 5.4 and a footnote to 5.2',
    _uniform_is_worse,
  ),
  Claim(
    4,
    'OCS and AOCS give the same results; judged on FEMNIST with m = 3.',
    'Section 5.1',
    _ocs_and_aocs,
  ),
  Claim(
    5,
    'The search for step sizes returns larger ones for optimal than for uniform'
    ' sampling.',
    'Section 5.4',
    _step_sizes,
  ),
  Claim(
    6,
    'Optimal sampling is better than uniform sampling on the balanced CIFAR100,'
    ' too.',
    'Appendix',
    _balanced,
  ),
  Claim(
    7,
    'Sampling in one round trip needs at most 1.15 times the bits of AOCS, if'
    " the server knows the cohort's weight beforehand.",
    'ours',
    _one_round_trip,
  ),
  Claim(
    8,
    'On CIFAR100, optimal sampling is better by sampling, and not only by its'
    ' larger step size.',
    'ours',
    _balanced_by_sampling,
  ),
)


def judge(evidence: Evidence, min_seeds: int = MIN_SEEDS) -> list[Judged]:
  """Judges all claims.

  Args:
    evidence: The runs and the tables of step sizes.
    min_seeds: With fewer seeds a number is not judged; at least 2, since one
      seed has no interval.

  Returns:
    The claims with their checks.
  """
  return [
    Judged(
      claim.number,
      claim.statement,
      claim.source,
      [_require_seeds(check, min_seeds) for check in claim.measure(evidence)],
    )
    for claim in CLAIMS
  ]


def tabulate(judged: Sequence[Judged]) -> pd.DataFrame:
  """The table claims.csv, with a row for each check."""
  return pd.DataFrame(
    {
      'claim': claim.number,
      'statement': claim.statement,
      'claim_verdict': claim.verdict,
      'data': check.data,
      'quantity': check.quantity,
      'unit': 'fraction' if check.unit in ('%', 'points') else check.unit,
      'paper': check.paper,
      **(check.estimate or measures.Estimate(*[math.nan] * 3, 0))._asdict(),
      'tolerance': check.tolerance.text,
      'by_first_hit': check.by_first_hit,
      'note': check.note,
      'verdict': check.verdict,
      'why_not_judged': check.why,
    }
    for claim in judged
    for check in claim.checks
  )
