"""The paper's figures, from the folders that runs leave behind."""

import os

# Figures are drawn into files. Matplotlib cannot be imported if MPLBACKEND
# names a backend that it does not have.
os.environ['MPLBACKEND'] = 'agg'
