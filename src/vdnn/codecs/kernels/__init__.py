"""Kernels that encode and decode tensors: the same functions in numpy, in C, in Triton and in torch ops.

Enters: where a tensor lives. Leaves: the module whose functions work there. The one idea: `reference` defines what each
function does, in plain numpy; `native`, `triton_kernels` and `torch_kernels` do the same elsewhere and are tested
against it bit for bit. On the CPU the functions take flat numpy arrays, on an accelerator flat tensors; numbers that
data decides stay there, as tensors, so that nobody waits for the device.
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


@cache
def accelerator_kernels(device_type: str) -> ModuleType:
    """The Triton kernels where Triton makes code for the device, those in torch ops otherwise; logs once which, and
    why."""
    support = importlib.import_module("vdnn.codecs.kernels.triton_support")
    reason = support.why_not_triton(device_type) if environment.native_kernels() else f"{environment.NATIVE}=0"
    if reason:
        logger.info("codec kernels: torch ops on %s, because %s", device_type, reason)
        return importlib.import_module("vdnn.codecs.kernels.torch_kernels")
    logger.info("codec kernels: Triton on %s", device_type)
    return importlib.import_module("vdnn.codecs.kernels.triton_kernels")


def takes_room(device_type: str) -> bool:
    """Whether the kernels there have temporaries of their own in the device's memory (`chunk_sizes.py`)."""
    return getattr(kernels_of(device_type), "TAKES_ROOM", False)


def kernels_of(device_type: str) -> ModuleType:
    """The kernels for tensors of this kind of device, as `torch.device.type` spells it."""
    return cpu_kernels() if device_type == "cpu" else accelerator_kernels(device_type)
