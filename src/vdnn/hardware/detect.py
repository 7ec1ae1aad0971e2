"""This machine as a `Hardware`, measured once and remembered.

Enters: nothing, or a wish to measure anew. Leaves: a `Hardware`. What is remembered belongs to one processor, number
of cores, torch version and disk directory; a change in any of them measures again. A cache that cannot be read or
written costs time, never a plan.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vdnn.environment import cache_dir, disk_dir
from vdnn.errors import InvalidInput
from vdnn.hardware.device import Hardware
from vdnn.hardware.machine import cpu_model, num_cores
from vdnn.hardware.measure import QUICK, Measurements, hardware_from, measure_machine

log = logging.getLogger(__name__)

_FILE = "machine-v1.json"  # a change in what is measured, or how, takes the next number


def this_machine(refresh: bool = False) -> Hardware:
    """Remembered measurements, or new ones: a few seconds, the first time."""
    path = cache_dir() / _FILE
    known = None if refresh else _load(path)
    if known is None:
        known = _measure()
        _save(path, known)
    return hardware_from(known)


def _measure() -> Measurements:
    """Without a usable disk there is still a machine to plan for; it has one tier less, and the log says why."""
    try:
        return measure_machine(disk_dir(), QUICK)
    except InvalidInput as error:
        log.warning("planning without a disk tier: %s", error)
        return measure_machine(None, QUICK)


def _identity() -> dict[str, Any]:
    return {"cpu": cpu_model(), "num_cores": num_cores(), "torch": version("torch"), "disk": str(disk_dir())}


def _load(path: Path) -> Measurements | None:
    """None when there is no such file, it is of another machine, or it does not read as measurements."""
    try:
        saved = json.loads(path.read_text())
        return Measurements.from_json(saved["measurements"]) if saved["machine"] == _identity() else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.info("measuring this machine again, %s does not read as measurements: %r", path, error)
        return None


def _save(path: Path, measurements: Measurements) -> None:
    """Whole or not at all: a reader never sees half a file."""
    text = json.dumps({"machine": _identity(), "measurements": measurements.to_json()}, indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
        with open(descriptor, "w") as file:
            file.write(text)
        os.replace(name, path)
    except OSError as error:
        log.info("this machine's speeds are not remembered: %s", error)
