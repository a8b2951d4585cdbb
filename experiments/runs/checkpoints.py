"""Checkpoints of a run, in TFF's `FileProgramStateManager`.

A run is a function of its settings, the server's state, what a cohort sampler
has learned, and the number of the round, since shuffles and coins follow from
the seed and that number. So a checkpoint holds these, with the bits sent so
far, for a round.
"""

import os
import pathlib
import shutil
from typing import Any
from typing import NamedTuple
from typing import Optional
from typing import Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from experiments.runs import run_progress
from tff_ocs.records import files
from tff_ocs.records import waiting

_PREFIX = run_progress.CHECKPOINT_PREFIX


class Progress(NamedTuple):
  """The progress of a run.

  Attributes:
    state: The state of the training process.
    cumulative_uplink_bits: The bits sent so far.
    memory: What else the run remembers: the state of a cohort sampler and the
      counts of participations, if there are any, each a dictionary of arrays.
  """

  state: Any
  cumulative_uplink_bits: int
  memory: Any = ()


class Checkpoints:
  """The checkpoints of one run, in a folder of their own."""

  def __init__(self, path: Union[str, os.PathLike]):
    """Opens the folder, which need not exist."""
    self._path = pathlib.Path(path)
    # Checkpoints that were being written when an earlier run ended.
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
    """Saves the progress after a round, atomically."""
    with files.explaining_write_errors(self._path_of(round_num)):
      waiting.wait_for(self._manager.save(progress, round_num))

  def load_latest(self, like: Progress) -> tuple[Optional[Progress], int]:
    """Loads the last checkpoint that can be read.

    Args:
      like: A progress of the same structure.

    Returns:
      The progress and the number of the next round; `None` and 0 if there is no
      checkpoint.

    Raises:
      OSError: If a checkpoint that cannot be read cannot be removed either, or
        if there is not enough memory.
      RecordError: If a checkpoint is whole, but has another structure, because
        another version of the code wrote it; it is kept.
    """
    for version in reversed(self._versions()):
      try:
        progress = waiting.wait_for(self._manager.load(version, like))
        _check_state(progress.state, like.state)
      except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        # The file may be whole.
        raise OSError(
          f'{self._path_of(version)} cannot be read: there is not enough'
          ' memory.'
        ) from error
      except Exception as error:  # TensorFlow raises many types for a bad file.
        reason = (str(error).splitlines() or [repr(error)])[0]
        if self._is_whole(version):
          raise files.RecordError(
            f'{self._path_of(version)} is not a checkpoint of this version of'
            f' the code ({reason.rstrip(".")}). Nothing is lost. Continue'
            ' with the version that started the run, see git_commit in'
            ' config.json, or use --overwrite to start the run again.'
          ) from error
        logging.warning(
          'The checkpoint after round %d cannot be read (%s); the run goes on'
          ' from the one before, or else from its start.',
          version,
          reason,
        )
        self._drop(version)
        continue
      return progress, version + 1
    return None, 0

  def drop_from(self, round_num: int, name: str) -> None:
    """Drops the checkpoints after rounds that a table does not have.

    A run that continued from them would leave a gap in the table.

    Args:
      round_num: The number of rounds that the table has.
      name: The table's file name.
    """
    for version in self._versions():
      if version >= round_num:
        logging.warning(
          'The checkpoint after round %d is left out, since %s ends before'
          ' round %d.',
          version,
          name,
          round_num,
        )
        self._drop(version)

  @property
  def are_there(self) -> bool:
    """Whether there is a checkpoint."""
    return bool(self._versions())

  def are_all_from(self, round_num: int) -> bool:
    """Whether there are checkpoints, but none after an earlier round."""
    versions = self._versions()
    return bool(versions) and min(versions) >= round_num

  def remove(self) -> None:
    """Removes all checkpoints, once the run is finished."""
    # A checkpoint that cannot be removed does no harm any more.
    shutil.rmtree(self._path, ignore_errors=True)

  def _versions(self):
    return waiting.wait_for(self._manager.get_versions()) or []

  def _is_whole(self, version):
    """Whether TensorFlow can read a checkpoint, of whatever structure."""
    try:
      tf.saved_model.load(str(self._path_of(version)))
    except Exception:  # As above.
      return False
    return True

  def _path_of(self, version):
    return self._path / f'{_PREFIX}{version}'

  def _drop(self, version):
    path = self._path_of(version)
    with files.explaining_write_errors(path):
      shutil.rmtree(path) if path.is_dir() else path.unlink()


def _check_state(found, expected):
  """Checks shapes and types of the tensors, which TFF does not check."""
  found, expected = tf.nest.flatten(found), tf.nest.flatten(expected)
  for value, like in zip(found, expected):
    value, like = np.asarray(value), np.asarray(like)
    if (value.shape, value.dtype) != (like.shape, like.dtype):
      raise ValueError(
        f'it has {value.dtype}{list(value.shape)} where the run has'
        f' {like.dtype}{list(like.shape)}'
      )
