"""Encode and decode storages of a training step where the plan says so.

Enters: the calls of generated code. Leaves: encodings, which cross from forward to backward like every saved tensor,
and later the bytes again. `Encodings` belongs to one captured graph and outlives its steps; what a step must remember
lies in its `Overflow`.

Data that is denser than planned does not fit its buffer. Nothing goes over budget in silence: with a budget the whole
map is copied to the next slower tier, without one it stays where it is; both are counted, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vdnn.codecs import Codec, codec_for
from vdnn.codecs.kernels import kernels_of
from vdnn.codecs.sparse import Sparse
from vdnn.errors import EncodingTooLarge, LostHandle
from vdnn.plan.model.actions import Encode, EncodeOffload
from vdnn.plan.plan import Plan
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


@dataclass(slots=True)
class DataFindings:
    """What the data turned out to be, over all steps: per decision the largest density, and how often it did not
    fit."""

    density: dict[int, float] = field(default_factory=dict)
    num_too_dense: int = 0


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
        needed = codec.encode(raw(flat), raw(encoding), kernels_of(tensor.device.type))
        if isinstance(codec, Sparse):
            self.found.density[decision] = max(codec.density(needed), self.found.density.get(decision, 0.0))
        if needed > encoding.numel():
            self._keep_whole(decision, flat, overflow)
            raw(encoding)[:8] = 0xFF  # no encoding begins so: it starts with offset 0
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
            self._require_encoding(codec, encoding, overflow)
            codec.decode(raw(encoding), raw(flat), kernels_of(encoding.device.type))
        return flat

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
            codec = self.codecs[decision]
            raise EncodingTooLarge(
                f"{codec.storage.name!r} is denser than planned: {self.found.density[decision]:.2f} of its elements are"
                f" not zero, the plan gave its encoding {format_nbytes(self._sizes[decision])} of"
                f" {format_nbytes(codec.storage.nbytes)}, and there is no slower tier to hold it whole."
                f" Give a larger share with density={min(1.0, self.found.density[decision] + 0.05):.2f}."
            )

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
