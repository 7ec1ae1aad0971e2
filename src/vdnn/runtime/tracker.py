"""Count the bytes of live tensors while real code runs.

Enters: a piece of PyTorch code run under the mode. Leaves: live bytes by role, exact to the byte, at any moment. Every
op that is dispatched shows its results; each new storage is counted once and uncounted by a finalizer when PyTorch
frees it. What an op allocates and frees inside itself is not seen: that is workspace, which `cost/measured.py` measures
per op.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from vdnn.ir import Role
from vdnn.plan.model.timeline import ROLES, ROW_OF_ROLE
from vdnn.torch_private import TorchDispatchMode, storage_id, tree_leaves


class StorageTracker(TorchDispatchMode):
    """`live` and `high` hold bytes per role: now, and the most since `settle` was called last (column of the largest
    total). With `where`, of storages of that device alone: what a step has on the CPU beside it takes none there."""

    def __init__(
        self, role_of_result: Callable[[int], Role] | None = None, *, where: torch.device | None = None
    ) -> None:
        super().__init__()
        self._role_of_result = role_of_result or (lambda position: Role.FEATURE_MAP)
        self._where = where
        self._counted: dict[int, weakref.finalize[Any, Any]] = {}
        self.live = np.zeros(len(ROLES), dtype=np.int64)
        self.high = self.live.copy()
        self.peak_nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = (leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        for position, tensor in enumerate(tensors):
            self.count(tensor, self._role_of_result(position))
        return result

    def count(self, tensor: torch.Tensor, role: Role) -> None:
        """Count a tensor's storage, unless it is counted already."""
        if self._where is not None and tensor.device != self._where:
            return
        storage = tensor.untyped_storage()
        key = storage_id(storage)
        known = self._counted.get(key)
        if known is not None and known.alive:
            return
        nbytes = storage.nbytes()
        self.live[ROW_OF_ROLE[role]] += nbytes
        finalizer = weakref.finalize(storage, self._uncount, key, ROW_OF_ROLE[role], nbytes)
        finalizer.atexit = False
        self._counted[key] = finalizer
        total = int(self.live.sum())
        if total > int(self.high.sum()):
            self.high = self.live.copy()
        self.peak_nbytes = max(self.peak_nbytes, total)

    def count_all(self, tensors: Iterable[Any], role: Role) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self.count(tensor, role)

    def settle(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The high-water column since the last call; counting for the next one starts from what is live now."""
        high, self.high = self.high, self.live.copy()
        return high

    def close(self) -> None:
        """Stop counting. Without this the finalizers of long-lived storages would keep the tracker alive with them."""
        for finalizer in self._counted.values():
            finalizer.detach()
        self._counted.clear()

    def _uncount(self, key: int, row: int, nbytes: int) -> None:
        self.live[row] -= nbytes
        self._counted.pop(key, None)
