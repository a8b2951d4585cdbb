"""Compares the time for exact probabilities of many norms with that of a sort.

The benchmark times `tff_ocs.probabilities.optimal_probabilities` and `np.sort`
of the same float64 norms in turns, for three distributions of the norms and
several m. It prints the medians in milliseconds and their ratio.
"""

import numpy as np
from absl import app
from absl import flags

from benchmarks import timing
from tff_ocs import probabilities

_TIMES = flags.DEFINE_integer('times', 20, 'The number of timed repeats.', 2)
_NUM_NORMS = flags.DEFINE_integer(
  'num_norms', 10**6, 'The number n of norms.', 100
)

_KINDS = {
  'uniform': lambda rng, n: rng.random(n),
  'lognormal, sigma 3': lambda rng, n: rng.lognormal(0, 3, n),
  'Pareto, shape 0.5': lambda rng, n: rng.pareto(0.5, n),
}
_FRACTIONS = (0.001, 0.1, 0.5, 0.9)


def main(argv):
  del argv
  n = _NUM_NORMS.value
  print(f'n = {n}; milliseconds')
  print(f'{"norms":20}{"m / n":>7}{"sort":>8}{"OCS":>8}{"ratio":>8}')
  for kind, draw in _KINDS.items():
    norms = draw(np.random.default_rng(0), n)
    for fraction in _FRACTIONS:
      seconds = timing.take_turns(
        {
          'sort': lambda norms=norms: np.sort(norms),
          'OCS': lambda norms=norms, m=fraction * n: (
            probabilities.optimal_probabilities(norms, m)
          ),
        },
        _TIMES.value,
      )
      sort, own = (1e3 * np.median(values) for values in seconds.values())
      print(f'{kind:20}{fraction:7g}{sort:8.1f}{own:8.1f}{own / sort:8.2f}')


if __name__ == '__main__':
  app.run(main)
