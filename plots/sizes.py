"""Figure 2 of the paper: the sizes of the clients of the FEMNIST sets."""

import functools
import os
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Optional
from typing import Union

import numpy as np
from matplotlib import figure
from matplotlib import style
from matplotlib import ticker

from plots import panels
from tff_ocs.records import runs

_NUM_BINS = 40


NO_SOURCE = (
  'the sizes of the clients are not recorded with runs, and need either'
  ' --cache_dir, the folder of emnist_all.sqlite, or FEMNIST runs with one of'
  ' --data_source=bundled|synthetic.'
)


def find_source(
  groups: Sequence[runs.Group], cache_dir: Optional[str]
) -> Optional[str]:
  """The data source from which the sizes of the clients can be computed.

  With a `cache_dir`, it is the authors' files there if the FEMNIST runs are of
  these, and TFF's file there otherwise. Without one, it is that of the FEMNIST
  runs; `None` if these have none, or several, that can be used.
  """
  sources = {
    group.experiment.data_source
    for group in groups
    if 'unbalanced_set' in group.settings
  }
  if cache_dir is not None:
    return 'authors' if sources == {'authors'} else 'tff'
  sources &= {'bundled', 'synthetic'}
  return sources.pop() if len(sources) == 1 else None


def find_sizes(
  groups: Sequence[runs.Group], cache_dir: Optional[str]
) -> tuple[dict[int, np.ndarray], str]:
  """Builds the three sets again, since runs do not record the sizes.

  Args:
    groups: As for `find_source`.
    cache_dir: As for `find_source`.

  Returns:
    The number of examples of each client, integer arrays of shape
    [num_clients], by the number of the set; and a caption that names the data.

  Raises:
    DataError: If the file is missing or is not the data set.
    RunsError: If there is no source, or if the runs were trained on other data.
  """
  source = find_source(groups, cache_dir)
  if source is None:
    raise runs.RunsError(NO_SOURCE)
  of_femnist = [
    group
    for group in groups
    if 'unbalanced_set' in group.settings
    and group.experiment.data_source == source
  ]
  # Imported here, since it takes seconds and only this figure needs it.
  from tff_ocs.tasks import client_data
  from tff_ocs.tasks import femnist

  if source == 'tff':
    # Not by femnist.load_tff, which would download what is missing.
    pool = client_data.SqlClientData(
      pathlib.Path(cache_dir) / femnist.DATABASE,
      'digits_only_train',
      parse=None,  # No example is read.
    )
    pools = {
      number: femnist.unbalance(
        pool, femnist.find_unbalancing(pool.num_examples, number)
      )
      for number in femnist.UNBALANCED_SETS
    }
    names = {g.experiment.data.split(', unbalanced')[0] for g in of_femnist}
    name = f'digits in {femnist.DATABASE}, {len(pool.client_ids)} writers'
    if len(names) == 1:
      (name,) = names
  else:
    load = {
      'authors': functools.partial(femnist.load_authors, data_dir=cache_dir),
      'bundled': femnist.load_bundled,
      'synthetic': femnist.load_synthetic,
    }[source]
    tasks = {
      number: load(seed=0, unbalanced_set=number)
      for number in femnist.UNBALANCED_SETS
    }
    pools = {number: task.train for number, task in tasks.items()}
    name = tasks[1].data_name.split(', set 1')[0]
  of_set = {
    number: np.array(list(pool.num_examples.values()))
    for number, pool in pools.items()
  }
  for group in of_femnist:
    _check_same_data(group, of_set)
  # A file in TFF's format need not hold TFF's data: its name says what it is.
  named = '' if source == 'tff' else f'; source: {source}'
  caption = (
    f'Data: {name}{named}. Large: with more examples than the average client.'
  )
  return of_set, caption


def _check_same_data(group, of_set):
  for number, sizes in of_set.items():
    if group.experiment.name != f'FEMNIST set {number}':
      continue
    found = len(sizes), int(sizes.sum())
    recorded = tuple(
      group.settings.get(name) for name in ('pool_clients', 'pool_examples')
    )
    if found != recorded:
      raise runs.RunsError(
        f'{group.runs[0].path} was trained on {recorded[0]} clients with'
        f' {recorded[1]} examples, but set {number} has {found[0]} with'
        f' {found[1]} here: it is other data.'
      )


def plot_sizes(
  of_set: Mapping[int, np.ndarray],
  paths: Sequence[Union[str, os.PathLike]],
  *,
  caption: str,
) -> None:
  """Draws a histogram for each of the sets."""
  largest = max(sizes.max() for sizes in of_set.values())
  width = max(1, round(largest / _NUM_BINS))
  bins = np.arange(0.5, largest + width + 0.5, width)
  with style.context(panels.STYLE):
    fig = figure.Figure(figsize=(7.0, 1.9), layout='constrained')
    axes = fig.subplots(1, len(of_set), sharex=True, sharey=True)
    for axis, (number, sizes) in zip(axes, of_set.items()):
      axis.hist(sizes, bins, color='#0072B2')
      # There are hundreds of small clients, but few large ones of each size.
      axis.set_yscale('log')
      axis.set_ylim(bottom=0.7)
      axis.set_title(
        f'Data set {number}: {len(sizes):,} clients, {sizes.sum():,} examples'
      )
      axis.set_xlabel('Examples of a client')
      axis.yaxis.set_minor_locator(ticker.NullLocator())
      is_large = sizes > sizes.mean()
      axis.text(
        0.5,
        0.95,
        f'large clients: {100 * is_large.mean():.1f} %, with\n'
        f'{100 * sizes[is_large].sum() / sizes.sum():.1f} % of the examples',
        transform=axis.transAxes,
        ha='center',
        va='top',
      )
    axes[0].set_ylabel('Clients')
    panels.add_caption(fig, caption)
    panels.save(fig, paths)
