"""How a backward pass finds what its forward pass left behind.

Enters: any object at forward time. Leaves: a tensor of two int64, which autograd saves like every other tensor; at
backward time the first number in it finds the object. The object lives exactly as long as the tensor's memory: when
autograd drops the graph (after backward, or without one, or because of an exception) the storage dies and a finalizer
forgets the object. Nothing leaks, with or without garbage collection, for several forwards before a backward, for
`retain_graph=True`, and from any thread. The second number is a note that outlives the object.

Note [Cloned handles]: a saved-tensor hook that stores copies lets the original die, and with it the object. The number
then leads nowhere; whoever needs the object raises `LostHandle`, whoever can do without goes on.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from vdnn.torch_private import without_torch_dispatch


class Handles:
    """Objects by the numbers in their handles."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._numbers = itertools.count(1)

    def issue(self, obj: Any, note: int = 0) -> torch.Tensor:
        """A handle to `obj`, valid for as long as the returned tensor's storage is. Its `note` can be read for ever."""
        number = next(self._numbers)
        # The runtime's own sixteen bytes are not the model's: no tracker counts them.
        with without_torch_dispatch():
            handle = torch.tensor([number, note], dtype=torch.int64, device="cpu")
        self._objects[number] = obj
        weakref.finalize(handle.untyped_storage(), self._objects.pop, number, None).atexit = False
        return handle

    def redeem(self, handle: torch.Tensor) -> Any | None:
        """The object behind a handle, or None when its storage is gone."""
        return self._objects.get(int(handle[0]))

    def note(self, handle: torch.Tensor) -> int:
        return int(handle[1])

    @property
    def num_alive(self) -> int:
        """How many objects wait for their backward. Returns to what it was once the graphs are gone."""
        return len(self._objects)
