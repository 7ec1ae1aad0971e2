"""Hypothesis strategies: random training steps, and random plans for them that hold.

A graph is grown op by op with what makes planning hard: several readers, in-place writes, views, two outputs,
statistics that an op updates, random ops, readers that take only a sign or a shape, some of which can read it from a
encoding, backward ops that write over what forward made. A plan is grown decision by decision; one that breaks a rule
is left out, so every plan here is valid and most have several decisions.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from pure import graphs
from vdnn.codecs import codec_for
from vdnn.ir import Detail, Graph, Need, Role, Trait
from vdnn.plan import Decision, Drop, Encode, EncodeOffload, Offload, Plan, Problem, Recompute, violations

SIZES = st.integers(min_value=0, max_value=16).map(lambda count: 4 * count)
"""Whole numbers of float32, so that codecs can encode them."""

SIGN = (Need.SIGN, graphs.ABOVE_ZERO)
NEEDS = st.sampled_from([(Need.ALL,)] * 3 + [(*SIGN, False)] + [(*SIGN, True)] * 3 + [(Need.SHAPE,), (Need.NOTHING,)])
LOSSLESS = {"sparse": (0.5,), "csr": (1.0,), "sign-mask": graphs.ABOVE_ZERO}
ROUNDING: dict[str, Detail] = {"fp16": (), "fp10": (), "fp8": (), "sparse-fp10": (0.7,)}


@st.composite
def training_steps(draw: st.DrawFn) -> Graph:
    b = graphs.Builder("random")
    maps = [b.given("x", draw(SIZES))]
    b.given("w", draw(SIZES), Role.PARAMETER)
    b.given("statistics0", draw(SIZES), Role.BUFFER)
    num_updates = 0
    for i in range(draw(st.integers(3, 7))):
        reads = draw(st.lists(st.sampled_from(maps[-4:]), min_size=1, max_size=3, unique=True))
        form = draw(st.sampled_from(["one", "one", "two", "in place", "view", "norm", "random"]))
        if form == "in place" and maps[-1] != "x":
            maps.append(b.op(f"f{i}", [maps[-1], *reads], into={f"v{i}": maps[-1]}, traits=[Trait.IN_PLACE]))
        elif form == "view" and maps[-1] != "x":
            maps.append(b.op(f"f{i}", [maps[-1]], into={f"v{i}": maps[-1]}, traits=[Trait.VIEW]))
        elif form == "norm":
            fresh = {f"statistics{num_updates + 1}": f"statistics{num_updates}"}
            maps.append(b.op(f"f{i}", [*reads, f"statistics{num_updates}"], {f"v{i}": draw(SIZES)}, into=fresh))
            num_updates += 1
        else:
            made = {f"v{i}": draw(SIZES)} | ({f"u{i}": draw(SIZES)} if form == "two" else {})
            b.op(f"f{i}", [*reads, "w"], made, traits=[Trait.RANDOM] if form == "random" else [])
            maps += made
    b.hold(maps[-1])
    usual = {name: draw(NEEDS) for name in maps[1:]}  # several readers of one map mostly take the same of it
    gradients = [b.tangent("gy", draw(SIZES))]
    for i in range(draw(st.integers(1, 7))):
        stashed = draw(st.lists(st.sampled_from(maps[1:]), min_size=1, max_size=3, unique=True))
        reads = [draw(st.sampled_from(gradients)), *((name, *draw(st.just(usual[name]) | NEEDS)) for name in stashed)]
        if b.is_held(stashed[0]) or draw(st.integers(0, 3)):
            gradients.append(b.op(f"b{i}", reads, {f"g{i}": draw(SIZES)}))
        else:  # nobody reads as a map what is a gradient now
            gradients.append(b.op(f"b{i}", [*reads, stashed[0]], into={f"g{i}": stashed[0]}, traits=[Trait.IN_PLACE]))
            maps = [name for name in maps if not b.share_storage(name, stashed[0])]
            if len(maps) < 2:
                break
        if draw(st.booleans()):
            b.hold(f"g{i}")
    return b.build()


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    graph = draw(training_steps())
    workspace = draw(st.lists(st.integers(0, 40), min_size=len(graph), max_size=len(graph)))
    return graphs.problem(
        graph,
        workspace_nbytes=workspace,
        seconds=draw(st.sampled_from([0.0, 0.01, 1.0])),
        lossy=draw(st.sampled_from([None, "fp16"])),
        codecs_take_room=draw(st.booleans()),
    )


def gaps(graph: Graph) -> list[tuple[int, int, int]]:
    """(storage, moment, next moment that takes more than its shape) of all that a plan may move: a decision fits."""
    held = {graph.values[value].storage for value in graph.held}
    given = {graph.values[value].storage for value in graph.inputs}
    found = []
    for storage in set(graph.stashed) - held - given:
        used = sorted(
            {
                moment
                for moment, op in enumerate(graph.ops)
                if any(graph.values[v].storage == storage for v in op.writes)
            }
            | {
                moment
                for moment, op in enumerate(graph.ops)
                for read in op.reads
                if graph.values[read.value].storage == storage and read.need not in (Need.SHAPE, Need.NOTHING)
            }
        )
        found += [(storage, moment, until) for moment, until in pairwise([*used, len(graph) - 1]) if moment < until]
    return sorted(found)


@st.composite
def decisions(draw: st.DrawFn, problem: Problem, within: tuple[int, int, int]) -> Decision:
    """Some action through one gap, with moments that use more or less of it."""
    storage, first, until = within
    leave = draw(st.integers(first, until - 1))
    fetch = draw(st.integers(leave + 1, until))
    back = draw(st.integers(fetch, until))
    sent = draw(st.integers(leave, fetch - 1))
    tier = draw(st.sampled_from([graphs.HOST, graphs.DISK]))
    direct = draw(st.booleans())
    codec, nbytes, detail = draw(encodings(problem, storage, direct))
    options = [
        Recompute(leave, back),
        Recompute(leave, until),
        Offload(tier, leave, fetch, back),
        Encode(codec, nbytes, leave, back, 0.5, 0.25, detail, direct),
        EncodeOffload(codec, nbytes, tier, leave, sent, fetch, back, 0.5, 0.25, detail, direct),
        Drop(leave),
    ]
    return Decision(storage, draw(st.sampled_from(options)), "drawn")


@st.composite
def encodings(draw: st.DrawFn, problem: Problem, storage: int, direct: bool) -> tuple[str, int, Detail]:
    """A codec, the bytes that it gets (what it needs, or a few more), and its parameters."""
    known = LOSSLESS if problem.lossy is None else LOSSLESS | ROUNDING
    name = "sign-mask" if direct else draw(st.sampled_from(sorted(known)))
    codec = codec_for(name, problem.graph.storages[storage], known[name])
    return name, codec.nbytes + draw(st.integers(0, 3)), known[name]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A valid plan: each drawn decision joins if the plan still holds with it."""
    plan = Plan(draw(problems()), "random")
    places = gaps(plan.problem.graph)
    for place in draw(st.permutations(places))[:8]:
        decision = draw(decisions(plan.problem, place))
        grown = Plan(plan.problem, plan.strategy, (*plan.decisions, decision))
        if violations(grown) == []:
            plan = grown
    return plan
