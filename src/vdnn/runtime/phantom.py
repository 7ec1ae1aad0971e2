"""Tensors with a shape and no memory, for ops that look at nothing else.

Enters: a layout. Leaves: a tensor of exactly that layout, strides included, because kernels read the memory format from
them, whose pages do not exist: a read-only mapping that nobody touches takes address space and not a byte of RAM. One
mapping serves all, since none holds anything. A phantom of an accelerator has the same address, which its kernels touch
as little: its allocator has never heard of it.
"""

from __future__ import annotations

import mmap
import warnings
from threading import Lock

import torch

from vdnn.hardware.where import CPU
from vdnn.torch_private import storage_at, without_torch_dispatch


class PhantomMemory:
    """The mapping behind all phantoms: as long as the longest of them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._mapping: torch.Tensor | None = None
        self._outgrown: list[torch.Tensor] = []
        """Mappings whose addresses an accelerator's phantoms may still have: those keep nothing alive."""

    def tensor(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        dtype: torch.dtype,
        where: torch.device = CPU,
    ) -> torch.Tensor:
        """What it seems to hold is undefined; writing to it is a fault."""
        extent = 1 + offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True) if size)
        # No op of the model: a tracker that saw it would count bytes that are not there.
        with without_torch_dispatch():
            untouched = self._at_least(extent * dtype.itemsize)
            storage = untouched.untyped_storage()
            if where != CPU:
                storage = storage_at(storage.data_ptr(), where, storage.nbytes())
            return torch.empty(0, dtype=dtype, device=where).set_(storage, offset, shape, stride)

    @property
    def mapped_nbytes(self) -> int:
        """The address space behind all of them, for those who add up tensors: there is no memory in it."""
        return 0 if self._mapping is None else self._mapping.nbytes

    def close(self) -> None:
        """Begin with another mapping. What points to this one goes on to: it costs addresses alone."""
        with self._lock:
            self._outgrown += [] if self._mapping is None else [self._mapping]
            self._mapping = None

    def _at_least(self, nbytes: int) -> torch.Tensor:
        with self._lock:
            mapped = self._mapping
            if mapped is None or mapped.numel() < nbytes:
                size = max(nbytes, 2 * (0 if mapped is None else mapped.numel()))
                self._outgrown += [] if mapped is None else [mapped]
                pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # that it cannot be written is the point
                    mapped = self._mapping = torch.frombuffer(pages, dtype=torch.uint8)
            return mapped
