"""Starts a TFF worker for programs on other hosts.

  python -m tff_ocs.worker --port=8000

runs TFF's own worker, set up as `tff_ocs.execution` sets up those it starts. A
program reaches it by `execution.use_remote_context('127.0.0.1:8000')`, from
another host through a tunnel, as docs/scale_out.md explains. The worker listens
on 127.0.0.1 alone, see `tff_ocs.runtime.loopback`.
"""

import argparse
import contextlib
import errno
import signal
import socket
import sys

from tff_ocs.runtime import loopback
from tff_ocs.runtime import worker_process

_NOTICE = """\
TFF worker on port {port}, for {whom}.
The channel is neither encrypted nor authenticated: anybody who can connect can
run code as this user. From another host come through a tunnel:
  ssh -N -L {port}:127.0.0.1:{port} {host}
and use the worker as 127.0.0.1:{port}."""


def main(argv=None):
  """Runs the program with the command line's arguments, or with `argv`."""
  arguments = _parse(argv)
  # Ends by an exception, as Ctrl-C does.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  start = _start_open if arguments.listen_on_all_interfaces else _start_confined
  try:
    with contextlib.closing(start(arguments.port)) as worker:
      worker.wait_until_ready()
      _print('ready')
      worker.wait()
      raise worker_process.WorkerError(
        f'The TFF worker {worker.describe_end()}'
      )
  except (OSError, worker_process.WorkerError) as error:
    sys.exit(f'error: {error}')
  except KeyboardInterrupt:
    _print('ended')


def _start_open(port):
  """Starts a worker that listens on all interfaces."""
  is_dual = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if is_dual else socket.AF_INET
  # The worker itself would share the port with another worker of this user.
  with _explain_port(port):
    socket.create_server(
      ('', port), family=family, dualstack_ipv6=is_dual
    ).close()
  _print_notice(port, 'all who can reach this host')
  return worker_process.WorkerProcess(port)


def _start_confined(port):
  """Starts a worker that listens on 127.0.0.1 alone."""
  with _explain_port(port):
    listener = loopback.create_listener(port)
  _print_notice(port, f'the users of this host, at {loopback.ADDRESS}')
  with listener:
    try:
      return worker_process.WorkerProcess(port, listener=listener)
    except loopback.ConfinementError as error:
      raise OSError(
        f'This system does not let the worker be confined to'
        f' {loopback.ADDRESS} ({error}); it takes Linux 5.9 or later, and no'
        f' container that forbids it. Protect port {port} by a firewall rule,'
        ' see docs/scale_out.md, and pass --listen_on_all_interfaces.'
      ) from error


def _print_notice(port, whom):
  _print(_NOTICE.format(whom=whom, port=port, host=socket.gethostname()))


@contextlib.contextmanager
def _explain_port(port):
  """Turns an error into one that names the flag."""
  try:
    yield
  except OSError as error:
    reason = f'cannot be listened on: {error.strerror or error}'
    if error.errno == errno.EADDRINUSE:
      reason = 'is in use by another program; choose another port.'
    raise OSError(f'--port={port} {reason}') from error


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
    help=f'listen on all interfaces, instead of {loopback.ADDRESS} alone; only'
    ' behind a firewall, see docs/scale_out.md',
  )
  return parser.parse_args(argv)


def _port(text):
  if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**16):
    raise argparse.ArgumentTypeError(
      f'must be a number from 1 to 65535, found {text!r}'
    )
  return int(text)


def _print(message):
  print(message, file=sys.stderr, flush=True)


if __name__ == '__main__':
  main()
