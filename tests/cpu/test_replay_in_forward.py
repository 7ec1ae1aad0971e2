"""A storage that leaves and is computed again within forward is there for backward as if it had stayed."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import vdnn
from vdnn.plan.judge.validate import check
from vdnn.plan.model.actions import Decision, Recompute
from vdnn.plan.model.gaps import uses

pytestmark = pytest.mark.any_device


class Skip(nn.Module):
    """The sine is read at once, at the end of forward, and in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sin(x)
        return (self.second(torch.tanh(self.first(h))) * h).sum()


def test_what_is_computed_again_in_forward_crosses_to_backward() -> None:
    torch.manual_seed(0)
    model, batch = Skip(), torch.randn(8, 16)
    plain = copy.deepcopy(model)
    kept = vdnn.plan(model, (batch,), strategy="keep-all")
    graph = kept.problem.graph
    storage = next(graph.values[op.writes[0]].storage for op in graph.ops if op.target.startswith("aten.sin"))
    used = uses(graph)[0][storage]
    assert used[2] < graph.num_forward <= used[3]
    decided = check(
        replace(kept, decisions=(Decision(storage, Recompute(used[1], used[2]), "to see whether it works"),))
    )
    virtual = vdnn.virtualize(model, sample=(batch,), plan=decided)
    for net in (plain, virtual):
        net(batch).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
