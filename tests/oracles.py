"""Independent derivations to which tests compare the library.

Probabilities are computed in rational arithmetic. Bounds for statistics come
from exact distributions or from inequalities, for one rate of false alarms.
"""

import math
from fractions import Fraction

import numpy as np
import tensorflow_federated as tff
from scipy import stats

# An upper bound of the probability that one statistical check fails although
# the library is right. The tests make fewer than 160 such checks in all, so
# that a run of all tests raises a false alarm less than once in 10^6 runs, with
# the 10^-7 of the notebook's test and the 3 x 10^-8 of the examples'.
FALSE_ALARM_RATE = 5e-9


def optimal_probabilities(norms, expected_clients):
  """Minimises the sampling variance (6), from its KKT conditions.

  By these conditions p_i = min(u_i / s, 1) with one s for all clients, and sum
  p_i = m. So the clients with p_i = 1 are those with the largest norms. The
  loop gives p_i = 1 to them, from the largest, until the rest of m can be
  shared among the other clients in proportion to their norms.

  Args:
    norms: Floats or integers u_i >= 0.
    expected_clients: The number m > 0, taken exactly as given.

  Returns:
    A list of fractions.
  """
  norms = [Fraction(u) for u in norms]
  left = Fraction(expected_clients)
  rest = sum(norms)
  order = sorted(range(len(norms)), key=lambda i: -norms[i])
  p = [Fraction(0)] * len(norms)
  for position, i in enumerate(order):
    if norms[i] == 0:
      break
    if left * norms[i] < rest:
      for j in order[position:]:
        p[j] = left * norms[j] / rest
      break
    p[i] = Fraction(1)
    left -= 1
    rest -= norms[i]
  return p


def approximate_probabilities(norms, expected_clients, max_iterations):
  """Algorithm 2 as printed, except that it also ends if P is 0.

  Args:
    norms: Floats or integers u_i >= 0, not all 0.
    expected_clients: The number m > 0, taken exactly as given.
    max_iterations: The limit j_max.

  Returns:
    The probabilities as a list of fractions, and a list with the factor C of
    each executed iteration (`None` where P is 0).
  """
  norms = [Fraction(u) for u in norms]
  m, n = Fraction(expected_clients), len(norms)
  scale = m / sum(norms)  # p_i = min(scale * u_i, 1).
  factors = []
  for _ in range(max_iterations):
    below_1 = [u for u in norms if scale * u < 1]
    if sum(below_1) == 0:
      factors.append(None)
      break
    factors.append((m - n + len(below_1)) / (scale * sum(below_1)))
    scale *= factors[-1]
    if factors[-1] <= 1:
      break
  return [min(scale * u, Fraction(1)) for u in norms], factors


def literal_float32_algorithm_2(norms, expected_clients, max_iterations):
  """Algorithm 2 as a literal port to float32, with its rounding faults.

  Returns:
    The probabilities and the list of factors C.
  """
  f = np.float32
  norms = np.asarray(norms, f)
  with np.errstate(all='ignore'):
    p = np.minimum(f(expected_clients) * norms / np.sum(norms), f(1))
    factors = []
    for _ in range(max_iterations):
      # As in the authors' code all p_i are rescaled, not only those below 1.
      below_1 = p < 1
      factor = f(expected_clients - norms.size + np.sum(below_1)) / np.sum(
        p[below_1], dtype=f
      )
      factors.append(factor)
      p = np.minimum(factor * p, f(1))
      if factor <= 1:
        break
  return p, factors


def count_bounds(probabilities):
  """Bounds for the number of successes of independent, unequal coins.

  From the exact (Poisson binomial) distribution.

  Args:
    probabilities: The success probability of each coin.

  Returns:
    `(low, high)`: the number is outside [low, high] with a probability of at
    most `FALSE_ALARM_RATE`.
  """
  values, repeats = np.unique(probabilities, return_counts=True)
  distribution = np.ones(1)
  for p, n in zip(values, repeats):
    distribution = np.convolve(
      distribution, stats.binom.pmf(np.arange(n + 1), n, p)
    )
  below = np.cumsum(distribution)
  above = np.cumsum(distribution[::-1])[::-1]
  low = np.flatnonzero(below > FALSE_ALARM_RATE / 2)[0]
  high = np.flatnonzero(above > FALSE_ALARM_RATE / 2)[-1]
  return low, high


def mean_bound(variance, largest, num_samples):
  """Bernstein's inequality for the mean of independent variables.

  Args:
    variance: Of one variable.
    largest: An upper bound of |variable - expectation|.
    num_samples: The number of variables.

  Returns:
    A bound that |mean - expectation| exceeds with a probability of at most
    `FALSE_ALARM_RATE`.
  """
  log = math.log(2 / FALSE_ALARM_RATE)
  third = largest * log / 3
  return (
    third + math.sqrt(third**2 + 2 * num_samples * variance * log)
  ) / num_samples


def uplink(comp):
  """Lists the values that a computation carries from clients to the server.

  Args:
    comp: A `tff.Computation`.

  Returns:
    A list with one pair for each intrinsic that takes values placed at clients
    and gives a result placed at the server: its name and the type of what each
    client contributes.
  """
  found = []

  def visit(block):
    if isinstance(block, tff.framework.Call) and isinstance(
      block.function, tff.framework.Intrinsic
    ):
      signature = block.function.type_signature
      if _has_placement(signature.parameter, tff.CLIENTS) and _has_placement(
        signature.result, tff.SERVER
      ):
        value = signature.parameter
        if isinstance(value, tff.StructType):
          value = value[0]
        found.append((block.function.uri, value.member))
    return block, False

  # In this form nothing hides behind references and lambdas.
  tff.framework.transform_postorder(
    tff.framework.to_call_dominant(comp.to_building_block()), visit
  )
  return found


def _has_placement(type_spec, placement):
  if isinstance(type_spec, tff.FederatedType):
    return type_spec.placement is placement
  return isinstance(type_spec, tff.StructType) and any(
    _has_placement(member, placement)
    for _, member in tff.structure.iter_elements(type_spec)
  )
