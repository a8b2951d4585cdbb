"""Imports TFF once and then forks a process for each program it receives.

A program is sent with the files for its standard output and error. The server
answers with the process's id ('pid 123'), and then with its exit status
('status 0'). The program runs
as the main program of a process that has done nothing yet but import TFF.
"""

import gc
import os
import socket
import sys

import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff

# Imported for the programs.
import tff_ocs  # noqa: F401
from tff_ocs import aggregator  # noqa: F401
from tff_ocs import execution  # noqa: F401
from tff_ocs.runtime import worker_process  # noqa: F401

# Otherwise each process collects what it shares with this one at its end.
gc.freeze()
_connection = socket.socket(fileno=int(sys.argv[1]))
while True:
  _program, _files, *_ = socket.recv_fds(_connection, 2**16, 2)
  if not _program:
    os._exit(0)
  _pid = os.fork()
  if _pid == 0:
    for _target, _file in enumerate(_files, start=1):
      os.dup2(_file, _target)
      os.close(_file)
    _connection.close()
    break
  for _file in _files:
    os.close(_file)
  _connection.send(f'pid {_pid}'.encode())
  _, _status = os.waitpid(_pid, 0)
  _connection.send(f'status {os.waitstatus_to_exitcode(_status)}'.encode())


def children():
  return psutil.Process().children(recursive=True)


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(values)


@tff.tensorflow.computation(np.str_)
def run_for_ever(path):
  write = tf.io.write_file(path, '')
  with tf.control_dependencies([write]):
    return tf.while_loop(lambda _: True, lambda i: (i + 1,), (tf.constant(0),))


exec(compile(_program, 'program', 'exec'))
