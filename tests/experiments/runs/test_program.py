"""Tests of the setup of programs that train."""

import os
import pwd

import pytest

from experiments.runs import program
from tff_ocs import _requirements


@pytest.fixture
def environment(monkeypatch):
  """The environment, without what `setup` may set; restored afterwards."""
  for name in ('KERAS_HOME', 'TF_CPP_MIN_LOG_LEVEL'):
    # First set, so that it is restored even where it is not there now.
    monkeypatch.setenv(name, '')
    monkeypatch.delenv(name)
  return monkeypatch


def test_tensorflow_is_quiet_unless_the_user_asks_for_its_notes(environment):
  program.setup()
  assert os.environ['TF_CPP_MIN_LOG_LEVEL'] == '3'
  environment.setenv('TF_CPP_MIN_LOG_LEVEL', '0')
  program.setup()
  assert os.environ['TF_CPP_MIN_LOG_LEVEL'] == '0'


def test_keras_makes_no_folder_if_there_is_no_home(environment):
  program.setup()
  assert 'KERAS_HOME' not in os.environ

  def unknown(key):
    raise KeyError(key)

  environment.delenv('HOME', raising=False)
  environment.setattr(pwd, 'getpwuid', unknown)
  program.setup()
  assert os.environ['KERAS_HOME'] == os.devnull


def test_broken_environment_is_reported_in_one_line(monkeypatch):
  def check():
    raise ImportError('tff_ocs needs another TFF')

  monkeypatch.setattr(_requirements, 'check', check)
  with pytest.raises(SystemExit, match='^error: tff_ocs needs another TFF$'):
    program.setup()
