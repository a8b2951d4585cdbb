"""Runs and checks the commands and snippets of README, guides and results.

The Python snippets of a page are run in their order. A block of `text` shows
the output of the snippet before it; `...` stands for any text. The programs
themselves check the flags of the commands `python -m`.
"""

import contextlib
import doctest
import io
import pathlib
import re
import shlex
import subprocess

import pytest
import tensorflow_federated as tff
from matplotlib import image

from experiments import custom
from experiments import estimate
from tests import command_lines
from tests.experiments import linear

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
  *ROOT.glob('*.md'),
  *sorted(ROOT.glob('docs/*.md')),
  ROOT / 'results' / 'README.md',
  ROOT / 'benchmarks' / 'RESULTS.md',
]
GUIDE = ROOT / 'docs' / 'your_data.md'
# The programs whose commands in the guide are run, not only checked.
RUN_IN_GUIDE = {'experiments.custom': custom, 'experiments.estimate': estimate}
BLOCK = re.compile(r'^```(\w*)\n(.*?)^```$', re.DOTALL | re.MULTILINE)
LINK = re.compile(r'\]\(([^)\s]+)\)')
# Files and folders of the project, as a page names them in code.
PATH = re.compile(r'`((?:[\w.-]+/)+[\w.-]*)`')
# Paths in run folders, environments and the like, which git does not have.
NOT_IN_GIT = ('.venv/', 'events/', 'runs/', 'demo_output/')
# Words and phrases that make a reader stumble.
OBSCURE = re.compile(
  r'\btells\b|\b(?:go|goes) with(?:out)?\b|\bLikewise\.|\bof chance\b'
  r'|\bbeside\b|(?:^\s*# |""")[W]hat\b(?!.*\?)',
  re.MULTILINE,
)
each_page = pytest.mark.parametrize(
  'page', PAGES, ids=lambda page: str(page.relative_to(ROOT))
)


def _python_snippets(page):
  """Returns pairs of code and the output that the page shows, or `None`."""
  text = page.read_text()
  snippets = []
  for block in BLOCK.finditer(text):
    if block.group(1) == 'python':
      # Blank lines in front give tracebacks the page's line numbers.
      lines_before = text.count('\n', 0, block.start(2))
      snippets.append(['\n' * lines_before + block.group(2), None])
    elif block.group(1) == 'text':
      snippets[-1][1] = block.group(2)
  return snippets


class _NoContext(tff.framework.SyncContext):
  """Hides the tests' own context: a page has to enter its own."""

  def invoke(self, comp, arg):
    raise RuntimeError('The page runs a computation outside of its context.')


@pytest.mark.parametrize(
  'page',
  # The test of the wheel runs README's snippet, and another one the guide,
  # which writes files.
  [
    page
    for page in PAGES
    if _python_snippets(page) and page.name not in ('README.md', GUIDE.name)
  ],
  ids=lambda page: page.name,
)
def test_python_snippets(page, monkeypatch):
  monkeypatch.chdir(ROOT)
  namespace = {'__name__': '__main__'}
  with tff.framework.get_context_stack().install(_NoContext()):
    for code, expected in _python_snippets(page):
      output = io.StringIO()
      with contextlib.redirect_stdout(output):
        exec(compile(code, str(page), 'exec'), namespace)
      if expected is not None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(
          expected, output.getvalue(), flags
        ), f'{page.name} shows\n{expected}but prints\n{output.getvalue()}'


def _run_block(language, code, namespace):
  """Runs the code, or the programs, of a block; returns what it prints."""
  output = io.StringIO()
  with contextlib.redirect_stdout(output):
    if language == 'python':
      exec(compile(code, str(GUIDE), 'exec'), namespace)
    for line in code.replace('\\\n', ' ').splitlines():
      module = RUN_IN_GUIDE.get(line.removeprefix('python -m ').split(' ')[0])
      if not language and module is not None:
        module.run(linear.parse(module, *shlex.split(line)[3:]))
  return output.getvalue()


