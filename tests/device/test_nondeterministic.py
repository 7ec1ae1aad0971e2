"""Kernels that may leave other bits in the next run are named, as torch lists them."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import nn

import vdnn
from vdnn.capture.ops.nondeterministic import listed, may_differ


def test_the_list_of_torch_is_read_whole() -> None:
    """As many entries as its documentation has points, less those of sparse and quantized tensors."""
    text = torch.use_deterministic_algorithms.__doc__ or ""
    points = [line for line in text.splitlines() if line.strip().startswith("* :")]
    assert len(listed()) == len(points) - 2
    assert {device for entry in listed() for device in entry.devices} == {"CPU", "CUDA"}


@pytest.mark.parametrize(
    ("op", "device", "differs"),
    [
        ("aten.cumsum.default", "cuda", True),
        ("aten.cumsum.default", "cpu", False),
        ("aten.convolution_backward.default", "cuda", True),
        ("aten._adaptive_avg_pool2d_backward.default", "cuda", True),
        ("aten._adaptive_avg_pool2d.default", "cuda", False),
        ("aten.max_pool3d_with_indices_backward.default", "cuda", True),
        ("aten.upsample_bilinear2d_backward.default", "cuda", True),
        ("aten.upsample_nearest2d_backward.default", "cuda", False),
        ("aten.nll_loss2d_forward.default", "cuda", True),
        ("aten.index_put_.default", "cuda", True),
        ("aten.max_unpool2d.default", "vdev", True),
        ("aten.addmm.default", "cuda", False),
        ("aten.relu.default", "cuda", False),
    ],
)
def test_an_op_is_found_by_the_public_name_in_the_list(op: str, device: str, differs: bool) -> None:
    assert may_differ(op, device) is differs


class Unpooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3, padding=1)
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pooled, indices = self.pool(self.before(images))
        return self.after(self.unpool(pooled, indices)).sum()


def test_the_report_names_them_on_an_accelerator(vdev: ModuleType) -> None:
    for where, is_named in (("vdev", True), ("cpu", False)):
        virtual = vdnn.virtualize(Unpooled().to(where), hardware="titan-x")
        virtual(torch.randn(2, 1, 8, 8).to(where)).backward()
        text = " ".join(str(vdnn.report(virtual)).split())
        assert ("two plain steps may differ in last bits too: max_unpool2d" in text) is is_named
