"""Files for bytes that leave memory: private, without a name, and around the page cache where the system allows it.

Enters: a directory. Leaves: a descriptor, or `InvalidInput` with what is wrong with the directory. The one idea: direct
I/O in large aligned chunks, because buffered writes collapse once the page cache is full; and a file that has no name
is gone when its process is, even if it was killed.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from vdnn.environment import DISK_DIR
from vdnn.errors import InvalidInput
from vdnn.units import MiB, format_nbytes

CHUNK_NBYTES = (
    8 * MiB
)  # 1 MiB chunks reached half the rate of 8 MiB ones on a cloud NVMe disk; larger ones gained nothing
NO_DIRECT_IO = (
    errno.EINVAL,
    errno.EOPNOTSUPP,
)  # what a file system without direct I/O answers, at open or at the first write


def usable_nbytes(directory: str | os.PathLike[str], needed_nbytes: int) -> int:
    """Free bytes of a directory that exists, can be written and has room; anything else raises `InvalidInput`."""
    path = Path(directory)
    way_out = f"Name another directory, as an argument or in {DISK_DIR}."
    if not path.is_dir():
        raise InvalidInput(f"cannot use {str(path)!r} for the disk tier: it is not a directory. {way_out}")
    if not os.access(path, os.W_OK | os.X_OK):
        raise InvalidInput(f"cannot use {str(path)!r} for the disk tier: it is not writable. {way_out}")
    free = shutil.disk_usage(path).free
    if free < needed_nbytes:
        found = f"{format_nbytes(needed_nbytes)} are needed and {format_nbytes(free)} are free"
        raise InvalidInput(f"cannot use {str(path)!r} for the disk tier: {found}. {way_out}")
    return free


def direct_flag() -> int:
    """0 on systems that have no such flag, for example macOS."""
    return getattr(os, "O_DIRECT", 0)


def open_unnamed(directory: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of a new private file without a name. Linux makes one at once; elsewhere the name is removed after
    it."""
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
        except OSError as error:
            # EISDIR: a kernel without the flag. EOPNOTSUPP, EINVAL: a file system without it, or without direct I/O.
            if error.errno not in (errno.EISDIR, *NO_DIRECT_IO):
                raise
    named, path = tempfile.mkstemp(prefix="vdnn-", dir=directory)
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags)
    finally:
        os.close(named)
        os.unlink(path)
