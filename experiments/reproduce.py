"""Reproduces the paper: its runs, figures, tables and claims, in one command.

  python -m experiments.reproduce --cache_dir=data --output_dir=reproduction

Runs the experiments of the paper, and sampling in one round trip, for the data
that is on this machine; the search for step sizes; and the search for the
number of participants. Then it draws the figures, writes the tables and judges
the claims. Nothing is downloaded: an experiment without data is left out, and a
line says what is missing.

First it times two rounds of each experiment, and prints how much time and disk
space the rest will take. If it is interrupted, the same command continues it.

--scale=smoke is a test of this program on generated and bundled data. It goes
through all steps in minutes. Its numbers say nothing about the paper, and its
runs are too short to judge all claims, so its exit status is 3.

In --output_dir it writes README.md, claims.md and claims.csv, summary.md and
summary.csv, figures/, and the runs in runs/, tuning/ and participation/.

The exit status is 0 if every claim could be judged; 3 if everything was run,
but some claims could not be judged, which are named; and 1 if a run or a step
failed.
"""

import csv
import os
import pathlib
import shlex
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import NamedTuple
from typing import Optional

from absl import app
from absl import flags

from experiments import participation
from experiments import tune
from experiments.campaigns import campaign
from experiments.campaigns import estimate
from experiments.campaigns import job as job_lib
from experiments.campaigns import jobs
from experiments.campaigns import local_runner
from experiments.campaigns import paper_runs
from experiments.campaigns import sources
from programs import definer
from programs import entry
from tff_ocs.records import files

_NOT_JUDGED = 3
# The flags of the data, with the program that one of them is for.
_OF_DATA = {
  'cache_dir': None,
  'data_dir': 'femnist',
  'femnist_name': 'femnist',
  'cifar100_name': 'cifar100',
}
_SMOKE_LABEL = (
  'This is a test of the programs (--scale=smoke) on generated and bundled'
  ' data: its numbers and verdicts say nothing about the paper.'
)


class Search(NamedTuple):
  """A search for step sizes.

  Attributes:
    experiment: One of `paper_runs.EXPERIMENTS`.
    methods: The methods, as `paper_runs.read` takes them.
    grid: The step sizes to begin with.
    flags: Flags for each run.
  """

  experiment: str
  methods: tuple[str, ...]
  grid: tuple[float, ...]
  flags: tuple[str, ...]


class Enough(NamedTuple):
  """A search for the number of participants that are enough.

  Attributes:
    experiment: One of `paper_runs.EXPERIMENTS`.
    clients_per_round: The sizes n of the cohorts.
    expected_clients: The numbers m of participants.
    repeats: The number of seeds.
    flags: Flags for each run.
  """

  experiment: str
  clients_per_round: tuple[int, ...]
  expected_clients: tuple[int, ...]
  repeats: int
  flags: tuple[str, ...]


class Scale(NamedTuple):
  """All that is run.

  Attributes:
    published: The runs of the paper's experiments.
    flags: Flags for each of these runs, by program.
    searches: The searches for step sizes.
    enough: The search for the number of participants.
    of_claims: Flags of `plots.claims`.
  """

  published: tuple[paper_runs.Published, ...]
  flags: Mapping[str, tuple[str, ...]]
  searches: tuple[Search, ...]
  enough: Enough
  of_claims: tuple[str, ...]


