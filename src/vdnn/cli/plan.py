"""`vdnn plan`: how a training step fits into a budget, and what that costs beside keeping everything."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from vdnn.cli.answer import Answer
from vdnn.cli.arguments import IMAGES, PLANNING, BatchSize, ImageOptions, ModelName, takes
from vdnn.cli.planning import Solved, ask, measuring, oracle_of, solve
from vdnn.hardware.device import THIS_MACHINE
from vdnn.options import Options, PlanOptions
from vdnn.plan.addresses import Layout, planned_layout
from vdnn.plan.views.plan_figures import Figures, figures
from vdnn.report.memory_profile import MemoryProfile, profile_memory
from vdnn.report.text import quiet_table, residents_table, roles_table, sections, title
from vdnn.units import format_nbytes, format_seconds

Save = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the plan with its whole problem, for `vdnn train --plan`.")
]
Load = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Take the decisions of a saved plan, if it is of this model.")
]


@takes(*PLANNING, *IMAGES, after="batch")
def plan(
    model: ModelName,
    batch: BatchSize,
    images: ImageOptions,
    as_json: bool,
    save: Save = None,
    load: Load = None,
    **options: Unpack[PlanOptions],
) -> Answer:
    """Plan a training step within a budget: peak, time beside keeping everything, bytes moved, what fills the peak."""
    with measuring(enabled=not as_json) as progress:
        asked = ask(model, batch, images, Options(**options, plan=load), progress)
        solved = solve(asked)
        oracle = oracle_of(asked, solved.plan)
    if save is not None:
        solved.plan.save(save)
    profile = profile_memory(solved.plan, name=solved.name)
    own, kept = figures(solved.plan, oracle), figures(oracle, oracle)
    arena = planned_layout(solved.plan)
    record = _record(solved, own, kept, profile, arena) | {"saved_as": None if save is None else str(save)}
    return Answer(record, lambda width: _view(solved, own, kept, profile, arena, save, width))


def _record(solved: Solved, own: Figures, kept: Figures, profile: MemoryProfile, arena: Layout) -> dict[str, Any]:
    plan = solved.plan
    return {
        "schema": "vdnn.plan-summary",
        "version": 1,
        "model": solved.name,
        "hardware": plan.problem.hardware.name,
        "budget_nbytes": plan.problem.budget_nbytes,
        "lossy": plan.problem.lossy,
        "num_steps": len(plan.problem.graph),
        "form": plan.problem.form,
        "plan_s": solved.plan_s,
        "solve_s": solved.solve_s,
        "plan": asdict(own),
        "keep_all": asdict(kept),
        "arena": {"nbytes": arena.arena_nbytes, "peak_nbytes": arena.peak_nbytes, "waste": arena.waste},
        "bound_s": plan.bound_s,
        "note": plan.note,
        "peak_step": profile.predicted.peak_step,
        "peak_nbytes_by_role": dict(profile.predicted.nbytes_by_role),
        "residents": [asdict(resident) for resident in profile.residents],
        "versions": dict(profile.versions),
    }


def _view(
    solved: Solved, own: Figures, kept: Figures, profile: MemoryProfile, arena: Layout, save: Path | None, width: int
) -> RenderableType:
    plan = solved.plan
    heading = title(f"{solved.name} on {profile.hardware}, strategy {plan.strategy}")
    follows = f": `vdnn train ... --plan {save}` follows it" if plan.problem.hardware.name == THIS_MACHINE else ""
    saved = [Text(f"Saved in {save}{follows}.")] if save is not None else []
    return sections(
        Group(heading, headline(plan.problem.budget_nbytes, own, kept)),
        comparison(own, kept),
        Group(*(Text(sentence) for sentence in (*_sentences(solved, own), _arena_words(arena)))),
        roles_table(profile.predicted),
        residents_table(profile, width),
        *saved,
    )


def headline(budget_nbytes: int | None, own: Figures, kept: Figures) -> Text:
    """The one sentence to take away."""
    within = "" if budget_nbytes is None else f" within {format_nbytes(budget_nbytes)}"
    share = own.peak_nbytes / max(kept.peak_nbytes, 1)
    peaks = f"One training step peaks at {format_nbytes(own.peak_nbytes)}{within}, {share:.0%} of keeping everything"
    return Text(f"{peaks}, and takes {format_seconds(own.step_time_s)}, {loss_words(own.loss)}.", style="bold")


def loss_words(loss: float) -> str:
    """A loss as a person says it; less than a twentieth of a per cent is nothing."""
    if abs(loss) < 5e-4:
        return "no longer than that"
    return f"{abs(loss):.1%} {'longer' if loss > 0 else 'less'} than that"


def comparison(own: Figures, kept: Figures) -> RenderableType:
    rows = quiet_table("", ">this plan", ">keep-all, the oracle")
    rows.add_row("peak memory", format_nbytes(own.peak_nbytes), format_nbytes(kept.peak_nbytes))
    rows.add_row("average memory", format_nbytes(own.average_nbytes), format_nbytes(kept.average_nbytes))
    rows.add_row("step time", format_seconds(own.step_time_s), format_seconds(kept.step_time_s))
    rows.add_row("of it waiting", format_seconds(own.stall_s), format_seconds(kept.stall_s))
    rows.add_row("loss of time", f"{own.loss:.1%}", "")
    rows.add_row("moved, out and back", format_nbytes(own.moved_nbytes) if own.moved_nbytes else "nothing", "nothing")
    again = f"{own.num_replays} ops, {own.recomputed_flops / 1e9:.1f} GFLOP" if own.num_replays else "nothing"
    rows.add_row("computed again", again, "nothing")
    return rows


def _sentences(solved: Solved, own: Figures) -> list[str]:
    plan = solved.plan
    actions = ", ".join(f"{count} {kind}" for kind, count in own.actions.items())
    took = f"Planned in {format_seconds(solved.plan_s)}, {format_seconds(solved.solve_s)} of it solving"
    decided = f"Decisions: {actions or 'none, everything is kept'}. {took}"
    gap = "" if plan.gap is None else f"; at most {plan.gap:.1%} above the fastest plan there can be"
    other_bits = "" if plan.problem.is_exact else " Sums are added in another order: gradients differ in the last bits."
    forms = [f"The step is run in another form: {plan.problem.form}.{other_bits}"] if plan.problem.form else []
    forms += [f"For {len(plan.variants)} ops a variant was chosen by the workspace there is."] if plan.variants else []
    return [f"{decided}{gap}.", *forms, *([plan.note] if plan.note else [])]


def _arena_words(arena: Layout) -> str:
    """What the step's memory takes as one piece; parameters, inputs and small blocks are outside of it."""
    share = f"{arena.waste:.3f} times what lies in it at most"
    return f"What comes and goes gets its addresses in one arena of {format_nbytes(arena.arena_nbytes)}, {share}."
