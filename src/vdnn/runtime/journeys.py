"""The storages of one training step that travel to a slower tier and back.

Enters: the calls of generated code at the positions the plan gives them. Leaves: the same bytes, later. One `Journeys`
lives as long as its step does: autograd keeps it through the handle, so a graph that is dropped without a backward
drops its tickets, and with them the room they took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from vdnn.ir import Storage
from vdnn.plan.actions import EncodeOffload, Offload
from vdnn.plan.plan import Plan
from vdnn.runtime.codes import all_bytes
from vdnn.runtime.transfers.base import Ticket, Transfers


@dataclass(frozen=True, slots=True)
class Trip:
    """Where one decision of a plan sends its storage, and how large that is."""

    tier: str
    nbytes: int


def trips_of(plan: Plan) -> Mapping[int, Trip]:
    """The decisions that travel, by their position in the plan."""
    storages = plan.problem.graph.storages
    return {
        position: Trip(decision.action.tier, _nbytes(decision.action, storages[decision.storage]))
        for position, decision in enumerate(plan.decisions)
        if isinstance(decision.action, Offload | EncodeOffload)
    }


def _nbytes(action: Offload | EncodeOffload, storage: Storage) -> int:
    return action.nbytes if isinstance(action, EncodeOffload) else storage.nbytes


class Journeys:
    def __init__(self, trips: Mapping[int, Trip], transfers: Callable[[], Transfers]) -> None:
        self._trips = trips
        self._open = transfers
        self._tickets: dict[int, Ticket] = {}

    @property
    def transfers(self) -> Transfers:
        return self._open()

    def send(self, decision: int, tensor: torch.Tensor) -> None:
        self._tickets[decision] = self.transfers.send(all_bytes(tensor), self._trips[decision].tier)

    def leave(self, decision: int) -> None:
        if decision in self._tickets:
            self.transfers.wait_sent(self._tickets[decision])

    def fetch(self, decision: int) -> torch.Tensor:
        flat = torch.empty(self._trips[decision].nbytes, dtype=torch.uint8)
        self.transfers.fetch(self._tickets[decision], flat)
        return flat

    def arrive(self, decision: int) -> None:
        self.transfers.wait_fetched(self._tickets[decision])
