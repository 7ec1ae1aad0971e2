"""What the Triton kernels share: raw bytes as integers, values as bit patterns, and launching where the tensors are.

Enters: flat tensors on one accelerator. Leaves: views, numbers, launched kernels. The one idea: kernels see an element
as the integer its bytes spell and make a float of it only to compare or calculate. What is only moved then keeps every
bit on every device, NaN payloads included, and rounding to a shorter format is not left to the device.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from vdnn.codecs.kernels.element_types import element_bits, element_nbytes

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LARGEST_INT32_OFFSET = 2**31 - 2**20  # the last program reaches past the end, by less than 2**20 elements


def elements(raw: torch.Tensor, nbytes: int) -> torch.Tensor:
    """Raw bytes as integers of this many bytes; bytes that do not fill one at the end are left out."""
    count = raw.numel() // nbytes
    # An empty tensor may have any stride, also one that cannot be viewed as another type.
    return raw[: count * nbytes].view(INTEGERS[nbytes]) if count else raw.new_empty(0, dtype=INTEGERS[nbytes])


def pattern(value: float, dtype: str) -> int:
    """The bits of `value` in `dtype`, as the signed number that kernels take."""
    width = 8 * element_nbytes(dtype)
    bits = element_bits(value, dtype)
    return bits - 2**width if bits >> (width - 1) else bits


def offset_type(n: int) -> tl.dtype:
    """What n elements are counted in where a kernel divides, which in 64 bits takes a GPU several times as long."""
    return tl.int32 if n < LARGEST_INT32_OFFSET else tl.int64


def num_programs(n: int, block: int) -> int:
    return -(-n // block)


def launch(kernel: Any, programs: int, *args: Any, **constants: Any) -> None:
    """Run `programs` instances on the device of the first argument, on its current stream; none are fine too.

    Fused multiply-add is off: it rounds once where PyTorch's own ops round twice.
    """
    if programs:
        with torch.accelerator.device_index(args[0].device.index):
            kernel[(programs,)](*args, **constants, enable_fp_fusion=False)
