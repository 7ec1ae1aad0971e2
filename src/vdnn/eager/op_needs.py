"""How many bytes an op is about to take: its results, and what it needs inside of itself.

Enters: an op and its arguments, before it runs; what it really took, once it has. Leaves: bytes. The first time an op
meets such shapes its results are sized on meta tensors (`result_sizes.py`), and its run is counted by the device's
allocator; both are remembered. What nobody has seen yet is expected from what ops of its kind took for each byte that
they read and write, and from the most that any was seen to take. So room that is made for a known op is what it takes;
room for a new one is a guess, and an accelerator that is full says so (`running_ops.py`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from vdnn.eager.result_sizes import (
    depends_on_values,
    key_of,
    only_aliases,
    results_on_meta,
    tensors_in,
)
from vdnn.torch_private import schema_of

MAX_KNOWN = 1 << 16  # combinations remembered; a model whose shapes never repeat starts over
UNSEEN = 2.25
"""Of what an op reads and writes, as its workspace: the most that was seen, of a convolution's backward. A convolution
of one shape needs none, and one of the next shape that much: what others took says what more it may be, not what less.
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """`likely_nbytes` of workspace are a guess, the others are known. `key` is None where nothing can be learned."""

    key: Hashable | None = None
    results_nbytes: int = 0
    workspace_nbytes: int = 0
    likely_nbytes: int = 0
    touched_nbytes: int = 0
    is_known: bool = False

    @property
    def nbytes(self) -> int:
        return self.results_nbytes + self.workspace_nbytes


NOTHING = Needs(is_known=True)


class OpNeeds:
    """`block_nbytes`: what the device's allocator rounds up to."""

    def __init__(self, block_nbytes: int = 1) -> None:
        self._block_nbytes = block_nbytes
        self._known: dict[Hashable, Needs] = {}
        self._ratios: dict[Any, float] = {}

    def before(self, op: Any, args: Any, kwargs: Any) -> Needs:
        if is_view(op):
            return NOTHING
        try:
            key: Hashable = key_of(op, args, kwargs)
            known = self._known.get(key)
        except TypeError:
            return NOTHING  # an argument that cannot be a key
        if known is not None:
            return known
        results_nbytes = 0 if only_aliases(op) else results_on_meta(op, args, kwargs, self._block_nbytes)
        is_learned = results_nbytes is not None or not depends_on_values(op)
        touched_nbytes = (results_nbytes or 0) + sum(
            tensor.numel() * tensor.element_size() for tensor in tensors_in((args, tuple(kwargs.values())))
        )
        at_least = 0.0 if torch.Tag.pointwise in op.tags else UNSEEN
        likely_nbytes = int(max(at_least, self._ratios.get(op, 0.0)) * touched_nbytes)
        return Needs(key if is_learned else None, results_nbytes or 0, 0, likely_nbytes, touched_nbytes)

    def after(self, needs: Needs, made_nbytes: int, taken_nbytes: int | None) -> int:
        """The workspace, as far as it is known now. `taken_nbytes`: the most that the op took at once; None: that was
        not counted."""
        if needs.is_known:
            return needs.workspace_nbytes
        workspace_nbytes = 0 if taken_nbytes is None else max(taken_nbytes - made_nbytes, 0)
        if taken_nbytes is not None and needs.touched_nbytes and needs.key is not None:
            op = needs.key[0]  # type: ignore[index]
            self._ratios[op] = max(self._ratios.get(op, 0.0), workspace_nbytes / needs.touched_nbytes)
        if needs.key is not None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[needs.key] = Needs(needs.key, made_nbytes, workspace_nbytes, is_known=True)
        return workspace_nbytes


@cache
def is_view(op: Any) -> bool:
    return only_aliases(op) and not schema_of(op).is_mutable
