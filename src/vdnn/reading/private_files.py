"""Files that vdnn keeps for itself: nobody else's to read, and whole or not there.

Enters: a path and bytes. Leaves: a file of mode 0600 in a folder that is 0700 if vdnn made it. A folder that the user
named stays as the user made it; that of the default cache is closed to others where it was open.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from vdnn.environment import default_cache_dir

_FILE, _FOLDER = 0o600, 0o700
_OTHERS = 0o077


def private_folder(folder: Path) -> None:
    """Make it, and what is missing above it; close the default cache to others."""
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        missing.mkdir(mode=_FOLDER, exist_ok=True)
    default = default_cache_dir()
    if folder == default or default in folder.parents:
        _close(folder, _FOLDER)
        _close(default, _FOLDER)


def private_file(path: Path) -> None:
    """See that there is a file, empty if it is new, and that others cannot read it."""
    private_folder(path.parent)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK, _FILE))
    _close(path, _FILE)


def write_private(path: Path, body: bytes) -> None:
    """Whole or not at all: a reader never sees half a file."""
    private_folder(path.parent)
    descriptor, name = tempfile.mkstemp(prefix="writing-", dir=path.parent)  # of mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(body)
        os.replace(name, path)
    except OSError:
        with suppress(OSError):
            os.unlink(name)
        raise


def _close(path: Path, mode: int) -> None:
    """To others, where it is ours and open to them."""
    found = path.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & _OTHERS:
        path.chmod(mode)
