"""Where PyTorch's traced form of something has other bits than its eager form: refused, or left plain, never passed off
as the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from equivalence import assert_same_state, check, executors, only_graph, pair, virtualize
from nets import Using, backward
from torch import Tensor, nn

import vdnn
from vdnn.errors import InexactTrace, OtherLastBits, Unsupported
from where import here, rng_state

pytestmark = pytest.mark.any_device


def channels_last() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 8, 12, 12).to(memory_format=torch.channels_last)


def unpool(images: Tensor, conv: nn.Module, norm: nn.Module) -> Any:
    pooled, where = F.max_pool2d(conv(images), 2, return_indices=True)
    return norm(F.max_unpool2d(pooled, where, 2))


class Unpools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8)

    def forward(self, images: Tensor) -> Any:
        return unpool(images, self.conv, self.norm)


class RandomlyLeaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return F.dropout(F.rrelu(images * self.scale, training=True), 0.4)


@pytest.mark.parametrize("like", [torch.contiguous_format, torch.channels_last], ids=str)
def test_an_op_whose_stand_in_is_laid_out_otherwise_is_exact(like: torch.memory_format) -> None:
    check(Unpools(), lambda model: backward(model, channels_last().contiguous(memory_format=like)))


def test_a_write_whose_traced_form_is_laid_out_otherwise_is_refused_on_the_first_step() -> None:
    """Eager's rrelu is contiguous, and so is the dropout after it; what a trace calls instead is not."""
    check(RandomlyLeaks(), lambda model: backward(model, channels_last().contiguous()))
    _, virtual = pair(RandomlyLeaks())
    with pytest.raises(InexactTrace, match=r"strides .* where .* expected"):
        backward(virtual, channels_last())


@torch.library.custom_op("vdnn_strange::turned", mutates_args=())
def turned(rows: Tensor) -> Tensor:
    return rows.t().clone(memory_format=torch.contiguous_format).t()


turned.register_fake(torch.empty_like)
turned.register_autograd(lambda _, gradient: gradient * 1)


def test_an_op_of_ones_own_that_is_laid_out_otherwise_than_it_says_is_refused_on_the_first_step() -> None:
    layer = nn.Linear(4, 4)
    step = virtualize(lambda rows: turned(layer(rows)).sum())
    with pytest.raises(InexactTrace, match=r"strides .* where .* expected .* register_fake"):
        step(torch.randn(3, 4)).backward()


class UsesItsWeightAgain(nn.Module):
    def __init__(self, num_uses: int, is_used_wide: bool = False) -> None:
        super().__init__()
        self.layer, self.num_uses, self.is_used_wide = nn.Linear(8, 8), num_uses, is_used_wide

    def forward(self, rows: Tensor) -> Tensor:
        with torch.autocast(here().type, dtype=torch.bfloat16):
            for _ in range(self.num_uses):
                rows = torch.tanh(self.layer(rows))
        return rows.float() @ self.layer.weight if self.is_used_wide else rows.float()


@pytest.mark.parametrize("front_end", ["just in time", "ahead of time"])
@pytest.mark.parametrize("num_uses", [2, 3, 5])
def test_a_weight_that_autocast_uses_again_is_cast_once(num_uses: int, front_end: str) -> None:
    rows, sample = torch.randn(3, 8), {"sample": torch.randn(3, 8)} if front_end == "ahead of time" else {}
    plain, virtual = pair(UsesItsWeightAgain(num_uses), **sample)
    for model in (plain, virtual):
        backward(model, rows)
    assert_same_state(plain, virtual)
    casts = [op for op in only_graph(virtual).ops if op.target.startswith("aten._to_copy")]
    assert len(casts) == 7  # of rows, weight, bias and result, and of the gradients of the last three


def test_a_weight_used_in_both_types_runs_plain_when_called() -> None:
    rows = torch.randn(3, 8)
    check(UsesItsWeightAgain(2, is_used_wide=True), lambda model: backward(model, rows))


def product() -> nn.Module:
    """With running statistics and noise, which a measurement must leave alone."""
    return Using(
        lambda self, rows: F.dropout(self.norm(self.layer(rows)), 0.2).exp().prod(1),
        layer=nn.Linear(8, 8),
        norm=nn.BatchNorm1d(8),
    )


INEXACT = {"casts": lambda: UsesItsWeightAgain(2, is_used_wide=True), "product": product}


@pytest.mark.parametrize("asked", [{"exact": "strict"}, {"verify": "first"}], ids=str)
@pytest.mark.parametrize("name", INEXACT)
def test_who_asks_for_the_bits_is_refused_ahead_of_time_what_has_others(name: str, asked: Any) -> None:
    with pytest.raises(InexactTrace, match=r"autocast uses|prod\S* cannot be captured bit for bit"):
        virtualize(INEXACT[name](), sample=torch.randn(3, 8), **asked)


@pytest.mark.parametrize("name", INEXACT)
def test_otherwise_it_trains_and_says_once_which_ops_are_off_and_by_how_much(name: str) -> None:
    rows, model = torch.randn(3, 8), INEXACT[name]()
    virtual: Any = virtualize(copy.deepcopy(model), sample=rows)
    torch.manual_seed(1)
    with pytest.warns(OtherLastBits, match=r"(casts of|prod).*off as one vector.*exact=\"strict\""):
        backward(virtual, rows)
    after = rng_state()
    torch.manual_seed(1)
    backward(model, rows)
    assert torch.equal(after, rng_state())
    pairs = zip(model.state_dict().values(), virtual.state_dict().values(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    (piece,) = vdnn.report(virtual).pieces
    assert piece.other_bits
    assert piece.gradient_error is not None
    off, whole = (sum(float(t.double().square().sum()) for t in found) for found in _gradients(model, virtual))
    assert (off / whole) ** 0.5 < 0.05
    assert (piece.gradient_error.relative == 0) is (off == 0)
    assert "other last bits than eager mode in" in str(vdnn.report(virtual))
    backward(virtual, rows)  # warnings are errors here: it is said once


def _gradients(model: nn.Module, virtual: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    plain = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    found = [parameter.grad for parameter in virtual.parameters() if parameter.grad is not None]
    return [one - two for one, two in zip(plain, found, strict=True)], plain


class ReplacesItsBuffer(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.layer(rows)
        self.mean = self.mean * 0.9 + hidden.detach().mean(0)
        return hidden * self.mean


def test_a_buffer_that_is_replaced_follows_when_called_and_is_refused_ahead_of_time() -> None:
    rows = torch.randn(3, 4)
    plain, virtual = pair(ReplacesItsBuffer())
    for model in (plain, virtual):
        for _ in range(2):
            backward(model, rows)
    assert torch.equal(plain.mean, virtual.mean)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="assigns a new tensor to its buffer 'mean'"):
        virtualize(ReplacesItsBuffer(), sample=rows)


@pytest.mark.parametrize("sample", [None, torch.eye(4) + 0.1])
def test_an_op_ordered_by_tokens_trains_unwatched(sample: Tensor | None) -> None:
    network = Using(lambda self, rows: torch.linalg.inv(self.weight) @ rows, weight=nn.Parameter(torch.eye(4) * 2))
    check(network, lambda model: backward(model, torch.eye(4) + 0.1), sample=sample)


def test_virtualizing_a_virtualized_function_starts_from_the_plain_one() -> None:
    layer = nn.Linear(3, 3)
    once = virtualize(lambda rows: layer(rows).sum())
    twice = virtualize(once, sample=torch.ones(2, 3))
    twice(torch.ones(2, 3)).backward()
    assert len(executors(twice)) == 1
