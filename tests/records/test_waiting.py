import os
import signal

import pytest

from tff_ocs.records import waiting


def test_result_and_error_are_those_of_the_coroutine():
  async def succeed():
    return 3

  async def fail():
    raise OSError('full')

  assert waiting.wait_for(succeed()) == 3
  with pytest.raises(OSError, match='full'):
    waiting.wait_for(fail())


def test_ctrl_c_is_not_lost_in_a_coroutine_that_never_waits():
  async def write():
    os.kill(os.getpid(), signal.SIGINT)
    return 'written'

  with pytest.raises(KeyboardInterrupt):
    waiting.wait_for(write())
