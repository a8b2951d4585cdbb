"""Runs an experiment of the paper, or all, or data of one's own.

All methods are run with several seeds. Each run is a process of its own, on
this machine or on a Ray cluster. Flags after a -- go to each run. An example
that needs no download:

  python -m experiments.sweep --experiment=femnist_1 -- --data_source=bundled

and one with data of one's own, see experiments.custom:

  python -m experiments.sweep --experiment=custom -- --task=my_task.py:load

If the sweep is interrupted, the same command continues it.
"""

import shlex
import sys
from collections.abc import Sequence

from absl import app
from absl import flags

from experiments.campaigns import campaign
from experiments.campaigns import campaign_flags
from experiments.campaigns import job as job_lib
from experiments.campaigns import paper_runs
from programs import definer

# Flags that the program sets for each run.
_RESERVED = ('expected_clients', 'sampling', 'seed')


@campaign.reporting_errors()
def main(argv):
  values = flags.FLAGS
  extra_flags = campaign_flags.extra_flags(argv, values, _RESERVED)
  all_jobs = build_jobs(
    campaign_flags.read_runs(values), values.repeats, extra_flags
  )
  campaign.check_or_print(all_jobs, values)
  failed = campaign.run_jobs(all_jobs, values, name=values.experiment)
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
  """Defines the program's flags."""
  campaign_flags.define(
    values, (*paper_runs.EXPERIMENTS, 'paper', paper_runs.CUSTOM)
  )
  campaign_flags.define_methods(values)
  definer.Definer(values).integer(
    'repeats',
    5,
    'The number of seeds, 0, 1 and so on, with which each run is repeated.',
    lower_bound=1,
  )


def build_jobs(
  runs: Sequence[job_lib.Job], repeats: int, extra_flags: Sequence[str]
) -> list[job_lib.Job]:
  """The jobs, all of the first seed before those of the second."""
  return [
    run.extended(f'_seed{seed}', *extra_flags, f'--seed={seed}')
    for seed in range(repeats)
    for run in runs
  ]


def _report(message):
  print(message, file=sys.stderr)


# Other programs have flags of the same names.
if __name__ == '__main__':
  define_flags()
  app.run(main, flags_parser=campaign_flags.parse)
