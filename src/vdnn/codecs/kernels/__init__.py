"""Kernels that encode and decode tensors: the same functions in numpy, in C, and in Triton for accelerators.

Enters: where a tensor lives. Leaves: the module whose functions work there. The one idea: `reference` defines what each
function does, in plain numpy; `native` and `triton_kernels` do the same faster and are tested against it bit for bit.
On the CPU both take flat numpy arrays, on an accelerator flat tensors.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache
from types import ModuleType

from vdnn import environment

logger = logging.getLogger(__name__)


@cache
def cpu_kernels() -> ModuleType:
    """The C kernels if they were built and load, the numpy ones otherwise; logs once which, and why."""
    if not environment.native_kernels():
        logger.info("codec kernels: numpy, because %s=0", environment.NATIVE)
        return importlib.import_module("vdnn.codecs.kernels.reference")
    try:
        library = importlib.import_module("vdnn.codecs.kernels.native_library")
    except ImportError as reason:
        logger.warning("codec kernels: numpy, which is many times slower than C: %s", reason)
        return importlib.import_module("vdnn.codecs.kernels.reference")
    logger.info("codec kernels: C, %s, %s", library.level(), "OpenMP" if library.has_threads() else "one thread")
    return importlib.import_module("vdnn.codecs.kernels.native")


def kernels_of(device_type: str) -> ModuleType:
    """The kernels for tensors of this kind of device, as `torch.device.type` spells it."""
    return cpu_kernels() if device_type == "cpu" else importlib.import_module("vdnn.codecs.kernels.triton_kernels")
