"""How many bytes of tensors are alive on one device, kept up to date as cheaply as it goes.

Enters: tensors, as they are seen. Leaves: `nbytes` and its peak, in whole blocks of an accelerator's allocator. Each
storage is counted once and uncounted by the
callback of a weak reference when PyTorch frees it, which may happen in any thread and inside the garbage collector: a
death is a note that the next look reads. `runtime/tracker.py` counts the same by role; this one runs during training.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from itertools import compress
from typing import Any

import torch

from vdnn.hardware.where import CPU
from vdnn.plan.model.surroundings import ACCELERATOR_BLOCK_NBYTES
from vdnn.torch_private import storage_id

_PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))


def is_plain(tensor: Any) -> bool:
    """A tensor with memory of its own. Subclasses and sparse layouts are made of such tensors."""
    return type(tensor) in _PLAIN_TYPES and tensor.layout is torch.strided


class _Ref(weakref.ref[Any]):
    """To a storage; knows what to take back when it dies."""

    __slots__ = ("key", "nbytes")
    key: int
    nbytes: int


class Tally:
    """A sum that only grows by `add` and shrinks by notes in `departed`, which anybody may leave at any moment."""

    def __init__(self) -> None:
        self.departed: deque[int] = deque()
        self._sum = 0
        self._lock = threading.Lock()  # never taken by whoever leaves a note

    def add(self, amount: int) -> None:
        with self._lock:
            self._sum += amount

    @property
    def sum(self) -> int:
        with self._lock:
            while self.departed:
                self._sum -= self.departed.popleft()
            return self._sum


class LiveBytes:
    def __init__(self, where: torch.device) -> None:
        self.where, self.block_nbytes = where, 1 if where == CPU else ACCELERATOR_BLOCK_NBYTES
        self.peak_nbytes = 0
        self._tally = Tally()
        self._lock = threading.Lock()
        self._alive: dict[int, _Ref] = {}
        alive, departed = self._alive, self._tally.departed

        def forget(ref: weakref.ref[Any]) -> None:
            assert isinstance(ref, _Ref)
            alive.pop(ref.key, None)
            departed.append(ref.nbytes)

        self._forget = forget  # refers to the two containers only: storages keep no counter alive

    @property
    def nbytes(self) -> int:
        return self._tally.sum

    def count(self, tensor: torch.Tensor) -> int:
        """The bytes that this tensor adds: none if its storage is known."""
        if tensor.device != self.where:
            return 0
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a wrapper that torch.func left behind: what it wraps is counted itself
            return 0
        key = storage_id(storage)
        with self._lock:
            if key in self._alive:
                return 0
            ref = _Ref(storage, self._forget)
            nbytes = storage.nbytes()
            ref.key, ref.nbytes = key, nbytes + -nbytes % self.block_nbytes
            self._alive[key] = ref
        self._tally.add(ref.nbytes)
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)
        return ref.nbytes

    def count_unseen(self, nbytes: int) -> None:
        """Bytes that are there for good and that no tensor shows."""
        self._tally.add(nbytes)

    def count_everything(self) -> None:
        """Every tensor that Python can reach: parameters, gradients, optimizer state, batches."""
        things = gc.get_objects()
        for tensor in compress(things, map(_PLAIN_TYPES.__contains__, map(type, things))):
            if is_plain(tensor):
                self.count(tensor)
