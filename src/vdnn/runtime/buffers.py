"""Memory for encodings, taken and given back every step without asking the system each time.

Enters: a size. Leaves: a tensor of so many bytes; when the last reference to it is gone, its memory returns to the pool
or to the system. The one idea: a large block that malloc returns to the system costs a page fault per 4 KiB when it is
taken again, which is slower than encoding into it. Blocks are mapped with huge pages where the system has them, and a
few stay in the pool: `plan/shared/lasting_buffers.py` says whose, so that the peak stays what the plan says. A block
waits for its own decision only: of two encodings of one size, the wrong one waiting would be there when the plan has no
room for it.
"""

from __future__ import annotations

import ctypes
import mmap
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from vdnn.plan.shared.lasting_buffers import MIN_POOLED_NBYTES
from vdnn.torch_private import without_torch_dispatch

_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


class BufferPool:
    """`lasting` are the decisions whose block may wait here, one each."""

    def __init__(self, lasting: Iterable[int] = ()) -> None:
        self._may_wait = frozenset(lasting)
        self._waiting: dict[int, mmap.mmap] = {}  # its pop and its setdefault are atomic

    def take(self, decision: int, nbytes: int, device: torch.device) -> torch.Tensor:
        if device.type != "cpu" or nbytes < MIN_POOLED_NBYTES:
            return torch.empty(nbytes, dtype=torch.uint8, device=device)
        block = self._waiting.pop(decision, None)
        block = _mapped(nbytes) if block is None else block
        # Whoever holds the tensor holds this array; when it dies nobody can reach the block any more.
        array = (ctypes.c_ubyte * nbytes).from_buffer(block)
        weakref.finalize(array, self._give_back, decision, block).atexit = False
        with without_torch_dispatch(), warnings.catch_warnings():
            tensor = torch.frombuffer(array, dtype=torch.uint8)
        return torch.ops.aten.alias.default(tensor)  # an op, so that a tracker of tensors sees it

    @property
    def idle_nbytes(self) -> int:
        return sum(len(block) for block in self._waiting.values())

    def _give_back(self, decision: int, block: mmap.mmap) -> None:
        if decision in self._may_wait:
            self._waiting.setdefault(decision, block)
        # Else, or if another one waits already, the last reference to the block goes here, and its pages with it.


def _mapped(nbytes: int) -> mmap.mmap:
    block: Any = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _HUGE_PAGES is not None:
        try:
            block.madvise(_HUGE_PAGES)
        except OSError:
            return block  # a kernel without them serves small pages
    return block
