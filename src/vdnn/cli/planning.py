"""What the subcommands that plan have in common: a model's name becomes a problem, a problem a plan with its price.

The network and its batch exist as meta tensors only. Solving is timed apart from capturing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vdnn.plan.plan import Plan
from vdnn.plan.problem import Problem

if TYPE_CHECKING:
    from vdnn.options import Options


@dataclass(frozen=True)
class Asked:
    """A training step as it was captured, and what is asked of its plan."""

    name: str
    problem: Problem
    options: Options


@dataclass(frozen=True)
class Solved:
    """`solve_s` is the time of the strategy and of the check, without that of the capture."""

    name: str
    plan: Plan
    solve_s: float


def capture(
    model: str,
    batch: int,
    *,
    image_size: int | None = None,
    channels_last: bool = False,
    shows_progress: bool = True,
    **asked: Any,
) -> Asked:
    """The step of a named network; `asked` are the fields of `Options`."""
    from vdnn.api import problem_of
    from vdnn.models import load
    from vdnn.options import Options

    with measuring(enabled=shows_progress) as progress:
        options = Options(**asked, progress=progress).on_known_hardware()
        workload = load(model, batch, device="meta", image_size=image_size, channels_last=channels_last)
        problem = problem_of(workload.step, workload.args, {}, options)
    return Asked(f"{workload.name}, batch {batch}", problem, options)


def decide(asked: Asked) -> Solved:
    """The plan that the options ask for."""
    from vdnn.compiler import decide

    begin = perf_counter()
    plan = decide(asked.problem, asked.options)
    return Solved(asked.name, plan, perf_counter() - begin)


@contextmanager
def measuring(enabled: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for ops that are measured, which can take minutes the first time; on stderr, where somebody watches."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("measuring ops"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (enabled and console.is_terminal),
    )
    with bar:
        task = bar.add_task("", total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
