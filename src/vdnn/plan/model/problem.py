"""What is asked: a graph with its costs, a machine, and the bytes that the peak must stay within."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vdnn.codecs import LOSSY_FORMATS
from vdnn.cost.table import CostTable, OpCost
from vdnn.hardware.device import Hardware
from vdnn.ir import Graph
from vdnn.plan.model.budget import Asked
from vdnn.plan.model.surroundings import ALONE, Surroundings

DENSITY = 0.65
"""The share of non-zero elements that a sparse map is planned for unless a problem says otherwise. Over the outputs of
the ReLUs of AlexNet, VGG-16, NiN, OverFeat and GoogLeNet, freshly initialised, it lay between 0.32 and 0.61; training
lowers it."""


EXACT_FORMS = frozenset({"", "convolution backwards split"})
"""Forms of a step whose gradients have the bits of the traced one."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`budget_nbytes` bounds the device tier at every moment, everything included. None: no bound was asked for.

    `variants` maps a moment to other ways of computing it, fastest first: the algorithms of a convolution, each with
    its own time and workspace. A plan picks one; where it picks none, `costs` holds.

    `lossy` names the reduced format that codecs may round values to; None: every bit counts. `density` is the share of
    non-zero elements for which the encoding of a sparse map gets room. `form` names the form of the step that the graph
    shows (`compile/forms/`); empty: as it was traced. `surroundings` is what else the budget has to hold. `kept_nbytes`
    is what the traced step takes with everything kept, of which budgets are shares; None: the peak of this graph.
    `asked` is the budget as the user said it; None: in bytes. `codecs_take_room`: where the step runs, codecs have
    temporaries on the device (`codecs/kernels/chunk_sizes.py`).
    """

    graph: Graph
    costs: CostTable
    hardware: Hardware
    budget_nbytes: int | None = None
    variants: Mapping[int, tuple[OpCost, ...]] = field(default_factory=dict, hash=False)
    lossy: str | None = None
    density: float = DENSITY
    form: str = ""
    surroundings: Surroundings = ALONE
    kept_nbytes: int | None = field(default=None, compare=False)
    asked: Asked | None = field(default=None, compare=False)
    codecs_take_room: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether the form of the step keeps every bit."""
        return self.form in EXACT_FORMS

    def __post_init__(self) -> None:
        if len(self.costs) != len(self.graph):
            raise ValueError(f"{len(self.graph)} ops but {len(self.costs)} costs: the cost table is of another graph")
        if self.budget_nbytes is not None and self.budget_nbytes < 0:
            raise ValueError(f"a budget cannot be negative: {self.budget_nbytes}")
        if self.lossy is not None and self.lossy not in LOSSY_FORMATS:
            raise ValueError(f"lossy is one of {', '.join(LOSSY_FORMATS)} or None, not {self.lossy!r}")
        if not 0 < self.density <= 1:
            raise ValueError(f"a density lies above 0 and not above 1, not at {self.density}")
        for moment, offered in self.variants.items():
            if not 0 <= moment < len(self.graph):
                raise ValueError(f"variants of op {moment}, but the graph has ops 0 to {len(self.graph) - 1}")
            seconds = [cost.seconds for cost in offered]
            if not offered or seconds != sorted(seconds):
                raise ValueError(f"the variants of op {moment} must be some, fastest first, not {seconds}")
