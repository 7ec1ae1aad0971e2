"""A strategy: a name, a function from problem to plan, and what it can do.

Each file in `strategies/` declares its own; `plan/strategy_table.py` is the table of all. Whoever has to know whether a
strategy rounds, chooses variants or gains from other forms asks the declaration, never the name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Strategy:
    name: str

    solve: Callable[[Problem], Plan]
    """May decline with `Infeasible`; may not be wrong, which `validate.check` sees to."""

    chooses_variants: bool = False
    """It says itself in which variant each op is computed. Others plan with the smallest workspaces, and what they
    leave free then buys faster variants (`plan/strategy_table.py`)."""

    may_round: bool = False
    """It follows `problem.lossy`: the format to which feature maps may be rounded."""

    always_rounds_to: str | None = None
    """The lossy format that its name stands for; None: it rounds only where the problem allows it, or never."""

    tries_forms: bool = False
    """It is asked again for other forms of the step, where the traced one is slow or does not fit."""
