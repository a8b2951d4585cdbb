"""The paper's experiments, as programs."""

import sys

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
