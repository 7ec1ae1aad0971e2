"""How fast a directory's disk writes and reads, the way the disk tier uses it.

Enters: a directory and a number of bytes. Leaves: a `DiskSpeed`. The one idea: go around the page cache (direct I/O),
in large aligned chunks, because cached figures describe RAM and collapse once it is full. The file is private (mode
0600) and has no name in the directory while it is used, so nothing is left behind even if the process is killed.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from vdnn.runtime.tiers.direct_io import CHUNK_NBYTES, NO_DIRECT_IO, direct_flag, open_unnamed, usable_nbytes


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """`is_direct` is False when the file system has no direct I/O: the figures are then those of buffered I/O with a
    flush."""

    directory: str
    free_nbytes: int
    write_bytes_per_s: float
    read_bytes_per_s: float
    is_direct: bool


def measure_disk(directory: str | os.PathLike[str], nbytes: int, chunk_nbytes: int = CHUNK_NBYTES) -> DiskSpeed:
    """Write `nbytes` (rounded up to whole chunks) once in sequence, then read them once."""
    num_chunks = max(1, -(-nbytes // chunk_nbytes))
    free = usable_nbytes(directory, num_chunks * chunk_nbytes)
    try:
        write, read = _rates(directory, num_chunks, chunk_nbytes, direct_flag())
        is_direct = bool(direct_flag())
    except OSError as error:
        if error.errno not in NO_DIRECT_IO:
            raise
        write, read = _rates(directory, num_chunks, chunk_nbytes, 0)
        is_direct = False
    return DiskSpeed(os.fspath(directory), free, write, read, is_direct)


def _rates(directory: str | os.PathLike[str], num_chunks: int, chunk_nbytes: int, flags: int) -> tuple[float, float]:
    """Bytes per second of writing and of reading."""
    descriptor = open_unnamed(directory, flags)
    try:
        # Anonymous memory is page-aligned, as direct I/O asks of a buffer. Random bytes, because some disks compress.
        with mmap.mmap(-1, chunk_nbytes) as chunk:
            chunk.write(os.urandom(chunk_nbytes))
            write_s = _seconds(lambda: _write(descriptor, chunk, num_chunks, flush=not flags))
            if not flags and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            read_s = _seconds(lambda: _read(descriptor, chunk, num_chunks))
    finally:
        os.close(descriptor)
    return num_chunks * chunk_nbytes / write_s, num_chunks * chunk_nbytes / read_s


def _seconds(run: Callable[[], None]) -> float:
    begin = perf_counter()
    run()
    return perf_counter() - begin


def _write(descriptor: int, chunk: mmap.mmap, num_chunks: int, *, flush: bool) -> None:
    for position in range(num_chunks):
        _whole(os.pwrite(descriptor, chunk, position * len(chunk)), len(chunk), "wrote")
    if flush:
        os.fsync(descriptor)


def _read(descriptor: int, chunk: mmap.mmap, num_chunks: int) -> None:
    for position in range(num_chunks):
        _whole(os.preadv(descriptor, [chunk], position * len(chunk)), len(chunk), "read")


def _whole(moved_nbytes: int, asked_nbytes: int, verb: str) -> None:
    if moved_nbytes != asked_nbytes:
        raise OSError(errno.EIO, f"{verb} {moved_nbytes} of {asked_nbytes} bytes: the disk is full or failing")
