"""Files for bytes that leave memory: private, without a name, and around the page cache where the system allows it.

Enters: a directory. Leaves: a descriptor, or `InvalidInput` with what is wrong with the directory. The one idea: direct
I/O in large aligned chunks, because buffered writes collapse once the page cache is full; and a file that has no name
is gone when its process is, even if it was killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from vdnn.environment import DISK_DIR, disk_dir
from vdnn.errors import InvalidInput, TierFailed
from vdnn.units import MiB, format_nbytes

CHUNK_NBYTES = (
    8 * MiB
)  # 1 MiB chunks reached half the rate of 8 MiB ones on a cloud NVMe disk; larger ones gained nothing
NO_DIRECT_IO = (
    errno.EINVAL,
    errno.EOPNOTSUPP,
)  # what a file system without direct I/O answers, at open or at the first write


_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS)
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None) if sys.platform == "linux" else None


def usable_nbytes(directory: str | os.PathLike[str], needed_nbytes: int) -> int:
    """Free bytes of a directory that exists, can be written and has room; anything else raises `InvalidInput`."""
    path = Path(directory)
    way_out = f"Name another directory, as an argument or in {DISK_DIR}."
    if wrong := _wrong_with(path):
        raise InvalidInput(f"cannot use {str(path)!r} for the disk tier: {wrong}. {way_out}")
    usage = shutil.disk_usage(path)
    free = usage.free
    if usage.total and free < needed_nbytes:  # a file system in RAM may give no size
        found = f"{format_nbytes(needed_nbytes)} are needed and {format_nbytes(free)} are free"
        raise InvalidInput(f"cannot use {str(path)!r} for the disk tier: {found}. {way_out}")
    return free


def require_folder_for_files(directory: str | os.PathLike[str], option: str) -> None:
    """`InvalidInput` where no file can be made in the folder that was named by this option. The room there is looked at
    when it is known how much is needed."""
    wrong = _wrong_with(Path(directory))
    if not wrong:
        try:
            os.close(open_unnamed(directory, 0))
        except TierFailed as problem:
            wrong = str(problem)
        except OSError as problem:
            wrong = f"no file can be made in it ({problem.strerror})"
    if wrong:
        raise InvalidInput(
            f"cannot use {option}={os.fspath(directory)!r} for the disk tier: {wrong}. Name a folder that is there and"
            f" can be written to, on a local disk with room, or leave out {option}=: then {DISK_DIR} says where files"
            f" go, or they go to {str(disk_dir())!r}."
        )


def _wrong_with(path: Path) -> str:
    """Empty where nothing is, as far as can be told without making a file there."""
    if not path.is_dir():
        return "it is not a directory" if path.exists() else "it is not a directory, and nothing else is there"
    return "" if os.access(path, os.W_OK | os.X_OK) else "it is not writable"


def largest_file_nbytes() -> int | None:
    """What a file of this process may grow to; None where nothing bounds it."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def room_nbytes(directory: str | os.PathLike[str], file_nbytes: int = 0) -> int | None:
    """By how much a file of `file_nbytes` in `directory` may grow now: what is free there, or what the process's limit
    for files leaves. None where neither is known, as on a file system that gives no size (ramfs)."""
    usage, limit = shutil.disk_usage(directory), largest_file_nbytes()
    free = usage.free if usage.total else None
    known = [nbytes for nbytes in (free, None if limit is None else limit - file_nbytes) if nbytes is not None]
    return max(0, min(known)) if known else None


def reserve_on_disk(descriptor: int, begin: int, nbytes: int) -> bool:
    """Have the file system set bytes of a file aside, so that no later write there finds the disk full. False where it
    cannot; `OSError` where it has no room. Not `posix_fallocate`, which then writes a byte into every block."""
    if _fallocate is None:
        return False
    while _fallocate(descriptor, 0, ctypes.c_int64(begin), ctypes.c_int64(nbytes)) != 0:
        number = ctypes.get_errno()
        if number in _NO_FALLOCATE:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


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
    try:
        named, path = tempfile.mkstemp(prefix="vdnn-", dir=directory)
    except OSError as problem:
        raise TierFailed(f"no file can be made in {os.fspath(directory)}: {problem.strerror}") from problem
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags)
    finally:
        os.close(named)
        os.unlink(path)
