"""Runs and checks what README, guides and results show.

Python snippets are run, in the order of the page. A block of `text` is what the
one before it prints; `...` stands for anything. The flags of commands `python
-m` are checked by the programs that they name.
"""

import contextlib
import doctest
import io
import pathlib
import re
import subprocess

import pytest
import tensorflow_federated as tff

from tests import command_lines

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / 'README.md', *sorted(ROOT.glob('docs/*.md'))]
PAGES.append(ROOT / 'results' / 'README.md')
BLOCK = re.compile(r'^```(\w*)\n(.*?)^```$', re.DOTALL | re.MULTILINE)
LINK = re.compile(r'\]\(([^)\s]+)\)')
each_page = pytest.mark.parametrize(
  'page', PAGES, ids=lambda page: str(page.relative_to(ROOT))
)


def _python_snippets(page):
  """Pairs of code and what the page says that it prints, or `None`."""
  text = page.read_text()
  snippets = []
  for block in BLOCK.finditer(text):
    if block.group(1) == 'python':
      # At its own line, for tracebacks.
      lines_before = text.count('\n', 0, block.start(2))
      snippets.append(['\n' * lines_before + block.group(2), None])
    elif block.group(1) == 'text':
      snippets[-1][1] = block.group(2)
  return snippets


class _NoContext(tff.framework.SyncContext):
  """Hides the tests' own context: a page has to enter its own."""

  def invoke(self, comp, arg):
    raise RuntimeError('The page runs a computation outside of its context.')


def _run(page):
  """Runs a page's snippets in one namespace, and returns what they print."""
  namespace, printed = {'__name__': '__main__'}, []
  with tff.framework.get_context_stack().install(_NoContext()):
    for code, expected in _python_snippets(page):
      output = io.StringIO()
      with contextlib.redirect_stdout(output):
        exec(compile(code, str(page), 'exec'), namespace)
      printed.append(output.getvalue())
      if expected is not None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(
          expected, printed[-1], flags
        ), f'{page.name} shows\n{expected}but prints\n{printed[-1]}'
  return ''.join(printed)


@pytest.mark.parametrize(
  'page',
  [p for p in PAGES if _python_snippets(p) and p.name != 'README.md'],
  ids=lambda page: page.name,
)
def test_python_snippets(page, monkeypatch):
  monkeypatch.chdir(ROOT)
  _run(page)


def test_python_snippet_of_readme():
  shown = _run(ROOT / 'README.md')
  # One line of metrics for each of the three rounds.
  assert shown.count("'uplink_bits'") == 3
  assert shown.count("('cohort_size', 16)") == 3


def _commands(page, folder):
  """The arguments of Python in the commands of a page.

  A shell finds them, so that loops and variables count, in which nothing but
  this Python is there to be called.
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


def test_commands_have_the_flags_that_they_show(tmp_path):
  commands = []
  for index, page in enumerate(PAGES):
    folder = tmp_path / str(index)
    folder.mkdir()
    found = [
      command
      for command in _commands(page, folder)
      if command[:2] != ['-m', 'venv']
    ]
    commands += [(page.name, command) for command in found]
    for command in found:
      if '--' in command:
        # Flags for each run of a sweep or a search.
        (experiment,) = (
          flag.split('=')[1]
          for flag in command
          if flag.startswith('--experiment=')
        )
        binary = f'experiments.{experiment.split("_")[0]}'
        own_flags = command[command.index('--') + 1 :]
        commands.append((page.name, ['-m', binary, *own_flags]))
  # At least these programs are shown.
  assert {command[1] for _, command in commands} >= {
    'experiments.femnist',
    'experiments.shakespeare',
    'experiments.cifar100',
    'experiments.sweep',
    'experiments.tune',
    'plots.figures',
    'plots.summary',
    'tff_ocs.worker',
  }
  errors = command_lines.find_errors([command for _, command in commands])
  for (name, command), error in zip(commands, errors):
    assert error is None, f'{name}: {" ".join(command)}: {error}'


def test_wrong_flags_are_found():
  errors = command_lines.find_errors(
    [
      ['-m', 'experiments.femnist', '--sampling=none'],
      ['-m', 'experiments.sweep', '--experiment=femnist_1', '--no_such_flag'],
      ['-m', 'tff_ocs.worker', '--address=8000'],
      ['-m', 'plots.no_such_module'],
      ['-m', 'plots.summary', '--results_dir=runs'],
    ]
  )
  assert errors.pop() is None
  assert all(errors)


@each_page
def test_names_are_of_what_is_there(page):
  text = page.read_text()
  makefile = (ROOT / 'Makefile').read_text()
  for target in re.findall(r'(?:^|`)make (\w+)', text, re.MULTILINE):
    assert f'\n{target}:' in makefile
  for module in re.findall(r'-m ([\w.]+)', text):
    path = ROOT / module.replace('.', '/')
    assert module == 'venv' or path.with_suffix('.py').exists()


def _anchors(page):
  """What GitHub makes of the headings of a page."""
  headings = re.findall(r'^#+ (.*)$', page.read_text(), re.MULTILINE)
  return [
    re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
    for heading in headings
  ]


@each_page
def test_links_and_pictures_are_there(page):
  for link in LINK.findall(page.read_text()):
    if '://' in link:
      continue
    path, _, anchor = link.partition('#')
    target = page.parent / path if path else page
    assert target.exists(), link
    assert not anchor or anchor in _anchors(target), link
