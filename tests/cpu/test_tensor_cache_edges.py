"""The tensor cache where things are unusual: subclasses, data that decides sizes, readers that write, full tiers, state
that appears late.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from test_tensor_cache import batch, cache_of, grads, inside, model, plain_peak, same
from torch import Tensor, nn

from vdnn.eager.live_bytes import LiveBytes
from vdnn.eager.op_needs import OpNeeds
from vdnn.eager.saved_items import Item, Saved, Tallies
from vdnn.errors import Infeasible
from vdnn.hardware.emulated import emulated
from where import here

pytestmark = pytest.mark.any_device

TAKES_LITTLE = emulated(host_nbytes=8192, disk=False)


def test_a_tensor_subclass_passes_through_a_watched_step() -> None:
    """In a process of its own: what this is about ended in a segmentation fault."""
    program = """
import torch, vdnn
from torch.testing._internal.two_tensor import TwoTensor
a = torch.randn(64, 64, requires_grad=True)
b = TwoTensor(torch.randn(64, 64), torch.randn(64, 64))
(a * b).sum().backward()
expected, a.grad = a.grad, None
for _ in range(3):
    with vdnn.tensor_cache(1 << 40):
        (a * b).sum().backward()
    assert type(a.grad) is type(expected) and torch.equal(a.grad.a, expected.a), a.grad
    a.grad = None
print("the same")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "the same\n", (done.returncode, done.stderr[-2000:])


@pytest.mark.cpu_only("the device for tests has no sparse tensors")
def test_sparse_tensors_pass_through_a_watched_step() -> None:
    weight, x = torch.randn(64, 64).relu().to_sparse(), batch(rows=64, width=64).requires_grad_()
    (expected,) = torch.autograd.grad(torch.sparse.mm(weight, x.sin()).sum(), x)
    with cache_of(1 << 30):
        (got,) = torch.autograd.grad(torch.sparse.mm(weight, x.sin()).sum(), x)
    assert torch.equal(got, expected)


