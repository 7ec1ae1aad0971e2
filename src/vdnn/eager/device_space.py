"""Room on the device, made when it is short: who leaves, who comes back, and when.

Enters: an amount of memory that is about to be needed, or an item that backward asks for. Leaves: the room, or the
item. As published (SuperNeurons, PPoPP 2018, section 3.3.3 and algorithm 2): nothing moves before memory is short; then
items leave, in the order of the policy, until there is room; in backward, what will be asked for next comes back ahead
of time as far as there is room. Two things are added. What has an exact and cheap encoding is encoded before it is
sent. And after a shortage the next candidates start to leave too (`_write_ahead`), so that the next shortage finds its
copies done; one that is asked for before it had to go just stays.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch

from vdnn.codecs import Codec
from vdnn.codecs.kernels import takes_room
from vdnn.eager.cache_findings import Findings
from vdnn.eager.live_bytes import LiveBytes
from vdnn.eager.policies import leaving_order
from vdnn.eager.saved_items import Item, Tallies
from vdnn.eager.use_order import Follower
from vdnn.errors import TierFull
from vdnn.runtime.pool.exact_encodings import exact_codec
from vdnn.runtime.pool.states import State
from vdnn.runtime.transfers.interface import Transfers
from vdnn.torch_private import storage_id

Taken = TypeVar("Taken")

LOOKAHEAD = 16  # requests that prefetching looks ahead; memory bounds it earlier except for small storages
STALL_S = 200e-6  # a wait below this is the price of asking, not of waiting


class Space:
    """Its caller holds the cache's lock. `used` gives the bytes on the device, as far as they are known."""

    def __init__(
        self,
        budget_nbytes: int,
        tiers: Sequence[str],
        transfers: Callable[[], Transfers],
        *,
        policy: str,
        encode: bool,
        live: LiveBytes,
        used: Callable[[], int],
    ) -> None:
        self.budget_nbytes = budget_nbytes
        self.follower = Follower()
        self.findings = Findings()
        self.step = 0
        self._tiers, self._transfers, self._policy, self._encode = tiers, transfers, policy, encode
        self._live, self._used = live, used
        self.tallies = Tallies()
        self._by_key: weakref.WeakValueDictionary[int, Item] = weakref.WeakValueDictionary()
        self._recent: dict[int, weakref.ref[Item]] = {}  # by id, the least recently used first
        self._ordinals: dict[int, weakref.ref[Item]] = {}
        self._leaving: deque[weakref.ref[Item]] = deque()
        self._passing: dict[int, weakref.ref[Item]] = {}  # by id, those that are or were encoded or coming back
        self.full: TierFull | None = None
        """Why the slower tiers did not take what should have left last time."""
        self._largest_need = 0
        self.kept_free_nbytes = 0
        """Of the budget, in this step: what the device turned out not to have."""

    def begin_step(self, follower: Follower) -> None:
        self.follower, self.step, self._ordinals, self.kept_free_nbytes = follower, self.step + 1, {}, 0
        self._passing = {id(item): weakref.ref(item) for item in self._passing_items()}

    def item_of(self, tensor: torch.Tensor) -> Item:
        """The item of a tensor's storage: a known one, or a new one at the end of the order. PyTorch reuses the keys of
        storages that are gone, so only the storage itself tells."""
        storage = tensor.untyped_storage()
        known = self._by_key.get(storage_id(storage))
        if known is not None and known.storage is storage:
            if known.entry is not None and known.state is State.LEAVING:
                known.entry.keep()
            return known
        ordinal = self.follower.save(storage.nbytes())
        item = Item(tensor, self.step, ordinal, self.tallies)
        self._ordinals[ordinal] = weakref.ref(item)
        self._enter(item)
        return item

    @property
    def passing_nbytes(self) -> int:
        """What the device holds of storages that are not whole there: encodings, and copies that are coming back."""
        return sum(item.entry.nbytes for item in self._passing_items() if item.entry is not None)

    def _passing_items(self) -> list[Item]:
        items = (ref() for ref in self._passing.values())
        return [item for item in items if item is not None and item.state in (State.COMING, State.ENCODED)]

    def short_of(self, need: int) -> int:
        return self._used() + need - self.budget_nbytes

    def make(self, need: int, *, besides: Item | None = None) -> None:
        """Make room for `need` bytes, as far as that is possible."""
        self._largest_need = max(self._largest_need, need)
        self.full = None
        need += self.kept_free_nbytes
        if self.short_of(need) <= 0:
            return
        self._finish_leaving(need)
        candidates = iter(self._candidates(besides))
        self._evict(need, candidates)
        self._drop_arrivals(need, besides)
        if self.short_of(need) <= 0:
            self._write_ahead(need, candidates)

    def clear(self, besides: Item | None = None) -> None:
        """Have all leave that can, and the allocator give back what it keeps between blocks."""
        self.kept_free_nbytes = max(self.budget_nbytes - self._used(), 0)
        everything = self._used() + self.budget_nbytes
        encodes, self._encode = self._encode, False  # to look at what may be encoded takes memory too
        try:
            self._evict(everything, iter(self._candidates(besides)))
            self._drop_arrivals(everything, besides)
        finally:
            self._encode = encodes
        torch.accelerator.synchronize(self._live.where)  # what was freed is free once the device is past it
        torch.accelerator.empty_cache()

    def bring(self, item: Item) -> None:
        """All bytes of the item are on the device afterwards."""
        if item.entry is None:
            self.findings.num_hits += 1
            self._touch(item)
            return
        was_here = item.state in (State.HERE, State.LEAVING, State.ENCODED)
        was_coming, stalls = item.state is State.COMING, self.findings.num_stalls
        while item.state is not State.HERE:
            self._bring_closer(item)
        if item.storage is None:
            item.take_back()
            self._enter(item)
        self._touch(item)
        self.findings.num_hits += was_here
        self.findings.num_prefetch_hits += was_coming and stalls == self.findings.num_stalls
        self.findings.num_misses += not (was_here or was_coming)

    def prefetch(self, item: Item) -> None:
        """Start to bring back what will be asked for after `item`, while there is room that no op is likely to need."""
        if self.findings.num_sent == 0:
            return
        for number, ordinal in enumerate(self.follower.upcoming(item.ordinal)):
            ref = self._ordinals.get(ordinal)
            following = None if ref is None else ref()
            if number == LOOKAHEAD:
                return
            if following is not None and following.entry is not None and following.state is State.AWAY:
                if self.short_of(following.entry.nbytes + self._largest_need + self.kept_free_nbytes) > 0:
                    return
                try:
                    self._fetch(following)
                except torch.OutOfMemoryError:
                    return  # it comes when it is asked for

    def _bring_closer(self, item: Item) -> None:
        entry = item.entry
        assert entry is not None
        if entry.state is State.LEAVING:
            entry.keep()
        elif entry.state is State.COMING:
            self._timed(entry.arrive)
        elif entry.state is State.AWAY:
            self.make(entry.nbytes, besides=item)
            self._in_room(partial(self._fetch, item), item)
        else:
            room_nbytes = item.nbytes + (0 if entry.codec is None else self._codec_nbytes(entry.codec))
            self.make(room_nbytes, besides=item)
            self._in_room(entry.decode, item)
            self._count(entry.payload)

    def _codec_nbytes(self, codec: Codec) -> int:
        """What its kernels take beside what they are given."""
        return codec.workspace_nbytes if takes_room(self._live.where.type) else 0

    def _in_room(self, take: Callable[[], Taken], besides: Item) -> Taken:
        """What takes memory, once more where the device is full before the budget is."""
        try:
            return take()
        except torch.OutOfMemoryError:
            pass
        self.clear(besides)
        return take()

    def _fetch(self, item: Item) -> None:
        assert item.entry is not None
        self._count(item.entry.fetch())
        self._note_passing(item)
        self.findings.num_fetched += 1
        self.findings.fetched_nbytes += item.entry.nbytes

    def _candidates(self, besides: Item | None) -> Sequence[Item]:
        alive: list[Item] = []
        for key, ref in list(self._recent.items()):
            item = ref()
            if item is None:
                self._recent.pop(key, None)
            elif item is not besides and item.state in (State.HERE, State.ENCODED):
                alive.append(item)
        return leaving_order(self._policy, alive, self._next_use if self.follower.follows else None)

    def _next_use(self, item: Item) -> float:
        """What an earlier step left behind is not in this step's order: it is asked for last, or never."""
        return self.follower.next_use(item.ordinal if item.step == self.step else -1)

    def _evict(self, need: int, candidates: Iterator[Item]) -> None:
        """Copies go out together, and are waited for together."""
        under_way = 0
        while self.short_of(need) > under_way and (item := next(candidates, None)) is not None:
            if item.is_worth_moving and not self._encoded(item):
                try:
                    under_way += self._send(item)
                except TierFull as error:
                    self.full = error  # a smaller one may still find its place
        self._finish_leaving(need)

    def _encoded(self, item: Item) -> bool:
        if not self._encode or item.dtype is None or item.state is not State.HERE:
            return False
        entry = item.enter_pool(self._transfers())
        assert entry.payload is not None
        try:
            codec = None if entry.has_copy else exact_codec(entry.payload, item.dtype)
            if codec is None or self.short_of(codec.nbytes + self._codec_nbytes(codec)) > 0 or not entry.encode(codec):
                return False
        except torch.OutOfMemoryError:
            return False  # the device is full before the budget is: it leaves as it is
        self._count(entry.payload)
        item.let_go()
        self._note_passing(item)
        self.findings.num_encoded += 1
        self.findings.encoding_saved_nbytes += item.nbytes - entry.nbytes
        return True

    def _send(self, item: Item) -> int:
        """The bytes that come free once the copy is done."""
        if not self._tiers:
            return 0
        item.enter_pool(self._transfers())
        entry = item.will_send()
        moves = not entry.has_copy
        entry.send(self._tiers)
        self._leaving.append(weakref.ref(item))
        self.findings.num_sent += moves
        self.findings.sent_nbytes += moves * entry.nbytes
        return entry.nbytes

    def _finish_leaving(self, need: int) -> None:
        while self._leaving and self.short_of(need) > 0:
            item = self._leaving.popleft()()
            if item is not None and item.entry is not None and item.state is State.LEAVING:
                self._timed(item.entry.leave)
                if item.storage is not None:
                    item.let_go()

    def _drop_arrivals(self, need: int, besides: Item | None) -> None:
        """Last of all: what was brought back too early goes again, without a copy."""
        for item in reversed(self._passing_items()):  # the latest request is the one that is needed last
            if self.short_of(need) <= 0:
                return
            if item is not besides and item.entry is not None and item.state is State.COMING:
                item.entry.arrive()
                item.entry.send(self._tiers)
                item.entry.leave()

    def _write_ahead(self, need: int, candidates: Iterable[Item]) -> None:
        started = 0
        for item in candidates:
            if started >= need:
                return
            if item.is_worth_moving and not self._would_be_encoded(item):
                try:
                    started += self._send(item)
                except TierFull:
                    return  # nothing had to go yet

    def _would_be_encoded(self, item: Item) -> bool:
        if not self._encode or item.dtype is None or item.state is not State.HERE:
            return False
        payload = item.enter_pool(self._transfers()).payload
        try:
            return payload is not None and exact_codec(payload, item.dtype) is not None
        except torch.OutOfMemoryError:
            return False

    def _count(self, tensor: torch.Tensor | None) -> None:
        assert tensor is not None
        self._live.count(tensor)

    def _enter(self, item: Item) -> None:
        self._by_key[item.key] = item
        self._touch(item)

    def _note_passing(self, item: Item) -> None:
        self._passing.pop(id(item), None)
        self._passing[id(item)] = weakref.ref(item)

    def _touch(self, item: Item) -> None:
        self._recent.pop(id(item), None)
        self._recent[id(item)] = weakref.ref(item)

    def _timed(self, wait: Callable[[], None]) -> None:
        begin = time.perf_counter()
        wait()
        seconds = time.perf_counter() - begin
        self.findings.num_stalls += seconds > STALL_S
        self.findings.stall_s += seconds
