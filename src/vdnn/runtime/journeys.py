"""The storages of one training step that travel to a slower tier and back.

Enters: the calls of generated code at the positions the plan gives them. Leaves: the same bytes, later. One `Journeys`
lives as long as its step does: autograd keeps it through the handle, so a graph that is dropped without a backward
drops its tickets, and with them the room they took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vdnn.plan.actions import EncodeOffload, Offload
from vdnn.plan.plan import Plan
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
        position: Trip(decision.action.tier, storages[decision.storage].nbytes)
        for position, decision in enumerate(plan.decisions)
        if isinstance(decision.action, Offload | EncodeOffload)
    }


class Journeys:
    def __init__(self, trips: Mapping[int, Trip], transfers: Transfers | None) -> None:
        self._trips = trips
        self._transfers = transfers
        self._tickets: dict[int, Ticket] = {}

    @property
    def transfers(self) -> Transfers:
        assert self._transfers is not None, "a plan without trips was asked to send something"
        return self._transfers

    def send(self, decision: int, tensor: torch.Tensor) -> None:
        self._tickets[decision] = self.transfers.send(_flat(tensor), self._trips[decision].tier)

    def leave(self, decision: int) -> None:
        if decision in self._tickets:
            self.transfers.wait_sent(self._tickets[decision])

    def fetch(self, decision: int) -> torch.Tensor:
        flat = torch.empty(self._trips[decision].nbytes, dtype=torch.uint8)
        self.transfers.fetch(self._tickets[decision], flat)
        return flat

    def arrive(self, decision: int) -> None:
        self.transfers.wait_fetched(self._tickets[decision])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage. Not an op of the model: no tracker should see it."""
    with torch._C._DisableTorchDispatch():
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
