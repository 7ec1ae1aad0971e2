"""Convolutions computed in other ways: their bits, their costs, and steps that are planned and run with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from equivalence import assert_measured_as_simulated, executors
from torch import Tensor, nn

import vdnn
from vdnn.convolutions.compute import convolution, convolution_backward
from vdnn.convolutions.ways import may_be_exact, parts
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.measured import OpCall, OpVariant, measure, measure_variant, measure_variants, same_bits, undominated
from vdnn.cost.op_memory import workspace_nbytes
from vdnn.cost.table import OpCost
from vdnn.environment import STEP_MEMORY
from vdnn.errors import InvalidInput, Unsupported
from vdnn.hardware.presets import preset
from vdnn.plan.model.bounds import minimum_budget
from vdnn.runtime.process_memory import in_child, peak_of

FORWARD = ("channels_last", "chunks-2", "chunks-4", "chunks-16")
BACKWARD = (*FORWARD, "slices-4", "slices-16", "sums-4")


@dataclass(frozen=True)
class Shape:
    """A convolution of square images. `layout` is the memory format of all its tensors."""

    batch: int
    channels: int
    out_channels: int
    size: int
    kernel: int = 3
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    has_bias: bool = False
    transposed: bool = False
    layout: torch.memory_format = torch.contiguous_format

    @property
    def geometry(self) -> tuple[Any, ...]:
        padding = self.dilation * (self.kernel // 2)
        rest = (self.transposed, [0, 0], self.groups)
        return ([self.stride] * 2, [padding] * 2, [self.dilation] * 2, *rest)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        first, second = self.out_channels, self.channels // self.groups
        if self.transposed:
            first, second = self.channels, self.out_channels // self.groups
        return (first, second, self.kernel, self.kernel)

    @property
    def ties_channels(self) -> bool:
        return self.transposed or self.groups > 1


USUAL = (
    Shape(16, 3, 16, 24, kernel=7, stride=2),
    Shape(16, 16, 32, 16, has_bias=True),
    Shape(16, 32, 16, 16, kernel=1),
    Shape(16, 16, 32, 16, stride=2),
    Shape(16, 32, 32, 14, groups=8),
    Shape(16, 32, 32, 14, groups=32),
    Shape(8, 64, 64, 14),
)
ODD = (
    Shape(1, 8, 8, 9),
    Shape(3, 5, 7, 11, kernel=5, dilation=2),
    Shape(5, 17, 3, 13, stride=3, has_bias=True),
    Shape(2, 1, 1, 7),
    Shape(7, 12, 6, 10, groups=3, has_bias=True),
    Shape(4, 6, 10, 9, stride=2, transposed=True, has_bias=True),
    Shape(6, 8, 12, 12, layout=torch.channels_last, has_bias=True),
)


def tensors(shape: Shape, seed: int) -> tuple[Tensor, Tensor, Tensor | None]:
    torch.manual_seed(seed)
    images = torch.randn(shape.batch, shape.channels, shape.size, shape.size).relu().to(memory_format=shape.layout)
    weight = torch.randn(shape.weight_shape).to(memory_format=shape.layout)
    return images, weight, torch.randn(shape.out_channels) if shape.has_bias else None


def forward(shape: Shape, variant: str, seed: int = 0) -> tuple[Any, Any]:
    """What a variant computes, and what the op does."""
    images, weight, bias = tensors(shape, seed)
    expected = torch.ops.aten.convolution(images, weight, bias, *shape.geometry)
    layouts = [(tuple(expected.shape), expected.stride())]
    return convolution(variant, layouts, images, weight, bias, *shape.geometry), expected


def backward(shape: Shape, variant: str, seed: int = 0) -> tuple[Any, Any]:
    images, weight, bias = tensors(shape, seed)
    gradient = torch.randn_like(torch.ops.aten.convolution(images, weight, bias, *shape.geometry))
    sizes = [shape.out_channels] if shape.has_bias else None
    arguments = (gradient, images, weight, sizes, *shape.geometry, [True, True, shape.has_bias])
    expected = torch.ops.aten.convolution_backward(*arguments)
    layouts = [None if t is None else (tuple(t.shape), t.stride()) for t in expected]
    return convolution_backward(variant, layouts, *arguments), expected


def cases(shapes: tuple[Shape, ...]) -> list[Any]:
    return list(_cases(shapes))


def _cases(shapes: tuple[Shape, ...]) -> Iterator[Any]:
    for number, shape in enumerate(shapes):
        for run, names in ((forward, FORWARD), (backward, BACKWARD)):
            offered = [name for name in names if not (shape.ties_channels and name.startswith("slices"))]
            yield from (pytest.param(run, shape, name, id=f"{run.__name__}-{number}-{name}") for name in offered)


def close(ours: Any, plain: Any) -> bool:
    """To what rounding allows, with the strides of the op."""
    pairs = zip(ours, plain, strict=True) if isinstance(ours, tuple) else [(ours, plain)]
    return all(
        (a is None and b is None) or (a.stride() == b.stride() and torch.allclose(a, b, rtol=1e-3, atol=1e-3))
        for a, b in pairs
    )


@pytest.mark.parametrize(("run", "shape", "variant"), cases(USUAL + ODD))
def test_a_variant_computes_what_the_op_does_in_its_layout(run: Any, shape: Shape, variant: str) -> None:
    assert close(*run(shape, variant))


def in_chunks_of_several(shapes: tuple[Shape, ...]) -> list[Any]:
    """Single small images have a kernel of their own: chunks of at least two, and weights' gradients beside them."""
    chunks = [case for case in cases(shapes) if case.values[2].startswith("chunks")]
    return [case for case in chunks if case.values[1].batch >= 2 * int(case.values[2].removeprefix("chunks-"))]


