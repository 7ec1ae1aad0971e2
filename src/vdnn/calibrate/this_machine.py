"""This machine as a `Hardware`, measured once and remembered.

Enters: the directory of the disk tier. Leaves: a `Hardware`. What is remembered belongs to one processor, number of
cores and threads, torch version and file system; under others there is another memory. On a machine that is known
another disk is measured alone; one with room for small trials only is measured each time. Speeds of a busy moment are
measured again in the first quiet one. A cache that cannot be read or written costs time, never a plan.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from vdnn.calibrate.accelerator_speeds import (
    PINNED_SHARE,
    QUICK_TRIALS,
    AcceleratorSpeeds,
    accelerator_hardware,
    can_page_lock,
    links_of,
    measure_accelerator,
    memory_nbytes,
)
from vdnn.calibrate.machine_speeds import QUICK, Measurements, hardware_from, measure_machine, with_disk
from vdnn.environment import cache_dir, disk_dir
from vdnn.errors import InvalidFile, InvalidInput
from vdnn.hardware.busy_cores import QUIET_SHARE, share_now
from vdnn.hardware.device import THIS_MACHINE, Hardware, Tier
from vdnn.hardware.machine import cpu_model, file_system_of, num_cores
from vdnn.hardware.presets import preset
from vdnn.hardware.where import device_name
from vdnn.printable import printable
from vdnn.reading.bounded_json import RECORD_NBYTES, json_in
from vdnn.reading.fields import ByName, blamed, of
from vdnn.reading.private_files import write_private
from vdnn.runtime.runtime import shared_runtime
from vdnn.torch_private import torch_version, without_modes

log = logging.getLogger(__name__)

ASSUMED_ACCELERATOR = "titan-x"
"""The preset whose speeds an accelerator is taken to have that cannot be measured: that of the vDNN paper, with a copy
engine on PCIe gen3. Too slow a link moves less than it could, and no plan is wrong for it."""

Known = TypeVar("Known", Measurements, AcceleratorSpeeds)

_MACHINES_FILE = "machine-v3.json"  # a change in what is measured, or how, takes the next number

_MACHINES = ByName(of(Measurements))
"""From a machine to its measurements."""

_ACCELERATORS_FILE = "accelerator-v1.json"
_ACCELERATORS = ByName(of(AcceleratorSpeeds))
"""From what a device calls itself to its speeds: two of one name are alike."""


def this_machine(directory: str | None = None, where: str = "cpu") -> Hardware:
    """From remembered measurements, or from new ones: a few seconds, the first time. They are made with real tensors,
    also in the middle of a trace. The disk is the one under `directory`, or under the usual one. `where`: the device
    that computes."""
    with without_modes():
        host = _remembered_or_measured(directory)
        return hardware_from(host) if where == "cpu" else _around(where, host)


def _around(where: str, host: Measurements) -> Hardware:
    """An accelerator with what lies behind it: the host's memory, then its disk."""
    speeds = _speeds_of(where)
    return _assumed(where, host) if speeds is None else accelerator_hardware(speeds, host)


def _speeds_of(device: str) -> AcceleratorSpeeds | None:
    """As they are remembered of a device of that name, or measured now; None where it has no room to be measured in.
    Copies to and from memory that cannot be page-locked are others than those that were measured where it could."""
    import torch

    path, where = cache_dir() / _ACCELERATORS_FILE, torch.device(device)
    known, name = _load(path, _ACCELERATORS, links_of), printable(f"{device_name(where)} | {torch_version()}")
    if name in known and known[name].is_pinned == can_page_lock():
        return replace(known[name], device=device, nbytes=memory_nbytes(where)[1])
    try:
        found = measure_accelerator(where, QUICK_TRIALS)
    except torch.OutOfMemoryError as error:
        words = str(error)  # the error itself holds the trials, and a log may be kept
        log.warning("%s is too full to be measured, and is taken to be a %s: %s", where, ASSUMED_ACCELERATOR, words)
        return None
    finally:
        torch.accelerator.empty_cache()  # the room of the trials is the step's
    _save(path, {**known, name: found})
    return found