def test_guide_runs_from_the_table_to_the_trained_model(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  namespace = {'__name__': '__main__'}
  printed, num_compared = None, 0
  with tff.framework.get_context_stack().install(_NoContext()):
    for language, code in BLOCK.findall(GUIDE.read_text()):
      if language != 'text':
        printed = _run_block(language, code, namespace)
        continue
      flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
      assert doctest.OutputChecker().check_output(code, printed, flags), (
        f'The guide shows\n{code}but prints\n{printed}'
      )
      num_compared += 1
  assert num_compared == 4
  drawn, shown = (
    image.imread(path)
    for path in ('estimate/estimate.png', ROOT / 'docs/images/estimate.png')
  )
  assert drawn.shape == shown.shape
  # Nearly all pixels are the same; numbers may differ by a little.
  assert (drawn != shown).any(axis=-1).mean() < 0.001
  assert (tmp_path / 'runs/cars_aocs_n16_m9_seed0/weights.npz').exists()


def _commands(page, folder):
  """Returns the arguments of Python in the commands of a page.

  A shell runs the blocks, so that loops and variables work. It can call only a
  stub of Python, which records its arguments.
  """
  stub = folder / 'bin' / 'python'
  stub.parent.mkdir()
  stub.write_text('#!/bin/sh\n{ printf "%s\\n" "$@"; echo; } >> "$CALLS"\n')
  stub.chmod(0o755)
  (folder / '.venv' / 'bin').mkdir(parents=True)
  for name, target in (
    ('bin/python3.11', stub),
    ('.venv/bin/python', stub),
    ('.venv/bin/pip', '/bin/true'),
  ):
    (folder / name).symlink_to(target)
  (folder / 'experiments').symlink_to(ROOT / 'experiments')
  calls = folder / 'calls'
  calls.touch()
  for language, block in BLOCK.findall(page.read_text()):
    if language == 'bash' or (not language and 'python' in block):
      subprocess.run(
        ['/bin/bash', '-c', 'command_not_found_handle() { :; }\n' + block],
        cwd=folder,
        env={'PATH': str(stub.parent), 'CALLS': str(calls)},
        check=True,
      )
  records = calls.read_text().split('\n\n')[:-1]
  return [record.split('\n') for record in records]


def _own_flags_command(command):
  """Returns the experiment's command with the flags behind `--`."""
  named = [
    flag.split('=')[1] for flag in command if flag.startswith('--experiment=')
  ]
  # experiments.compare has no such flag: its runs are those of FEMNIST.
  experiment = named[0] if named else 'femnist'
  own_flags = command[command.index('--') + 1 :]
  return ['-m', f'experiments.{experiment.split("_")[0]}', *own_flags]


SINGLE_RUNS = [
  f'experiments.{name}'
  for name in ('femnist', 'shakespeare', 'cifar100', 'custom')
]
# Commands with an error, to see that it is found.
WRONG_COMMANDS = [
  ('-m', 'experiments.femnist', '--sampling=none'),
  ('-m', 'experiments.sweep', '--experiment=femnist_1', '--no_such_flag'),
  ('-m', 'tff_ocs.worker', '--address=8000'),
  ('-m', 'plots.no_such_module'),
]


def test_commands_have_the_flags_that_they_show(tmp_path):
  commands = {}
  for index, page in enumerate(PAGES):
    folder = tmp_path / str(index)
    folder.mkdir()
    for command in _commands(page, folder):
      if command[1] not in ('venv', 'pytest'):
        commands[tuple(command)] = page.name
      if '--' in command:
        commands[tuple(_own_flags_command(command))] = page.name
  # At least these programs are shown.
  assert {command[1] for command in commands} >= {
    'experiments.femnist',
    'experiments.shakespeare',
    'experiments.cifar100',
    'experiments.sweep',
    'experiments.tune',
    'plots.clients',
    'plots.figures',
    'plots.summary',
    'tff_ocs.worker',
  }
  # All in one process, which has to import TensorFlow.
  errors = command_lines.find_errors([*commands, *WRONG_COMMANDS])
  for (command, name), error in zip(commands.items(), errors):
    assert error is None, f'{name}: {" ".join(command)}: {error}'
  assert all(errors[len(commands) :])


@each_page
def test_single_runs_and_sweeps_have_folders_of_their_own(page, tmp_path):
  # Figures and claims refuse a folder where runs of one method differ, and a
  # run does not continue another one.
  of_single, of_sweeps = set(), set()
  for _, module, *arguments in _commands(page, tmp_path):
    own = arguments[: arguments.index('--')] if '--' in arguments else arguments
    (folder,) = [
      argument.split('=')[1]
      for argument in own
      if argument.startswith('--output_dir=')
    ] or ['runs']
    if module in SINGLE_RUNS:
      of_single.add(folder)
    elif module == 'experiments.sweep':
      of_sweeps.add(folder)
  assert not of_single & of_sweeps


@each_page
def test_named_targets_modules_and_files_exist(page):
  text = page.read_text()
  makefile = (ROOT / 'Makefile').read_text()
  blocks = '\n'.join(block for _, block in BLOCK.findall(text))
  for target in re.findall(r'`make (\w+)', text) + re.findall(
    '^make (\\w+)', blocks, re.MULTILINE
  ):
    assert f'\n{target}:' in makefile
  for module in re.findall(r'-m ([\w.]+)', text):
    path = ROOT / module.replace('.', '/')
    assert module in ('venv', 'pytest') or path.with_suffix('.py').exists()
  prose = BLOCK.sub('', text)
  for path in PATH.findall(prose):
    if not path.startswith(NOT_IN_GIT):
      # Relative to the page, to the project, or to one of its folders.
      places = (page.parent / path, ROOT / path, *ROOT.glob(f'*/{path}'))
      assert any(place.exists() for place in places), path


def _anchors(page):
  """Returns the anchors that GitHub makes of the headings of a page."""
  headings = re.findall(r'^#+ (.*)$', page.read_text(), re.MULTILINE)
  return [
    re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
    for heading in headings
  ]


@each_page
def test_links_and_pictures_exist(page):
  for link in LINK.findall(page.read_text()):
    if '://' in link:
      continue
    path, _, anchor = link.partition('#')
    target = page.parent / path if path else page
    assert target.exists(), link
    assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize(
  'folder',
  ['.', 'benchmarks', 'docs', 'examples', 'experiments', 'plots']
  + ['results', 'tests', 'tff_ocs', 'tools'],
)
def test_english_is_plain(folder):
  found = []
  files = (ROOT / folder).glob('*' if folder == '.' else '**/*')
  for path in sorted(files):
    if path.suffix in ('.cff', '.ipynb', '.md', '.py', '.sh'):
      text = path.read_text()
      for match in OBSCURE.finditer(text):
        line = text.count('\n', 0, match.start()) + 1
        found.append(
          f'{path.relative_to(ROOT)}:{line}: {match.group().strip()}'
        )
  assert not found, '\n'.join(found)
