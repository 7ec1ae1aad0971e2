"""`vdnn explain`: a plan as an annotated program, from a model's name or from a file that `--save` wrote."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer
from rich.console import RenderableType
from rich.text import Text

from vdnn.cli.answer import Answer
from vdnn.cli.arguments import IMAGES, PLANNING, ImageOptions, positive, takes
from vdnn.cli.planning import Solved, ask, measuring, solve
from vdnn.errors import InvalidInput
from vdnn.options import Options, PlanOptions
from vdnn.plan.files.saved import opened
from vdnn.plan.judge.validate import check
from vdnn.plan.plan import Plan
from vdnn.plan.views.explained import ExplainedInstruction, eventful, explained
from vdnn.units import format_nbytes

BESIDE = 44  # columns of what happens before a reason that stands beside it

ModelOrPlan = Annotated[
    str,
    typer.Argument(metavar="MODEL|FILE", help="A name from `vdnn models`, package.module:factory, or a saved plan."),
]
MaybeBatch = Annotated[
    int | None,
    typer.Option("--batch", "-b", metavar="N", parser=positive, help="Samples in one training step, for a model."),
]
All = Annotated[bool, typer.Option("--all", help="Every instruction, not only those where something happens.")]


@takes(*PLANNING, *IMAGES, after="batch")
def explain(
    model: ModelOrPlan,
    images: ImageOptions,
    as_json: bool,
    batch: MaybeBatch = None,
    everything: All = False,
    **options: Unpack[PlanOptions],
) -> Answer:
    """Tell a plan as a program: what leaves, returns, is encoded or made again at which op, and why."""
    if is_plan_file(model):
        if given := _flags({"batch": batch, **options, **images}):
            raise InvalidInput(f"{model} is a saved plan, made with its own options: leave out {', '.join(given)}.")
        solved = Solved(model, check(opened(model)))
    elif batch is None:
        raise InvalidInput(f"{model!r} is the name of a model, and its plan depends on the batch: add --batch N.")
    else:
        with measuring(enabled=not as_json) as progress:
            solved = solve(ask(model, batch, images, Options(**options), progress))
    lines = explained(solved.plan)
    shown = lines if everything else tuple(eventful(lines))
    return Answer(_record(solved, shown, len(lines)), lambda width: _view(solved, shown, len(lines), width))


def is_plan_file(name: str) -> bool:
    """Models have no suffix, and factories have a colon."""
    return name.endswith(".json") or (":" not in name and Path(name).is_file())


def _flags(options: Mapping[str, Any]) -> list[str]:
    """What has been typed: whatever is not what it is by itself."""
    known = {field.name: field for field in fields(Options)}
    by_itself: dict[str, Any] = {"batch": None, "image_size": None, "channels_last": False}
    by_itself |= {name: field.default for name, field in known.items()}
    switches = {name: field.metadata["switch"] for name, field in known.items()}
    said = [name for name, value in options.items() if value != by_itself[name]]
    return [switches.get(name) or f"--{name.replace('_', '-')}" for name in said]


def _record(solved: Solved, lines: Iterable[ExplainedInstruction], num_instructions: int) -> dict[str, Any]:
    plan = solved.plan
    return {
        "schema": "vdnn.explanation",
        "version": 1,
        "model": solved.name,
        "strategy": plan.strategy,
        "form": plan.problem.form,
        "hardware": plan.problem.hardware.name,
        "budget_nbytes": plan.problem.budget_nbytes,
        "peak_nbytes": plan.peak_nbytes,
        "step_time_s": plan.step_time_s,
        "note": plan.note,
        "num_instructions": num_instructions,
        "lines": [_line_record(line) for line in lines],
    }


def _line_record(line: ExplainedInstruction) -> dict[str, Any]:
    """Version 1 of the schema calls the position of the op `step`."""
    named = asdict(line)
    return {"step": named.pop("moment"), **named}


def _view(solved: Solved, lines: tuple[ExplainedInstruction, ...], num_instructions: int, width: int) -> RenderableType:
    text = Text("\n".join(_told(solved.plan, solved.name, lines, num_instructions, width)))
    text.highlight_regex(r"(?m)^(forward|backward)$", "bold")
    text.highlight_regex(r"<-- peak.*", "bold red")
    text.highlight_regex(r"(?m)# .*$", "green")
    return text


def _told(
    plan: Plan, name: str, lines: tuple[ExplainedInstruction, ...], num_instructions: int, width: int
) -> Iterator[str]:
    """A header, then what happens, under the names of the phases."""
    for sentence in (name, *str(plan).splitlines()):
        yield from textwrap.wrap(sentence, width, initial_indent="# ", subsequent_indent="#     ")
    hidden = num_instructions - len(lines)
    yield f"# {len(lines)} of {num_instructions} instructions{'; --all shows the others' if hidden else ''}"
    yield f"{'op':>6}  {'on device':>10}  {'size':>10}  what happens"
    phase = ""
    for line in lines:
        if line.phase != phase:
            phase = line.phase
            yield phase
        yield from _rendered(line, width)


def _rendered(line: ExplainedInstruction, width: int) -> Iterator[str]:
    """The reason beside what happens where there is room for both, else under it."""
    size = format_nbytes(line.nbytes) if line.nbytes else ""
    start = f"{line.moment:>6}  {format_nbytes(line.device_nbytes):>10}  {size:>10}  "
    indent = " " * len(start)
    words = line.what + (f" [{line.module}]" if line.module else "") + ("  <-- peak" if line.is_peak else "")
    beside = f"{start}{words:<{BESIDE}}  # {line.reason}"
    if line.reason and len(beside) <= width:
        yield beside
        return
    yield from textwrap.wrap(words, width, initial_indent=start, subsequent_indent=f"{indent}  ")
    yield from textwrap.wrap(line.reason, width, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ")
