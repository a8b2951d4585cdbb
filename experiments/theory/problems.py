"""Problems for which all constants in the paper's theorems are known exactly.

A problem consists of the clients' functions f_i of x in R^d, with f(x) = sum_i
w_i f_i(x). There are quadratics for Theorems 13 and 17 (strongly convex), and
tilted wells for Theorems 15 and 18 (non-convex).

The gradient noise xi_i is normal, independent between clients, with
E||xi_i||^2 = M ||grad f_i||^2 + sigma^2: the bound in Assumptions 7 and 8 holds
with equality.

Arrays of points have the shape [..., d], or [..., n, d] if each client has its
own points.
"""

import abc
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Problem(abc.ABC):
  """Clients' functions with known constants.

  Attributes:
    weights: The w_i > 0, of shape [n]. They sum to 1.
    smoothness: L. Every f_i is L-smooth.
    noise_slope: M of Assumptions 7 and 8.
    noise_variance: sigma^2 of Assumptions 7 and 8.
  """

  weights: np.ndarray
  smoothness: float
  noise_slope: float
  noise_variance: float

  def __post_init__(self):
    if not np.isclose(self.weights.sum(), 1) or np.any(self.weights <= 0):
      raise ValueError(
        'weights must be above 0 and have the sum 1, found'
        f' {self.weights.min()} to {self.weights.max()} with the sum'
        f' {self.weights.sum()}.'
      )
    if self.noise_slope < 0 or self.noise_variance < 0:
      raise ValueError(
        'noise_slope and noise_variance must be at least 0, found'
        f' {self.noise_slope} and {self.noise_variance}.'
      )

  @property
  @abc.abstractmethod
  def dimension(self) -> int:
    """The d of R^d."""

  @property
  @abc.abstractmethod
  def minimiser(self) -> np.ndarray:
    """The minimiser x* of f, of shape [d]."""

  @abc.abstractmethod
  def client_values(self, points: np.ndarray) -> np.ndarray:
    """f_i at a point of each client: [..., n, d] to [..., n]."""

  @abc.abstractmethod
  def client_gradients(self, points: np.ndarray) -> np.ndarray:
    """The gradient of f_i at a point of each client: both [..., n, d]."""

  @property
  def num_clients(self) -> int:
    """The number n of clients."""
    return self.weights.size

  @property
  def largest_weight(self) -> float:
    """W = max w_i."""
    return self.weights.max()

  @property
  def minimum(self) -> float:
    """f* = f(x*)."""
    return float(self.value(self.minimiser))

  def value(self, x: np.ndarray) -> np.ndarray:
    """f(x): [..., d] to [...]."""
    return self.client_values(x[..., np.newaxis, :]) @ self.weights

  def gradient(self, x: np.ndarray) -> np.ndarray:
    """The gradient of f at x: both [..., d]."""
    return self.weights @ self.client_gradients(x[..., np.newaxis, :])

  def noisy_gradients(
    self, points: np.ndarray, rng: np.random.Generator
  ) -> np.ndarray:
    """Draws the clients' stochastic gradients g_i.

    Args:
      points: A point of each client, [..., n, d].
      rng: The source of the noise.

    Returns:
      grad f_i + xi_i, [..., n, d].
    """
    gradients = self.client_gradients(points)
    second_moments = (
      self.noise_slope * np.sum(gradients**2, axis=-1) + self.noise_variance
    )
    if not np.any(second_moments):
      return gradients
    noise = rng.standard_normal(gradients.shape)
    scales = np.sqrt(second_moments / self.dimension)
    return gradients + scales[..., np.newaxis] * noise


@dataclasses.dataclass(frozen=True)
class Quadratics(Problem):
  """f_i(x) = 1/2 (x - b_i)^T A_i (x - b_i), with diagonal A_i.

  Attributes:
    strong_convexity: mu. Every f_i, and f, is mu-strongly convex.
    curvatures: The diagonals of the A_i, between mu and L, of shape [n, d].
    centres: The minimisers b_i, of shape [n, d].
  """

  strong_convexity: float
  curvatures: np.ndarray
  centres: np.ndarray

  def __post_init__(self):
    super().__post_init__()
    if not (
      0 < self.strong_convexity <= self.curvatures.min()
      and self.curvatures.max() <= self.smoothness
    ):
      raise ValueError(
        'curvatures must lie between strong_convexity, above 0, and smoothness,'
        f' found {self.curvatures.min()} to {self.curvatures.max()} for'
        f' {self.strong_convexity} and {self.smoothness}.'
      )

  @property
  def dimension(self) -> int:
    return self.centres.shape[-1]

  @property
  def minimiser(self) -> np.ndarray:
    return (self.weights @ (self.curvatures * self.centres)) / (
      self.weights @ self.curvatures
    )

  @property
  def mismatches(self) -> np.ndarray:
    """Z_i = f_i(x*) - f_i*, of shape [n]; the smallest values f_i* are 0."""
    return self.client_values(self.minimiser)

  def client_values(self, points: np.ndarray) -> np.ndarray:
    return 0.5 * np.sum(self.curvatures * (points - self.centres) ** 2, axis=-1)

  def client_gradients(self, points: np.ndarray) -> np.ndarray:
    return self.curvatures * (points - self.centres)


