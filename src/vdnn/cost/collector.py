"""Python's cycle collector, paused for a while.

Who makes a million small values that all stay pays for every look the collector takes at them and at all of torch's: a
quarter of the time that planning 10^4 layers takes. And a tensor that it frees in the middle of an op passes for
something the op did.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
