"""gRPC channels to TFF workers."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import grpc

_MAX_MESSAGE_BYTES = 2**31 - 1
_OPTIONS = (
  ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  # The first attempt may come before the worker listens; do not wait 1 s then.
  ('grpc.initial_reconnect_backoff_ms', 100),
  ('grpc.min_reconnect_backoff_ms', 100),
  ('grpc.max_reconnect_backoff_ms', 1000),
  # The environment may name a proxy for the web, which does not know workers.
  ('grpc.enable_http_proxy', 0),
)
# A worker on another host can vanish without a word, and a computation that
# waits for it would wait for ever. So a silent worker is asked now and then
# whether it still exists. TFF's worker hangs up on those who ask more often
# than every 5 minutes.
KEEPALIVE_OPTIONS = (
  ('grpc.keepalive_time_ms', 310_000),
  ('grpc.keepalive_timeout_ms', 30_000),
  ('grpc.http2.max_pings_without_data', 0),  # Any number.
)
# Any gRPC server answers at once that it has no such method.
_NO_METHOD = '/tff_ocs/AreYouThere'
_CHECK_SECONDS = 0.1


def create_channel(
  address: str, options: Sequence[tuple[str, int]] = ()
) -> Any:
  """Returns a `grpc.Channel`, neither encrypted nor authenticated.

  Args:
    address: The worker's 'host:port'.
    options: Channel options in addition to those of all workers.
  """
  return grpc.insecure_channel(address, (*_OPTIONS, *options))


def wait_until_ready(channel: Any, check: Callable[[], None]) -> None:
  """Waits until a gRPC server answers.

  Args:
    channel: The `grpc.Channel`.
    check: Called again and again meanwhile; raises an exception to give up.
  """
  call = channel.unary_unary(_NO_METHOD)
  while True:
    # An answer from far away may take longer than the time between checks.
    answer = call.future(b'', wait_for_ready=True)
    try:
      while not _is_there(answer):
        check()
    finally:
      answer.cancel()
    if answer.code() is grpc.StatusCode.UNIMPLEMENTED:
      return
    check()


def _is_there(answer: Any) -> bool:
  """Waits a little for an answer, which may be an error."""
  try:
    answer.exception(_CHECK_SECONDS)
  except grpc.FutureTimeoutError:
    return False
  return True


class UnwatchedChannel:
  """A channel as TFF's stub needs it, without a thread that watches its state.

  TFF's stub lets gRPC watch the channel for `is_ready`, which is not used here.
  The watching thread prints a traceback if the channel is closed when its state
  has just changed.
  """

  def __init__(self, channel: Any):
    """Initializes `UnwatchedChannel`.

    Args:
      channel: The `grpc.Channel` that makes the calls.
    """
    self.unary_unary = channel.unary_unary

  def subscribe(
    self, callback: Callable[[Any], None], try_to_connect: bool = False
  ) -> None:
    """Does nothing."""
