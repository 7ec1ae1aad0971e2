"""Whether Triton makes code for this machine's devices.

Enters: a kind of device. Leaves: why not, in words. Asked once per kind, and only where a tensor of that kind exists.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import torch

KINDS = ("cuda", "xpu")  # torch calls AMD's devices cuda as well
OLDEST_CUDA = (7, 0)  # Volta: older ones lack instructions that Triton counts on


def why_not_triton(device_type: str) -> str:
    """Why Triton does not run on devices of this kind; empty: it does."""
    if device_type not in KINDS:
        return f"Triton knows {' and '.join(KINDS)}"
    if find_spec("triton") is None:
        return "this Python has no Triton (pip install triton), which would be faster"
    backends = importlib.import_module("triton.backends").backends
    if not any(backend.driver.is_active() for backend in backends.values()):
        return "this Triton drives no device that is here"
    if device_type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability() < OLDEST_CUDA:
        return f"Triton needs compute capability {'.'.join(map(str, OLDEST_CUDA))}"
    return ""
