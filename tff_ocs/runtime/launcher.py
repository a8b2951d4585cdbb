"""Runs in a worker's process before the worker itself, and becomes the worker.

Executed as a script, with Python's isolated mode and nothing but the standard
library:

  python -IS launcher.py PARENT_PID SOCKET COMMAND [ARGUMENT ...]

SOCKET is the number of an inherited socket, or -1. With a socket the launcher
asks the kernel to suspend each later listen() of this process and to notify the
process at the socket's other end, which receives the notifier (or the number of
the error). See `tff_ocs.runtime.loopback` for the other end.

All numbers below are those of Linux on x86-64, the only platform of TFF.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_SYS_SECCOMP = 317
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
_SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
_FILTER = (
  (0x20, 0, 0, 0),  # Load the number of the system call.
  (0x15, 0, 1, 50),  # Is it listen()?
  (0x06, 0, 0, 0x7FC00000),  # SECCOMP_RET_USER_NOTIF
  (0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
)


def main() -> None:
  """Runs the script with the command line's arguments."""
  parent, socket_number = int(sys.argv[1]), int(sys.argv[2])
  # The kernel kills this process when its parent ends.
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent:  # The parent has ended already.
    sys.exit(1)
  if socket_number >= 0:
    _suspend_listen(socket_number)
  os.execv(sys.argv[3], sys.argv[3:])


def _suspend_listen(socket_number: int) -> None:
  import socket  # Takes as long as all the rest.
  import struct

  instructions = b''.join(struct.pack('HBBI', *row) for row in _FILTER)
  program = ctypes.create_string_buffer(instructions)
  libc = ctypes.CDLL(None, use_errno=True)
  # Without this promise only root could install a filter.
  libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
  notifier = libc.syscall(
    _SYS_SECCOMP,
    _SECCOMP_SET_MODE_FILTER,
    _SECCOMP_FILTER_FLAG_SPEC_ALLOW | _SECCOMP_FILTER_FLAG_NEW_LISTENER,
    struct.pack('H6xP', len(_FILTER), ctypes.addressof(program)),
  )
  with socket.socket(fileno=socket_number) as parent:
    if notifier < 0:
      parent.send(str(ctypes.get_errno()).encode())
      sys.exit(1)
    socket.send_fds(parent, [b'0'], [notifier])


if __name__ == '__main__':
  main()
