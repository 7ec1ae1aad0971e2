"""Make a traced joint graph say what eager PyTorch does, in two clean phases.

Enters: the functional joint graph of AOTAutograd. Leaves: another graph, with every forward node before every backward
node, nothing recorded for its own sake, and the in-place writes of the eager program back in place. What entered stays
as it was traced.

The one idea: tracing makes programs functional, and a functional program pays for what eager gets free: a copy of every
BatchNorm statistic, `detach` calls, a second buffer for every in-place ReLU. Each pass removes one such cost and
changes no bit of any result. All passes are linear in the number of nodes.

Each pass logs what it did (logger `vdnn.passes`): at level INFO how many nodes it left and how long it took, at level
DEBUG also the bytes that the graph holds at once. VDNN_SKIP_PASSES leaves passes out by their names, to find the one
that is to blame; the few that plans or bits rest on say so and stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import perf_counter

from torch import fx

from vdnn.capture.copied_graph import copy_of
from vdnn.capture.ops.fused_recurrent import make_workspaces
from vdnn.capture.tidy.eager_writes import (
    draw_random_numbers_in_place,
    update_statistics_in_place,
    write_into_strided_parts,
)
from vdnn.capture.tidy.in_place import write_into_dead_inputs
from vdnn.capture.tidy.loss_backward import write_over_log_probabilities
from vdnn.capture.tidy.peak import keep_all_peak_nbytes
from vdnn.capture.tidy.shown_parts import copy_what_is_shown
from vdnn.capture.tidy.two_phases import (
    keep_getitems_with_their_op,
    protect_mutated_inputs,
    separate_phases,
    take_views_in_backward,
)
from vdnn.capture.tidy.unread import forget_unread_arguments, remove_detaches
from vdnn.environment import SKIP_PASSES, skipped_passes
from vdnn.errors import InvalidInput
from vdnn.units import format_nbytes

log = logging.getLogger("vdnn.passes")


@dataclass(frozen=True, slots=True)
class Pass:
    """One change of a captured graph, made in place. `needed` says why it cannot be left out; empty: it can."""

    name: str
    change: Callable[[fx.Graph], None]
    needed: str = ""


PASSES = (
    Pass("detaches", remove_detaches),
    Pass("unread-arguments", forget_unread_arguments),
    Pass("random-numbers", draw_random_numbers_in_place, "without it the generator would draw other numbers"),
    Pass("strided-parts", write_into_strided_parts, "without it a layout would not be as traced"),
    Pass("recurrent", make_workspaces, "without it no fused recurrent layer would leave its backward a workspace"),
    Pass("statistics", update_statistics_in_place),
    Pass("phases", separate_phases, "a step is cut between its forward and its backward"),
    Pass("getitems", keep_getitems_with_their_op),
    Pass("mutated-inputs", protect_mutated_inputs, "without it backward would read inputs that forward has changed"),
    Pass("views", take_views_in_backward, "a plan moves whole storages, and no view of one may stay behind"),
    Pass("loss-backward", write_over_log_probabilities),
    Pass("in-place", write_into_dead_inputs),
    Pass("copies", copy_what_is_shown, "a plan must know where in its storage a copy begins"),
)
"""In the one order in which each finds what the one before it left."""


def tidy(joint: fx.GraphModule, *, skip: Collection[str] | None = None) -> fx.GraphModule:
    """A copy of the joint graph after all passes but those named in `skip`; None: those that VDNN_SKIP_PASSES names.

    Nodes keep their names. The copy has no code: what runs is cut out of its graph.
    """
    tidied = copy_of(joint)
    for each in chosen_passes(skipped_passes() if skip is None else skip):
        _run(each, tidied.graph)
    return tidied


def chosen_passes(skip: Collection[str]) -> tuple[Pass, ...]:
    """All passes but those named; refused for a name that no pass has, and for passes that are needed."""
    known = {each.name: each for each in PASSES}
    unknown = sorted(set(skip) - set(known))
    if unknown:
        raise InvalidInput(f"{SKIP_PASSES} names no pass by {', '.join(unknown)}. The passes: {', '.join(known)}")
    needed = [known[name] for name in skip if known[name].needed]
    if needed:
        reasons = "; ".join(f"{each.name}: {each.needed}" for each in needed)
        free = ", ".join(each.name for each in PASSES if not each.needed)
        raise InvalidInput(f"{SKIP_PASSES} leaves out what a step cannot do without ({reasons}). Others: {free}")
    return tuple(each for each in PASSES if each.name not in skip)


def _run(each: Pass, graph: fx.Graph) -> None:
    """With one line of what it changed. The peak costs about as much as a pass, so it is computed where it is read."""
    is_weighed = log.isEnabledFor(logging.DEBUG)
    num_before, peak_before = len(graph.nodes), keep_all_peak_nbytes(graph) if is_weighed else 0
    begin = perf_counter()
    each.change(graph)
    took_s = perf_counter() - begin
    peak = f" peak {_from_to(peak_before, keep_all_peak_nbytes(graph))}," if is_weighed else ""
    log.info("%s: %d -> %d nodes,%s %.2f s", each.name, num_before, len(graph.nodes), peak, took_s)


def _from_to(before_nbytes: int, after_nbytes: int) -> str:
    """`31.2 -> 27.8 GiB`, and `1.02 GiB -> 980 MiB` where the units differ."""
    before, after = format_nbytes(before_nbytes), format_nbytes(after_nbytes)
    number, _, unit = before.partition(" ")
    return f"{number if after.endswith(f' {unit}') else before} -> {after}"
