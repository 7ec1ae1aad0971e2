"""The storages of one training step that travel to a slower tier and back.

Enters: the calls of generated code at the positions the plan gives them. Leaves: the same bytes, later. One `Journeys`
lives as long as its step does: autograd keeps it through the handle, so a graph that is dropped without a backward
drops its entries of the pool, and with them the room they took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from vdnn.ir import Storage
from vdnn.plan.model.actions import EncodeOffload, Offload
from vdnn.plan.plan import Plan
from vdnn.runtime.encodings import all_bytes
from vdnn.runtime.pool.entry import Entry
from vdnn.runtime.pool.states import State
from vdnn.runtime.transfers.interface import Transfers


@dataclass(frozen=True, slots=True)
class Trip:
    """Where one decision of a plan sends its storage, how large that is, and what it is called."""

    tier: str
    nbytes: int
    name: str


def trips_of(plan: Plan) -> Mapping[int, Trip]:
    """The decisions that travel, by their position in the plan."""
    storages = plan.problem.graph.storages
    return {
        position: Trip(
            decision.action.tier,
            _nbytes(decision.action, storages[decision.storage]),
            repr(storages[decision.storage].name),
        )
        for position, decision in enumerate(plan.decisions)
        if isinstance(decision.action, Offload | EncodeOffload)
    }


def _nbytes(action: Offload | EncodeOffload, storage: Storage) -> int:
    return action.nbytes if isinstance(action, EncodeOffload) else storage.nbytes


class Journeys:
    def __init__(self, trips: Mapping[int, Trip], transfers: Callable[[], Transfers]) -> None:
        self._trips = trips
        self._open = transfers
        self._entries: dict[int, Entry] = {}

    @property
    def transfers(self) -> Transfers:
        return self._open()

    def send(self, decision: int, tensor: torch.Tensor) -> None:
        entry = self._entries[decision] = Entry(all_bytes(tensor), self.transfers, self._trips[decision].name)
        entry.send([self._trips[decision].tier])

    def leave(self, decision: int) -> None:
        """What lingers into backward leaves there; a backward that runs a second time finds it away already."""
        if decision in self._entries:
            self._let_go(decision)

    def fetch(self, decision: int) -> torch.Tensor:
        self._let_go(decision)
        return self._entries[decision].fetch()

    def arrive(self, decision: int) -> None:
        """The program holds what has arrived and frees it where the plan says; the pool keeps the copy, for a graph
        that runs again."""
        self._let_go(decision)

    def _let_go(self, decision: int) -> None:
        """Away afterwards, wherever it is: a backward that was interrupted may have left it on its way."""
        entry = self._entries[decision]
        if entry.state is State.AWAY:
            return
        if entry.state is State.COMING:
            entry.arrive()
        if entry.state is not State.LEAVING:
            entry.send([self._trips[decision].tier])
        entry.leave()
