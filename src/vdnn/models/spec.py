"""What a network of the zoo is: how to build it, what to feed it, and the loss that makes a training step of it.

Enters: constants of a family's file (`vgg.py`, `resnet.py`, ...). Leaves: a frozen `ModelSpec`, and from it a
`Workload`, which is all that the planner, the runtime and the command line ever see. The one idea: nothing here names
a device. `build` and `sample` work on whatever `torch.device(...)` is in force, so that the same spec trains on a CPU
and is planned on "meta" without a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vdnn.errors import InvalidInput
from vdnn.models.samples import Images


@dataclass(frozen=True)
class Workload:
    """One training step, ready to be captured: `step(*args)` runs `model` and returns a scalar loss."""

    name: str
    model: nn.Module
    args: tuple[Tensor, ...]
    step: Callable[..., Tensor]


class Recipe(Protocol):
    """Whatever a name resolves to: a network of the zoo, or the user's own factory."""

    @property
    def name(self) -> str: ...

    def workload(self, batch: int) -> Workload: ...

    def small(self) -> Recipe: ...

    def at_image_size(self, size: int) -> Recipe: ...


@dataclass(frozen=True)
class Toy:
    """The same network class at toy widths, and a sample that fits it."""

    build: Callable[[], nn.Module]
    sample: Callable[[int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class ModelSpec:
    """A network with its published size. `source` names the paper and says where `num_parameters` comes from."""

    name: str
    title: str
    source: str
    num_parameters: int
    build: Callable[[], nn.Module]
    """Makes the network on the current default device, in training mode."""
    sample: Callable[[int], tuple[Tensor, ...]]
    """`sample(batch)` is `(*inputs, target)` on the current default device."""
    loss: Callable[[Any, Tensor], Tensor]
    """`loss(output, target)` is a scalar."""
    smallest_batch: int = 1
    """More than 1 where a batch normalization follows a map of a single pixel."""
    toy: Toy | None = None
    """What `small` builds and samples. None: this spec is small already."""

    def step(self, model: nn.Module) -> Callable[..., Tensor]:
        """The loss inside a function: `step(*inputs, target)`."""

        def training_step(*sample: Tensor) -> Tensor:
            *inputs, target = sample
            return self.loss(model(*inputs), target)

        return training_step

    def workload(self, batch: int) -> Workload:
        """Model, sample and step, made on the current default device."""
        check_batch(batch)
        if batch < self.smallest_batch:
            raise InvalidInput(
                f"{self.name} trains with batches of {self.smallest_batch} or more, not {batch}:"
                " with fewer, one of its batch normalizations would see a single value per channel."
            )
        model = self.build()
        return Workload(self.name, model, self.sample(batch), self.step(model))

    def small(self) -> ModelSpec:
        """The same architecture at toy widths, for tests: every kind of layer, few repeats, under 5 M parameters."""
        if self.toy is None:
            return self
        return replace(
            self,
            name=f"{self.name}-small",
            source=f"toy variant of {self.name}; parameters counted",
            num_parameters=count_parameters(self.toy.build),
            build=self.toy.build,
            sample=self.toy.sample,
            toy=None,
        )

    def at_image_size(self, size: int) -> ModelSpec:
        """The same network fed with square images of `size` pixels."""
        if not isinstance(self.sample, Images):
            raise InvalidInput(f"{self.name} takes no images of a free size: leave out image_size={size!r}.")
        return replace(self, sample=self.sample.at(self.name, size))


def check_batch(batch: int) -> None:
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidInput(f"a batch is a whole number of samples, at least 1, not {batch!r}.")


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """Counts on meta, without memory; tied parameters count once. For toy variants, whose size nobody published."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())
