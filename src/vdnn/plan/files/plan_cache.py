"""Plans that outlive the process: a model that was planned once is not planned again.

Enters: a problem and the name of a strategy, or a finished plan. Leaves: the plan that is known for them, checked anew.
The one idea: a plan is decisions by position, and those follow from the graph, the budget and the strategy. So these
are the key, with the tiers' sizes and the planner's own code; of a plan only its decisions are kept, and the problem is
the one that asks. Speeds that were measured stay out of the key, because they differ from process to process and would
make every plan a new one; a plan found again is then priced with the new ones. Speeds that are constants are in it.

One compressed file per plan, written whole or not at all, and read within the bounds of a plan. It is a cache: what is
stale, broken or cannot be read or written costs a line in the log and the time to plan, never an error.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

from vdnn.environment import cache_dir, remembers_plans
from vdnn.errors import VdnnError
from vdnn.hardware.device import Hardware
from vdnn.hardware.observed_links import OBSERVED
from vdnn.plan.document.serialize import DECISION, decision_to_json, hardware_to_json
from vdnn.plan.document.versions import made_with
from vdnn.plan.files.digest import graph_digest
from vdnn.plan.files.saved import chosen_forms, offered_again
from vdnn.plan.judge.validate import check
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.reading.bounded_json import PLAN_NBYTES, json_in
from vdnn.reading.fields import Listed, Maybe, Number, Record, Row, Text, Whole, blamed
from vdnn.reading.private_files import write_private
from vdnn.units import MiB

log = logging.getLogger(__name__)

_FOLDER = "plans-v1"  # a change in what is kept takes the next number
_COMPRESSION = 3  # of 9: a plan of 70 000 ops is a few megabytes, and is written while somebody waits
LIMIT_NBYTES = 256 * MiB
"""What the folder may hold; a plan of today's networks takes some kilobytes. The least recently used go first."""


