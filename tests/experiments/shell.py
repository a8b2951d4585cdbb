"""Runs the programs as a user does."""

import subprocess
import sys

from experiments.campaigns import job as job_lib


def run(module, *arguments, **kwargs):
  """Runs a module as a program.

  Args:
    module: The module.
    *arguments: The command line.
    **kwargs: For `subprocess.run`.

  Returns:
    The exit status, the output and the error output.
  """
  result = subprocess.run(
    [sys.executable, '-m', module, *arguments],
    cwd=job_lib.ROOT,
    capture_output=True,
    text=True,
    timeout=600,
    **kwargs,
  )
  assert 'Traceback' not in result.stderr, result.stderr
  return result.returncode, result.stdout, result.stderr


def run_experiment(name, output_dir, *arguments):
  """Runs an experiment, and checks the messages on the console.

  Args:
    name: The module of `experiments`.
    output_dir: The folder for the run's folder; it does not exist.
    *arguments: The command line.

  Returns:
    The run's folder.
  """
  status, output, errors = run(
    f'experiments.{name}', f'--output_dir={output_dir}', *arguments
  )
  assert (status, output) == (0, ''), errors
  for shown in ('aocs: 100%', 'accuracy=', 'loss=', 'sent=', 'Results: '):
    assert shown in errors
  (folder,) = output_dir.iterdir()
  return folder
