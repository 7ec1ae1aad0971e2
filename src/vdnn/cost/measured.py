"""Time and workspace of every op, by running it where the step computes.

Enters: one `OpCall` per op, or None for a view. Leaves: a `CostTable`. The one idea: networks repeat themselves, so
equal calls (same op, shapes, strides, dtypes, scalars) share a key, each key is measured once and then remembered by
the `CostCache`. Time and memory are measured in separate runs: the recording would count as time for small ops. Ops are
timed in groups (`timed_groups.py`), by a stopwatch that knows when another process took a core (`stopwatch.py`). What
was measured in a busy moment is good for now, and measured again in a quiet one.

An op may have variants (`OpVariant`), other ways of computing it. Each is timed in turns with the op itself, and held
to the op's own bits on the inputs it is measured with.

A view moves no bytes but is a call like any other; what that takes is measured too, once.

Measuring leaves no trace: the random generator is put back, and no gradient graph is built.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from vdnn.cost.cost_cache import CostCache
from vdnn.cost.op_memory import workspace_nbytes
from vdnn.cost.stopwatch import Run, lap, num_quiet, typical_s
from vdnn.cost.table import CostTable, OpCost
from vdnn.cost.timed_groups import DISTURBED, MEASURED, laps_in_turn, naming, timed
from vdnn.hardware.busy_cores import QUIET_SHARE, others_share, share_now
from vdnn.hardware.where import CPU, own_generators
from vdnn.torch_private import tree_leaves

log = logging.getLogger(__name__)

REPEATS = 9  # an odd number has a middle; more did not steady the medians on a shared 2-core machine
REPEATS_OF_VARIANTS = 5  # in turns with the op itself
STRETCH_S = 1.0  # over so long it is asked what other processes took
PATIENCE_S = 5.0  # who measures for longer says so, unless somebody shows the progress
WARM_S = 0.25  # from here on the first run of a variant counts: there are several of each op
LITTLE_GAIN = 0.9  # of an op's time: the best of several variants seems faster than it is, by up to so much
WORTHWHILE_NBYTES = 1 << 20  # an op with less workspace than this has nothing to save that would show in a budget
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class OpVariant:
    """Another way of computing an op. `make` returns it and the op itself, as functions on the same inputs.

    `may_be_exact` is whether its arithmetic is the op's own; its bits are compared in any case.
    """

    name: str
    make: Callable[[], tuple[Run, Run]]
    may_be_exact: bool = True


@dataclass(frozen=True, slots=True)
class OpCall:
    """`make` allocates inputs and returns a function that runs the op once on them and returns its outputs;
    `make_quickly` does so with inputs that are all alike.

    Calls with the same key cost the same: it names the op, shapes, strides, dtypes and scalars. Calls of one family
    are of the same op in the same layout. `nbytes` is what inputs and outputs take, the latter `out_nbytes` of it.
    """

    key: str
    make: Callable[[], Run]
    variants: tuple[OpVariant, ...] = ()
    make_quickly: Callable[[], Run] | None = None
    make_variants: Callable[[Iterable[str]], tuple[Run, dict[str, Run]]] | None = None
    """The op itself and some of its variants by name, all on the same inputs."""

    family: str = ""
    nbytes: int = 0
    out_nbytes: int = 0
    is_elementwise: bool = False
    """Whether it is known to need no workspace."""


Progress = Callable[[int, int], None]


def _view() -> Run:
    base = torch.empty(4, 4)
    return lambda: torch.ops.aten.view.default(base, [16])


VIEW = OpCall("a view", _view)


def measure(
    calls: Sequence[OpCall | None],
    cache: CostCache,
    *,
    repeats: int = REPEATS,
    progress: Progress | None = None,
    where: torch.device = CPU,
) -> CostTable:
    """One cost per call. `progress(done, total)` counts what had to be measured."""
    distinct = {call.key: call for call in (call or VIEW for call in calls)}
    costs = _known_or_measured(
        distinct, lambda keys: _timed_calls(distinct, keys, repeats, where), cache, progress, where
    )
    return CostTable(tuple(costs[(call or VIEW).key] for call in calls))


def _timed_calls(
    calls: Mapping[str, OpCall], keys: Iterable[str], repeats: int, where: torch.device
) -> Iterator[tuple[str, OpCost]]:
    """Ops in groups; a view by itself, because steps are full of them and its code never goes cold."""
    makers = {key: calls[key].make for key in keys}
    if VIEW.key in makers:
        yield from timed({VIEW.key: makers.pop(VIEW.key)}, repeats)
    yield from timed(makers, repeats, where)


def measure_variants(
    calls: Sequence[OpCall | None],
    costs: CostTable,
    cache: CostCache,
    *,
    exact: bool = True,
    progress: Progress | None = None,
) -> dict[int, tuple[OpCost, ...]]:
    """For each op with a choice: the ways of computing it, itself among them, that are faster or smaller than all
    others; fastest first. With `exact`, only those that keep every bit."""
    wanted: dict[str, tuple[OpVariant, OpCost]] = {}
    keys: dict[int, list[str]] = {}
    for moment, call in enumerate(calls):
        if call is not None and costs[moment].workspace_nbytes >= WORTHWHILE_NBYTES:
            offered = {
                f"{call.key} as {v.name}": (v, costs[moment]) for v in call.variants if v.may_be_exact or not exact
            }
            keys[moment] = list(offered)
            wanted |= offered
    found = _known_or_measured(
        wanted, lambda keys: ((key, measure_variant(key, *wanted[key])) for key in keys), cache, progress
    )
    named = {key: replace(cost, variant=wanted[key][0].name) for key, cost in found.items()}
    choices = {
        moment: undominated([costs[moment], *(named[key] for key in of_moment if named[key].exact or not exact)])
        for moment, of_moment in keys.items()
    }
    return {moment: choice for moment, choice in choices.items() if len(choice) > 1 or choice[0].variant}


def undominated(costs: Iterable[OpCost]) -> tuple[OpCost, ...]:
    """Without those that are neither faster nor smaller than another; fastest first."""
    kept: list[OpCost] = []
    for cost in sorted(costs, key=lambda cost: (cost.seconds, cost.workspace_nbytes, not cost.exact)):
        if not kept or cost.workspace_nbytes < kept[-1].workspace_nbytes:
            kept.append(cost)
    return tuple(kept)


def _known_or_measured(
    keys: Iterable[str],
    measured: Callable[[Sequence[str]], Iterator[tuple[str, OpCost]]],
    cache: CostCache,
    progress: Progress | None,
    where: torch.device = CPU,
) -> dict[str, OpCost]:
    costs = cache.lookup(keys)
    unsure = {key for key, cost in costs.items() if cost.source != MEASURED}
    unsure = (
        unsure if unsure and share_now() <= QUIET_SHARE else {key for key in unsure if costs[key].source != DISTURBED}
    )
    unknown = [key for key in keys if key not in costs or key in unsure]
    begin, report = perf_counter(), progress or _announcement()
    with torch.no_grad(), own_generators(where):
        for done, (key, cost) in enumerate(_in_stretches(measured(unknown)), start=1):
            costs[key] = cost
            cache.store(key, cost)
            report(done, len(unknown))
    log.info("measured %d distinct ops in %.1f s", len(unknown), perf_counter() - begin)
    return costs


def _announcement() -> Progress:
    """Tells once, of what takes long, how long it will take."""
    begin, is_told = perf_counter(), False

    def announce(done: int, total: int) -> None:
        nonlocal is_told
        elapsed_s = perf_counter() - begin
        if not is_told and elapsed_s > PATIENCE_S:
            is_told = True
            left_s = elapsed_s / done * (total - done)
            words = "vdnn measures what %d ops take, to plan with: about %.0f s more. They are remembered."
            log.warning(words, total, left_s)

    return announce


def _in_stretches(measured: Iterator[tuple[str, OpCost]]) -> Iterator[tuple[str, OpCost]]:
    """The same costs, held back for a second or so: what was measured while others took much of the cores says so.

    A neighbour slows ops even where it takes no core from them: it shares memory and caches.
    """
    held: list[tuple[str, OpCost]] = []
    share, begin = others_share(), perf_counter()
    for found in measured:
        held.append(found)
        if perf_counter() - begin >= STRETCH_S:
            yield from _marked(held, share())
            held, share, begin = [], others_share(), perf_counter()
    yield from _marked(held, share())


def _marked(found: Iterable[tuple[str, OpCost]], share: float) -> Iterator[tuple[str, OpCost]]:
    for key, cost in found:
        yield key, replace(cost, source=DISTURBED) if share > QUIET_SHARE else cost


def measure_variant(key: str, variant: OpVariant, given: OpCost) -> OpCost:
    """Of one variant: the op's own time, times what the variant takes beside the op. What is larger and slower
    than the op at its first run is not looked at further."""
    with naming(key):
        run, op = variant.make()
        results: list[object] = []
        laps, laps_of_op = [lap(lambda: results.append(run()))], [lap(lambda: results.append(op()))]
        exact = variant.may_be_exact and same_bits(*results)
        results.clear()
        workspace = workspace_nbytes(run)
        is_worse = workspace >= given.workspace_nbytes and laps[0].seconds > laps_of_op[0].seconds
        if not is_worse and laps[0].seconds < WARM_S:
            laps, laps_of_op = laps_in_turn(run, op, REPEATS_OF_VARIANTS)
        ratio = typical_s(laps) / typical_s(laps_of_op)
        ratio = 1.0 if LITTLE_GAIN <= ratio < 1.0 else ratio
        source = MEASURED if num_quiet(laps) and num_quiet(laps_of_op) else DISTURBED
        return OpCost(given.seconds * ratio, workspace, source, exact=exact)


def same_bits(one: object, other: object) -> bool:
    """Whether two results have the same layouts and the same bits."""
    pairs = list(zip(tree_leaves(one), tree_leaves(other), strict=True))
    tensors = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)]
    holes = [(a, b) for a, b in pairs if a is None and b is None]
    same = all(a.stride() == b.stride() and torch.equal(_bits(a), _bits(b)) for a, b in tensors)
    return same and len(tensors) + len(holes) == len(pairs)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_INTEGERS[tensor.element_size()])
