"""A function in a forked child. Whatever happens there, the child ends: one that went on would run the tests after it a
second time."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

FAILED = 99


def exit_code_of(function: Callable[[], int]) -> int:
    """What `function` returns in a forked child; `FAILED`, with the traceback on standard error, if it raises."""
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            code = int(function())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