_GRID = (2**-1, 2**-2, 2**-3, 2**-4, 2**-5)
_PAPER = Scale(
  published=paper_runs.PUBLISHED,
  flags={},
  searches=(
    Search(
      'femnist_1',
      ('full', 'uniform_m3', 'aocs_m3'),
      _GRID,
      ('--total_rounds=41',),
    ),
    Search(
      'shakespeare_32',
      ('full', 'uniform_m2', 'aocs_m2'),
      _GRID,
      ('--total_rounds=41',),
    ),
  ),
  enough=Enough(
    'femnist_1',
    (16, 32, 64, 128),
    (1, 2, 3, 6, 9, 12),
    5,
    ('--total_rounds=41',),
  ),
  of_claims=(),
)
_TINY = ('--data_source=synthetic', '--rounds_per_eval=1')
# The methods that figures and claims need.
_SMOKE_ON_FEMNIST = ('full', 'uniform_m3', 'ocs_m3', 'aocs', 'threshold')
_SMOKE = Scale(
  # Two seeds give an interval. Within four rounds, AOCS and one round trip stay
  # above 85 % on the generated digits of the sets 1 and 2.
  published=(
    paper_runs.Published('femnist_1', _SMOKE_ON_FEMNIST, 2, 4),
    paper_runs.Published('femnist_2', _SMOKE_ON_FEMNIST, 2, 4),
    paper_runs.Published('femnist_3', _SMOKE_ON_FEMNIST, 2, 4),
    paper_runs.Published(
      'shakespeare_32', ('full', 'uniform_m2', 'aocs'), 2, 2
    ),
    paper_runs.Published(
      'shakespeare_128', ('full', 'uniform_m4', 'aocs'), 2, 1
    ),
    paper_runs.Published(
      'cifar100', ('full', 'uniform', 'uniform_ocs_step', 'aocs'), 2, 1
    ),
  ),
  flags={program: _TINY for program in sources.DATABASES},
  searches=tuple(
    # The best of these is the middle one, so that the search ends at once.
    Search(
      experiment,
      methods,
      (64.0, step_size, 1e-6),
      (*_TINY, '--total_rounds=2'),
    )
    for experiment, methods, step_size in (
      ('femnist_1', ('uniform_m3', 'aocs_m3'), 2**-3),
      ('shakespeare_32', ('uniform_m2', 'aocs_m2'), 2**-2),
    )
  ),
  enough=Enough(
    'femnist_1',
    (4,),
    (2,),
    2,
    ('--data_source=bundled', '--rounds_per_eval=1', '--total_rounds=2'),
  ),
  of_claims=('--min_seeds=2',),
)


class Step(NamedTuple):
  """A program that is started when the runs are finished.

  Attributes:
    name: The name of its log.
    command: The arguments of Python.
  """

  name: str
  command: list[str]


class Plan(NamedTuple):
  """All work for the data that is there.

  Attributes:
    jobs: The runs, by experiment.
    timed: The runs that are timed, by experiment.
    steps: The programs that follow.
    left_out: A line for each experiment without data.
  """

  jobs: dict[str, list[job_lib.Job]]
  timed: dict[str, job_lib.Job]
  steps: list[Step]
  left_out: list[str]


def build_plan(values: flags.FlagValues) -> Plan:
  """Plans everything from the program's flags.

  Raises:
    JobError: If they contradict each other.
  """
  _check_flags(values)
  scale = _SMOKE if values.scale == 'smoke' else _PAPER
  found, left_out = {}, []
  for experiment in values.experiments:
    source = sources.Source()
    if scale is _PAPER:
      source = _find_source(values, experiment)
    if source.missing:
      left_out.append(f'{experiment} is left out: {source.missing}.')
    else:
      program = experiment.split('_')[0]
      found[experiment] = (*source.flags, *scale.flags.get(program, ()))
  output_dir = pathlib.Path(values.output_dir)
  runs = _plan_published(scale.published, found)
  timed = {
    experiment: estimate.build_job(
      experiment, paper_runs.read(experiment, ['full'])[0].extended('', *added)
    )
    for experiment, added in found.items()
  }
  steps = []
  for search in scale.searches:
    if search.experiment in found:
      of_search, step = _plan_search(search, found[search.experiment], values)
      runs[search.experiment] += of_search
      steps.append(step)
  if scale.enough.experiment in found:
    added = found[scale.enough.experiment]
    of_enough, step = _plan_enough(scale.enough, added, values)
    runs[scale.enough.experiment] += of_enough
    steps.append(step)
  of_claims = [*scale.of_claims]
  if any(search.experiment in found for search in scale.searches):
    of_claims.append(f'--tuning_dir={output_dir / "tuning"}')
  steps += _plan_drawing(output_dir, _femnist_folder(values), of_claims)
  return Plan(runs, timed, steps, left_out)


