"""Starts a TFF worker for programs on other hosts.

  python -m tff_ocs.worker --port=8000

is TFF's own worker, set up as `tff_ocs.execution` sets up those it starts. A
program reaches it by `execution.use_remote_context('127.0.0.1:8000')`, from
another host through a tunnel. docs/scale_out.md tells how.

TFF's worker listens on all interfaces, and has no option for less. Whoever
reaches it can run code. So this program listens instead, on 127.0.0.1, and
when the worker wants to listen, the kernel (seccomp) asks this program, which
puts its own socket in the place of the worker's. At no time anybody listens on
another interface.
"""

import argparse
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys

from tff_ocs.runtime import contexts

_LOOPBACK = '127.0.0.1'

# Runs in the worker's process before the worker itself: asks the kernel to
# notify, instead of doing it, when the process calls listen(), and sends the
# file by which that is notified. Numbers are those of Linux on x86-64, the only
# platform of TFF.
_LAUNCHER = """
import ctypes, os, socket, struct, sys
parent = socket.socket(fileno=int(sys.argv[1]))
instructions = (
  (0x20, 0, 0, 0),  # Load the number of the system call.
  (0x15, 0, 1, 50),  # Is it listen()?
  (0x06, 0, 0, 0x7FC00000),  # SECCOMP_RET_USER_NOTIF
  (0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
)
program = ctypes.create_string_buffer(
  b''.join(struct.pack('HBBI', *instruction) for instruction in instructions)
)
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, or only root could do this.
notifier = libc.syscall(
  317,  # seccomp()
  1,  # SECCOMP_SET_MODE_FILTER
  4 | 8,  # SECCOMP_FILTER_FLAG_SPEC_ALLOW, ..._NEW_LISTENER
  struct.pack('H6xP', len(instructions), ctypes.addressof(program)),
)
if notifier < 0:
  parent.send(str(ctypes.get_errno()).encode())
  sys.exit(1)
socket.send_fds(parent, [b'0'], [notifier])
parent.close()
os.execv(sys.argv[2], sys.argv[2:])
"""
_SECCOMP_IOCTL_NOTIF_RECV = 0xC0502100
_SECCOMP_IOCTL_NOTIF_SEND = 0xC0182101
_SECCOMP_IOCTL_NOTIF_ADDFD = 0x40182103
_SECCOMP_ADDFD_FLAG_SETFD = 1

_NOTICE = """\
TFF worker on port {port}, for {whom}.
The channel is neither encrypted nor authenticated: anybody who can connect can
run code as this user. From another host come through a tunnel:
  ssh -N -L {port}:127.0.0.1:{port} {host}
and use the worker as 127.0.0.1:{port}."""


def main(argv=None):
  """Runs the program with the command line's arguments, or these."""
  arguments = _parse(argv)
  port = arguments.port
  # Ends by an exception, as Ctrl-C does.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    if arguments.listen_on_all_interfaces:
      whom = 'all who can reach this host'
    else:
      whom = f'the users of this host, at {_LOOPBACK}'
    with _listen(port, arguments.listen_on_all_interfaces) as listener:
      _tell(_NOTICE.format(whom=whom, port=port, host=socket.gethostname()))
      if arguments.listen_on_all_interfaces:
        listener.close()  # Was to see whether the port is free.
        worker = contexts.WorkerProcess(port)
      else:
        worker = _start_confined(listener)
    with contextlib.closing(worker):
      worker.connect(port)
      _tell('ready')
      worker.wait()
      raise contexts.WorkerError(f'The TFF worker {worker.describe_end()}')
  except (OSError, contexts.WorkerError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    _tell('ended')


def _parse(argv):
  parser = argparse.ArgumentParser(
    prog='python -m tff_ocs.worker',
    description='Starts a TFF worker for programs on other hosts, and runs'
    ' until Ctrl-C or SIGTERM.',
    allow_abbrev=False,
  )
  parser.add_argument(
    '--port',
    type=_port,
    default=8000,
    help='the TCP port to listen on (default: %(default)s)',
  )
  parser.add_argument(
    '--listen_on_all_interfaces',
    action='store_true',
    help=f'listen on all interfaces, instead of {_LOOPBACK} alone; only behind'
    ' a firewall, see docs/scale_out.md',
  )
  return parser.parse_args(argv)


def _port(text):
  if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**16):
    raise argparse.ArgumentTypeError(
      f'must be a number from 1 to 65535, found {text!r}'
    )
  return int(text)


