"""What kernels take beside what they are given, where they are made of torch's ops.

Enters: how many elements a kernel goes through. Leaves: bytes. Large tensors are gone through in chunks
(`torch_chunks.py`), and these are the temporaries of one.
"""

from __future__ import annotations

LARGEST_CHUNK = 3 * 2**18  # elements: whole words of fp10, whole blocks and rows; enough to keep a device busy
SMALLEST_CHUNK = 3 * 2**12
NUM_CHUNKS = 16  # of a tensor in between: the more chunks, the less room they take and the more kernels are launched
NBYTES_PER_ELEMENT = 56  # of temporaries: places, indices and gathered values of 64 bits are there at once


def chunk_size(n: int) -> int:
    """How many of n elements are worked on at once."""
    share = -(-n // (NUM_CHUNKS * SMALLEST_CHUNK)) * SMALLEST_CHUNK
    return min(max(share, SMALLEST_CHUNK), LARGEST_CHUNK)


def workspace_nbytes(n: int, row: int = 1) -> int:
    """What a kernel allocates at most for n elements beside what it is given. `row`: of a pooling, what its windows
    move along in memory, width times inner; two rows are worked on at least."""
    return NBYTES_PER_ELEMENT * max(chunk_size(n), 2 * row)
