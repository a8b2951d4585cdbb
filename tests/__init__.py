"""The tests; they mirror the packages."""

# Before any other import: it quietens TensorFlow.
import tff_ocs  # noqa: F401
