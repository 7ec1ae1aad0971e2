"""Measured costs that outlive the process: an op is timed once per machine, not once per run.

Enters: keys and costs. Leaves: the costs that are known on a machine like this one. The one idea: an SQLite file,
because it is atomic and safe between processes without any code of ours. It is a cache: a file that is damaged, that is
not the one we would have made, or that holds a cost that is none is started anew; one that somebody has locked is left
alone for a while; a directory that cannot be written leaves the costs in this object's memory. Each is one line in the
log, never an error.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from vdnn.cost.table import LONGEST_S, OpCost
from vdnn.environment import cache_dir
from vdnn.errors import InvalidFile
from vdnn.hardware.machine import fingerprint
from vdnn.reading.fields import Number, Row, Text, Whole
from vdnn.reading.private_files import private_file
from vdnn.units import MiB, format_nbytes

log = logging.getLogger(__name__)

_COSTS_FILE = "costs-v6.sqlite3"  # a change in what is measured, or how, takes the next number
_LOCK_WAIT_S = 2.0  # a writer holds the file for milliseconds; more than this is a file system without locks
_LEFT_ALONE_S = 60.0  # after a lock that did not open: a step of a thousand ops asks a thousand times
_MOST_NBYTES = 256 * MiB  # a cost takes about 300 bytes
_LONGEST_S = 5.0  # of work in one transaction, which takes milliseconds; what goes on is a program, not a table
_COLUMNS = """ (
    machine TEXT NOT NULL,
    key TEXT NOT NULL,
    seconds REAL NOT NULL CHECK (seconds >= 0),
    workspace_nbytes INTEGER NOT NULL CHECK (workspace_nbytes >= 0),
    source TEXT NOT NULL,
    exact INTEGER NOT NULL,
    PRIMARY KEY (machine, key)
) WITHOUT ROWID
"""
_SCHEMA = f"CREATE TABLE IF NOT EXISTS cost{_COLUMNS}"
_CONTENTS = [("table", "cost", f"CREATE TABLE cost{_COLUMNS}")]
"""All that our file says of itself. Views and triggers of others could run for ever."""
_SELECT = "SELECT seconds, workspace_nbytes, source, exact FROM cost WHERE machine = ? AND key = ?"
_INSERT = "INSERT OR REPLACE INTO cost VALUES (?, ?, ?, ?, ?, ?)"
_ROW = Row((Number(0, LONGEST_S), Whole(0), Text(), Whole(0, 1)))

_MAY_BE_SOUND = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
}
"""What stands in the way is not in the file."""

_left_alone_until: dict[Path, float] = {}
"""Files that were locked, for the whole process: `perf_counter` from which they are asked again."""

T = TypeVar("T")


class CostCache:
    """Costs by key, for one machine. `machine` is the fingerprint of this one, computing at `where`, unless told."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, machine: str | None = None, where: str = "cpu"
    ) -> None:
        self.path = Path(path) if path is not None else cache_dir() / _COSTS_FILE
        self._machine, self._where = machine, where
        self._here: dict[tuple[str, str], OpCost] = {}
        self._is_sound = False

    @property
    def machine(self) -> str:
        """Asked at every use: the number of threads may have changed since the last."""
        return self._machine if self._machine is not None else fingerprint(self._where)

    def lookup(self, keys: Iterable[str]) -> dict[str, OpCost]:
        """The costs that are known, by key. Keys that are missing from the answer have to be measured."""
        machine, wanted = self.machine, set(keys)
        missing = [key for key in wanted if (machine, key) not in self._here]
        for key, cost in (self._on_disk(lambda file: _select(file, machine, missing)) or {}).items():
            self._here[machine, key] = cost
        return {key: self._here[machine, key] for key in wanted if (machine, key) in self._here}

    def store(self, key: str, cost: OpCost) -> None:
        """Kept at once, so that an interrupted run has not measured for nothing."""
        self.store_all({key: cost})

    def store_all(self, costs: Mapping[str, OpCost]) -> None:
        """Many at once: a file is written as often as it is asked to, and each time takes milliseconds."""
        machine = self.machine
        self._here |= {(machine, key): cost for key, cost in costs.items()}
        rows = [(machine, key, c.seconds, c.workspace_nbytes, c.source, c.exact) for key, c in costs.items()]
        if rows:
            self._on_disk(lambda file: file.executemany(_INSERT, rows))

    def _on_disk(self, action: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do it in the file, in one transaction; None when there is no usable file."""
        if perf_counter() < _left_alone_until.get(self.path, 0.0):
            return None
        for _ in range(2):
            try:
                return self._attempt(action)
            except (OSError, sqlite3.Error, InvalidFile, UnicodeError) as error:  # errors quote bytes of the file
                if isinstance(error, OSError) or _code(error) in _MAY_BE_SOUND:
                    self._leave_alone(error)
                    return None
                log.info("starting %s anew: %s", self.path, error)
                _remove(self.path)
        return None

    def _attempt(self, action: Callable[[sqlite3.Connection], T]) -> T:
        private_file(self.path)
        _require_ordinary(self.path)
        # IMMEDIATE: who reads first and then writes is told that the file is locked without any waiting.
        locking = closing(sqlite3.connect(self.path, timeout=_LOCK_WAIT_S, isolation_level="IMMEDIATE"))
        with locking as file, file:
            begin = perf_counter()
            file.set_progress_handler(lambda: perf_counter() - begin > _LONGEST_S + _LOCK_WAIT_S, 100_000)
            file.execute("PRAGMA trusted_schema = OFF")
            if not _contents(file):
                file.execute("BEGIN IMMEDIATE")
                file.execute(_SCHEMA)
            if _contents(file) != _CONTENTS:
                raise InvalidFile("it has other tables than ours")
            self._require_sound(file)
            return action(file)

    def _require_sound(self, file: sqlite3.Connection) -> None:
        """Once: a search in a damaged tree may find nothing where there is something, and says nothing of it."""
        if not self._is_sound and file.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise InvalidFile("its pages are damaged")
        self._is_sound = True

    def _leave_alone(self, error: Exception) -> None:
        """For a while, where somebody has locked it."""
        if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            _left_alone_until[self.path] = perf_counter() + _LEFT_ALONE_S
        log.info("op costs are not kept in %s: %s", self.path, error)


def _contents(file: sqlite3.Connection) -> list[tuple[str, str, str]]:
    return file.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(len(_CONTENTS) + 1)


def _require_ordinary(path: Path) -> None:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InvalidFile("it is no ordinary file")
    if found.st_size > _MOST_NBYTES:
        raise InvalidFile(f"it has {format_nbytes(found.st_size)}, and at most {format_nbytes(_MOST_NBYTES)} are read")


def _code(error: Exception) -> int:
    """SQLite's own, without its refinements; 0 for what is not SQLite's mistake."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _select(file: sqlite3.Connection, machine: str, keys: Iterable[str]) -> dict[str, OpCost]:
    rows = ((key, file.execute(_SELECT, (machine, key)).fetchone()) for key in keys)
    return {key: _cost(key, row) for key, row in rows if row is not None}


def _cost(key: str, row: tuple[object, ...]) -> OpCost:
    seconds, nbytes, source, exact = _ROW.read(list(row), key)
    return OpCost(seconds, nbytes, source, exact=bool(exact))


def _remove(path: Path) -> None:
    """With its journal: a journal that outlives its file would be played back into the next one."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        try:
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        except OSError as error:
            log.info("cannot remove %s%s: %s", path, suffix, error)
