"""Arguments for every codec kernel, with all that is hard in them, and room for them to be checked against.

Enters: how many elements. Leaves: calls, each a kernel's name and its arguments as numpy arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_child import First, reference_outcome
from vdnn.codecs.kernels.element_types import FLOATS
from vdnn.codecs.kernels.formats import FORMATS, reduced_nbytes
from vdnn.codecs.kernels.sparse_layout import (
    CSR_FORMATS,
    MASK_FORMATS,
    csr_value_nbytes,
    largest_values_nbytes,
    mask_nbytes,
    num_blocks,
    num_rows,
)
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.codecs.kernels.window import Window
from vdnn.units import NBYTES_PER_ELEMENT

GUARD = 64  # bytes past the room that is given, which must stay as they are
LOW, HIGH = 0.1, 0.7  # neither is a float32, so they must be rounded to the type that is compared
FLOAT32_EDGES = (0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x7F800000, 0xFF800000, 0x7FC12345, 0xFF800001, 0x3F800000)
FLOAT16_EDGES = (0, 0x8000, 1, 0x83FF, 0x0400, 0x7C00, 0xFC00, 0x7E12, 0xFC01, 0x3C00)
BFLOAT16_EDGES = (0, 0x8000, 1, 0x807F, 0x0080, 0x7F80, 0xFF80, 0x7FC1, 0xFF81, 0x3F80)


def raw(dtype: str, n: int) -> np.ndarray:
    """Random bits, and first of all zeros, subnormals, infinities, NaN with payloads and the bounds themselves."""
    rng = np.random.default_rng(n)
    data = rng.integers(0, 256, n * NBYTES_PER_ELEMENT[dtype], dtype=np.uint8)
    edges = {
        "float32": np.array(FLOAT32_EDGES, np.uint32),
        "float64": np.append(
            np.array(FLOAT32_EDGES, np.uint64) << np.uint64(32), np.array([LOW, HIGH]).view(np.uint64)
        ),
        "float16": np.array(FLOAT16_EDGES, np.uint16),
        "bfloat16": np.array(BFLOAT16_EDGES, np.uint16),
    }.get(dtype, np.zeros(0, np.uint8))
    if dtype == "float32":
        edges = np.append(edges, np.array([LOW, HIGH], np.float32).view(np.uint32))
    count = min(len(edges.view(np.uint8)), len(data))
    data[:count] = edges.view(np.uint8)[:count]
    return data


def bits_for(n: int) -> np.ndarray:
    return np.random.default_rng(n + 1).integers(0, 256, mask_nbytes(n), dtype=np.uint8)


def sparse(n: int, nbytes: int, density: float) -> np.ndarray:
    """Raw elements of which a share is not zero; -0.0, NaN and subnormals are among those."""
    data = raw({2: "float16", 4: "float32"}[nbytes], n).view(f"u{nbytes}")
    data[np.random.default_rng(n + 2).random(n) >= density] = 0
    return data.view(np.uint8)


def filled(count: int, dtype: str = "uint8") -> np.ndarray:
    """Memory that was something else before."""
    return np.full(count, 0xA5, dtype)


def mask_form(n: int, nbytes: int, format: str, density: float, room: float = 1.0) -> tuple[Any, ...]:
    """Arguments of sparse_encode, with room for a share of what the data could need."""
    capacity = int(largest_values_nbytes(n, nbytes, format) * room)
    values = First(filled(capacity + GUARD), capacity)
    outputs = filled(mask_nbytes(n)), filled(num_blocks(n) + 1, "int64"), values
    return sparse(n, nbytes, density), nbytes, format, *outputs


def csr_form(n: int, format: str, density: float, room: float = 1.0) -> tuple[Any, ...]:
    capacity, width = int(n * room), csr_value_nbytes(format)
    columns, values = (First(filled(capacity * size + GUARD), capacity * size) for size in (1, width))
    return sparse(n, 4, density), format, filled(num_rows(n) + 1, "uint32"), columns, values


def calls(n: int, formats: tuple[str, ...] = MASK_FORMATS) -> list[tuple[Any, ...]]:
    """Every function, on n elements or n planes."""
    floats, bits = raw("float32", n), bits_for(n)
    window = Window((1, 3, 3), (1, 2, 2), (0, 1, 1), (1, 1, 1), (1, 8, 8), (1, 4, 4), n, 1)
    indices = np.tile(np.add.outer(np.arange(0, 64, 16), np.arange(0, 8, 2)).reshape(-1), n)
    taps = reference_outcome("pack_window", indices, window, filled(window.taps_nbytes)).arrays[1]
    made: list[tuple[Any, ...]] = [
        ("unpack_mask", bits, floats, "float32", 1.0, 0.0),
        ("masked_gradient", floats, bits, floats, "float32", 1.1, 0.1, False),
        ("pack_window", indices, window, filled(window.taps_nbytes)),
        ("unpack_window", taps, window, filled(window.num_pooled, "int64")),
        ("window_backward", np.ones(window.num_pooled, np.float32), taps, window, filled(64 * n, "float32")),
    ]
    made += [("pack_mask", raw(dtype, n), dtype, Test.INSIDE, LOW, HIGH, bits) for dtype in FLOATS]
    for format in (format for format in FORMATS if format in formats):
        packed = filled(reduced_nbytes(n, format))
        made += [
            ("reduce", floats.view(np.float32), format, packed),
            ("expand", packed, format, floats.view(np.float32)),
        ]
    for format in formats:
        made.append(("sparse_encode", *mask_form(n, 4, format, 0.5)))
        encoded = reference_outcome(*made[-1])
        made.append(("sparse_decode", *encoded.arrays[1:], 4, format, floats))
    for format in (format for format in CSR_FORMATS if format in formats):
        made.append(("csr_encode", *csr_form(n, format, 0.5)))
        made.append(("csr_decode", *reference_outcome(*made[-1]).arrays[1:], format, floats))
    return made
