"""`vdnn fit`: the largest batch, or with --depth the deepest network, that trains within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from vdnn.cli.answer import Answer
from vdnn.cli.arguments import IMAGES, PLANNING, ImageOptions, ModelName, positive, takes
from vdnn.cli.failures import INTERRUPTED
from vdnn.errors import InvalidInput
from vdnn.options import Options, PlanOptions
from vdnn.report.text import console, sections, title
from vdnn.units import format_nbytes, format_seconds, parse_budget

if TYPE_CHECKING:
    from vdnn.compile.fitting import Probe
    from vdnn.models import Workload

DEPTH_BATCH = 16  # the batch with which SuperNeurons (PPoPP 2018) looked for its deepest network

FixedBatch = Annotated[
    int | None,
    typer.Option(
        "--batch", "-b", metavar="N", parser=positive, help=f"With --depth: samples in a step. Default: {DEPTH_BATCH}."
    ),
]
ByDepth = Annotated[bool, typer.Option("--depth", help="Look for the deepest network instead of the largest batch.")]
Most = Annotated[int | None, typer.Option("--most", metavar="N", parser=positive, help="Stop at this size.")]


@takes(*PLANNING[:2], after="model")
@takes(*PLANNING[2:], *IMAGES, after="most", costs="roofline")
def fit(
    model: ModelName,
    images: ImageOptions,
    as_json: bool,
    depth: ByDepth = False,
    batch: FixedBatch = None,
    most: Most = None,
    **options: Unpack[PlanOptions],
) -> Answer:
    """Find the largest batch, or the deepest network, whose training step fits: double, then bisect. Runs nothing."""
    from vdnn.compile.fitting import LARGEST, fitting_options, planned

    if batch is not None and not depth:
        raise InvalidInput("--batch goes with --depth: without it, the batch is what is looked for.")
    known = fitting_options(**options)
    search = depths(model, batch or DEPTH_BATCH) if depth else batches(model)

    def probe(size: int) -> Probe:
        workload = search.make(size, device="meta", **images)
        return planned(workload.step, workload.args, known, size)

    probes, interrupted = _probed(search, probe, most or LARGEST, console(stderr=True, quiet=as_json))
    found = FitResult(model, search, known, probes, interrupted, most or LARGEST, options.get("hardware") is None)
    return Answer(found.record(), lambda width: found.view(), INTERRUPTED if interrupted else 0)


@dataclass(frozen=True)
class SizeSearch:
    """What is varied: `make(size)` is the training step of that size, `words(size)` what a person calls it in about so
    many `columns`."""

    what: str
    batch: int | None
    smallest: int
    make: Callable[..., Workload]
    words: Callable[[int], str]
    columns: int


def batches(model: str) -> SizeSearch:
    from vdnn.models import load, resolve

    smallest = getattr(resolve(model), "smallest_batch", 1)  # a user's own factory has none
    return SizeSearch("batch", None, smallest, partial(load, model), lambda batch: f"batch {batch}", 12)


def depths(model: str, batch: int) -> SizeSearch:
    from vdnn.models import depth_of, make

    family = depth_of(model)
    return SizeSearch(
        family.what,
        batch,
        family.smallest,
        lambda size, **how: make(family.at(size), batch, **how),
        lambda size: f"{family.at(size).name}, {family.layers(size)} layers",
        30,
    )


def _probed(
    search: SizeSearch, probe: Callable[[int], Probe], most: int, terminal: Console
) -> tuple[tuple[Probe, ...], bool]:
    """All probes, told as they come, and whether somebody stopped them. What was found by then is an answer too."""
    from vdnn.compile.fitting import largest_fitting

    probes: list[Probe] = []

    def note(found: Probe) -> None:
        probes.append(found)
        terminal.print(f"{search.words(found.size):<{search.columns}}  {outcome(found)}", soft_wrap=True)

    try:
        largest_fitting(probe, smallest=search.smallest, largest=most, on_probe=note)
    except KeyboardInterrupt:
        if not any(found.fits for found in probes):
            raise
        return tuple(probes), True
    return tuple(probes), False


def outcome(probe: Probe) -> str:
    took = f"(planned in {format_seconds(probe.probe_s)})"
    if probe.peak_nbytes is None or probe.step_time_s is None:
        return f"does not fit: needs {format_nbytes(probe.minimum_nbytes or 0)} {took}"
    return f"fits: peak {format_nbytes(probe.peak_nbytes)}, step {format_seconds(probe.step_time_s)} {took}"


@dataclass(frozen=True)
class FitResult:
    """What came of a search. `is_here`: for this machine, whose ops can be measured."""

    model: str
    search: SizeSearch
    options: Options
    probes: tuple[Probe, ...]
    interrupted: bool
    most: int
    is_here: bool

    @property
    def best(self) -> Probe:
        return max((probe for probe in self.probes if probe.fits), key=lambda probe: probe.size)

    @property
    def budget_nbytes(self) -> int:
        assert self.options.amount is not None, "a search has a budget"
        return parse_budget(self.options.amount)

    def record(self) -> dict[str, Any]:
        return {
            "schema": "vdnn.fit",
            "version": 1,
            "model": self.model,
            "varied": self.search.what,
            "batch": self.search.batch or self.best.size,
            "hardware": self.options.machine.name,
            "budget_nbytes": self.budget_nbytes,
            "largest": self.best.size,
            "name": self.search.words(self.best.size),
            "is_final": not self.interrupted and self.best.size < self.most,
            "probes": [asdict(probe) for probe in self.probes],
        }

    def view(self) -> RenderableType:
        where = f"{self.model} on {self.options.machine.name}, budget {format_nbytes(self.budget_nbytes)}"
        return sections(Group(title(where), Text(self._sentence(), style="bold"), *map(Text, self._caveats())))

    def _sentence(self) -> str:
        found = self.search.words(self.best.size)
        if self.interrupted:
            return f"Interrupted after {len(self.probes)} probes: {found} fits, and perhaps more."
        if self.best.size == self.most:
            return f"{found.capitalize()} fits, and nothing larger was tried."
        return f"The largest that fits: {found}, {outcome(self.best).removeprefix('fits: ').partition(' (')[0]}."

    def _caveats(self) -> Iterator[str]:
        batch = self.search.batch or self.best.size
        if self.best.step_time_s:
            yield f"{batch / self.best.step_time_s:.1f} samples per second, strategy {self.best.strategy}."
        if self.options.chosen_costs == "roofline":
            yield "Workspaces of ops are not counted" + (": --costs measured counts them." if self.is_here else ".")
