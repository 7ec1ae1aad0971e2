"""What ops need, seen by running each distinct one once: enough for a first plan, in about the time of a few steps.

Enters: one `OpCall` per op, and the room in which they may be run. Leaves: a `CostTable` with true workspaces and
first times, and what the largest workspaces would be in other ways. The one idea: **a workspace must be true from the
first step on, a time need not be**. A workspace shows itself in a single run; times are corrected by the training steps
themselves (`compile/replanning.py`). So there are no groups and no repeats as in `measured.py`, inputs are of one
number, and one op's tensors exist at a time.

Note: [Trials stay inside the budget]
An op is run only if its inputs, its outputs and the workspace that is expected of it fit into the room. Small ops come
first, and show how much workspace ops of their family take for each byte that they read and write; of a family that
nobody has seen as much is expected as it reads and writes, unless it is elementwise, which needs none. What does not
fit is priced by the roofline, with the workspace that is expected.

Note: [A second shape]
A model that comes with other shapes has the same ops in the same order. Each op then has a counterpart in the trials of
the earlier shape: its seconds are the counterpart's, scaled as the roofline scales. Of a family that never took a
workspace nothing is run. Other ops run once, because a workspace follows no rule (libraries choose by shape), and so do
the variants that were of use before, because bits follow none either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from vdnn.cost.cost_cache import CostCache
from vdnn.cost.measured import VIEW, WORTHWHILE_NBYTES, OpCall, OpVariant, Progress, same_bits, undominated
from vdnn.cost.op_memory import workspace_nbytes
from vdnn.cost.stopwatch import Run
from vdnn.cost.table import CostTable, OpCost
from vdnn.cost.timed_groups import naming
from vdnn.hardware.clocks import Moment, clock_of
from vdnn.hardware.where import CPU, own_generators

log = logging.getLogger(__name__)

TRIED, OUTLINE, SCALED = "tried", "expected", "tried at another shape"
"""The sources of a cost that a single run has shown, of one that could not be run, and of one whose seconds are scaled
from those of an earlier shape."""

LONG_RUN_S = 0.02  # a run of so long is not repeated: what a library prepares at its first call hardly shows in it
LITTLE_GAIN = 0.75  # of an op's time: a single run of a variant seems faster than it is, by up to so much
EXPECTED_WORKSPACE = (
    1.0  # of what an op reads and writes: a convolution that reorders all of it; nothing seen took more
)
_ALL: frozenset[str] = frozenset({"all of them"})


@dataclass(frozen=True, slots=True)
class Seen:
    """One run: its seconds and its workspace."""

    seconds: float
    workspace_nbytes: int


@dataclass(frozen=True, slots=True)
class Counterpart:
    """What an op at another shape says of this one: seconds, scaled, and the ways of computing it that are of use."""

    seconds: float
    variants: frozenset[str]


class Trials:
    """What is tried of one captured step. `room_nbytes` bounds what a trial may allocate; None: nothing does.
    `outline` prices the ops that may not be run. Others run at `where`. `like`: the trials of the same step at another
    shape."""

    def __init__(
        self,
        calls: Sequence[OpCall | None],
        outline: CostTable,
        cache: CostCache,
        *,
        room_nbytes: int | None = None,
        exact: bool = True,
        progress: Progress | None = None,
        like: Trials | None = None,
        where: torch.device = CPU,
    ) -> None:
        self.where, self._clock = where, clock_of(where)
        self._calls, self._outline, self._cache = [call or VIEW for call in calls], outline, cache
        self.room_nbytes, self._exact, self._progress = room_nbytes, exact, progress
        self._ratios: dict[str, float] = {} if like is None else dict(like._ratios)
        self._counterparts = {} if like is None else self._counterparts_in(like)
        self.factors: dict[str, float] = {}
        """By key: what training steps took over what is believed here. For trials of other shapes."""

        self.is_exhausted = False
        self._costs = self._known_or_tried()
        self._of_variants: dict[str, OpCost] = cache.lookup(self._wanted())

    @property
    def costs(self) -> CostTable:
        return CostTable(tuple(self._costs[call.key] for call in self._calls))

    @property
    def keys(self) -> tuple[str, ...]:
        """Of every op, by moment: under these its cost is remembered."""
        return tuple(call.key for call in self._calls)

    @property
    def has_counterparts(self) -> bool:
        """Whether most is known from another shape. Note: [A second shape]"""
        return bool(self._counterparts)

    def is_complete(self) -> bool:
        """Whether there is nothing left to try in this room."""
        return not self._untried()

    def variants(self) -> dict[int, tuple[OpCost, ...]]:
        """For each op with a choice: the ways of computing it, itself among them, that are faster or smaller than all
        others; fastest first. Of those that were tried so far."""
        choices = {}
        for moment, call in enumerate(self._calls):
            found = [
                replace(self._of_variants[key], variant=variant.name)
                for key, variant in self._offered(call)
                if key in self._of_variants and self._is_worthwhile(call)
            ]
            usable = [cost for cost in found if cost.exact or not self._exact]
            choice = undominated([self._costs[call.key], *usable])
            if len(choice) > 1 or choice[0].variant:
                choices[moment] = choice
        return choices

    def try_rest(self, room_nbytes: int | None) -> None:
        """All that is left, in as much room as this: for a step that does not fit as far as it is known."""
        self.is_exhausted, self.room_nbytes = True, room_nbytes
        self._counterparts = {key: replace(c, variants=_ALL) for key, c in self._counterparts.items()}
        self._costs = self._known_or_tried()
        self.try_variants()

    def try_variants(self, seconds: float | None = None) -> None:
        """Other ways of computing ops, those with the largest workspaces first, for so long at most."""
        begin = perf_counter()
        calls = self._untried()
        with torch.no_grad(), own_generators(self.where):
            for done, call in enumerate(calls, start=1):
                if seconds is not None and perf_counter() - begin >= seconds:
                    break
                found = self._tried_variants(call)
                self._cache.store_all(found)
                self._of_variants |= found
                self._tell(done, len(calls))
        left = self._untried()
        log.info(
            "tried variants of %d ops in %.1f s, %d left", len(calls) - len(left), perf_counter() - begin, len(left)
        )

    def _known_or_tried(self) -> dict[str, OpCost]:
        distinct = {call.key: call for call in self._calls}
        costs = self._cache.lookup(distinct)
        for key, cost in costs.items():
            self._learn(distinct[key], cost.workspace_nbytes)
        unknown = sorted((call for key, call in distinct.items() if key not in costs), key=lambda call: call.nbytes)
        moment_of = {call.key: moment for moment, call in enumerate(self._calls)}
        begin, found = perf_counter(), {}
        with torch.no_grad(), own_generators(self.where):
            for done, call in enumerate(unknown, start=1):
                alike = self._counterparts.get(call.key)
                if alike is not None and self._ratios.get(call.family) == 0:
                    costs[call.key] = OpCost(alike.seconds, 0, SCALED)
                elif self._fits(call) and (seen := self._tried_if_possible(call, alike)) is not None:
                    found[call.key] = seen
                    self._learn(call, seen.workspace_nbytes)
                else:
                    outline = self._outline[moment_of[call.key]]
                    costs[call.key] = OpCost(outline.seconds, self._expected(call), OUTLINE)
                self._tell(done, len(unknown))
        self._cache.store_all(found)
        log.info("tried %d of %d distinct ops in %.1f s", len(found), len(distinct), perf_counter() - begin)
        return costs | found

    def _counterparts_in(self, like: Trials) -> dict[str, Counterpart]:
        """By key. Nothing where the other step is another program."""
        if [call.family for call in self._calls] != [call.family for call in like._calls]:
            return {}
        useful = like.variants()
        return {
            call.key: Counterpart(
                like._seen_s(moment) * self._outline[moment].seconds / max(like._outline[moment].seconds, 1e-12),
                frozenset(cost.variant for cost in useful.get(moment, ())),
            )
            for moment, call in enumerate(self._calls)
            if call is not VIEW
        }

    def _seen_s(self, moment: int) -> float:
        """Of an op, as far as is known by now."""
        key = self._calls[moment].key
        return self._costs[key].seconds * self.factors.get(key, 1.0)

    def _offered(self, call: OpCall) -> list[tuple[str, OpVariant]]:
        """As `measured.py` names them. Of a second shape, those that were of use at the first."""
        alike = self._counterparts.get(call.key)
        useful = _ALL if alike is None else alike.variants
        offered = [v for v in call.variants if (v.may_be_exact or not self._exact)]
        return [(f"{call.key} as {v.name}", v) for v in offered if useful is _ALL or v.name in useful]

    def _fits(self, call: OpCall, extra_nbytes: int = 0) -> bool:
        """Note: [Trials stay inside the budget]"""
        return self.room_nbytes is None or call.nbytes + self._expected(call) + extra_nbytes <= self.room_nbytes

    def _expected(self, call: OpCall) -> int:
        unseen = 0.0 if call.is_elementwise else EXPECTED_WORKSPACE
        return int(call.nbytes * self._ratios.get(call.family, unseen))

    def _learn(self, call: OpCall, workspace_nbytes: int) -> None:
        if call.nbytes:
            self._ratios[call.family] = max(self._ratios.get(call.family, 0.0), workspace_nbytes / call.nbytes)

    def _is_worthwhile(self, call: OpCall) -> bool:
        return self._costs[call.key].workspace_nbytes >= WORTHWHILE_NBYTES

    def _wanted(self) -> list[str]:
        return [key for call in self._calls if self._is_worthwhile(call) for key, _ in self._offered(call)]

    def _untried(self) -> list[OpCall]:
        """Calls with variants that nobody has tried and that can be, those with the largest workspaces first."""
        distinct = {call.key: call for call in self._calls if self._is_worthwhile(call)}
        left = [
            call
            for call in distinct.values()
            if self._fits(call, call.out_nbytes) and any(key not in self._of_variants for key, _ in self._offered(call))
        ]
        return sorted(left, key=lambda call: -self._costs[call.key].workspace_nbytes)

    def _tried_variants(self, call: OpCall) -> dict[str, OpCost]:
        """Held to the bits of the op itself. What is larger than the op and slower is of no use to anybody."""
        assert call.make_variants is not None, f"{call.key} has no variants"
        names = {key: variant for key, variant in self._offered(call) if key not in self._of_variants}
        with naming(call.key):
            op, runs = call.make_variants([variant.name for variant in names.values()])
            results: list[object] = []
            op_s = self._seen(op, results.append).seconds
            return {key: self._variant_cost(call, v, runs[v.name], results[0], op_s) for key, v in names.items()}

    def _variant_cost(self, call: OpCall, variant: OpVariant, run: Run, of_op: object, op_s: float) -> OpCost:
        results: list[object] = []
        first = self._seen(run, results.append)
        exact = variant.may_be_exact and same_bits(results.pop(), of_op)
        seen = first if first.seconds >= LONG_RUN_S else self._seen(run)
        ratio = min(first.seconds, seen.seconds) / op_s
        ratio = 1.0 if LITTLE_GAIN <= ratio < 1.0 else ratio
        return OpCost(self._costs[call.key].seconds * ratio, seen.workspace_nbytes, TRIED, exact=exact)

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)

    def _tried_if_possible(self, call: OpCall, alike: Counterpart | None) -> OpCost | None:
        """None where an accelerator has not what the op takes: as much is expected of it as there would have been. And
        where the op refuses made-up inputs (a matrix that has to be positive definite, offsets that have to rise)."""
        try:
            return self._tried(call, alike)
        except torch.OutOfMemoryError:
            self._learn(call, max(self._expected(call), (self.room_nbytes or 0) - call.nbytes))
        except torch.AcceleratorError:
            raise
        except RuntimeError as reason:
            log.info("%s cannot be tried, and costs what is expected: %s", call.key, reason)
        return None

    def _tried(self, call: OpCall, alike: Counterpart | None = None) -> OpCost:
        """`alike` knows its seconds, so that one run is enough."""
        with naming(call.key):
            run = (call.make_quickly or call.make)()
            first = self._seen(run)
            if alike is not None:
                return OpCost(alike.seconds, first.workspace_nbytes, SCALED)
            # The first call may also have made what the library keeps for good: the second is the one to believe.
            seen = first if first.seconds >= LONG_RUN_S else self._seen(run)
            return OpCost(min(first.seconds, seen.seconds), seen.workspace_nbytes, TRIED)

    def _seen(self, run: Run, keep: Callable[[object], None] | None = None) -> Seen:
        """One run, and what it showed; `keep` is given what it returned."""
        moments: list[Moment] = []

        def timed() -> object:
            moments.append(self._clock.now())
            result = run()
            moments.append(self._clock.now())
            if keep is not None:
                keep(result)
            return result

        workspace = workspace_nbytes(timed, self.where)
        return Seen(self._clock.seconds(*moments), workspace)