def _listen(port, on_all_interfaces):
  """Listens where the worker is to listen; nobody else does so then."""
  try:
    if not on_all_interfaces:
      listener = socket.create_server((_LOOPBACK, port), backlog=128)
    elif socket.has_dualstack_ipv6():
      listener = socket.create_server(
        ('', port), family=socket.AF_INET6, dualstack_ipv6=True
      )
    else:
      listener = socket.create_server(('', port))
  except OSError as error:
    if error.errno == errno.EADDRINUSE:
      raise OSError(
        f'--port={port} is in use by another program; choose another port.'
      ) from error
    raise OSError(
      f'--port={port} cannot be listened on: {error.strerror}'
    ) from error
  listener.setblocking(False)
  return listener


def _start_confined(listener):
  """Starts a worker that listens by `listener` and nothing else."""
  ours, theirs = socket.socketpair()
  with ours, theirs:
    worker = contexts.WorkerProcess(
      0,
      launcher=(
        sys.executable,
        '-IS',
        '-c',
        _LAUNCHER,
        str(theirs.fileno()),
      ),
      pass_fds=(theirs.fileno(),),
    )
    theirs.close()
    try:
      _confine(worker, ours, listener)
    except BaseException:
      worker.close()
      raise
  return worker


def _confine(worker, launcher, listener):
  message, notifiers, *_ = socket.recv_fds(launcher, 16, 1)
  if not message:
    worker.wait(1)
    worker.check_start()
  try:
    error = int(message)
    if error:
      raise OSError(error, os.strerror(error))
    with open(notifiers[0], 'rb') as notifier:
      _await_listen(worker, notifier)
      _answer_listen(notifier, listener)
  except OSError as error:
    port = listener.getsockname()[1]
    raise OSError(
      f'This system does not let the worker be confined to {_LOOPBACK}'
      f' ({error.strerror}); it takes Linux 5.9 or later, and no container that'
      f' forbids it. Protect port {port} by a firewall rule, see'
      ' docs/scale_out.md, and pass --listen_on_all_interfaces.'
    ) from error


def _await_listen(worker, notifier):
  poll = select.poll()
  poll.register(notifier, select.POLLIN)
  while not any(event & select.POLLIN for _, event in poll.poll(100)):
    worker.check_start()


def _answer_listen(notifier, listener):
  """Puts `listener` in the place of the socket that should listen."""
  notification = bytearray(80)
  fcntl.ioctl(notifier, _SECCOMP_IOCTL_NOTIF_RECV, notification)
  # Of a struct seccomp_notif: id, and the system call's first argument.
  (call,) = struct.unpack_from('Q', notification, 0)
  (descriptor,) = struct.unpack_from('I', notification, 32)
  fcntl.ioctl(
    notifier,
    _SECCOMP_IOCTL_NOTIF_ADDFD,
    struct.pack(
      'QIIII',
      call,
      _SECCOMP_ADDFD_FLAG_SETFD,
      listener.fileno(),
      descriptor,
      os.O_CLOEXEC,
    ),
  )
  # It listens already: the call returns 0.
  fcntl.ioctl(
    notifier, _SECCOMP_IOCTL_NOTIF_SEND, struct.pack('QqiI', call, 0, 0, 0)
  )


def _tell(message):
  print(message, file=sys.stderr, flush=True)


if __name__ == '__main__':
  main()
