"""What only a tracer trips over in a whole graph: sizes that values decide, and marks for CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from equivalence import check, executors, virtualize
from nets import PYTORCH_MAY_WARN, backward
from torch import Tensor, nn

pytestmark = [pytest.mark.any_device, PYTORCH_MAY_WARN]


class SplitsByValues(nn.Module):
    """As attention over packed pictures does it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        lengths = rows.new_tensor([1, 2, 3]).long() + rows.isnan().sum()
        parts = torch.split(self.layer(rows), lengths.tolist())
        return torch.cat([part.softmax(0) for part in parts if len(part)])


def test_a_size_that_values_decide_cuts_the_model_where_it_was_to_be_whole() -> None:
    check(SplitsByValues(), lambda model: backward(model, torch.randn(6, 4)))


def test_with_a_budget_such_a_model_runs_as_it_is() -> None:
    check(SplitsByValues(), lambda model: backward(model, torch.randn(6, 4)), budget="90%")


class MarksItsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        state = torch.zeros(rows.shape)
        torch._dynamo.mark_static_address(state)
        return self.layer(rows) + state


def test_a_mark_for_cuda_graphs_is_no_break() -> None:
    virtual = virtualize(MarksItsState())
    backward(virtual, torch.randn(6, 4))
    assert len(executors(virtual)) == 1
