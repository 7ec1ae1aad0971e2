"""The ways to compute a convolution other than the op's own: their names, and which of them keep every bit.

A way is written `channels_last`, or `chunks-4`: a form, and into how many parts it cuts. The one idea of exactness: a
sum in another order is another number. The table says which ways leave every sum alone; that a library picks another
kernel for another shape no table can know, so a way that claims to be exact is also held to the op's bits when it is
measured, on inputs of the very shapes, strides and number of threads.

    way             result, input's gradient     weight's and bias's gradient      may be exact
    channels_last   another kernel               another kernel                    no: 140 of 312 shapes differ
    chunks-k        each image its own sums      whole, as the op does             yes
    slices-k        each image its own sums      each channel its own sums         yes
    sums-k          each image its own sums      sums of k sums                    no

Chunks of single small images are where "may be" is not "is": ATen leaves oneDNN for its own kernel there
(aten/src/ATen/native/Convolution.cpp, `use_mkldnn`: one image, at most 20480 elements, a kernel of 3x3 or less).
"""

from __future__ import annotations

from collections.abc import Iterator

CHANNELS_LAST, CHUNKS, SLICES, SUMS = "channels_last", "chunks", "slices", "sums"

PART_COUNTS = (4, 16)
"""Parts of a batch, or of channels, that are tried. The result of a part is one more buffer of its size, so two parts
save nothing."""

_LEAVE_SUMS_ALONE = frozenset({CHUNKS, SLICES})


def in_parts(form: str, num_parts: int) -> str:
    """The way that cuts by `form`, as plans and cost tables write it."""
    return f"{form}-{num_parts}"


def form_of(way: str) -> str:
    return way.partition("-")[0]


def num_parts_of(way: str) -> int:
    return int(way.partition("-")[2])


def may_be_exact(way: str) -> bool:
    """Whether the table above lets a way claim the op's own bits."""
    return form_of(way) in _LEAVE_SUMS_ALONE


def parts(length: int, num_parts: int) -> Iterator[slice]:
    """At most `num_parts` slices of nearly one size that cover `length`, none of them empty."""
    size = -(-length // num_parts)
    return (slice(begin, min(begin + size, length)) for begin in range(0, length, size))
