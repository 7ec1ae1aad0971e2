"""One broken plan per rule, each refused in words that name what is wrong. Take a rule away and its test fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pure import graphs
from vdnn.errors import InvalidPlan
from vdnn.hardware.device import Hardware, Tier
from vdnn.ir import Graph, Need, Role, Trait
from vdnn.plan import (
    Decision,
    Drop,
    Encode,
    EncodeOffload,
    Keep,
    Offload,
    Plan,
    Recompute,
    check,
    violations,
)


def only_violation(plan: Plan) -> str:
    found = violations(plan)
    assert len(found) == 1, found
    return found[0]


def refused(graph: Graph, actions: object) -> str:
    return only_violation(graphs.plan(graph, actions))  # type: ignore[arg-type]


def small(*, traits: tuple[Trait, ...] = (), need: Need = Need.ALL) -> Graph:
    """x -> a -> y and back, where `b` reads `need` of `a`; the op that makes `a` has the given traits."""
    b = graphs.Builder("small")
    b.given("x", 4)
    b.op("make", ["x"], {"a": 4}, traits=traits)
    b.op("use", ["a"], {"y": 4}, roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("g", 4)
    b.op("b", ["g", ("a", need)], {"gx": 4})
    return b.build()


def test_a_plan_without_decisions_holds() -> None:
    assert violations(graphs.plan(graphs.unet(3))) == []


def test_a_plan_that_holds_is_handed_back() -> None:
    plan = graphs.plan(graphs.chain(3), {"a1": Recompute(1, 4)})
    assert check(plan) is plan


def test_check_raises_with_every_violation() -> None:
    broken = graphs.plan(graphs.chain(3), {"w1": Drop(1), "a1": Offload("moon", 1, 4, 4)})
    with pytest.raises(InvalidPlan, match="breaks 2 rule") as caught:
        check(broken)
    assert caught.value.violations == tuple(violations(broken))


def test_a_storage_has_to_exist() -> None:
    plan = Plan(graphs.problem(graphs.chain(2)), "by hand", (Decision(99, Drop(1), ""),))
    assert "decision 0 is about storage 99" in only_violation(plan)


@pytest.mark.parametrize(
    ("action", "word"),
    [
        (Drop(-1), "leave=-1"),
        (Recompute(1, 6), "back=6"),
        (Offload("host", 1, 7, 8), "fetch=7"),
        (EncodeOffload("half", 1, "host", 1, 6, 7, 8), "sent=6"),
    ],
)
def test_steps_are_in_range(action: object, word: str) -> None:
    found = violations(graphs.plan(graphs.chain(3), {"a1": action}))
    assert any(f"{word}, but the graph has steps 0 to 5" in sentence for sentence in found)


@pytest.mark.parametrize("name", ["w1", "a0"])
def test_what_outlives_the_step_stays(name: str) -> None:
    assert "outlives the step" in refused(graphs.chain(3), {name: Offload("host", 1, 2, 2)})


def test_what_the_caller_holds_stays() -> None:
    assert "the caller holds it" in refused(graphs.chain(3), {"a3": Offload("host", 3, 4, 4)})


def test_a_gradient_map_is_not_for_a_plan_to_move() -> None:
    assert "neither stashed for backward nor a feature map" in refused(
        graphs.diamond(), {"gl": Offload("host", 4, 5, 5)}
    )


def test_a_feature_map_that_backward_does_not_read_may_move() -> None:
    b = graphs.Builder("long skip")
    b.given("x", 4)
    b.op("f1", ["x"], {"a": 4})
    b.op("f2", ["x"], {"c": 4})
    b.op("f3", ["c", "a"], {"y": 4})
    assert violations(graphs.plan(b.build(), {"a": Offload("host", 0, 2, 2)})) == []


def test_saying_keep_is_always_allowed() -> None:
    assert violations(graphs.plan(graphs.chain(3), {"w1": Keep(), "a1": Keep()})) == []


def test_gaps_of_one_storage_do_not_overlap() -> None:
    twice = [("s", Offload("host", 2, 5, 5)), ("s", Encode("half", 50, 4, 6))]
    assert "two of its gaps overlap: after 2 to before 5, and after 4 to before 6" in refused(graphs.diamond(), twice)


def test_a_drop_has_no_end() -> None:
    twice = [("s", Drop(2)), ("s", Offload("host", 5, 6, 6))]
    assert "two of its gaps overlap" in refused(graphs.diamond(), twice)


def test_gaps_may_touch() -> None:
    twice = [("s", Offload("host", 2, 5, 5)), ("s", Encode("half", 50, 5, 6))]
    assert violations(graphs.plan(graphs.diamond(), twice)) == []


def test_nobody_reads_what_is_away() -> None:
    sentence = refused(graphs.chain(3), {"a1": Offload("host", leave=0, fetch=4, back=4)})
    assert "step 1 'layer2' reads 'a1' (all values), which is away (offload)" in sentence
    assert "leaves after step 0, back before step 4" in sentence


def test_the_shape_of_what_is_away_may_be_read() -> None:
    b = graphs.Builder("shape")
    b.given("x", 4)
    b.op("f", ["x"], {"a": 4})
    b.tangent("g", 4)
    b.op("b1", ["g", ("a", Need.SHAPE)], {"g1": 4})
    b.op("b2", ["g1", "a"], {"g2": 4})
    assert violations(graphs.plan(b.build(), {"a": Offload("host", 0, 2, 2)})) == []


def test_nothing_is_written_into_what_is_away() -> None:
    b = graphs.Builder("fill")
    b.given("x", 4)
    b.op("f", ["x"], {"a": 4})
    b.op("fill_", ["x"], into={"a'": "a"}, traits=[Trait.IN_PLACE])
    b.tangent("g", 4)
    b.op("b", ["g", "a'"], {"gx": 4})
    assert "'fill_' writes into 'a', which is away" in refused(b.build(), {"a": Offload("host", 0, 2, 2)})


def test_a_storage_cannot_leave_before_it_exists() -> None:
    assert "not on the device then" in refused(graphs.chain(3), {"a2": Offload("host", 0, 1, 1)})


@pytest.mark.parametrize("need", [Need.ALL, Need.SIGN])
def test_a_drop_needs_readers_that_take_nothing_but_a_shape(need: Need) -> None:
    assert f"'b' reads 'a' ({need}), which is away (drop)" in refused(small(need=need), {"a": Drop(1)})


@pytest.mark.parametrize("need", [Need.SHAPE, Need.NOTHING])
def test_a_map_whose_readers_take_a_shape_at_most_may_be_dropped(need: Need) -> None:
    assert violations(graphs.plan(small(need=need), {"a": Drop(1)})) == []


@pytest.mark.parametrize("trait", [Trait.COLLECTIVE, Trait.MUST_KEEP])
def test_some_ops_may_not_run_twice(trait: Trait) -> None:
    assert f"replays 'make' (make), which may not run twice: {trait}" in refused(
        small(traits=(trait,)), {"a": Recompute(1, 2)}
    )


def test_a_random_op_may_be_replayed() -> None:
    assert violations(graphs.plan(small(traits=(Trait.RANDOM,)), {"a": Recompute(1, 2)})) == []


def normalized() -> Graph:
    """A normalization that makes `a` and updates its running statistics in the same op."""
    b = graphs.Builder("normalized")
    b.given("x", 4)
    b.given("mean", 4, Role.BUFFER)
    b.op("norm", ["x", ("mean", Need.NOTHING)], {"a": 4}, into={"mean'": "mean"})
    b.op("use", ["a"], {"y": 4})
    b.hold("y")
    b.tangent("g", 4)
    b.op("b", ["g", "a"], {"gx": 4})
    return b.build()


def test_running_statistics_are_not_updated_twice() -> None:
    sentence = refused(normalized(), {"a": Recompute(1, 2)})
    assert "replays 'norm', which would change 'mean' (buffer) a second time, which outlives the step" in sentence


def test_a_replay_does_not_change_a_map_that_is_there() -> None:
    b = graphs.Builder("two effects")
    b.given("x", 4)
    b.op("f", ["x"], {"a": 4})
    b.op("both", [("a", Need.NOTHING), "x"], {"c": 4}, into={"a'": "a"})
    b.tangent("g", 4)
    b.op("b", ["g", "a'", "c"], {"gx": 4})
    assert "would change 'a' (feature map) a second time" in refused(b.build(), {"c": Recompute(1, 2)})


def test_the_source_of_a_replay_has_to_be_there() -> None:
    actions = {"a1": Offload("host", 1, 4, 4), "a2": Recompute(2, 3)}
    assert "step 3 replays 'layer2', which reads 'a1', which is away (offload)" in refused(graphs.chain(3), actions)


def test_the_source_of_a_replay_may_come_back_at_the_same_step() -> None:
    actions = {"a2": Recompute(2, 3), "a1": Offload("host", 1, 2, 3)}
    assert violations(graphs.plan(graphs.chain(3), actions)) == []


def test_a_replay_does_not_read_what_was_overwritten_since() -> None:
    b = graphs.Builder("overwritten")
    b.given("x", 4)
    b.op("f", ["x"], {"a": 4})
    b.op("square", ["a"], {"c": 4})
    b.op("relu_", ["a"], into={"a'": "a"}, traits=[Trait.IN_PLACE])
    b.tangent("g", 4)
    b.op("b", ["g", "c", "a'"], {"gx": 4})
    sentence = refused(b.build(), {"c": Recompute(1, 3)})
    assert "replays 'square', which reads 'a', but 'relu_' overwrote it since" in sentence


def test_replaying_both_sides_of_an_in_place_write_restores_the_order() -> None:
    b = graphs.Builder("overwritten")
    b.given("x", 4)
    b.op("f", ["x"], {"a": 4})
    b.op("square", ["a"], {"c": 4})
    b.op("relu_", ["a"], into={"a'": "a"}, traits=[Trait.IN_PLACE])
    b.tangent("g", 4)
    b.op("b", ["g", "c", "a'"], {"gx": 4})
    assert violations(graphs.plan(b.build(), {"c": Recompute(2, 3), "a": Recompute(2, 3)})) == []


def test_an_offload_goes_to_a_tier_that_exists() -> None:
    assert "no slower tier 'moon' on 'testbench', only: host, disk" in refused(
        graphs.chain(3), {"a1": Offload("moon", 1, 4, 4)}
    )


def test_an_offload_does_not_go_to_the_device_itself() -> None:
    assert "no slower tier 'device'" in refused(graphs.chain(3), {"a1": Offload("device", 1, 4, 4)})


@pytest.mark.parametrize("missing", ["device->host", "disk->host"])
def test_every_link_of_the_way_exists_in_both_directions(missing: str) -> None:
    whole = graphs.machine()
    cut = replace(whole, links=tuple(link for link in whole.links if link.name != missing))
    plan = graphs.plan(graphs.problem(graphs.chain(3), hardware=cut), {"a1": Offload("disk", 1, 4, 4)})
    assert f"has no link {missing}" in only_violation(plan)


def test_a_tier_does_not_take_more_than_it_has() -> None:
    problem = graphs.problem(graphs.chain(4), hardware=graphs.machine(host_nbytes=199))
    actions = {"a1": Offload("host", 1, 6, 6), "a2": Offload("host", 2, 5, 5)}
    assert "tier 'host' has 199 B, but holds 200 B at step 1 (1 bytes too many)" in only_violation(
        graphs.plan(problem, actions)
    )


def test_a_tier_gives_bytes_back_once_a_map_has_returned() -> None:
    problem = graphs.problem(graphs.diamond(), hardware=graphs.machine(host_nbytes=100))
    actions = [("s", Offload("host", 2, 5, 5)), ("s", Offload("host", 5, 6, 6))]
    assert violations(graphs.plan(problem, actions)) == []


def test_the_peak_stays_within_the_budget() -> None:
    plan = graphs.plan(graphs.problem(graphs.chain(3), budget_nbytes=639))
    assert "the budget is 639 B, but step 3 'layer3_backward' needs 640 B (1 bytes too many)" in only_violation(plan)


def test_a_budget_of_the_peak_is_enough() -> None:
    assert violations(graphs.plan(graphs.problem(graphs.chain(3), budget_nbytes=640))) == []


@pytest.mark.parametrize("action", [Encode("odd", -1, 1, 4), EncodeOffload("odd", -1, "host", 1, 1, 4, 4)])
def test_an_encoding_has_no_negative_size(action: object) -> None:
    assert "codec 'odd' cannot encode into -1 bytes" in refused(graphs.chain(3), {"a1": action})


def test_a_device_alone_has_nowhere_to_offload_to() -> None:
    alone = Hardware("alone", 1.0, 1.0, (Tier("device"),))
    plan = graphs.plan(graphs.problem(graphs.chain(3), hardware=alone), {"a1": Offload("host", 1, 4, 4)})
    assert "only: none" in only_violation(plan)
