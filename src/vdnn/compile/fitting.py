"""The largest batch, or the deepest network, that trains within a budget.

Enters: functions that make a model and its arguments, and a budget. Leaves: a number. Every probe plans one size on
meta tensors, so nothing is allocated and nothing runs. The one idea: what a step needs grows with its size, so double
until a size does not fit, then halve the interval between the last that did and the first that did not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Unpack

import torch

from vdnn.compile.planned_step import plan_of
from vdnn.errors import Infeasible, InvalidInput
from vdnn.options import Options, PlanOptions, check_names
from vdnn.plan.model.budget import parse_share
from vdnn.units import Nbytes, format_nbytes

LARGEST = 2**24
"""No probe is larger unless told: 16 million samples in one step are no training run, and a search has to end."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One size that was planned. What does not fit has no figures, but knows what it would need."""

    size: int
    fits: bool
    probe_s: float
    peak_nbytes: int | None = None
    step_time_s: float | None = None
    strategy: str = ""
    minimum_nbytes: int | None = None
    why_not: str = ""


OnProbe = Callable[[Probe], Any]


def fit(
    make_model: Callable[[], Callable[..., Any]],
    make_args: Callable[[int], Any],
    *,
    smallest: int = 1,
    largest: int = LARGEST,
    on_probe: OnProbe = lambda probe: None,
    **options: Unpack[PlanOptions],
) -> int:
    """The largest batch whose training step has a plan within `budget`; without one, within the device's memory. The
    options are those of `vdnn.plan`.

    `make_model()` gives a module, or a function with the loss inside, and `make_args(batch)` its arguments. Both are
    called under `torch.device("meta")`, so that nothing is allocated. `on_probe` sees every batch that was tried.
    Raises `Infeasible` when not even `smallest` fits.
    """
    check_names(options, PlanOptions, "fit")
    options.setdefault("costs", "roofline")
    known = fitting_options(**options)
    with torch.device("meta"):
        model = make_model()

    def probe(batch: int) -> Probe:
        with torch.device("meta"):
            args = make_args(batch)
        return planned(model, args, known, batch)

    return largest_fitting(probe, smallest=smallest, largest=largest, on_probe=on_probe).size


def fitting_options(**asked: Unpack[PlanOptions]) -> Options:
    """Options with a budget in bytes: the device's memory where none is given."""
    options = Options(**asked)
    budget, hardware = options.amount, options.machine
    if parse_share(budget) is not None:
        raise InvalidInput(
            f"a budget of {budget!r} grows with the batch, so it bounds none: name an amount such as '12GiB'"
        )
    if budget is None and hardware.device.nbytes is None:
        raise InvalidInput(f"{hardware.name} does not say how much memory it has: name a budget such as '12GiB'")
    whole = Nbytes(hardware.device.nbytes or 0)
    return replace(options, budget=whole if budget is None else budget).on_known_machine()


def planned(model: Callable[..., Any], args: Any, options: Options, size: int) -> Probe:
    """Plan one size."""
    begin = perf_counter()
    try:
        plan = plan_of(model, args, {}, options)
    except Infeasible as reason:
        took_s, words = perf_counter() - begin, str(reason).partition("\n")[0]
        return Probe(size, False, took_s, minimum_nbytes=reason.minimum_nbytes, why_not=words)
    return Probe(size, True, perf_counter() - begin, plan.peak_nbytes, plan.step_time_s, plan.strategy)


def largest_fitting(
    probe: Callable[[int], Probe],
    *,
    smallest: int = 1,
    largest: int = LARGEST,
    on_probe: OnProbe = lambda probe: None,
) -> Probe:
    """The probe of the largest size that fits, by doubling and bisection; Infeasible when the smallest does not."""

    def tried(size: int) -> Probe:
        found = probe(size)
        on_probe(found)
        return found

    best = tried(smallest)
    if not best.fits:
        raise _nothing_fits(best)
    too_large = largest + 1
    while best.size < largest and too_large > largest:
        found = tried(min(max(2 * best.size, 1), largest))
        best, too_large = (found, too_large) if found.fits else (best, found.size)
    while too_large - best.size > 1 and best.size < largest:
        found = tried((best.size + too_large) // 2)
        best, too_large = (found, too_large) if found.fits else (best, found.size)
    return best


def _nothing_fits(probe: Probe) -> Infeasible:
    assert probe.minimum_nbytes is not None, "what does not fit says what it needs"
    needed = f"{format_nbytes(probe.minimum_nbytes)} ({probe.minimum_nbytes} bytes)"
    return Infeasible(
        f"the smallest size, {probe.size}, does not fit: {probe.why_not}\n"
        f"Raise the budget to at least {needed}, choose another strategy, or make the model smaller.",
        minimum_nbytes=Nbytes(probe.minimum_nbytes),
    )
