"""Replays samplings on recorded norms: what would one round trip have cost?

  python -m experiments.femnist --record_norms --output_dir=runs
  python -m experiments.threshold --results_dir=runs --output_dir=threshold

The program reads the finished runs with a norms.csv. In each round of a run it
computes the probabilities of tff_ocs.ThresholdSampling, with and without the
total weight N_t of the cohort, and compares them with exact optimal sampling
(OCS) of that round, with AOCS, with uniform sampling, and with the constant
threshold that would have been the best for all rounds, had they been known.

The table has the expected number P of participants over m: its mean, its 95th
percentile and its largest value. It also has the sum over the rounds of the
variance that sampling adds to the aggregate, Eq. (6), over that of OCS: with
the participants that a sampling had, and at equal spend, that is with a target
for which its mean of P is m. Round 0, in which no threshold is known, is left
out. Numbers are means over the seeds, with the smallest and the largest.

The recorded updates stay as they are: with another sampling the run would have
had other weights, and its clients other norms.
"""

import math
import pathlib
import sys
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

import numpy as np
import pandas as pd
from absl import app
from absl import flags
from absl import logging

from experiments.theory import replays
from plots import inputs
from plots import tables
from plots import threshold_replays
from programs import definer
from programs import entry
from tff_ocs import probabilities
from tff_ocs.records import files
from tff_ocs.records import norms as norms_lib
from tff_ocs.records import runs

# The rounds from this one on are summed up on their own: in the first rounds of
# a training, norms change fast.
LATE_ROUND = 30
_NUMBERS = {
  'participants_mean': 'P / m: mean',
  'participants_p95': '95 %',
  'participants_max': 'largest',
  'variance': 'V / OCS',
  'variance_late': f'rounds ≥ {LATE_ROUND}',
  'variance_equal_spend': 'V / OCS, equal spend',
  'variance_late_equal_spend': f'rounds ≥ {LATE_ROUND}',
}

# The settings of runs that can be replayed. With others the norms are of the
# clients that were available or reported, are scaled by a sampler, or m is a
# budget of costs.
_REPLAYED = {
  'availability': None,
  'client_costs': 'none',
  'cohort_sampler': 'none',
  'dropout_rate': 0.0,
}


class Controller(NamedTuple):
  """The parameters of `tff_ocs.ThresholdSampling`."""

  eta: float
  c: float


def main(argv):
  logging.set_verbosity(logging.WARNING)  # Matplotlib's fonts log a lot.
  entry.setup()
  entry.refuse_arguments(argv)
  values = flags.FLAGS
  compare(
    results_dir=values.results_dir,
    data=values.data,
    expected_clients=values.expected_clients,
    controllers=[
      Controller(float(eta), float(c)) for eta in values.eta for c in values.c
    ],
    output_dir=values.output_dir,
  )


