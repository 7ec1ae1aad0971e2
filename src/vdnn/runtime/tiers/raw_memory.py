"""Bytes by address: what moving them takes without holding the interpreter lock.

Enters: addresses and sizes. Leaves: buffers for system calls, copies, aligned staging. A copy through a Python
memoryview holds the interpreter lock and stalls the training thread; `ctypes.memmove` and the vectored file calls on
the buffers made here release it, and both run on one core where `Tensor.copy_` would start a team of threads that
competes with the training.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vdnn.units import MiB

HUGE_PAGE_NBYTES = 2 * MiB  # x86-64 and arm64 with 4 KiB pages; another size only makes the advice useless
_MADV_HUGEPAGE = 14  # Linux, include/uapi/asm-generic/mman-common.h
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def raw_bytes(address: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
    """Memory as a buffer, without a copy and without keeping it alive."""
    return (ctypes.c_char * nbytes).from_address(address)


def move_bytes(target: int, source: int, nbytes: int) -> None:
    ctypes.memmove(target, source, nbytes)


def round_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """Ask for huge pages in memory that is about to be filled. Advice only: an error changes nothing.

    Filling fresh memory in pages of 4 KiB is bound by page faults: reading 64 MiB from disk into a new tensor ran at
    1.2 GB/s, with this advice at 2.1, into old memory at 2.0 (medians of 25 on a cloud machine).
    """
    begin = round_up(address, HUGE_PAGE_NBYTES)
    end = (address + nbytes) // HUGE_PAGE_NBYTES * HUGE_PAGE_NBYTES
    if _libc is not None and begin < end:
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_HUGEPAGE)


class StagingPool:
    """Page-aligned buffers, at most `num_buffers`, made when first needed. Borrowing waits while all are in use."""

    def __init__(self, num_buffers: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._idle: list[mmap.mmap] = []
        self._available = threading.Semaphore(num_buffers)

    @contextmanager
    def borrow(self) -> Iterator[int]:
        """The address of a buffer, for the length of a `with` block."""
        with self._available:
            buffer = self._idle.pop() if self._idle else self._new_buffer()
            try:
                yield ctypes.addressof(ctypes.c_char.from_buffer(buffer))
            finally:
                self._idle.append(buffer)

    def _new_buffer(self) -> mmap.mmap:
        return mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
