"""Makes a worker listen on the loopback interface alone.

TFF's worker listens on all interfaces and has no option to listen on fewer, and
anyone who reaches it can execute TensorFlow operations, which read and write
files. So this process listens on 127.0.0.1 in the worker's place. When the
worker calls listen(), the kernel suspends the call and notifies this process
(seccomp's user notification, installed by `tff_ocs.runtime.launcher`), which
puts its own socket in the place of the worker's. At no moment does anything
listen on another interface.
"""

import errno
import fcntl
import os
import select
import socket
import struct
import time
from collections.abc import Callable

ADDRESS = '127.0.0.1'

_CONNECT_TIMEOUT_SECONDS = 5.0
_POLL_MILLISECONDS = 100
_SECCOMP_IOCTL_NOTIF_RECV = 0xC0502100
_SECCOMP_IOCTL_NOTIF_SEND = 0xC0182101
_SECCOMP_IOCTL_NOTIF_ADDFD = 0x40182103
_SECCOMP_ADDFD_FLAG_SETFD = 1


class ConfinementError(Exception):
  """Raised if the kernel does not let a worker be confined; says why."""


def create_listener(port: int = 0) -> socket.socket:
  """Listens on 127.0.0.1, and connects to it once.

  Args:
    port: The port; 0 stands for any that is free.

  Returns:
    The socket, which does not block, as gRPC expects of its sockets.

  Raises:
    OSError: If the port is in use or may not be used, or if this host cannot
      connect to itself.
  """
  listener = socket.create_server((ADDRESS, port), backlog=128)
  try:
    socket.create_connection(
      listener.getsockname(), _CONNECT_TIMEOUT_SECONDS
    ).close()
    listener.accept()[0].close()
  except OSError:
    listener.close()
    raise
  listener.setblocking(False)
  return listener


def hand_over(
  listener: socket.socket,
  launcher: socket.socket,
  check: Callable[[], None],
) -> None:
  """Waits until the worker calls listen() and gives it `listener`.

  Args:
    listener: A socket that listens.
    launcher: The other end of the launcher's socket.
    check: Called again and again meanwhile; raises an exception if the worker
      has ended or the wait is to end.

  Raises:
    ConfinementError: If the kernel does not support it or forbids it.
  """
  notifier = _receive_notifier(launcher, check)
  with open(notifier, 'rb') as file:
    _wait(file, check)
    try:
      _answer_listen(file.fileno(), listener.fileno())
    except OSError as error:
      check()
      while error.errno == errno.ENOENT:
        # The worker has been killed in its call, which takes a moment to show.
        time.sleep(0.01)
        check()
      raise ConfinementError(os.strerror(error.errno)) from error


def _receive_notifier(
  launcher: socket.socket, check: Callable[[], None]
) -> int:
  _wait(launcher, check)
  message, notifiers, *_ = socket.recv_fds(launcher, 16, 1)
  while not message:  # The launcher has ended, which takes a moment to show.
    check()
    time.sleep(0.01)
  if int(message):
    raise ConfinementError(os.strerror(int(message)))
  return notifiers[0]


def _wait(file, check: Callable[[], None]) -> None:
  """Waits until there is something to read."""
  poll = select.poll()
  poll.register(file, select.POLLIN)
  while not any(
    events & select.POLLIN for _, events in poll.poll(_POLL_MILLISECONDS)
  ):
    check()


def _answer_listen(notifier: int, listener: int) -> None:
  """Puts `listener` in the place of the socket that should listen."""
  notification = bytearray(80)
  fcntl.ioctl(notifier, _SECCOMP_IOCTL_NOTIF_RECV, notification)
  # Of a struct seccomp_notif: id, and the system call's first argument.
  (call,) = struct.unpack_from('Q', notification, 0)
  (descriptor,) = struct.unpack_from('I', notification, 32)
  # A struct seccomp_notif_addfd.
  replacement = struct.pack(
    'QIIII',
    call,
    _SECCOMP_ADDFD_FLAG_SETFD,
    listener,
    descriptor,
    os.O_CLOEXEC,
  )
  fcntl.ioctl(notifier, _SECCOMP_IOCTL_NOTIF_ADDFD, replacement)
  # The socket listens already, so that the suspended call returns 0.
  answer = struct.pack('QqiI', call, 0, 0, 0)
  fcntl.ioctl(notifier, _SECCOMP_IOCTL_NOTIF_SEND, answer)
