"""The paper's experiments, as programs."""

import ctypes
import sys

# Otherwise malloc keeps what is large ever longer, and in an arena for each of
# TensorFlow's threads: weights, which come and go with each round, then break
# up arenas that grow for hundreds of rounds. Before there are threads.
_libc = ctypes.CDLL(None)
_libc.mallopt(-3, 2**20)  # M_MMAP_THRESHOLD
_libc.mallopt(-8, 1)  # M_ARENA_MAX

# Before any other import: it quietens TensorFlow, and tells what is wrong with
# the environment.
try:
  import tff_ocs  # noqa: F401
except ImportError as error:
  sys.exit(f'error: {error}')

import tensorflow_federated as tff

# TFF's default context would start a worker that can outlive the program, and
# complains at exit where it has not; programs here install their own.
tff.test.set_no_default_context()
