"""What to say when a device fails in mid-step: it runs out of memory, or answers no more.

Enters: PyTorch's error, and the plan that was followed. Leaves: one error with the numbers: what was asked for, what
the plan takes, what the device has, who holds it. A plan keeps its bytes, so somebody else has them: other tensors of
this process, what its allocator keeps between blocks, another process. A device that was reset fails every call from
then on, whichever comes next: a copy, a wait, one in a thread that carries bytes to disk. Asked once more it tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vdnn.errors import DeviceLost, TierFailed
from vdnn.hardware.where import CPU
from vdnn.plan.plan import Plan
from vdnn.units import format_nbytes


@contextmanager
def told_with_numbers(half: str, plan: Plan, where: torch.device) -> Iterator[None]:
    """Where the device has less than its plan was made for, the error says what was planned and who has it; where it
    is gone, that it is."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(out_of_memory_words(error, half, plan, where)) from error
    except (torch.AcceleratorError, TierFailed) as error:
        if where == CPU or _answers(where):
            raise
        raise DeviceLost(
            f"the {half} of {plan.problem.graph.name} lost {where}, which answers no more: {_first_line(error)}\n"
            "It was reset or has failed, and what lay in its memory is gone. Start the process again, from the last"
            " checkpoint."
        ) from error


def _answers(where: torch.device) -> bool:
    try:
        torch.accelerator.get_memory_info(where)
        torch.accelerator.synchronize(where)
    except RuntimeError:
        return False
    return True


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
