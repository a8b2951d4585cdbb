"""Tables in Markdown."""

from collections.abc import Sequence
from typing import Optional

import pandas as pd

NONE = '–'


def format_markdown(
  title: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
  """Formats a table, with a line above it.

  Args:
    title: The line above the table, without formatting.
    header: The names of the columns.
    rows: The cells of each row. All but the first are aligned to the right.

  Returns:
    The text, in Markdown.
  """
  rule = ['---'] + ['---:'] * (len(header) - 1)
  lines = [
    f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in cells)} |'
    for cells in (header, rule, *rows)
  ]
  return '\n'.join([f'**{title}**', '', *lines]) + '\n'


def format_percent(mean: float, std: Optional[float]) -> str:
  """A mean and a standard deviation over seeds as '96.5 ± 0.2', in per cent.

  Args:
    mean: The mean, as a fraction.
    std: The standard deviation, as a fraction; `None` or NaN for a single seed.

  Returns:
    The text.
  """
  deviation = '' if pd.isna(std) else f' ± {100 * std:.1f}'
  return f'{100 * mean:.1f}{deviation}'
