"""One broken plan per rule, each refused in words that name what is wrong. Take a rule away and its test fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pure import graphs
from vdnn.errors import InvalidPlan
from vdnn.hardware.device import Hardware, Tier
from vdnn.ir import Graph, Need, Role, Trait
from vdnn.plan import (
    Action,
    Decision,
    Drop,
    Encode,
    EncodeOffload,
    Keep,
    Offload,
    Plan,
    Problem,
    Recompute,
    check,
    violations,
)

ABOVE_ZERO, ABOVE_SIX = (0, 0.0, 0.0, 1.0, 0.0), (0, 6.0, 0.0, float("inf"), 6.0)
"""What a ReLU asks of an element, and what a threshold of 6 does: test, low, high, on, off."""


def only_violation(plan: Plan) -> str:
    found = violations(plan)
    assert len(found) == 1, found
    return found[0]


def refused(graph: Graph | Problem, actions: object) -> str:
    return only_violation(graphs.plan(graph, actions))  # type: ignore[arg-type]


def may_round(graph: Graph) -> Problem:
    return graphs.problem(graph, lossy="fp16")


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
        (EncodeOffload("fp16", 1, "host", 1, 6, 7, 8), "sent=6"),
    ],
)
def test_moments_are_in_range(action: object, word: str) -> None:
    found = violations(graphs.plan(graphs.chain(3), {"a1": action}))
    assert any(f"{word}, but the graph has ops 0 to 5" in sentence for sentence in found)


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
    twice = [("s", Offload("host", 2, 5, 5)), ("s", Encode("fp16", 50, 4, 6))]
    assert "two of its gaps overlap: after 2 to before 5, and after 4 to before 6" in refused(
        may_round(graphs.diamond()), twice
    )


def test_a_drop_has_no_end() -> None:
    twice = [("s", Drop(2)), ("s", Offload("host", 5, 6, 6))]
    assert "two of its gaps overlap" in refused(graphs.diamond(), twice)


def test_gaps_may_touch() -> None:
    twice = [("s", Offload("host", 2, 5, 5)), ("s", Encode("fp16", 50, 5, 6))]
    assert violations(graphs.plan(may_round(graphs.diamond()), twice)) == []


def test_nobody_reads_what_is_away() -> None:
    sentence = refused(graphs.chain(3), {"a1": Offload("host", leave=0, fetch=4, back=4)})
    assert "op 1 'layer2' reads 'a1' (all values), which is away (offload)" in sentence
    assert "leaves after op 0, back before op 4" in sentence


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
    assert "op 3 replays 'layer2', which reads 'a1', which is away (offload)" in refused(graphs.chain(3), actions)


def test_the_source_of_a_replay_may_come_back_at_the_same_moment() -> None:
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


def written_over_in_backward() -> Graph:
    b = graphs.Builder("written over")
    b.given("x", 4)
    b.op("f", ["x"], {"a": 4})
    b.op("h", ["a"], {"c": 4})
    b.tangent("g", 4)
    b.op("b1", ["g"], {"g1": 4})
    b.op("b2", ["g1", "c"], {"g2": 4})
    b.op("b3", ["g2", "a"], into={"a'": "a"}, traits=[Trait.IN_PLACE])
    b.op("b4", ["a'"], {"gx": 4})
    return b.build()


@pytest.mark.parametrize("action", [{"a": Recompute(1, 4)}, {"c": Recompute(1, 3)}])
def test_replays_leave_alone_what_backward_writes_over(action: dict[str, Action]) -> None:
    sentence = refused(written_over_in_backward(), action)
    assert "takes 'a': 'b3' writes over it in backward, and replays reach only what forward alone wrote" in sentence


def test_what_backward_writes_over_may_move_before_it() -> None:
    assert violations(graphs.plan(written_over_in_backward(), {"a": Offload("host", 1, 4, 4)})) == []


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
    assert "tier 'host' has 199 B, but holds 200 B at op 1 (1 bytes too many)" in only_violation(
        graphs.plan(problem, actions)
    )


def test_a_tier_gives_bytes_back_once_a_map_has_returned() -> None:
    problem = graphs.problem(graphs.diamond(), hardware=graphs.machine(host_nbytes=100))
    actions = [("s", Offload("host", 2, 5, 5)), ("s", Offload("host", 5, 6, 6))]
    assert violations(graphs.plan(problem, actions)) == []


def test_the_peak_stays_within_the_budget() -> None:
    plan = graphs.plan(graphs.problem(graphs.chain(3), budget_nbytes=639))
    assert "the budget is 639 B, but op 3 'layer3_backward' needs 640 B (1 bytes too many)" in only_violation(plan)


def test_a_budget_of_the_peak_is_enough() -> None:
    assert violations(graphs.plan(graphs.problem(graphs.chain(3), budget_nbytes=640))) == []


@pytest.mark.parametrize("action", [Encode("fp16", 49, 1, 4), EncodeOffload("fp16", 49, "host", 1, 1, 4, 4)])
def test_an_encoding_gets_the_bytes_it_takes(action: object) -> None:
    assert "codec 'fp16' needs 50 bytes, the plan gives it 49" in refused(may_round(graphs.chain(3)), {"a1": action})


def test_an_encoding_whose_size_depends_on_the_data_gets_the_bytes_of_its_density() -> None:
    whole = Encode("sparse", 123, 1, 4, detail=(1.0,))
    assert "codec 'sparse' needs 128 bytes, the plan gives it 123" in refused(graphs.chain(3), {"a1": whole})


def test_a_codec_has_to_exist() -> None:
    unknown = refused(graphs.chain(3), {"a1": Encode("zip", 50, 1, 4)})
    assert "there is no codec 'zip', only: sign-mask, " in unknown


@pytest.mark.parametrize(
    ("codec", "detail"), [("sign-mask", ()), ("sparse", ()), ("window-index", ABOVE_ZERO), ("bool-mask", (0.65,))]
)
def test_a_codec_is_for_some_storages_and_parameters(codec: str, detail: tuple[float, ...]) -> None:
    sentence = refused(graphs.chain(3), {"a1": Encode(codec, 500, 1, 4, detail=detail)})
    assert f"codec {codec!r} with detail {detail} is not for float32 like it" in sentence


def test_a_problem_that_allows_no_loss_gets_none() -> None:
    sentence = refused(graphs.chain(3), {"a1": Encode("fp16", 50, 1, 4)})
    assert "codec 'fp16' rounds values, and the problem allows no loss" in sentence


def encoded(
    *, need: Need = Need.SIGN, detail: tuple[float, ...] = ABOVE_ZERO, reads_encoded: bool = True, late: bool = False
) -> Graph:
    """x -> a -> y and back, where `b` takes `need` of `a`; with `late`, one op more reads all of `a` after it."""
    b = graphs.Builder("encoded")
    b.given("x", 40)
    b.op("make", ["x"], {"a": 40})
    b.op("use", ["a"], {"y": 40}, roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("g", 40)
    b.op("b", ["g", ("a", need, detail, reads_encoded)], {"gb": 40})
    b.op("last", ["gb", *(["a"] if late else [])], {"gx": 40})
    return b.build()


def bits(*, direct: bool = False, detail: tuple[float, ...] = ABOVE_ZERO) -> Encode:
    return Encode("sign-mask", 2, 1, 2, detail=detail, direct=direct)


@pytest.mark.parametrize("direct", [False, True])
def test_a_sign_may_be_kept_as_bits(direct: bool) -> None:
    assert violations(graphs.plan(encoded(), {"a": bits(direct=direct)})) == []


def test_an_encoding_that_travels_may_be_read_as_it_is() -> None:
    action = EncodeOffload("sign-mask", 2, "host", 0, 0, 1, 2, detail=ABOVE_ZERO, direct=True)
    b = encoded()
    readless = replace(b, ops=(b.ops[0], replace(b.ops[1], reads=()), *b.ops[2:]))
    assert violations(graphs.plan(readless, {"a": action})) == []


@pytest.mark.parametrize(
    ("need", "detail"), [(Need.ALL, ()), (Need.SIGN, ABOVE_SIX), (Need.BOOL, ABOVE_ZERO), (Need.WINDOW_INDEX, ())]
)
def test_bits_serve_only_readers_that_ask_their_question(need: Need, detail: tuple[float, ...]) -> None:
    sentence = refused(encoded(need=need, detail=detail), {"a": bits()})
    assert f"op 2 'b' takes {need} {detail} of it, which codec 'sign-mask' with detail" in sentence


def test_bits_serve_every_later_reader_or_none() -> None:
    assert "op 3 'last' takes all values () of it" in refused(encoded(late=True), {"a": bits()})


def test_bits_of_a_storage_that_holds_two_numbers_serve_every_reader() -> None:
    graph = graphs.in_place_chain(nbytes=400)
    action = Encode("bool-mask", 4, 3, 6, detail=(4, 0.0, 0.0, 2.0, 0.0))
    assert violations(graphs.plan(graph, {"mask": action})) == []


def test_bits_of_a_storage_that_holds_two_other_numbers_serve_nobody_who_takes_all() -> None:
    graph = graphs.in_place_chain(nbytes=400)
    action = Encode("bool-mask", 4, 3, 6, detail=(4, 0.0, 0.0, 3.0, 0.0))
    assert "'mul_backward' takes all values () of it, which codec 'bool-mask'" in refused(graph, {"mask": action})


def test_an_encoding_is_read_as_it_is_only_by_ops_with_such_a_form() -> None:
    sentence = refused(encoded(reads_encoded=False), {"a": bits(direct=True)})
    assert "op 2 'b' reads 'a' (sign), as an encoding, which it cannot" in sentence


def test_an_op_that_can_read_bits_cannot_read_a_sparse_encoding() -> None:
    action = Encode("sparse", 200, 1, 2, detail=(1.0,), direct=True)
    assert "nobody reads codec 'sparse' as it is" in refused(encoded(), {"a": action})


def test_an_encoding_that_is_read_as_it_is_ends_the_life_of_its_storage() -> None:
    twice = [("a", bits(direct=True)), ("a", Drop(3))]
    assert "two of its gaps overlap: after 1 to before 4" in refused(encoded(), twice)


def test_an_encoding_is_not_read_before_the_moment_the_plan_names() -> None:
    early = replace(bits(direct=True), back=3)
    assert "op 2 'b' reads 'a' (sign), which is away (encode)" in refused(encoded(), {"a": early})


def test_what_the_shape_is_read_of_needs_no_encoding() -> None:
    assert (
        violations(graphs.plan(encoded(need=Need.SHAPE, detail=(), reads_encoded=False), {"a": bits(direct=True)}))
        == []
    )


def test_a_device_alone_has_nowhere_to_offload_to() -> None:
    alone = Hardware("alone", 1.0, 1.0, (Tier("device"),))
    plan = graphs.plan(graphs.problem(graphs.chain(3), hardware=alone), {"a1": Offload("host", 1, 4, 4)})
    assert "only: none" in only_violation(plan)
