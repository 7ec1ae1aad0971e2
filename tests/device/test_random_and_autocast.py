"""The device's generators, autocast, loss scaling and checkpoints, as training asks for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("vdev")


def test_a_seed_decides_the_numbers_of_both_devices_and_not_those_of_the_cpu_after_them() -> None:
    torch.manual_seed(5)
    expected = [torch.rand(4), torch.rand(4)]
    for device in ("vdev:0", "vdev:1"):
        torch.manual_seed(5)
        assert torch.equal(torch.rand(4, device=device).cpu(), expected[0])
        functional.dropout(torch.ones(100, device=device), 0.5)
        assert torch.equal(torch.rand(4), expected[0])


def test_a_state_that_is_put_back_gives_the_same_mask() -> None:
    x = torch.ones(1000, device="vdev")
    state = torch.vdev.get_rng_state()
    first = functional.dropout(x, 0.5)
    assert not torch.equal(first, functional.dropout(x, 0.5))
    torch.vdev.set_rng_state(state)
    assert torch.equal(first, functional.dropout(x, 0.5))
    with torch.random.fork_rng(devices=[0], device_type="vdev"):
        torch.rand(10, device="vdev")
    after = torch.vdev.get_rng_state()
    torch.vdev.set_rng_state(state)
    functional.dropout(x, 0.5)
    assert torch.equal(after, torch.vdev.get_rng_state())


def test_a_generator_of_ones_own_leaves_the_devices_alone() -> None:
    state = torch.vdev.get_rng_state()
    draws = [
        torch.rand(4, device="vdev", generator=torch.Generator("vdev").manual_seed(seed)).cpu() for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(state, torch.vdev.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_lowers_products_keeps_sums_and_widens_mixed_arguments(dtype: torch.dtype) -> None:
    x, weight = torch.randn(4, 4, device="vdev"), torch.randn(4, 4, device="vdev")
    with torch.autocast("vdev", dtype=dtype):
        product = x @ weight
        assert product.dtype == dtype
        assert functional.softmax(product, -1).dtype == torch.float32
        assert torch.addcmul(product, x, weight).dtype == torch.float32
        with torch.autocast("vdev", enabled=False):
            assert (x @ weight).dtype == torch.float32
    assert torch.equal(product, x.to(dtype) @ weight.to(dtype))


def test_a_step_with_infinite_gradients_is_left_out_and_the_scale_shrinks() -> None:
    weight = nn.Parameter(torch.ones(4, device="vdev"))
    optimizer, scaler = torch.optim.SGD([weight], 0.5), torch.amp.GradScaler("vdev", init_scale=8.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weight.detach().cpu(), torch.full((4,), 0.5))
    weight.grad = torch.full_like(weight, torch.inf)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weight.detach().cpu(), torch.full((4,), 0.5))
    assert scaler.get_scale() == 4.0


def test_a_checkpoint_draws_its_masks_again() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16)).to("vdev")
    x = torch.randn(4, 16, device="vdev", requires_grad=True)
    found = []
    for run in (block, lambda x: checkpoint(block, x, use_reentrant=False)):
        torch.manual_seed(1)
        found.append(torch.autograd.grad(run(x).square().sum(), [x, *block.parameters()]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
