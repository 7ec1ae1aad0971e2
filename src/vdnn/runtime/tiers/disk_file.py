"""The private file of the disk tier: whole chunks in and out, and every failure as an error that names the tier.

Enters: buffers and an offset. Leaves: nothing, or `TierFull` / `TierFailed`. The file has mode 0600 and no name in its
directory from the start, so that nothing is left behind however the process ends. It goes around the page cache where
the file system allows; where it does not, the log says so once, because buffered writes are slower by a factor. Room
is set aside before it is written (`allocate`), so that a full disk is known before a step depends on it. A call that
moves a part is followed by another for the rest.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from ctypes import Array, c_char
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap

from vdnn.errors import InvalidInput, TierFailed, TierFull
from vdnn.runtime.tiers.direct_io import (
    NO_DIRECT_IO,
    direct_flag,
    largest_file_nbytes,
    open_unnamed,
    reserve_on_disk,
)
from vdnn.units import format_nbytes

log = logging.getLogger(__name__)

DIRECT_PAGE_NBYTES = max(4096, PAGESIZE)  # every disk's logical block divides it
_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space, over quota, over the process's file-size limit

MOST_IDLE_CALLS = 2  # a call may come back without a byte; one after the other that does is the end of the file

Buffers = Sequence[Array[c_char]]


class DiskFile:
    """`page_nbytes` is what offsets, sizes and addresses have to be multiples of: 1 without direct I/O."""

    def __init__(self, directory: str, tier: str) -> None:
        self.directory = directory
        self._tier = tier
        self._has_warned = False
        self._descriptor, self.page_nbytes = self._open()

    @property
    def is_direct(self) -> bool:
        return self.page_nbytes > 1

    def write(self, buffers: Buffers, offset: int) -> None:
        self._move(os.pwritev, "writing", "to", buffers, offset)

    def read(self, buffers: Buffers, offset: int) -> None:
        self._move(os.preadv, "reading", "from", buffers, offset)

    def allocate(self, begin: int, end: int) -> None:
        """Make the file's bytes from `begin`, its end so far, up to `end` certain to be there: set aside on disk, or
        at least free now where the file system cannot. `TierFull` says why they cannot be had."""
        context = f"setting aside {format_nbytes(end - begin)} for the {self._tier} tier in {self.directory!r}"
        limit = largest_file_nbytes()
        if limit is not None and end > limit:
            raise self._no_space(context, errno.EFBIG)
        if not self._has_room_up_to(end):
            raise self._no_space(context, errno.ENOSPC)
        try:
            if not reserve_on_disk(self._descriptor, begin, end - begin) and not self._has_warned:
                self._has_warned = True
                log.warning(
                    "%s cannot set space aside (no fallocate): if others fill it, the %s tier fails in mid-step",
                    self.directory,
                    self._tier,
                )
        except OSError as error:
            os.ftruncate(self._descriptor, begin)  # what was set aside of it
            raise self._failed(context, error) from error

    def _has_room_up_to(self, end: int) -> bool:
        """Whether the file can grow to `end`: what it has on disk already, and what is free there. A file system that
        gives no size (ramfs) is believed until a write fails."""
        usage = shutil.disk_usage(self.directory)
        return usage.total == 0 or end <= os.fstat(self._descriptor).st_blocks * 512 + usage.free

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """The descriptor goes with the last place in the file, also when nobody calls `close`."""
        if hasattr(self, "_descriptor"):
            self.close()

    def _open(self) -> tuple[int, int]:
        """A descriptor with direct I/O if the file system takes it, at open and at the first write."""
        if direct_flag():
            try:
                return self._open_probed(direct_flag()), DIRECT_PAGE_NBYTES
            except OSError as error:
                if error.errno not in NO_DIRECT_IO:
                    raise self._unusable(error) from error
        log.warning("%s has no direct I/O: the %s tier goes through the page cache", self.directory, self._tier)
        try:
            return open_unnamed(self.directory, 0), 1
        except OSError as error:
            raise self._unusable(error) from error

    def _open_probed(self, flags: int) -> int:
        descriptor = open_unnamed(self.directory, flags)
        try:
            with mmap(-1, DIRECT_PAGE_NBYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS) as page:
                os.pwrite(descriptor, page, 0)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _unusable(self, error: OSError) -> Exception:
        if error.errno in _IS_FULL:
            return TierFull(f"the {self._tier} tier cannot begin: {self.directory!r} says {error.strerror!r}.")
        words = f"cannot use {self.directory!r} for the {self._tier} tier: {error.strerror}."
        return InvalidInput(f"{words} Name another directory.")

    def _move(
        self, call: Callable[[int, Buffers, int], int], verb: str, preposition: str, buffers: Buffers, offset: int
    ) -> None:
        """All of it. With direct I/O the next call has to begin at a page again, so a part of one is moved twice."""
        asked, done, num_idle = sum(map(len, buffers)), 0, 0
        context = f"{verb} {format_nbytes(asked)} {preposition} the {self._tier} tier (a file in {self.directory!r})"
        while done < asked:
            try:
                moved = call(self._descriptor, _rest(buffers, done), offset + done)
            except OSError as error:
                raise self._failed(context, error) from error
            if done + moved < asked:
                moved -= moved % self.page_nbytes
                num_idle = 0 if moved else num_idle + 1
            if num_idle > MOST_IDLE_CALLS:
                size = os.fstat(self._descriptor).st_size
                ends = f": the file ends at byte {size}" if size < offset + asked else ""
                raise TierFailed(f"{context} failed: only {done} of {asked} bytes were moved{ends}. {_CHECK_DISK}")
            done += moved

    def _failed(self, context: str, error: OSError) -> Exception:
        if error.errno in _IS_FULL:
            return self._no_space(context, error.errno)
        return TierFailed(f"{context} failed: {error.strerror}. {_CHECK_DISK}")

    def _no_space(self, context: str, number: int | None) -> TierFull:
        limit = largest_file_nbytes()
        if number == errno.EFBIG and limit is not None:
            return TierFull(
                f"{context} failed: this process may not make files larger than {format_nbytes(limit)} (RLIMIT_FSIZE)."
                " Raise that limit (`ulimit -f`), or set disk_budget below it."
            )
        words = os.strerror(number or errno.ENOSPC)
        free = format_nbytes(shutil.disk_usage(self.directory).free)
        return TierFull(f"{context} failed: {words}, {free} are free. Free some space or name another directory.")


def _rest(buffers: Buffers, done: int) -> Buffers:
    """What is left of the buffers behind their first `done` bytes."""
    if not done:
        return buffers
    rest, begin = [], 0
    for buffer in buffers:
        skipped = min(max(done - begin, 0), len(buffer))
        if skipped < len(buffer):
            rest.append((c_char * (len(buffer) - skipped)).from_buffer(buffer, skipped))
        begin += len(buffer)
    return rest


_CHECK_DISK = "Check the disk, or name another directory."
