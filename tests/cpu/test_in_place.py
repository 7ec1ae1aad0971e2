"""Results are written over inputs that nobody reads again, and only over those."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from captured import graph_of, only_op, ops_of, storages_read, storages_written
from equivalence import assert_measured_as_simulated, assert_same, both, differences, train, virtualize
from nets import EITHER_FRONT_END, Using, images, options, rows
from torch import Tensor, nn

from vdnn.ir import Graph, Op, Phase, Trait

pytestmark = pytest.mark.any_device


def conv_then(function: Any, **parts: Any) -> nn.Module:
    return Using(lambda self, x: function(self, self.conv(x)), conv=nn.Conv2d(3, 4, 3, padding=1), **parts)


def writes_over_what_it_reads(graph: Graph, op: Op) -> bool:
    return storages_written(graph, op)[0] in storages_read(graph, op)


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


@pytest.mark.cpu_only("its kernels read a row before they write it")
def test_log_softmax_writes_over_the_logits_and_its_backward_over_the_gradient() -> None:
    model = Using(lambda self, x, y: F.cross_entropy(self.a(x), y), a=nn.Linear(4, 5))
    graph = graph_of(model, rows(), torch.tensor([0, 1, 2]))
    forward, backward = only_op(graph, "_log_softmax"), only_op(graph, "_log_softmax_backward_data")
    assert storages_written(graph, forward) == storages_written(graph, only_op(graph, "addmm"))
    assert storages_written(graph, backward) == storages_written(graph, only_op(graph, "nll_loss_backward"))


def test_log_softmax_does_not_write_over_logits_that_are_returned() -> None:
    model = Using(lambda self, x: (lambda y: (y, y.log_softmax(1)))(self.a(x)), a=nn.Linear(4, 5))
    graph = graph_of(model, rows())
    assert not writes_over_what_it_reads(graph, only_op(graph, "_log_softmax"))


@pytest.mark.cpu_only("accelerators have one kernel for attention with dropout")
def test_attention_with_dropout_keeps_one_tensor_of_the_size_of_its_scores_in_forward() -> None:
    # Scores, scaled scores, shares, shares without masked rows: one storage. Beside it only what dropout draws.
    def attend(self: Any, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x), self.k(x), x, torch.ones(9, 9).tril().bool(), dropout_p=0.5)

    graph = graph_of(Using(attend, q=nn.Linear(4, 4), k=nn.Linear(4, 4)), torch.ones(2, 3, 9, 4))
    made = {s for op in graph.ops[: graph.num_forward] for s in storages_written(graph, op)}
    assert sum(graph.storages[s].nbytes == 4 * 2 * 3 * 9 * 9 for s in made) == 3  # scores, noise, what dropout leaves


@pytest.mark.cpu_only("accelerators have one kernel for dropout")
def test_a_result_is_written_over_its_input_through_a_view() -> None:
    model = Using(lambda self, x: F.dropout(self.a(x).view(3, 2, 2), 0.5).square().sum(), a=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    scaled = [op for op in ops_of(graph, "mul_") if op.phase is Phase.FORWARD]
    assert storages_written(graph, scaled[0]) == storages_written(graph, only_op(graph, "addmm"))


def test_a_result_is_written_over_its_transposed_input() -> None:
    model = Using(lambda self, x: self.a(x).t().relu(), a=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    assert storages_written(graph, only_op(graph, "relu_")) == storages_written(graph, only_op(graph, "addmm"))


def test_a_bias_that_is_spread_over_the_result_does_not_stop_it() -> None:
    model = Using(lambda self, x: self.a(x) + self.b, a=nn.Linear(4, 4, bias=False), b=nn.Parameter(torch.ones(4)))
    graph = graph_of(model, rows())
    assert storages_written(graph, only_op(graph, "add_")) == storages_written(graph, ops_of(graph, "mm")[0])


def test_an_input_that_the_op_also_reads_transposed_is_not_written_over() -> None:
    model = Using(lambda self, x: (lambda h: h + h.t())(self.a(x)).sin(), a=nn.Linear(4, 4))
    graph = graph_of(model, rows(4))
    assert not any(op.has(Trait.IN_PLACE) for op in graph.ops[: graph.num_forward])


def test_what_is_smaller_than_the_result_is_not_written_over() -> None:
    model = Using(lambda self, x: x + self.a(x).sum(0), a=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    assert not any(op.has(Trait.IN_PLACE) for op in graph.ops[: graph.num_forward])


def test_the_gradient_of_an_index_is_put_into_the_zeros_it_starts_from() -> None:
    model = Using(lambda self, x: self.a(x)[torch.tensor([2, 0, 2])].square().sum(), a=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    put = only_op(graph, "index_put_")
    assert writes_over_what_it_reads(graph, put)


def test_a_part_is_assigned_in_place() -> None:
    def assign(self: Any, x: Tensor) -> Tensor:
        y = self.a(x)
        y[:, 0] = y[:, 1] * 2
        return y

    graph = graph_of(Using(assign, a=nn.Linear(4, 4)), rows())
    forward = graph.ops[: graph.num_forward]
    whole = [s for s in {s for op in forward for s in storages_written(graph, op)} if graph.storages[s].nbytes == 48]
    assert [graph.storages[s].name for s in whole] == ["addmm"]


def test_a_clone_of_what_nobody_reads_again_is_no_copy() -> None:
    model = Using(lambda self, x: self.a(x).clone().sin(), a=nn.Linear(4, 4))
    graph = graph_of(model, rows())
    assert storages_written(graph, only_op(graph, "copy_")) == storages_written(graph, only_op(graph, "addmm"))


def _assigned(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 1] = y[:, 0].tanh()
    y[:, :2].mul_(0.3)
    y.diagonal().add_(1)
    return y


def _assigned_from_itself(x: Tensor) -> Tensor:
    y = x.sin()
    y[1:] = y[:-1].exp().contiguous()
    y[:, 2:] = 0.5
    return y * x


PROGRAMS: dict[str, Any] = {
    "cross entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2, 1, 0])),
    "softmax of rows": lambda x: x.softmax(1),
    "softmax of columns": lambda x: x.softmax(0),
    "log-softmax of a transposed tensor": lambda x: x.t().log_softmax(0),
    "softmax of masked scores": lambda x: x.masked_fill(torch.ones(5, 4).tril() == 0, -torch.inf).softmax(1),
    "activations": lambda x: F.gelu(F.silu(F.elu(F.hardsigmoid(F.softplus(x + 1) * 2)))),
    "activations in turn": lambda x: F.hardswish(F.mish(F.relu6(F.celu(F.selu(x * 3)))) - 0.5),
    "chained arithmetic": lambda x: (x.exp().clamp(max=2).sqrt() + 1).log().pow(3).reciprocal().neg().abs(),
    "bfloat16": lambda x: (F.gelu(x.bfloat16() * 0.7) / 3).softmax(1).float(),
    "bfloat16 means": lambda x: (x.bfloat16().mean(1, keepdim=True) * 0.7).float() * x.bfloat16().std(),
    "an index": lambda x: x[torch.tensor([3, 1, 3])] * 2,
    "gathered": lambda x: x.gather(1, torch.tensor([[0, 1], [2, 0], [1, 1], [3, 3], [2, 1]])) * 2,
    "sorted": lambda x: x.sort(1).values.cumsum(1),
    "the largest": lambda x: x.max(1).values + x.topk(2, 0).values.sum(),
    "either of two": lambda x: torch.where(x > 0, x * 2, x.sin()).maximum(x.cos()),
    "assigned parts": _assigned,
    "cloned": lambda x: x.sin().clone().relu_(),
    "a sum with its own transpose": lambda x: (lambda h: h + h.t())(x.t() @ x).sin(),
    "lower triangle": lambda x: (x @ x.t()).tril().sum(0),
    "many gradients of one tensor": lambda x: x.sin() + x.cos() * x.tanh() + x.t().relu().t() + x.view(-1).view(5, 4),
    "parts assigned to others": _assigned_from_itself,
    "smooth losses": lambda x: sum(f(x * 2, x.sin(), reduction="none") for f in (F.smooth_l1_loss, F.huber_loss)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None] * 2, x[None].sin(), dropout_p=0.3),
}


def _program(function: Any) -> nn.Module:
    torch.manual_seed(0)
    return Using(lambda self, x: function(self.a(x)).square().mean(), a=nn.Linear(4, 4))


@EITHER_FRONT_END
@pytest.mark.parametrize("function", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_program_trains_bit_for_bit_in_the_bytes_that_were_planned(front_end: str, function: Any) -> None:
    plain, model = _program(function), _program(function)
    expected = train(plain, plain, (rows(5),))
    virtual = virtualize(model, **options(front_end, rows(5)))
    assert_same(expected, train(virtual, model, (rows(5),)))
    assert_measured_as_simulated(virtual)


def test_a_part_of_a_part_is_assigned_bit_for_bit() -> None:
    # The inner part stays functional, and PyTorch's kernel for that takes more than its trace says: no bytes here.
    def assign(x: Tensor) -> Tensor:
        y = x.sin()
        y[2, 1] = y[3, 2] * 2
        return y * x

    plain, model = _program(assign), _program(assign)
    expected = train(plain, plain, (rows(5),))
    assert_same(expected, train(virtualize(model, sample=rows(5)), model, (rows(5),)))


def test_a_buffer_that_is_copied_and_then_changed_is_copied_as_it_was() -> None:
    def step(self: Any, x: Tensor) -> Tensor:
        self.before.copy_(self.now)
        self.now.add_(1)
        return (self.a(x) * self.before).sum()

    def make() -> nn.Module:
        torch.manual_seed(0)
        return Using(
            step, a=nn.Linear(4, 4), now=torch.arange(4.0), before=torch.zeros(4)
        )  # written back in this order

    plain, model = make(), make()
    expected = train(plain, plain, (rows(),))
    assert_same(expected, train(virtualize(model, sample=rows()), model, (rows(),)))


@pytest.mark.parametrize("function", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_second_backward_over_a_retained_graph_gives_the_same_gradients(function: Any) -> None:
    def twice(model: nn.Module) -> dict[str, Tensor | None]:
        loss = model(rows(5))
        loss.backward(retain_graph=True)
        first = {f"first {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        loss.backward()
        return first | {name: p.grad for name, p in model.named_parameters()}

    plain = _program(function)
    expected, found = both(plain, virtualize(_program(function), sample=rows(5)), twice)
    assert list(differences(expected, found)) == []


def test_a_gradient_that_the_caller_passes_in_is_left_as_it_was() -> None:
    model = virtualize(Using(lambda self, x: self.a(x).softmax(1), a=nn.Linear(4, 4)), sample=rows())
    gradient = torch.linspace(0, 1, 12).view(3, 4)
    model(rows()).backward(gradient)
    assert torch.equal(gradient, torch.linspace(0, 1, 12).view(3, 4))


def order() -> Tensor:
    return torch.tensor([2, 0, 1])


SCATTERS: dict[str, Any] = {
    "index_add": lambda h, i: torch.index_add(h, 0, i, h),
    "index_copy": lambda h, i: torch.index_copy(h, 0, i, h),
    "index_put": lambda h, i: torch.index_put(h, (i,), h),
    "scatter_add": lambda h, i: torch.scatter_add(h, 0, i[:, None].expand_as(h), h),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_an_op_that_reads_elsewhere_what_it_would_write_makes_a_new_tensor(name: str) -> None:
    class Scatters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("order", order())

        def forward(self, x: Tensor) -> Tensor:
            return SCATTERS[name](self.layer(x), self.order).square().sum()

    torch.manual_seed(0)
    plain, virtual = Scatters(), Scatters()
    virtual.load_state_dict(plain.state_dict())
    step = virtualize(virtual, sample=(torch.ones(3, 4),))
    x = torch.randn(3, 4)
    plain(x).backward()
    step(x).backward()
    assert torch.equal(plain.layer.weight.grad, virtual.layer.weight.grad)  # type: ignore[arg-type]
