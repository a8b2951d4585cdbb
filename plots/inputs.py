"""The runs that figures and tables are made of, as the flags choose them."""

import sys
from typing import Optional

from absl import flags

from programs import paths
from tff_ocs.records import runs


def define_flags() -> None:
  """Defines the flags that choose runs."""
  paths.define_path(
    'results_dir',
    None,
    'Required. The folder below which the folders of the runs are.',
  )
  flags.DEFINE_string(
    'data',
    None,
    'Use only runs whose data, as in the line below a figure, has this in its'
    ' name or is of this source.',
  )
  flags.mark_flag_as_required('results_dir')


def find_groups(results_dir: str, data: Optional[str]) -> list[runs.Group]:
  """Reads the finished runs, and prints a line for each that is left out.

  Args:
    results_dir: The folder below which the runs are.
    data: Part of the name, or the source, of the data to use; `None` is all.

  Returns:
    The groups of runs.

  Raises:
    RunsError: If there is no such folder, or if it holds a run twice.
  """
  groups, left_out = runs.find_groups(results_dir)
  for line in left_out:
    print(line, file=sys.stderr)
  return [
    group
    for group in groups
    if data is None
    or data == group.experiment.data_source
    or data in group.experiment.data
  ]


def no_runs(results_dir: str, data: Optional[str]) -> runs.RunsError:
  """The error that there are no runs."""
  of_data = '' if data is None else f' with --data={data}'
  return runs.RunsError(
    f'there is no finished run below --results_dir={results_dir}{of_data}.'
  )
