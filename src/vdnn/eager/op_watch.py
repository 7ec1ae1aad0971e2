"""See every op before it runs, so that there is room for it.

Enters: each op that PyTorch dispatches. Leaves: its results, counted. This is where the budget is kept exactly: the
bytes alive are known, the bytes an op will take are known once it has run (`op_needs.py`), and room is made between the
two. It costs some 30 us per op, so steps that are known to fit run without it (`tensor_cache.py`, Note [Watched
steps]).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from vdnn.eager.live_bytes import LiveBytes
from vdnn.eager.op_needs import Needs, OpNeeds
from vdnn.eager.result_sizes import tensors_in
from vdnn.eager.running_ops import run_op
from vdnn.torch_private import TorchDispatchMode, active_modes


class Owner(Protocol):
    """What the mode needs of the cache."""

    @property
    def is_busy_here(self) -> bool: ...

    @property
    def memory(self) -> AbstractContextManager[Any]: ...

    def make_room(self, need: int, likely: int = 0) -> None: ...

    def free_all(self) -> None: ...

    def out_of_memory_words(self, op: str, needs: Needs, error: BaseException) -> str: ...

    def note_peak(self, workspace_nbytes: int) -> None: ...


class Watch(TorchDispatchMode):
    def __init__(self, owner: Owner, live: LiveBytes, needs: OpNeeds) -> None:
        super().__init__()
        self._owner, self._live, self._needs = owner, live, needs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._owner.is_busy_here:  # the cache's own ops make their room themselves
            return func(*args, **kwargs)
        needs = self._needs.before(func, args, kwargs)
        for tensor in tensors_in((args, tuple(kwargs.values()))):
            self._live.count(tensor)
        self._owner.make_room(needs.nbytes, needs.likely_nbytes)
        results, taken_nbytes = self._run(func, args, kwargs, needs)
        made_nbytes = sum(self._live.count(tensor) for tensor in tensors_in((results,)))
        workspace_nbytes = self._needs.after(needs, made_nbytes, taken_nbytes)
        self._owner.note_peak(workspace_nbytes)
        if made_nbytes + workspace_nbytes > needs.nbytes:  # it would find no room the next time: that is told now
            self._owner.make_room(workspace_nbytes)
        return results

    def _run(self, func: Any, args: Any, kwargs: Any, needs: Needs) -> tuple[Any, int | None]:
        counted = not needs.is_known and needs.key is not None
        try:
            with self._owner.memory:
                return run_op(func, args, kwargs, self._live.where, self._owner.free_all, counted=counted)
        except torch.OutOfMemoryError as error:
            words = self._owner.out_of_memory_words(str(func), needs, error)
            raise torch.OutOfMemoryError(words) from error


def is_watching() -> bool:
    """Whether any mode is active in this thread; ours never stands above another's that it did not find there."""
    return bool(active_modes())
