"""A number that the device knows later than the host goes on.

Enters: a tensor of one number on an accelerator. Leaves: an `int`, when somebody asks. The one idea: the number starts
on its way to the host at once, behind what computes it and before what comes after. Who asks later waits for that copy
and not for all that the device was given since.
"""

from __future__ import annotations

import torch

from vdnn.torch_private import without_torch_dispatch


class LateNumber:
    def __init__(self, number: torch.Tensor) -> None:
        with without_torch_dispatch():
            self._here = _host_number(number.dtype)
            self._here.copy_(number, non_blocking=True)
            self._copied = torch.accelerator.current_stream(number.device).record_event()

    def read(self) -> int:
        """Wait for the number. Asked again, it is there."""
        self._copied.synchronize()
        with without_torch_dispatch():
            return int(self._here)


def _host_number(dtype: torch.dtype) -> torch.Tensor:
    """Into memory that is not pinned a device may copy only while the host waits, which is correct and slower."""
    try:
        return torch.empty((), dtype=dtype, device="cpu", pin_memory=True)
    except RuntimeError:
        return torch.empty((), dtype=dtype, device="cpu")
