"""In what pieces the torch-op kernels work on a large tensor, and the room that this takes.

Enters: how many elements. Leaves: how many are worked on at once, and a bound on the bytes of temporaries. The one
idea: **a temporary is as large as a piece**, so that what an encoding saves is not spent on making it. Nothing here
imports torch: a plan counts these bytes where such kernels run (`Problem.codecs_take_room`).
"""

from __future__ import annotations

LARGEST_CHUNK = 3 * 2**18  # elements: whole words of fp10, whole blocks and rows; enough to keep a device busy
SMALLEST_CHUNK = 3 * 2**12
NUM_CHUNKS = 16  # of a tensor in between: the more chunks, the less room they take and the more kernels are launched
BLOCK = 4096  # elements: what is gathered is filled up to whole blocks of a sparse encoding
NBYTES_PER_ELEMENT = 56  # of temporaries: places, indices and gathered values of 64 bits are there at once
NBYTES_PER_ROW = 192  # of a pooling: in which windows it lies, and where in each
NBYTES_PER_MASKED_ELEMENT = 14  # of masks and what they select


def chunk_size(n: int) -> int:
    """How many of n elements are worked on at once."""
    share = -(-n // (NUM_CHUNKS * SMALLEST_CHUNK)) * SMALLEST_CHUNK
    return min(max(share, SMALLEST_CHUNK), LARGEST_CHUNK)


def workspace_nbytes(n: int, row: int | None = None, nbytes_per_element: int = NBYTES_PER_ELEMENT) -> int:
    """What a kernel allocates at most for n elements beside what it is given. `row`: of a pooling, what its windows
    move along in memory, width times inner; two rows are worked on at least, and each has places of its own."""
    worked_on = min(chunk_size(n), -(-n // BLOCK) * BLOCK)
    if not row:
        return nbytes_per_element * worked_on
    worked_on = max(worked_on, 2 * row)
    return nbytes_per_element * worked_on + NBYTES_PER_ROW * (worked_on // row)
