"""Tables in Markdown."""

import pathlib
from collections.abc import Sequence

import pandas as pd

from tff_ocs.records import files

NONE = '–'


def format_markdown(
  title: str,
  header: Sequence[str],
  rows: Sequence[Sequence[str]],
  *,
  num_texts: int = 1,
) -> str:
  """A table in Markdown, with a line above it; numbers stand to the right.

  Args:
    title: The line above it.
    header: The names of the columns.
    rows: The cells.
    num_texts: How many of the first columns have text, which stands to the
      left.

  Returns:
    The table.
  """
  rule = ['---'] * num_texts + ['---:'] * (len(header) - num_texts)
  lines = [
    f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in cells)} |'
    for cells in (header, rule, *rows)
  ]
  return '\n'.join([f'**{title}**', '', *lines]) + '\n'


def format_percent(mean: float, std: float) -> str:
  """Fractions as '96.5 ± 0.2', in per cent; `std` is NaN for a single seed."""
  deviation = '' if pd.isna(std) else f' ± {100 * std:.1f}'
  return f'{100 * mean:.1f}{deviation}'


def shows_loss(table: pd.DataFrame) -> bool:
  """Whether the table tuning.csv is of a task with a loss but no accuracy."""
  return bool(
    table['holdout_accuracy_mean'].isna().all()
    and table['holdout_loss_mean'].notna().any()
  )


def write(path: pathlib.Path, table: pd.DataFrame, markdown: str) -> None:
  """Writes the numbers to `path`.csv and the formatted table to `path`.md."""
  with files.replacing(path.with_suffix('.csv')) as partial:
    table.to_csv(partial, index=False, lineterminator='\n')
  with files.replacing(path.with_suffix('.md')) as partial:
    partial.write_text(markdown, encoding='utf-8')
