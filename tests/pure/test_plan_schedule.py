"""The program of a plan: what happens in which order. Instructions are shown as "kind name"."""

from __future__ import annotations

from pure import graphs
from vdnn.plan import Drop, Encode, EncodeOffload, Instruction, Keep, Kind, Offload, Plan, Recompute, schedule


def around(plan: Plan, moment: int) -> list[str]:
    """The labels of one moment's instructions, with "run" written out."""
    graph = plan.problem.graph
    shown = [i for i in schedule(plan) if i.moment == moment]
    return [f"run {i.label(graph)}" if i.kind is Kind.RUN else i.label(graph) for i in shown]


def test_without_decisions_each_op_runs_once() -> None:
    assert schedule(graphs.plan(graphs.chain(3))) == tuple(Instruction(Kind.RUN, t, op=t) for t in range(6))


def test_a_kept_storage_changes_nothing() -> None:
    assert schedule(graphs.plan(graphs.chain(3), {"a1": Keep()})) == schedule(graphs.plan(graphs.chain(3)))


def test_an_offload_is_sent_once_final_and_leaves_where_the_plan_says() -> None:
    plan = graphs.plan(graphs.chain(3), {"a1": Offload("host", leave=1, fetch=3, back=4)})
    assert around(plan, 0) == ["run layer1", "send a1"]
    assert around(plan, 1) == ["run layer2", "leave a1"]
    assert around(plan, 3) == ["fetch a1", "run layer3_backward"]
    assert around(plan, 4) == ["arrive a1", "run layer2_backward"]


def test_an_in_place_write_delays_the_copy_out() -> None:
    """`c` is written at moments 0, 1 and 3: a copy that starts earlier would carry the wrong values."""
    plan = graphs.plan(graphs.in_place_chain(), {"c": Offload("host", leave=4, fetch=5, back=5)})
    assert [i.moment for i in schedule(plan) if i.kind is Kind.SEND] == [3]


def test_a_view_does_not_delay_the_copy_out() -> None:
    b = graphs.Builder("view")
    b.given("x", 4)
    b.op("f", ["x"], {"a": 4})
    b.view("reshape", "a")
    b.tangent("g", 4)
    b.op("wait", ["g"], {"g1": 4})
    b.op("b", ["g1", "a_view"], {"g2": 4})
    plan = graphs.plan(b.build(), {"a": Offload("host", leave=1, fetch=3, back=3)})
    assert [i.moment for i in schedule(plan) if i.kind is Kind.SEND] == [0]


def test_a_second_offload_is_sent_from_where_the_first_came_back() -> None:
    graph = graphs.diamond()
    twice = [("s", Offload("host", 2, 4, 5)), ("s", Offload("host", 5, 6, 6))]
    assert [i.moment for i in schedule(graphs.plan(graph, twice)) if i.kind is Kind.SEND] == [0, 5]


def test_an_in_place_chain_is_replayed_whole_and_in_order() -> None:
    plan = graphs.plan(graphs.in_place_chain(), {"c": Recompute(leave=4, back=5)})
    assert around(plan, 5) == ["replay conv", "replay relu_", "replay mul_", "run linear_backward"]


def test_writes_after_the_gap_are_not_replayed() -> None:
    b = graphs.Builder("written later")
    b.given("x", 4)
    b.op("f", ["x"], {"a": 4})
    b.tangent("g", 4)
    b.op("b1", ["g"], {"g1": 4})
    b.in_place("add_", "a", "g1")
    graph = b.build()
    plan = graphs.plan(graph, {"a": Recompute(leave=0, back=2)})
    assert around(plan, 2) == ["replay f", "run add_"]


def test_an_op_that_two_decisions_ask_for_is_replayed_once() -> None:
    b = graphs.Builder("two outputs")
    b.given("x", 4)
    b.op("split", ["x"], {"p": 4, "q": 4})
    b.op("use", ["p", "q"], {"y": 4})
    b.tangent("g", 4)
    b.op("b", ["g", "p", "q"], {"gx": 4})
    graph = b.build()
    plan = graphs.plan(graph, {"p": Recompute(1, 2), "q": Recompute(1, 2)})
    replay = next(i for i in schedule(plan) if i.kind is Kind.REPLAY)
    assert around(plan, 2) == ["replay split", "run b"]
    assert replay.keeps == (graphs.storage(graph, "p"), graphs.storage(graph, "q"))


def test_recomputed_sources_come_before_their_readers() -> None:
    actions = {"a2": Recompute(leave=2, back=3), "a1": Recompute(leave=1, back=3)}
    assert around(graphs.plan(graphs.chain(3), actions), 3) == ["replay layer1", "replay layer2", "run layer3_backward"]


def test_what_a_replay_reads_is_back_before_it_and_the_rest_after_it() -> None:
    """Arrivals wait and decoders take bytes, so each comes as late as its first reader allows."""
    graph = graphs.diamond()
    actions = {"s": Offload("host", 2, 4, 4), "l": Encode("fp16", 50, 3, 4), "r": Recompute(3, 4)}
    plan = graphs.plan(graph, actions)
    assert around(plan, 4) == ["fetch s", "arrive s", "replay right", "decode l", "run join_backward"]


def test_what_leaves_goes_before_encoders_take_bytes() -> None:
    plan = graphs.plan(graphs.diamond(), {"l": Encode("fp16", 50, 3, 4), "r": Recompute(3, 4), "s": Drop(3)})
    assert around(plan, 3) == ["run join", "leave r", "leave s", "encode l"]


def test_an_encoded_offload_is_encoded_sent_fetched_and_decoded() -> None:
    plan = graphs.plan(graphs.chain(4), {"a1": EncodeOffload("fp16", 50, "host", leave=1, sent=2, fetch=4, back=6)})
    assert around(plan, 1) == ["run layer2", "encode a1", "send a1"]
    assert around(plan, 2) == ["run layer3", "leave a1"]
    assert around(plan, 4) == ["fetch a1", "run layer4_backward"]
    assert around(plan, 6) == ["arrive a1", "decode a1", "run layer2_backward"]


def test_an_instruction_names_its_decision() -> None:
    plan = graphs.plan(graphs.chain(3), {"a2": Drop(2), "a1": Recompute(1, 4)})
    assert [(i.kind, i.decision) for i in schedule(plan) if i.decision >= 0] == [
        (Kind.LEAVE, 1),
        (Kind.LEAVE, 0),
        (Kind.REPLAY, 1),
    ]
