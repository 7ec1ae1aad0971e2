"""A backward that fails half way, with storages on their way back, can be run again."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from tiers import DISK, smallest_budget, used_nbytes
from torch import nn

import vdnn
from vdnn.api import session_of

pytestmark = pytest.mark.any_device


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("waits", [0, 1, 2])
def test_a_backward_that_was_interrupted_is_run_again(waits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())))
    batch = torch.randn(256, 32)
    plain = copy.deepcopy(model)
    plain(batch).sum().backward()
    step = lambda x: model(x).sum()  # noqa: E731
    least = smallest_budget(step, (batch,), "offload", DISK)
    virtual = vdnn.virtualize(step, sample=(batch,), strategy="offload", budget=least, hardware=DISK)
    loss = virtual(batch)
    kind: Any = type(session_of(virtual).transfers())
    real, calls = kind.wait_fetched, 0

    def fails(self: Any, ticket: object) -> None:
        nonlocal calls
        calls += 1
        if calls > waits:
            raise Interrupted
        real(self, ticket)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "wait_fetched", fails)
        with pytest.raises(Interrupted):
            loss.backward(retain_graph=True)
    model.zero_grad()
    loss.backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))  # type: ignore[arg-type]
    del loss
    gc.collect()  # the exception's frames hold the graph
    assert used_nbytes(virtual) == 0