@pytest.mark.parametrize(("run", "shape", "variant"), in_chunks_of_several(USUAL))
def test_chunks_of_several_images_keep_every_bit(run: Any, shape: Shape, variant: str) -> None:
    """The table of `convolutions/ways.py`."""
    assert same_bits(*run(shape, variant))


@pytest.mark.parametrize(("run", "shape", "variant"), [c for c in cases(ODD) if may_be_exact(c.values[2])])
def test_bits_that_agree_on_one_input_agree_on_others(run: Any, shape: Shape, variant: str) -> None:
    """What measuring relies on when it compares one made-up input: a kernel's order of sums is not a matter of data."""
    if same_bits(*run(shape, variant)):
        assert same_bits(*run(shape, variant, seed=1))


def test_a_sum_of_sums_has_other_bits() -> None:
    """Why `sums` may never call itself exact."""
    assert not same_bits(*backward(Shape(16, 16, 32, 16), "sums-4"))
    assert not may_be_exact("sums-4")


@pytest.mark.parametrize(("length", "count"), [(16, 4), (7, 4), (3, 16), (1, 4), (5, 2)])
def test_parts_cover_everything_once_and_are_no_more_than_asked_for(length: int, count: int) -> None:
    found = list(parts(length, count))
    assert [k for part in found for k in range(length)[part]] == list(range(length))
    assert len(found) <= count


def test_sixteen_chunks_need_less_than_half_the_workspace() -> None:
    images, weight, _ = tensors(Shape(16, 16, 32, 32), 0)
    geometry = Shape(16, 16, 32, 32).geometry
    layouts = [((16, 32, 32, 32), (32768, 1024, 32, 1))]
    op = workspace_nbytes(lambda: torch.ops.aten.convolution(images, weight, None, *geometry))
    chunks = workspace_nbytes(lambda: convolution("chunks-16", layouts, images, weight, None, *geometry))
    assert chunks < op / 2


