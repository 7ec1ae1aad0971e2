"""A model that asks whether it is compiled is captured as it runs in eager mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from equivalence import check, executors, virtualize
from nets import backward
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

pytestmark = pytest.mark.any_device


class AsksFirst(nn.Module):
    """Another formula for compilers, as some libraries have."""

    def __init__(self, asks: Any = torch.compiler.is_compiling) -> None:
        super().__init__()
        self.layer, self.asks = nn.Linear(8, 8), asks

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.layer(x), approximate="tanh" if self.asks() else "none")


class EagerBranchBreaks(AsksFirst):
    """Looks at values in eager mode only."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if not torch.compiler.is_compiling() and bool(y.isnan().any()):
            raise ValueError("not a number")
        return y.sin()


@pytest.mark.parametrize("asks", [torch.compiler.is_compiling, torch._dynamo.is_compiling])
@pytest.mark.parametrize("options", [{}, {"budget": "100%"}], ids=["no budget", "budget"])
def test_it_takes_its_eager_branch(asks: Any, options: dict[str, Any]) -> None:
    model = AsksFirst(asks)
    check(model, lambda virtual: backward(virtual, torch.randn(4, 8)), **options)


@pytest.mark.parametrize("options", [{}, {"budget": "100%"}], ids=["no budget", "budget"])
def test_it_hears_yes_where_its_eager_branch_cannot_be_captured(options: dict[str, Any]) -> None:
    virtual = virtualize(EagerBranchBreaks(), **options)
    backward(virtual, torch.randn(4, 8))
    assert len(executors(virtual)) == 1, "one whole graph"


def test_other_models_of_the_process_hear_yes() -> None:
    backward(virtualize(AsksFirst()), torch.randn(4, 8))
    heard: list[bool] = []

    @torch.compile(backend="eager")
    def asks(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_compiling() else x + 2

    heard.append(bool((asks(torch.zeros(2)) == 1).all()))
    assert heard == [True]
