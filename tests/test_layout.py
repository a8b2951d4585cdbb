"""Imports point down from floor to floor, and never in a circle."""

import ast
import collections
import graphlib
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
# From the bottom up.
FLOORS = (
  'tff_ocs',
  'programs',
  'plots',
  'experiments.theory',
  'experiments.runs',
  'experiments.campaigns',
  'experiments',
  'benchmarks',
)
PACKAGES = [floor for floor in FLOORS if '.' not in floor]


def imports_by_module():
  """The project's modules that each module imports, at its top or later."""
  modules = {}
  for package in PACKAGES:
    for path in (ROOT / package).rglob('*.py'):
      parts = path.relative_to(ROOT).with_suffix('').parts
      is_package = parts[-1] == '__init__'
      modules['.'.join(parts[:-1] if is_package else parts)] = path
  imports = collections.defaultdict(set)
  for name, path in modules.items():
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      targets = []
      if isinstance(node, ast.ImportFrom):
        for alias in node.names:
          full = f'{node.module}.{alias.name}'
          targets.append(full if full in modules else node.module)
      elif isinstance(node, ast.Import):
        targets += [alias.name for alias in node.names]
      imports[name] |= {t for t in targets if t in modules and t != name}
  return imports


def floor_of(module):
  return next(
    i
    for i, floor in enumerate(FLOORS)
    if module == floor or module.startswith(f'{floor}.')
  )


def test_no_module_imports_from_a_floor_above():
  for module, imported in imports_by_module().items():
    for other in imported:
      assert floor_of(other) <= floor_of(module), f'{module} imports {other}'


def test_runs_and_campaigns_do_not_draw():
  for module, imported in imports_by_module().items():
    if module.startswith(('experiments.runs', 'experiments.campaigns')):
      assert not any(other.startswith('plots') for other in imported), module


def test_no_modules_import_each_other_in_a_circle():
  order = list(graphlib.TopologicalSorter(imports_by_module()).static_order())
  assert len(order) > 80
