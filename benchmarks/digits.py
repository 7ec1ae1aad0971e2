"""Delayed reduction trains: a small convolutional network on handwritten digits, with its maps in short floats.

Delayed, as Gist does it (Jain et al., ISCA 2018): forward computes in fp32, and what backward needs is rounded in
between, through `vdnn.virtualize(step, lossy=...)`. Immediate: every activation is rounded as soon as it is there, so
that forward computes with the rounded values; gradients pass as if nothing had happened. Both use the same kernels, and
for each seed the same weights, split and order of batches. Immediate networks are tested as trained, rounding.

The data are the 1797 images of 8×8 pixels that come with scikit-learn: an easy task, on which much goes well.

    python benchmarks/digits.py                         # some minutes on two cores
    python benchmarks/digits.py --seeds 2 --epochs 5 --save digits.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from provenance import Record, provenance
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

import vdnn
from vdnn.codecs.kernels import kernels_of
from vdnn.codecs.kernels.formats import reduced_nbytes

FORMATS = ("fp16", "fp10", "fp8")
EXACT = "fp32"
BATCH = 64
LEARNING_RATE, MOMENTUM = 0.05, 0.9
TEST_SHARE = 0.2
LARGEST_PIXEL = 16.0  # of scikit-learn's digits

Step = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Data:
    images: Tensor
    digits: Tensor
    test_images: Tensor
    test_digits: Tensor


@dataclass(frozen=True)
class Method:
    """How maps are rounded: "exact", "delayed" or "immediate", and to what."""

    when: str
    format: str


METHODS = (Method("exact", EXACT), *(Method(when, f) for f in FORMATS for when in ("delayed", "immediate")))


@dataclass(frozen=True)
class Outcome:
    """Of one training. `gradient_error`: the first step's gradient, its distance from the exact one over the latter's
    length."""

    accuracy: float
    final_loss: float
    gradient_error: float


def digits(seed: int, num_images: int | None = None) -> Data:
    """A stratified split. `num_images`: of how many of the 1797."""
    images, targets = load_digits(return_X_y=True)
    parts = train_test_split(
        images[:num_images],
        targets[:num_images],
        test_size=TEST_SHARE,
        random_state=seed,
        stratify=targets[:num_images],
    )
    train, test, train_digits, test_digits = (torch.from_numpy(part) for part in parts)
    return Data(as_images(train), train_digits, as_images(test), test_digits)


def as_images(pixels: Tensor) -> Tensor:
    return (pixels.float() / LARGEST_PIXEL).reshape(-1, 1, 8, 8)


class Rounded(torch.autograd.Function):
    """The nearest value that the format has; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, map: Tensor, format: str) -> Tensor:
        return rounded(map, format)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def rounded(map: Tensor, format: str) -> Tensor:
    values = map.detach().contiguous().reshape(-1).numpy()
    packed, result = np.empty(reduced_nbytes(values.size, format), np.uint8), np.empty_like(values)
    kernels = kernels_of("cpu")
    kernels.reduce(values, format, packed)
    kernels.expand(packed, format, result)
    return torch.from_numpy(result).reshape(map.shape)


class Rounding(nn.Module):
    def __init__(self, format: str) -> None:
        super().__init__()
        self.format = format

    def forward(self, map: Tensor) -> Tensor:
        return Rounded.apply(map, self.format)


def network(seed: int, immediate: str | None = None) -> nn.Sequential:
    """Two convolutions with ReLU and pool, one linear layer. `immediate`: each of the six's results is rounded so."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    if immediate is not None:
        layers = [part for layer in layers for part in (layer, Rounding(immediate))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4, 10))


def step_of(model: nn.Module, method: Method, sample: tuple[Tensor, Tensor]) -> Step:
    def step(images: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(model(images), targets)

    return vdnn.virtualize(step, sample=sample, lossy=method.format) if method.when == "delayed" else step


def batches(data: Data, seed: int, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole batches only: one shape, one captured graph."""
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(data.images), generator=order).split(BATCH):
            if len(chosen) == BATCH:
                yield data.images[chosen], data.digits[chosen]


def train(method: Method, data: Data, seed: int, epochs: int) -> Outcome:
    model = network(seed, method.format if method.when == "immediate" else None)
    sample = next(batches(data, seed, 1))
    step = step_of(model, method, sample)
    error = gradient_error(gradient(model, step, sample), exact_gradient(seed, sample))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    loss = torch.tensor(float("nan"))
    for images, targets in batches(data, seed, epochs):
        optimizer.zero_grad()
        loss = step(images, targets)
        loss.backward()
        optimizer.step()
    return Outcome(accuracy(model, data), loss.item(), error)


def gradient(model: nn.Module, step: Step, sample: tuple[Tensor, Tensor]) -> Tensor:
    """Of all parameters, as one vector."""
    model.zero_grad(set_to_none=True)
    step(*sample).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def exact_gradient(seed: int, sample: tuple[Tensor, Tensor]) -> Tensor:
    model = network(seed)
    return gradient(model, step_of(model, METHODS[0], sample), sample)


def gradient_error(found: Tensor, exact: Tensor) -> float:
    return ((found - exact).norm() / exact.norm()).item()


def accuracy(model: nn.Module, data: Data) -> float:
    with torch.no_grad():
        return (model(data.test_images).argmax(1) == data.test_digits).float().mean().item()


def rows(seeds: int, epochs: int, trials: list[str]) -> Iterator[list[str]]:
    """A row per method as it is trained; each seed's accuracy goes into `trials`."""
    splits = [digits(seed) for seed in range(seeds)]
    for method in METHODS:
        outcomes = [train(method, data, seed, epochs) for seed, data in enumerate(splits)]
        found = [outcome.accuracy for outcome in outcomes]
        trials.append(f"{method.format:4} {method.when:10}" + "".join(f" {100 * each:6.2f}" for each in found))
        yield [
            method.format,
            method.when,
            f"{100 * fmean(found):.2f} ± {100 * (stdev(found) if seeds > 1 else 0):.2f} %",
            f"{fmean(outcome.final_loss for outcome in outcomes):.4f}",
            f"{fmean(outcome.gradient_error for outcome in outcomes):.1e}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--save", type=Path, default=None, help="a file for what is printed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the network is too small to share
    record, trials = Record(), list[str]()
    record.say(*provenance(), f"- {arguments.seeds} seeds, {arguments.epochs} epochs, SGD with momentum {MOMENTUM}.")
    head = ("format", "rounding", "test accuracy", "last loss", "error of the first gradient")
    record.table(head, rows(arguments.seeds, arguments.epochs, trials))
    record.say("Test accuracy in %, seed by seed:", "", "```text", *trials, "```")
    if arguments.save is not None:
        record.save(arguments.save)


if __name__ == "__main__":
    main()
