"""A control group in which limits of memory may be set, where this machine lets its user make one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vdnn.runtime.hard_limit import remove_groups


@pytest.fixture
def group() -> Iterator[Path | None]:
    """A control group in which limits may be set; None where there is none."""
    found = _made_group()
    yield found
    if found is not None:
        remove_groups(found)
        found.rmdir()


def _made_group() -> Path | None:
    for parent in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        found = parent / f"vdnn-tests-{os.getpid()}"
        try:
            found.mkdir()
        except OSError:
            continue
        if any((found / name).exists() for name in ("memory.limit_in_bytes", "memory.max")):
            return found
        found.rmdir()
    return None
