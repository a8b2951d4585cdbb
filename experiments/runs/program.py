"""The start of a program that trains."""

import ctypes
import os
import sys
from collections.abc import Callable

from absl import flags

from experiments.runs import experiment_flags
from experiments.runs import user_code
from programs import entry

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def run(
  values: flags.FlagValues,
  describe: Callable[[flags.FlagValues], experiment_flags.Experiment],
) -> None:
  """Runs the experiment that `describe` builds from the flags.

  Ends the program with one line if flags contradict each other.
  """
  try:
    described = describe(values)
  except (
    experiment_flags.SettingError,
    user_code.UserCodeError,
  ) as error:
    sys.exit(f'error: {error}')
  setup()
  from experiments.runs import experiment

  experiment.run(values, described)


def setup() -> None:
  """Prepares the process; TensorFlow must not have been imported before.

  Imports TensorFlow Federated, and ends the program with one line if that
  fails.
  """
  entry.setup()
  # With the default settings malloc keeps ever larger blocks, in one arena for
  # each of TensorFlow's threads. The weights, which are new in each
  # round, fragment them, and memory grows for hundreds of rounds. The settings
  # hold for arenas that are made later, so before there are threads.
  libc = ctypes.CDLL(None)
  libc.mallopt(_M_MMAP_THRESHOLD, 2**20)
  libc.mallopt(_M_ARENA_MAX, 1)
  # TensorFlow's notes at startup would hide the program's own output.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  if os.path.expanduser('~') == '~':
    # Keras would make a folder of that name here.
    os.environ.setdefault('KERAS_HOME', os.devnull)
  try:
    from tff_ocs import _requirements

    _requirements.check()
  except ImportError as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    sys.exit('interrupted; nothing was written')
  import tensorflow_federated as tff

  # TFF's default context would start a worker that can outlive the program.
  # The programs install their own contexts.
  tff.test.set_no_default_context()