def compare(
  *,
  results_dir: str,
  controllers: Sequence[Controller],
  data: Optional[str] = None,
  expected_clients: Optional[float] = None,
  output_dir: Optional[str] = None,
) -> None:
  """Prints the tables; ends the program with a line if it cannot."""
  try:
    summaries, drawn = [], {}
    for group in find_groups(results_dir, data):
      # In the first round, the sampling has no threshold yet.
      for run, trace in read_traces(group, min_rounds=2):
        m = expected_clients or run.settings.expected_clients
        rounds = replay(trace, m, controllers)
        kind = group.experiment, group.method
        drawn.setdefault(kind, (run.settings.seed, rounds))
        summary = summarize(rounds, m)
        summary.insert(0, 'seed', run.settings.seed)
        summary.insert(0, 'expected_clients', m)
        summary.insert(0, 'recorded_with', group.method.label)
        summary.insert(0, 'experiment', str(group.experiment))
        summaries.append(summary)
    if not summaries:
      raise runs.RunsError(
        f'there is no finished run with a {norms_lib.NORMS} below'
        f' --results_dir={results_dir}; --record_norms of the experiment'
        ' programs writes it.'
      )
    table = pd.concat(summaries, ignore_index=True)
    text = format_tables(table)
    print(text, end='')
    if output_dir is not None:
      folder = pathlib.Path(output_dir)
      folder.mkdir(parents=True, exist_ok=True)
      tables.write(folder / 'threshold', table, text)
      _draw(drawn, controllers[0], folder)
  except (OSError, runs.RunsError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted')


def find_groups(results_dir: str, data: Optional[str]) -> list[runs.Group]:
  """Finds the groups of runs with recorded norms.

  Args:
    results_dir: The folder below which the runs are.
    data: As for `inputs.find_groups`.

  Returns:
    The groups.

  Raises:
    RunsError: If a method has runs with different settings in an experiment.
  """
  recorded = [
    group
    for group in inputs.find_groups(results_dir, data)
    if any(norms_lib.are_recorded(run.path) for run in group.runs)
  ]
  of_method: dict[tuple, list[runs.Group]] = {}
  for group in recorded:
    # The others are left out later, with a line.
    if all(group.settings.get(name) == _REPLAYED[name] for name in _REPLAYED):
      key = (group.experiment, group.method)
      of_method.setdefault(key, []).append(group)
  for groups in of_method.values():
    runs.check_comparable(groups)
  return recorded


def read_traces(
  group: runs.Group, min_rounds: int
) -> Iterator[tuple[runs.Run, replays.Trace]]:
  """Reads the norms of a group; prints a line for each run left out.

  Args:
    group: The group of runs.
    min_rounds: The least number of rounds.

  Yields:
    The runs with recorded norms, and these.

  Raises:
    OSError: If a file cannot be read.
  """
  for run in group.runs:
    if norms_lib.are_recorded(run.path):
      try:
        yield run, read_trace(run, min_rounds)
      except files.RecordError as error:
        print(f'{run.path} is left out: {error}.', file=sys.stderr)


def read_trace(run: runs.Run, min_rounds: int) -> replays.Trace:
  """Reads the norms of a run and the total weights of its cohorts.

  Args:
    run: The run, with a `norms.csv`.
    min_rounds: The least number of rounds.

  Returns:
    The `Trace`.

  Raises:
    OSError: If the file cannot be read.
    RecordError: If it is damaged or too short, if m is not known, or if the
      norms are not those of whole cohorts that are divided by their weight.
  """
  config = run.config
  norms = norms_lib.read_norms(run.path)
  if len(norms) != len(run.metrics):
    raise files.RecordError(
      f'its {norms_lib.NORMS} has {len(norms)} of {len(run.metrics)} rounds'
    )
  for name, usual in _REPLAYED.items():
    if config[name] != usual:
      raise files.RecordError(
        f'it has --{name}={config[name]}, so that its norms are not those of'
        ' whole cohorts, relative to their weight'
      )
  if len(norms) < min_rounds or not all(of_round.size for of_round in norms):
    raise files.RecordError(
      f'the number of rounds must be at least {min_rounds}, each with clients'
    )
  if config['client_weighting'] == 'uniform':
    weights = np.array([float(of_round.size) for of_round in norms])
  else:
    weights = run.metrics['cohort_examples'].to_numpy()
  if config['expected_clients'] is None:
    raise files.RecordError('it has no expected_clients')
  return replays.Trace(norms, weights)


def replay(
  trace: replays.Trace, m: float, controllers: Sequence[Controller]
) -> pd.DataFrame:
  """Replays all samplings.

  Args:
    trace: The recorded rounds.
    m: The expected number of participants.
    controllers: The parameters to try.

  Returns:
    A row for each sampling and round, with `sampling`, `eta` and `c` (NaN where
    they have no meaning), `expected_clients` m, `round`, `participants` P,
    `threshold` (NaN where there is none), `variance` (infinite where a client
    with a norm above 0 never sends), and `variance_equal_spend`.
  """
  nothing = Controller(math.nan, math.nan)
  samplers = {
    ('OCS', nothing): lambda m: [
      probabilities.optimal_probabilities(u, m) for u in trace.norms
    ],
    ('AOCS', nothing): lambda m: [
      probabilities.approximate_probabilities(u, m).probabilities
      for u in trace.norms
    ],
    ('uniform', nothing): lambda m: [
      probabilities.uniform_probabilities(u.size, m) for u in trace.norms
    ],
  }
  thresholds = {
    ('OCS', nothing): [
      probabilities.sampling_threshold(u, m) for u in trace.relative_norms
    ]
  }
  known_and_not = {
    threshold_replays.KNOWN: trace.relative_norms,
    threshold_replays.UNKNOWN: trace.norms,
  }
  for controller in controllers:
    for name, rounds in known_and_not.items():

      def run_controller(m, rounds=rounds, controller=controller):
        return replays.replay_threshold(rounds, m, **controller._asdict())

      key = name, controller
      samplers[key] = lambda m, run=run_controller: run(m).probabilities
      thresholds[key] = run_controller(m).thresholds
  samplers[threshold_replays.CONSTANT, nothing] = lambda m: [
    probabilities.uniform_probabilities(trace.norms[0].size, m),
    *replays.replay_constant_threshold(trace.relative_norms[1:], m),
  ]
  parts = []
  for (name, controller), sampler in samplers.items():
    of_rounds = sampler(m)
    at_equal_spend = replays.scale_to_spend(sampler, m)
    part = pd.DataFrame(
      {
        'sampling': name,
        **controller._asdict(),
        'expected_clients': m,
        'round': range(len(of_rounds)),
        'participants': replays.count_participants(of_rounds),
        'threshold': thresholds.get((name, controller), math.nan),
        'variance': replays.measure_variances(trace, of_rounds),
        'variance_equal_spend': replays.measure_variances(
          trace, at_equal_spend
        ),
      }
    )
    parts.append(part)
  return pd.concat(parts, ignore_index=True)


def summarize(rounds: pd.DataFrame, m: float) -> pd.DataFrame:
  """Sums up each sampling in a row.

  Args:
    rounds: As of `replay`.
    m: The expected number of participants.

  Returns:
    `sampling`, `eta`, `c` and the numbers of the program's table. Variances are
    relative to those of OCS; NaN where no round is late enough.
  """
  rounds = rounds[rounds['round'] > 0]
  of_ocs = rounds[rounds['sampling'] == 'OCS']
  rows = []
  for key, of_sampling in rounds.groupby(
    ['sampling', 'eta', 'c'], sort=False, dropna=False
  ):
    row = dict(zip(('sampling', 'eta', 'c'), key))
    participants = of_sampling['participants'] / m
    row['participants_mean'] = participants.mean()
    row['participants_p95'] = np.percentile(participants, 95)
    row['participants_max'] = participants.max()
    for spend in ('', '_equal_spend'):
      for late, first in (('', 1), ('_late', LATE_ROUND)):
        row[f'variance{late}{spend}'] = _ratio_of_sums(
          of_sampling[of_sampling['round'] >= first][f'variance{spend}'],
          of_ocs[of_ocs['round'] >= first]['variance'],
        )
    rows.append(row)
  return pd.DataFrame(rows)


def _ratio_of_sums(values, others):
  return values.sum() / others.sum() if others.sum() > 0 else math.nan


def format_tables(table: pd.DataFrame) -> str:
  """The numbers in Markdown, with a table for each kind of recorded runs."""
  texts = []
  names = ['experiment', 'recorded_with', 'expected_clients']
  for (experiment, recorded_with, m), of_runs in table.groupby(
    names, sort=False
  ):
    seeds = of_runs['seed'].nunique()
    title = (
      f'{experiment} Norms of {seeds} run{"s" * (seeds > 1)} with'
      f' {recorded_with}; m={m:g}.'
    )
    rows = []
    for (sampling, eta, c), of_sampling in of_runs.groupby(
      ['sampling', 'eta', 'c'], sort=False, dropna=False
    ):
      parameters = '' if math.isnan(eta) else f', eta={eta:g}, c={c:g}'
      rows.append(
        [sampling + parameters, *(_format(of_sampling[n]) for n in _NUMBERS)]
      )
    header = ['Sampling', *_NUMBERS.values()]
    texts.append(tables.format_markdown(title, header, rows))
  return '\n'.join(texts)


def _format(values):
  if values.isna().all():
    return tables.NONE
  mean, least, largest = (
    f'{number:.2f}' for number in (values.mean(), values.min(), values.max())
  )
  return mean if least == largest else f'{mean} ({least}–{largest})'


def _draw(
  drawn: Mapping[tuple[runs.Experiment, runs.Method], tuple[int, pd.DataFrame]],
  controller: Controller,
  folder: pathlib.Path,
) -> None:
  """Draws the first run of each kind, with the first controller."""
  parts = []
  for (experiment, method), (_, rounds) in drawn.items():
    is_drawn = rounds['eta'].isna() | (
      (rounds['eta'] == controller.eta) & (rounds['c'] == controller.c)
    )
    n = experiment.clients_per_round
    title = f'{experiment.title}, n={n}, {method.label}'
    # TFF's files say themselves what they hold, see `runs.Experiment`.
    if experiment.data_source not in ('', 'tff'):
      title += f' ({experiment.data_source})'
    parts.append(rounds[is_drawn].assign(title=title))
  seeds = ', '.join(sorted({str(seed) for seed, _ in drawn.values()}))
  threshold_replays.plot_replays(
    pd.concat(parts),
    [folder / f'threshold.{ending}' for ending in ('png', 'pdf')],
    caption=(
      f'Norms of recorded runs, seed {seeds}; eta = {controller.eta:g}, c ='
      f' {controller.c:g}.'
    ),
  )


def _define_flags():
  inputs.define_flags()
  define = definer.Definer(flags.FLAGS)
  define.float(
    'expected_clients',
    None,
    'm, the expected number of participants. If not given, that of each run.',
  )
  define.list('eta', ['0.3'], 'The steps of the controller to try, above 0.')
  define.list(
    'c', ['3'], 'The limits of a rise of the threshold to try, above 1.'
  )
  define.path(
    'output_dir',
    None,
    'The folder to write threshold.md, .csv, .png and .pdf to. If not given,'
    ' the table is only printed. The figure shows the first --eta and --c.',
  )
  define.validate(
    'expected_clients',
    lambda m: m is None or 0 < m < math.inf,
    message='must be a finite number above 0',
  )
  for name, least in (('eta', 0), ('c', 1)):
    define.validate(
      name,
      lambda texts, least=least: definer.are_different(
        texts, float, lambda number: least < number < math.inf
      ),
      message=f'must be one or more different finite numbers above {least}',
    )


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
