"""Waits for the coroutines of TFF's release and state managers."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from typing import TypeVar

_Result = TypeVar('_Result')


def wait_for(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
  """Runs a coroutine to its end.

  `asyncio.run` of Python 3.11 and later turns a Ctrl-C into a cancellation of
  the coroutine. One that comes while the coroutine writes a file, and never
  waits again, is lost. Here it is a `KeyboardInterrupt`, as everywhere else.

  Args:
    coroutine: The coroutine.

  Returns:
    Its result.
  """
  loop = asyncio.new_event_loop()
  try:
    return loop.run_until_complete(coroutine)
  finally:
    loop.close()
