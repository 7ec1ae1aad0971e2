"""What is true of every strategy, tried on random problems: it holds, it fits, or it says what would fit.

Problems here are random training steps on machines with much, little or no room beside the device, some with a choice
of algorithms. Offloading is also held against a search through every set of gaps.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larger import all_but_larger
from pure import graphs
from pure.random_plans import training_steps
from random_examples import examples
from vdnn.cost.table import OpCost
from vdnn.errors import Infeasible
from vdnn.hardware.device import Hardware, Tier
from vdnn.ir import Graph, Need, Op, Role
from vdnn.plan import STRATEGIES, Decision, Drop, Offload, Plan, Problem, simulate, solve, violations
from vdnn.plan.model.bounds import minimum_budget

thorough = examples(40)
SEARCHING = ("auto", "offload", "vdnn-dyn")
"""Those that weigh several plans; the others follow a rule, where deciding twice is deciding once."""
ONE_TIER = Hardware("only a device", 1.0, 1.0, (Tier(graphs.DEVICE),))
MACHINES = (graphs.machine(), graphs.machine(host_nbytes=60), graphs.machine(host_nbytes=40, disk_nbytes=50), ONE_TIER)
TARGETS = ("aten.convolution.default", "aten.max_pool2d_with_indices.default", "aten.relu.default")


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """A random training step whose ops have the names of layers, so that vDNN finds something to offload."""
    graph = draw(training_steps())
    ops = []
    for moment, op in enumerate(graph.ops):
        target = draw(st.sampled_from(TARGETS))
        if moment >= graph.num_forward:
            target = target.replace(".default", "_backward.default")
        ops.append(replace(op, target=target, module=draw(st.sampled_from(["a", "b"]))))
    return replace(graph, ops=tuple(ops))


@st.composite
def asked(draw: st.DrawFn, *, machines: tuple[Hardware, ...] = MACHINES) -> Problem:
    graph = draw(networks())
    workspace = draw(st.lists(st.integers(0, 40), min_size=len(graph), max_size=len(graph)))
    seconds = draw(st.sampled_from([0.0, 0.01, 1.0]))
    offered = {}
    for moment in draw(st.lists(st.integers(0, len(graph) - 1), max_size=3, unique=True)):
        spaces = draw(st.lists(st.integers(0, 60), min_size=1, max_size=3))
        offered[moment] = tuple(OpCost(seconds + k / 10, nbytes, "drawn") for k, nbytes in enumerate(spaces))
    plain = graphs.problem(graph, workspace_nbytes=workspace, seconds=seconds, hardware=draw(st.sampled_from(machines)))
    peak = simulate(Plan(plain, "keep-all")).peak_nbytes
    return replace(plain, budget_nbytes=draw(st.integers(0, peak + 30)), variants=offered)


def attempt(problem: Problem, strategy: str) -> Plan | Infeasible:
    try:
        return solve(problem, strategy)
    except Infeasible as too_small:
        return too_small


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@given(problem=asked())
@examples(25)
def test_a_plan_holds_and_fits_or_the_budget_named_instead_is_met(strategy: str, problem: Problem) -> None:
    answer = attempt(problem, strategy)
    if isinstance(answer, Infeasible):
        assert problem.budget_nbytes is not None
        assert answer.minimum_nbytes > problem.budget_nbytes
        problem = replace(problem, budget_nbytes=answer.minimum_nbytes)
        answer = solve(problem, strategy)
    assert violations(answer) == []
    assert problem.budget_nbytes is not None
    assert simulate(answer).peak_nbytes <= problem.budget_nbytes


@given(problem=asked(machines=(graphs.machine(), graphs.machine(host_nbytes=60), ONE_TIER)))
@thorough
def test_with_room_in_the_slower_tiers_offload_meets_exactly_what_the_bound_says(problem: Problem) -> None:
    minimum, moment = minimum_budget(problem)
    assert violations(solve(replace(problem, budget_nbytes=minimum), "offload")) == []
    if minimum:
        with pytest.raises(Infeasible, match=f"op {moment} ") as caught:
            solve(replace(problem, budget_nbytes=minimum - 1), "offload")
        assert caught.value.minimum_nbytes == minimum


def every_offload(graph: Graph) -> list[Decision]:
    """Every gap used to the full, the slow way: an offload between two uses, a drop after the last."""
    fixed = {graph.values[value].storage for value in (*graph.inputs, *graph.tangents, *graph.held)}
    found = []
    for storage, block in enumerate(graph.storages):
        if storage in fixed or (block.role is not Role.FEATURE_MAP and storage not in graph.stashed):
            continue
        used = [moment for moment, op in enumerate(graph.ops) if is_used(graph, op, storage)]
        found += [Decision(storage, Offload("host", leave, until, until), "") for leave, until in pairwise(used)]
        found.append(Decision(storage, Drop(used[-1]), ""))
    return [decision for decision in found if decision.action.leave + 1 < len(graph)]


def is_used(graph: Graph, op: Op, storage: int) -> bool:
    read = [r.value for r in op.reads if r.need not in (Need.SHAPE, Need.NOTHING)]
    return any(graph.values[value].storage == storage for value in (*read, *op.writes))


@given(problem=asked(machines=(graphs.machine(),)))
@thorough
def test_using_every_gap_to_the_full_peaks_at_the_bound(problem: Problem) -> None:
    plain = replace(problem, budget_nbytes=None, variants={})
    assert simulate(Plan(plain, "by hand", tuple(every_offload(plain.graph)))).peak_nbytes == minimum_budget(plain)[0]


@given(graph=networks(), workspace=st.integers(0, 20))
@examples(25)
def test_no_set_of_gaps_peaks_below_the_bound(graph: Graph, workspace: int) -> None:
    problem = graphs.problem(graph, workspace_nbytes=workspace)
    possible = every_offload(graph)[:9]
    sets = chain.from_iterable(combinations(possible, n) for n in range(len(possible) + 1))
    peaks = [simulate(Plan(problem, "by hand", chosen)).peak_nbytes for chosen in sets]
    assert min(peaks) >= minimum_budget(problem)[0]


@pytest.mark.parametrize("strategy", all_but_larger(SEARCHING, sorted(STRATEGIES)))
@given(problem=asked())
@examples(20)
def test_a_strategy_decides_the_same_thing_twice(strategy: str, problem: Problem) -> None:
    unbounded = replace(problem, budget_nbytes=None)
    assert solve(unbounded, strategy) == solve(unbounded, strategy)
    first, second = attempt(problem, strategy), attempt(problem, strategy)
    assert str(first) == str(second)
    assert isinstance(first, Infeasible) or first == second


@given(problem=asked())
@thorough
def test_offload_leaves_alone_what_fits_already(problem: Problem) -> None:
    peak = simulate(Plan(problem, "keep-all", variants=dict.fromkeys(problem.variants, 0))).peak_nbytes
    assert solve(replace(problem, budget_nbytes=peak), "offload").decisions == ()


@given(problem=asked(machines=(graphs.machine(),)))
@thorough
def test_every_decision_of_offload_is_needed(problem: Problem) -> None:
    """Taken back alone, each would break the budget."""
    answer = attempt(problem, "offload")
    if isinstance(answer, Infeasible):
        return
    for position in range(len(answer.decisions)):
        if isinstance(answer.decisions[position].action, Drop):
            continue
        fewer = answer.decisions[:position] + answer.decisions[position + 1 :]
        assert violations(replace(answer, decisions=fewer)) != []
