"""What a user may ask of a virtualized model or a plan, checked at once and in one place.

Enters: keyword arguments of `vdnn.virtualize` and `vdnn.plan`, or the options of `torch.compile(..., backend="vdnn")`.
Leaves: a frozen `Options`, with what was left open chosen by what was said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vdnn.calibrate.this_machine import this_machine
from vdnn.codecs import LOSSY_FORMATS
from vdnn.errors import InvalidInput
from vdnn.hardware.device import Hardware, Tier
from vdnn.hardware.presets import preset
from vdnn.plan.files.saved import opened
from vdnn.plan.model.budget import parse_share
from vdnn.plan.model.plan import Plan
from vdnn.plan.model.problem import DENSITY
from vdnn.torch_private import without_modes
from vdnn.units import parse_nbytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    budget: int | str | None = None
    """What the peak of a training step stays within: bytes, "12GiB", or a share of the peak that keeping everything
    has, "45%". None: no bound."""

    strategy: str | None = None
    """The name of a planning strategy. None: "auto" with a budget; without one "gist" where a lossy format is allowed,
    else "keep-all"."""

    device: str | Hardware | None = None
    """The machine to plan for: a preset's name or a description. None: this machine."""

    plan: str | Path | Plan | None = None
    """A plan made before, or the file that it was saved in: followed instead of making a new one, or refused with what
    differs when it is of another model. It brings its strategy, what may be rounded and, unless one is given, its
    budget."""

    optimizer: str | None = None
    """Whose state is counted into the memory of the step: "adam", "momentum", ... None: nobody's."""

    lossy: str | None = None
    """The format that feature maps may be rounded to between forward and backward: "fp16", "bf16", "fp10" or "fp8".
    Gradients are then approximate, and the report says by how much. None: every bit is kept."""

    density: float = DENSITY
    """The share of non-zero elements for which a sparse map's code gets room. A map that turns out denser stays whole
    without a budget and goes to a slower tier with one."""

    exact: bool = True
    """Whether ops are computed only in ways that keep every bit. With False, convolutions may also sum in another
    order, and the batch may be run in chunks, where that is faster or needs less memory; the report says so."""

    compiler: str = "eager"
    """What computes the ops between two moves of the plan: "eager", PyTorch's own kernels one by one, to the last bit;
    or "inductor", kernels that TorchInductor fuses of several, where they keep to the plan's bytes. Each is held to
    1e-5 of eager mode; results differ by the order of sums."""

    costs: str | None = None
    """How the time and workspace of ops are known: "roofline" (from the machine's speeds, no workspace) or "measured"
    (each distinct op is run once on this machine, and remembered). None: "measured" where a budget is to be kept on
    this machine, because workspaces count; else "roofline"."""

    host_budget: int | str | None = None
    """Bytes of host memory that an accelerator's feature maps may take."""

    disk_budget: int | str | None = None
    """Bytes of disk that feature maps may take. None: what is free."""

    spill_dir: str | None = None
    """Where the private file of the disk tier is made. None: VDNN_DISK_DIR, or the system's place for large temporary
    files."""

    progress: Callable[[int, int], None] | None = None
    """Called with (done, total) while ops are measured."""

    def __post_init__(self) -> None:
        if self.budget is not None and parse_share(self.budget) is None:
            parse_nbytes(self.budget)
        for amount in (self.host_budget, self.disk_budget):
            if amount is not None:
                parse_nbytes(amount)
        if self.plan is not None and not (self.strategy is None and self.lossy is None):
            given = "strategy" if self.strategy is not None else "lossy"
            raise InvalidInput(f"a saved plan has its own {given}: leave out {given}={getattr(self, given)!r} or plan=")
        if self.lossy is not None and self.lossy not in LOSSY_FORMATS:
            raise InvalidInput(f"lossy is one of {', '.join(LOSSY_FORMATS)}, or None for exact; not {self.lossy!r}")
        if self.lossy is not None and not self.chosen_strategy.startswith(("gist", "auto")):
            raise InvalidInput(
                f"lossy={self.lossy!r} allows rounding, and strategy {self.strategy!r} never rounds: choose 'gist' or"
                " 'auto', or leave out lossy="
            )
        if not (isinstance(self.density, (int, float)) and 0 < self.density <= 1):
            raise InvalidInput(f"density is a share above 0 and up to 1, not {self.density!r}")
        if not isinstance(self.exact, bool):
            raise InvalidInput(f"exact is True or False, not {self.exact!r}")
        if self.compiler not in ("eager", "inductor"):
            raise InvalidInput(f"compiler is 'eager' or 'inductor', not {self.compiler!r}")
        if self.costs not in (None, "roofline", "measured"):
            raise InvalidInput(f"costs are 'roofline' or 'measured', not {self.costs!r}")
        if self.costs == "measured" and isinstance(self.device, str):
            raise InvalidInput(
                f"ops can be measured on this machine only, not on {self.device!r}: leave out costs='measured' or"
                " device="
            )

    @property
    def chosen_strategy(self) -> str:
        if self.strategy is not None:
            return self.strategy
        if self.budget is not None:
            return "auto"
        return "keep-all" if self.lossy is None else "gist"

    @property
    def chosen_costs(self) -> str:
        if self.costs is not None:
            return self.costs  # known: nothing has to be measured now, in the middle of a trace
        here = self.device is None or (isinstance(self.device, Hardware) and self.device.name == this_machine().name)
        return "measured" if self.budget is not None and here else "roofline"

    @property
    def hardware(self) -> Hardware:
        with without_modes():  # measuring this machine needs real tensors
            machine = this_machine() if self.device is None else self.device
            machine = preset(machine) if isinstance(machine, str) else machine
        bounds = {"host": self.host_budget, "disk": self.disk_budget}
        return replace(machine, tiers=tuple(_bounded(tier, bounds.get(tier.name)) for tier in machine.tiers))

    def on_known_hardware(self) -> Options:
        """With the machine looked up, and a saved plan read. To be called before tracing starts: while AOTAutograd
        traces, every tensor is fake."""
        asked = self
        if self.plan is not None:
            saved = opened(self.plan)
            budget = saved.problem.budget_nbytes if self.budget is None else self.budget
            asked = replace(self, plan=saved, budget=budget)
        return replace(asked, device=asked.hardware, costs=asked.chosen_costs)

    @classmethod
    def parse(cls, options: dict[str, Any]) -> Options:
        """From a dictionary, as `torch.compile(..., options=...)` hands it over."""
        known = set(cls.__dataclass_fields__)
        unknown = sorted(set(options) - known)
        if unknown:
            raise InvalidInput(f"unknown option(s) for vdnn: {', '.join(unknown)}. Known: {', '.join(sorted(known))}")
        return cls(**options)


def _bounded(tier: Tier, bound: int | str | None) -> Tier:
    if bound is None:
        return tier
    nbytes = parse_nbytes(bound)
    return Tier(tier.name, nbytes if tier.nbytes is None else min(nbytes, tier.nbytes))
