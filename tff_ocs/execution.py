"""Execution contexts for TFF computations, see `tff_ocs.runtime.contexts`."""

from tff_ocs.runtime.contexts import use_distributed_context
from tff_ocs.runtime.contexts import use_local_context
from tff_ocs.runtime.contexts import use_remote_context
from tff_ocs.runtime.contexts import use_secure_test_context
from tff_ocs.runtime.worker_process import threads_per_client
from tff_ocs.runtime.worker_process import WorkerError

__all__ = (
  'WorkerError',
  'threads_per_client',
  'use_distributed_context',
  'use_local_context',
  'use_remote_context',
  'use_secure_test_context',
)
