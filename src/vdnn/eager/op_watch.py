"""See every op before it runs, so that there is room for its results.

Enters: each op that PyTorch dispatches. Leaves: its results, counted. This is where the budget is kept exactly: the
bytes alive are known, the bytes an op will make are known (`result_sizes.py`), and room is made between the two. It
costs some 30 us per op, so steps that are known to fit run without it (`tensor_cache.py`, Note [Watched steps]).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from vdnn.eager.live_bytes import LiveBytes
from vdnn.eager.result_sizes import ResultSizes, tensors_in
from vdnn.torch_private import TorchDispatchMode, active_modes


class Owner(Protocol):
    """What the mode needs of the cache."""

    @property
    def is_busy_here(self) -> bool: ...

    @property
    def memory(self) -> AbstractContextManager[Any]: ...

    def make_room(self, need: int) -> None: ...

    def note_peak(self) -> None: ...


class Watch(TorchDispatchMode):
    def __init__(self, owner: Owner, live: LiveBytes, sizes: ResultSizes) -> None:
        super().__init__()
        self._owner, self._live, self._sizes = owner, live, sizes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._owner.is_busy_here:  # the cache's own ops make their room themselves
            return func(*args, **kwargs)
        key, need = self._sizes.before(func, args, kwargs)
        for tensor in tensors_in((args, tuple(kwargs.values()))):
            self._live.count(tensor)
        self._owner.make_room(need)
        with self._owner.memory:
            results = func(*args, **kwargs)
        made = sum(self._live.count(tensor) for tensor in tensors_in((results,)))
        self._sizes.after(key, made)
        self._owner.note_peak()
        if made > need:
            self._owner.make_room(0)
        return results


def is_watching() -> bool:
    """Whether any mode is active in this thread; ours never stands above another's that it did not find there."""
    return bool(active_modes())
