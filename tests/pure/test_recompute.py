"""Recomputation: what can be made again, which segments that gives, and what the strategies make of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pure import graphs
from pure.random_plans import training_steps
from pure.test_strategy_properties import networks
from random_examples import examples
from vdnn.ir import Graph, Need, Role, Trait
from vdnn.plan import Kind, Plan, Problem, Recompute, check, schedule, simulate, solve, violations
from vdnn.plan.judge.walk import walk
from vdnn.plan.model.replay import Replays
from vdnn.plan.model.segments import segments
from vdnn.plan.strategies.checkpoint_sqrt import crossing, cuts
from vdnn.plan.strategies.recompute import l_peak

SPEED, MEMORY, COST, ROOT = "recompute-speed", "recompute-memory", "recompute-cost", "checkpoint-sqrt"
RECOMPUTING = (SPEED, MEMORY, COST, ROOT)


def cheap_run(*sizes: int, gradient_nbytes: int = 10) -> Graph:
    """A convolution, then cheap layers r1, r2, ... of these sizes; each layer's backward reads its X and its Y."""
    b = graphs.Builder("cheap run")
    b.given("x", 10)
    b.op("conv", ["x"], {"c": 10}, target="conv")
    maps = ["c", *(f"r{k}" for k in range(1, len(sizes) + 1))]
    for k, nbytes in enumerate(sizes, start=1):
        b.op(f"cheap{k}", [maps[k - 1]], {maps[k]: nbytes}, target="act")
    b.op("fc", [maps[-1]], {"y": 10}, target="fc", roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("gy", gradient_nbytes)
    gradient = b.op("fc_backward", ["gy", maps[-1]], {"g": gradient_nbytes}, module="fc")
    for k in range(len(sizes), 0, -1):
        reads = [gradient, maps[k], maps[k - 1]]
        gradient = b.op(f"cheap{k}_backward", reads, {f"g{k}": gradient_nbytes}, module=f"cheap{k}")
    b.op("conv_backward", [gradient, "x"], {"dx": 10}, roles={"dx": Role.GRADIENT}, module="conv")
    b.hold("dx")
    return b.build()


def sources(graph: Graph, name: str) -> set[str] | None:
    found = Replays(graph).sources(graphs.storage(graph, name))
    return None if found is None else {graph.storages[storage].name for storage in found}


def members(graph: Graph) -> list[set[str]]:
    return [{graph.storages[storage].name for storage in segment.storages} for segment in segments(graph)]


def gaps(plan: Plan) -> dict[str, list[tuple[int, int]]]:
    """Storage -> (leave, back) of its decisions."""
    found: dict[str, list[tuple[int, int]]] = {}
    for decision in check(plan).decisions:
        assert isinstance(decision.action, Recompute)
        name = plan.problem.graph.storages[decision.storage].name
        found.setdefault(name, []).append((decision.action.leave, decision.action.back))
    return found


def running_nbytes(plan: Plan) -> list[int]:
    """Device bytes while each op runs."""
    total = simulate(plan).total()
    return [int(total[position]) for position, i in enumerate(schedule(plan)) if i.kind is Kind.RUN]


def replayed(plan: Plan) -> list[str]:
    return [plan.problem.graph.ops[i.op].name for i in schedule(plan) if i.kind is Kind.REPLAY]


# What can be made again, and from what.


def test_a_map_is_made_again_from_what_its_op_reads_that_does_not_outlive_the_step() -> None:
    assert sources(cheap_run(10, 10), "r1") == {"c"}
    assert sources(cheap_run(10), "c") == set()  # x is an input


def test_what_the_caller_gives_or_holds_is_never_made_again() -> None:
    graph = cheap_run(10)
    assert (sources(graph, "x"), sources(graph, "y"), sources(graph, "gy")) == (None, None, None)


def test_three_ops_that_write_one_storage_are_all_its_writers() -> None:
    graph = graphs.in_place_chain()
    ops = [graph.ops[moment].name for moment in Replays(graph).writers[graphs.storage(graph, "c")]]
    assert ops == ["conv", "relu_", "mul_"]
    assert sources(graph, "c") == {"mask"}


def overwritten(trait: Trait) -> Graph:
    """r is made from c, and c is then written in place, or only looked at."""
    b = graphs.Builder("overwritten source")
    b.given("x", 10)
    b.op("conv", ["x"], {"c": 10}, target="conv")
    b.op("act", ["c"], {"r": 10})
    b.op("later", ["c"], into={"c'": "c"}, traits=[trait])
    b.op("fc", ["r", "c'"], {"y": 10}, target="fc")
    b.hold("y")
    b.tangent("gy", 10)
    b.op("fc_backward", ["gy", "r", "c'"], {"g": 10})
    return b.build()


def test_a_source_that_was_overwritten_since_is_none() -> None:
    assert sources(overwritten(Trait.IN_PLACE), "r") is None
    assert members(overwritten(Trait.IN_PLACE)) == []


def test_a_source_that_was_only_viewed_since_still_is_one() -> None:
    assert sources(overwritten(Trait.VIEW), "r") == {"c"}
    assert members(overwritten(Trait.VIEW)) == [{"r"}]


def test_an_op_reads_the_overwritten_form_again_if_that_is_what_it_read() -> None:
    b = graphs.Builder("read after the write")
    b.given("x", 10)
    b.op("conv", ["x"], {"c": 10}, target="conv")
    b.in_place("relu_", "c")
    b.op("act", ["c'"], {"r": 10})
    b.tangent("gy", 10)
    b.op("back", ["gy", "r", "c'"], {"g": 10})
    assert sources(b.build(), "r") == {"c"}


@pytest.mark.parametrize("trait", [Trait.COLLECTIVE, Trait.MUST_KEEP])
def test_an_op_that_may_not_run_twice_makes_nothing_again(trait: Trait) -> None:
    b = graphs.Builder("once only")
    b.given("x", 10)
    b.op("once", ["x"], {"a": 10}, traits=[trait])
    b.tangent("gy", 10)
    b.op("back", ["gy", "a"], {"g": 10})
    assert sources(b.build(), "a") is None


def normalized(traits: list[Trait]) -> Graph:
    """A convolution, a normalisation that updates statistics, ReLU, a convolution."""
    b = graphs.Builder("normalized")
    b.given("x", 40)
    b.given("statistics", 4, Role.BUFFER)
    b.op("conv1", ["x"], {"c": 40}, target="conv")
    b.op("bn", ["c", "statistics"], {"n": 40}, into={"statistics'": "statistics"}, traits=traits)
    b.op("relu", ["n"], {"r": 40})
    b.op("conv2", ["r"], {"y": 40}, target="conv", roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("gy", 40)
    b.op("conv2_backward", ["gy", "r"], {"gr": 40})
    b.op("relu_backward", ["gr", ("r", Need.SIGN)], {"gn": 40})
    b.op("bn_backward", ["gn", "c"], {"gc": 40})
    b.op("conv1_backward", ["gc", "x"], {"dw": 40}, roles={"dw": Role.GRADIENT})
    b.hold("dw")
    return b.build()


def test_a_normalisation_that_updates_statistics_runs_again_without_them() -> None:
    plan = check(solve(graphs.problem(normalized([Trait.UPDATES])), SPEED))
    assert replayed(plan) == ["bn", "relu"]


def test_an_op_that_changes_statistics_and_cannot_leave_that_out_does_not_run_again() -> None:
    graph = normalized([])
    assert sources(graph, "n") is None
    assert members(graph) == []  # and so r, which is made from n, stays as well


def test_noise_is_drawn_again_with_what_it_multiplies() -> None:
    b = graphs.Builder("dropout")
    b.given("x", 40)
    b.op("conv", ["x"], {"c": 40}, target="conv")
    b.op("bernoulli_", [("c", Need.SHAPE)], {"noise": 40}, traits=[Trait.RANDOM])
    b.op("mul", ["c", "noise"], {"d": 40})
    b.op("fc", ["d"], {"y": 40}, target="fc")
    b.hold("y")
    b.tangent("gy", 40)
    b.op("fc_backward", ["gy", "d", "c"], {"gd": 40})
    b.op("mul_backward", ["gd", "noise"], {"gc": 40})
    graph = b.build()
    assert sources(graph, "noise") == set()  # the shape of c is no use of it
    assert members(graph) == [{"noise", "d"}]
    assert replayed(check(solve(graphs.problem(graph), SPEED))) == ["bernoulli_", "mul"]


# Segments.


def test_a_segment_is_what_lies_between_two_checkpoints() -> None:
    assert members(cheap_run(10, 10, 10)) == [{"r1", "r2", "r3"}]


def test_a_map_that_only_passes_between_two_cheap_layers_belongs_to_their_segment() -> None:
    (segment,) = segments(normalized([Trait.UPDATES]))
    graph = normalized([])
    assert [graph.storages[stash.storage].name for stash in segment.stashed] == ["r"]
    assert [graph.storages[storage].name for storage in segment.passing] == ["n"]


def test_a_checkpoint_written_in_place_by_cheap_layers_stays_a_checkpoint() -> None:
    graph = graphs.in_place_chain()
    assert [segment for segment in segments(graph) if graphs.storage(graph, "c") in segment.storages] == []


def test_checkpoints_that_are_told_replace_the_papers() -> None:
    graph = cheap_run(10, 10, 10)
    told = {graphs.storage(graph, "r2")}
    found = segments(graph, told)
    assert [[graph.storages[s].name for s in segment.storages] for segment in found] == [["c", "r1"], ["r3"]]


def test_an_empty_map_is_not_dropped_though_others_are_made_from_it() -> None:
    """It frees nothing, and backward may read it before it would be back."""
    b = graphs.Builder("empty map")
    b.given("x", 40)
    b.op("f0", ["x"], {"empty": 0})
    b.op("f1", ["x", "empty"], {"a": 40})
    b.op("f2", ["a"], {"y": 40})
    b.hold("y")
    b.tangent("gy", 40)
    b.op("b0", ["gy", "empty"], {"g0": 40})
    b.op("b1", ["g0", "a"], {"g1": 40})
    plan = check(solve(graphs.problem(b.build()), SPEED))
    assert list(gaps(plan)) == ["a"]


# What the strategies decide. With three cheap layers: conv 0, cheap 1 to 3, fc 4, then backward of fc 5, cheap 6 to 8.


def test_speed_makes_all_of_a_segment_again_where_backward_first_needs_some_of_it() -> None:
    plan = solve(graphs.problem(cheap_run(10, 10, 10)), SPEED)
    assert gaps(plan) == {"r1": [(2, 5)], "r2": [(3, 5)], "r3": [(4, 5)]}
    assert replayed(plan) == ["cheap1", "cheap2", "cheap3"]


def test_memory_makes_each_layers_maps_again_from_the_checkpoint() -> None:
    plan = solve(graphs.problem(cheap_run(10, 10, 10)), MEMORY)
    assert gaps(plan) == {"r1": [(2, 5), (5, 6), (6, 7)], "r2": [(3, 5), (5, 6)], "r3": [(4, 5)]}
    assert replayed(plan) == ["cheap1", "cheap2", "cheap3", "cheap1", "cheap2", "cheap1"]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_the_replays_of_a_segment_are_counted_by_the_papers_formulas(length: int) -> None:
    problem = graphs.problem(cheap_run(*[10] * length))
    assert len(replayed(solve(problem, SPEED))) == length
    assert len(replayed(solve(problem, MEMORY))) == length * (length + 1) // 2


def test_what_stayed_for_a_second_op_leaves_after_that_one() -> None:
    """a is made again for b0 and stays for b1; b2 needs r, which is made from a."""
    b = graphs.Builder("two uses in a row")
    b.given("x", 40)
    b.op("act1", ["x"], {"a": 40})
    b.op("act2", ["a"], {"r": 40})
    b.tangent("gy", 40)
    b.op("b0", ["gy", "a"], {"g0": 40})
    b.op("b1", ["g0", "a"], {"g1": 40})
    b.op("b2", ["g1", "r"], {"g2": 40})
    plan = solve(graphs.problem(b.build()), MEMORY)
    assert gaps(plan) == {"a": [(1, 2), (3, 4)], "r": [(1, 4)]}


def test_memory_holds_less_than_speed_where_a_segment_is_what_fills_the_peak() -> None:
    problem = graphs.problem(cheap_run(100, 100, 100, 100))
    assert solve(problem, MEMORY).peak_nbytes < solve(problem, SPEED).peak_nbytes


def test_cost_takes_speed_while_the_segment_stays_within_the_largest_op() -> None:
    problem = graphs.problem(cheap_run(10, 10, gradient_nbytes=60))
    assert l_peak(problem) == 140  # X, Y, dX, dY of a cheap layer; r1 and r2 once more would be 160
    assert replayed(solve(problem, COST)) == replayed(solve(problem, MEMORY))
    roomy = graphs.problem(cheap_run(10, 10, gradient_nbytes=60), workspace_nbytes=[0] * 6 + [20, 0])
    assert l_peak(roomy) == 160
    assert replayed(solve(roomy, COST)) == replayed(solve(roomy, SPEED))


@pytest.mark.parametrize("strategy", RECOMPUTING)
def test_a_budget_below_the_peak_is_refused_with_the_way_out(strategy: str) -> None:
    problem = graphs.problem(cheap_run(10, 10, 10), budget_nbytes=20)
    with pytest.raises(ValueError, match=r"no .* plan fits 20 B.*\n(.*\n)*.*'superneurons'"):
        solve(problem, strategy)


# The square root.


def test_a_chain_of_sixteen_equal_maps_is_cut_into_four() -> None:
    graph = graphs.chain(17)  # a17 is the caller's, so 16 maps are stashed
    assert cuts(graph) == (4, 8, 12)
    kept = {graph.storages[storage].name for storage in crossing(graph, cuts(graph))}
    assert {"a4", "a8", "a12"} <= kept
    assert not kept & {"a1", "a2", "a3", "a5", "a6", "a7", "a9", "a10", "a11"}


def test_a_stretch_is_made_again_when_backward_first_needs_it_and_the_last_one_stays() -> None:
    plan = solve(graphs.problem(graphs.chain(17)), ROOT)
    backs = {name: back for name, ((_, back),) in gaps(plan).items()}
    # layer i's backward is op 34 - i and reads a_(i-1)
    assert backs == {"a9": 22, "a10": 22, "a11": 22, "a5": 26, "a6": 26, "a7": 26, "a1": 30, "a2": 30, "a3": 30}


def test_the_square_root_keeps_about_two_square_roots_of_the_maps() -> None:
    """Nearly all of a long chain's memory goes: 99 stashed maps of 100 bytes, about ten kept and ten there again."""
    problem = graphs.problem(graphs.chain(100, weight_nbytes=0))
    kept_nbytes = Plan(problem, "keep-all").peak_nbytes
    assert kept_nbytes > 10_000
    assert solve(problem, ROOT).peak_nbytes < 2_500


def test_a_skip_connection_across_a_cut_is_kept() -> None:
    graph = graphs.unet(4)
    kept = crossing(graph, cuts(graph))
    assert cuts(graph)
    assert {graphs.storage(graph, "d1"), graphs.storage(graph, "d2")} <= kept


def test_nothing_stashed_is_nothing_cut() -> None:
    b = graphs.Builder("nothing stashed")
    b.given("x", 40)
    b.op("f", ["x"], {"y": 40})
    b.hold("y")
    b.tangent("gy", 40)
    b.op("b", ["gy", "x"], {"g": 40})
    assert solve(graphs.problem(b.build()), ROOT).decisions == ()


# What is true of all of them, and what is not.

often = examples(60)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    return graphs.problem(draw(training_steps() | networks()), workspace_nbytes=draw(st.sampled_from([0, 8])))


@pytest.mark.parametrize("strategy", RECOMPUTING)
@given(problem=problems())
@often
def test_a_plan_holds_and_both_judges_find_the_same_peak(strategy: str, problem: Problem) -> None:
    plan = solve(problem, strategy)
    assert violations(plan) == []
    assert simulate(plan).peak_nbytes == walk(plan).peak_nbytes


@pytest.mark.parametrize("strategy", RECOMPUTING)
@given(problem=problems())
@often
def test_forward_never_holds_more_than_when_everything_is_kept(strategy: str, problem: Problem) -> None:
    """Up to the first replay less is there; from then on it may be more, see the two tests below."""
    kept, dropped = running_nbytes(Plan(problem, "keep-all")), running_nbytes(solve(problem, strategy))
    forward = problem.graph.num_forward
    assert all(less <= more for less, more in zip(dropped[:forward], kept[:forward], strict=True))


@given(problem=problems())
@often
def test_speed_replays_no_op_twice(problem: Problem) -> None:
    again = replayed(solve(problem, SPEED))
    assert len(again) == len(set(again))


@given(problem=problems())
@often
def test_speed_and_memory_drop_the_same_maps(problem: Problem) -> None:
    speed, memory = solve(problem, SPEED), solve(problem, MEMORY)
    assert {d.storage for d in speed.decisions} == {d.storage for d in memory.decisions}


def test_recomputing_can_peak_higher_because_a_source_outlives_its_own_uses() -> None:
    """p is a tenth of c, from which it is made again: keeping p would have let c go after b0."""
    b = graphs.Builder("long-lived source")
    b.given("x", 10)
    b.op("conv", ["x"], {"c": 100}, target="conv")
    b.op("pool", ["c"], {"p": 10})
    b.tangent("gy", 10)
    b.op("b0", ["gy", "c"], {"g0": 10})
    b.op("b1", ["g0"], {"g1": 200})
    b.op("b2", ["g1", "p"], {"g2": 10})
    problem = graphs.problem(b.build())
    assert Plan(problem, "keep-all").peak_nbytes == 10 + 10 + 10 + 200
    assert check(solve(problem, SPEED)).peak_nbytes == 10 + 100 + 10 + 200


def test_recomputing_can_peak_higher_because_an_op_makes_more_than_is_wanted() -> None:
    """u is there again for the moment in which a is made, and now beside a large gradient."""
    b = graphs.Builder("second result")
    b.given("x", 10)
    b.op("two", ["x"], {"a": 10, "u": 100})
    b.op("fc", ["a"], {"y": 10}, target="fc")
    b.hold("y")
    b.tangent("gy", 100)
    b.op("back", ["gy", "a"], {"g": 10})
    problem = graphs.problem(b.build())
    assert Plan(problem, "keep-all").peak_nbytes == 10 + 10 + 10 + 100 + 10
    assert check(solve(problem, SPEED)).peak_nbytes == 10 + 10 + 10 + 100 + 100
