"""Writes a database with the schema of those that TFF downloads."""

import os
import sqlite3
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Union

import tensorflow as tf

from tff_ocs.records import files

_SCHEMA = (
  'CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL,'
  ' serialized_example_proto BLOB NOT NULL)',
  'CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT'
  ' NULL, num_examples INTEGER NOT NULL)',
)
# TFF's loaders look examples up by client.
_METADATA_AND_INDICES = (
  'INSERT INTO client_metadata SELECT client_id, split_name, COUNT(*) FROM'
  ' examples GROUP BY client_id, split_name',
  'CREATE INDEX idx_examples ON examples (client_id)',
  'CREATE INDEX idx_metadata ON client_metadata (client_id)',
)


def write(
  path: Union[str, os.PathLike], rows: Iterable[tuple[str, str, bytes]]
) -> None:
  """Writes a database atomically.

  Args:
    path: The file; it need not exist.
    rows: The split, the client's id and the serialized example of each example,
      in the order in which a client's examples are read.

  Raises:
    OSError: If the file cannot be written.
  """
  with files.replacing(path) as partial:
    partial.unlink(missing_ok=True)
    try:
      connection = sqlite3.connect(partial)
      try:
        for statement in _SCHEMA:
          connection.execute(statement)
        connection.executemany('INSERT INTO examples VALUES (?, ?, ?)', rows)
        for statement in _METADATA_AND_INDICES:
          connection.execute(statement)
        connection.commit()
      finally:
        connection.close()
    except sqlite3.Error as error:
      raise OSError(f'{path} cannot be written: {error}.') from error


def integers(values: Sequence[int]) -> tf.train.Feature:
  """A feature of int64."""
  return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(values: Sequence[float]) -> tf.train.Feature:
  """A feature of float32."""
  return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def serialize(**features: tf.train.Feature) -> bytes:
  """An example with some features."""
  example = tf.train.Example(features=tf.train.Features(feature=features))
  return example.SerializeToString(deterministic=True)