class Spoils(torch.autograd.Function):
    """Writes over what it has saved, which others have saved too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        x.zero_()
        return gradient * 2


@pytest.mark.filterwarnings("ignore:the tensor cache cannot stay within")
@pytest.mark.parametrize("budget", [1, 1 << 30], ids=["away in between", "never away"])
def test_a_reader_that_writes_over_what_others_read_later_is_refused_as_in_eager(budget: int) -> None:
    def step() -> None:
        a = batch(rows=64, width=64).requires_grad_()
        h = a.exp()
        y = Spoils.apply(h)
        del h
        y.sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step()
    with cache_of(budget, over_budget="warn"), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step()


def test_optimizer_state_that_appears_late_is_counted() -> None:
    cache, net, x = cache_of(plain_peak(model(), batch()) * 3 // 4), model(), batch()
    optimizer = torch.optim.Adam(net.parameters())
    for number in range(1, 8):
        with cache:
            net(x).backward()
        if number == 4:
            optimizer.step()
            optimizer.zero_grad()
    state = [value for known in optimizer.state.values() for value in known.values() if isinstance(value, Tensor)]
    counted = set(cache._live._alive)
    assert cache.findings.num_watched == 7
    assert all(tensor.untyped_storage()._cdata in counted for tensor in state if tensor.device == here())


def test_what_is_fetched_again_and_again_is_remembered_once() -> None:
    cache, net = cache_of(plain_peak(model(), batch()) // 2), model()
    sizes = []
    for _ in range(6):
        inside(cache, net, batch())
        sizes.append(len(cache._space._passing))
    assert cache.findings.num_fetched > 6
    assert max(sizes[2:]) <= max(sizes[:2])


def test_a_full_tier_is_no_error_where_a_warning_was_asked_for() -> None:
    cache = cache_of(plain_peak(model(), batch()) // 2, TAKES_LITTLE, over_budget="warn")
    net, other = model(), model()
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match=r"(?s)with no room elsewhere.*the host tier has no room"):
        inside(cache, net, batch())
    torch.manual_seed(1)
    other(batch()).backward()
    assert same(grads(net), grads(other))


def test_a_full_tier_is_named_where_the_budget_cannot_be_kept() -> None:
    with pytest.raises(Infeasible, match=r"(?s)with no room elsewhere.*the host tier has no room"):
        inside(cache_of(plain_peak(model(), batch()) // 2, TAKES_LITTLE), model(), batch())


def test_an_unwatched_step_that_departs_moves_no_parameter() -> None:
    cache, weights, x = cache_of(1 << 30), [nn.Parameter(batch(seed)) for seed in range(3)], batch()

    def forward() -> Tensor:
        y = x
        for weight in weights:
            y = (y * weight).sin()
        return y

    for _ in range(3):
        with cache:
            forward().sum().backward()
    with cache:
        loss = forward().exp().sum()
        known = [item for ref in cache._space._recent.values() if (item := ref()) is not None]
        assert {item.key for item in known}.isdisjoint(weight.untyped_storage()._cdata for weight in weights)
        assert len(known) >= 4
        loss.backward()


def test_sizes_that_data_decides_are_not_remembered() -> None:
    needs, x = OpNeeds(), torch.randn(64, 64)
    op, every, one = torch.ops.aten.index.Tensor, torch.ones(64, 64, dtype=torch.bool), torch.zeros(64, 64).bool()
    one[0, 0] = True
    before = needs.before(op, (x, [every]), {})
    needs.after(before, x.nbytes, x.nbytes)
    assert before.nbytes == 0
    assert needs.before(op, (x, [one]), {}).nbytes == 0
    assert needs.before(op, (x, [torch.arange(8)]), {}).nbytes == 8 * 64 * 4


def test_counting_finds_what_was_made_outside() -> None:
    live, held = LiveBytes(here()), torch.zeros(1 << 16)
    gc.collect()
    live.count_everything()
    assert held.untyped_storage()._cdata in live._alive


def test_whoever_was_given_a_tensor_before_its_step_departed_is_counted() -> None:
    """A routine step hands out the tensor object it holds; memory that somebody has does not come free by moving it."""
    saved = Saved(None, torch.ones(4096))
    given = saved.held()
    item = Item(saved.alias, 0, 0, Tallies())
    item.take_over(saved)
    assert not item.is_worth_moving
    del given
    assert item.is_worth_moving


@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_dropped_graph_of_a_routine_step_is_freed(is_leaf: bool) -> None:
    """A leaf is held as it is, anything else without the graph that would hold it."""
    cache, freed = cache_of(1 << 40), []
    for number in range(4):
        source = torch.randn(64, 64, requires_grad=True)
        weakref.finalize(source.untyped_storage(), freed.append, 0)
        with cache:
            (source if is_leaf else source * 2).exp().sigmoid().sum()
        del source
        gc.collect()
        assert len(freed) == number + 1  # now, not when a later step takes over what this one held
    assert cache.findings.num_watched < cache.findings.num_steps == 4


def test_a_parameter_changed_between_forward_and_backward_is_noticed_in_a_routine_step() -> None:
    cache, weight = cache_of(1 << 40), nn.Parameter(torch.randn(64, 64))
    for _ in range(3):
        with cache:
            (weight * weight).exp().sum().backward()
    with cache:
        loss = (weight * weight).exp().sum()
        with torch.no_grad():
            weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert cache.findings.num_watched == 2


def test_a_wrapper_that_torch_func_left_behind_counts_nothing() -> None:
    left: list[torch.Tensor] = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        left.append(x)
        return x.square().sum()

    torch.func.grad(loss)(torch.ones(4))
    with pytest.raises(NotImplementedError):
        left[0].untyped_storage()
    live = LiveBytes(here())
    live.count_everything()
    assert live.count(left[0]) == 0
