"""The paper's experiments, as programs."""

# Before any other import: it quietens TensorFlow, and says in a line if the
# environment is wrong.
import tff_ocs  # noqa: F401, I001

import tensorflow_federated as tff

# TFF's default context would start a worker that can outlive the program, and
# complains at exit where it has not; programs here install their own.
tff.test.set_no_default_context()
