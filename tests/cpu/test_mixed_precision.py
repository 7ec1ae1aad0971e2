"""Mixed precision as people use it: autocast in either narrow type with a GradScaler, and models that are narrow
themselves. Losses, gradients, scales and statistics are those of plain PyTorch, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

import vdnn
from vdnn import models
from where import here

pytestmark = pytest.mark.any_device

NARROW = [torch.bfloat16, torch.float16]
NUM_STEPS = 3


class GroupNormUNet(nn.Module):
    """One level of it: down, up, and a connection past both."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle, self.up = self.block(3, 8), self.block(8, 16), self.block(24, 8)
        self.last = nn.Conv2d(8, 2, 1)

    @staticmethod
    def block(channels: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(channels, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU())

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down(images)
        coarse = self.middle(F.max_pool2d(fine, 2))
        return self.last(self.up(torch.cat([fine, F.interpolate(coarse, scale_factor=2.0)], dim=1)))


@dataclass
class Trainee:
    """A model, its batch and its loss, made anew for plain PyTorch and for vdnn."""

    model: nn.Module
    args: tuple[Tensor, ...]
    step: Callable[..., Tensor]


def group_norm_unet() -> Trainee:
    model = GroupNormUNet()
    args = torch.randn(2, 3, 16, 16), torch.randint(2, (2, 16, 16))
    return Trainee(model, args, lambda images, classes: F.cross_entropy(model(images), classes))


def of_the_zoo(name: str) -> Trainee:
    small = models.load(name, 2, small=True)
    return Trainee(small.model, small.args, small.step)


NETWORKS: dict[str, Callable[[], Trainee]] = {
    "ResNet-50": lambda: of_the_zoo("resnet50"),
    "ViT": lambda: of_the_zoo("vit"),
    "GPT-2 shape": lambda: of_the_zoo("gpt2"),
    "U-Net with GroupNorm": group_norm_unet,
}


def made(network: str) -> Trainee:
    torch.manual_seed(0)
    trainee = NETWORKS[network]()
    trainee.model.to(here())
    return replace(trainee, args=tuple(one.to(here()) for one in trainee.args))


def trained(trainee: Trainee, step: Callable[..., Tensor], *, is_scaled: bool = True) -> Iterator[Tensor]:
    """Losses, gradients, scales, parameters and buffers of a few steps, with a GradScaler as the guides say."""
    optimizer = torch.optim.SGD(trainee.model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(here().type, init_scale=1024.0, growth_interval=2, enabled=is_scaled)
    for number in range(NUM_STEPS):
        torch.manual_seed(number)
        optimizer.zero_grad()
        loss = step(*trainee.args)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        yield loss.detach().clone()
        yield from (p.grad.clone() for p in trainee.model.parameters() if p.grad is not None)
        scaler.step(optimizer)
        scaler.update()
        yield torch.tensor(scaler.get_scale())
    yield from (tensor.detach() for tensor in trainee.model.state_dict().values())


def in_autocast(step: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    def narrow(*args: Tensor) -> Tensor:
        with torch.autocast(here().type, dtype):
            return step(*args)

    return narrow


@pytest.mark.parametrize("strategy", ["keep-all", "superneurons", "gist"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("network", NETWORKS)
def test_autocast_with_a_scaler_trains_bit_for_bit(network: str, dtype: torch.dtype, strategy: str) -> None:
    plain, ours = made(network), made(network)
    virtual = vdnn.virtualize(in_autocast(ours.step, dtype), strategy=strategy)
    expected, found = list(trained(plain, in_autocast(plain.step, dtype))), list(trained(ours, virtual))
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert vdnn.report(virtual).strategy == strategy


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("network", ["ResNet-50", "U-Net with GroupNorm"])
def test_a_narrow_model_trains_bit_for_bit(network: str, dtype: torch.dtype, sample: bool) -> None:
    """Of convolutions and norms, whose statistics are then narrow or not, as the kernels have it. Scalers are for wide
    parameters."""
    plain, ours = made(network), made(network)
    for trainee in (plain, ours):
        trainee.model.to(dtype)
        trainee.args = tuple(one.to(dtype) if one.is_floating_point() else one for one in trainee.args)
    virtual = vdnn.virtualize(ours.step, sample=ours.args if sample else None, strategy="superneurons")
    expected, found = (list(trained(*one, is_scaled=False)) for one in ((plain, plain.step), (ours, virtual)))
    assert all(map(torch.equal, found, expected))