class PlanCache:
    """Plans by what was asked. `directory` is the cache directory's own folder unless told."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = Path(directory) if directory is not None else cache_dir() / _FOLDER
        self.is_on = remembers_plans()

    def lookup(self, problem: Problem, strategy: str) -> Plan | None:
        """The plan that was stored for such a problem, whole and valid for this one; None: it has to be made."""
        if not self.is_on:
            return None
        path = self._path(problem, strategy)
        try:
            plan = check(_rebuilt(json_in(path, PLAN_NBYTES, is_compressed=True), problem))
            with suppress(OSError):  # a cache that others own may be read all the same
                os.utime(path)  # used now: among the last to go
        except FileNotFoundError:
            return None
        except (OSError, VdnnError) as error:
            log.info("planning again, the plan in %s cannot be used: %r", path, error)
            return None
        return plan

    def store(self, plan: Plan, problem: Problem | None = None, strategy: str | None = None) -> None:
        """Keep a plan for whoever asks `problem` of `strategy`: the plan's own, unless the strategy changed them, as
        one that rounds does."""
        if not self.is_on:
            return
        path = self._path(problem or plan.problem, strategy or plan.strategy)
        body = gzip.compress(json.dumps(_kept(plan), separators=(",", ":")).encode(), _COMPRESSION)
        try:
            write_private(path, body)
            _bound(self.directory, LIMIT_NBYTES)
        except OSError as error:
            log.info("the plan is not kept in %s: %s", self.directory, error)

    def _path(self, problem: Problem, strategy: str) -> Path:
        return self.directory / f"{plan_key(problem, strategy)}.json.gz"


def plan_key(problem: Problem, strategy: str) -> str:
    """All that a strategy's decisions follow from, as a few letters."""
    offered = [cost for costs in problem.variants.values() for cost in costs]
    asked = {
        "made_with": made_with(),
        "planner": planner_digest(),
        "graph": graph_digest(problem.graph),
        "strategy": strategy,
        "budget_nbytes": problem.budget_nbytes,
        "lossy": problem.lossy,
        "density": problem.density,
        "codecs_take_room": problem.codecs_take_room,
        "inexact": any(not cost.exact for cost in offered),
        "costs": sorted({cost.source for cost in problem.costs.ops}),
        "hardware": [problem.hardware.name, [[tier.name, _magnitude(tier.nbytes)] for tier in problem.hardware.tiers]],
        "sources": problem.hardware.sources,
        "described": _described_links(problem.hardware),
        "prices": None if _is_measured(problem) else prices_digest(problem),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _described_links(hardware: Hardware) -> list[Any]:
    """Links as somebody wrote them down: what was measured differs from process to process. Those that training has
    shown to be others count roughly: they are why a plan is made again."""
    is_measured = any(source.startswith("measured") for _, source in hardware.sources)
    if not is_measured:
        return [[link.name, link.bandwidth_bytes_per_s, link.latency_s] for link in hardware.links]
    shown = {name for name, source in hardware.sources if source == OBSERVED}
    return [[link.name, round(4 * log2(link.bandwidth_bytes_per_s))] for link in hardware.links if link.name in shown]


def _magnitude(nbytes: int | None) -> int | None:
    """Free space changes by the minute, and a plan that no longer fits it is not used: the order of size is enough."""
    return None if nbytes is None else nbytes.bit_length()


def prices_digest(problem: Problem) -> str:
    """Of every speed and every cost that the problem knows."""
    found = hashlib.sha256(json.dumps(hardware_to_json(problem.hardware)).encode())
    for moment, costs in ((-1, problem.costs.ops), *problem.variants.items()):
        rows = ";".join(f"{cost.seconds!r},{cost.workspace_nbytes},{cost.variant},{cost.exact}" for cost in costs)
        found.update(f"\n{moment}:{rows}".encode())
    return found.hexdigest()


@cache
def planner_digest() -> str:
    """Of the sources that decisions follow from: a plan of code that has changed since is not found."""
    package = Path(__file__).parents[2]
    folders = (package / name for name in ("plan", "codecs", "known_ops"))
    sources = [package / "ir.py", package / "cost" / "table.py", *(file for f in folders for file in f.rglob("*.py"))]
    found = hashlib.sha256()
    for source in sorted(sources):
        found.update(source.relative_to(package).as_posix().encode() + b"\0" + source.read_bytes())
    return found.hexdigest()


def _is_measured(problem: Problem) -> bool:
    sources = [source for _, source in problem.hardware.sources]
    sources += [cost.source for cost in problem.costs.ops]
    return any(source.startswith(("measured", "tried", "expected", "seen")) for source in sources)


def _kept(plan: Plan) -> dict[str, Any]:
    return {
        "strategy": plan.strategy,
        "decisions": [decision_to_json(decision) for decision in plan.decisions],
        "forms": list(chosen_forms(plan).items()),
        "lossy": plan.problem.lossy,
        "density": plan.problem.density,
        "note": plan.note,
        "bound_s": plan.bound_s,
        "prices": prices_digest(plan.problem),
    }


def _kept_kind(problem: Problem) -> Record:
    """What `_kept` writes of a plan for such a problem."""
    form = Row((Whole(0, len(problem.graph) - 1), Text()))
    return Record(
        {
            "strategy": Text(),
            "decisions": Listed(DECISION),
            "forms": Listed(form),
            "lossy": Maybe(Text()),
            "density": Number(0, 1),
            "note": Text(has_lines=True),
            "bound_s": Maybe(Number(0)),
            "prices": Text(),
        }
    )


def _rebuilt(document: Any, problem: Problem) -> Plan:
    """The plan for the problem that asks. A bound on its time holds only under the prices it was found with."""
    kept = _kept_kind(problem).read(document, "")
    with blamed("lossy and density"):
        asked = replace(problem, lossy=kept["lossy"], density=kept["density"])
    forms = offered_again(dict(kept["forms"]), asked)
    bound_s = kept["bound_s"] if kept["prices"] == prices_digest(asked) else None
    return Plan(asked, kept["strategy"], kept["decisions"], forms, kept["note"], bound_s)


def _bound(directory: Path, limit_nbytes: int) -> None:
    """Remove the least recently used until the rest fits. Another process may be doing the same."""
    files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in directory.glob("*.json.gz"))
    excess = sum(nbytes for _, nbytes, _ in files) - limit_nbytes
    for _, nbytes, path in files:
        if excess <= 0:
            return
        path.unlink(missing_ok=True)
        excess -= nbytes
