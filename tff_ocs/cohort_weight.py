"""The total weight of a cohort, which the server can know before the round."""

from typing import Any

import numpy as np
import tree

from tff_ocs import arguments

_NAME = 'cohort_weight'


def set_cohort_weight(state: Any, cohort_weight: float) -> Any:
  """Returns a process's state in which the next cohort's total weight is set.

  `tff_ocs.ThresholdSampling` divides the norms n_i ||U_i|| by the total weight
  N_t = sum_i n_i of the round's cohort, by which the aggregate is divided, too.
  To be summed in the round, it would need a round trip of its own. A server
  that knows its clients' weights, or with equal weights the size of the cohort,
  sets it before each round:

  ```
  for cohort in cohorts:
    state = tff_ocs.set_cohort_weight(state, sum(num_examples(cohort)))
    state, metrics = process.next(state, cohort)
  ```

  The weight stays in the state until it is set anew. It should be set from the
  first round on or not at all, since the threshold depends on it. If no client
  of a cohort has examples, keep the former weight. Where the aggregate is
  divided by the weight of the whole pool, as with `pool_weight`, set that
  weight once.

  Args:
    state: The state of any process that has the scheme in it, such as that of
      `tff_ocs.build_federated_averaging_process` or of a
      `tff.learning.templates.LearningProcess`.
    cohort_weight: N_t, finite and above 0.

  Returns:
    A new state with this weight. All other values are the same objects;
    `state` is not changed.

  Raises:
    TypeError: If `cohort_weight` is not a number.
    ValueError: If it is out of range, or the state has no place for it.
  """
  weight = np.float64(arguments.check_positive(_NAME, cohort_weight))
  weight_paths = []

  def replace(path, leaf):
    if path and path[-1] == _NAME:
      weight_paths.append(path)
      return weight
    return leaf

  new_state = tree.map_structure_with_path(replace, state)
  if not weight_paths:
    raise ValueError(
      'state must be that of a process with tff_ocs.ThresholdSampling, found'
      ' one without a cohort_weight.'
    )
  return new_state
