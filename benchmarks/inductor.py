"""What fused kernels are worth: step time of one plan run op by op and with `compiler="inductor"`.

Both executors take turns in one process, so that whatever else the machine does falls on both; the figure is the ratio
of medians. The networks are small ones of the shapes of ResNet-50 and GPT-2, because every distinct region takes
seconds to compile. Bytes are those that PyTorch's allocator reports in a step, with everything that is there before it.

    python benchmarks/inductor.py                   # both networks, keep-all and 60 % of its peak
    python benchmarks/inductor.py resnet --rounds 21
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import accumulate, permutations
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import vdnn
from vdnn.api import session_of
from vdnn.cost.op_memory import allocation_changes
from vdnn.models.resnet import ResNet
from vdnn.units import format_nbytes, format_seconds

Step = Callable[..., Tensor]
BUDGETS = (None, "60%")


class Block(nn.Module):
    """A pre-normalised transformer block, as GPT-2's."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout, self.gelu = nn.Dropout(0.1), nn.GELU(approximate="tanh")
        self.num_heads = num_heads

    def forward(self, x: Tensor) -> Tensor:
        heads = (x.shape[0], x.shape[1], self.num_heads, -1)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.outer(self.gelu(self.inner(self.norm2(x)))))


def resnet() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """One bottleneck per stage, half as wide as ResNet-50."""
    return ResNet((1, 1, 1, 1), width=32, num_classes=100), (torch.randn(16, 3, 128, 128), torch.arange(16))


def gpt2() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Two blocks, a third as wide as GPT-2, without its vocabulary."""
    blocks = nn.Sequential(Block(256, 4), Block(256, 4), nn.Flatten(), nn.Linear(256 * 256, 10))
    return blocks, (torch.randn(8, 256, 256), torch.arange(8))


NETWORKS = {"resnet": resnet, "gpt2": gpt2}


def step_of(model: nn.Module) -> Step:
    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(inputs), targets)

    return step


def timed(model: nn.Module, step: Step, args: tuple[Tensor, ...]) -> float:
    model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    step(*args).backward()
    return time.perf_counter() - begin


def allocated_nbytes(model: nn.Module, step: Step, args: tuple[Tensor, ...]) -> int:
    """The most bytes at once in a step, with the parameters, buffers and arguments that are there before."""
    model.zero_grad(set_to_none=True)
    high = max(accumulate(allocation_changes(lambda: step(*args).backward()), initial=0))
    return high + sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *args))


def compare(name: str, budget: str | None, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, args = NETWORKS[name]()
    steps: dict[str, Step] = {"plain": step_of(model)}
    prepared_s = {}
    for compiler in ("eager", "inductor"):
        begin = time.perf_counter()
        steps[compiler] = vdnn.virtualize(step_of(model), sample=args, budget=budget, compiler=compiler)
        prepared_s[compiler] = time.perf_counter() - begin
    seconds: dict[str, list[float]] = {which: [] for which in steps}
    for step in steps.values():  # the first step of a virtualized model is watched
        timed(model, step, args)
    orders = list(permutations(steps))  # whoever follows itself finds its memory warm: everyone does equally often
    for number in range(rounds):
        for which in orders[number % len(orders)]:
            seconds[which].append(timed(model, steps[which], args))
    (executor,) = session_of(steps["inductor"]).executors
    return {
        "seconds": {which: median(times) for which, times in seconds.items()},
        "prepared_s": prepared_s,
        "fused": executor.num_fused_ops,
        "steps": len(executor.plan.problem.graph),
        "peak": executor.plan.peak_nbytes,
        "bound": executor.plan.problem.budget_nbytes,
        "allocated": {which: allocated_nbytes(model, steps[which], args) for which in ("eager", "inductor")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=18)
    arguments = parser.parse_args()
    for name in arguments.networks:
        for budget in BUDGETS:
            found = compare(name, budget, arguments.rounds)
            eager_s, fused_s = found["seconds"]["eager"], found["seconds"]["inductor"]
            times = ", ".join(f"{which} {format_seconds(s)}" for which, s in found["seconds"].items())
            print(f"{name}, budget {budget}: {times}; inductor / eager executor {fused_s / eager_s:.2f}")
            bound = "none" if found["bound"] is None else format_nbytes(found["bound"])
            print(
                f"  {found['fused']} ops fused, {found['steps']} steps; planned {format_nbytes(found['peak'])},"
                f" allocated {format_nbytes(found['allocated']['eager'])} op by op and"
                f" {format_nbytes(found['allocated']['inductor'])} fused, budget {bound};"
                f" prepared in {found['prepared_s']['eager']:.0f} s and {found['prepared_s']['inductor']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
