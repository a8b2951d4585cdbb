"""Runs docs/plug_in.ipynb as a reader would, and checks what it shows."""

import pathlib
import re
import time
from typing import NamedTuple

import nbformat
import psutil
import pytest

from tests import notebooks

PATH = pathlib.Path(__file__).parents[1] / 'docs' / 'plug_in.ipynb'


@pytest.fixture(scope='module')
def published():
  return nbformat.read(PATH, as_version=4)


class Execution(NamedTuple):
  """The executed notebook, and the names of its processes."""

  notebook: nbformat.NotebookNode
  processes: dict[psutil.Process, str]


@pytest.fixture(scope='module')
def execution():
  processes = {}

  def remember(pid):
    kernel = psutil.Process(pid)
    for process in (kernel, *kernel.children(recursive=True)):
      processes[process] = process.name()

  notebook = nbformat.read(PATH, as_version=4)
  for cell in _code(notebook):
    cell.update(outputs=[], execution_count=None)
  notebooks.run(notebook, PATH.parent, remember)
  return Execution(notebook, processes)


def _code(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def _shown(notebook):
  """Returns the text and the number of pictures of each cell of code."""
  shown = []
  for cell in _code(notebook):
    texts, num_pictures = [], 0
    for output in cell.outputs:
      data = output.get('data', {})
      texts.append(output.get('text') or data['text/plain'])
      num_pictures += 'image/png' in data
    shown.append((''.join(texts), num_pictures))
  return shown


def test_no_process_is_left_behind(execution):
  assert 'worker_binary' in execution.processes.values()
  deadline = time.monotonic() + 60
  for process in execution.processes:
    # A zombie has ended, too.
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
      assert time.monotonic() < deadline, process
      time.sleep(0.05)


def test_published_outputs_match_this_code(published, execution):
  # Numbers and their widths may differ: another processor rounds differently.
  def words(notebook):
    return [
      (re.sub(r'[\s\d.]+', ' ', text), num_pictures)
      for text, num_pictures in _shown(notebook)
    ]

  assert words(published) == words(execution.notebook)
  assert [num for _, num in _shown(published) if num] == [1, 1, 1]
  counts = [cell.execution_count for cell in _code(published)]
  assert counts == list(range(1, len(counts) + 1))


def test_fewer_bits_and_the_same_accuracy(published, execution):
  for notebook in (published, execution.notebook):
    (text,) = [text for text, _ in _shown(notebook) if 'of full' in text]
    accuracy, of_full = {}, {}
    for line in text.splitlines()[1:]:
      cells = line[18:].replace('%', '').split()
      accuracy[line[:18].strip()] = float(cells[0])
      of_full[line[:18].strip()] = float(cells[2])
    assert of_full['full participation'] == 100
    # 19 % are expected. More than 40 %, which is 76 of 12 x 16 clients where 36
    # are expected, send with a probability below 1e-7 (Bernstein's inequality).
    assert 0 < of_full['AOCS, m=3'] < 40
    assert accuracy['AOCS, m=3'] > accuracy['full participation'] - 15
    assert accuracy['full participation'] > 80


def test_probabilities_in_numpy_are_those_of_tff(published, execution):
  for notebook in (published, execution.notebook):
    (text,) = [text for text, _ in _shown(notebook) if 'Sum of p' in text]
    in_numpy, in_tff = map(float, re.findall(r'\d\.\d+', text))
    assert in_numpy == pytest.approx(in_tff, abs=0.002)


def test_nothing_but_results_is_shown(published, execution):
  for notebook in (published, execution.notebook):
    for cell in _code(notebook):
      for output in cell.outputs:
        assert output.get('name') != 'stderr', output.text
    for text, _ in _shown(notebook):
      assert not re.search(r'warning|(^|\s)/\w+/', text, re.IGNORECASE), text
