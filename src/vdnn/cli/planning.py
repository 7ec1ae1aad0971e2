"""What the subcommands that plan have in common: a model's name becomes a problem, a problem a plan with its price.

The network and its batch exist as meta tensors only. Planning is timed apart from capturing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vdnn.cli.arguments import ImageOptions
from vdnn.options import Options
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.views.plan_figures import keep_all
from vdnn.report.text import console

if TYPE_CHECKING:
    from vdnn.compile.traced_step import TracedStep
    from vdnn.models import Workload


@dataclass(frozen=True)
class Asked:
    """A training step of meta tensors, and what is asked of its plan."""

    workload: Workload
    batch: int
    options: Options

    @property
    def name(self) -> str:
        return f"{self.workload.name}, batch {self.batch}"

    @contextmanager
    def captured(self) -> Iterator[CapturedStep]:
        """The step, traced once for all that is asked while this is open."""
        from vdnn.compile.planned_step import captured_step

        with captured_step(self.workload.step, self.workload.args, {}) as step:
            yield CapturedStep(step, self.options)


@dataclass(frozen=True)
class CapturedStep:
    """A traced step, planned as often as somebody asks."""

    step: TracedStep
    options: Options

    def problem(self) -> Problem:
        """Of the step as it was traced."""
        from vdnn.compile.pipeline import describe_step

        return describe_step(self.step, self.options).problem

    def plan(self, **changes: Any) -> Plan:
        """The plan that `vdnn.virtualize` would follow with these options, some of them changed."""
        from vdnn.compile.pipeline import plan_step

        return plan_step(self.step, replace(self.options, **changes)).plan


@dataclass(frozen=True)
class Solved:
    """A plan; `plan_s` is the time from the captured step to it, with its costs and its check, and `solve_s` what of it
    was spent on deciding, in all forms of the step that were looked at, and on checking what was decided."""

    name: str
    plan: Plan
    plan_s: float = 0.0
    solve_s: float = 0.0


def ask(
    model: str,
    batch: int,
    images: ImageOptions,
    options: Options,
    progress: Callable[[int, int], None],
) -> Asked:
    """The step of a named network, and what is asked of its plan."""
    from vdnn.models import load

    known = replace(options, progress=progress).on_known_machine()
    return Asked(load(model, batch, device="meta", **images), batch, known)


def solve(asked: Asked) -> Solved:
    """The plan that the options ask for, timed apart from the capture."""
    import vdnn.plan.auto.search  # noqa: F401 - loading the solver is no part of planning
    from vdnn.compile.pipeline import plan_step

    with asked.captured() as captured:
        begin = perf_counter()
        planned = plan_step(replace(captured.step, name=asked.workload.name), asked.options)
        return Solved(asked.name, planned.plan, perf_counter() - begin, planned.decide_s)


def oracle_of(asked: Asked, plan: Plan) -> Plan:
    """Keep-all of the step as it was traced: a plan for another form of it has another graph."""
    if not plan.problem.form:
        return keep_all(plan.problem)
    with asked.captured() as captured:
        return keep_all(captured.problem())


@contextmanager
def measuring(enabled: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for ops that are measured, which can take minutes the first time; on stderr, where somebody watches."""
    watched = console(stderr=True)
    bar = Progress(
        TextColumn("measuring ops"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=watched,
        transient=True,
        disable=not (enabled and watched.is_terminal),
    )
    with bar:
        task = bar.add_task("", total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