@dataclasses.dataclass(frozen=True)
class TiltedWells(Problem):
  """f_i(x) = L/2 sum_j x_j^2 / (1 + x_j^2) + <c_i, x>, with sum w_i c_i = 0.

  The first sum is f itself. The second derivative of each of its terms lies in
  [-L/4, L]. f is not convex, takes the values [0, L d / 2) and has the unique
  minimiser 0. (An f_i with c_i != 0 has no minimum. Theorems 15 and 18 need
  none.)

  Attributes:
    tilts: The c_i, of shape [n, d].
  """

  tilts: np.ndarray

  def __post_init__(self):
    super().__post_init__()
    mean = self.weights @ self.tilts
    if not np.allclose(mean, 0, atol=1e-9 * (1 + np.abs(self.tilts).max())):
      raise ValueError(f'tilts must have the weighted mean 0, found {mean}.')

  @property
  def dimension(self) -> int:
    return self.tilts.shape[-1]

  @property
  def minimiser(self) -> np.ndarray:
    return np.zeros(self.dimension)

  @property
  def dissimilarity(self) -> float:
    """The rho of Assumption 9: sum w_i ||grad f_i - grad f||^2, at every x."""
    return float(self.weights @ np.sum(self.tilts**2, axis=-1))

  def client_values(self, points: np.ndarray) -> np.ndarray:
    squares = points**2
    common = self.smoothness / 2 * np.sum(squares / (1 + squares), axis=-1)
    return common + np.sum(self.tilts * points, axis=-1)

  def client_gradients(self, points: np.ndarray) -> np.ndarray:
    return self.smoothness * points / (1 + points**2) ** 2 + self.tilts


# The constants that the functions below use if they are not given.
_CONSTANTS = {'smoothness': 1.0, 'noise_slope': 0.0, 'noise_variance': 0.0}


def make_quadratics(
  *,
  num_clients: int,
  dimension: int,
  heterogeneity: float,
  strong_convexity: float = 0.1,
  seed: int = 0,
  **constants: float,
) -> Quadratics:
  """Makes quadratics with a chosen heterogeneity of the clients.

  Args:
    num_clients: n.
    dimension: d, at least 2.
    heterogeneity: 0 means identical clients with equal weights. 1 means unequal
      curvatures, and weights and distances of the minimisers that differ by
      factors of 100. In between, the factors are 100^heterogeneity.
    strong_convexity: mu, the smallest curvature of each f_i and of f.
    seed: The seed of the directions, the curvatures and the order of the
      distances.
    **constants: The smoothness L, which is the largest curvature of each f_i
      and of f, and the noise, as for `Problem`.

  Returns:
    The problem.
  """
  constants = {**_CONSTANTS, **constants}
  smoothness = constants['smoothness']
  weights, vectors, rng = _unequal(num_clients, dimension, heterogeneity, seed)
  fractions = np.linspace(0, 1, dimension) + heterogeneity * (
    rng.uniform(0, 1, (num_clients, dimension)) - np.linspace(0, 1, dimension)
  )
  fractions[:, 0], fractions[:, -1] = 0, 1
  curvatures = strong_convexity + (smoothness - strong_convexity) * fractions
  return Quadratics(
    weights=weights,
    strong_convexity=strong_convexity,
    # Rounding must not move the ends.
    curvatures=np.clip(curvatures, strong_convexity, smoothness),
    centres=vectors,
    **constants,
  )


def make_tilted_wells(
  *,
  num_clients: int,
  dimension: int,
  heterogeneity: float,
  seed: int = 0,
  **constants: float,
) -> TiltedWells:
  """Makes tilted wells with a chosen heterogeneity of the clients.

  Weights and tilts differ by factors of about 100^heterogeneity, which scales
  rho, too. The arguments are those of `make_quadratics`.
  """
  weights, vectors, _ = _unequal(num_clients, dimension, heterogeneity, seed)
  return TiltedWells(
    weights=weights,
    tilts=vectors - weights @ vectors,
    **{**_CONSTANTS, **constants},
  )


def _unequal(num_clients, dimension, heterogeneity, seed):
  """Returns weights, a vector for each client, and the random generator."""
  rng = np.random.default_rng(seed)
  sizes = 100 ** (heterogeneity * np.linspace(0, 1, num_clients))
  directions = rng.standard_normal((num_clients, dimension))
  directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
  lengths = heterogeneity * rng.permutation(sizes / np.median(sizes))
  return sizes / sizes.sum(), lengths[:, np.newaxis] * directions, rng
