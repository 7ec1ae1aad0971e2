"""What a user may ask of a virtualized model or a plan, checked at once and in one place.

Enters: keyword arguments of `vdnn.virtualize` and `vdnn.plan`, or the options of `torch.compile(..., backend="vdnn")`.
Leaves: a frozen `Options`, with what was left open chosen by what was said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from vdnn.errors import InvalidInput
from vdnn.hardware.detect import this_machine
from vdnn.hardware.device import Hardware, Tier
from vdnn.hardware.presets import preset
from vdnn.plan.budget import parse_share
from vdnn.units import parse_nbytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    budget: int | str | None = None
    """What the peak of a training step stays within: bytes, "12GiB", or a share of the peak that keeping everything
    has, "45%". None: no bound."""

    strategy: str | None = None
    """The name of a planning strategy. None: "keep-all" without a budget, "offload" with one."""

    device: str | Hardware | None = None
    """The machine to plan for: a preset's name or a description. None: this machine."""

    optimizer: str | None = None
    """Whose state is counted into the memory of the step: "adam", "momentum", ... None: nobody's."""

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
        if self.costs not in (None, "roofline", "measured"):
            raise InvalidInput(f"costs are 'roofline' or 'measured', not {self.costs!r}")
        if self.costs == "measured" and isinstance(self.device, str):
            raise InvalidInput(
                f"ops can be measured on this machine only, not on {self.device!r}: leave out costs='measured' or"
                " device="
            )

    @property
    def chosen_strategy(self) -> str:
        return self.strategy or ("keep-all" if self.budget is None else "offload")

    @property
    def chosen_costs(self) -> str:
        here = self.device is None or (isinstance(self.device, Hardware) and self.device.name == this_machine().name)
        return self.costs or ("measured" if self.budget is not None and here else "roofline")

    @property
    def hardware(self) -> Hardware:
        with _disable_current_modes():  # measuring this machine needs real tensors
            machine = this_machine() if self.device is None else self.device
            machine = preset(machine) if isinstance(machine, str) else machine
        bounds = {"host": self.host_budget, "disk": self.disk_budget}
        return replace(machine, tiers=tuple(_bounded(tier, bounds.get(tier.name)) for tier in machine.tiers))

    def on_known_hardware(self) -> Options:
        """With the machine looked up. To be called before tracing starts: while AOTAutograd traces, every tensor is
        fake."""
        return replace(self, device=self.hardware, costs=self.chosen_costs)

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
