"""This machine, with its disk and its codecs measured through the very code that training uses.

Leaves: a `Hardware`, or the `Measurements` behind it. The one idea: `hardware/` knows how to measure and must not know
the runtime, so the two meet here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from vdnn.calibrate import remembered_machine as detect
from vdnn.calibrate.codec_trials import codec_speeds
from vdnn.calibrate.machine_speeds import THOROUGH, Instruments, Measurements, TrialSizes, measure_machine
from vdnn.hardware.device import Hardware
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.runtime.transfers.threads import ThreadTransfers
from vdnn.torch_private import without_modes


def this_machine() -> Hardware:
    """Remembered, or measured now: with real tensors, also in the middle of a trace."""
    with without_modes():
        return detect.this_machine(INSTRUMENTS)


def measure_this_machine(directory: str | os.PathLike[str], sizes: TrialSizes = THOROUGH) -> Measurements:
    return measure_machine(directory, sizes, INSTRUMENTS)


@contextmanager
def disk_transfers(directory: str | os.PathLike[str]) -> Iterator[ThreadTransfers]:
    """To and from a disk tier of its own in `directory`."""
    transfers = ThreadTransfers({"disk": DiskStore(directory)})
    try:
        yield transfers
    finally:
        transfers.close()


INSTRUMENTS = Instruments(disk_transfers, codec_speeds)
