"""One rank of `torchrun`: a model on the accelerator of its index, its gradients averaged with the other rank's.

Prints, as JSON, where it computed and whether every gradient of every step is plain PyTorch's, bit for bit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

import device

if __name__ == "__main__":
    device.load()  # not where a test asks for this file's name: nothing else of that run may see an accelerator

import vdnn
from device.chains import ROWS, WIDTH, chain
from vdnn.api import session_of

NUM_STEPS = 3


def trained(make: Callable[[torch.nn.Module], Callable[[Tensor], Tensor]], rows: Tensor) -> tuple[list[Tensor], object]:
    model, _ = chain("vdev")  # the current one
    step, seen = make(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        step(rows).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            together = parameter.grad.cpu()
            dist.all_reduce(together)
            parameter.grad.copy_(together / dist.get_world_size())
            seen.append(parameter.grad.clone())
        optimizer.step()
    return seen, step


def main() -> None:
    rank = int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(rank)
    dist.init_process_group("gloo")
    rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(rank)).to("vdev")
    expected, _ = trained(lambda model: model, rows)
    options = {"strategy": "offload", "hardware": "titan-x", "costs": "roofline", "budget": "75%"}
    found, virtual = trained(lambda model: vdnn.virtualize(model, **options), rows)
    others = torch.accelerator.max_memory_allocated(1 - rank)
    (executor,) = session_of(virtual).executors
    equal = all(map(torch.equal, expected, found))
    answer = {"rank": rank, "where": str(executor.edition.where), "equal": equal, "on_the_other": others}
    gathered: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, answer)
    if rank == 0:
        print(json.dumps(gathered))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
