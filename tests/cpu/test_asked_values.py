"""A branch that the batch decides is captured as eager mode takes it, in one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from equivalence import check, executors, pair
from nets import PYTORCH_MAY_WARN, Using, backward
from torch import Tensor, nn

from vdnn.capture.asked_values import question_about

pytestmark = pytest.mark.any_device

ONES, SOME = torch.ones(4, 8, dtype=torch.bool), torch.eye(4, 8, dtype=torch.bool)


def masked(model: Any, x: Tensor, mask: Tensor) -> Tensor:
    y = model.layer(x)
    return y.sin() if mask.all() else y.masked_fill(~mask, 0.0).cos()


def both_ways(model: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Every kind of branch that Python has: `and`, `or`, `not`, `bool`, a conditional value."""
    y = model.layer(x)
    kept = mask.all() or mask.any()
    y = y * (2 if not mask.any() and True else 3)
    y = y + (1 if bool((mask.sum() == mask.numel()) | mask[0, 0]) else 0)
    return y * kept


def uses(function: Callable[..., Tensor]) -> nn.Module:
    return Using(function, layer=nn.Linear(8, 8))


@pytest.mark.parametrize("function", [masked, both_ways])
@pytest.mark.parametrize("options", [{}, {"budget": "100%"}], ids=["no budget", "budget"])
def test_it_is_asked_of_each_batch(function: Callable[..., Tensor], options: dict[str, Any]) -> None:
    def steps(model: Any) -> None:
        for mask in (ONES, SOME, ONES, ~ONES, SOME):
            backward(model, torch.ones(4, 8), mask)

    plain, virtual = pair(uses(function), **options)
    steps(plain)
    steps(virtual)
    assert all(map(torch.equal, *([p.grad for p in model.parameters()] for model in (plain, virtual))))


def test_one_answer_is_one_whole_graph() -> None:
    _, virtual = pair(uses(masked))
    for mask in (ONES, ONES.clone(), SOME, ~SOME):
        backward(virtual, torch.randn(4, 8), mask)
    assert len(executors(virtual)) == 2


def trained(model: Any, x: Tensor, mask: Tensor) -> Tensor:
    y = model.layer(x)
    return y.sin() if (y > 0).all() else y.cos()


def written(model: Any, x: Tensor, mask: Tensor) -> Tensor:
    mask = mask.clone()
    mask[0] = True
    return model.layer(x).sin() if mask.all() else model.layer(x).cos()


def drawn(model: Any, x: Tensor, mask: Tensor) -> Tensor:
    return model.layer(x).sin() if (torch.rand_like(x) > 0.5).any() else model.layer(x).cos()


@PYTORCH_MAY_WARN
@pytest.mark.parametrize("function", [trained, written, drawn])
@pytest.mark.parametrize("options", [{}, {"budget": "1MiB"}], ids=["no budget", "budget"])
def test_what_the_batch_alone_does_not_decide_is_as_in_eager_mode(
    function: Callable[..., Tensor], options: dict[str, Any]
) -> None:
    def steps(model: Any) -> None:
        for seed in range(3):
            torch.manual_seed(seed)
            backward(model, torch.randn(4, 8), SOME)

    check(uses(function), steps, **options)


def test_a_question_is_small() -> None:
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["example_value"] = torch.ones(2)
    for _ in range(100):
        node = graph.call_method("neg", (node,))
        node.meta["example_value"] = torch.ones(2)
    assert question_about(node) is None
