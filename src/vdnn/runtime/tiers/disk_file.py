"""The private file of the disk tier: whole chunks in and out, and every failure as an error that names the tier.

Enters: buffers and an offset. Leaves: nothing, or `TierFull` / `TierFailed`. The file has mode 0600 and no name in its
directory from the start, so that nothing is left behind however the process ends. It goes around the page cache where
the file system allows; where it does not, the log says so once, because buffered writes are slower by a factor.
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
from vdnn.runtime.tiers.direct_io import NO_DIRECT_IO, direct_flag, open_unnamed
from vdnn.units import format_nbytes

log = logging.getLogger(__name__)

DIRECT_PAGE_NBYTES = max(4096, PAGESIZE)  # every disk's logical block divides it
_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space, over quota, over the process's file-size limit

Buffers = Sequence[Array[c_char]]


class DiskFile:
    """`page_nbytes` is what offsets, sizes and addresses have to be multiples of: 1 without direct I/O."""

    def __init__(self, directory: str, tier: str) -> None:
        self.directory = directory
        self._tier = tier
        self._descriptor, self.page_nbytes = self._open()

    @property
    def is_direct(self) -> bool:
        return self.page_nbytes > 1

    def write(self, buffers: Buffers, offset: int) -> None:
        self._move(os.pwritev, "writing", "to", buffers, offset)

    def read(self, buffers: Buffers, offset: int) -> None:
        self._move(os.preadv, "reading", "from", buffers, offset)

    def has_room_up_to(self, end: int) -> bool:
        """Whether the file can grow to `end`: what it has on disk already, and what is free there. A file system that
        gives no size (ramfs) is believed until a write fails."""
        usage = shutil.disk_usage(self.directory)
        return usage.total == 0 or end <= os.fstat(self._descriptor).st_blocks * 512 + usage.free

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

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
        asked = sum(map(len, buffers))
        context = f"{verb} {format_nbytes(asked)} {preposition} the {self._tier} tier (a file in {self.directory!r})"
        try:
            moved = call(self._descriptor, buffers, offset)
            if moved != asked and call is os.pwritev:
                self._write_last_page(buffers, offset + asked)
        except OSError as error:
            if error.errno in _IS_FULL:
                raise self._no_space(context, error.strerror or "full") from error
            raise TierFailed(f"{context} failed: {error.strerror}. {_CHECK_DISK}") from error
        if moved != asked:
            raise TierFailed(f"{context} failed: only {moved} of {asked} bytes were moved. {_CHECK_DISK}")

    def _write_last_page(self, buffers: Buffers, end: int) -> None:
        """A write that stops half-way does not say why; the next one does, if the reason is a lack of space."""
        last = buffers[-1]
        page = (c_char * self.page_nbytes).from_buffer(last, len(last) - self.page_nbytes)
        os.pwritev(self._descriptor, [page], end - self.page_nbytes)

    def _no_space(self, context: str, words: str) -> TierFull:
        free = format_nbytes(shutil.disk_usage(self.directory).free)
        return TierFull(f"{context} failed: {words}, {free} are free. Free some space or name another directory.")


_CHECK_DISK = "Check the disk, or name another directory."
