"""Memory for codes, taken and given back every step without asking the system each time.

Enters: a size. Leaves: a tensor of so many bytes; when the last reference to it is gone, its memory returns to the pool
or to the system. The one idea: a large block that malloc returns to the system costs a page fault per 4 KiB when it is
taken again, which is slower than encoding into it. Blocks are mapped with huge pages where the system has them, and a
few stay in the pool: `plan/idle_room.py` says which, so that the peak stays what the plan says.
"""

from __future__ import annotations

import ctypes
import mmap
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from vdnn.plan.idle_room import MIN_NBYTES

_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


class BufferPool:
    """`lasting` are the sizes of blocks that may wait here, one entry per block."""

    def __init__(self, lasting: Iterable[int] = ()) -> None:
        self._may_wait = Counter(lasting)
        self._waiting: defaultdict[int, list[mmap.mmap]] = defaultdict(list)  # appends and pops are atomic

    def take(self, nbytes: int, device: torch.device) -> torch.Tensor:
        if device.type != "cpu" or nbytes < MIN_NBYTES:
            return torch.empty(nbytes, dtype=torch.uint8, device=device)
        block = self._waiting[nbytes].pop() if self._waiting[nbytes] else _mapped(nbytes)
        # Whoever holds the tensor holds this array; when it dies nobody can reach the block any more.
        array = (ctypes.c_ubyte * nbytes).from_buffer(block)
        weakref.finalize(array, self._give_back, nbytes, block).atexit = False
        with torch._C._DisableTorchDispatch(), warnings.catch_warnings():
            tensor = torch.frombuffer(array, dtype=torch.uint8)
        return torch.ops.aten.alias.default(tensor)  # an op, so that a tracker of tensors sees it

    @property
    def idle_nbytes(self) -> int:
        return sum(nbytes * len(blocks) for nbytes, blocks in self._waiting.items())

    def _give_back(self, nbytes: int, block: mmap.mmap) -> None:
        if len(self._waiting[nbytes]) < self._may_wait[nbytes]:
            self._waiting[nbytes].append(block)
        # Else the last reference to the block goes with this call, and its pages with it.


def _mapped(nbytes: int) -> mmap.mmap:
    block: Any = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if _HUGE_PAGES is not None:
        try:
            block.madvise(_HUGE_PAGES)
        except OSError:
            return block  # a kernel without them serves small pages
    return block