def _check_flags(values) -> None:
  programs = {experiment.split('_')[0] for experiment in values.experiments}
  for name, program in _OF_DATA.items():
    if values[name].value is None:
      continue
    given = f'--{name}={values[name].value}'
    if values.scale == 'smoke':
      raise job_lib.JobError(
        f'{given} cannot be combined with --scale=smoke, which uses generated'
        ' and bundled data only.'
      )
    if program is not None and program not in programs:
      raise job_lib.JobError(
        f'{given} needs an experiment with this data, found'
        f' --experiments={",".join(values.experiments)}.'
      )
  if values.data_dir is not None and values.femnist_name is not None:
    raise job_lib.JobError(
      f'--femnist_name={values.femnist_name} cannot be combined with'
      " --data_dir: it names what a file of TFF holds, not the authors' files."
    )


def _find_source(values, experiment) -> sources.Source:
  names = {'femnist': values.femnist_name, 'cifar100': values.cifar100_name}
  return sources.find(
    experiment,
    cache_dir=values.cache_dir,
    data_dir=values.data_dir,
    data_name=names.get(experiment.split('_')[0]),
  )


def _femnist_folder(values) -> Optional[str]:
  """The folder of the data that figure 2 is drawn from, if it is all there."""
  if values.scale == 'smoke':
    return None
  if values.data_dir is not None:
    folder = pathlib.Path(values.data_dir)
    names = {name for of in sources.AUTHORS_FILES.values() for name in of}
  else:
    folder = sources.cache_folder(values.cache_dir)
    names = {sources.DATABASES['femnist']}
  is_there = all((folder / name).is_file() for name in names)
  return str(folder) if is_there else None


def _plan_published(published, found) -> dict[str, list[job_lib.Job]]:
  """The runs of each experiment, by seed."""
  return {
    part.experiment: [
      run._replace(name=f'runs/{run.name}').extended(
        f'_seed{seed}',
        *found[part.experiment],
        f'--total_rounds={part.total_rounds}',
        f'--seed={seed}',
      )
      for seed in range(part.repeats)
      for run in paper_runs.read(part.experiment, part.methods)
    ]
    for part in published
    if part.experiment in found
  }


def _plan_search(
  search: Search, added: Sequence[str], values: flags.FlagValues
) -> tuple[list[job_lib.Job], Step]:
  """The first runs of a search, and the command that ends it."""
  added = _last_of_each([*added, *search.flags])
  folder = f'tuning/{search.experiment}'
  first = tune.build_jobs(
    paper_runs.read(search.experiment, search.methods), search.grid, 1, added
  )
  command = _campaign(values, 'tune', search.experiment, folder)
  command += [
    f'--methods={",".join(search.methods)}',
    f'--grid={",".join(map(str, search.grid))}',
  ]
  return (
    [job._replace(name=f'{folder}/{job.name}') for job in first],
    Step(f'tune_{search.experiment}', [*command, '--', *added]),
  )


def _plan_enough(
  enough: Enough, added: Sequence[str], values: flags.FlagValues
) -> tuple[list[job_lib.Job], Step]:
  """The runs of a search for the number of participants, and its command."""
  added = _last_of_each([*added, *enough.flags])
  command = _campaign(
    values, 'participation', enough.experiment, 'participation'
  )
  command += [
    f'--clients_per_round={",".join(map(str, enough.clients_per_round))}',
    f'--expected_clients={",".join(map(str, enough.expected_clients))}',
    f'--repeats={enough.repeats}',
  ]
  all_jobs = [
    participation.build_job(enough.experiment, n, m, seed, added)
    for seed in range(enough.repeats)
    for n in enough.clients_per_round
    for m in (*(m for m in enough.expected_clients if m < n), n)
  ]
  return (
    [job._replace(name=f'participation/{job.name}') for job in all_jobs],
    Step('participation', [*command, '--', *added]),
  )


def _last_of_each(of_runs: Sequence[str]) -> list[str]:
  """The flags without those that a later flag of the same name replaces."""
  return list({flag.split('=')[0]: flag for flag in of_runs}.values())


def _campaign(values, program, experiment, folder) -> list[str]:
  command = [
    '-m',
    f'experiments.{program}',
    f'--experiment={experiment}',
    f'--output_dir={pathlib.Path(values.output_dir, folder)}',
  ]
  for name in ('parallel', 'ray_address'):
    if values[name].value is not None:
      command.append(f'--{name}={values[name].value}')
  return command


