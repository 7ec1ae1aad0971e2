"""A slower tier as the runtime sees it: room that is reserved, written, read and given back.

Enters: a number of bytes. Leaves: a `Place` that holds them until nobody refers to it any more. The one idea: **a place
is owned**. Whoever holds the object holds the room; when the last reference goes (a graph dropped without backward, an
exception, the end of a step), the room is free again. There is no call to forget. All methods may be called from any
thread.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Place(Protocol):
    """Room for `nbytes` in a tier. Giving up the last reference gives the room back."""

    @property
    def nbytes(self) -> int: ...

    def write(self, source: torch.Tensor) -> None:
        """Copy a flat uint8 tensor of exactly `nbytes` here; returns when it may be overwritten. Releases the GIL while
        it copies."""
        ...

    def read(self, target: torch.Tensor) -> None:
        """Copy what was written last into a flat uint8 tensor of exactly `nbytes`; returns when it is all there."""
        ...


class Store(Protocol):
    """A tier other than the device. Errors are `TierFull` and `TierFailed`, which name the tier and the bytes."""

    name: str

    def reserve(self, nbytes: int) -> Place: ...

    @property
    def used_nbytes(self) -> int: ...

    @property
    def capacity_nbytes(self) -> int | None: ...

    def close(self) -> None:
        """Give everything back to the system. Places that are still held must not be used any more."""
        ...