def one(result: Tensor) -> OpVariant:
    """A way of computing four ones that comes to something else."""
    return OpVariant("other", lambda: (lambda: result.clone(), lambda: torch.ones(4)))


def test_a_variant_whose_bits_differ_when_it_is_measured_is_inexact() -> None:
    given = OpCost(1.0, 1 << 20)
    assert measure_variant("ones", one(torch.ones(4)), given).exact
    assert not measure_variant("ones", one(torch.tensor([1, 1, 1, 1 + 2**-23])), given).exact


def test_a_zero_with_another_sign_is_another_number() -> None:
    assert not same_bits(torch.zeros(2), -torch.zeros(2))


def sums_of_chunks(key: str, count: int, rows: int = 4096) -> OpCall:
    """Twice the sum of a matrix, whose double is the workspace, beside the same in parts."""

    def make() -> Any:
        matrix = torch.ones(rows, 128)
        whole = lambda: (matrix + matrix).sum()  # noqa: E731
        return lambda: torch.stack([(part + part).sum() for part in matrix.chunk(count)]).sum(), whole

    return OpCall(key, lambda: make()[1], (OpVariant(f"chunks-{count}", make),))


def offered(tmp_path: Path, call: OpCall, **options: Any) -> dict[int, tuple[OpCost, ...]]:
    cache = CostCache(tmp_path / "costs.sqlite3", machine="test")
    return measure_variants([call], measure([call], cache), cache, **options)


def test_a_smaller_variant_is_offered_with_its_own_workspace(tmp_path: Path) -> None:
    (choice,) = offered(tmp_path, sums_of_chunks("sum", 8)).values()
    smallest = choice[-1]
    assert (smallest.variant, smallest.exact) == ("chunks-8", True)
    assert smallest.workspace_nbytes < 4096 * 128 * 4 / 6


def test_an_op_with_little_workspace_is_offered_in_no_other_way(tmp_path: Path) -> None:
    assert offered(tmp_path, sums_of_chunks("small sum", 8, rows=16)) == {}


def test_variants_are_measured_once(tmp_path: Path) -> None:
    measured: list[tuple[int, int]] = []
    first = offered(tmp_path, sums_of_chunks("sum", 8), progress=lambda *counts: measured.append(counts))
    again = offered(tmp_path, sums_of_chunks("sum", 8), progress=lambda *counts: measured.append(counts))
    assert (measured, again) == ([(1, 1)], first)


def test_what_is_neither_faster_nor_smaller_is_not_offered() -> None:
    fast, small, worse, twin = OpCost(1, 9), OpCost(3, 1), OpCost(4, 5), OpCost(1, 9, exact=False)
    assert undominated([worse, twin, small, fast]) == (fast, small)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    tail = [nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)]
    return nn.Sequential(*layers, *tail)


def trained(batch: int = 16, size: int = 32, **options: Any) -> tuple[Any, list[Tensor], list[Tensor]]:
    """The virtualized network after two steps, its gradients, and those of the plain network."""
    model, images = network(), torch.randn(batch, 3, size, size)

    def gradients(run: Any) -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        output = run(images)  # held until backward is over, as a training loop holds it
        output.square().mean().backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    options = {"hardware": preset("titan-x"), "costs": "measured"} | options
    virtual = vdnn.virtualize(model, sample=(images,), **options)
    return virtual, [gradients(virtual) for _ in range(2)][-1], gradients(model)


