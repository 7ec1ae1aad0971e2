"""Steps that do what a watched step did: known to fit, so that nothing but that has to be looked at.

Enters: the tensors that a step saves. Leaves: a bare `Saved` for each, as long as their sizes are those of the watched
step, one after the other. The first that differs ends the routine; what was saved until then is handed over, to be
known by storage and moved like everything else. The one idea: code that is rarely in the processor's caches is slow, so
the common case is the shortest.
"""

from __future__ import annotations

import weakref

import torch

from vdnn.runtime.tensor_cache.items import Saved, Unmoved, is_leaf

NO_MORE = -1  # no tensor has this size


class Routine:
    def __init__(self) -> None:
        self.holds = False
        self._known = [NO_MORE]
        self._written: list[int] = []
        self._saved: list[weakref.ref[Saved]] = []
        self.num_saved = 0
        """In this step, while the routine held."""

    @property
    def is_idle(self) -> bool:
        return not self.left_over()

    def begin(self, *, is_watched: bool) -> None:
        """A step begins; a watched one before it is the one to compare with from now on."""
        if self._written:
            self._known, self._written = [*self._written, NO_MORE], []
        self._saved, self.num_saved = [], 0
        self.holds = not is_watched and self._known[0] != NO_MORE

    def write(self, tensor: torch.Tensor) -> None:
        """A watched step saves this."""
        self._written.append(tensor.numel() * tensor.element_size())

    def save(self, tensor: torch.Tensor) -> Saved | Unmoved | None:
        """None when this is not what the watched step saved here."""
        nbytes = tensor.numel() * tensor.element_size()
        if self._known[self.num_saved] != nbytes and not self._begins_again(nbytes):
            self.holds = False
            return None
        self.num_saved += 1
        if is_leaf(tensor):
            return Unmoved(tensor)
        saved = Saved(None, tensor.detach())
        self._saved.append(weakref.ref(saved))
        return saved

    def _begins_again(self, nbytes: int) -> bool:
        """Another step in the same block."""
        if self._known[self.num_saved] != NO_MORE or not self.is_idle:
            return False
        self._saved, self.num_saved = [], 0
        return self._known[0] == nbytes

    def left_over(self) -> list[Saved]:
        """What this step has saved so far, leaves apart, and autograd still holds."""
        return [saved for ref in self._saved if (saved := ref()) is not None]