def _plan_drawing(output_dir, femnist_folder, of_claims) -> list[Step]:
  """The commands of the figures, tables and claims."""
  results_dir = f'--results_dir={output_dir / "runs"}'
  figures = [results_dir, f'--output_dir={output_dir / "figures"}']
  if femnist_folder is not None:
    figures.append(f'--cache_dir={femnist_folder}')
  return [
    Step('figures', ['-m', 'plots.figures', *figures]),
    Step(
      'summary',
      ['-m', 'plots.summary', results_dir, f'--output_dir={output_dir}'],
    ),
    Step(
      'claims',
      ['-m', 'plots.claims', results_dir, f'--output_dir={output_dir}']
      + of_claims,
    ),
  ]


@campaign.reporting_errors()
def main(argv):
  entry.refuse_arguments(argv)
  sys.exit(run(flags.FLAGS))


def run(values: flags.FlagValues) -> int:
  """Reproduces the paper; returns the exit status."""
  output_dir = pathlib.Path(values.output_dir)
  plan = build_plan(values)
  for line in plan.left_out:
    _report(line)
  if not plan.timed:
    raise job_lib.JobError(
      "there is no data. --cache_dir must hold TFF's files, or --data_dir the"
      " authors'; docs/reproduce.md says where they come from. --scale=smoke"
      ' needs none.'
    )
  if values.scale == 'smoke':
    _report(_SMOKE_LABEL)
  all_jobs = [job for of_name in plan.jobs.values() for job in of_name]
  # After the first seed, there is something to see of each experiment.
  all_jobs.sort(key=lambda job: int(job.values['seed']))
  # Other flags than those of an earlier command are found before any work.
  for job in all_jobs:
    jobs.is_finished(job, output_dir)
  _estimate(plan, values, all_jobs)
  failed = jobs.run_jobs(
    all_jobs,
    output_dir=values.output_dir,
    name='reproduce',
    parallel=values.parallel,
    ray_address=values.ray_address,
  )
  failures = [failed_job.description for failed_job in failed]
  for step in plan.steps:
    failures += _run_step(step, output_dir)
  for name in ('claims.md', 'differences.md', 'summary.md'):
    if values.scale == 'smoke' and (output_dir / name).exists():
      _label(output_dir / name)
  _write_readme(plan, values)
  if failures:
    _report('\n'.join(failures))
    _report('error: the same command tries again what failed.')
    return 1
  return _report_claims(output_dir)


def _estimate(plan, values, all_jobs) -> None:
  """Times each experiment, and prints what the rest takes.

  Raises:
    JobError: If a run fails that is timed, or if the disk is too small.
  """
  output_dir = pathlib.Path(values.output_dir)
  if all(jobs.is_finished(job, output_dir) for job in all_jobs):
    return

  def run_timed(timed):
    failed = jobs.run_jobs(
      timed,
      output_dir=output_dir,
      name='timing two rounds of each',
      # Each has the cores that it will have among all runs.
      parallel=None if values.ray_address else num_parallel,
      ray_address=values.ray_address,
    )
    if failed:
      lines = [failed_job.description for failed_job in failed]
      raise job_lib.JobError('\n'.join(['runs failed:', *lines]))

  # A cluster's size is not known here.
  num_parallel = 1
  if values.ray_address is None:
    shares = local_runner.share_cores(values.parallel, len(all_jobs))
    num_parallel = len(shares)
  timings = estimate.measure(plan.timed, output_dir, run_timed, num_parallel)
  estimates = {
    name: estimate.estimate(
      of_experiment,
      timings[name],
      int(plan.timed[name].values['clients_per_round']),
      output_dir,
    )
    for name, of_experiment in plan.jobs.items()
  }
  _report(estimate.describe(estimates, timings, num_parallel))
  _, num_bytes = estimate.total(estimates, timings, num_parallel)
  estimate.check_space(output_dir, num_bytes)


def _run_step(step: Step, output_dir: pathlib.Path) -> list[str]:
  """Starts a program; returns the reason if it fails."""
  _report(shlex.join(['python', *step.command]))
  log = output_dir / 'logs' / f'{step.name}.log'
  paths = filter(None, [str(job_lib.ROOT), os.environ.get('PYTHONPATH')])
  process = local_runner.start_process(
    [sys.executable, *step.command],
    cwd=pathlib.Path(),
    log=log,
    cores=sorted(os.sched_getaffinity(0)),
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(paths)},
  )
  try:
    status = process.wait()
  except BaseException:
    process.kill()
    process.wait()
    raise
  if status == 0:
    return []
  lines = log.read_text(encoding='utf-8', errors='replace').split('\n')
  reason = ([line for line in lines if line.strip()] or ['no reason given'])[-1]
  return [f'{step.name} failed: {reason}\n  log: {log}']


