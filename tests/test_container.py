"""Tests of the Containerfile, without an engine, and of tools/make_venv.sh.

CI runs `make venv` itself, which takes minutes.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def read_steps():
  """Returns pairs of an instruction and its arguments."""
  text = (ROOT / 'Containerfile').read_text()
  lines = [line for line in text.splitlines() if not line.startswith('#')]
  joined = '\n'.join(lines).replace('\\\n', ' ')
  return [line.split(' ', 1) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope='module')
def prefix(tmp_path_factory):
  """A folder in which the COPY steps were run."""
  folder = tmp_path_factory.mktemp('container') / 'work'
  folder.mkdir()
  for instruction, arguments in read_steps():
    if instruction != 'COPY':
      continue
    *sources, target = arguments.split()
    for source in sources:
      path = ROOT / source
      if path.is_dir():
        shutil.copytree(
          path,
          folder / target,
          ignore=shutil.ignore_patterns('__pycache__'),
        )
      else:
        (folder / target).mkdir(exist_ok=True)
        shutil.copy(path, folder / target)
  return folder


def test_steps_are_those_of_a_complete_image():
  steps = read_steps()
  instructions = [instruction for instruction, _ in steps]
  assert instructions[0] == 'FROM' and instructions[-1] == 'CMD'
  assert re.fullmatch(r'docker.io/library/python:3\.11-slim-\w+', steps[0][1])
  # Nothing is installed as root but packages of the distribution.
  installs = [i for i, step in enumerate(steps) if step == ['RUN', 'make venv']]
  assert len(installs) == 1
  assert instructions.index('USER') < installs[0]
  assert instructions.index('WORKDIR') < instructions.index('COPY')
  copied = max(i for i, name in enumerate(instructions) if name == 'COPY')
  assert copied < installs[0]
  # The shell understands each command.
  for instruction, arguments in steps:
    if instruction == 'RUN':
      subprocess.run(['/bin/sh', '-n', '-c', arguments], check=True)


def environment_without_make():
  """Returns the environment as it is outside of `make test`."""
  names = ('MAKEFLAGS', 'MAKELEVEL', 'MFLAGS')
  return {k: v for k, v in os.environ.items() if k not in names}


def test_make_venv_finds_what_it_needs(prefix):
  (venv,) = (
    a for i, a in read_steps() if i == 'RUN' and 'make' == a.split()[0]
  )
  shown = subprocess.run(
    [*shlex.split(venv), '--dry-run'],
    cwd=prefix,
    env=environment_without_make(),
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  assert shown.strip() == 'tools/make_venv.sh'
  assert os.access(prefix / 'tools' / 'make_venv.sh', os.X_OK)
  script = (prefix / 'tools' / 'make_venv.sh').read_text()
  assert '-r requirements.lock' in script
  # The packages and files that pyproject.toml names are there.
  project = (prefix / 'pyproject.toml').read_text()
  packages = re.search(r'include = \[(.*?)\]', project, re.DOTALL).group(1)
  for package in re.findall(r'"(\w+)"', packages):
    assert (prefix / package / '__init__.py').is_file()
  assert (prefix / re.search(r'readme = "(.*)"', project).group(1)).is_file()


def test_command_of_the_image_has_all_its_modules(prefix):
  (command,) = (json.loads(a) for i, a in read_steps() if i == 'CMD')
  shown = subprocess.run(
    [*command, '--dry-run', '--assume-old=.venv/stamp'],
    cwd=prefix,
    env=environment_without_make(),
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  _, option, module = shown.strip().splitlines()[-1].split()
  assert option == '-m'
  # From the copied folder, whatever else can be imported here.
  program = subprocess.run(
    [
      sys.executable,
      '-c',
      f'import {module} as m; import tff_ocs.records, plots;'
      'print(m.__file__, tff_ocs.__path__[0], plots.__path__[0])',
    ],
    cwd=prefix,
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
    capture_output=True,
    text=True,
    check=True,
  )
  for path in program.stdout.split():
    assert pathlib.Path(path).is_relative_to(prefix)


def make_venv(tmp_path, python3):
  """Runs the script where python3 is the only Python on PATH."""
  (tmp_path / 'tools').mkdir()
  shutil.copy(ROOT / 'tools' / 'make_venv.sh', tmp_path / 'tools')
  tools = tmp_path / 'bin'
  tools.mkdir()
  for name in ('bash', 'dirname', 'getconf', 'uname'):
    (tools / name).symlink_to(shutil.which(name))
  if python3 is not None:
    (tools / 'python3').write_text(f'#!{tools}/bash\necho "{python3}"\n')
    (tools / 'python3').chmod(0o755)
  result = subprocess.run(
    [str(tmp_path / 'tools' / 'make_venv.sh')],
    env={'PATH': str(tools)},
    capture_output=True,
    text=True,
  )
  assert result.returncode == 1
  assert not (tmp_path / '.venv').exists()
  return result.stderr


@pytest.mark.parametrize('version', ['Python 3.12.1', 'Python 3.14.0', None])
def test_newer_pythons_are_refused_in_one_line_with_the_ways_out(
  tmp_path, version
):
  message = make_venv(tmp_path, version)
  assert message.startswith('error: TFF 0.87.0 needs Python 3.9, 3.10 or 3.11')
  assert len(message.splitlines()) == 1
  assert (version is None) == ('python3 is' not in message)
  assert version is None or version in message
  for way in ('pyenv install 3.11', 'uv python install 3.11', 'conda create'):
    assert way in message
  assert 'PYTHON_BIN=' in message
