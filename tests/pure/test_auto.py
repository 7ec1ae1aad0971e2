"""`auto`: monotone in the budget, optimal where every plan can be tried, always the same answer, and a true bound.

That its plans hold and fit, or that the budget named instead is met, is asked of every strategy in
`test_strategy_properties.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from pure import graphs
from pure.random_plans import training_steps
from pure.test_strategy_properties import asked, attempt
from random_examples import examples
from vdnn.codecs import codec_for
from vdnn.errors import Infeasible
from vdnn.hardware.device import Hardware, Tier
from vdnn.ir import Graph, Information, Need, Role
from vdnn.plan import Decision, Drop, Encode, Offload, Plan, Problem, Recompute, simulate, solve, violations
from vdnn.plan.auto.candidates import Candidates
from vdnn.plan.auto.ties import units
from vdnn.plan.model.gaps import Gap, gaps

some = examples(25, suppress_health_check=[HealthCheck.filter_too_much])
MOST_GAPS = 4


@given(problem=asked(), more=st.lists(st.integers(1, 60), min_size=3, max_size=3))
@some
def test_a_larger_budget_never_gives_a_slower_plan(problem: Problem, more: list[int]) -> None:
    answer = attempt(problem, "auto")
    least = answer.minimum_nbytes if isinstance(answer, Infeasible) else problem.budget_nbytes
    assert least is not None
    budgets = [least, least + more[0], least + sum(more[:2]), least + sum(more)]
    times = [solve(replace(problem, budget_nbytes=budget), "auto").step_time_s for budget in budgets]
    assert all(later <= sooner * (1 + 1e-9) for sooner, later in pairwise(times))


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    """So few gaps that every plan can be tried, ops of different lengths, links of different speeds."""
    graph = draw(training_steps())
    assume(0 < len([gap for gap in gaps(graph) if not gap.is_last]) <= MOST_GAPS)
    machine = graphs.machine(bandwidth=draw(st.sampled_from([1.0, 20.0, 1000.0])))
    seconds = draw(st.lists(st.floats(0.01, 2.0), min_size=len(graph), max_size=len(graph)))
    return graphs.problem(graph, seconds=seconds, hardware=machine)


def ways(problem: Problem, gap: Gap) -> Iterator[Decision | None]:
    """All that could be done in a gap, written by hand: away as long as possible, or back as soon as possible."""
    if gap.is_last:
        yield Decision(gap.storage, Drop(gap.leave), "")
        return
    yield None
    for fetch in {gap.until, gap.leave + 1}:
        yield Decision(gap.storage, Offload(graphs.HOST, gap.leave, fetch, gap.until), "")
    yield Decision(gap.storage, Recompute(gap.leave, gap.until), "")
    codec = codec_for("sign-mask", problem.graph.storages[gap.storage], graphs.ABOVE_ZERO)
    if codec.is_possible and takes_signs_only(problem.graph, gap):
        seconds = codec.traffic_nbytes / problem.hardware.memory_bandwidth_bytes_per_s
        action = Encode("sign-mask", codec.nbytes, gap.leave, gap.until, seconds, seconds, graphs.ABOVE_ZERO)
        yield Decision(gap.storage, action, "")


def takes_signs_only(graph: Graph, gap: Gap) -> bool:
    reads = [
        read.information
        for op in graph.ops[gap.until :]
        for read in op.reads
        if graph.values[read.value].storage == gap.storage and read.need not in (Need.SHAPE, Need.NOTHING)
    ]
    return all(information == Information(Need.SIGN, graphs.ABOVE_ZERO) for information in reads)


def every_plan(problem: Problem) -> Iterator[Plan]:
    for decided in product(*(list(ways(problem, gap)) for gap in gaps(problem.graph))):
        plan = Plan(problem, "by hand", tuple(decision for decision in decided if decision is not None))
        if violations(plan) == []:
            yield plan


@given(problem=small_problems(), share=st.floats(0.0, 1.0))
@some
def test_where_every_plan_can_be_tried_none_is_faster(problem: Problem, share: float) -> None:
    plans = [(simulate(plan).peak_nbytes, plan.step_time_s) for plan in every_plan(problem)]
    low, high = min(peak for peak, _ in plans), max(peak for peak, _ in plans)
    budget = int(low + share * (high - low))
    best_s = min(seconds for peak, seconds in plans if peak <= budget)
    answer = solve(replace(problem, budget_nbytes=budget), "auto")
    assert answer.step_time_s <= best_s * (1 + 1e-9)


@given(problem=small_problems(), share=st.floats(0.0, 1.0))
@some
def test_no_plan_is_faster_than_the_bound(problem: Problem, share: float) -> None:
    plans = [(simulate(plan).peak_nbytes, plan.step_time_s) for plan in every_plan(problem)]
    low, high = min(peak for peak, _ in plans), max(peak for peak, _ in plans)
    budget = int(low + share * (high - low))
    answer = solve(replace(problem, budget_nbytes=budget), "auto")
    assert answer.bound_s is not None
    assert answer.bound_s <= min(seconds for peak, seconds in plans if peak <= budget) * (1 + 1e-6)


def test_an_op_that_two_chains_share_is_paid_once_by_the_bound() -> None:
    b = graphs.Builder("shared")
    b.given("x", 100)
    b.op("op1", ["x"], {"t": 100})
    b.op("op2", ["t"], {"a": 100})
    b.op("op3", ["t"], {"b": 100})
    b.op("op4", ["a", "b"], {"f0": 4})
    for i in range(60):
        b.op(f"step{i}", [f"f{i}"], {f"f{i + 1}": 4})
    b.op("big", ["f60"], {"z": 1000})
    b.op("out", ["z"], {"y": 4}, roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("gy", 4)
    b.op("out_b", ["gy"], {"gz": 4})
    b.op("back", ["gz", "a", "b"], {"gx": 4}, roles={"gx": Role.GRADIENT})
    b.hold("gx")
    alone = Hardware("one tier", 1e12, 1e12, (Tier("device"),))
    problem = graphs.problem(b.build(), budget_nbytes=1104, hardware=alone)
    found = solve(problem, "auto")
    assert found.bound_s is not None
    kept_s = sum(cost.seconds for cost in problem.costs.ops)
    assert kept_s < found.bound_s <= found.step_time_s


@given(problem=asked())
@some
def test_the_same_question_has_the_same_answer(problem: Problem) -> None:
    one, other = attempt(problem, "auto"), attempt(problem, "auto")
    if isinstance(one, Infeasible):
        assert isinstance(other, Infeasible)
        assert one.minimum_nbytes == other.minimum_nbytes
    else:
        assert isinstance(other, Plan)
        assert one.decisions == other.decisions
        assert one.variants == other.variants


def test_of_many_equal_blocks_neighbours_are_decided_together() -> None:
    candidates = Candidates(graphs.problem(graphs.chain(800)))
    tied = units(candidates)
    assert len(candidates.items) > 500
    assert len(tied) < 100
    assert sorted(k for unit in tied for k in unit) == list(range(len(candidates.items)))
