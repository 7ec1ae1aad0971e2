"""What the torch-op kernels share: raw bytes as integers, and large tensors gone through in chunks.

Enters: flat tensors on one device, any device. Leaves: views of them. The one idea: nothing here or in the files beside
it asks the device for a number. Shapes follow from what the host knows, what data decides stays on the device, and so
the host never waits. Temporaries are those of one chunk: `workspace_nbytes` in `chunk_sizes.py` bounds them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vdnn.codecs.kernels.chunk_sizes import chunk_size
from vdnn.codecs.kernels.element_types import element_bits, element_nbytes
from vdnn.codecs.kernels.reference_masks import chunks

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def elements(raw: torch.Tensor, nbytes: int) -> torch.Tensor:
    """Raw bytes as integers of this many bytes; bytes that do not fill one at the end are left out."""
    count = raw.numel() // nbytes
    # An empty tensor may have any stride, also one that cannot be viewed as another type.
    return raw[: count * nbytes].view(INTEGERS[nbytes]) if count else raw.new_empty(0, dtype=INTEGERS[nbytes])


def signed(bits: int, width: int) -> int:
    """Bits of so many places as the signed number that tensors of that width take."""
    return bits - 2**width if bits >> (width - 1) else bits


def pattern(value: float, dtype: str) -> int:
    """The bits of `value` in `dtype`, as the integer that `elements` shows them as."""
    bits, width = element_bits(value, dtype), 8 * element_nbytes(dtype)
    return bits if width == 8 else signed(bits, width)


def in_chunks(n: int) -> Iterator[slice]:
    return chunks(n, chunk_size(n))


def in_rows(flat: torch.Tensor, size: int) -> torch.Tensor:
    """[rows, size]; a last row that is not full is filled with zeros, in a copy."""
    missing = -flat.numel() % size
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, size)
