"""Run one op in the room that was made for it; where the device has less than was thought, make more and run it again.

Enters: an op with its arguments. Leaves: its results, and what it took at most if it was counted. Room for an op that
nobody has seen is a guess, an allocator keeps bytes between its blocks, and others may take what was free: then an
accelerator says that it is out of memory, in the middle of the op. What can leave leaves, and the op runs again, from
the same state of the random generator. Not one that writes to what it was given: it may have begun to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from vdnn.cost.op_memory import run_counted
from vdnn.hardware.where import CPU
from vdnn.runtime.random_states import random_state, set_random_state
from vdnn.torch_private import schema_of

_WRITTEN_UNSAID = frozenset({"running_mean", "running_var"})
"""Arguments that kernels of batch normalisation write to, whatever their schema says."""


def run_op(
    op: Any, args: Any, kwargs: Any, where: torch.device, free_all: Callable[[], None], *, counted: bool
) -> tuple[Any, int | None]:
    """`free_all` has all leave that can."""
    call = partial(op, *args, **kwargs)
    run = partial(run_counted, call, where) if counted else lambda: (call(), None)
    if where == CPU:
        return run()
    before = random_state(where) if torch.Tag.nondeterministic_seeded in op.tags else None
    try:
        return run()
    except torch.OutOfMemoryError:
        if not may_run_again(op, kwargs):
            raise
    free_all()
    if before is not None:
        set_random_state(where, before)
    return run()


def may_run_again(op: Any, kwargs: Any) -> bool:
    schema = schema_of(op)
    writes = schema.is_mutable or any(argument.name in _WRITTEN_UNSAID for argument in schema.arguments)
    return not writes and kwargs.get("generator") is None
