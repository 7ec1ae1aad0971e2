"""A hard limit on what a process may still take: of a control group, or of its own data.

Enters: bytes. Leaves: a process that the system refuses more. A control group counts pages that are touched and kills
whoever exceeds it, as containers do; it needs a group that was delegated to the user (`VDNN_CGROUP`: in such a group
others may not be meant). Without one the process is limited by itself: RLIMIT_DATA counts what is mapped for writing,
touched or not, and has the allocator fail.

Note: [Addresses count]
Under RLIMIT_DATA a range of addresses counts whether it has pages or not: the arena, out of which pages move to
gradients, would count twice, and so do holes of malloc's heap and the stacks of threads. So a process that is to be
limited so runs without the arena, malloc returns what is freed, and `BESIDE_NBYTES` more is allowed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vdnn.environment import delegated_cgroup, leave_out_step_memory
from vdnn.errors import Unsupported
from vdnn.runtime.process_memory import status_nbytes
from vdnn.units import MiB

CONTROL_GROUP, DATA = "control group", "RLIMIT_DATA"

ALLOWED_SHARE = 1.02
"""How many times its budget a process may take beyond an idle interpreter."""

BESIDE_NBYTES = {CONTROL_GROUP: 24 * MiB, DATA: 128 * MiB}
"""What is allowed beside that, by kind of limit: the interpreter's own objects of a captured graph; and where addresses
count, the heap that planning leaves free and threads of transfers with 8 MiB of stack each. Note: [Addresses count]"""


def kind_of_limit() -> str:
    """What limits a process here. `Unsupported` where nothing does."""
    if delegated_cgroup() is not None:
        return CONTROL_GROUP
    if sys.platform == "linux":  # elsewhere RLIMIT_DATA does not count what malloc maps
        return DATA
    raise Unsupported(
        f"no hard limit can be set here: {sys.platform} limits no process by its data, and VDNN_CGROUP names no control"
        " group. Train inside a container with a limit instead."
    )


def allowed_nbytes(budget_nbytes: int) -> int:
    """What a process may take beyond an idle interpreter, for a budget that it is to keep."""
    return int(ALLOWED_SHARE * budget_nbytes) + BESIDE_NBYTES[kind_of_limit()]


def expect_limit() -> None:
    """To be said before anything is allocated by a process that will be limited. Note: [Addresses count]"""
    if kind_of_limit() == DATA:
        leave_out_step_memory()


def limit_growth(nbytes: int) -> None:
    """From now on this process may take so many bytes more than it has, and not a page beyond."""
    group = delegated_cgroup()
    if group is not None:
        enter_group(group, nbytes)
    else:
        limit_data(nbytes)


def limit_data(nbytes: int) -> None:
    import resource

    allowed = status_nbytes("VmData") + nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


def enter_group(parent: Path, nbytes: int) -> None:
    """Into a new group of `nbytes`. What the process has stays charged to the group that it leaves."""
    group = parent / f"vdnn-{os.getpid()}"
    try:
        group.mkdir()
        for name, value in _settings(parent, nbytes):
            (group / name).write_text(f"{value}")
        (group / "cgroup.procs").write_text(f"{os.getpid()}")
    except OSError as problem:
        raise Unsupported(
            f"VDNN_CGROUP={parent} is no control group in which a limit can be set: {problem}. Name one that is"
            " delegated to you and has the memory controller, or unset it."
        ) from problem


def remove_groups(parent: Path) -> None:
    """The groups of processes that have ended."""
    for group in parent.glob("vdnn-*"):
        try:
            group.rmdir()
        except OSError:
            continue  # somebody still runs in it


def _settings(parent: Path, nbytes: int) -> list[tuple[str, int]]:
    """Files of the two versions of control groups; without swap a limit is a limit of memory."""
    if (parent / "cgroup.controllers").exists():
        return [("memory.max", nbytes), ("memory.swap.max", 0)]
    return [("memory.limit_in_bytes", nbytes)]
