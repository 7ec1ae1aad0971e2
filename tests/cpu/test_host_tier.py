"""The host tier: bounded slabs that are reused."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from random_examples import examples
from vdnn.errors import TierFailed, TierFull
from vdnn.runtime.tiers.host import HostStore
from vdnn.runtime.tracker import StorageTracker

pytestmark = pytest.mark.any_device


def random_bytes(nbytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8)


@examples(40)
@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=30))
def test_what_was_written_is_read_however_places_come_and_go(steps: list[tuple[int, bool]]) -> None:
    store, held = HostStore(4000, slab_nbytes=256, pin=False), []
    for nbytes, drops_one in steps:
        if store.used_nbytes + nbytes <= 4000:
            source = random_bytes(nbytes)
            held.append((store.reserve(nbytes), source))
            held[-1][0].write(source)
        if drops_one and held:
            held.pop(len(held) // 2)
    for place, source in held:
        target = torch.zeros_like(source)
        place.read(target)
        assert torch.equal(target, source)
    assert store.used_nbytes == sum(source.numel() for _, source in held)


def test_slabs_are_made_when_written_and_reused_afterwards() -> None:
    store = HostStore(slab_nbytes=1024, pin=False)
    store.reserve(1000)
    assert store.slab_nbytes == 0
    for _ in range(20):
        store.reserve(1000).write(random_bytes(1000))
    assert store.slab_nbytes == 1024


def test_slabs_never_exceed_the_bound() -> None:
    store = HostStore(2500, slab_nbytes=1024, pin=False)
    places = [store.reserve(nbytes) for nbytes in (1000, 1000, 500)]
    for place in places:
        place.write(random_bytes(place.nbytes))
    assert store.slab_nbytes == 2500


def test_a_full_tier_names_itself_what_was_asked_what_is_used_and_the_way_out() -> None:
    store = HostStore(1024, pin=False)
    held = store.reserve(1000)
    with pytest.raises(TierFull, match=r"the host tier has no room for 100 B: 1000 B of its 1\.00 KiB .*host_budget"):
        store.reserve(100)
    del held
    assert store.reserve(1024).nbytes == 1024


def test_every_byte_of_the_bound_can_be_used_however_scattered() -> None:
    store = HostStore(1000, slab_nbytes=64, pin=False)
    places = [store.reserve(10) for _ in range(100)]
    del places[::2]
    source, target = random_bytes(500), torch.empty(500, dtype=torch.uint8)
    place = store.reserve(500)
    place.write(source)
    place.read(target)
    assert torch.equal(target, source)


def test_the_tier_s_own_memory_is_not_counted_as_the_model_s() -> None:
    store = HostStore(slab_nbytes=4096, pin=False)
    source = random_bytes(100)
    with StorageTracker() as tracker:
        place = store.reserve(100)
        place.write(source)
        place.pieces()
    assert tracker.peak_nbytes == 0


def test_many_threads_reserve_write_and_drop_without_mixing_bytes() -> None:
    # Each thread still holds its last place while it reserves the next one.
    store, wrong = HostStore(2 * 8 * 64 * 1024, slab_nbytes=16 * 1024, pin=False), []

    def work(seed: int) -> None:
        for k in range(100):
            source = torch.full((1 + (seed * 7919 + k * 104729) % 60_000,), (seed * 31 + k) % 256, dtype=torch.uint8)
            place, target = store.reserve(source.numel()), torch.zeros_like(source)
            place.write(source)
            place.read(target)
            if not torch.equal(target, source):
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.used_nbytes == 0


def test_a_closed_tier_refuses_in_words() -> None:
    store = HostStore(pin=False)
    place = store.reserve(10)
    store.close()
    with pytest.raises(TierFailed, match="host tier has been closed"):
        place.write(random_bytes(10))
    with pytest.raises(TierFailed, match="host tier has been closed"):
        store.reserve(10)
