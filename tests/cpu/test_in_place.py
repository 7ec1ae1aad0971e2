"""Results are written over inputs that nobody reads again, and only over those."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from captured import graph_of, only_op, ops_of, storages_read, storages_written
from nets import Using, images, rows
from torch import Tensor, nn

from vdnn.ir import Phase, Trait


def conv_then(function: Any, **parts: Any) -> nn.Module:
    return Using(lambda self, x: function(self, self.conv(x)), conv=nn.Conv2d(3, 4, 3, padding=1), **parts)


def test_relu_writes_over_the_convolution_it_follows() -> None:
    graph = graph_of(conv_then(lambda self, y: F.relu(y).sum((2, 3))), images())
    relu = only_op(graph, "relu_")
    assert storages_written(graph, relu) == storages_written(graph, only_op(graph, "convolution"))


def test_the_backward_of_relu_writes_over_the_gradient_it_gets() -> None:
    graph = graph_of(conv_then(lambda self, y: F.relu(y).square().sum((2, 3))), images())
    backward = only_op(graph, "threshold_backward")
    assert backward.has(Trait.IN_PLACE)
    assert storages_written(graph, backward)[0] in storages_read(graph, backward)


def test_a_residual_sum_writes_over_its_new_branch() -> None:
    model = Using(lambda self, x: (lambda h: self.b(h) + h)(self.a(x)).relu(), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    add = ops_of(graph, "add_")[0]
    assert storages_written(graph, add) == storages_written(graph, ops_of(graph, "addmm")[1])


def test_a_sum_may_write_over_its_second_argument() -> None:
    # Forward: h is kept for the second layer's gradient, so of h + b(h) only b(h) can be given up.
    model = Using(lambda self, x: (lambda h: h + self.b(h))(self.a(x)).relu(), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    add = next(op for op in graph.ops if op.target == "aten.add.out")
    assert storages_written(graph, add) == storages_written(graph, ops_of(graph, "addmm")[1])


MUST_NOT = {
    "the user's own tensor": Using(lambda self, x: (x.relu() @ self.w).sum(), w=nn.Parameter(torch.ones(4, 4))),
    "a view of the user's tensor": Using(
        lambda self, x: (x.view(-1, 2).relu().view(-1, 4) @ self.w).sum(), w=nn.Parameter(torch.ones(4, 4))
    ),
    "a parameter": Using(lambda self, x: (x @ self.w.relu()).sum(), w=nn.Parameter(torch.ones(4, 4))),
    "a view of a parameter": Using(lambda self, x: (x @ self.w.t().relu()).sum(), w=nn.Parameter(torch.ones(4, 4))),
    "a value that is read later": Using(lambda self, x: (lambda h: h.relu() + h)(self.a(x)), a=nn.Linear(4, 4)),
    "a value that is read later through a view": Using(
        lambda self, x: (lambda h: h.relu().t() @ h.t().t())(self.a(x)), a=nn.Linear(4, 4)
    ),
    "a value that backward reads": Using(lambda self, x: (lambda h: h.sin() + h.relu())(self.a(x)), a=nn.Linear(4, 4)),
    "an output": Using(lambda self, x: (lambda h: (h, h.relu()))(self.a(x)), a=nn.Linear(4, 4)),
    "a part of a larger storage": Using(lambda self, x: self.a(x)[:, :2].relu(), a=nn.Linear(4, 4)),
    "an expanded row": Using(lambda self, x: self.a(x).sum(0, keepdim=True).expand(3, 4).relu(), a=nn.Linear(4, 4)),
}


@pytest.mark.parametrize("model", MUST_NOT.values(), ids=MUST_NOT.keys())
def test_relu_does_not_write_over(model: nn.Module) -> None:
    graph = graph_of(model, rows())
    assert ops_of(graph, "relu_") == []
    assert len(ops_of(graph, "relu")) == 1


def test_the_callers_gradient_is_not_written_over() -> None:
    graph = graph_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), rows())
    backward = only_op(graph, "threshold_backward")
    assert not backward.has(Trait.IN_PLACE)


def test_a_view_of_the_callers_gradient_is_not_written_over() -> None:
    model = Using(lambda self, x: self.a(x).relu().view(-1, 2), a=nn.Linear(4, 4))
    backward = only_op(graph_of(model, rows()), "threshold_backward")
    assert not backward.has(Trait.IN_PLACE)


def test_what_forward_left_for_backward_is_not_written_over_by_the_last_who_reads_it() -> None:
    # A plan may keep it in another form by then, and a retained graph needs it again. The gradient that comes from the
    # sum is one number expanded, so the result of exp is the only memory that its backward could write over.
    model = Using(lambda self, x: self.a(x).exp().sum(), a=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    made_in_forward = {s for op in graph.ops[: graph.num_forward] for s in storages_written(graph, op)}
    in_place = [op for op in graph.ops[graph.num_forward :] if op.has(Trait.IN_PLACE)]
    assert not any(made_in_forward & set(storages_written(graph, op)) for op in in_place)


def test_a_dead_input_of_another_layout_is_left_alone() -> None:
    # The sum has the strides of its first argument, which backward needs; its second is dead, but transposed to it.
    def sum_of_layouts(self: Any, x: Tensor) -> Tensor:
        hidden = self.a(x)
        return (hidden.t() + self.b(x)).sum() + hidden.sin().sum()

    model = Using(sum_of_layouts, a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    graph = graph_of(model, rows(4))
    matrices = [op for op in graph.ops if "add." in op.target and graph.values[op.writes[0]].shape == (4, 4)]
    assert [op.has(Trait.IN_PLACE) for op in matrices if op.phase is Phase.FORWARD] == [False]


def test_a_result_of_another_dtype_gets_memory_of_its_own() -> None:
    model = Using(lambda self, x: self.a(x) + torch.ones(3, 4, dtype=torch.float64), a=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    assert ops_of(graph, "add_") == []
    assert {graph.values[value].dtype for op in ops_of(graph, "add") for value in op.writes} == {"float64"}
