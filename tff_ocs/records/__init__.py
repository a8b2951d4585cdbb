"""The record of a run: `config.json`, `metrics.csv` and `weights.npz`.

This package is the one definition of these files, which are written and read
here alone. Only the progress of a run that goes on is also read elsewhere, by
counting lines.
"""

from tff_ocs.records.weights import load_weights
