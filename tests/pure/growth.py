"""How the work of something grows with its size: a bound that holds on every machine, where seconds do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TIMES = 8
AT_MOST = 3 * TIMES
"""Between `TIMES`, which is linear, and its square: caches and neighbours make the larger one dearer than its share."""


def growth(work: Callable[[Any], Any], small: Any, large: Any) -> float:
    """Processor time for the large over that for the small, which is `TIMES` smaller. Of each the best of three: the
    work itself, not what else the machine did."""
    return min(_seconds(work, large) for _ in range(3)) / min(_seconds(work, small) for _ in range(3))


def _seconds(work: Callable[[Any], Any], given: Any) -> float:
    begin = time.process_time()
    work(given)
    return time.process_time() - begin
