"""The cheapest choice at the worst moment, again and again: what the optimiser falls back on, and is checked against.

Enters: a model and a budget. Leaves: a choice per item, or None. At the moment that is furthest over the budget, take
the option that frees most bytes per second it costs, over all gaps that cover the moment; look for the worst moment
again. Capuchin (ASPLOS 2020) ranks recomputation so, by memory saved per second.
"""

from __future__ import annotations

from vdnn.plan.auto.candidates import RECOMPUTE, GapOptions, Option
from vdnn.plan.auto.program_data import ProgramData


def greedy(model: ProgramData, budget_nbytes: int) -> tuple[int, ...] | None:
    """Choices under which every moment fits, as the model sees it; None: the worst moment has nothing left to give."""
    choices = [0] * len(model.items)
    while True:
        level = model.nbytes_of(choices)
        moment = int(level.argmax())
        if level[moment] <= budget_nbytes:
            return tuple(choices)
        taken = _cheapest(model, choices, moment, int(level[moment]) - budget_nbytes)
        if not taken:
            return None
        for k, position in taken:
            choices[k] = position


def _cheapest(model: ProgramData, choices: list[int], moment: int, excess_nbytes: int) -> list[tuple[int, int]]:
    """What to give up so that a moment fits, cheapest bytes first."""
    offers = [
        (_price(model, k, option), k, position)
        for k, item in enumerate(model.items)
        if not choices[k] and item.gap.covers(moment)
        for position, option in enumerate(item.options, start=1)
        if _freed(item, option) > 0 and not (option.kind == RECOMPUTE and _is_encoded_source(model, k, choices))
    ]
    taken: dict[int, int] = {}
    for _, k, position in sorted(offers):
        if excess_nbytes <= 0:
            break
        if k not in taken:
            taken[k] = position
            excess_nbytes -= _freed(model.items[k], model.items[k].options[position - 1])
    return list(taken.items())


def _freed(item: GapOptions, option: Option) -> int:
    return item.gap.nbytes - option.held_nbytes


def _price(model: ProgramData, k: int, option: Option) -> float:
    """Seconds per byte, copies that the gap cannot hide counted in."""
    item = model.items[k]
    unhidden_s = max(0.0, option.out_s + option.back_s - model.candidates.away_s(item.gap))
    return (option.seconds + unhidden_s) / _freed(item, option)


def _is_encoded_source(model: ProgramData, k: int, choices: list[int]) -> bool:
    """Whether something that it would be made from is held in a form that has lost values."""
    return any(choices[j] and not model.items[j].options[choices[j] - 1].keeps_values for j in model.sources.get(k, ()))
