"""From a model to a graph: roles, names, modules, needs, traits and flops, without allocating anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from captured import graph_of, names_of, nbytes_of, only_op, ops_of, stashed
from equivalence import only_graph, plan, virtualize
from nets import EITHER_FRONT_END, ConvNet, Using, backward, images, options, rows
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from vdnn.capture.ops.traits import traits_of
from vdnn.errors import InvalidInput
from vdnn.ir import Graph, Need, Phase, Role, Trait
from vdnn.known_ops.known_op import KnownOp


def captured(front_end: str) -> Graph:
    virtual = virtualize(ConvNet(), **options(front_end, images()))
    backward(virtual, images())
    return only_graph(virtual)


@EITHER_FRONT_END
def test_parameters_and_buffers_have_the_names_of_the_state_dict(front_end: str) -> None:
    graph = captured(front_end)
    named = set(names_of(graph, Role.PARAMETER) + names_of(graph, Role.BUFFER))
    assert named == set(ConvNet().state_dict())


@EITHER_FRONT_END
def test_every_parameter_gets_a_gradient_of_its_name_and_size(front_end: str) -> None:
    graph = captured(front_end)
    sizes = {storage.name: storage.nbytes for storage in graph.storages if storage.role is Role.GRADIENT}
    assert sizes == {f"gradient of {name}": p.nbytes for name, p in ConvNet().named_parameters()}


@EITHER_FRONT_END
def test_the_input_and_the_output_are_known(front_end: str) -> None:
    graph = captured(front_end)
    assert nbytes_of(graph, Role.INPUT) == images().nbytes
    assert nbytes_of(graph, Role.OUTPUT) == 4 * 4 * 4


@EITHER_FRONT_END
def test_ops_know_the_module_they_came_from_in_both_phases(front_end: str) -> None:
    graph = captured(front_end)
    modules = {(op.target.split(".")[1], op.module) for op in graph.ops}
    assert {
        ("convolution", "conv"),
        ("convolution_backward", "conv"),
        ("native_batch_norm_backward", "norm"),
    } <= modules
    assert {("bernoulli_", "dropout"), ("addmm", "linear")} <= modules


def nested() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))


def function_over_a_module() -> Callable[[Tensor], Tensor]:
    model = nested()

    def step(batch: Tensor) -> Tensor:
        return model(batch).sum()

    return step


@EITHER_FRONT_END
@pytest.mark.parametrize("make", [nested, function_over_a_module])
def test_layers_in_layers_are_named_by_their_path(front_end: str, make: Any) -> None:
    virtual = virtualize(make(), **options(front_end, rows()))
    virtual(rows()).sum().backward()
    graph = only_graph(virtual)
    paths = [op.module.removeprefix("model.") for op in ops_of(graph, "addmm")]
    names = sorted(name.removeprefix("model.") for name in names_of(graph, Role.PARAMETER))
    assert paths == ["0", "1.1"]
    assert names == ["0.bias", "0.weight", "1.1.bias", "1.1.weight"]


def test_a_function_has_its_loss_inside_and_a_module_has_it_outside() -> None:
    model = nn.Linear(4, 2)
    of_module = graph_of(model, rows())
    of_function = graph_of(lambda batch: model(batch).square().sum(), rows())
    assert [of_module.values[value].shape for value in of_module.tangents] == [(3, 2)]
    assert [of_function.values[value].shape for value in of_function.tangents] == [()]
    assert len(of_function) > len(of_module)


def test_a_step_without_gradients_is_all_forward() -> None:
    graph = graph_of(nn.Linear(4, 4).requires_grad_(False), rows())
    assert {op.phase for op in graph.ops} == {Phase.FORWARD}


def pooled(self: Any, x: Tensor) -> Tensor:
    return self.b(F.avg_pool2d(F.max_pool2d(F.relu(self.a(x)), 2), 3).flatten(1))


def test_backward_needs_a_sign_of_relu_an_index_of_max_pool_and_a_shape_of_average_pool() -> None:
    graph = graph_of(Using(pooled, a=nn.Conv2d(3, 4, 3), b=nn.Linear(4, 2)), images())
    needs = stashed(graph)
    relu, pool = "convolution", "max_pool2d_with_indices"
    assert (needs[relu], needs[f"{pool}.0"], needs[f"{pool}.1"]) == ("sign", "shape", "window index")


def test_backward_needs_a_bool_of_a_dropout_mask() -> None:
    model = Using(lambda self, x: torch.native_dropout(self.a(x), 0.5, True)[0].sum(), a=nn.Linear(4, 4))
    assert stashed(graph_of(model, rows()))["native_dropout.1"] == Need.BOOL


def test_relu_against_another_threshold_than_zero_needs_a_bool() -> None:
    model = Using(lambda self, x: F.threshold(self.a(x), 0.5, 0.0).sum(), a=nn.Linear(4, 4))
    (backward_op,) = ops_of(graph_of(model, rows()), "threshold_backward")
    assert Need.BOOL in {read.need for read in backward_op.reads}


def test_a_convolution_whose_weight_is_frozen_needs_only_the_shape_of_its_input() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sigmoid(), nn.Conv2d(3, 4, 3))
    model[2].requires_grad_(False)
    graph = graph_of(model, images())
    first_backward = ops_of(graph, "convolution_backward")[0]
    needs = {graph.storages[graph.values[read.value].storage].role: read.need for read in first_backward.reads}
    assert needs[Role.FEATURE_MAP] is Need.SHAPE


@torch.library.custom_op("vdnn_tests::halve", mutates_args=())
def halve(x: Tensor) -> Tensor:
    """An op that vdnn cannot know."""
    return x / 2


@halve.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


halve.register_autograd(lambda ctx, gradient: gradient / 2)


def test_an_unknown_op_must_be_kept_and_needs_all_values() -> None:
    graph = graph_of(Using(lambda self, x: halve(self.a(x)).sum(), a=nn.Linear(4, 4)), rows())
    op = only_op(graph, "halve") if ops_of(graph, "halve") else next(op for op in graph.ops if "halve" in op.target)
    assert op.has(Trait.MUST_KEEP)
    assert {read.need for read in op.reads} == {Need.ALL}


@EITHER_FRONT_END
def test_an_unknown_op_runs_as_it_is(front_end: str) -> None:
    model = Using(lambda self, x: halve(self.a(x)), a=nn.Linear(4, 4))
    virtual = virtualize(model, **options(front_end, rows()))
    assert torch.equal(virtual(rows()), model(rows()))


TRAITS = {
    torch.ops.aten.view.default: {Trait.VIEW},
    torch.ops.aten.relu_.default: {Trait.IN_PLACE},
    torch.ops.aten.native_dropout.default: {Trait.RANDOM},
    torch.ops.aten.bernoulli_.float: {Trait.IN_PLACE, Trait.RANDOM},
    torch.ops.aten.mm.default: set(),
    torch.ops._c10d_functional.all_reduce.default: {Trait.COLLECTIVE},
    len: {Trait.MUST_KEEP},
}


# Named by the op alone: sets of words print in another order in every process, and workers must agree on names.
@pytest.mark.parametrize(("op", "traits"), TRAITS.items(), ids=[str(op) for op in TRAITS])
def test_traits_of_known_and_unknown_ops(op: Any, traits: set[Trait]) -> None:
    assert traits_of(op) == traits


def test_what_an_op_may_not_do_its_in_place_form_may_not_either(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = KnownOp("tanh", traits=frozenset({Trait.MUST_KEEP}))
    monkeypatch.setattr("vdnn.known_ops.KNOWN_OPS", {entry.name: entry})
    assert traits_of(torch.ops.aten.tanh.default) == {Trait.MUST_KEEP}
    assert traits_of(torch.ops.aten.tanh_.default) == {Trait.MUST_KEEP, Trait.IN_PLACE}


def test_flops_of_a_matrix_product_and_of_a_convolution() -> None:
    linear = graph_of(nn.Linear(5, 7), torch.ones(3, 5))
    assert only_op(linear, "addmm").flops == 2 * 3 * 5 * 7
    conv = graph_of(nn.Conv2d(3, 8, 3, padding=1), images(4))
    assert only_op(conv, "convolution").flops == 2 * 4 * 8 * 8 * (8 * 3 * 9)
    assert {op.flops for op in linear.ops if op.has(Trait.VIEW)} == {0}


def resident_nbytes() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("this system has no /proc/self/status to read the process's memory from")
    return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))


def huge() -> tuple[nn.Module, Tensor]:
    """100 GB of parameters and a batch of 4 GB, of which nothing exists."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(100_000, 125_000), nn.ReLU(), nn.Linear(125_000, 100_000)), torch.empty(
            10_000, 100_000
        )


