"""What a user may ask of a virtualized model or a plan: declared, described and checked here, and nowhere else.

Enters: keyword arguments of `vdnn.virtualize`, `vdnn.plan` and `vdnn.fit`, the options of `torch.compile(...,
backend="vdnn")`, or those of a subcommand. Leaves: a frozen `Options`, with what was left open chosen by what was said.

To add an option, give `Options` a field with its text, and the same name and type to one of the typed keyword arguments
below it. Functions take the latter (PEP 692); a test holds the two equal. A subcommand names the fields it takes, and
`cli/arguments.py` makes its options of them. torch is imported only when this machine has to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from vdnn.codecs import LOSSY_FORMATS
from vdnn.environment import disk_dir
from vdnn.errors import InvalidInput
from vdnn.hardware.device import THIS_MACHINE, Hardware, Tier, bounded
from vdnn.hardware.page_locked import with_transit
from vdnn.hardware.presets import preset
from vdnn.plan.files.saved import opened
from vdnn.plan.model.budget import parse_share
from vdnn.plan.model.optimizer_state import OPTIMIZERS, optimizer_named
from vdnn.plan.model.problem import DENSITY
from vdnn.plan.plan import Plan
from vdnn.plan.strategy_table import strategy_named
from vdnn.runtime.shared_budget import Budget
from vdnn.runtime.tiers.direct_io import require_folder_for_files, room_nbytes
from vdnn.units import Nbytes, parse_budget

COMPILERS = ("eager", "inductor")
COSTS = ("roofline", "tried", "measured")

Amount = int | str
"""Bytes, or text such as "12GiB". A number alone below 1 MiB is asked back; "4096B" is not."""


def described(text: str, *, metavar: str = "", switch: str = "") -> Mapping[str, str]:
    """What Python users and `--help` read of a field. On the command line its value is shown as `metavar`; a truth has
    the `switch` that makes it the other one than its default; what has neither is for Python alone."""
    return {"text": text, "metavar": metavar, "switch": switch}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    budget: Amount | Budget | None = field(
        default=None,
        metadata=described(
            "What the peak must stay within, as in 12GiB, or 45% of what keeping everything takes. Default: no bound;"
            " on an accelerator without ample room, what is free there less a sixteenth.",
            metavar="BYTES",
        ),
    )
    strategy: str | None = field(
        default=None,
        metadata=described(
            "Who decides: auto, offload, recompute-cost, superneurons, gist, keep-all and more; `vdnn compare` shows"
            " all. Default: auto with a budget, else keep-all (gist with --lossy).",
            metavar="NAME",
        ),
    )
    hardware: str | Hardware | None = field(
        default=None,
        metadata=described("A hardware preset such as titan-x or a100. Default: this machine.", metavar="NAME"),
    )
    plan: str | Path | Plan | None = field(
        default=None, metadata=described("Follow this saved plan instead of making one.", metavar="FILE")
    )
    """It brings its strategy, what may be rounded and, unless one is given, its budget. A plan of another model is
    refused with what differs."""

    optimizer: str | None = field(
        default=None, metadata=described(f"Count its state: {', '.join(OPTIMIZERS)}.", metavar="NAME")
    )
    lossy: str | None = field(
        default=None,
        metadata=described(
            "Round feature maps between forward and backward: fp16, bf16, fp10 or fp8. Default: every bit is kept.",
            metavar="FORMAT",
        ),
    )
    """Gradients are then approximate, and the report says by how much."""

    exact: bool | Literal["strict"] = field(
        default=True,
        metadata=described(
            "Let sums be added in another order where that is faster or smaller: in convolutions, or with the largest"
            " ops or the whole step in chunks of the batch. Gradients differ in the last bits.",
            switch="--inexact",
        ),
    )
    """The text is about False. True keeps eager's bits wherever that can be, and says once which ops have other last
    bits and how far they are off; "strict" refuses those. The report says where sums were added in another order."""

    costs: str | None = field(
        default=None,
        metadata=described(
            "How ops' times and workspaces are known: roofline, tried once on this machine, or measured on it. Where no"
            " default is shown: tried for a budget on this machine, else roofline.",
            metavar="HOW",
        ),
    )
    """A roofline knows the machine's speeds and no workspaces. Trying runs each distinct op once, inside the budget;
    training steps then show what it really takes. Measuring runs each until its time is steady. Both remember."""

    replan: bool = field(
        default=True,
        metadata=described(
            "Plan once, and keep that plan whatever the steps take. Otherwise the first steps are timed, and where they"
            " differ from what was expected, a better plan takes over between two steps.",
            switch="--no-replan",
        ),
    )
    """The text is about False. Costs that are tried are replanned with; a plan that was given is followed as it is."""

    density: float = field(
        default=DENSITY,
        metadata=described(
            "The share of non-zero elements for which a sparse map's encoding gets room. A map that turns out denser"
            " stays whole without a budget and goes to a slower tier with one.",
        ),
    )
    compiler: str = field(
        default="eager",
        metadata=described(
            "What computes the ops between two moves of the plan: eager, PyTorch's own kernels one by one, to the last"
            " bit; or inductor, kernels that TorchInductor fuses of several, where they keep to the plan's bytes.",
        ),
    )
    """Each fused kernel is held to 1e-5 of eager mode; results differ by the order of sums."""

    host_budget: Amount | None = field(
        default=None,
        metadata=described(
            "Page-locked host memory that an accelerator's maps may take. Default: half of all there is."
        ),
    )
    disk_budget: Amount | None = field(
        default=None, metadata=described("Disk that feature maps may take. Default: all.", metavar="BYTES")
    )
    in_flight: int = field(
        default=1,
        metadata=described("How many forwards come before the first backward: microbatches in flight share a budget."),
    )
    """More than that are noticed, and the plan is made again for them."""

    spill_dir: str | None = field(default=None, metadata=described("Where feature maps go on disk.", metavar="DIR"))
    """A private file is made there. None: VDNN_DISK_DIR, or the system's place for large temporary files."""

    verify_spills: bool = field(
        default=False,
        metadata=described(
            "Check that what comes back from disk is what was written there, by a checksum of every piece. A bit that"
            " has changed is an error that names the tensor.",
            switch="--verify-spills",
        ),
    )
    verify: str | None = field(
        default=None,
        metadata=described(
            "Hold the first step of every captured program against plain PyTorch, bit for bit, where that fits: first."
            " Default: not."
        ),
    )
    """The report says what was verified, and what was not and why; a difference is an error."""

    progress: Callable[[int, int], None] | None = field(
        default=None, metadata=described("Called with (done, total) while ops are measured.")
    )

    def __post_init__(self) -> None:
        budget = None if isinstance(self.budget, Budget) else self.budget
        if budget is not None and parse_share(budget) is None and parse_budget(budget, or_share=True) == 0:
            raise InvalidInput(
                f"a budget of {self.budget!r} leaves no byte to train in: write an amount, as in '12GiB'."
            )
        if self.spill_dir is not None and not (isinstance(self.spill_dir, (str, os.PathLike)) and str(self.spill_dir)):
            raise InvalidInput(f"spill_dir is the path of a folder, not {self.spill_dir!r}")
        for amount in (self.host_budget, self.disk_budget):
            if amount is not None:
                parse_budget(amount)
        if self.plan is not None and not (self.strategy is None and self.lossy is None):
            given = "strategy" if self.strategy is not None else "lossy"
            raise InvalidInput(f"a saved plan has its own {given}: leave out {given}={getattr(self, given)!r} or plan=")
        strategy_named(self.chosen_strategy)
        optimizer_named(self.optimizer)
        if self.lossy is not None and self.lossy not in LOSSY_FORMATS:
            raise InvalidInput(f"lossy is one of {', '.join(LOSSY_FORMATS)}, or None for exact; not {self.lossy!r}")
        if self.lossy is not None and not strategy_named(self.chosen_strategy).may_round:
            raise InvalidInput(
                f"lossy={self.lossy!r} allows rounding, and strategy {self.strategy!r} never rounds: choose 'gist' or"
                " 'auto', or leave out lossy="
            )
        if not (isinstance(self.density, (int, float)) and 0 < self.density <= 1):
            raise InvalidInput(f"density is a share above 0 and up to 1, not {self.density!r}")
        if not isinstance(self.in_flight, int) or isinstance(self.in_flight, bool) or self.in_flight < 1:
            raise InvalidInput(f"in_flight is a number of forwards, at least 1, not {self.in_flight!r}")
        if not isinstance(self.exact, bool) and self.exact != "strict":
            raise InvalidInput(f"exact is True, False or 'strict', not {self.exact!r}")
        for name in ("replan", "verify_spills"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(f"{name} is True or False, not {getattr(self, name)!r}")
        if self.verify not in (None, "first"):
            raise InvalidInput(f"verify is 'first' or None, not {self.verify!r}")
        inexact = [f"{name}={value!r}" for name, value in self._inexact.items() if value]
        if self.verify is not None and inexact:
            raise InvalidInput(
                f"verify={self.verify!r} asks for the bits of plain PyTorch, and {inexact[0]} gives them up: leave out"
                " one of the two"
            )
        if self.compiler not in COMPILERS:
            raise InvalidInput(f"compiler is 'eager' or 'inductor', not {self.compiler!r}")
        if self.costs not in (None, *COSTS):
            raise InvalidInput(f"costs are 'roofline', 'tried' or 'measured', not {self.costs!r}")
        if self.costs in ("tried", "measured") and isinstance(self.hardware, str):
            raise InvalidInput(
                f"ops can be {self.costs} on this machine only, not on {self.hardware!r}: leave out"
                f" costs={self.costs!r} or hardware="
            )

    @property
    def _inexact(self) -> Mapping[str, Any]:
        """What lets gradients have other bits, by name."""
        fused = self.compiler if self.compiler != COMPILERS[0] else None
        return {"lossy": self.lossy, "exact": None if self.exact else "False", "compiler": fused}

    @property
    def amount(self) -> Amount | None:
        """The budget of one model: as it was said, or all of a Budget."""
        return self.budget.nbytes if isinstance(self.budget, Budget) else self.budget

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
        here = self.hardware is None or (isinstance(self.hardware, Hardware) and self.hardware.name == THIS_MACHINE)
        return "tried" if self.budget is not None and here else "roofline"

    def require_spill_dir(self) -> None:
        """Before anything depends on the folder that was named."""
        if self.spill_dir is not None:
            require_folder_for_files(self.spill_dir, "spill_dir")

    @property
    def machine(self) -> Hardware:
        """The machine that is planned for, with its tiers bounded as was asked."""
        return self.machine_of("cpu")

    def machine_of(self, where: str) -> Hardware:
        """What was named, else this machine as a step on this device has it."""
        machine = _this_machine(self.spill_dir, where) if self.hardware is None else self.hardware
        machine = preset(machine) if isinstance(machine, str) else machine
        bounds = {"host": self.host_budget, "disk": self.disk_budget}
        known = replace(machine, tiers=tuple(_bounded(tier, bounds.get(tier.name)) for tier in machine.tiers))
        return known if where == "cpu" else with_transit(known)

    def on_known_machine(self, *, runs: bool = False, where: str = "cpu") -> Options:
        """With the machine looked up, and a saved plan read. To be called before tracing starts: while AOTAutograd
        traces, every tensor is fake. Who only plans has the disk as it is now; who `runs` asks for every plan. `where`:
        the device whose machine it is, unless hardware was named."""
        asked = self
        self.require_spill_dir()
        if self.plan is not None:
            saved = opened(self.plan)
            known = saved.problem.budget_nbytes
            budget = self.budget if self.budget is not None or known is None else Nbytes(known)
            asked = replace(self, plan=saved, budget=budget)
        if not runs:
            asked = replace(asked, budget=asked.amount)  # a plan is of one model
        machine = asked.machine_of(where)
        machine = machine if runs else _with_free_disk(machine, self.spill_dir)
        return replace(asked, hardware=machine, costs=asked.chosen_costs)

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Options:
        """From a dictionary, as `torch.compile(..., options=...)` hands it over."""
        known = set(cls.__dataclass_fields__)
        unknown = sorted(set(options) - known)
        if unknown:
            raise InvalidInput(f"unknown option(s) for vdnn: {', '.join(unknown)}. Known: {', '.join(sorted(known))}")
        return cls(**options)


class TierOptions(TypedDict, total=False):
    """How much the slower tiers hold, where, and whether that is checked."""

    host_budget: Amount | None
    disk_budget: Amount | None
    spill_dir: str | None
    verify_spills: bool


class PlanOptions(TypedDict, total=False):
    """What a plan is made from."""

    budget: Amount | Budget | None
    strategy: str | None
    hardware: str | Hardware | None
    optimizer: str | None
    lossy: str | None
    exact: bool | Literal["strict"]
    costs: str | None
    density: float
    in_flight: int
    progress: Callable[[int, int], None] | None


class RunOptions(PlanOptions, TierOptions, total=False):
    """What a model is virtualized with: every field of `Options`."""

    plan: str | Path | Plan | None
    compiler: str
    replan: bool
    verify: str | None


def check_names(given: Iterable[str], known: type, function: str) -> None:
    """What Python does by itself where a function lists its keyword arguments one by one."""
    unknown = sorted(set(given) - set(known.__annotations__))
    if unknown:
        names = ", ".join(sorted(known.__annotations__))
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown[0]!r}. Its options: {names}")


def _this_machine(spill_dir: str | None, where: str) -> Hardware:
    from vdnn.calibrate.this_machine import this_machine  # imports torch, for which `vdnn --help` does not wait

    return this_machine(spill_dir, where)


def _with_free_disk(hardware: Hardware, spill_dir: str | None) -> Hardware:
    """This machine's disk is as large as what is free there now; of another machine nothing is known here."""
    if hardware.name != THIS_MACHINE or all(tier.name != "disk" for tier in hardware.tiers):
        return hardware
    return bounded(hardware, "disk", room_nbytes(disk_dir() if spill_dir is None else spill_dir))


def _bounded(tier: Tier, bound: Amount | None) -> Tier:
    if bound is None:
        return tier
    nbytes = parse_budget(bound)
    return Tier(tier.name, nbytes if tier.nbytes is None else min(nbytes, tier.nbytes))
