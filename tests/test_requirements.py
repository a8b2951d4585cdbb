"""Tests that a wrong environment is reported in one line."""

import builtins
import importlib.metadata
import os
import subprocess
import sys

import pytest

from tff_ocs import _requirements

_NEEDED = 'tff_ocs needs tensorflow-federated 0.87.0, found '


@pytest.fixture
def installed(monkeypatch):
  """Returns a function that sets the installed version of TFF or `None`."""

  def install(version):
    def find_version(name):
      assert name == 'tensorflow-federated'
      if version is None:
        raise importlib.metadata.PackageNotFoundError(name)
      return version

    monkeypatch.setattr(importlib.metadata, 'version', find_version)

  return install


@pytest.fixture
def failing_import(monkeypatch):
  """Returns a function that makes the import of TFF fail with an error."""

  def fail(error):
    original = builtins.__import__

    def import_module(name, *args, **kwargs):
      if name == 'tensorflow_federated':
        raise error
      return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, '__import__', import_module)

  return fail


def _error_of_check():
  with pytest.raises(ImportError) as error:
    _requirements.check()
  message = str(error.value)
  assert len(message.splitlines()) == 1
  assert message.endswith('pip install --no-deps -r requirements.lock')
  # Python would print an earlier exception, and its traceback, above this one.
  assert error.value.__cause__ is None
  assert error.value.__context__ is None or error.value.__suppress_context__
  return message


def test_this_environment_is_right():
  _requirements.check()


@pytest.mark.parametrize('version', ['0.16.1', '0.88.0', '0.87.0rc1', '0.87'])
def test_other_version(installed, version):
  installed(version)
  assert _error_of_check().startswith(f'{_NEEDED}{version}. ')


def test_not_installed(installed):
  installed(None)
  assert _error_of_check().startswith(f'{_NEEDED}none. ')


@pytest.mark.parametrize(
  ('error', 'described'),
  [
    (
      ModuleNotFoundError("No module named 'jax'"),
      "ModuleNotFoundError: No module named 'jax'",
    ),
    (ImportError('first line\nsecond line'), 'ImportError: first line'),
    (AttributeError('np.object'), 'AttributeError: np.object'),
    (TypeError(), 'TypeError: '),
  ],
)
def test_import_that_fails(failing_import, error, described):
  failing_import(error)
  message = _error_of_check()
  assert message.startswith(
    'tff_ocs found tensorflow-federated 0.87.0, but importing it fails: '
    f'{described}. '
  )


def test_interrupted_import_is_no_wrong_environment(failing_import):
  failing_import(KeyboardInterrupt())
  with pytest.raises(KeyboardInterrupt):
    _requirements.check()


def test_log_level_of_the_user_is_kept(monkeypatch):
  monkeypatch.setenv('TF_CPP_MIN_LOG_LEVEL', '0')
  _requirements.check()
  assert os.environ['TF_CPP_MIN_LOG_LEVEL'] == '0'


def _use_with(directory, version, source):
  """Uses tff_ocs in a process that finds another TFF first."""
  metadata = directory / f'tensorflow_federated-{version}.dist-info'
  metadata.mkdir()
  (metadata / 'METADATA').write_text(
    f'Metadata-Version: 2.1\nName: tensorflow-federated\nVersion: {version}\n'
  )
  (directory / 'broken_dependency.py').write_text(source)
  package = directory / 'tensorflow_federated'
  package.mkdir()
  (package / '__init__.py').write_text('import broken_dependency\n')
  path = [str(directory), os.environ.get('PYTHONPATH', '')]
  return subprocess.run(
    [sys.executable, '-c', 'from tff_ocs import schemes'],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, path))},
    capture_output=True,
    text=True,
    timeout=600,
  )


@pytest.mark.parametrize(
  ('version', 'source', 'last_line'),
  [
    ('0.86.0', '', f'ImportError: {_NEEDED}0.86.0. '),
    (
      '0.87.0',
      'import is_not_there\n',
      'ImportError: tff_ocs found tensorflow-federated 0.87.0, but importing it'
      " fails: ModuleNotFoundError: No module named 'is_not_there'. ",
    ),
  ],
)
def test_program_in_a_wrong_environment(version, source, last_line, tmp_path):
  program = _use_with(tmp_path, version, source)
  assert program.returncode == 1
  assert program.stderr.splitlines()[-1].startswith(last_line)
  assert program.stderr.count('Traceback') == 1
  assert 'broken_dependency' not in program.stderr


def test_import_prints_nothing():
  program = subprocess.run(
    [sys.executable, '-c', 'import tff_ocs'],
    env={
      name: value
      for name, value in os.environ.items()
      if name != 'TF_CPP_MIN_LOG_LEVEL'
    },
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert (program.returncode, program.stdout, program.stderr) == (0, '', '')
