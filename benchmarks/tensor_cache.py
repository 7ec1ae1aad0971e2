"""What the tensor cache costs: nothing moves when the budget is above the peak, and what half the peak takes.

Three kinds of step take turns in one process: plain, plain again, and cached. The ratio is the median, over rounds, of
the cached step over the mean of its two neighbours, on which a load that comes and goes falls alike; the ratio of plain
to plain says how far to trust it. Peaks are exact tensor bytes, counted by the storage tracker on a step of their own.
The `decides` network looks at its data to choose its layers: no graph captures it.

Freed memory that malloc returns to the system costs page faults when it is taken again: none to thirty thousand in a
step of `decides`, plain or cached, by the luck of where the last small block lies. So malloc is told to keep it, which
takes that lottery out of the comparison; `--malloc-returns` leaves it in.

    python benchmarks/tensor_cache.py                    # three networks
    python benchmarks/tensor_cache.py decides --rounds 60
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import permutations
from statistics import mean, median
from typing import Any

import torch
from provenance import Record, provenance
from torch import Tensor, nn

import vdnn
from vdnn import models
from vdnn.eager.live_bytes import LiveBytes
from vdnn.ir import Role
from vdnn.runtime.tracker import StorageTracker
from vdnn.units import format_nbytes, format_seconds

WARM_UP = 3  # steps before time is taken: the first two are watched
ENOUGH_S = 60.0  # short steps scatter more than they cost: more rounds of them, for this long


class Decides(nn.Module):
    """Convolutions in an order that the data chooses."""

    def __init__(self, channels: int = 32, depth: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for layer in self.layers:
            x = torch.relu(layer(x)) if x.mean().item() > 0 else torch.tanh(layer(x)) + x
        return x.square().mean()


@dataclass(frozen=True)
class Load:
    model: nn.Module
    step: Callable[..., Any]
    args: tuple[Any, ...]


def load(name: str) -> Load:
    torch.manual_seed(0)
    if name == "decides":
        net = Decides()
        return Load(net, net, (torch.randn(8, 3, 48, 48),))
    workload = models.load(name, {"resnet50": 4}.get(name, 1))
    return Load(workload.model, workload.step, tuple(workload.args))


def run(work: Load, around: AbstractContextManager[Any]) -> float:
    work.model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    with around:
        work.step(*work.args).backward()
    return time.perf_counter() - begin


def peak(work: Load, around: AbstractContextManager[Any]) -> int:
    tracker = StorageTracker()
    tracker.count_all((*work.model.parameters(), *work.model.buffers()), Role.PARAMETER)
    tracker.count_all(work.args, Role.INPUT)
    with tracker:
        run(work, around)
    tracker.close()
    return tracker.peak_nbytes


def rows(name: str, rounds: int) -> Iterator[list[str]]:
    work = load(name)
    run(work, nullcontext())
    work.model.zero_grad(set_to_none=True)
    plain_peak = peak(work, nullcontext())
    work.model.zero_grad(set_to_none=True)
    others = elsewhere(work)
    for share in (1.5, 0.5):
        cache = vdnn.tensor_cache(int(plain_peak * share) + others)
        for _ in range(WARM_UP):
            run(work, cache)
        seconds = alternate(work, cache, rounds)
        found = cache.findings
        neighbours = [mean(both) for both in zip(seconds["plain"], seconds["plain again"], strict=True)]
        yield [
            name,
            f"{share:.1f} × {format_nbytes(plain_peak)}",
            format_nbytes(peak(work, cache)),
            format_seconds(median(neighbours)),
            format_seconds(median(seconds["cached"])),
            f"{ratio(seconds['cached'], neighbours):.3f}",
            f"{ratio(seconds['plain again'], seconds['plain']):.3f}",
            format_nbytes(found.sent_nbytes / max(1, found.num_steps)),
            str(found.num_stalls // max(1, found.num_steps)),
        ]


def alternate(work: Load, cache: AbstractContextManager[Any], rounds: int) -> dict[str, list[float]]:
    """Each kind goes first, second and third equally often: what one leaves in the caches helps the next."""
    kinds = {"plain": nullcontext(), "cached": cache, "plain again": nullcontext()}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    turns = list(permutations(kinds))
    begin, number = time.perf_counter(), 0
    while number < rounds or number % len(turns) != 0 or time.perf_counter() - begin < ENOUGH_S:
        for name in turns[number % len(turns)]:
            seconds[name].append(run(work, kinds[name]))
        number += 1
    return seconds


def ratio(some: list[float], plain: list[float]) -> float:
    return median(one / other for one, other in zip(some, plain, strict=True))


def elsewhere(work: Load) -> int:
    """Tensors of this process that are not this network's: what torch and earlier networks have left."""
    live = LiveBytes(torch.device("cpu"))
    live.count_everything()
    own = LiveBytes(torch.device("cpu"))
    for tensor in (*work.model.parameters(), *work.model.buffers(), *work.args):
        if isinstance(tensor, Tensor):
            own.count(tensor)
    return live.nbytes - own.nbytes


def keep_freed_memory() -> None:
    """Freed memory stays with malloc, however much it is (glibc)."""
    trim_threshold, mmap_max = -1, -4
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(trim_threshold, -1)
        libc.mallopt(mmap_max, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["decides", "resnet50", "gpt2"])
    parser.add_argument("--rounds", type=int, default=18, help="at least")
    parser.add_argument("--malloc-returns", action="store_true", help="leave malloc as it is")
    arguments = parser.parse_args()
    if not arguments.malloc_returns:
        keep_freed_memory()
    record = Record()
    record.say(*provenance())
    head = ["network", "budget", "peak", "plain", "cached", "ratio", "plain again", "sent per step", "stalls per step"]
    record.table(head, (row for name in arguments.models for row in rows(name, arguments.rounds)))


if __name__ == "__main__":
    main()
