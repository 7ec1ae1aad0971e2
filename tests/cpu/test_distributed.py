"""A model in DistributedDataParallel keeps its budget on every rank, with the gradients of plain PyTorch."""

from __future__ import annotations

import socket
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import vdnn
from vdnn.cost.op_memory import allocation_changes

NUM_RANKS = 2
SMALL_NBYTES = 64 * 1024
"""Handles, scalars and the parts of the loss, which no plan counts."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(nn.Linear(32, 64), *layers, nn.Linear(64, 8))


def trained(rank: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=NUM_RANKS)
    batch = torch.randn(512, 32, generator=torch.Generator().manual_seed(rank))
    plain, model = DistributedDataParallel(network()), DistributedDataParallel(network())
    virtual = vdnn.virtualize(model, budget="60%")
    found = []
    for _ in range(4):
        plain.zero_grad()
        plain(batch).square().mean().backward()
        virtual.zero_grad()
        changes = allocation_changes(lambda: virtual(batch).square().mean().backward())
        parameters = list(virtual.parameters())
        peak_nbytes = sum(p.nbytes for p in parameters) + batch.nbytes + max(accumulate(changes, initial=0))
        is_equal = all(
            p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
            for p, q in zip(parameters, plain.parameters(), strict=True)
        )
        found.append((is_equal, peak_nbytes, vdnn.report(virtual).budget_nbytes))
    results[rank] = found
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_have_plain_gradients_within_their_budgets() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(trained, (port, results), NUM_RANKS)
        found = [steps for _, steps in sorted(results.items())]
    assert len(found) == NUM_RANKS
    for steps in found:
        assert all(is_equal for is_equal, _, _ in steps)
        # In its second step the wrapper makes its buckets anew, beside those it has.
        assert all(peak <= budget + SMALL_NBYTES for _, peak, budget in (steps[0], *steps[2:]))
