"""What to say when a device runs out of memory in mid-step.

Enters: PyTorch's error, and the plan that was followed. Leaves: one text with the numbers: what was asked for, what the
plan takes, what the device has, who holds it. A plan keeps its bytes, so somebody else has them: other tensors of this
process, what its allocator keeps between blocks, another process.
"""

from __future__ import annotations

import torch

from vdnn.hardware.where import CPU
from vdnn.plan.plan import Plan
from vdnn.units import format_nbytes


def out_of_memory_words(error: BaseException, half: str, plan: Plan, where: torch.device) -> str:
    budget_nbytes, name = plan.problem.budget_nbytes, plan.problem.graph.name
    within = "without a budget" if budget_nbytes is None else f"within a budget of {format_nbytes(budget_nbytes)}"
    asked = f"the {half} of {name} ran out of memory on {where}: {_first_line(error)}"
    planned = f"Its plan takes {format_nbytes(plan.peak_nbytes)} at most, {within}."
    return "\n".join((asked, planned, *([] if where == CPU else [_who_holds(where)]), _WAY_OUT))


_WAY_OUT = (
    "Free what else this process or others hold there, or name a smaller budget. Nothing of this step is left behind:"
    " the next one may run."
)


def _who_holds(where: torch.device) -> str:
    free_nbytes, total_nbytes = torch.accelerator.get_memory_info(where)
    allocated, reserved = torch.accelerator.memory_allocated(where), torch.accelerator.memory_reserved(where)
    others_nbytes = max(total_nbytes - free_nbytes - reserved, 0)
    return (
        f"The device has {format_nbytes(total_nbytes)}: {format_nbytes(allocated)} in tensors of this process,"
        f" {format_nbytes(reserved - allocated)} kept by its allocator between them,"
        f" {format_nbytes(others_nbytes)} with others, {format_nbytes(free_nbytes)} free."
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
