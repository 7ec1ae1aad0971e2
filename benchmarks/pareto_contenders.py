"""Who takes part in `benchmarks/pareto.py`: everything that trains one step of a network in its own way.

Enters: a workload. Leaves: `Contender`s, each a function that trains one step from no gradients to all of them.

- eager: plain PyTorch.
- checkpoint: `torch.utils.checkpoint` per block, in sqrt(n) stretches, selectively (results of convolutions, matrix
  products and attention are kept), and for DenseNet per layer.
- accumulation: the batch in 2 and 4 parts, gradients added up. With batch normalization each part is normalized by
  itself: that is another computation, and its row says so.
- aot_eager, inductor: `torch.compile` at several `activation_memory_budget`s. Both cut forward from backward with the
  min-cut partitioner, which is what reads the budget; the first then runs PyTorch's own kernels, the second compiles.
- vdnn: the strategy at shares of keep-all's peak, and at each eager contender's own measured peak; once in the same
  bits as eager (exact), and once with other orders of summation allowed (inexact) where that makes a difference: with
  batch normalization the batch cannot be taken in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._functorch.config as functorch_config
from checkpointing import Forwards, in_sqrt_stretches, per_block, per_dense_layer, selective, step_with
from torch import Tensor, nn

import vdnn
from vdnn.api import session_of
from vdnn.models.spec import Workload
from vdnn.plan.plan import Plan
from vdnn.runtime.journeys import trips_of

EAGER, CHECKPOINT, ACCUMULATION = "eager", "checkpoint", "accumulation"
AOT_EAGER, INDUCTOR = "aot_eager", "inductor"
EXACT, INEXACT = "vdnn exact", "vdnn inexact"
EAGER_FAMILIES = (EAGER, CHECKPOINT, ACCUMULATION)
COMPILED_FAMILIES = (AOT_EAGER, INDUCTOR)
OUR_FAMILIES = (EXACT, INEXACT)
FAMILIES = (*EAGER_FAMILIES, *COMPILED_FAMILIES, *OUR_FAMILIES)

NUM_PARTS = (2, 4)
STRATEGY = "auto"


@dataclass(frozen=True)
class Lineup:
    """Who is let in: families, the activation memory budgets of compiled ones, and vdnn's shares of keep-all's peak in
    percent."""

    families: tuple[str, ...] = FAMILIES
    activation_budgets: tuple[float, ...] = (1.0, 0.7, 0.5, 0.3, 0.1)
    shares: tuple[int, ...] = (100, 75, 50, 35, 25)


@dataclass(frozen=True)
class Contender:
    """`train()` is one forward and backward. `is_same_step` is False where something else is computed than in eager
    mode, beyond rounding; `note` then says what. `virtual` is what vdnn made, for its plan."""

    name: str
    family: str
    train: Callable[[], Tensor]
    note: str = ""
    is_same_step: bool = True
    virtual: Any = None

    def plans(self) -> list[Plan]:
        """Of a vdnn contender that has run; nobody else has any."""
        return [] if self.virtual is None else [executor.plan for executor in session_of(self.virtual).executors]

    def uses_slower_tiers(self) -> bool:
        return any(trips_of(plan) for plan in self.plans())


def train_with(load: Workload, step: Callable[..., Tensor]) -> Tensor:
    loss = step(*load.args)
    loss.backward()
    return loss.detach()


def eager_contenders(load: Workload) -> Iterator[Contender]:
    yield Contender("eager", EAGER, partial(train_with, load, load.step))
    yield from checkpointed(load)
    yield from accumulated(load)


def checkpointed(load: Workload) -> Iterator[Contender]:
    ways: dict[str, Forwards | None] = {
        "checkpoint per block": per_block(load),
        "checkpoint sqrt(n)": in_sqrt_stretches(load),
        "checkpoint selective": selective(load),
        "checkpoint per layer": per_dense_layer(load),
    }
    for name, forwards in ways.items():
        if forwards is not None:
            yield Contender(name, CHECKPOINT, partial(train_with, load, step_with(load, forwards)))


def accumulated(load: Workload) -> Iterator[Contender]:
    is_other_step = is_normalized(load)
    note = "normalizes each part of the batch by itself" if is_other_step else ""
    for num_parts in NUM_PARTS:
        if len(load.args[0]) >= num_parts:
            train = partial(train_in_parts, load, num_parts)
            yield Contender(f"accumulation in {num_parts}", ACCUMULATION, train, note, not is_other_step)


def is_normalized(load: Workload) -> bool:
    return any(isinstance(module, nn.BatchNorm2d) for module in load.model.modules())


def train_in_parts(load: Workload, num_parts: int) -> Tensor:
    """Every loss of the zoo is a mean over the batch, so a part counts as its share of it."""
    batch, total = len(load.args[0]), torch.zeros(())
    for part in zip(*(argument.chunk(num_parts) for argument in load.args), strict=True):
        loss = load.step(*part) * (len(part[0]) / batch)
        loss.backward()
        total += loss.detach()
    return total


def compiled_contenders(load: Workload, family: str, budgets: Sequence[float]) -> Iterator[Contender]:
    for budget in budgets:
        step = compiled_step(load, family, budget)
        yield Contender(f"{family} {budget}", family, partial(train_with, load, step))


def compiled_step(load: Workload, backend: str, budget: float) -> Callable[..., Tensor]:
    compile_apart: Any = torch.compile  # its overloads do not know isolate_recompiles, its implementation does
    compiled = compile_apart(load.step, backend=backend, dynamic=False, isolate_recompiles=True)

    def step(*args: Tensor) -> Tensor:
        with functorch_config.patch(activation_memory_budget=budget):  # read when the first call compiles
            loss: Tensor = compiled(*args)
            return loss

    return step


def vdnn_contender(load: Workload, family: str, asked: str, budget: int | str) -> Contender:
    step = vdnn.virtualize(load.step, budget=budget, strategy=STRATEGY, exact=family == EXACT)
    return Contender(ours(asked, family), family, partial(train_with, load, step), virtual=step)


def ours(asked: str, family: str) -> str:
    return f"{STRATEGY} {asked}" + ("" if family == EXACT else ", inexact")


def within(peer: str) -> str:
    """What is asked of the contender that gets `peer`'s bytes for its budget."""
    return f"within {peer}"
