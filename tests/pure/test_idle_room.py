"""Buffers that wait for the next step never make a step larger than its plan says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hypothesis import given

from pure import graphs
from pure.random_plans import plans
from pure.test_plan_properties import reads_encoded
from random_examples import examples
from vdnn.cost.table import CostTable
from vdnn.ir import Graph, Need, Role
from vdnn.plan import Encode, EncodeOffload, Instruction, Kind, Plan, schedule, simulate
from vdnn.plan.shared.lasting_buffers import MIN_POOLED_NBYTES, lasting_buffers

thorough = examples(80)


def enlarged(plan: Plan) -> Plan:
    """The plan with every byte a MiB, so that its encodings are worth keeping buffers for."""
    problem = plan.problem
    storages = tuple(replace(s, nbytes=s.nbytes * MIN_POOLED_NBYTES) for s in problem.graph.storages)
    costs = tuple(replace(c, workspace_nbytes=c.workspace_nbytes * MIN_POOLED_NBYTES) for c in problem.costs.ops)
    decisions = tuple(
        replace(d, action=replace(d.action, nbytes=d.action.nbytes * MIN_POOLED_NBYTES))
        if isinstance(d.action, Encode | EncodeOffload)
        else d
        for d in plan.decisions
    )
    larger = replace(problem, graph=replace(problem.graph, storages=storages), costs=CostTable(costs))
    return replace(plan, problem=larger, decisions=decisions)


def buffer_uses(plan: Plan, program: Sequence[Instruction]) -> dict[int, tuple[int, int]]:
    """Of each decision with an encoding: the instructions at which its encoder's buffer is taken and given back.

    An encoding that travels leaves its buffer when its copy has left, and returns into other memory.
    """
    found = {}
    for position, decision in enumerate(plan.decisions):
        if not isinstance(decision.action, Encode | EncodeOffload):
            continue
        mine = [(at, i.kind) for at, i in enumerate(program) if i.decision == position and i.op < 0]
        (taken,) = (at for at, kind in mine if kind is Kind.ENCODE)
        given_back = [at for at, kind in mine if kind in (Kind.LEAVE, Kind.DECODE)][:1]
        readers = [at for at, i in enumerate(program) if at > taken and reads_encoded(plan, i, decision.storage)]
        found[position] = (taken, given_back[0] if given_back else max([taken, *readers]))
    return found


def held_nbytes(plan: Plan) -> Iterator[int]:
    """Device bytes at every instruction of the second step: what the plan counts, and the buffers that wait."""
    program, total = schedule(plan), simulate(plan).total()
    uses, lasting = buffer_uses(plan, program), lasting_buffers(plan)
    sizes = {position: plan.decisions[position].action.nbytes for position in lasting}  # type: ignore[union-attr]
    for at in range(len(program)):
        waiting = [position for position in lasting if not uses[position][0] <= at <= uses[position][1]]
        yield int(total[at]) + sum(sizes[position] for position in waiting)


@given(plan=plans())
@thorough
def test_buffers_that_wait_never_push_an_instruction_over_the_peak(plan: Plan) -> None:
    plan = enlarged(plan)
    assert max(held_nbytes(plan), default=0) <= plan.peak_nbytes


def travelling(map_nbytes: int) -> Plan:
    """An encoding that is elsewhere while `wide` runs at the peak."""
    b = graphs.Builder("travelling")
    b.given("x", 4)
    b.op("make", ["x"], {"a": map_nbytes})
    b.op("use", ["a"], {"u": 4})
    b.op("wide", ["u"], {"w": 10 * map_nbytes})
    b.op("narrow", ["w"], {"y": 4}, roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("g", 4)
    b.op("b", ["g", ("a", Need.SIGN, graphs.ABOVE_ZERO, True)], {"ga": map_nbytes})
    action = EncodeOffload("sign-mask", map_nbytes // 32, "host", 1, 1, 4, 4, detail=graphs.ABOVE_ZERO, direct=True)
    return graphs.plan(b.build(), {"a": action})


def test_the_buffer_of_an_encoding_that_travels_does_not_wait_beside_the_peak() -> None:
    plan = travelling(32 * MIN_POOLED_NBYTES)
    assert max(held_nbytes(plan)) == plan.peak_nbytes


def roomy(map_nbytes: int, peak_nbytes: int) -> Graph:
    """A map that waits for backward as bits, in a step whose first op and last op need `peak_nbytes` more."""
    b = graphs.Builder("roomy")
    b.given("x", 4)
    b.op("wide", ["x"], {"w": peak_nbytes})
    b.op("make", ["w"], {"a": map_nbytes})
    b.op("use", ["a"], {"y": 4}, roles={"y": Role.OUTPUT})
    b.hold("y")
    b.tangent("g", 4)
    b.op("b", ["g", ("a", Need.SIGN, graphs.ABOVE_ZERO, True)], {"ga": map_nbytes})
    return b.build()


def bits(map_nbytes: int) -> Encode:
    return Encode("sign-mask", map_nbytes // 32, 2, 3, detail=graphs.ABOVE_ZERO, direct=True)


def lasting(map_nbytes: int, peak_nbytes: int) -> Counter[str]:
    plan = graphs.plan(roomy(map_nbytes, peak_nbytes), {"a": bits(map_nbytes)})
    names = (plan.problem.graph.storages[plan.decisions[position].storage].name for position in lasting_buffers(plan))
    return Counter(names)


def test_a_buffer_waits_where_the_plan_leaves_room() -> None:
    assert lasting(32 * MIN_POOLED_NBYTES, peak_nbytes=4) == {"a": 1}


def test_a_buffer_does_not_wait_where_the_step_is_at_its_peak_without_it() -> None:
    """While `make` runs, `w` and `a` are both there and fill the peak: one byte more would exceed it."""
    assert lasting(32 * MIN_POOLED_NBYTES, peak_nbytes=32 * MIN_POOLED_NBYTES) == {}


def test_a_small_buffer_never_waits() -> None:
    assert lasting(32 * MIN_POOLED_NBYTES - 32, peak_nbytes=4) == {}