def test_a_step_of_meta_tensors_is_planned_without_allocating_it() -> None:
    graph_of(nn.Linear(4, 4), rows())  # whatever PyTorch loads on first use is loaded now
    model, batch = huge()
    before = resident_nbytes()
    found = plan(model, batch)
    assert found.peak_nbytes > 200e9
    assert resident_nbytes() - before < 100e6


def test_a_sample_may_be_fake() -> None:
    with FakeTensorMode():
        batch = torch.empty(3, 4)
    assert graph_of(nn.Linear(4, 4), batch) == graph_of(nn.Linear(4, 4), rows())


def test_a_plan_of_real_meta_and_virtualized_models_is_one_and_the_same() -> None:
    model = ConvNet()
    real = graph_of(model, images())
    assert graph_of(virtualize(model), images()) == real
    assert graph_of(ConvNet().to("meta"), images().to("meta")) == real


def test_planning_leaves_the_model_as_it_was() -> None:
    model = ConvNet()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plan(model, images())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


STATE_NBYTES_PER_PARAMETER = {"sgd": (0, 0), "momentum": (1, 0), "adam": (2, 4), "adamw": (2, 4)}


@pytest.mark.parametrize(("optimizer", "copies_and_extra"), STATE_NBYTES_PER_PARAMETER.items())
def test_optimizer_state_is_counted(optimizer: str, copies_and_extra: tuple[int, int]) -> None:
    copies, extra = copies_and_extra
    model = ConvNet()
    model.conv.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    graph = graph_of(model, images(), optimizer=optimizer)
    expected = sum(copies * p.nbytes + extra for p in trained)
    assert nbytes_of(graph, Role.OPTIMIZER_STATE) == expected


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_the_counted_state_of_adam_is_what_torch_keeps(make: Any) -> None:
    model = ConvNet()
    backward(model, images())
    optimizer = make(model.parameters())
    optimizer.step()
    kept = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor))
    graph = graph_of(model, images(), optimizer=make.__name__)
    assert nbytes_of(graph, Role.OPTIMIZER_STATE) == kept


def test_an_unknown_optimizer_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="unknown optimizer 'adamx': choose one of adagrad, adam, "):
        plan(nn.Linear(4, 4), rows(), optimizer="adamx")
