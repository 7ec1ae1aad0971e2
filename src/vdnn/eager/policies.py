"""Which storage leaves first.

Enters: candidates, the least recently used first. Leaves: the same, in the order in which they should leave.

lru       the least recently used one, as published (SuperNeurons, PPoPP 2018, algorithm 2): backward runs in reverse,
          so what was used last is used again first
next-use  the one that is asked for latest (Belady, 1966), known from the step before; lru while it is not known
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from vdnn.errors import InvalidInput

LRU, NEXT_USE = "lru", "next-use"
POLICIES = (LRU, NEXT_USE)

Candidate = TypeVar("Candidate")


def check_policy(policy: str) -> str:
    if policy not in POLICIES:
        raise InvalidInput(f"policy is one of {', '.join(POLICIES)}, not {policy!r}")
    return policy


def leaving_order(
    policy: str, candidates: Sequence[Candidate], next_use: Callable[[Candidate], float] | None
) -> Sequence[Candidate]:
    """`next_use` is None while no order is known."""
    if policy == LRU or next_use is None:
        return candidates
    return sorted(candidates, key=next_use, reverse=True)  # stable: equals stay least recently used first
