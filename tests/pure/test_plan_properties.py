"""What is true of every plan, tried on random ones.

Two oracles: a brute force that asks each storage at each instruction whether it is alive, and an execution of the
program in which the content of a storage is a fingerprint of how it was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hypothesis import given, note

from pure.random_plans import plans, problems
from random_examples import examples
from vdnn.codecs import codec_for
from vdnn.ir import Need, Trait
from vdnn.plan import (
    Encode,
    EncodeOffload,
    Instruction,
    Kind,
    Offload,
    Plan,
    Problem,
    from_json,
    schedule,
    simulate,
    to_json,
    violations,
)
from vdnn.plan.judge.residency import holdings
from vdnn.plan.judge.walk import walk

Life = list[tuple[int, str]]
"""(instruction, "touch" or "end") of one storage, in order."""

Claim = Callable[[Plan], None]
CLAIMS: list[Claim] = []


def claim(holds: Claim) -> Claim:
    """Something that is true of every plan. A plan is drawn once for all of them."""
    CLAIMS.append(holds)
    return holds


def brute_force_totals(plan: Plan) -> list[int]:
    """Device bytes at every instruction: for each one, every storage is asked whether it exists and is needed still."""
    program = schedule(plan)
    lives = [events(plan, program, storage) for storage in range(len(plan.problem.graph.storages))]
    totals = []
    for at, instruction in enumerate(program):
        total = sum(s.nbytes for k, s in enumerate(plan.problem.graph.storages) if is_alive(plan, k, lives[k], at))
        total += sum(encoded_nbytes(plan, program, decision, at) for decision in range(len(plan.decisions)))
        work = [plan.problem.costs[instruction.op].workspace_nbytes] if instruction.op >= 0 else [0]
        if plan.problem.codecs_take_room:
            work += codec_work(plan, program, lives, at)
        total += max(work)
        if instruction.kind is Kind.REPLAY:
            total += unasked_nbytes(plan, instruction)
        totals.append(total)
    return totals


def codec_work(plan: Plan, program: Sequence[Instruction], lives: Sequence[Life], at: int) -> Iterator[int]:
    """What codecs hold for themselves in an instruction: who encodes or decodes, and who reads an encoding as it is."""
    instruction = program[at]
    for number, decision in enumerate(plan.decisions):
        action, storage = decision.action, decision.storage
        if not isinstance(action, Encode | EncodeOffload):
            continue
        codec = codec_for(action.codec, plan.problem.graph.storages[storage], action.detail)
        if instruction.decision == number and instruction.kind in (Kind.ENCODE, Kind.DECODE):
            yield codec.workspace_nbytes
        is_there = encoded_nbytes(plan, program, number, at) and not is_alive(plan, storage, lives[storage], at)
        if action.direct and is_there and reads_encoded(plan, instruction, storage):
            yield codec.reader_workspace_nbytes


def is_alive(plan: Plan, storage: int, life: Life, at: int) -> bool:
    graph = plan.problem.graph
    if storage in {graph.values[value].storage for value in graph.inputs}:
        return True
    before = [what for position, what in life if position < at]
    exists = bool(before) and before[-1] != "end"
    is_held = storage in {graph.values[value].storage for value in graph.held}
    return any(position == at for position, _ in life) or (exists and (is_held or any(p > at for p, _ in life)))


def events(plan: Plan, program: Sequence[Instruction], storage: int) -> Life:
    """What happens to one storage's plain form; reading something that is away is no event."""
    graph, found = plan.problem.graph, []
    first_backward = min(graph.num_forward, len(graph) - 1)
    if storage in {graph.values[value].storage for value in graph.tangents}:
        found.append((next(p for p, i in enumerate(program) if i.moment == first_backward), "touch"))
        found.append((next(p for p, i in enumerate(program) if i.kind is Kind.RUN and i.op == first_backward), "touch"))
    for position, i in enumerate(program):
        is_here = bool(found) and found[-1][1] != "end"
        if i.op >= 0:
            reads = {graph.values[read.value].storage for read in graph.ops[i.op].reads}
            writes = {graph.values[value].storage for value in graph.ops[i.op].writes}
            kept = writes if i.kind is Kind.RUN else writes & set(i.keeps)
            if storage in kept or (storage in reads and is_here):
                found.append((position, "touch"))
        elif i.storage == storage and i.kind is not Kind.SEND:
            is_encoded = isinstance(plan.decisions[i.decision].action, EncodeOffload)
            if i.kind is Kind.ENCODE or (i.kind is Kind.LEAVE and not is_encoded):
                found.append((position, "end"))
            elif i.kind is Kind.DECODE or (i.kind in (Kind.FETCH, Kind.ARRIVE) and not is_encoded):
                found.append((position, "touch"))
    return sorted(found)


