"""Element types the kernels know, by the name PyTorch prints without "torch." in front.

Enters: a dtype's name. Leaves: the size of an element, its numpy view, or the bits of one value. The one idea: kernels
receive raw bytes and a name, because numpy has no bfloat16 and the C side needs none.
"""

from __future__ import annotations

import numpy as np

from vdnn.units import NBYTES_PER_ELEMENT

DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "float16",
    "bfloat16",
    "int32",
    "uint32",
    "float32",
    "int64",
    "uint64",
    "float64",
)
FLOATS = ("float32", "float64", "float16", "bfloat16")


def element_nbytes(dtype: str) -> int:
    """Bytes of one element; a name that the kernels do not know raises a ValueError with those they do."""
    if dtype not in DTYPES:
        raise ValueError(f"the codec kernels have no dtype {dtype!r}. They have: {', '.join(DTYPES)}.")
    return NBYTES_PER_ELEMENT[dtype]


def require(dtype: str, allowed: tuple[str, ...], what: str) -> None:
    """A ValueError when `what` does not work on this dtype."""
    if dtype not in allowed:
        raise ValueError(f"{what} works on {', '.join(allowed)}, not on {dtype!r}.")


def as_unsigned(raw: np.ndarray, nbytes: int) -> np.ndarray:
    """Raw bytes as unsigned integers of an element's size: its bits, nothing interpreted."""
    return raw.view(f"u{nbytes}")


def widened(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Floats in the type their comparisons are done in: 16-bit floats as float32, the others as they are."""
    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "float16":
        return raw.view(np.float16).astype(np.float32)
    return raw.view(dtype)


def element_bits(value: float, dtype: str) -> int:
    """The bits of `value` rounded to nearest even in `dtype`, as an unsigned integer of the element's size."""
    require(dtype, (*FLOATS, "bool"), "writing a value")
    if dtype == "bool":
        return int(value != 0)
    with np.errstate(all="ignore"):  # a value beyond the type becomes infinity, as in C
        if dtype != "bfloat16":
            return int(np.array([value]).astype(dtype).view(f"u{element_nbytes(dtype)}")[0])
        bits = int(np.array([value]).astype(np.float32).view(np.uint32)[0])
    if value != value:
        return (bits >> 16) | 0x40  # quiet, whatever the payload; rounding could carry a NaN into infinity
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