def _label(path: pathlib.Path) -> None:
  """Writes at the top of a page that it is a test."""
  text = path.read_text(encoding='utf-8')
  if text.startswith(f'**{_SMOKE_LABEL}**'):
    return
  with files.replacing(path) as partial:
    partial.write_text(f'**{_SMOKE_LABEL}**\n\n{text}', encoding='utf-8')


def _write_readme(plan, values) -> None:
  """Writes a page that says what the folder holds, with all commands."""
  lines = ['# Reproduction of *Optimal Client Sampling*', '']
  if values.scale == 'smoke':
    lines += [f'**{_SMOKE_LABEL}**', '']
  num_runs = sum(map(len, plan.jobs.values()))
  lines += [
    f'{num_runs} runs of {", ".join(plan.jobs)}.',
    *plan.left_out,
    '',
    '*   `claims.md`, `claims.csv`: the claims, with a verdict each',
    '*   `summary.md`, `summary.csv`: accuracies and bits of all methods',
    '*   `differences.md`: methods compared by pairs of runs with one seed',
    '*   `figures/`: the figures',
    '*   `tuning/`, `participation/`: the searches, each with a table',
    '*   `runs/`: the records of the runs',
    '',
    'The tables and figures are made by these commands:',
    '',
    *(f'    {shlex.join(["python", *step.command])}' for step in plan.steps),
    '',
  ]
  with files.replacing(pathlib.Path(values.output_dir, 'README.md')) as path:
    path.write_text('\n'.join(lines), encoding='utf-8')


def _report_claims(output_dir: pathlib.Path) -> int:
  """Prints the verdicts; returns the exit status."""
  with (output_dir / 'claims.csv').open(encoding='utf-8', newline='') as file:
    rows = list(csv.DictReader(file))
  verdicts = {row['claim']: row['claim_verdict'] for row in rows}
  for number, verdict in verdicts.items():
    _report(f'claim {number}: {verdict}')
  not_judged = [row for row in rows if row['verdict'] == 'not judged']
  for row in not_judged:
    _report(
      f'not judged: claim {row["claim"]}, {row["data"]}, {row["quantity"]}:'
      f' {row["why_not_judged"]}'
    )
  _report(f'Claims, tables and figures: {output_dir}')
  return _NOT_JUDGED if not_judged else 0


def _report(message):
  print(message, file=sys.stderr)


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags."""
  define = definer.Definer(values)
  define.enum(
    'scale',
    'paper',
    ['paper', 'smoke'],
    "The paper's runs (paper), or a test of all steps on generated and bundled"
    ' data, which takes minutes (smoke).',
  )
  define.list(
    'experiments',
    list(paper_runs.EXPERIMENTS),
    'The experiments of the paper to run.',
  )
  define.path('output_dir', 'reproduction', 'The folder for everything.')
  define.path(
    'cache_dir',
    None,
    "The folder of the files of TFF's data sets; nothing is downloaded. If not"
    ' given, ~/.tff.',
  )
  define.path(
    'data_dir',
    None,
    "The folder of the authors' HDF5 files, which FEMNIST is read from if it is"
    ' given.',
  )
  define.string(
    'femnist_name',
    None,
    'What emnist_all.sqlite really holds, if it is a stand-in.',
  )
  define.string(
    'cifar100_name',
    None,
    'What cifar100.sqlite really holds, if it is a stand-in.',
  )
  define.integer(
    'parallel',
    None,
    'The number of runs at the same time on this machine, as of'
    ' experiments.sweep.',
  )
  define.string(
    'ray_address',
    None,
    'The address of a Ray cluster to place the runs on, as of'
    ' experiments.sweep.',
  )
  define.validate(
    'experiments',
    lambda names: names and not set(names) - set(paper_runs.EXPERIMENTS),
    message=f'must be some of {",".join(paper_runs.EXPERIMENTS)}',
  )


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main)
