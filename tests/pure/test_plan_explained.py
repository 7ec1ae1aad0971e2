"""A plan told by instruction: complete, in order, with the bytes of the simulator and the words of the decisions."""

from __future__ import annotations

import pytest

from pure import golden, graphs
from pure.graphs import plan
from vdnn.plan import Drop, Encode, EncodeOffload, Offload, Plan, Recompute
from vdnn.plan.views.explained import ExplainedInstruction, eventful, explained


def told(asked: Plan, kind: str) -> list[str]:
    return [line.what for line in explained(asked) if line.kind == kind]


def mixed() -> Plan:
    problem = graphs.problem(graphs.chain(8), lossy="fp16")
    actions = {
        "a2": Recompute(2, 13),
        "a3": Offload("disk", 3, 10, 12),
        "a4": Encode("fp16", 50, 4, 11),
        "a5": EncodeOffload("fp16", 50, "host", 5, 6, 9, 10),
    }
    return plan(problem, actions, reason="by hand")


@pytest.mark.parametrize("name", golden.GOLDEN)
def test_every_instruction_has_its_line_with_the_simulated_bytes(name: str) -> None:
    made = golden.GOLDEN[name]()
    lines = explained(made)
    assert [line.device_nbytes for line in lines] == made.timeline.total().tolist()
    assert [line.kind for line in lines] == [str(instruction.kind) for instruction in made.program]


def test_the_peak_is_marked_once() -> None:
    made = mixed()
    assert [line.device_nbytes for line in explained(made) if line.is_peak] == [made.peak_nbytes]


def test_what_leaves_says_where_to_and_until_when() -> None:
    assert told(mixed(), "leave") == [
        "a2 is dropped, made again for op 13",
        "a3 leaves for disk, back for op 12",
        "encoding of a5 leaves for host, back for op 10",
    ]


def test_what_is_dropped_for_good_says_so() -> None:
    assert told(plan(graphs.chain(3), {"a3": Drop(2)}), "leave") == ["a3 is dropped for good"]


def test_an_encoding_says_its_size_its_codec_and_when_it_is_decoded() -> None:
    assert told(mixed(), "encode") == [
        "a4 becomes 50 B of fp16, decoded for op 11",
        "a5 becomes 50 B of fp16, decoded for op 10",
    ]


def test_a_replay_says_for_what() -> None:
    assert told(mixed(), "replay") == ["runs layer2 again for a2"]


def test_a_copy_of_an_encoding_is_as_large_as_the_encoding() -> None:
    sizes = {line.what: line.nbytes for line in explained(mixed()) if line.kind == "fetch"}
    assert sizes == {"a3 returns from disk for op 12": 100, "a5 returns from host for op 10": 50}


def test_a_reason_stands_once_where_the_storage_gives_up_its_bytes() -> None:
    reasons = [(line.kind, line.what.split()[0]) for line in explained(mixed()) if line.reason]
    assert reasons == [("leave", "a2"), ("leave", "a3"), ("encode", "a4"), ("encode", "a5")]


def test_an_uneventful_plan_has_its_peak_to_tell() -> None:
    [line] = eventful(explained(plan(graphs.chain(3))))
    assert line.is_peak


def test_eventful_lines_leave_out_ops_that_just_run() -> None:
    lines: list[ExplainedInstruction] = list(eventful(explained(mixed())))
    assert {line.kind for line in lines if not line.is_peak} == {"leave", "encode", "replay", "fetch", "decode"}
