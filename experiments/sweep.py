"""Runs the paper's experiments, or one of them, with all methods and seeds.

Each run is a process of its own, on this machine or on a Ray cluster. Flags
after a -- go to each run. An example that needs no download:

  python -m experiments.sweep --experiment=femnist_1 -- --data_source=bundled

If the sweep is interrupted, the same command continues it.
"""

import shlex
import sys
from collections.abc import Sequence

from absl import app
from absl import flags

from experiments.campaigns import campaign_flags
from experiments.campaigns import job as job_lib
from experiments.campaigns import jobs
from experiments.campaigns import paper_runs
from programs import entry

# Flags that the program sets for each run.
_RESERVED = ('expected_clients', 'sampling', 'seed')


def main(argv):
  entry.setup()
  values = flags.FLAGS
  try:
    extra_flags = campaign_flags.extra_flags(argv, values, _RESERVED)
    all_jobs = build_jobs(
      campaign_flags.read_runs(values), values.repeats, extra_flags
    )
    if values.dry_run:
      _print_commands(all_jobs, values.output_dir)
      return
    if extra_flags:
      campaign_flags.check_extra_flags(all_jobs)
    failed = jobs.run_jobs(
      all_jobs,
      output_dir=values.output_dir,
      name=values.experiment,
      parallel=values.parallel,
      ray_address=values.ray_address,
    )
  except (job_lib.JobError, OSError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted; the same command continues where this one ended')
  _report(
    f'{len(all_jobs) - len(failed)} of {len(all_jobs)} runs are finished:'
    f' {values.output_dir}'
  )
  if failed:
    for failed_job in failed:
      _report(failed_job.description)
    sys.exit('The same command tries the failed runs again.')
  folder = shlex.quote(values.output_dir)
  _report(
    'Figures and a table of them:\n'
    f'  python -m plots.figures --results_dir={folder}\n'
    f'  python -m plots.summary --results_dir={folder}'
  )


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the program's flags.

  Args:
    values: The flags to add them to.
  """
  campaign_flags.define(values)
  campaign_flags.define_methods(values)
  flags.adopt_module_key_flags(campaign_flags, values)
  flags.DEFINE_integer(
    'repeats',
    5,
    'The number of seeds, 0, 1 and so on, with which each run is repeated.',
    lower_bound=1,
    flag_values=values,
  )


def build_jobs(
  runs: Sequence[paper_runs.PaperRun],
  repeats: int,
  extra_flags: Sequence[str],
) -> list[job_lib.Job]:
  """The jobs, all of the first seed before those of the second.

  Args:
    runs: The runs.
    repeats: The number of seeds.
    extra_flags: Flags for each run.

  Returns:
    The jobs.
  """
  return [
    job_lib.Job(
      f'{run.name}_seed{seed}',
      run.program,
      (*run.flags, *extra_flags, f'--seed={seed}'),
    )
    for seed in range(repeats)
    for run in runs
  ]


def _print_commands(all_jobs, output_dir):
  for job in all_jobs:
    finished = '# finished: ' * jobs.is_finished(job, output_dir)
    print(finished + shlex.join(job.command(output_dir)))


def _report(message):
  print(message, file=sys.stderr)


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main, flags_parser=campaign_flags.parse)
