"""Bytes and seconds of small plans, each checked against a sum that fits on a line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from larger import larger
from pure import graphs
from pure.growth import AT_MOST, TIMES, growth
from vdnn.cost.table import CostTable, OpCost
from vdnn.ir import Graph, Need, Op, Phase, Read, Role, Storage, Value
from vdnn.plan import Decision, Drop, Encode, EncodeOffload, Offload, Plan, Problem, Recompute, Timeline, simulate
from vdnn.plan.model.timeline import COMPUTE


def at(timeline: Timeline, label: str, tier: str | None = None) -> int:
    """Bytes at the first instruction with this label."""
    return int(timeline.total(tier)[timeline.labels.index(label)])


def seconds(timeline: Timeline, lane: str) -> list[tuple[float, float]]:
    busy = timeline.lanes[lane]
    return list(zip(busy.begin_s.tolist(), busy.end_s.tolist(), strict=True))


def test_inputs_and_outputs_of_an_op_coexist() -> None:
    # Weights and input 130, a1 and a2 100 each; a1 stays for backward.
    assert at(simulate(graphs.plan(graphs.chain(3))), "layer2") == 130 + 200


def test_the_peak_of_a_kept_chain_is_at_its_first_backward_op() -> None:
    # 130 given, a1 a2 a3 300, g3 and g2 200, dw3 10.
    timeline = simulate(graphs.plan(graphs.chain(3)))
    assert (timeline.peak_nbytes, timeline.labels[timeline.peak_at]) == (640, "layer3_backward")


def test_bytes_are_split_by_role() -> None:
    timeline = simulate(graphs.plan(graphs.problem(graphs.chain(3), workspace_nbytes=7)))
    assert timeline.by_role(timeline.peak_at) == {
        Role.PARAMETER: 30,
        Role.INPUT: 100,
        Role.OUTPUT: 100,
        Role.FEATURE_MAP: 200,
        Role.GRADIENT_MAP: 200,
        Role.GRADIENT: 10,
        Role.WORKSPACE: 7,
    }


def test_an_in_place_op_takes_no_bytes() -> None:
    timeline = simulate(graphs.plan(graphs.in_place_chain()))
    assert at(timeline, "relu_") == at(timeline, "conv") == 100 + 10 + 100


def test_an_offloaded_map_is_on_the_host_and_not_on_the_device() -> None:
    plan = graphs.plan(graphs.chain(4), {"a1": Offload("host", leave=1, fetch=5, back=6)})
    timeline = simulate(plan)
    kept = simulate(graphs.plan(graphs.chain(4)))
    assert at(kept, "layer3") - at(timeline, "layer3") == 100
    assert at(timeline, "layer3", "host") == 100
    assert at(timeline, "layer2_backward", "host") == 0


def test_a_fetch_takes_its_bytes_before_the_map_is_whole() -> None:
    plan = graphs.plan(graphs.chain(4), {"a1": Offload("host", leave=1, fetch=5, back=6)})
    assert at(simulate(plan), "layer3_backward") == at(simulate(graphs.plan(graphs.chain(4))), "layer3_backward")


def test_a_replay_keeps_its_source_alive_and_brings_its_output_back() -> None:
    graph = graphs.diamond()
    timeline = simulate(graphs.plan(graph, {"r": Recompute(leave=3, back=4)}))
    # x, s, l, y, gy and r again: s is there for the replay.
    assert at(timeline, "replay right") == 600


def test_an_output_of_a_replay_that_nobody_asked_for_lives_for_one_instruction() -> None:
    b = graphs.Builder("two outputs")
    b.given("x", 1)
    b.op("split", ["x"], {"p": 10, "q": 100})
    b.op("use", ["p", "q"], {"y": 1000})
    b.hold("y")
    b.tangent("g", 10000)
    b.op("b", ["g", "p"], {"gx": 100000})
    timeline = simulate(graphs.plan(b.build(), {"p": Recompute(leave=1, back=2)}))
    assert (at(timeline, "replay split"), at(timeline, "b")) == (11111, 111011)


def test_workspace_counts_in_a_replay_too() -> None:
    problem = graphs.problem(graphs.chain(3), workspace_nbytes=[5, 0, 0, 0, 0, 0])
    actions = {"a1": Recompute(leave=1, back=4)}
    without = simulate(graphs.plan(graphs.chain(3), actions))
    assert at(simulate(graphs.plan(problem, actions)), "replay layer1") == at(without, "replay layer1") + 5


def test_a_dropped_map_is_gone_although_its_shape_is_read() -> None:
    b = graphs.Builder("shape")
    b.given("x", 1)
    b.op("f", ["x"], {"a": 10})
    b.op("f2", ["a"], {"y": 100})
    b.hold("y")
    b.tangent("g", 1000)
    b.op("b", ["g", ("a", Need.SHAPE)], {"gx": 10000})
    assert at(simulate(graphs.plan(b.build(), {"a": Drop(leave=1)})), "b") == 11101


def test_an_encoder_and_a_decoder_hold_both_forms_at_once() -> None:
    timeline = simulate(graphs.plan(graphs.chain(4), {"a1": Encode("fp16", 50, leave=1, back=6)}))
    kept = simulate(graphs.plan(graphs.chain(4)))
    assert at(timeline, "encode a1") == at(kept, "layer2") + 50
    assert at(timeline, "layer3") == at(kept, "layer3") - 50
    assert at(timeline, "layer2_backward") == at(kept, "layer2_backward")


def test_an_encoded_offload_holds_its_buffer_until_sent_and_from_fetch() -> None:
    action = EncodeOffload("fp16", 50, "host", leave=1, sent=2, fetch=5, back=6)
    timeline = simulate(graphs.plan(graphs.chain(4), {"a1": action}))
    kept = simulate(graphs.plan(graphs.chain(4)))
    there = {
        op_name: at(timeline, op_name) - at(kept, op_name)
        for op_name in ("layer3", "layer4", "layer3_backward", "layer2_backward")
    }
    assert there == {"layer3": -50, "layer4": -100, "layer3_backward": -50, "layer2_backward": 0}
    assert at(timeline, "layer4", "host") == 50


def test_compute_takes_the_sum_of_its_ops() -> None:
    timeline = simulate(graphs.plan(graphs.problem(graphs.chain(2), seconds=[1.0, 2.0, 3.0, 4.0])))
    assert seconds(timeline, COMPUTE) == [(0, 1), (1, 3), (3, 6), (6, 10)]
    assert (timeline.duration_s, timeline.stall_s) == (10, 0)


def test_a_copy_that_fits_behind_compute_costs_no_time() -> None:
    plan = graphs.plan(graphs.chain(4), {"a1": Offload("host", leave=1, fetch=5, back=6)})
    timeline = simulate(plan)  # 100 bytes at 100 bytes per second: one second each way, and every op takes one
    assert seconds(timeline, "device->host") == [(1, 2)]
    assert seconds(timeline, "host->device") == [(5, 6)]
    assert timeline.stall_s == 0


def test_a_copy_that_is_late_stalls_compute() -> None:
    plan = graphs.plan(graphs.chain(4), {"a1": Offload("host", leave=1, fetch=6, back=6)})
    assert simulate(plan).stall_s == 1


def test_leaving_waits_for_the_copy_out() -> None:
    problem = graphs.problem(graphs.chain(4), hardware=graphs.machine(bandwidth=25.0))
    plan = graphs.plan(problem, {"a1": Offload("host", leave=1, fetch=4, back=6)})
    timeline = simulate(plan)  # four seconds from second 1 on; op 1 ends at second 2
    assert seconds(timeline, COMPUTE)[2] == (5, 6)


def test_copies_in_one_direction_queue_up() -> None:
    actions = {"a1": Offload("host", 3, 4, 6), "a2": Offload("host", 3, 4, 5)}
    plan = graphs.plan(graphs.problem(graphs.chain(4), seconds=0.0), actions)
    assert seconds(simulate(plan), "device->host") == [(0, 1), (1, 2)]


def test_the_disk_is_reached_through_the_host() -> None:
    plan = graphs.plan(graphs.chain(4), {"a1": Offload("disk", leave=3, fetch=4, back=6)})
    timeline = simulate(plan)  # the disk's link takes two seconds
    assert seconds(timeline, "device->host") == [(1, 2)]
    assert seconds(timeline, "host->disk") == [(2, 4)]
    assert seconds(timeline, "disk->host") == [(4, 6)]
    assert seconds(timeline, "host->device") == [(6, 7)]


def test_leaving_for_the_disk_waits_only_until_the_bytes_are_off_the_device() -> None:
    plan = graphs.plan(graphs.chain(4), {"a1": Offload("disk", leave=1, fetch=5, back=6)})
    assert seconds(simulate(plan), COMPUTE)[2] == (2, 3)


def test_a_fetch_waits_until_its_copy_has_reached_the_tier() -> None:
    problem = graphs.problem(graphs.chain(4), seconds=0.0)
    plan = graphs.plan(problem, {"a1": Offload("disk", leave=1, fetch=2, back=6)})
    assert seconds(simulate(plan), "disk->host") == [(3, 5)]


def test_codecs_take_time_on_the_compute_lane() -> None:
    plan = graphs.plan(graphs.chain(2), {"a1": Encode("fp16", 50, 1, 3, encode_s=0.5, decode_s=0.25)})
    assert simulate(plan).duration_s == 4.75


def test_replays_take_time_on_the_compute_lane() -> None:
    assert simulate(graphs.plan(graphs.chain(3), {"a1": Recompute(1, 4)})).duration_s == 7


def test_moving_a_skip_through_the_depth_of_a_unet_lowers_its_peak() -> None:
    graph = graphs.unet(3)
    gone = graphs.plan(graph, {"d1": Offload("host", leave=1, fetch=4, back=4)})
    kept = graphs.plan(graph)
    assert at(simulate(kept), "down3") - at(simulate(gone), "down3") == 32


def test_a_graph_without_ops_has_an_empty_timeline() -> None:
    empty = Graph("empty", (), (), (), (), (), ())
    timeline = simulate(graphs.plan(empty))
    assert (timeline.peak_nbytes, timeline.duration_s, timeline.labels) == (0, 0.0, ())


def long_chain(length: int) -> Graph:
    """A chain of `length` forward and as many backward ops, written without the builder's look-ups by name."""
    last = length
    names = [f"a{i}" for i in range(length + 1)] + [f"g{i}" for i in range(length, -1, -1)]
    values = tuple(Value(name, k, (25,), "float32") for k, name in enumerate(names))
    roles = [Role.INPUT] + [Role.FEATURE_MAP] * length + [Role.GRADIENT_MAP] * (length + 1)
    storages = tuple(Storage(name, 100, roles[k], "float32", (k,)) for k, name in enumerate(names))
    forward = [Op(f"f{i}", "f", Phase.FORWARD, "", (Read(i - 1),), (i,)) for i in range(1, length + 1)]
    backward = [
        Op(f"b{i}", "b", Phase.BACKWARD, "", (Read(2 * length + 1 - i), Read(i - 1)), (2 * length + 2 - i,))
        for i in range(length, 0, -1)
    ]
    return Graph("long chain", (*forward, *backward), values, storages, (0,), (last + 1,), (last,))


