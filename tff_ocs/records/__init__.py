"""The record of a run: `config.json`, `metrics.csv` and `weights.npz`.

This package is the one definition of these files. They are written and read
here and nowhere else.
"""

from tff_ocs.records.weights import load_weights