def encoded_nbytes(plan: Plan, program: Sequence[Instruction], decision: int, at: int) -> int:
    """Between ENCODE and LEAVE, and between FETCH and DECODE, or from ENCODE to DECODE when it does not travel.

    What is read as it is has no DECODE: its encoding is there until its last reader, or its arrival if nobody reads it.
    """
    action = plan.decisions[decision].action
    if not isinstance(action, Encode | EncodeOffload):
        return 0
    marks = [(p, i.kind) for p, i in enumerate(program) if i.decision == decision and i.op < 0]
    taken = [p for p, kind in marks if kind in (Kind.ENCODE, Kind.FETCH)]
    freed = [p for p, kind in marks if kind in (Kind.LEAVE, Kind.DECODE)]
    if action.direct:
        reading = [p for p, i in enumerate(program) if reads_encoded(plan, i, plan.decisions[decision].storage)]
        freed.append(max([marks[-1][0], *reading]))
    return action.nbytes if any(a <= at <= b for a, b in zip(taken, freed, strict=True)) else 0


def reads_encoded(plan: Plan, instruction: Instruction, storage: int) -> bool:
    """Whether an op takes more than the shape of a storage."""
    reads = plan.problem.graph.ops[instruction.op].reads if instruction.op >= 0 else ()
    values = plan.problem.graph.values
    return any(values[r.value].storage == storage and r.need not in (Need.SHAPE, Need.NOTHING) for r in reads)


def unasked_nbytes(plan: Plan, instruction: Instruction) -> int:
    graph = plan.problem.graph
    writes = {graph.values[value].storage for value in graph.ops[instruction.op].writes}
    return sum(graph.storages[storage].nbytes for storage in writes - set(instruction.keeps))


def fingerprints(plan: Plan, program: Sequence[Instruction]) -> tuple[list[int], dict[int, int]]:
    """Run the program on fingerprints: what each op read when it first ran, and what lasts holds at the end."""
    graph = plan.problem.graph
    device = {graph.values[value].storage: value for value in (*graph.inputs, *graph.tangents)}
    copies: dict[int, int] = {}
    encoded: dict[int, int] = {}
    seen = []
    for i in program:
        travels_encoded = i.decision >= 0 and isinstance(plan.decisions[i.decision].action, EncodeOffload)
        if i.op >= 0:
            op = graph.ops[i.op]
            storages = [graph.values[r.value].storage for r in op.reads if r.need not in (Need.SHAPE, Need.NOTHING)]
            taken = hash((i.op, *(content(plan, device, encoded, storage) for storage in storages)))
            if i.kind is Kind.RUN:
                seen.append(taken)
            for storage in {graph.values[value].storage for value in op.writes}:
                is_born = storage not in {graph.values[read.value].storage for read in op.reads}
                if Trait.VIEW not in op.traits and (i.kind is Kind.RUN or storage in i.keeps or not is_born):
                    device[storage] = hash((taken, storage))
        elif i.kind is Kind.SEND:
            copies[i.decision] = encoded[i.decision] if travels_encoded else device[i.storage]
        elif i.kind is Kind.LEAVE:
            del (encoded if travels_encoded else device)[i.decision if travels_encoded else i.storage]
        elif i.kind is Kind.ARRIVE:
            (encoded if travels_encoded else device)[i.decision if travels_encoded else i.storage] = copies.pop(
                i.decision
            )
        elif i.kind is Kind.ENCODE:
            encoded[i.decision] = device.pop(i.storage)
        elif i.kind is Kind.DECODE:
            device[i.storage] = encoded.pop(i.decision)
    lasting = {graph.values[value].storage for value in (*graph.inputs, *graph.held)}
    return seen, {storage: device[storage] for storage in lasting}


def content(plan: Plan, device: dict[int, int], encoded: dict[int, int], storage: int) -> int:
    """What an op finds of a storage: the storage, or where that is away its encoding."""
    if storage in device:
        return device[storage]
    (encoding,) = (encoding for decision, encoding in encoded.items() if plan.decisions[decision].storage == storage)
    return encoding


@claim
def a_valid_plan_computes_what_keeping_everything_computes(plan: Plan) -> None:
    kept = Plan(plan.problem, "keep-all")
    assert fingerprints(plan, schedule(plan)) == fingerprints(kept, schedule(kept))


@claim
def the_simulated_bytes_are_those_of_brute_force(plan: Plan) -> None:
    assert simulate(plan).total().tolist() == brute_force_totals(plan)


@claim
def the_simulator_and_the_validator_find_the_same_peak(plan: Plan) -> None:
    assert simulate(plan).peak_nbytes == walk(plan).peak_nbytes


