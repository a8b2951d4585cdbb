"""Tests of how programs start, each as a process without TensorFlow."""

import os
import subprocess
import sys

import pytest

from experiments.campaigns import job as job_lib


def run(*arguments, **variables):
  return subprocess.run(
    [sys.executable, *arguments],
    cwd=job_lib.ROOT,
    env={**os.environ, **variables},
    capture_output=True,
    timeout=300,
  )


def test_any_text_is_printed_in_any_encoding():
  code = (
    'import sys; from programs import entry; entry.setup();'
    'print("1 \\u00b1 2"); print("\\u2588", file=sys.stderr)'
  )
  result = run('-c', code, LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')
  assert result.returncode == 0
  assert (result.stdout, result.stderr) == (b'1 ? 2\n', b'?\n')
  assert run('-c', code, PYTHONIOENCODING='utf-8').stdout == '1 ± 2\n'.encode()


_PROGRAMS = (
  'femnist',
  'shakespeare',
  'cifar100',
  'sweep',
  'tune',
  'participation',
  'demo',
)


def test_tensorflow_is_not_imported_before_the_flags_are_parsed():
  code = f"""
import importlib, sys
from absl import flags
for name in {_PROGRAMS}:
  module = importlib.import_module(f'experiments.{{name}}')
  values = flags.FlagValues()
  module.define_flags(values)
  required = ['--experiment=femnist_1'] if 'experiment' in values else []
  values([name, *required])
  values.get_help()
  assert 'tensorflow' not in sys.modules, name
print('done')
"""
  result = run('-c', code)
  assert result.stdout == b'done\n', result.stderr.decode()


@pytest.mark.parametrize('name', ['sweep', 'femnist'])
def test_help_names_what_is_required_and_explains_the_terms(name):
  result = run('-m', f'experiments.{name}', '--help')
  text = ' '.join(result.stdout.decode().split())
  if name == 'sweep':
    assert '--experiment: <femnist_1|' in text and '>: Required. The' in text
  else:
    assert 'n, the size of the cohort: how many clients of the pool' in text
    assert 'm, the expected number of participants: how many of the n' in text


def test_importing_the_experiments_changes_nothing():
  code = (
    'import os, sys; before = dict(os.environ), set(sys.modules);'
    'import experiments;'
    'added = set(sys.modules) - before[1];'
    'assert added == {"experiments"}, added;'
    'assert dict(os.environ) == before[0]'
  )
  result = run('-c', code)
  assert result.returncode == 0, result.stderr.decode()


def test_backend_of_matplotlib_does_not_matter():
  result = run('-c', 'from plots import panels', MPLBACKEND='garbage')
  assert result.returncode == 0, result.stderr.decode()


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--output_dir=gs://b/r'], b'--output_dir=gs://b/r: must be a path'),
    ([b'--output_dir=\xff'], b'cannot be read as text of the encoding utf-8'),
    (['--data_source=bundled', '--cache_dir=x'], b'needs --data_source=tff'),
    (['run'], b"unexpected argument 'run'"),
  ],
)
def test_wrong_command_line_is_reported_and_nothing_is_made(
  tmp_path, arguments, message
):
  result = subprocess.run(
    [sys.executable, '-m', 'experiments.femnist', *arguments],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(job_lib.ROOT)},
    capture_output=True,
    timeout=300,
  )
  assert result.returncode == 1
  assert message in result.stderr and b'Traceback' not in result.stderr
  assert not list(tmp_path.iterdir())
