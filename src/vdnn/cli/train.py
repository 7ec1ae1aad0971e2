"""`vdnn train`: train a network through vdnn, and lay what was predicted beside what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from vdnn.cli.answer import Answer
from vdnn.cli.arguments import IMAGES, BatchSize, ImageOptions, ModelName, one_of, positive, rate, takes, whole
from vdnn.cli.failures import FAILED
from vdnn.errors import InvalidInput
from vdnn.options import RunOptions
from vdnn.plan.model.optimizer_state import OPTIMIZERS
from vdnn.plan.strategy_table import strategy_named
from vdnn.report.record import Report
from vdnn.report.text import console, report_view
from vdnn.units import format_seconds

if TYPE_CHECKING:
    from vdnn.cli.training import TrainingRun
    from vdnn.models import Workload

SHOWN_DIFFERENCES = 5  # enough to see where it begins; the JSON has them all

PLANNED = ("budget", "strategy", "lossy", "exact", "replan", "plan", "disk_budget", "spill_dir", "verify_spills")
NumSteps = Annotated[int, typer.Option(metavar="K", parser=positive, help="Training steps.")]
LearningRate = Annotated[float, typer.Option("--lr", metavar="RATE", parser=rate, help="Learning rate.")]
Seed = Annotated[int, typer.Option(metavar="S", parser=whole, help="Seed of the weights, the batch and dropout.")]
OptimizerName = Annotated[
    str,
    typer.Option(
        "--optimizer", metavar="NAME", parser=one_of(OPTIMIZERS), help=f"{', '.join(OPTIMIZERS)}; its state counts."
    ),
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="Where to train, as torch names it: cpu, cuda, cuda:1.")
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify", help="Train a copy in plain PyTorch beside it and compare losses, gradients, buffers bitwise."
    ),
]

Limited = Annotated[
    bool,
    typer.Option(
        "--limit",
        help="Train in a process that the system gives no more than the budget beside an idle interpreter, and plain"
        " PyTorch in another.",
    ),
]


@takes(*IMAGES, *PLANNED, after="seed")
def train(
    model: ModelName,
    batch: BatchSize,
    images: ImageOptions,
    as_json: bool,
    steps: NumSteps = 3,
    trained_by: OptimizerName = "sgd",
    lr: LearningRate = 0.01,
    seed: Seed = 0,
    device: Device = "cpu",
    beside_plain: Verify = False,
    limit: Limited = False,
    **options: Unpack[RunOptions],
) -> Answer:
    """Train a network through vdnn on random data; ends with predicted and measured peak and step time."""
    if limit:
        _refuse_with_limit(beside_plain, device, options)
        return _train_limited(model, batch, images, as_json, steps, trained_by, lr, seed, options)

    import torch

    from vdnn.api import report, virtualize
    from vdnn.cli.training import Trainee, make_optimizer, train_beside, train_steps, twin_of
    from vdnn.hardware.where import present
    from vdnn.models import load

    where = present(device)
    if beside_plain and not options.get("exact", True):
        raise InvalidInput("--verify compares bit for bit, and --inexact allows other bits: leave one of them out.")
    if beside_plain and (options.get("lossy") is not None or _always_rounds(options.get("strategy"))):
        raise InvalidInput(
            "--verify compares bit for bit, and a lossy run rounds on purpose: leave one of them out. The report of a"
            " lossy run says how far its gradients are from the exact ones."
        )
    options["optimizer"] = trained_by
    make: Callable[[], Workload] = partial(load, model, batch, device=where, **images)
    torch.manual_seed(seed)
    workload = make()
    with _progress(enabled=not as_json) as progress:
        task = progress.add_task(workload.name, total=steps, loss="capturing")
        options["progress"] = lambda done, total: progress.update(task, loss=f"trying ops, {done} of {total}")
        virtual = virtualize(workload.step, **options)
        trainee = Trainee(workload.model, virtual, workload.args, make_optimizer(trained_by, workload.model, lr))
        show: Callable[[float], Any] = lambda loss: progress.update(task, advance=1, loss=f"loss {loss:.4f}")  # noqa: E731
        if beside_plain:
            run = train_beside(trainee, twin_of(workload, make, trained_by, lr), steps, show)
        else:
            run = train_steps(trainee, steps, show)
    outcome = replace(report(virtual), name=f"{workload.name}, batch {batch}")
    record = _record(workload.name, batch, run, outcome, beside_plain)
    return Answer(record, lambda width: _view(run, outcome, beside_plain), FAILED if run.differences else 0)


def _refuse_with_limit(verify: bool, device: str, options: RunOptions) -> None:
    if device != "cpu":
        raise InvalidInput(
            f"--limit is a limit of a process's memory, and {device!r} has its own: leave one of them out. Other"
            " processes on the device are the limit there."
        )
    if verify:
        raise InvalidInput(
            "--verify trains a copy in the same process, and --limit gives that process bytes for one: leave one of"
            " them out. --limit compares losses with those of plain PyTorch in a process of its own."
        )
    if options.get("budget") is None:
        raise InvalidInput("--limit is a limit of the budget and an idle interpreter: name a --budget, as in 60%.")


def _train_limited(
    model: str,
    batch: int,
    images: ImageOptions,
    as_json: bool,
    steps: int,
    trained_by: str,
    lr: float,
    seed: int,
    options: RunOptions,
) -> Answer:
    from vdnn.cli.limited import train_limited
    from vdnn.cli.limited_child import LimitedJob

    options["optimizer"] = trained_by
    rounds = options.get("lossy") is not None or _always_rounds(options.get("strategy"))
    job = LimitedJob(model, batch, images, steps, trained_by, lr, seed)
    with _progress(enabled=not as_json) as progress:
        task = progress.add_task(model, total=4, loss="")
        tell: Callable[[str], Any] = lambda stage: progress.update(task, advance=1, loss=stage)  # noqa: E731
        return train_limited(job, options, is_exact=options.get("exact", True) and not rounds, tell=tell)


def _always_rounds(strategy: str | None) -> bool:
    return strategy is not None and strategy_named(strategy).always_rounds_to is not None


def _progress(enabled: bool) -> Progress:
    """On stderr, so that a pipe carries only the result, and only where somebody watches it."""
    watched = console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
        console=watched,
        disable=not (enabled and watched.is_terminal),
    )


def _record(name: str, batch: int, run: TrainingRun, report: Report, verify: bool) -> dict[str, Any]:
    verdict = {"equal": not run.differences, "num_compared": run.num_compared, "differences": list(run.differences)}
    return {
        "schema": "vdnn.train",
        "version": 1,
        "model": name,
        "batch": batch,
        "losses": list(run.losses),
        "step_times_s": list(run.step_times_s),
        "plain_step_times_s": list(run.plain_step_times_s),
        "verified": verdict if verify else None,
        "report": report.to_dict(),
    }


def _view(run: TrainingRun, report: Report, verify: bool) -> RenderableType:
    parts: list[RenderableType] = [report_view(report), "", _losses(run)]
    return Group(*parts, _verdict(run)) if verify else Group(*parts)


def _losses(run: TrainingRun) -> Text:
    first, last = run.losses[0], run.losses[-1]
    return Text(f"{len(run.losses)} training steps, loss {first:.6f} -> {last:.6f}")


def _verdict(run: TrainingRun) -> Text:
    """Equal, or the first differences by name. The first step is left out of the times: it holds the capture."""
    if run.differences:
        listed = "\n".join(f"    {difference}" for difference in run.differences[:SHOWN_DIFFERENCES])
        count = f"{len(run.differences)} of {run.num_compared} tensors differ from plain PyTorch:"
        return Text(f"DIFFERENT: {count}\n{listed}", style="bold red")
    words = f"Equal to plain PyTorch bit for bit: {run.num_compared} tensors"
    words += " (losses, gradients, parameters, buffers, random state, after every step)."
    if len(run.step_times_s) > 1:
        ours, plain = median(run.step_times_s[1:]), median(run.plain_step_times_s[1:])
        words += f" Whole step {format_seconds(ours)}, plain PyTorch {format_seconds(plain)}."
    return Text(words, style="bold green")
