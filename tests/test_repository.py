"""Tests of the files about the repository: citation, changelog, CI, site."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml
from absl import flags

from experiments import reproduce
from tff_ocs import _version

ROOT = pathlib.Path(__file__).parents[1]


def read_yaml(path):
  return yaml.safe_load((ROOT / path).read_text('utf-8'))


def test_version_is_the_same_everywhere():
  assert re.fullmatch(r'\d+\.\d+\.\d+', _version.__version__)
  assert read_yaml('CITATION.cff')['version'] == _version.__version__
  headings = re.findall(
    r'^## \[(.*?)\] - (\S+)$', (ROOT / 'CHANGELOG.md').read_text(), re.MULTILINE
  )
  versions = [version for version, _ in headings]
  assert versions[0] == _version.__version__
  assert versions == sorted(
    versions, key=lambda v: [int(n) for n in v.split('.')], reverse=True
  )
  for version, date in headings:
    assert re.fullmatch(r'\d{4}-\d\d-\d\d', date) or (
      version == versions[0] and date == 'unreleased'
    )


def test_citation_has_the_keys_that_the_format_requires():
  # Required by the schema of the Citation File Format 1.2.0.
  citation = read_yaml('CITATION.cff')
  assert citation['cff-version'] == '1.2.0'
  assert citation['type'] == 'software'
  assert citation['license'] == 'Apache-2.0'
  for entry in (citation, citation['preferred-citation']):
    assert entry['title'] and isinstance(entry['title'], str)
    assert entry['authors']
    for author in entry['authors']:
      assert set(author) in ({'name'}, {'family-names', 'given-names'})
      assert all(isinstance(name, str) for name in author.values())
  assert isinstance(citation['message'], str)
  paper = citation['preferred-citation']
  assert paper['type'] == 'article'
  assert [a['family-names'] for a in paper['authors']] == [
    'Chen',
    'Horváth',
    'Richtárik',
  ]
  assert paper['year'] == 2022
  assert paper['journal'] == 'Transactions on Machine Learning Research'
  assert paper['url'] in (ROOT / 'README.md').read_text('utf-8')


def test_licence_is_apache_and_tff_is_attributed():
  licence = (ROOT / 'LICENSE').read_text()
  assert re.match(r'\s*Apache License\s+Version 2.0, January 2004', licence)
  assert licence.rstrip().endswith('limitations under the License.')
  notice = (ROOT / 'NOTICE').read_text()
  (path,) = re.findall(r'^(tff_ocs/\S+\.py) extends', notice, re.MULTILINE)
  assert (ROOT / path).exists()
  assert 'The TensorFlow Federated Authors' in notice


def test_workflow_runs_ci_on_each_python():
  workflow = read_yaml('.github/workflows/ci.yml')
  # YAML 1.1 reads the key `on` as true.
  assert set(workflow[True]) == {'push', 'pull_request'}
  (job,) = workflow['jobs'].values()
  assert job['runs-on'].startswith('ubuntu-')
  assert job['strategy']['matrix'] == {
    'python-version': ['3.9', '3.10', '3.11']
  }
  assert job['strategy']['fail-fast'] is False
  checkout, setup, run = job['steps']
  assert checkout['uses'].startswith('actions/checkout@v')
  assert setup['uses'].startswith('actions/setup-python@v')
  assert setup['with']['python-version'] == '${{ matrix.python-version }}'
  assert run['run'] == '.ci/run'
  assert run['env']['COVERAGE']
  # The interpreter that tools/make_venv.sh takes.
  assert run['env']['PYTHON_BIN'] == (
    f'${{{{ steps.{setup["id"]}.outputs.python-path }}}}'
  )
  assert 'PYTHON_BIN' in (ROOT / 'tools' / 'make_venv.sh').read_text()


def test_weekly_workflow_runs_the_smoke_test_of_the_reproduction():
  workflow = read_yaml('.github/workflows/smoke.yml')
  assert set(workflow[True]) == {'schedule', 'workflow_dispatch'}
  (job,) = workflow['jobs'].values()
  assert job['steps'][2]['run'] == 'make venv'
  script = job['steps'][3]['run']
  command, _, rest = script.partition('experiments.reproduce')[2].partition(
    '||'
  )
  # make would replace the exit status of the program by its own.
  assert rest.split('\n') == [' status=$?', 'test $status = 3', '']
  values = flags.FlagValues()
  reproduce.define_flags(values)
  values(['reproduce', *shlex.split(command)])
  assert values.scale == 'smoke'


def test_ci_calls_the_targets_that_the_makefile_has():
  script = (ROOT / '.ci' / 'run').read_text()
  targets = re.findall(r'^make (\w+)', script, re.MULTILINE)
  assert targets == ['lint', 'docs', 'test']
  assert '${COVERAGE:+PYTEST_ARGS=--cov}' in script
  shown = subprocess.run(
    ['make', '--dry-run', '--assume-old=.venv/stamp', *targets],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  for command in ('ruff check', 'ruff format --check', 'mypy', 'pytest'):
    assert f'-m {command}' in shown
  # With --quiet, mkdocs would not count the warnings.
  assert '-m mkdocs build --strict\n' in shown


def test_pre_commit_hooks_run_the_tools_of_make_lint():
  (repository,) = read_yaml('.pre-commit-config.yaml')['repos']
  assert repository['repo'] == 'local'
  makefile = (ROOT / 'Makefile').read_text()
  tools = []
  for hook in repository['hooks']:
    assert {'id', 'name', 'entry', 'language'} <= set(hook)
    python, _, tool, *_ = hook['entry'].split()
    assert python == '.venv/bin/python'
    assert f'$(PYTHON) -m {tool}' in makefile
    tools.append(tool)
  assert tools == ['ruff', 'ruff', 'mypy']


def build_site(root, folder):
  return subprocess.run(
    [sys.executable, '-m', 'mkdocs', 'build', '--strict']
    + ['--site-dir', str(folder)],
    cwd=root,
    env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'},
    capture_output=True,
    text=True,
  )


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  folder = tmp_path_factory.mktemp('site')
  built = build_site(ROOT, folder)
  assert built.returncode == 0, built.stdout + built.stderr
  return folder


def test_broken_links_and_docstrings_fail_the_build(tmp_path):
  for path in ('mkdocs.yml', 'tools/site_pages.py', 'docs/protocol.md'):
    (tmp_path / path).parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / path, tmp_path / path)
  (tmp_path / 'README.md').write_text(
    '# Home\n[a](docs/none.md) [b](docs/protocol.md#none)\n'
  )
  (tmp_path / 'tff_ocs').mkdir()
  (tmp_path / 'tff_ocs' / '__init__.py').write_text('"""A library."""\n')
  (tmp_path / 'tff_ocs' / 'sums.py').write_text(
    'def add(a):\n  """Adds.\n\n  Args:\n    b: A number.\n  """\n'
  )
  built = build_site(tmp_path, tmp_path / 'site')
  assert built.returncode != 0
  for warning in (
    "contains a link 'docs/none.md', but the target is not found",
    "contains a link 'docs/protocol.md#none', but the doc",
    "Parameter 'b' does not appear in the function signature",
  ):
    assert warning in built.stderr


def test_site_has_the_guides_and_all_public_modules(site):
  for guide in ROOT.glob('docs/*.md'):
    assert (site / 'docs' / guide.stem / 'index.html').exists()
  pages = {page.parent.name for page in site.glob('api/*/index.html')}
  modules = set()
  for path in ROOT.glob('tff_ocs/**/*.py'):
    parts = path.relative_to(ROOT).with_suffix('').parts
    module = '.'.join(part for part in parts if part != '__init__')
    if '._' not in module:
      modules.add(module)
  assert pages == modules
  schemes = (site / 'api' / 'tff_ocs.schemes' / 'index.html').read_text()
  # A signature and a docstring, and nothing that is private.
  assert 'id="tff_ocs.schemes.UniformSampling"' in schemes
  assert 'Algorithm 2' in schemes
  assert 'id="tff_ocs.schemes._' not in schemes


def test_site_loads_nothing_from_other_hosts(site):
  for page in site.rglob('*.html'):
    loaded = re.findall(
      r'<(?:script|img|iframe)[^>]*\ssrc="?([^"\s>]+)'
      r'|<link[^>]*\srel="?(?:stylesheet|preload|icon)[^>]*\shref="?([^"\s>]+)',
      page.read_text('utf-8'),
    )
    for source, href in loaded:
      assert not re.match(r'(https?:)?//', source or href), page


def test_git_ignores_the_default_folders_of_all_programs():
  found = {}
  for path in sorted(
    [*ROOT.glob('experiments/*.py'), *ROOT.glob('plots/*.py')]
  ):
    found |= {
      f'{name}/': path.name
      for name in re.findall(
        r"""['"]output_dir['"],\s*['"](\w+)['"]""", path.read_text('utf-8')
      )
    }
  assert {'compare/', 'figures/', 'tuning/'} <= set(found)
  ignored = set((ROOT / '.gitignore').read_text('utf-8').split())
  missing = {name for name in found if f'/{name}' not in ignored}
  assert not missing, {name: found[name] for name in missing}
