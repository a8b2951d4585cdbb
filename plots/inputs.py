"""The runs that figures and tables are made of, as the flags choose them."""

import dataclasses
import re
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
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

  Runs of uniform sampling with the step size of AOCS, where there are others
  with a step size of their own, are a method with a name of its own.

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
  return _name_step_sizes(
    [
      group
      for group in groups
      if data is None
      or data == group.experiment.data_source
      or data in group.experiment.data
    ]
  )


def _name_step_sizes(groups: Sequence[runs.Group]) -> list[runs.Group]:
  """Names uniform sampling with the step size of AOCS, if there is another."""
  step_sizes: dict = {}
  for group in groups:
    of_method = step_sizes.setdefault(_method_in_experiment(group), set())
    of_method.add(group.settings.get('client_learning_rate'))
  named = []
  for group in groups:
    experiment, method = _method_in_experiment(group)
    step_size = group.settings.get('client_learning_rate')
    of_aocs = step_sizes.get((experiment, method._replace(sampling='aocs')), ())
    is_one_of_two = len(step_sizes[experiment, method]) == 2
    if method.sampling == 'uniform' and is_one_of_two and step_size in of_aocs:
      name = f"{method.label}, AOCS' step size"
      group = dataclasses.replace(group, method=method._replace(name=name))
    named.append(group)
  return named


def _method_in_experiment(group):
  return group.experiment, group.method


def no_runs(results_dir: str, data: Optional[str]) -> runs.RunsError:
  """The error that there are no runs."""
  of_data = '' if data is None else f' with --data={data}'
  return runs.RunsError(
    f'there is no finished run below --results_dir={results_dir}{of_data}.'
  )


def name_files(prefix: str, by_experiment: Mapping) -> dict[str, Any]:
  """Names for files: different experiments never share one.

  Args:
    prefix: What the names begin with.
    by_experiment: Values by `runs.Experiment`, or the first two fields of it.

  Returns:
    The values by name.
  """
  named: dict[str, Any] = {}
  for (experiment, n, *_), value in by_experiment.items():
    words = re.sub(r'\W+', '_', experiment.lower()).strip('_')
    name = f'{prefix}{words}_n{n}'
    named[f'{name}_{len(named) + 1}' if name in named else name] = value
  return named
