"""What autograd holds in place of the tensors it saves.

Enters: a tensor that an op saves for its backward. Leaves: the same tensor, bit for bit, when backward asks. An `Item`
is a storage, known once however many tensors look into it; a `Saved` is one such look. Autograd owns the `Saved`, and
only they own the item: when a graph is dropped, with or without a backward, everything behind it goes.

Note [Worth moving]: memory comes free only when nobody else holds the storage: no variable of the user, no other graph,
no op that is running. PyTorch counts the holders of a storage, and we know which of them are ours. So parameters,
inputs and outputs that somebody keeps stay where they are, and what is away cannot be changed by anybody.

Note [Changed in place]: PyTorch does not compare versions of tensors that hooks have packed, so this file does, with
the words that eager mode has for it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn

import torch

from vdnn.eager.live_bytes import Tally
from vdnn.runtime.pool.entry import Entry
from vdnn.runtime.pool.states import State
from vdnn.runtime.transfers.interface import Transfers
from vdnn.torch_private import num_holders, num_writes, storage_id, without_torch_dispatch

SavedLayout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]


class Unmoved:
    """A tensor that stays: a parameter, a small one, one without plain memory. A leaf is held as it is, as autograd
    does; another would hold the graph that holds it."""

    __slots__ = ("_tensor", "_version")
    item: ClassVar[None] = None

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor if tensor.is_leaf else tensor.detach()
        self._version = num_writes(tensor)

    def held(self) -> torch.Tensor:
        if num_writes(self._tensor) != self._version:
            raise_stale(self._tensor, self._version)
        return self._tensor


class Saved:
    """One tensor. `_alias` shares memory and version with the one that was saved, and is None while that is away.
    `item` is None in a step that is not watched, where no storage has to be known (`routine.py`)."""

    __slots__ = ("__weakref__", "_alias", "_layout", "_stale", "_version", "item")

    def __init__(self, item: Item | None, alias: torch.Tensor) -> None:
        self.item = item
        self._alias: torch.Tensor | None = alias
        self._version = num_writes(alias)
        self._stale: str | None = None
        self._layout: SavedLayout | None = None

    def held(self) -> torch.Tensor | None:
        """What is here, as it is; whoever takes over a storage counts its holders from then on (`renew`)."""
        alias = self._alias
        if alias is not None and num_writes(alias) != self._version:
            raise_stale(alias, self._version)
        return alias

    def tensor(self) -> torch.Tensor:
        """Each caller gets a tensor object of its own, so that PyTorch counts it. Note [Worth moving]"""
        if self._stale is not None:
            raise RuntimeError(self._stale)
        if self._alias is None:
            assert self.item is not None
            assert self._layout is not None
            self._alias, self._version = self.item.look(self._layout)
        held = self.held()
        assert held is not None
        return held.detach()

    def renew(self) -> None:
        """An object that nobody else has: those who were given the one before are counted by PyTorch now."""
        self._alias = self.alias.detach()

    @property
    def alias(self) -> torch.Tensor:
        assert self._alias is not None, "only what has an item can be away"
        return self._alias

    @property
    def holds_memory(self) -> bool:
        return self._alias is not None

    def spoil(self, words: str) -> None:
        """Its storage has been changed before it looked."""
        self._stale = self._stale or words

    def let_go(self) -> None:
        if self._alias is not None:
            alias, self._alias = self._alias, None
            self._layout = (alias.dtype, tuple(alias.shape), alias.stride(), int(alias.storage_offset()))
            if num_writes(alias) != self._version:
                self._stale = words_for_stale(alias, self._version)


@dataclass(frozen=True, slots=True)
class Tallies:
    """Over all items of a cache: how many there are, their bytes, and the bytes of those that are whole on the
    device."""

    alive: Tally = field(default_factory=Tally)
    saved: Tally = field(default_factory=Tally)
    resident: Tally = field(default_factory=Tally)


class Item:
    """A storage that autograd saved. `storage` is None while its bytes are not whole on the device."""

    __slots__ = (
        "__weakref__",
        "_base",
        "_base_version",
        "_saved",
        "_sent_version",
        "_tallies",
        "dtype",
        "entry",
        "key",
        "nbytes",
        "ordinal",
        "step",
        "storage",
    )

    def __init__(self, tensor: torch.Tensor, step: int, ordinal: int, tallies: Tallies) -> None:
        self.storage: torch.UntypedStorage | None = tensor.untyped_storage()
        self.key, self.nbytes = storage_id(self.storage), self.storage.nbytes()
        self.dtype: torch.dtype | None = tensor.dtype
        self.step, self.ordinal = step, ordinal
        self.entry: Entry | None = None
        self._base: torch.Tensor | None = None
        self._base_version = self._sent_version = 0
        self._saved: list[weakref.ref[Saved]] = []
        self._tallies = tallies
        tallies.alive.add(1)
        tallies.saved.add(self.nbytes)
        tallies.resident.add(self.nbytes)

    @property
    def state(self) -> State:
        return State.HERE if self.entry is None else self.entry.state

    def save(self, alias: torch.Tensor) -> Saved:
        saved = Saved(self, alias)
        self._adopt(saved)
        return saved

    def take_over(self, saved: Saved) -> None:
        """From a step that knew no items."""
        saved.renew()
        saved.item = self
        self._adopt(saved)

    def _adopt(self, saved: Saved) -> None:
        self._saved.append(weakref.ref(saved))
        if saved.alias.dtype is not self.dtype:
            self.dtype = None  # read as two dtypes: no encoding of its elements

    @property
    def is_worth_moving(self) -> bool:
        """Note [Worth moving]. An encoded one is ours alone."""
        if self.storage is None:
            return True
        looks = sum(saved.holds_memory for saved in self._alive())
        payload = self.entry is not None and self.entry.payload is not None
        base = self._base is not None and not payload
        return num_holders(self.storage) == 1 + looks + payload + base

    def enter_pool(self, transfers: Transfers) -> Entry:
        if self.entry is None:
            assert self.storage is not None
            with without_torch_dispatch():
                flat = torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)
            self.entry = Entry(flat, transfers, f"saved tensor {self.ordinal} of a step, {self.dtype}")
        return self.entry

    def will_send(self) -> Entry:
        """A copy that was sent before serves again, unless somebody has changed the bytes since. Autograd forbids that
        to those who read what was saved before, and not to those who save anew."""
        assert self.entry is not None
        version = self._version
        if self.entry.has_copy and version != self._sent_version:
            self.entry.forget_copy()
        self._sent_version = version
        return self.entry

    @property
    def _version(self) -> int:
        """Of the bytes. All that shows them shares it; where nothing does, nobody has changed them."""
        if self._base is not None:
            return num_writes(self._base)
        return next((num_writes(saved.alias) for saved in self._alive() if saved.holds_memory), self._sent_version)

    def let_go(self) -> None:
        """Its bytes are held elsewhere now: nothing of ours keeps the memory."""
        is_changed = self._base is not None and num_writes(self._base) != self._base_version
        for saved in self._alive():
            if is_changed and not saved.holds_memory:
                assert self._base is not None
                saved.spoil(words_for_stale(self._base, self._base_version))
            saved.let_go()
        self.storage = self._base = None
        self._tallies.resident.departed.append(self.nbytes)

    def take_back(self) -> None:
        """Its bytes are in the entry's memory again."""
        assert self.entry is not None
        assert self.entry.payload is not None
        self._base = self.entry.payload
        self._base_version = self._sent_version = num_writes(self._base)
        self.storage = self._base.untyped_storage()
        self.key = storage_id(self.storage)
        self._tallies.resident.add(self.nbytes)

    def look(self, layout: SavedLayout) -> tuple[torch.Tensor, int]:
        """All looks are views of one tensor, so that they share one version; and the version that its bytes came back
        with, because somebody may have changed them since. Note [Changed in place]"""
        assert self._base is not None, f"a storage of {self.nbytes} bytes was read while it was {self.state.value}"
        dtype, shape, stride, offset = layout
        whole = self.nbytes // dtype.itemsize * dtype.itemsize
        return self._base[:whole].view(dtype).as_strided(shape, stride, offset), self._base_version

    def _alive(self) -> list[Saved]:
        found = [saved for ref in self._saved if (saved := ref()) is not None]
        self._saved = [weakref.ref(saved) for saved in found] if len(found) < len(self._saved) else self._saved
        return found

    def __del__(self) -> None:
        self._tallies.alive.departed.append(1)
        self._tallies.saved.departed.append(self.nbytes)
        if self.storage is not None:
            self._tallies.resident.departed.append(self.nbytes)


def is_leaf(tensor: torch.Tensor) -> bool:
    """A parameter, or another tensor that is the user's: it is counted as theirs and never moved."""
    return tensor.requires_grad and tensor.is_leaf


def raise_stale(tensor: torch.Tensor, expected: int) -> NoReturn:
    raise RuntimeError(words_for_stale(tensor, expected))


def words_for_stale(tensor: torch.Tensor, expected: int) -> str:
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation:"
        f" [{tensor.type()} {list(tensor.shape)}] is at version {num_writes(tensor)};"
        f" expected version {expected} instead."
    )