def _assumed(where: str, host: Measurements) -> Hardware:
    """With the arithmetic and the links of `ASSUMED_ACCELERATOR`, and with its own memory."""
    import torch

    assumed, machine = preset(ASSUMED_ACCELERATOR), hardware_from(host)
    device_nbytes = memory_nbytes(torch.device(where))[1]
    tiers = [Tier("device", device_nbytes), Tier("host", int(PINNED_SHARE * host.ram_nbytes))]
    links = [assumed.link("device", "host"), assumed.link("host", "device")]
    if host.disk is not None:
        tiers.append(machine.tier("disk"))
        links += [replace(machine.link("device", "disk"), source="host", drag=0.0)]
        links += [replace(machine.link("disk", "device"), target="host", drag=0.0)]
    words = f"assumed: as {ASSUMED_ACCELERATOR}"
    constants = ("flops_per_s", "memory_bandwidth_bytes_per_s", "launch_s", *(link.name for link in links[:2]))
    sources = (*((name, words) for name in constants), *((link.name, "measured") for link in links[2:]))
    return replace(assumed, name=THIS_MACHINE, tiers=tuple(tiers), links=tuple(links), sources=sources)


def _remembered_or_measured(directory: str | None) -> Measurements:
    path = cache_dir() / _MACHINES_FILE
    machines, identity = _load_machines(), _identity(directory)
    known = machines.get(identity)
    if known is None:
        same = _same_but_for_disk(machines)
        found = _measure(directory) if same is None else _on_disk(same, directory)
    elif _is_better_measured_now(known, identity):
        found = _quieter(known, _measure(directory))
    else:
        found = known if known.disk is not None else _on_disk(known, directory)
    kept = found if found.write is not None else replace(found, disk=None, read=None)
    if kept != known:
        _save(path, {**_load_machines(), identity: kept})
    return found


def _same_but_for_disk(machines: Mapping[str, Measurements]) -> Measurements | None:
    return next((known for name, known in machines.items() if name.startswith(printable(_machine()))), None)


def _is_better_measured_now(known: Measurements, identity: str) -> bool:
    """What was measured in a busy moment, once per process, if this one is quiet."""
    looked_at = shared_runtime().machines_looked_at
    if known.others_share <= QUIET_SHARE or identity in looked_at:
        return False
    looked_at.add(identity)
    return share_now() <= QUIET_SHARE


def _quieter(known: Measurements | None, new: Measurements) -> Measurements:
    return new if known is None or new.others_share < known.others_share else known


def _measure(directory: str | None) -> Measurements:
    return _on_disk(measure_machine(None, QUICK), directory)


def _on_disk(known: Measurements, directory: str | None) -> Measurements:
    """Without a usable disk there is still a machine to plan for; it has one tier less, and the log says why. A
    directory that somebody named has to be usable."""
    try:
        return with_disk(known, disk_dir() if directory is None else directory, QUICK)
    except InvalidInput as error:
        if directory is not None:
            raise
        log.warning("planning without a disk tier: %s", error)
        return replace(known, disk=None, write=None, read=None)


def _identity(directory: str | None) -> str:
    """A machine with its disk."""
    try:
        disk = file_system_of(disk_dir() if directory is None else directory)
    except OSError:
        disk = str(disk_dir() if directory is None else directory)
    return printable(f"{_machine()}{disk}")


def _machine() -> str:
    import torch

    parts = (cpu_model(), num_cores(), f"{torch.get_num_threads()} threads", torch_version(), "")
    return " | ".join(map(str, parts))


def _load(path: Path, kind: ByName, check: Callable[[Known], object]) -> dict[str, Known]:
    """Nothing when there is no such file, or it does not read as measurements that make a machine."""
    try:
        found = kind.read(json_in(path, RECORD_NBYTES), "")
        for name, measurements in found.items():
            with blamed(name):
                check(measurements)
        return found
    except FileNotFoundError:
        return {}
    except (OSError, InvalidFile) as error:
        log.info("measuring this machine again, %s does not read as measurements: %s", path, error)
        return {}


def _load_machines() -> dict[str, Measurements]:
    return _load(cache_dir() / _MACHINES_FILE, _MACHINES, hardware_from)


def _save(path: Path, known: Mapping[str, Measurements | AcceleratorSpeeds]) -> None:
    try:
        content = {name: measurements.to_json() for name, measurements in known.items()}
        write_private(path, json.dumps(content, indent=2).encode())
    except OSError as error:
        log.info("this machine's speeds are not remembered: %s", error)
