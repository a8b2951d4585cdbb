"""Speed and memory, as ratios within one run."""

# Before any other import: it quietens TensorFlow.
import tff_ocs  # noqa: F401
