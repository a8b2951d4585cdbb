"""All runs of the paper's experiments, or of one of them.

Every method, every m and `--repeats` seeds, each run in a process of its own;
locally or on a Ray cluster. Flags after a -- go to each run. An example that
needs no download:

  python -m experiments.sweep --experiment=femnist_1 -- --data_source=bundled

The same command started again goes on where the first ended.
"""

import shlex
import sys
from collections.abc import Sequence

from absl import app
from absl import flags

from experiments.campaigns import jobs
from experiments.campaigns import paper_runs


def main(argv):
  values = flags.FLAGS
  try:
    extra_flags = paper_runs.extra_flags(
      argv, ('seed', 'sampling', 'expected_clients')
    )
    all_jobs = build_jobs(
      paper_runs.read(values.experiment, values.methods),
      values.repeats,
      extra_flags,
    )
    if values.dry_run:
      _print_commands(all_jobs, values.output_dir)
      return
    if extra_flags:
      paper_runs.check_flags(all_jobs)
    failed = jobs.run_jobs(
      all_jobs,
      output_dir=values.output_dir,
      name=values.experiment,
      parallel=values.parallel,
      ray_address=values.ray_address,
    )
  except (jobs.JobError, OSError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted; the same command goes on where this one ended')
  _tell(
    f'{len(all_jobs) - len(failed)} of {len(all_jobs)} runs are finished:'
    f' {values.output_dir}'
  )
  if failed:
    for job, reason, log in failed:
      _tell(f'{job.name} failed: {reason}\n  log: {log}')
    sys.exit('The same command tries the failed runs again.')
  folder = shlex.quote(values.output_dir)
  _tell(
    'Figures and a table of them:\n'
    f'  python -m plots.figures --results_dir={folder}\n'
    f'  python -m plots.summary --results_dir={folder}'
  )


def _define_flags():
  paper_runs.define_flags()
  flags.adopt_module_key_flags(paper_runs)
  flags.DEFINE_integer(
    'repeats',
    5,
    'How often each run is repeated, with the seeds 0, 1 and so on.',
    lower_bound=1,
  )


def build_jobs(
  flag_files: Sequence[paper_runs.FlagFile],
  repeats: int,
  extra_flags: Sequence[str],
) -> list[jobs.Job]:
  """The jobs, all of the first seed before those of the second.

  Args:
    flag_files: The runs.
    repeats: The number of seeds.
    extra_flags: Flags for each run.

  Returns:
    The jobs.
  """
  return [
    jobs.Job(
      f'{flag_file.name}_seed{seed}',
      flag_file.binary,
      (*flag_file.flags, *extra_flags, f'--seed={seed}'),
    )
    for seed in range(repeats)
    for flag_file in flag_files
  ]


def _print_commands(all_jobs, output_dir):
  for job in all_jobs:
    finished = '# finished: ' * jobs.is_finished(job, output_dir)
    print(finished + shlex.join(job.command(output_dir)))


def _tell(message):
  print(message, file=sys.stderr)


# Not on import, since other programs have flags of the same names.
if __name__ == '__main__':
  _define_flags()
  app.run(main)
