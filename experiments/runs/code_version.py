"""The version of this code, for the records of runs."""

import os
import pathlib
import subprocess

# Set on machines to which only the code was sent.
VARIABLE = 'TFF_OCS_GIT_COMMIT'


def git_commit() -> str:
  """The commit of this code, with '+changes' where files differ from it."""
  commit = os.environ.get(VARIABLE)
  if commit:
    return commit

  def git(*arguments):
    return subprocess.run(
      ['git', *arguments],
      cwd=pathlib.Path(__file__).parent,
      capture_output=True,
      text=True,
    )

  try:
    commit = git('rev-parse', 'HEAD')
    changes = git('status', '--porcelain', '--untracked-files=no')
  except OSError:  # There is no git.
    return 'unknown'
  if commit.returncode:
    return 'unknown'
  return commit.stdout.strip() + ('+changes' if changes.stdout.strip() else '')
