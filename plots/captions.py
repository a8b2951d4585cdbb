"""The lines below figures."""

import re
from collections.abc import Callable
from collections.abc import Sequence

from tff_ocs.records import labels
from tff_ocs.records import runs
from tff_ocs.records import units

_STEP_SIZE = 'client_learning_rate'


def describe_runs(groups: Sequence[runs.Group]) -> str:
  """Names the data and the step sizes, and explains the lines and bands."""
  step_sizes = describe_step_sizes(
    groups,
    lambda group: labels.sampling_label(group.method.sampling),
    lambda group: group.method.label,
  )
  # Names may hold dollar signs, which begin formulas.
  experiment = escape(str(groups[0].experiment))
  caption = f'{experiment} {step_sizes}'
  if any(len(group.runs) > 1 for group in groups):
    caption += 'Mean ± standard deviation over seeds.'
  return caption.rstrip()


def describe_step_sizes(
  groups: Sequence[runs.Group],
  short_name: Callable[[runs.Group], str],
  long_name: Callable[[runs.Group], str],
) -> str:
  """The clients' step sizes, as powers of two where they are.

  Args:
    groups: The groups that a figure shows.
    short_name: The name of a group for which all groups of this name have the
      same step size.
    long_name: The name of any other group.

  Returns:
    A sentence and a space; nothing if no step sizes are recorded.
  """
  groups = [group for group in groups if _STEP_SIZE in group.settings]
  of_name, names = {}, {}
  for group in groups:
    step_size = group.settings[_STEP_SIZE]
    of_name.setdefault(short_name(group), set()).add(step_size)
  for group in groups:
    name = short_name(group)
    if len(of_name[name]) > 1:
      name = long_name(group)
    # A dictionary, since it keeps the order and has no name twice.
    names.setdefault(group.settings[_STEP_SIZE], {})[name] = None
  has_commas = any(',' in name for of in names.values() for name in of)
  separator = ' / ' if has_commas else ', '
  listed = [
    f'{_as_math(s)} ({escape(separator.join(of))})' for s, of in names.items()
  ]
  if len(names) == 1:
    listed = [_as_math(s) for s in names]
  return f'Client step size: {"; ".join(listed)}. ' if listed else ''


def legend_label(group: runs.Group) -> str:
  """The name of a group in a legend, with its number of seeds."""
  num_seeds = len(group.runs)
  label = escape(group.method.label)
  return f'{label} ({num_seeds} seed{"s" * (num_seeds > 1)})'


def escape(text: str) -> str:
  """A text that matplotlib draws as it is."""
  return text.replace('$', r'\$')


def _as_math(step_size):
  text = units.format_step_size(step_size)
  return re.sub(r'^2\^(.*)$', r'$2^{\1}$', text)
