"""Taken and free ranges of a row of bytes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdnn.plan.addresses.extents import Extent, Extents

CAPACITY = 1000


def bytes_of(held: Iterable[tuple[Extent, ...]]) -> list[int]:
    return [byte for extents in held for extent in extents for byte in range(extent.begin, extent.end)]


@given(st.lists(st.one_of(st.integers(0, 400), st.none()), max_size=60), st.randoms(use_true_random=False))
def test_whatever_is_taken_and_given_back_no_byte_has_two_owners_and_none_is_lost(
    wishes: list[int | None], rng: random.Random
) -> None:
    extents, held = Extents(CAPACITY), []
    for wish in wishes:
        if wish is not None and (got := extents.allocate(wish)) is not None:
            assert sum(extent.nbytes for extent in got) == wish
            held.append(got)
        elif wish is None and held:
            for extent in held.pop(rng.randrange(len(held))):
                extents.release(extent)
        taken = bytes_of(held)
        assert len(taken) == len(set(taken)) == CAPACITY - extents.free_nbytes
        assert all(0 <= byte < CAPACITY for byte in taken)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_when_all_is_given_back_in_any_order_one_hole_is_left(sizes: list[int], rng: random.Random) -> None:
    extents = Extents(sum(sizes))
    held = [extent for size in sizes for extent in extents.allocate(size) or ()]
    assert extents.num_holes == 0
    rng.shuffle(held)
    for extent in held:
        extents.release(extent)
    assert (extents.num_holes, extents.free_nbytes) == (1, sum(sizes))


def test_free_bytes_that_are_scattered_still_serve() -> None:
    extents = Extents(30)
    a, _b, c = (extents.allocate(10) for _ in range(3))
    assert a is not None
    assert c is not None
    extents.release(a[0])
    extents.release(c[0])
    assert sorted((e.begin, e.end) for e in extents.allocate(20) or ()) == [(0, 10), (20, 30)]


def test_the_smallest_hole_that_holds_a_request_is_taken() -> None:
    extents = Extents(100)
    held = [extents.allocate(size) for size in (30, 5, 12, 5)]
    for index in (0, 2):
        extents.release((held[index] or ())[0])
    assert extents.allocate(11) == (Extent(35, 46),)


def test_more_than_is_free_is_declined_and_changes_nothing() -> None:
    extents = Extents(10)
    extents.allocate(4)
    assert (extents.allocate(7), extents.free_nbytes) == (None, 6)


def test_a_row_that_grows_joins_its_new_end_to_the_hole_before() -> None:
    extents = Extents(10)
    extents.grow(10)
    assert extents.allocate(20) == (Extent(0, 20),)


def test_giving_back_twice_is_our_bug_and_stops() -> None:
    extents = Extents(10)
    (extent,) = extents.allocate(4) or ()
    extents.release(extent)
    with pytest.raises(AssertionError, match="is not taken"):
        extents.release(extent)


def test_ten_thousand_extents_take_and_give_back_in_microseconds_each() -> None:
    """Every second extent is released first, so that ten thousand holes stand side by side."""
    extents = Extents(2**62)
    begin = time.perf_counter()
    held = [extent for k in range(20_000) for extent in extents.allocate(4096 * (1 + k % 97)) or ()]
    for extent in held[::2]:
        extents.release(extent)
    assert extents.num_holes == 10_001
    for extent in held[1::2]:
        extents.release(extent)
    assert extents.num_holes == 1
    assert time.perf_counter() - begin < 5  # 0.2 s on an idle core; a scan of all holes per call takes minutes
