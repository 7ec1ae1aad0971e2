"""What the tensor cache says when the budget cannot be kept."""

from __future__ import annotations

import torch

from vdnn.eager.live_bytes import LiveBytes
from vdnn.eager.op_needs import Needs
from vdnn.errors import TierFull
from vdnn.units import format_nbytes


def cannot_stay_within(
    budget_nbytes: int, live_nbytes: int, saved_nbytes: int, need_nbytes: int, full: TierFull | None
) -> str:
    """`saved_nbytes` of the live bytes are saved for backward and could not leave: somebody else holds them too, or the
    slower tiers are `full`."""
    why = "with no room elsewhere" if full else "held elsewhere too, by variables or a running op"
    least_nbytes = live_nbytes + need_nbytes
    share = f", {least_nbytes / budget_nbytes:.1%} of what was asked" if budget_nbytes else ""
    least = f"{format_nbytes(least_nbytes)} ({least_nbytes} bytes{share})"
    return (
        f"the tensor cache cannot stay within {format_nbytes(budget_nbytes)}: the next op takes"
        f" {format_nbytes(need_nbytes)}, and what cannot leave takes {format_nbytes(live_nbytes)}.\n"
        f"    {format_nbytes(saved_nbytes)}  saved for backward and {why}\n"
        f"    {format_nbytes(live_nbytes - saved_nbytes)}  not saved: parameters, gradients, optimizer state, inputs,"
        " results that are passing through\n"
        f"Raise the budget to at least {least}, later ops may need more; shrink the batch, or let go of tensors that"
        ' are not needed. over_budget="warn" goes on without a bound.' + (f"\n{full}" if full else "")
    )


def out_of_memory_words(op: str, needs: Needs, error: BaseException, live: LiveBytes, budget_nbytes: int) -> str:
    """The device has less than the budget."""
    free_nbytes, total_nbytes = torch.accelerator.get_memory_info(live.where)
    reserved_nbytes = torch.accelerator.memory_reserved(live.where)
    first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return (
        f"{op} ran out of memory on {live.where} in a tensor cache within {format_nbytes(budget_nbytes)}, after all"
        f" that can leave had left: {first_line}\n"
        f"It makes {format_nbytes(needs.results_nbytes)} and takes"
        f" {format_nbytes(needs.workspace_nbytes or needs.likely_nbytes)} inside of itself"
        f"{'' if needs.is_known else ', as far as can be guessed before it has run'};"
        f" {format_nbytes(live.nbytes)} are alive. The device has {format_nbytes(total_nbytes)}:"
        f" {format_nbytes(reserved_nbytes)} in this process, {format_nbytes(free_nbytes)} free.\n"
        "Free what else this process or others hold there, name a smaller budget, or shrink the batch."
    )


def words_for_share(budget_nbytes: int, everything_nbytes: int, peak_nbytes: int) -> str:
    of_asked = peak_nbytes / max(budget_nbytes, 1)
    return (
        f"the tensor cache cannot stay within {format_nbytes(budget_nbytes)}, the share that was asked for of the"
        f" {format_nbytes(everything_nbytes)} that the first step takes with everything kept: what could leave left,"
        f" and {format_nbytes(peak_nbytes)} ({peak_nbytes} bytes) were still there at once.\n"
        f"Raise the budget to at least {format_nbytes(peak_nbytes)}, {of_asked:.1%} of what was asked and"
        f" {peak_nbytes / max(everything_nbytes, 1):.1%} of everything, or shrink the batch."
    )


def words_for_outside(budget_nbytes: int, taken_nbytes: int, outside_nbytes: int) -> str:
    return (
        f"the step in the tensor cache and {format_nbytes(outside_nbytes)} outside of the model took"
        f" {format_nbytes(taken_nbytes)}, {format_nbytes(taken_nbytes - budget_nbytes)} more than the budget of"
        f" {format_nbytes(budget_nbytes)}. From the next step on there is room for them."
    )
