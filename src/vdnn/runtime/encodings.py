"""Encode and decode storages of a training step where the plan says so.

Enters: the calls of generated code. Leaves: encodings, which cross from forward to backward like every saved tensor,
and later the bytes again. `Encodings` belongs to one captured graph and outlives its steps; what a step must remember
lies in its `Overflow`.

Data that is denser than planned does not fit its buffer. Nothing goes over budget in silence: with a budget the whole
map is copied to the next slower tier, without one it stays where it is; both are counted, and the report says so.

Note: [Late counts]
On an accelerator the host is ahead of the device, and to ask how many bytes an encoding needed would make it wait in
mid-step. So it asks only where it has a reason to doubt: the first time, and once a map has needed nearly all of its
room. Otherwise the count is read when the half of the step ends that has used the encoding. A map that was too dense
nevertheless is gone by then: the step raises before it hands out what was computed from it, and the next one asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vdnn.codecs import Codec, codec_for
from vdnn.codecs.codec import Needed
from vdnn.codecs.kernels import kernels_of
from vdnn.codecs.sparse import Sparse
from vdnn.codecs.window_index import WindowIndex
from vdnn.errors import EncodingTooLarge, LostHandle
from vdnn.plan.model.actions import Encode, EncodeOffload
from vdnn.plan.plan import Plan
from vdnn.runtime.late_number import LateNumber
from vdnn.runtime.step_memory import aside
from vdnn.runtime.transfers.interface import Ticket, Transfers
from vdnn.torch_private import without_torch_dispatch
from vdnn.units import format_nbytes


@dataclass(slots=True)
class Overflow:
    """What one step could not encode: whole maps that stayed, and tickets of those that went. `is_lost`: the step whose
    backward this is could not be found, and with it what it knew."""

    is_lost: bool = False
    stayed: dict[int, torch.Tensor] = field(default_factory=dict)
    went: dict[int, tuple[Transfers, Ticket]] = field(default_factory=dict)
    late: dict[int, LateNumber] = field(default_factory=dict)
    """Bytes that encodings needed, where nobody has looked yet. Note: [Late counts]"""

    decoded: set[int] = field(default_factory=set)


@dataclass(slots=True)
class DataFindings:
    """What the data turned out to be, over all steps: per decision the largest density, and how often it did not
    fit."""

    density: dict[int, float] = field(default_factory=dict)
    num_too_dense: int = 0
    needed_nbytes: dict[int, int] = field(default_factory=dict)
    """Per decision the most that an encoding needed."""


NEARLY_ALL = 0.9  # of its room: closer to it than that, a map may be too dense in the next step


class Encodings:
    def __init__(self, plan: Plan, transfers: Callable[[], Transfers]) -> None:
        self.codecs = codecs_of(plan)
        self.found = DataFindings()
        self._sizes = {
            position: decision.action.nbytes
            for position, decision in enumerate(plan.decisions)
            if isinstance(decision.action, Encode | EncodeOffload)
        }
        self._transfers = transfers
        self._has_budget = plan.problem.budget_nbytes is not None
        self._tiers = plan.problem.hardware.tiers

    def encode(self, decision: int, tensor: torch.Tensor, overflow: Overflow) -> torch.Tensor:
        codec = self.codecs[decision]
        flat = all_bytes(tensor)
        encoding = torch.empty(self._sizes[decision], dtype=torch.uint8, device=tensor.device)
        with aside(tensor.device):
            with without_torch_dispatch():  # what kernels need for themselves is a workspace, as that of any op
                needed = codec.encode(raw(flat), raw(encoding), kernels_of(tensor.device.type))
            if isinstance(needed, torch.Tensor) and not self._doubts(decision):
                overflow.late[decision] = LateNumber(needed)
                self._mark_where_too_much(encoding, needed)
            elif self._is_too_much(decision, int(needed)):
                self._keep_whole(decision, flat, overflow)
                self._mark_where_too_much(encoding, needed)
        return encoding

    def decode(self, decision: int, encoding: torch.Tensor, overflow: Overflow) -> torch.Tensor:
        codec = self.codecs[decision]
        flat = torch.empty(codec.storage.nbytes, dtype=torch.uint8, device=encoding.device)
        if decision in overflow.stayed:
            flat.copy_(overflow.stayed[decision])
        elif decision in overflow.went:
            transfers, ticket = overflow.went[decision]
            transfers.fetch(ticket, flat)
            transfers.wait_fetched(ticket)
        else:
            with without_torch_dispatch(), aside(encoding.device):
                self._require_encoding(codec, encoding, overflow)
                overflow.decoded.add(decision)
                codec.decode(raw(encoding), raw(flat), kernels_of(encoding.device.type))
        return flat

    def settle(self, overflow: Overflow, *, is_end: bool) -> None:
        """Raise if an encoding that was used did not hold its storage; at the end of a step all of them were used.
        Note: [Late counts]"""
        for decision, late in overflow.late.items():
            if (is_end or decision in overflow.decoded) and self._is_too_much(decision, late.read()):
                self.found.num_too_dense += 1
                raise EncodingTooLarge(
                    f"{self._how_dense(decision)}. That was known only after the map was gone, so the gradients of this"
                    f" step were dropped. The next step looks in time.{self._way_out(decision)}"
                )

    def _doubts(self, decision: int) -> bool:
        room, needed = self._sizes[decision], self.found.needed_nbytes.get(decision)
        return needed is None or needed > room * (1 if self.codecs[decision].has_fixed_size else NEARLY_ALL)

    def _is_too_much(self, decision: int, needed_nbytes: int) -> bool:
        """Whether an encoding did not hold its storage. What it needed is remembered."""
        codec, found = self.codecs[decision], self.found
        found.needed_nbytes[decision] = max(needed_nbytes, found.needed_nbytes.get(decision, 0))
        if isinstance(codec, Sparse):
            found.density[decision] = max(codec.density(needed_nbytes), found.density.get(decision, 0.0))
        is_too_much = needed_nbytes > self._sizes[decision]
        if is_too_much and isinstance(codec, WindowIndex):
            raise ValueError(codec.outside(needed_nbytes))
        return is_too_much

    def _mark_where_too_much(self, encoding: torch.Tensor, needed: Needed) -> None:
        """So that a backward that has lost its step knows. No encoding begins so: each starts with offset 0."""
        with without_torch_dispatch():
            if isinstance(needed, torch.Tensor):
                encoding[:8].masked_fill_(needed > encoding.numel(), 0xFF)
            else:
                encoding[:8] = 0xFF

    def _keep_whole(self, decision: int, flat: torch.Tensor, overflow: Overflow) -> None:
        self.found.num_too_dense += 1
        if not self._has_budget:
            overflow.stayed[decision] = flat
        elif len(self._tiers) > 1:
            transfers = self._transfers()
            name = repr(self.codecs[decision].storage.name)
            ticket = transfers.send(flat, self._tiers[1].name, name)
            transfers.wait_sent(ticket)
            overflow.went[decision] = transfers, ticket
        else:
            raise EncodingTooLarge(
                f"{self._how_dense(decision)}, and there is no slower tier to hold it whole.{self._way_out(decision)}"
            )

    def _how_dense(self, decision: int) -> str:
        storage = self.codecs[decision].storage
        return (
            f"{storage.name!r} is denser than planned: {self.found.density[decision]:.2f} of its elements are not zero,"
            f" the plan gave its encoding {format_nbytes(self._sizes[decision])} of {format_nbytes(storage.nbytes)}"
        )

    def _way_out(self, decision: int) -> str:
        return f" Give a larger share with density={min(1.0, self.found.density[decision] + 0.05):.2f}."

    def _require_encoding(self, codec: Codec, encoding: torch.Tensor, overflow: Overflow) -> None:
        if overflow.is_lost and not codec.has_fixed_size and bool((encoding[:8] == 0xFF).all()):
            raise LostHandle(
                f"{codec.storage.name!r} was denser than planned and was kept whole elsewhere, but a saved-tensor hook"
                " around the model (torch.autograd.graph.saved_tensors_hooks, save_on_cpu) replaced the handle to it"
                " by a copy. Call the virtualized model outside such hooks; it moves its own saved tensors."
            )


def codecs_of(plan: Plan) -> Mapping[int, Codec]:
    """The decisions that encode, by their position in the plan."""
    storages = plan.problem.graph.storages
    return {
        position: codec_for(decision.action.codec, storages[decision.storage], decision.action.detail)
        for position, decision in enumerate(plan.decisions)
        if isinstance(decision.action, Encode | EncodeOffload)
    }


def all_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage. Not an op of the model: no tracker should see it."""
    with without_torch_dispatch():
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def raw(tensor: torch.Tensor) -> Any:
    """The elements of a dense tensor in the order of memory, as the bytes that kernels take."""
    with without_torch_dispatch():
        flat = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        return flat.numpy() if tensor.device.type == "cpu" else flat
