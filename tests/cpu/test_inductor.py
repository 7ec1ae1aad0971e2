"""`compiler="inductor"`: the same plans with fused kernels, within 1e-5 of eager mode and within the plan's bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import equivalence
import pytest
import torch
from equivalence import executors
from nets import PYTORCH_MAY_WARN
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import vdnn
from larger import larger
from vdnn.compile.backend import vdnn as backend
from vdnn.compile.inductor.fuse import TOLERANCE, _difference
from vdnn.compile.inductor.regions import computing, neighbours_of, region_of, split
from vdnn.cost.op_memory import allocation_changes
from vdnn.errors import InvalidInput
from vdnn.rewrite.halves import Half

pytestmark = PYTORCH_MAY_WARN


class Residual(nn.Module):
    """Two convolutions with batch normalisation beside a path that skips them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(inner)))


class Gated(nn.Module):
    """Normalised, gated layers with dropout, and the loss inside."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).sigmoid() * torch.tanh(x)
        return x.square().mean()


def images() -> Tensor:
    return torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(0))


def rows() -> Tensor:
    return torch.randn(256, 32, generator=torch.Generator().manual_seed(0))


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Residual(), Residual(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))


def virtualize(model: nn.Module, sample: Tensor, **options: Any) -> nn.Module:
    return equivalence.virtualize(model, sample=(sample,), compiler="inductor", **options)


def outcomes(model: nn.Module, args: Tensor, virtual_of: Callable[[nn.Module], nn.Module]) -> tuple[Any, ...]:
    """Three steps of training, plain and virtualized from the same state; and the virtualized model."""
    plain, other = copy.deepcopy(model), copy.deepcopy(model)
    virtual = virtual_of(other)
    expected = equivalence.train(lambda x: plain(x).square().mean(), plain, (args,))
    found = equivalence.train(lambda x: virtual(x).square().mean(), other, (args,))
    return expected, found, virtual


def largest_error(expected: equivalence.Outcome, found: equivalence.Outcome) -> float:
    """Of all gradients, parameters and buffers, relative to the largest element of each."""
    errors = []
    for name, tensor in expected.tensors.items():
        other = found.tensors[name]
        assert tensor is not None, name
        assert other is not None, name
        scale = max(float(tensor.abs().max()), 1e-3)  # gradients that are zero but for rounding have no scale
        errors.append(float((tensor.double() - other.double()).abs().max()) / scale)
    return max(errors)


@pytest.mark.parametrize("strategy", ["gist", *larger("keep-all", "recompute-memory", "vdnn-all")])
def test_training_is_within_the_tolerance_of_eager_mode(strategy: str) -> None:
    x = images()
    expected, found, virtual = outcomes(conv_net(), x, lambda model: virtualize(model, x, strategy=strategy))
    assert executors(virtual)[0].num_fused_ops > 0
    assert largest_error(expected, found) < TOLERANCE


def test_dropout_draws_the_numbers_of_eager_mode() -> None:
    x = rows()
    expected, found, virtual = outcomes(Gated(depth=1), x, lambda model: virtualize(model, x))
    assert executors(virtual)[0].num_fused_ops > 0
    assert torch.equal(expected.rng_state, found.rng_state)
    assert largest_error(expected, found) < TOLERANCE


def test_torch_compile_takes_the_compiler_as_an_option() -> None:
    x = images()
    asked: Any = {"dynamic": False, "options": {"compiler": "inductor", "hardware": "titan-x"}}
    expected, found, _ = outcomes(conv_net(), x, lambda model: torch.compile(model, backend=backend, **asked))
    assert 0 < largest_error(expected, found) < TOLERANCE  # not bit for bit: kernels were at work


@pytest.mark.parametrize("budget", ["60%", *larger(None, "35%")])
def test_what_a_step_allocates_stays_within_the_bound(budget: str | None) -> None:
    """By the allocator's own events, which see what kernels allocate inside. The plan counts all but the handle that
    joins backward to forward and the staging of copies: half a page."""
    model, x = Gated(), rows()
    virtual = virtualize(model, x, budget=budget)

    def step() -> None:
        virtual(x).backward()

    for _ in range(2):  # the first is watched, and a watched step runs op by op
        step()
        model.zero_grad()
    high = max(accumulate(allocation_changes(step), initial=0))
    (executor,) = executors(virtual)
    held = sum(tensor.nbytes for tensor in (*model.parameters(), x))
    bound = executor.plan.problem.budget_nbytes or executor.plan.peak_nbytes
    assert executor.num_fused_ops > 0
    assert high + held <= bound + 2048


@pytest.mark.slow
def test_less_is_fused_where_the_budget_has_no_room() -> None:
    fused = [executors(virtualize(Gated(), rows(), budget=budget))[0].num_fused_ops for budget in (None, "35%")]
    assert fused[0] > fused[1]


def test_backward_can_run_twice_over_one_forward() -> None:
    model, x = conv_net(), images()
    virtual = virtualize(model, x)
    virtual(x).sum().backward()
    model.zero_grad()
    loss = virtual(x).sum()
    loss.backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    loss.backward()
    assert all(
        torch.equal(grad, p.grad) for grad, p in zip(once, model.parameters(), strict=True) if p.grad is not None
    )


def test_another_compiler_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="compiler is 'eager' or 'inductor', not 'xla'"):
        vdnn.virtualize(conv_net(), compiler="xla")


def half_of(function: Callable[..., Any], *args: Tensor, storages: tuple[int, ...]) -> Half:
    """A traced function as a half whose inputs lie in the given storages."""
    module = make_fx(function, tracing_mode="fake")(*args)
    placeholders = module.graph.find_nodes(op="placeholder")
    return Half("forward", module, {}, dict(zip(placeholders, storages, strict=True)))


def written_and_read(a: Tensor, b: Tensor) -> Tensor:
    a.add_(1)
    return b.mul(2).exp()


def test_a_region_that_writes_into_a_storage_sees_it_in_one_look() -> None:
    apart = half_of(written_and_read, torch.ones(4), torch.ones(4), storages=(0, 1))
    together = half_of(written_and_read, torch.ones(4), torch.ones(4), storages=(0, 0))
    assert [len(computing(neighbours)) for neighbours in neighbours_of(apart)] == [3]
    assert [len(computing(neighbours)) for neighbours in neighbours_of(together)] == [2]


def test_a_view_of_a_result_is_made_outside_the_region() -> None:
    half = half_of(lambda a: a.relu().exp().t(), torch.ones(2, 3), storages=(0,))
    (neighbours,) = neighbours_of(half)
    region = region_of(half, neighbours)
    assert [node.name for node in region.outputs] == ["exp"]
    assert "t" not in [node.name for node in region.nodes]


def test_random_ops_and_products_end_a_region() -> None:
    half = half_of(lambda a: torch.bernoulli(a.exp().sin()).cos().tan() @ a, torch.ones(2, 2), storages=(0,))
    assert [[node.name for node in neighbours] for neighbours in neighbours_of(half)] == [
        ["exp", "sin"],
        ["cos", "tan"],
    ]


def test_a_stretch_is_split_at_its_middle_op_and_single_ops_are_left() -> None:
    half = half_of(lambda a: a.exp().sin().cos(), torch.ones(2), storages=(0,))
    (neighbours,) = neighbours_of(half)
    assert [[node.name for node in part] for part in split(neighbours)] == [["sin", "cos"]]


def test_a_kernel_is_refused_for_other_values_other_strides_and_shared_storages() -> None:
    eager, shared = torch.ones(2, 3), torch.ones(2, 3)
    assert _difference([eager], [torch.ones(2, 3) + 1e-7]) == ""
    assert "values" in _difference([eager], [torch.ones(2, 3) + 1e-3])
    assert "values" in _difference([eager], [torch.full((2, 3), torch.nan)])
    assert "is not" in _difference([eager], [torch.ones(3, 2).t()])
    assert "share" in _difference([eager, eager], [shared, shared])