@pytest.fixture(autouse=True)
def own_costs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that these tests measured themselves, shared between them."""
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "costs of variants"))


@pytest.mark.parametrize(
    ("strategy", "budget"), [("keep-all", "95%"), ("offload", "80%"), ("superneurons", "80%"), ("gist", "95%")]
)
def test_within_a_budget_gradients_keep_their_bits_whatever_is_chosen(strategy: str, budget: str) -> None:
    virtual, gradients, plain = trained(strategy=strategy, budget=budget)
    (executor,) = executors(virtual)
    assert any(executor.plan.costs[step].variant for step in executor.plan.variants)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(gradients, plain, strict=True))


@pytest.mark.parametrize("strategy", ["offload", "superneurons"])
def test_measured_bytes_with_variants_are_the_simulated_ones(strategy: str) -> None:
    virtual, _, _ = trained(strategy=strategy, budget="80%")
    assert_measured_as_simulated(virtual)


def test_the_smallest_budget_is_smaller_with_variants() -> None:
    virtual, _, _ = trained(strategy="offload", budget="80%")
    (executor,) = executors(virtual)
    problem = executor.plan.problem
    as_traced = replace(problem, variants={}, budget_nbytes=None)
    assert minimum_budget(problem)[0] < minimum_budget(as_traced)[0]


def test_exact_plans_are_offered_exact_variants_only() -> None:
    virtual, _, _ = trained(strategy="offload", budget="80%")
    (executor,) = executors(virtual)
    assert all(cost.exact for choice in executor.plan.problem.variants.values() for cost in choice)
    assert "nexact" not in str(vdnn.report(virtual))


def test_a_report_names_the_ops_that_run_inexactly() -> None:
    virtual, gradients, plain = trained(strategy="offload", budget="65%", exact=False)
    (piece,) = vdnn.report(virtual).pieces
    assert piece.inexact
    assert "Inexact, as exact=False allows: sums in another order" in " ".join(str(vdnn.report(virtual)).split())
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(gradients, plain, strict=True))


@pytest.mark.parametrize("options", [{"budget": None}, {"budget": "95%", "costs": "roofline", "strategy": "offload"}])
def test_nothing_is_offered_without_a_budget_or_without_measured_costs(options: dict[str, Any]) -> None:
    virtual, _, _ = trained(**options)
    (executor,) = executors(virtual)
    assert executor.plan.problem.variants == {}


def test_exact_is_yes_no_or_strict() -> None:
    with pytest.raises(InvalidInput, match="exact is True, False or 'strict', not 'mostly'"):
        vdnn.virtualize(network(), exact="mostly")


def process_over_plan(budget: str | None) -> tuple[float, int]:
    """The process's peak over the plan's, and the plan's."""
    torch.manual_seed(0)
    model, images = network(), torch.randn(16, 3, 64, 64)
    options = {"strategy": "keep-all", "hardware": preset("titan-x"), "costs": "measured", "budget": budget}
    virtual = vdnn.virtualize(model, sample=(images,), **options)
    for _ in range(2):
        virtual(images).square().mean().backward()
        model.zero_grad(set_to_none=True)
    peak = peak_of(lambda: virtual(images).square().mean().backward())
    (executor,) = executors(virtual)
    resident = sum(tensor.nbytes for tensor in (*model.parameters(), images))
    return (resident + peak.delta_nbytes) / executor.plan.peak_nbytes, executor.plan.peak_nbytes


@pytest.fixture
def freed_memory_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages at planned addresses stay with the process from step to step: it would not grow in the one looked at."""
    monkeypatch.setenv(STEP_MEMORY, "0")


@pytest.mark.usefixtures("freed_memory_leaves")
def test_the_process_takes_what_a_plan_with_variants_counts() -> None:
    try:
        ratio, _ = in_child(process_over_plan, "90%")
    except Unsupported as reason:
        pytest.skip(str(reason))
    assert ratio == pytest.approx(1.0, abs=0.03)


@pytest.mark.slow
@pytest.mark.usefixtures("freed_memory_leaves")
def test_what_variants_save_the_process_does_not_take() -> None:
    try:
        (ratio, whole), (ratio_of_less, less) = in_child(process_over_plan, None), in_child(process_over_plan, "90%")
    except Unsupported as reason:
        pytest.skip(str(reason))
    assert less <= 0.9 * whole
    assert (ratio, ratio_of_less) == pytest.approx((1.0, 1.0), abs=0.03)
