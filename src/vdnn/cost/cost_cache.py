"""Measured costs that outlive the process: an op is timed once per machine, not once per run.

Enters: keys and costs. Leaves: the costs that are known on a machine like this one. The one idea: an SQLite file,
because it is atomic and safe between processes without any code of ours. It is a cache: a file that is damaged is
started anew, a directory that cannot be written leaves the costs in this object's memory, and both are one line in
the log, never an error.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from vdnn.cost.table import OpCost
from vdnn.environment import cache_dir
from vdnn.hardware.machine import fingerprint

log = logging.getLogger(__name__)

_COSTS_FILE = "costs-v6.sqlite3"  # a change in what is measured, or how, takes the next number
_LOCK_WAIT_S = 10.0  # a writer holds the file for milliseconds; more than this is a file system without locks
_SCHEMA = """
CREATE TABLE IF NOT EXISTS cost (
    machine TEXT NOT NULL,
    key TEXT NOT NULL,
    seconds REAL NOT NULL CHECK (seconds >= 0),
    workspace_nbytes INTEGER NOT NULL CHECK (workspace_nbytes >= 0),
    source TEXT NOT NULL,
    exact INTEGER NOT NULL,
    PRIMARY KEY (machine, key)
) WITHOUT ROWID
"""
_SELECT = "SELECT seconds, workspace_nbytes, source, exact FROM cost WHERE machine = ? AND key = ?"
_INSERT = "INSERT OR REPLACE INTO cost VALUES (?, ?, ?, ?, ?, ?)"

T = TypeVar("T")


class CostCache:
    """Costs by key, for one machine. `machine` is this one's fingerprint unless told."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, machine: str | None = None) -> None:
        self.path = Path(path) if path is not None else cache_dir() / _COSTS_FILE
        self._machine = machine
        self._here: dict[tuple[str, str], OpCost] = {}

    @property
    def machine(self) -> str:
        """Asked at every use: the number of threads may have changed since the last."""
        return self._machine if self._machine is not None else fingerprint()

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
        try:
            return self._attempt(action)
        except (OSError, sqlite3.OperationalError) as error:  # locked, read-only, no space: the file may be sound
            log.info("op costs are not kept in %s: %s", self.path, error)
            return None
        except sqlite3.IntegrityError:  # a cost that is no cost: our bug, not the file's
            raise
        except sqlite3.DatabaseError as error:
            log.info("starting %s anew: %s", self.path, error)
            _remove(self.path)
        try:
            return self._attempt(action)
        except (OSError, sqlite3.DatabaseError) as error:
            log.info("op costs are not kept in %s: %s", self.path, error)
            return None

    def _attempt(self, action: Callable[[sqlite3.Connection], T]) -> T:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self.path, timeout=_LOCK_WAIT_S)) as file, file:
            file.execute(_SCHEMA)
            return action(file)


def _select(file: sqlite3.Connection, machine: str, keys: Iterable[str]) -> dict[str, OpCost]:
    rows = ((key, file.execute(_SELECT, (machine, key)).fetchone()) for key in keys)
    return {key: OpCost(row[0], row[1], row[2], exact=bool(row[3])) for key, row in rows if row is not None}


def _remove(path: Path) -> None:
    """With its journal: a journal that outlives its file would be played back into the next one."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        try:
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        except OSError as error:
            log.info("cannot remove %s%s: %s", path, suffix, error)
