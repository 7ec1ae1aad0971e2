"""A saved plan on a graph that is here: followed when it is the same program, refused with both values when not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pure import graphs
from vdnn.cost.table import OpCost
from vdnn.errors import ForeignPlan, InvalidInput
from vdnn.ir import Graph, Role
from vdnn.plan import Offload, Plan, Problem, load, save, solve
from vdnn.plan.files.saved import fitting_plan, opened


def saved_plan(budget_nbytes: int | None = 700) -> Plan:
    return solve(graphs.problem(graphs.chain(6), budget_nbytes=budget_nbytes), "offload")


def reordered(graph: Graph) -> Graph:
    """The same program with its storages and values numbered from the other end, and other names of its inputs."""
    last_value, last_storage = len(graph.values) - 1, len(graph.storages) - 1
    flip: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda group: tuple(last_value - v for v in group)  # noqa: E731
    return Graph(
        "captured otherwise",
        tuple(
            replace(
                op,
                reads=tuple(replace(read, value=last_value - read.value) for read in op.reads),
                writes=flip(op.writes),
            )
            for op in graph.ops
        ),
        tuple(replace(value, storage=last_storage - value.storage) for value in reversed(graph.values)),
        tuple(
            replace(s, values=flip(s.values), name=f"arg {s.name}" if s.role is Role.INPUT else s.name)
            for s in reversed(graph.storages)
        ),
        *(flip(group) for group in (graph.inputs, graph.tangents, graph.held)),
    )


def test_a_plan_fits_the_problem_it_was_made_for() -> None:
    plan = saved_plan()
    assert plan.decisions
    assert fitting_plan(plan, plan.problem) == plan


def test_a_plan_fits_the_same_program_with_its_inputs_in_another_order() -> None:
    plan = saved_plan()
    here = graphs.problem(reordered(plan.problem.graph), budget_nbytes=700)
    fitted = fitting_plan(plan, here)
    moved = lambda p: [p.problem.graph.storages[d.storage].name for d in p.decisions]  # noqa: E731
    assert moved(fitted) == moved(plan)
    assert fitted.peak_nbytes == plan.peak_nbytes


def test_the_budget_is_the_plans_where_none_is_asked_for() -> None:
    plan = saved_plan(budget_nbytes=700)
    assert fitting_plan(plan, replace(plan.problem, budget_nbytes=None)).problem.budget_nbytes == 700


def test_the_costs_are_those_of_here() -> None:
    plan = saved_plan()
    slower = graphs.problem(plan.problem.graph, seconds=50.0)
    assert fitting_plan(plan, slower).step_time_s > plan.step_time_s


def test_what_may_be_rounded_is_the_plans() -> None:
    plan = solve(graphs.problem(graphs.layered()), "gist-fp8")
    assert fitting_plan(plan, graphs.problem(graphs.layered())) == plan


def one_layer(*states: str) -> Graph:
    b = graphs.Builder("one layer")
    b.given("x", 100)
    for state in states:
        b.given(state, 100, Role.OPTIMIZER_STATE)
    b.op("layer", ["x"], {"y": 100})
    b.hold("y")
    return b.build()


def test_optimizer_state_that_only_the_plan_counted_is_no_difference() -> None:
    """No op reads it: `vdnn plan --optimizer adam` counts it, a captured model does not have it."""
    plan = graphs.plan(one_layer("w.exp_avg", "w.exp_avg_sq"))
    assert fitting_plan(plan, graphs.problem(one_layer())).peak_nbytes == plan.peak_nbytes - 200


def changed(moment: int, **changes: object) -> Problem:
    graph = graphs.chain(6)
    ops = tuple(replace(op, **changes) if at == moment else op for at, op in enumerate(graph.ops))  # type: ignore[arg-type]
    return graphs.problem(replace(graph, ops=ops))


REFUSED = {
    "another op": (changed(3, target="gelu"), r"op 3 is forward linear .* in the plan and forward gelu .* here"),
    "more ops": (graphs.problem(graphs.chain(7)), r"op 6 is backward .* in the plan and forward linear .* here"),
    "other shapes": (
        graphs.problem(graphs.chain(6, nbytes=200)),
        r"'a1' is 25 float32 in the plan and 50 float32 here",
    ),
    "another source": (
        changed(4, reads=(graphs.chain(6).ops[1].reads[0], *graphs.chain(6).ops[4].reads[1:])),
        r"'layer5' takes 'a4' in the plan and 'a1' here",
    ),
}


@pytest.mark.parametrize("other", REFUSED)
def test_a_plan_of_another_graph_is_refused_with_both_values(other: str) -> None:
    problem, words = REFUSED[other]
    with pytest.raises(ForeignPlan, match=words):
        fitting_plan(saved_plan(), problem)


def test_of_many_differences_a_few_are_named_and_the_rest_counted() -> None:
    with pytest.raises(ForeignPlan, match=r"and \d+ more\nMake one for this model"):
        fitting_plan(saved_plan(), graphs.problem(graphs.chain(6, nbytes=200)))


def test_a_plan_of_another_torch_is_refused_with_both_versions(tmp_path: Path) -> None:
    other = replace(saved_plan(), made_with={"torch": "1.13.1+cu117"})
    read = load(save(other, tmp_path / "plan.json"))
    with pytest.raises(ForeignPlan, match=r"torch is 1\.13\.1\+cu117 in the plan and .* here"):
        fitting_plan(read, read.problem)


def test_a_file_says_what_its_plan_was_made_with(tmp_path: Path) -> None:
    read = load(save(saved_plan(), tmp_path / "plan.json"))
    assert set(read.made_with) == {"vdnn", "torch"}
    assert fitting_plan(read, read.problem).decisions == read.decisions


def test_a_machine_without_the_plans_tier_is_named() -> None:
    plan = graphs.plan(graphs.chain(4), {"a1": Offload("disk", 1, 5, 6)})
    machine = graphs.machine()
    without_disk = replace(machine, name="diskless", tiers=machine.tiers[:2], links=machine.links[:2])
    with pytest.raises(ForeignPlan, match=r"does not hold for chain\(4\) on diskless:\n.*no slower tier 'disk'"):
        fitting_plan(plan, graphs.problem(graphs.chain(4), hardware=without_disk))


def test_a_budget_smaller_than_the_plans_peak_is_refused_with_the_bytes() -> None:
    plan = saved_plan(budget_nbytes=700)
    with pytest.raises(ForeignPlan, match=r"the budget is 400 B, but op"):
        fitting_plan(plan, replace(plan.problem, budget_nbytes=400))


def test_a_form_that_is_not_offered_here_is_refused_by_name() -> None:
    offers = graphs.problem(graphs.chain(2), variants={0: (OpCost(0.5, variant="sums-4", exact=False),)})
    plan = replace(graphs.plan(offers), variants={0: 0})
    with pytest.raises(ForeignPlan, match=r"'layer1' as 'sums-4', and here it can be computed as it was traced only"):
        fitting_plan(plan, graphs.problem(graphs.chain(2)))


def test_a_file_that_is_not_there_is_a_mistake_with_its_name() -> None:
    with pytest.raises(InvalidInput, match=r"cannot read a plan from 'missing\.json': No such file"):
        opened("missing.json")
