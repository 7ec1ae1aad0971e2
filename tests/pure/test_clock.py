"""Time beside copies: a link with a drag lengthens the compute that runs while it copies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pure import graphs
from pure.graphs import DEVICE, HOST
from vdnn.codecs import codec_for
from vdnn.hardware.device import CodecSpeed, Hardware, Link, Tier
from vdnn.ir import Role, Storage
from vdnn.plan import from_json, to_json
from vdnn.plan.judge.drag import Drag
from vdnn.plan.judge.simulate import simulate
from vdnn.plan.model.actions import Offload
from vdnn.plan.model.codec_time import codec_seconds
from vdnn.plan.model.timeline import COMPUTE
from vdnn.plan.plan import Plan

OUT, BACK = Link(DEVICE, HOST, 1.0, drag=0.25), Link(HOST, DEVICE, 1.0, drag=0.5)


def drag(*copies: tuple[Link, float, float], links: tuple[Link, ...] = (OUT, BACK)) -> Drag:
    """Of a machine whose links have these copies queued."""
    beside = Drag(Hardware("testbench", 1.0, 1.0, (Tier(DEVICE), Tier(HOST)), links))
    for copy in copies:
        beside.copy(*copy)
    return beside


def test_compute_without_copies_takes_what_it_takes() -> None:
    assert drag().end_s(1.0, 2.0) == 3.0


def test_a_copy_that_ends_first_costs_its_drag_times_its_seconds() -> None:
    assert drag((OUT, 0.0, 4.0)).end_s(0.0, 10.0) == 10.0 + 0.25 * 4.0


def test_only_the_part_of_a_copy_beside_compute_costs() -> None:
    assert drag((OUT, 0.0, 4.0)).end_s(2.0, 10.0) == 12.0 + 0.25 * 2.0


def test_a_copy_that_outlasts_compute_slows_all_of_it() -> None:
    assert drag((BACK, 0.0, 100.0)).end_s(0.0, 3.0) == 6.0


def test_copies_in_both_directions_add_their_drags() -> None:
    assert drag((OUT, 0.0, 4.0), (BACK, 0.0, 4.0)).end_s(0.0, 10.0) == 10.0 + (0.25 + 0.5) * 4.0


def test_a_copy_that_starts_later_costs_from_then_on() -> None:
    assert drag((OUT, 5.0, 6.0)).end_s(0.0, 10.0) == 10.25


def test_compute_stands_still_beside_copies_that_take_all_of_it() -> None:
    links = Link(DEVICE, HOST, 1.0, drag=0.75), BACK
    assert drag((links[0], 0.0, 2.0), (BACK, 0.0, 3.0), links=links).end_s(0.0, 1.0) == 3.5


def test_a_link_without_drag_costs_nothing() -> None:
    link = Link(DEVICE, HOST, 1.0)
    assert drag((link, 0.0, 4.0), links=(link,)).end_s(0.0, 10.0) == 10.0


@given(
    st.lists(st.floats(0.01, 5.0), min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 3.0)), max_size=8),
)
def test_what_compute_loses_is_the_drag_of_the_copies_that_ran_beside_it(
    pieces: list[float], copies: list[tuple[float, float]]
) -> None:
    """One link, compute without a pause: the loss is drag times the copying seconds until compute ends."""
    intervals, free_s = [], 0.0
    for pause_s, length_s in copies:
        intervals.append((OUT, free_s + pause_s, free_s + pause_s + length_s))
        free_s += pause_s + length_s
    beside, now_s = drag(*intervals), 0.0
    for seconds in pieces:
        now_s = beside.end_s(now_s, seconds)
    overlap_s = sum(max(0.0, min(now_s, end_s) - begin_s) for _, begin_s, end_s in intervals)
    assert now_s == pytest.approx(sum(pieces) + OUT.drag * overlap_s)


def test_a_negative_drag_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot speed compute up"):
        Link(DEVICE, HOST, 1.0, drag=-0.1)


def offloading(share: float) -> Plan:
    """A chain whose first map is on the host between its uses; ops take one second, copies two."""
    hardware = graphs.machine(bandwidth=50.0)
    hardware = replace(hardware, links=tuple(replace(link, drag=share) for link in hardware.links))
    posed = graphs.problem(graphs.chain(5), hardware=hardware)
    return graphs.plan(posed, {"a1": Offload("host", leave=2, fetch=6, back=8)})


def test_a_step_with_hidden_copies_lasts_longer_by_their_drag() -> None:
    # Four seconds of copies, all beside compute, none of them waited for.
    assert simulate(offloading(0.25)).duration_s == simulate(offloading(0.0)).duration_s + 0.25 * 4


def test_drag_is_compute_time_and_no_stall() -> None:
    timeline = simulate(offloading(0.25))
    assert (timeline.lanes[COMPUTE].busy_s, timeline.stall_s) == (10 + 1, 0)


def test_a_saved_plan_keeps_what_was_measured_of_its_machine() -> None:
    codecs = (CodecSpeed("sign-mask", 4e9, 2e9, 1e-5, 2e-5),)
    posed = offloading(0.25).problem
    plan = Plan(replace(posed, hardware=replace(posed.hardware, codecs=codecs)), "test")
    assert from_json(to_json(plan)).problem.hardware == plan.problem.hardware


def encoding_s(codecs: tuple[CodecSpeed, ...]) -> tuple[float, float]:
    """Seconds to write a sign mask of 800 bytes and to read it, on a machine of 100 bytes per second."""
    hardware = Hardware("testbench", 1.0, 100.0, (Tier(DEVICE),), codecs=codecs)
    storage = Storage("map", 800, Role.FEATURE_MAP, "float32", ())
    return codec_seconds(hardware, "sign-mask", codec_for("sign-mask", storage, (0, 0.0, 0.0, 1.0, 0.0)))


def test_a_codec_takes_what_was_measured() -> None:
    assert encoding_s((CodecSpeed("sign-mask", 400.0, 200.0, 0.5, 0.25),)) == (2.5, 4.25)


def test_a_codec_nobody_measured_is_as_fast_as_memory() -> None:
    assert encoding_s((CodecSpeed("sparse", 1.0, 1.0),)) == (8.25, 8.25)
