"""Execution contexts for TFF computations, and TFF's deployment forms.

See `tff_ocs.runtime.contexts` and `tff_ocs.runtime.forms`.
"""

from tff_ocs.runtime.contexts import use_distributed_context
from tff_ocs.runtime.contexts import use_local_context
from tff_ocs.runtime.contexts import use_remote_context
from tff_ocs.runtime.contexts import use_secure_test_context
from tff_ocs.runtime.forms import distribute_aggregate_form
from tff_ocs.runtime.forms import FormError
from tff_ocs.runtime.forms import fuse
from tff_ocs.runtime.forms import map_reduce_form
from tff_ocs.runtime.forms import mergeable_form
from tff_ocs.runtime.worker_process import threads_per_client
from tff_ocs.runtime.worker_process import WorkerError

__all__ = (
  'FormError',
  'WorkerError',
  'distribute_aggregate_form',
  'fuse',
  'map_reduce_form',
  'mergeable_form',
  'threads_per_client',
  'use_distributed_context',
  'use_local_context',
  'use_remote_context',
  'use_secure_test_context',
)
