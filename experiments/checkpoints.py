"""Checkpoints of a run, in TFF's `FileProgramStateManager`.

A run is a function of its settings, of the server's state and of the number of
the round: cohorts, shuffles and coins follow from the seed and that number. So
this is all that is kept, with the bits sent so far.
"""

import asyncio
import os
import pathlib
import shutil
from typing import Any
from typing import NamedTuple
from typing import Optional
from typing import Union

import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

_PREFIX = 'after_round_'


class Progress(NamedTuple):
  """How far a run has come.

  Attributes:
    state: The state of the training process.
    cumulative_uplink_bits: The bits sent so far.
  """

  state: Any
  cumulative_uplink_bits: int


class Checkpoints:
  """The checkpoints of one run, in a folder of their own."""

  def __init__(self, path: Union[str, os.PathLike]):
    """Opens the folder, which need not exist.

    Args:
      path: The folder.
    """
    self._path = pathlib.Path(path)
    # What was being written when a former run ended.
    for partial in self._path.glob(f'{_PREFIX}*_temp*'):
      shutil.rmtree(partial)
    self._manager = tff.program.FileProgramStateManager(
      # Two, so that there is another if the last cannot be read.
      self._path,
      prefix=_PREFIX,
      keep_total=2,
      keep_first=False,
    )

  def save(self, progress: Progress, round_num: int) -> None:
    """Saves the progress after a round; it is there wholly or not at all.

    Args:
      progress: The progress.
      round_num: The number of the finished round.

    Raises:
      OSError: If the folder cannot be written to.
    """
    try:
      asyncio.run(self._manager.save(progress, round_num))
    except tf.errors.OpError as error:
      raise OSError(
        f'The checkpoint after round {round_num} cannot be written to'
        f' {self._path}: {error.message}. Make room or mend the folder, and'
        ' start the same command again (without --overwrite): it resumes from'
        ' the checkpoint before.'
      ) from error

  def load_latest(self, like: Progress) -> tuple[Optional[Progress], int]:
    """Loads the last checkpoint that can be read.

    Args:
      like: A progress of the same structure.

    Returns:
      The progress and the number of the round to go on with; `None` and 0 if
      there is no checkpoint.
    """
    versions = asyncio.run(self._manager.get_versions()) or []
    for version in sorted(versions, reverse=True):
      try:
        progress = asyncio.run(self._manager.load(version, like))
      except Exception as error:  # Whatever TensorFlow finds wrong with a file.
        logging.warning(
          'The checkpoint after round %d cannot be read (%s); it is left out.',
          version,
          str(error).splitlines()[0],
        )
        shutil.rmtree(self._path / f'{_PREFIX}{version}', ignore_errors=True)
        continue
      return progress, version + 1
    return None, 0

  def remove(self) -> None:
    """Removes all checkpoints, once the run is finished."""
    shutil.rmtree(self._path)