def long_problem(length: int) -> Problem:
    graph = long_chain(length)
    return Problem(graph, CostTable((OpCost(1e-3, 5, "test"),) * len(graph)), graphs.machine(bandwidth=1e6))


def without_decisions(problem: Problem) -> Plan:
    return Plan(problem, "keep-all")


def with_many_decisions(problem: Problem) -> Plan:
    """Every map moves: every other one to the host, the rest into an encoding."""
    last = len(problem.graph) - 1
    decisions = (
        Decision(k, Offload("host", k, last - k - 2, last - k) if k % 2 else Encode("fp16", 50, k, last - k), "")
        for k in range(1, len(problem.graph) // 2 - 2)
    )
    return Plan(problem, "by hand", tuple(decisions))


@pytest.mark.parametrize("length", [6_000, *larger(35_000)])
@pytest.mark.parametrize(
    "plan_of", [lambda problem: Plan(problem, "keep-all"), with_many_decisions], ids=["kept", "moved"]
)
def test_the_work_grows_with_the_ops_not_with_their_square(length: int, plan_of: Callable[[Problem], Plan]) -> None:
    small, large = (plan_of(long_problem(n)) for n in (length // TIMES, length))
    assert growth(simulate, small, large) < AT_MOST


def test_the_long_chain_peaks_where_its_maps_are_all_alive() -> None:
    # 5001 maps and inputs, two gradients, workspace.
    timeline = simulate(Plan(long_problem(5_000), "keep-all"))
    assert (timeline.peak_nbytes, int(timeline.moments[timeline.peak_at])) == (5_001 * 100 + 200 + 5, 5_000)
    assert np.array_equal(timeline.moments, np.arange(10_000))
