"""`verify_spills=True`: a bit that changes on disk is an error that names the tensor, on every way there."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from equivalence import assert_same_state, both, pair
from nets import ConvNet, backward, images
from tiers import DISK
from torch import nn

import vdnn
from vdnn.api import session_of
from vdnn.errors import TierFailed
from vdnn.plan.model.actions import EncodeOffload, Offload
from vdnn.runtime.runtime import shared_runtime
from vdnn.runtime.transfers.streams import DiskHop

pytestmark = [
    pytest.mark.any_device,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the spill file has no name but there"),
]


def spill_files(directory: Path) -> list[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.realpath(link).startswith(f"{directory}{os.sep}")]


def flip_bits(directory: Path, offsets: Iterable[int]) -> None:
    [path] = spill_files(directory)
    with open(path, "r+b", buffering=0) as file:
        for offset in offsets:
            file.seek(offset)
            [byte] = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 0x40]))
        os.fsync(file.fileno())


def flip_one_bit_of(kind: type[Offload] | type[EncodeOffload], virtual: Any, directory: Path) -> str:
    """In an exponent in the middle of what the last step sent away by such a decision; the name of that tensor."""
    [executor] = session_of(virtual).executors
    [step] = shared_runtime().handles._objects.values()
    graph, decisions = executor.plan.problem.graph, executor.plan.decisions
    position = max(p for p, decision in enumerate(decisions) if type(decision.action) is kind)
    entry = step.journeys._entries[position]
    entry._transfers.wait_sent(entry._ticket)
    place = entry._ticket.place
    if isinstance(place, DiskHop):
        place.written.wait()
        place = place.place
    [extent] = place._lease.extents
    flip_bits(directory, [extent.begin + place._written.run.phase + entry.nbytes // 8 * 4 + 3])
    return graph.storages[decisions[position].storage].name


@pytest.fixture
def spills(tmp_path: Path) -> dict[str, Any]:
    gc.collect()  # steps of other tests
    return {"hardware": DISK, "spill_dir": str(tmp_path), "verify_spills": True}


def test_verified_training_is_exact_and_a_flipped_bit_names_its_tensor(spills: dict[str, Any], tmp_path: Path) -> None:
    plain, virtual = pair(ConvNet(), budget="85%", strategy="offload", **spills)
    both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)
    loss = virtual(images()).sum()
    name = flip_one_bit_of(Offload, virtual, tmp_path)
    with pytest.raises(TierFailed, match=rf"^'{name}': .* came back from the disk tier .* with other bits"):
        loss.backward()


def test_without_it_a_flipped_bit_is_a_wrong_gradient(spills: dict[str, Any], tmp_path: Path) -> None:
    """What the option is for, and that the flipped bit is one of the tensor."""
    plain, virtual = pair(ConvNet(), budget="85%", strategy="offload", **{**spills, "verify_spills": False})

    def train(model: Any) -> None:
        loss = model(images()).sum()
        if model is virtual:
            flip_one_bit_of(Offload, virtual, tmp_path)
        loss.backward()

    both(plain, virtual, train)
    with pytest.raises(AssertionError):
        assert_same_state(plain, virtual)


@pytest.mark.cpu_only("codecs in torch ops take more room than this network has")
def test_an_encoding_on_disk_is_verified_too(spills: dict[str, Any], tmp_path: Path) -> None:
    slow = replace(DISK, flops_per_s=1e8)
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())))
    batch = torch.randn(512, 64)
    virtual = vdnn.virtualize(net, sample=(batch,), budget="850000B", lossy="fp16", **{**spills, "hardware": slow})
    loss = virtual(batch).sum()
    name = flip_one_bit_of(EncodeOffload, virtual, tmp_path)
    with pytest.raises(TierFailed, match=rf"^'{name}': .* with other bits"):
        loss.backward()


@pytest.mark.cpu_only("on an accelerator page-locked memory of the host comes before the disk")
def test_the_tensor_cache_names_the_tensor_too(spills: dict[str, Any], tmp_path: Path) -> None:
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())))
    cache = vdnn.tensor_cache("400KiB", over_budget="warn", encode=False, **spills)

    def step(*, disturbed: bool) -> None:
        with cache:
            loss = net(torch.randn(512, 64)).sum()
        if disturbed:
            [path] = spill_files(tmp_path)
            flip_bits(tmp_path, range(2048, os.stat(path).st_size, 4096))
        loss.backward()

    with pytest.warns(UserWarning, match="cannot stay within"):
        step(disturbed=False)
    assert cache.findings.num_sent > 0
    with pytest.raises(TierFailed, match=r"^saved tensor \d+ of a step, torch\.float32: .* with other bits"):
        step(disturbed=True)
