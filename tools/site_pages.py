"""Collects the pages of the site; a hook of mkdocs, see mkdocs.yml.

The site has the layout of the repository, so that the links between README,
docs/, results/ and benchmarks/ work both here and on GitHub. A page of the API
reference is added for each public module of the library.
"""

import pathlib
import re

from mkdocs.structure.files import File
from mkdocs.structure.files import Files

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGES = (
  'README.md',
  'docs/*.md',
  'results/*.md',
  'benchmarks/*.md',
  'CONTRIBUTING.md',
  'CHANGELOG.md',
)
_LINK = re.compile(r'\]\(([^)\s#]+)')


def on_config(config):
  """Puts the guides in the order of README and lists the API by module."""
  guides = sorted(
    (path.relative_to(_ROOT).as_posix() for path in _ROOT.glob('docs/*.md')),
    key=lambda guide: _position_in_readme(guide),
  )
  config.nav = [
    {'Home': 'README.md'},
    {'Guides': guides},
    {'API': [{module: _api_page(module)} for module in public_modules()]},
    {'Results': 'results/README.md'},
    {'Benchmarks': 'benchmarks/RESULTS.md'},
    'CONTRIBUTING.md',
    'CHANGELOG.md',
  ]
  return config


def on_files(files, config):
  """Replaces the files of docs/ by the pages and the files they link to."""
  pages = [path for pattern in _PAGES for path in sorted(_ROOT.glob(pattern))]
  paths = dict.fromkeys(pages)
  for page in pages:
    for link in _LINK.findall(page.read_text('utf-8')):
      target = (page.parent / link).resolve()
      if target.is_file() and target.is_relative_to(_ROOT):
        paths.setdefault(target)
  collected = [f for f in files if f.generated_by]
  for path in paths:
    collected.append(
      File.generated(
        config, path.relative_to(_ROOT).as_posix(), abs_src_path=str(path)
      )
    )
  for module in public_modules():
    content = f'# {module}\n\n::: {module}\n'
    collected.append(File.generated(config, _api_page(module), content=content))
  return Files(collected)


def public_modules():
  """Lists the library's modules without a leading underscore, by name."""
  modules = []
  for path in sorted(_ROOT.glob('tff_ocs/**/*.py')):
    parts = path.relative_to(_ROOT).with_suffix('').parts
    if parts[-1] == '__init__':
      parts = parts[:-1]
    if not any(part.startswith('_') for part in parts):
      modules.append('.'.join(parts))
  return sorted(modules)


def _api_page(module):
  return f'api/{module}.md'


def _position_in_readme(guide):
  position = (_ROOT / 'README.md').read_text('utf-8').find(f'({guide}')
  return (position < 0, position, guide)
