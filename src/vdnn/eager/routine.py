"""Steps that do what a watched step did: known to fit, so that nothing but that has to be looked at.

Enters: the tensors that a step saves. Leaves: a bare `Saved` for each, as long as their sizes are those of the watched
step, one after the other. The first that differs ends the routine; what was saved until then is handed over, to be
known by storage and moved like everything else. The one idea: code that is rarely in the processor's caches is slow, so
the common case is the shortest. `save` is the hook that autograd calls; it takes no lock, since a size can be taken
from the iterator by one thread only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import chain, repeat

import torch

from vdnn.eager.saved_items import Saved, Unmoved

Packed = Saved | Unmoved
NO_MORE = -1  # no tensor has this size


class Routine:
    def __init__(self, begins: Callable[[], None], departs: Callable[[torch.Tensor], Packed]) -> None:
        """`begins` is told of each step; `departs` takes every tensor that is not what the watched step saved there."""
        self._begins, self._departs = begins, departs
        self._known: list[int] = []
        self._written: list[int] = []
        self._expected: Iterator[int] = repeat(NO_MORE)
        self._saved: list[weakref.ref[Saved] | None] = []
        self._was_handed_over = False

    @property
    def num_saved(self) -> int:
        """In this step, while the routine held."""
        return len(self._saved)

    @property
    def is_idle(self) -> bool:
        return not self.left_over()

    def begin(self, *, is_watched: bool) -> None:
        """A step begins; a watched one before it is the one to compare with from now on."""
        if self._written:
            self._known, self._written = self._written, []
        self._expect([] if is_watched else self._known)

    def write(self, tensor: torch.Tensor) -> None:
        """A watched step saves this."""
        self._written.append(tensor.numel() * tensor.element_size())

    def save(self, tensor: torch.Tensor) -> Packed:
        if next(self._expected) != tensor.numel() * tensor.element_size():
            return self._other(tensor)
        if not self._saved:
            self._begins()
        if tensor.requires_grad and tensor.is_leaf:
            self._saved.append(None)
            return Unmoved(tensor)
        saved = Saved(None, tensor.detach())
        self._saved.append(weakref.ref(saved))
        return saved

    def left_over(self) -> list[Saved]:
        """What this step has saved so far, leaves apart, and autograd still holds."""
        return [saved for ref in self._saved if ref is not None and (saved := ref()) is not None]

    def hand_over(self) -> list[Saved]:
        """`left_over`, once: the step has departed, and the cache knows them by storage from here on."""
        was_handed_over, self._was_handed_over = self._was_handed_over, True
        return [] if was_handed_over else self.left_over()

    def _other(self, tensor: torch.Tensor) -> Packed:
        """Another step in the same block, or the end of the routine."""
        if self._known and len(self._saved) == len(self._known) and self.is_idle:
            self._expect(self._known)
            return self.save(tensor)
        self._expected = repeat(NO_MORE)
        return self._departs(tensor)

    def _expect(self, sizes: list[int]) -> None:
        self._expected, self._saved, self._was_handed_over = chain(sizes, repeat(NO_MORE)), [], False
