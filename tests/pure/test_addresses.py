"""Addresses in one arena: no two blocks that are alive at once share a page, and the arena is hardly larger than the
peak."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pure.random_plans import plans
from random_examples import examples
from vdnn.plan import Plan
from vdnn.plan.addresses import Extent, Layout, TimedBlock, collisions, pack, peak_of
from vdnn.plan.addresses.layout import PAGE_NBYTES, SMALLEST_NBYTES
from vdnn.plan.addresses.pack import SLACK
from vdnn.plan.addresses.pack_whole import pack_whole
from vdnn.plan.addresses.planned_layout import blocks_of, planned_layout
from vdnn.plan.addresses.step_arena import OUTSIDE, step_arena
from vdnn.plan.model.surroundings import ACCELERATOR_BLOCK_NBYTES

blocks = st.lists(
    st.builds(
        lambda nbytes, begin, length: TimedBlock(nbytes, begin, begin + length),
        st.integers(1, 40 * PAGE_NBYTES),
        st.integers(0, 30),
        st.integers(1, 30),
    ),
    max_size=40,
)


def paged(nbytes: int) -> int:
    return -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES


@given(blocks=blocks, slack=st.sampled_from([0.0, SLACK, 0.1]))
@examples(100)
def test_every_block_has_pages_of_its_own_in_an_arena_as_large_as_the_peak(
    blocks: list[TimedBlock], slack: float
) -> None:
    layout = pack(blocks, slack=slack)
    assert collisions(blocks, layout) == []
    peak = peak_of(TimedBlock(paged(block.nbytes), block.begin, block.end) for block in blocks)
    assert layout.peak_nbytes == peak
    assert layout.arena_nbytes <= peak * (1 + slack)


@given(blocks=blocks)
@examples(50)
def test_the_peak_is_the_most_that_is_alive_at_any_time(blocks: list[TimedBlock]) -> None:
    alive = [sum(b.nbytes for b in blocks if b.begin <= time < b.end) for time in range(61)]
    assert peak_of(blocks) == max(alive)


@given(plan=plans())
@examples(40)
def test_the_arena_of_a_plan_is_within_a_hundredth_of_what_comes_and_goes(plan: Plan) -> None:
    graph = plan.problem.graph
    larger = replace(graph, storages=tuple(replace(s, nbytes=s.nbytes * PAGE_NBYTES) for s in graph.storages))
    plan = replace(plan, problem=replace(plan.problem, graph=larger))
    layout, taken = planned_layout(plan), blocks_of(plan)
    assert collisions(taken, layout) == []
    assert all(block.nbytes >= SMALLEST_NBYTES for block in taken)
    assert layout.waste <= 1.01
    assert layout.peak_nbytes <= plan.peak_nbytes + PAGE_NBYTES * len(taken)


def test_what_nests_needs_no_stitching() -> None:
    """A step that keeps everything: forward makes maps, backward frees them in the other order."""
    layers = 50
    nested = [TimedBlock((k % 7 + 1) * PAGE_NBYTES, k, 2 * layers - k) for k in range(layers)]
    assert pack(nested, slack=0.0).stitched_nbytes == 0


def test_a_block_for_which_there_is_no_hole_in_one_piece_takes_several() -> None:
    """Two small blocks end around one that stays; what comes then is as large as both."""
    around = [TimedBlock(PAGE_NBYTES, 0, end) for end in (1, 2, 1)]
    layout = pack([*around, TimedBlock(2 * PAGE_NBYTES, 1, 2)], slack=0.0)
    assert collisions([*around, TimedBlock(2 * PAGE_NBYTES, 1, 2)], layout) == []
    assert layout.arena_nbytes == 3 * PAGE_NBYTES


@pytest.mark.parametrize(
    ("places", "found"),
    [
        (((Extent(0, PAGE_NBYTES),), (Extent(0, PAGE_NBYTES),)), "alive at once"),
        (((Extent(0, PAGE_NBYTES),), (Extent(PAGE_NBYTES, 2 * PAGE_NBYTES + 1),)), "not whole pages"),
        (((Extent(0, PAGE_NBYTES),), (Extent(2 * PAGE_NBYTES, 3 * PAGE_NBYTES),)), "outside of an arena"),
        (((Extent(0, PAGE_NBYTES),), ()), "bytes has 0"),
    ],
)
def test_the_check_finds_what_is_wrong(places: tuple[tuple[Extent, ...], ...], found: str) -> None:
    two = [TimedBlock(PAGE_NBYTES, 0, 2), TimedBlock(PAGE_NBYTES, 1, 3)]
    wrong = collisions(two, Layout(places, 2 * PAGE_NBYTES, 2 * PAGE_NBYTES))
    assert any(found in words for words in wrong)


@given(blocks=blocks)
@examples(50)
def test_whole_blocks_have_bytes_of_their_own_in_one_run(blocks: list[TimedBlock]) -> None:
    layout = pack_whole(blocks, PAGE_NBYTES)
    assert collisions(blocks, layout) == []
    assert all(len(place) == 1 for place in layout.places)
    assert (
        layout.arena_nbytes
        >= layout.peak_nbytes
        == peak_of(TimedBlock(paged(block.nbytes), block.begin, block.end) for block in blocks)
    )


@given(blocks=blocks, data=st.data())
@examples(50)
def test_whole_blocks_that_lie_somewhere_already_never_collide_with_others(
    blocks: list[TimedBlock], data: st.DataObject
) -> None:
    """Places that cannot all be kept are kept for those that live longest."""
    offsets = st.none() | st.integers(0, 40).map(lambda page: page * PAGE_NBYTES)
    there = [data.draw(offsets) for _ in blocks]
    layout = pack_whole(blocks, PAGE_NBYTES, there=there)
    assert collisions(blocks, layout) == []
    longest = max(range(len(blocks)), key=lambda k: (blocks[k].end - blocks[k].begin, -k), default=None)
    if longest is not None and there[longest] is not None:
        assert layout.places[longest][0].begin == there[longest]


@given(blocks=blocks)
@examples(50)
def test_a_block_that_is_to_lie_below_another_does(blocks: list[TimedBlock]) -> None:
    below = {0: len(blocks)} if blocks else {}
    both = [*blocks, *(TimedBlock(3 * PAGE_NBYTES, block.begin, block.begin + 1) for block in blocks[:1])]
    layout = pack_whole(both, PAGE_NBYTES, below=below)
    assert collisions(both, layout) == []
    for upper, lower in below.items():
        assert layout.places[upper][0].begin == layout.places[lower][0].end


MOST_WASTED = {"chain": 1.0, "resnet": 1.01, "unet": 1.02, "random 1": 1.05, "random 2": 1.05}


def golden_blocks(name: str) -> list[TimedBlock]:
    """Lifetimes as steps have them: maps that nest, with short ones between; maps that skip from half to half; any."""
    draw = random.Random(name)
    layers, size = 60, lambda: draw.randint(1, 64) * PAGE_NBYTES
    nested = [TimedBlock(size(), k, 2 * layers - k) for k in range(layers)]
    if name == "chain":
        return nested
    if name == "resnet":
        return nested[::3] + [TimedBlock(size(), k, k + 2) for k in range(2 * layers)]
    if name == "unet":
        gone = [TimedBlock(b.nbytes, b.begin, b.begin + 4) for b in nested[20:]]
        back = [TimedBlock(b.nbytes, b.end - 5, b.end) for b in nested[20:]]
        return nested[:20] + gone + back
    begins = [draw.randint(0, 100) for _ in range(150)]
    return [TimedBlock(size(), begin, begin + draw.randint(1, 40)) for begin in begins]


@pytest.mark.parametrize("name", MOST_WASTED)
def test_little_is_wasted_on_golden_problems(name: str) -> None:
    blocks = golden_blocks(name)
    layout = pack_whole(blocks, PAGE_NBYTES)
    assert collisions(blocks, layout) == []
    assert layout.waste <= MOST_WASTED[name]


@given(plan=plans())
@examples(25)
def test_the_arena_of_a_plan_has_all_but_what_others_hold(plan: Plan) -> None:
    graph = plan.problem.graph
    larger = replace(graph, storages=tuple(replace(s, nbytes=s.nbytes * 100) for s in graph.storages))
    plan = replace(plan, problem=replace(plan.problem, graph=larger))
    arena = step_arena(plan)
    inside = [guide for guide in arena.guides if guide.offset != OUTSIDE]
    held = {graph.values[value].storage for value in graph.held}
    assert not held & {guide.storage for guide in inside}
    placed = Layout(
        tuple((Extent(g.offset, g.offset + -(-g.nbytes // 512) * 512),) for g in inside),
        arena.nbytes,
        arena.peak_nbytes,
    )
    blocks = [TimedBlock(guide.nbytes, guide.begin, guide.end) for guide in inside]
    assert not [words for words in collisions(blocks, placed) if "alive at once" in words or "outside" in words]
    num_blocks = len(plan.program) + len(graph.storages)
    assert arena.reserved_nbytes >= plan.peak_nbytes - ACCELERATOR_BLOCK_NBYTES * num_blocks
