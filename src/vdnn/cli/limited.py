"""`vdnn train --limit`: the same training in a process with a hard limit, through vdnn and in plain PyTorch.

Enters: what to train, and a budget. Leaves: an `Answer` that says who trained, with which losses and how high the
process rose. Everybody gets a process of its own: an idle interpreter, limited before the network is built
(`limited_child.py`), so that capture and planning are inside the limit too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from vdnn.cli.answer import Answer
from vdnn.cli.failures import FAILED
from vdnn.environment import delegated_cgroup
from vdnn.plan.model.budget import parse_share
from vdnn.report.text import quiet_table, sections, title
from vdnn.runtime.hard_limit import ALLOWED_SHARE, BESIDE_NBYTES, allowed_nbytes, kind_of_limit, remove_groups
from vdnn.runtime.process_memory import in_default_child
from vdnn.units import format_nbytes, parse_nbytes

if TYPE_CHECKING:
    from vdnn.cli.limited_child import LimitedJob

OUT_OF_MEMORY = (MemoryError, RuntimeError, BrokenProcessPool)
"""How a limit ends a run: Python cannot allocate, PyTorch cannot, or the kernel kills the process."""


@dataclass(frozen=True, slots=True)
class LimitedRun:
    """One process: its losses, or how it ended. `rise_nbytes` is over the idle interpreter."""

    losses: tuple[float, ...] = ()
    ended: str = ""
    idle_nbytes: int = 0
    rise_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Plain PyTorch and vdnn inside the same limit; `unlimited` is plain PyTorch where it needs more than that."""

    kind: str
    budget_nbytes: int
    limit_nbytes: int
    virtualized: LimitedRun
    plain: LimitedRun
    unlimited: LimitedRun | None

    @property
    def reference(self) -> LimitedRun:
        return self.plain if self.unlimited is None else self.unlimited

    @property
    def are_equal(self) -> bool:
        return self.virtualized.losses == self.reference.losses


def train_limited(job: LimitedJob, options: Mapping[str, Any], *, is_exact: bool, tell: Callable[[str], Any]) -> Answer:
    """`job` is the plain one; `options` are those of vdnn. Losses of a run that rounds are not held to plain ones."""
    compared = _compare(job, options, tell)
    is_good = bool(compared.virtualized.losses) and (compared.are_equal or not is_exact)
    record = _record(job, compared, is_exact)
    return Answer(record, lambda width: _view(job, compared, is_exact), 0 if is_good else FAILED)


def _compare(job: LimitedJob, options: Mapping[str, Any], tell: Callable[[str], Any]) -> Comparison:
    kind = kind_of_limit()
    tell("looking for the budget")
    budget_nbytes = _budget_nbytes(replace(job, options=options))
    limit_nbytes = allowed_nbytes(budget_nbytes)
    try:
        tell("vdnn inside the limit")
        virtual = replace(job, options={**options, "budget": budget_nbytes}, limit_nbytes=limit_nbytes)
        virtualized = _run(virtual)
        tell("plain PyTorch inside the limit")
        plain = _run(replace(job, limit_nbytes=limit_nbytes))
    finally:
        group = delegated_cgroup()
        if group is not None:
            remove_groups(group)
    tell("plain PyTorch without a limit")
    unlimited = _run(job) if plain.ended else None
    return Comparison(kind, budget_nbytes, limit_nbytes, virtualized, plain, unlimited)


def _budget_nbytes(job: LimitedJob) -> int:
    from vdnn.cli.limited_child import budget_in_child

    assert job.options is not None, "the budget is one of vdnn's options"
    budget = job.options["budget"]
    return parse_nbytes(budget) if parse_share(budget) is None else in_default_child(budget_in_child, job)


def _run(job: LimitedJob) -> LimitedRun:
    from vdnn.cli.limited_child import train_in_child

    try:
        run = in_default_child(train_in_child, job)
    except OUT_OF_MEMORY as error:
        if job.limit_nbytes is None:
            raise
        return LimitedRun(ended=_how(error))
    return LimitedRun(run.losses, "", run.idle_nbytes, run.rise_nbytes)


def _how(error: BaseException) -> str:
    if isinstance(error, BrokenProcessPool):
        return "killed"
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    if asked is not None:
        return f"failed: no memory for {format_nbytes(int(asked[1]))} more"
    words = str(error).strip().splitlines()
    return f"failed: {words[0]}" if words else f"failed: {type(error).__name__}"


def _record(job: LimitedJob, compared: Comparison, is_exact: bool) -> dict[str, Any]:
    return {
        "schema": "vdnn.train-limited",
        "version": 1,
        "model": job.model,
        "batch": job.batch,
        "limited_by": compared.kind,
        "budget_nbytes": compared.budget_nbytes,
        "limit_nbytes": compared.limit_nbytes,
        "vdnn": asdict(compared.virtualized),
        "plain": asdict(compared.plain),
        "plain_without_limit": None if compared.unlimited is None else asdict(compared.unlimited),
        "equal": compared.are_equal if is_exact else None,
    }


def _view(job: LimitedJob, compared: Comparison, is_exact: bool) -> RenderableType:
    heading = title(f"{job.model}, batch {job.batch}, budget {format_nbytes(compared.budget_nbytes)}")
    limit = Text(
        f"Each process may take {format_nbytes(compared.limit_nbytes)} beyond an idle interpreter"
        f" ({ALLOWED_SHARE:g} x the budget and {format_nbytes(BESIDE_NBYTES[compared.kind])}), by {compared.kind}."
    )
    table = quiet_table("", ">rise of the process", "came to")
    rows = [("plain PyTorch", compared.plain), ("vdnn", compared.virtualized)]
    rows += [] if compared.unlimited is None else [("plain PyTorch without the limit", compared.unlimited)]
    for name, run in rows:
        table.add_row(name, format_nbytes(run.rise_nbytes) if run.losses else "-", _outcome(run))
    return sections(Group(heading, limit), table, _verdict(compared, is_exact))


def _outcome(run: LimitedRun) -> str:
    return run.ended or f"{len(run.losses)} steps, loss {run.losses[0]:.6f} -> {run.losses[-1]:.6f}"


def _verdict(compared: Comparison, is_exact: bool) -> Text:
    if not compared.virtualized.losses:
        return Text("vdnn did not train inside the limit.", style="bold red")
    if not is_exact:
        return Text("vdnn trained inside the limit; its losses may differ from plain PyTorch's, as was allowed.")
    if not compared.are_equal:
        return Text("DIFFERENT: vdnn trained inside the limit, with other losses.", style="bold red")
    return Text("vdnn trained inside the limit, with the losses of plain PyTorch bit for bit.", style="bold green")