@claim
def the_simulator_and_the_validator_fill_the_slower_tiers_alike(plan: Plan) -> None:
    timeline = simulate(plan)
    simulated = {tier: int(timeline.total(tier).max()) for tier in ("host", "disk")}
    assert simulated == {tier: walk(plan).tier_peaks.get(tier, (0, 0))[0] for tier in ("host", "disk")}


@claim
def no_tier_ever_holds_negative_bytes(plan: Plan) -> None:
    assert all((nbytes >= 0).all() for nbytes in simulate(plan).nbytes.values())


@claim
def after_the_last_instruction_only_what_lasts_and_what_it_touched_is_there(plan: Plan) -> None:
    graph, held = plan.problem.graph, holdings(plan, schedule(plan))
    last = len(schedule(plan)) - 1
    staying = set(held.storages[(held.last == last) & (held.first < last) & (held.storages >= 0)].tolist())
    lasting = {graph.values[value].storage for value in (*graph.inputs, *graph.held)}
    touched = {k for k in range(len(graph.storages)) if any(p == last for p, _ in events(plan, schedule(plan), k))}
    encoded = {plan.decisions[i.decision].storage for i in schedule(plan)[-1:] if i.decision >= 0}
    as_encodings = {d.storage for d in plan.decisions if reads_encoded(plan, schedule(plan)[-1], d.storage)}
    assert staying <= lasting | touched | encoded | as_encodings


@claim
def slower_tiers_are_empty_when_the_step_begins_and_hold_nothing_they_were_not_sent(plan: Plan) -> None:
    timeline, program = simulate(plan), schedule(plan)
    sent = next((p for p, i in enumerate(program) if i.kind is Kind.SEND), len(program))
    assert all(timeline.total(tier)[:sent].sum() == 0 for tier in ("host", "disk"))


@claim
def json_gives_back_an_equal_plan(plan: Plan) -> None:
    assert from_json(to_json(plan)) == plan


@claim
def every_op_runs_once_and_in_order(plan: Plan) -> None:
    ran = [i.op for i in schedule(plan) if i.kind is Kind.RUN]
    assert ran == list(range(len(plan.problem.graph)))


@claim
def compute_never_does_two_things_at_once(plan: Plan) -> None:
    for lane in simulate(plan).lanes.values():
        assert (lane.begin_s[1:] >= lane.end_s[:-1]).all()


@claim
def slower_links_change_the_time_and_never_the_bytes(plan: Plan) -> None:
    """Memory is decided by position: the same plan on a far slower bus holds the same bytes, only later."""
    hardware = plan.problem.hardware
    slow = replace(
        hardware, links=tuple(replace(x, bandwidth_bytes_per_s=x.bandwidth_bytes_per_s / 1000) for x in hardware.links)
    )
    slowed = simulate(Plan(replace(plan.problem, hardware=slow), plan.strategy, plan.decisions))
    assert slowed.total().tolist() == simulate(plan).total().tolist()
    assert slowed.duration_s >= simulate(plan).duration_s


@claim
def taking_back_an_offload_between_two_uses_never_lowers_the_peak(plan: Plan) -> None:
    """Not so for the other actions: a replay keeps its sources alive longer, an encoder holds both forms at once."""
    touches = list(plan.problem.graph.touches())
    for position, decision in enumerate(plan.decisions):
        if not isinstance(decision.action, Offload) or not any(
            moment >= decision.action.back and storage == decision.storage for moment, storage in touches
        ):
            continue
        without = Plan(plan.problem, plan.strategy, plan.decisions[:position] + plan.decisions[position + 1 :])
        assert simulate(without).peak_nbytes >= simulate(plan).peak_nbytes


@claim
def a_budget_of_the_peak_holds_and_one_byte_less_does_not(plan: Plan) -> None:
    peak = simulate(plan).peak_nbytes
    if peak == 0:
        return
    assert violations(Plan(replace(plan.problem, budget_nbytes=peak), plan.strategy, plan.decisions)) == []
    short = violations(Plan(replace(plan.problem, budget_nbytes=peak - 1), plan.strategy, plan.decisions))
    assert len(short) == 1
    assert "1 bytes too many" in short[0]


@given(plan=plans())
@examples(80)
def test_every_claim_is_true_of_a_random_plan(plan: Plan) -> None:
    for holds in CLAIMS:
        note(f"checked now: {holds.__name__.replace('_', ' ')}")
        holds(plan)


@given(problem=problems())
@examples(80)
def test_without_decisions_the_bytes_follow_from_the_lifetimes(problem: Problem) -> None:
    graph = problem.graph
    lives = zip(graph.storages, graph.lifetimes, strict=True)
    alive = [(storage.nbytes, life) for storage, life in lives if life is not None]
    expected = [
        sum(nbytes for nbytes, life in alive if moment in life) + problem.costs[moment].workspace_nbytes
        for moment in range(len(graph))
    ]
    assert simulate(Plan(problem, "keep-all")).total().tolist() == expected
