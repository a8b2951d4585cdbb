"""Tests of functions of the user's own files."""

import hashlib

import pytest

from experiments.runs import user_code

SOURCE = """
import helper_of_user

def build(m):
  return helper_of_user.double(m)

def fails(m):
  return m / 0

number = 3
"""


@pytest.fixture
def file(tmp_path):
  (tmp_path / 'helper_of_user.py').write_text(
    'def double(m):\n  return 2 * m\n'
  )
  path = tmp_path / 'mine.py'
  path.write_text(SOURCE)
  return path


def test_function_is_called_and_may_import_its_neighbours(file):
  assert user_code.call('sampling', f'{file}:build', 21) == 42


def test_setting_has_the_digest_and_no_folder(file, tmp_path):
  digest = hashlib.sha256(file.read_bytes()).hexdigest()
  expected = f'mine.py:build@sha256:{digest}'
  assert user_code.describe('sampling', f'{file}:build') == expected
  file.write_text(SOURCE + '#')
  assert user_code.describe('sampling', f'{file}:build') != expected


@pytest.mark.parametrize(
  ('value', 'expected'),
  [
    ('a.py:f', True),
    ('some/folder/a.py:load_2', True),
    ('aocs', False),
    ('a.py', False),
    ('a.py:', False),
    ('a.py:2', False),
    ('a.txt:f', False),
  ],
)
def test_references_are_told_from_names(value, expected):
  assert user_code.is_reference(value) == expected


@pytest.mark.parametrize(
  ('function', 'source', 'message'),
  [
    ('fails', SOURCE, 'line 8, ZeroDivisionError: division by zero'),
    ('number', SOURCE, 'mine.py has no function number'),
    ('absent', SOURCE, 'mine.py has no function absent'),
    ('f', 'import no_such_module', 'line 1, ModuleNotFoundError: No module'),
    ('f', 'x = 1\ny = = 2', 'line 2, SyntaxError: invalid syntax'),
  ],
)
def test_faults_are_reported_with_their_line(file, function, source, message):
  file.write_text(source)
  with pytest.raises(user_code.UserCodeError, match=message) as error:
    user_code.call('task', f'{file}:{function}', 1)
  assert str(error.value).startswith(f'--task={file}:{function}:')
  assert len(str(error.value).splitlines()) == 1


def test_line_is_that_of_the_file_that_the_flag_names(file, monkeypatch):
  monkeypatch.chdir(file.parent)
  with pytest.raises(user_code.UserCodeError, match=':fails: line 8, Zero'):
    user_code.call('sampling', 'mine.py:fails', 1)
  (file.parent / 'broken_neighbour.py').write_text('(')
  file.write_text('\n\nimport broken_neighbour')
  with pytest.raises(user_code.UserCodeError, match=':f: line 3, SyntaxError'):
    user_code.call('sampling', 'mine.py:f', 1)


def test_missing_files_and_other_forms_are_reported(tmp_path):
  with pytest.raises(user_code.UserCodeError, match='there is no file'):
    user_code.locate('task', f'{tmp_path}/none.py:f')
  with pytest.raises(user_code.UserCodeError, match='PATH.py:FUNCTION'):
    user_code.locate('task', 'none.py')
  with pytest.raises(user_code.UserCodeError, match='found a URL'):
    user_code.locate('task', 'https://a/none.py:f')
