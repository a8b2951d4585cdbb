"""Runs what the README shows."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text()


def test_python_snippets_run(capsys):
  snippets = re.findall(r'```python\n(.*?)```', README, re.DOTALL)
  assert snippets
  for snippet in snippets:
    exec(compile(snippet, 'README.md', 'exec'), {})
  shown = capsys.readouterr().out
  # One line of metrics for each of the three rounds.
  assert shown.count("'uplink_bits'") == 3
  assert shown.count("('cohort_size', 16)") == 3


def test_commands_name_what_is_there():
  makefile = (ROOT / 'Makefile').read_text()
  for target in re.findall(r'\bmake (\w+)\b', README):
    assert target in ('targets',) or f'\n{target}:' in makefile
  for module in re.findall(r'-m ([\w.]+)', README):
    path = ROOT / module.replace('.', '/')
    assert module == 'venv' or path.with_suffix('.py').exists()


def test_pictures_are_there():
  for path in re.findall(r'!\[[^]]*\]\(([^)]*)\)', README):
    assert (ROOT / path).is_file()
