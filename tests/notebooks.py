"""Runs a notebook in a kernel of its own.

This command runs the notebook and writes the new outputs into the file:

  python -m tests.notebooks docs/plug_in.ipynb
"""

import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Optional

import jupyter_client
import nbclient
import nbformat
from jupyter_client import kernelspec

_TIMEOUT_SECONDS = 600


def run(
  notebook: nbformat.NotebookNode,
  working_dir: pathlib.Path,
  on_cell: Optional[Callable[[int], None]] = None,
) -> None:
  """Runs a notebook and puts the outputs into it.

  The kernel runs this Python, whatever kernels are installed, and ends before
  the function returns. The files of Jupyter are temporary.

  Args:
    notebook: The notebook.
    working_dir: The folder in which the kernel runs.
    on_cell: Called with the kernel's process id after each cell of code.

  Raises:
    CellExecutionError: If a cell raises an error.
  """
  with tempfile.TemporaryDirectory() as folder:
    manager = jupyter_client.AsyncKernelManager(
      connection_file=os.path.join(folder, 'connection.json')
    )
    manager._kernel_spec = kernelspec.KernelSpec(
      argv=[
        *(sys.executable, '-m', 'ipykernel_launcher'),
        *('-f', '{connection_file}'),
      ]
    )
    env = {**os.environ, 'IPYTHONDIR': folder}
    # With this variable, a kernel hides the libraries' output to stderr.
    env.pop('PYTEST_CURRENT_TEST', None)
    # Without it, the kernel shows figures; `import plots` sets it.
    env.pop('MPLBACKEND', None)
    client = nbclient.NotebookClient(
      notebook,
      km=manager,
      timeout=_TIMEOUT_SECONDS,
      record_timing=False,
      resources={'metadata': {'path': str(working_dir)}},
    )
    if on_cell is not None:
      client.on_cell_executed = lambda **_: on_cell(manager.provisioner.pid)
    metadata = notebook.metadata.copy()
    client.execute(env=env, cleanup_kc=True)
    # Leave out the version of this Python.
    notebook.metadata = metadata


def main(path):
  path = pathlib.Path(path)
  notebook = nbformat.read(path, as_version=4)
  run(notebook, path.parent)
  partial = path.with_suffix('.partial')
  nbformat.write(notebook, partial)
  partial.replace(path)


if __name__ == '__main__':
  main(*sys.argv[1:])
