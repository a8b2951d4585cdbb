"""Tests of flags whose value is a path."""

import os
import pwd
import sys

import pytest
from absl import flags

from experiments import cifar100
from experiments import demo
from experiments import femnist
from experiments import participation
from experiments import shakespeare
from experiments import sweep
from experiments import tune
from programs import paths


@pytest.mark.parametrize(
  'text, path',
  [
    ('~', '/home/ada'),
    ('~/runs', '/home/ada/runs'),
    ('runs/~', 'runs/~'),
    ('./~/runs', './~/runs'),
    ('/tmp/gs:/b', '/tmp/gs:/b'),
    ('läufe', 'läufe'),
  ],
)
def test_home_folder_is_expanded(text, path, monkeypatch):
  monkeypatch.setenv('HOME', '/home/ada')
  assert paths.expand(text) == path


@pytest.mark.parametrize(
  'text', ['gs://b/r', 'http://host/x', 'file:///tmp/x', 'S3://b']
)
def test_url_is_refused(text):
  with pytest.raises(ValueError, match='found a URL'):
    paths.expand(text)


def test_empty_path_is_refused():
  with pytest.raises(ValueError, match='must not be empty'):
    paths.expand('')


def test_unknown_home_folder_is_refused(monkeypatch):
  def unknown(key):
    raise KeyError(key)

  monkeypatch.delenv('HOME', raising=False)
  monkeypatch.setattr(pwd, 'getpwuid', unknown)
  with pytest.raises(ValueError, match='home folder of ~ is not known'):
    paths.expand('~/.tff')
  with pytest.raises(ValueError, match='home folder of ~nobody_here is not'):
    paths.expand('~nobody_here/x')
  assert paths.expand('./~nobody_here/x') == './~nobody_here/x'


@pytest.mark.parametrize('encoding', ['utf-8', 'ascii'])
def test_path_that_is_no_text_is_refused(encoding, monkeypatch):
  # As Python reads it from the command line.
  monkeypatch.setattr(sys, 'getfilesystemencoding', lambda: encoding)
  text = b'l\xc3\xa4ufe'.decode('ascii', 'surrogateescape')
  with pytest.raises(ValueError, match=f"'l.*of the encoding {encoding}"):
    paths.expand(text)


def test_flag_of_a_path_is_in_the_help_of_its_module():
  values = flags.FlagValues()
  paths.define_path('place', 'runs', 'The place.', flag_values=values)
  values(['program', '--place=~root/x'])
  assert values.place == os.path.expanduser('~root/x')
  assert values['place'].flag_type() == 'path'
  (module,) = values.flags_by_module_dict()
  assert module == __name__
  assert '--place' in values.module_help(__name__)
  with pytest.raises(flags.IllegalFlagValueError, match='--place=gs://b: must'):
    values(['program', '--place=gs://b'])


@pytest.mark.parametrize(
  'program',
  [cifar100, demo, femnist, participation, shakespeare, sweep, tune],
  ids=lambda program: program.__name__,
)
def test_all_folders_of_the_programs_are_paths(program):
  values = flags.FlagValues()
  program.define_flags(values)
  folders = [name for name in values if name.endswith('_dir')]
  assert 'output_dir' in folders
  assert {values[name].flag_type() for name in folders} == {'path'}
