"""Draws everything in results/ again from the runs that are there.

  python -m tools.results

It writes the figures, summary, claims and tables of results/, and the verdicts
in results/README.md. `make results` calls it. Figure 2 needs the data set:
`make results CACHE=DIR`, with the folder of emnist_all.sqlite, draws it too.
"""

import contextlib
import io
import pathlib
import sys
from typing import Optional

from PIL import Image

from experiments import participation
from experiments import tune
from plots import claims
from plots import comparison
from plots import figures
from plots import paper_claims
from plots import summary
from plots import theory
from tff_ocs.records import files
from tff_ocs.records import runs

ROOT = pathlib.Path(__file__).parents[1]
_ACCURACIES = (0.35, 0.4, 0.85, 0.9)
_BEGIN = '<!-- Written by make results. -->\n'
_END = '<!-- End. -->\n'


def redraw(
  results: pathlib.Path,
  output: pathlib.Path,
  cache_dir: Optional[str] = None,
) -> None:
  """Draws everything, from the runs in a folder into another or the same.

  Args:
    results: The folder to read, in the layout of results/.
    output: The folder to write.
    cache_dir: The folder of emnist_all.sqlite; `None` leaves figure 2 as it is.
  """
  of_runs = str(results / 'runs')
  # The tables are long, and written to files.
  with contextlib.redirect_stdout(io.StringIO()):
    figures.draw_figures(
      results_dir=of_runs,
      figure='all',
      output_dir=str(output / 'figures'),
      cache_dir=cache_dir,
      authors_curves=str(results / 'authors_code_curves.csv'),
      formats=['png'],
    )
    theory.draw(str(results / 'theory'), str(output / 'figures'))
    summary.write_summary(
      results_dir=of_runs, accuracies=_ACCURACIES, output_dir=str(output)
    )
    judged = claims.write_claims(
      results_dir=of_runs,
      tuning_dir=str(results / 'tuning'),
      output_dir=str(output),
    )
    if (results / 'compare').exists():
      (output / 'compare').mkdir(parents=True, exist_ok=True)
      comparison.write_results(
        output / 'compare', comparison.read_results(results / 'compare')
      )
  redraw_participation(results / 'participation', output / 'participation')
  for path, table in claims.read_tuning(results / 'tuning', None).items():
    folder = output / path.parent.relative_to(results)
    folder.mkdir(parents=True, exist_ok=True)
    tune.write_results(
      folder, table, tune.published_of(table), tune.caption_of(table)
    )
  # Pages show the PNGs, and git should not hold each figure twice.
  for path in output.rglob('*.pdf'):
    path.unlink()
  text = (results / 'README.md').read_text(encoding='utf-8')
  with files.replacing(output / 'README.md') as partial:
    partial.write_text(replace_verdicts(text, judged), encoding='utf-8')


def shrink(path: pathlib.Path) -> None:
  """Stores a PNG with a palette of 256 colours, in a third of the space.

  In the figures of results/, no channel of a pixel changes by more than 20 of
  255, and most do not change.
  """
  with Image.open(path) as drawn:
    if drawn.mode == 'P':
      return
    with_palette = drawn.convert('RGB').quantize(
      256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    )
    dpi = drawn.info['dpi']
  with files.replacing(path) as partial:
    with_palette.save(partial, format='PNG', optimize=True, dpi=dpi)


def redraw_participation(results: pathlib.Path, output: pathlib.Path) -> None:
  """Draws the comparison of numbers of participants from its runs.

  Args:
    results: The folder of the runs, all of one experiment.
    output: The folder to write.
  """
  groups, left_out = runs.find_groups(results)
  if left_out:
    sys.exit('error: ' + ' '.join(left_out))
  of_any_n = {
    group.experiment._replace(clients_per_round=0) for group in groups
  }
  if len(of_any_n) > 1:
    sys.exit(f'error: {results} must hold the runs of one experiment.')
  accuracies = {}
  for group in groups:
    n, m = group.experiment.clients_per_round, group.method.expected_clients
    numbers = n, n if m is None else int(m)
    if numbers in accuracies:
      sys.exit(
        f'error: {results} holds two kinds of runs with (n, m) = {numbers}.'
      )
    accuracies[numbers] = {
      run.settings.seed: participation.read_accuracy(run.path)
      for run in group.runs
    }
  seeds = sorted(set.intersection(*map(set, accuracies.values())))
  table = participation.tabulate(
    {
      numbers: [of_seeds[seed] for seed in seeds]
      for numbers, of_seeds in sorted(accuracies.items())
    }
  )
  caption = participation.caption_of(groups[0], len(seeds))
  output.mkdir(parents=True, exist_ok=True)
  participation.write_results(output, table, caption)


def replace_verdicts(text: str, judged: list[paper_claims.Judged]) -> str:
  """The text of results/README.md with the verdicts of these claims."""
  before, rest = text.split(_BEGIN)
  _, after = rest.split(_END)
  verdicts = claims.format_verdicts(judged)
  return f'{before}{_BEGIN}\n{verdicts}\n{_END}{after}'


if __name__ == '__main__':
  if len(sys.argv) > 2:
    sys.exit('usage: python -m tools.results [CACHE_DIR]')
  redraw(ROOT / 'results', ROOT / 'results', *sys.argv[1:])
  for png in sorted((ROOT / 'results').rglob('*.png')):
    shrink(png)
  print('results/ is redrawn.')
