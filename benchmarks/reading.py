"""Seconds and memory for reading a file of the size of Federated EMNIST.

The file has the format of TFF's, with 341,873 training and 40,832 test examples
of 3,383 clients. Its images are drawn from a few random ones. The benchmark
reads cohorts of 32 clients, all of the training set, and the test set, which it
compares with a bare query and with parsing the protos in one batch.
"""

import contextlib
import ctypes
import pathlib
import sqlite3
import tempfile
import time

import numpy as np
import psutil
import tensorflow as tf
from absl import app
from absl import flags

from tff_ocs.tasks import femnist

_TIMES = flags.DEFINE_integer('times', 5, 'How often each is timed.', 1)

_NUM_CLIENTS = 3383
_NUM_TRAIN = 341_873
_NUM_TEST = 40_832
_NUM_DISTINCT = 1000
_COHORT_SIZE = 32
_QUERY = (
  'SELECT serialized_example_proto FROM examples WHERE split_name ='
  " 'digits_only_test' ORDER BY rowid"
)
_FEATURES = {
  'pixels': tf.io.FixedLenFeature([28, 28], tf.float32),
  'label': tf.io.FixedLenFeature([], tf.int64),
}


def main(argv):
  del argv
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / femnist.DATABASE
    _write(path)
    _measure(folder, path)


def _measure(folder, path):
  rng = np.random.default_rng(0)
  of_cohorts, of_tests, of_queries, of_parsing = [], [], [], []
  for _ in range(_TIMES.value):
    start = time.perf_counter()
    task = femnist.load_tff(seed=0, cache_dir=folder, unbalanced_set=None)
    of_tests.append(time.perf_counter() - start)
    start = time.perf_counter()
    with contextlib.closing(sqlite3.connect(path)) as connection:
      rows = connection.execute(_QUERY).fetchall()
    of_queries.append(time.perf_counter() - start)
    protos = [row[0] for row in rows]
    start = time.perf_counter()
    tf.io.parse_example(tf.constant(protos, tf.string), _FEATURES)
    of_parsing.append(time.perf_counter() - start)
    del rows, protos
    for _ in range(5):
      cohort = rng.choice(task.train.client_ids, _COHORT_SIZE, replace=False)
      start = time.perf_counter()
      for client_id in cohort:
        task.train.read(client_id)
      of_cohorts.append(time.perf_counter() - start)
  print(f'cohort of {_COHORT_SIZE}: {np.median(of_cohorts):.3f} s')
  floor = np.array(of_queries) + of_parsing
  print(
    f'loading, with the test set: {np.median(of_tests):.2f} s;'
    f' {np.median(of_tests / floor):.2f} x reading its protos from the file'
    f' ({np.median(of_queries):.2f} s) and parsing them'
    f' ({np.median(of_parsing):.2f} s)'
  )
  before = _resident_bytes()
  start = time.perf_counter()
  for client_id in task.train.client_ids:
    task.train.examples(client_id)
  seconds = time.perf_counter() - start
  megabytes = (_resident_bytes() - before) / 1e6
  as_bytes = _NUM_TRAIN * 28 * 28 / 1e6
  print(
    f'training set: {seconds:.1f} s, {megabytes:.0f} MB;'
    f' {megabytes / as_bytes:.2f} x a byte for each pixel'
  )


def _resident_bytes():
  # Memory that is free already must not hide new memory.
  ctypes.CDLL(None).malloc_trim(0)
  return psutil.Process().memory_info().rss


def _write(path):
  """Writes the file."""
  rng = np.random.default_rng(0)
  pixels = rng.integers(256, size=(_NUM_DISTINCT, 784), dtype=np.uint8)
  pixels = 1 - pixels.astype(np.float32) / np.float32(255)
  protos = [
    tf.train.Example(
      features=tf.train.Features(
        feature={
          'pixels': tf.train.Feature(
            float_list=tf.train.FloatList(value=image)
          ),
          'label': tf.train.Feature(
            int64_list=tf.train.Int64List(value=[index % femnist.NUM_CLASSES])
          ),
        }
      )
    ).SerializeToString()
    for index, image in enumerate(pixels)
  ]
  with sqlite3.connect(path) as connection:
    connection.execute(
      'CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT'
      ' NULL, serialized_example_proto BLOB NOT NULL)'
    )
    connection.execute(
      'CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT'
      ' NOT NULL, num_examples INTEGER NOT NULL)'
    )
    for split, total in (
      ('digits_only_train', _NUM_TRAIN),
      ('digits_only_test', _NUM_TEST),
    ):
      sizes = rng.multinomial(
        total - _NUM_CLIENTS, [1 / _NUM_CLIENTS] * _NUM_CLIENTS
      )
      row = 0
      for client, size in enumerate(sizes + 1):
        client_id = f'f{client:04d}'
        connection.execute(
          'INSERT INTO client_metadata VALUES (?, ?, ?)',
          (client_id, split, int(size)),
        )
        connection.executemany(
          'INSERT INTO examples VALUES (?, ?, ?)',
          (
            (split, client_id, protos[(row + i) % _NUM_DISTINCT])
            for i in range(size)
          ),
        )
        row += size
    connection.execute('CREATE INDEX idx_examples ON examples (client_id)')
    connection.execute(
      'CREATE INDEX idx_metadata ON client_metadata (client_id)'
    )
  connection.close()


if __name__ == '__main__':
  app.run(main)
