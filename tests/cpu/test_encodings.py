"""Encodings of a running step: their memory, what happens when data does not fit, and what is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from equivalence import assert_measured_as_simulated, executors
from exactness import assert_same_bits, encodings_of, step, trained, with_shift
from tiers import DISK, used_nbytes
from torch import Tensor, nn

import vdnn
from vdnn.codecs import Codec
from vdnn.codecs.codec import typed
from vdnn.codecs.sparse import Sparse
from vdnn.codecs.window_index import WindowIndex
from vdnn.errors import EncodingTooLarge, LostHandle, VdnnError
from vdnn.hardware.device import Hardware, Tier
from vdnn.runtime.encodings import all_bytes, raw
from where import seeded

pytestmark = pytest.mark.any_device

ALONE = Hardware("a device alone", 1e11, 1e10, (Tier("device"),))


def test_all_bytes_of_a_view_are_those_of_its_storage() -> None:
    storage = torch.arange(12, dtype=torch.float32)
    assert all_bytes(storage[3:5].view(2, 1)).numel() == 48


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_raw_bytes_are_in_the_order_of_memory(layout: torch.memory_format) -> None:
    x = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=layout)
    typed(raw(x), "float32")[1] = 100
    assert x.flatten()[1 if layout is torch.contiguous_format else 12] == 100


def dense(x: Tensor) -> nn.Module:
    """A ReLU before a convolution, of whose output more than half is not zero."""
    return with_shift(lambda self, x: self.conv(F.relu(x + 1)), x, conv=nn.Conv2d(4, 2, 3))


X = torch.randn(2, 4, 16, 16, generator=seeded(0))
FORMS = {"csr": 0.01, "sparse": 0.5}
"""Densities for which each form is the shorter one; the map has more."""
TOO_SMALL: dict[str, Any] = {"strategy": "gist", "density": 0.01}


def num_too_dense(virtual: Any) -> int:
    (executor,) = executors(virtual)
    return executor.encodings.found.num_too_dense


@pytest.mark.parametrize("form", FORMS)
def test_without_a_budget_a_map_that_is_too_dense_stays_whole(form: str) -> None:
    virtual = trained(dense(X), X, strategy="gist", density=FORMS[form], hardware=DISK)
    assert list(encodings_of(virtual).values()) == [form]
    assert num_too_dense(virtual) == 2
    assert used_nbytes(virtual) == 0


@pytest.mark.parametrize("form", FORMS)
def test_with_a_budget_a_map_that_is_too_dense_goes_to_a_slower_tier_and_comes_back(form: str) -> None:
    virtual = trained(
        dense(X), X, strategy="gist", density=FORMS[form], hardware=DISK, budget="1000%", costs="roofline"
    )
    assert num_too_dense(virtual) == 2
    assert_measured_as_simulated(virtual)


def overflowing() -> Any:
    torch.manual_seed(0)
    return vdnn.virtualize(dense(X), sample=(X,), **TOO_SMALL, hardware=DISK, budget="1000%", costs="roofline")


def test_a_map_that_went_to_a_slower_tier_leaves_it_with_its_graph() -> None:
    virtual = overflowing()
    loss = virtual(X).sum()
    assert used_nbytes(virtual) > 0
    del loss
    assert used_nbytes(virtual) == 0


def test_a_kept_graph_reads_a_map_that_went_to_a_slower_tier_again() -> None:
    virtual = overflowing()
    loss = virtual(X).sum()
    first, second = (torch.autograd.grad(loss, virtual.shift, retain_graph=True) for _ in range(2))
    assert torch.equal(first[0], second[0])


def test_a_map_that_is_too_dense_and_has_nowhere_to_go_says_what_would_help() -> None:
    virtual = vdnn.virtualize(dense(X), sample=(X,), **TOO_SMALL, hardware=ALONE, budget="1000%", costs="roofline")
    with pytest.raises(
        EncodingTooLarge, match=r"of its elements are not zero.*Give a larger share with density=0\.\d\d"
    ) as caught:
        virtual(X)
    assert isinstance(caught.value, VdnnError)


@dataclass
class Late:
    """What an accelerator would tell of an encoding after its map is gone. A CPU knows at once."""

    number: int

    def read(self) -> int:
        return self.number


@pytest.mark.parametrize(
    ("codec", "expected", "words"),
    [
        (Sparse, EncodingTooLarge, "the gradients of this step were dropped"),
        (WindowIndex, ValueError, "has an index that is not in its window"),
    ],
)
@pytest.mark.parametrize("kind", ["watched", "ordinary", "timed"])
def test_a_step_that_learns_late_what_an_encoding_did_not_hold_hands_out_no_gradient(
    kind: str, codec: type[Codec], expected: type[Exception], words: str
) -> None:
    """A window index is read as it is, the other encoding is decoded."""
    model = with_shift(lambda self, x: F.max_pool2d(self.conv(F.relu(x + 1)), 2), X, conv=nn.Conv2d(4, 2, 3))
    virtual = vdnn.virtualize(model, sample=(X,), strategy="gist", density=0.9, hardware=ALONE)
    (executor,) = executors(virtual)
    if kind != "watched":
        virtual(X).sum().backward()
        model.zero_grad()
    executor.times_next = kind == "timed"
    loss = virtual(X).sum()
    (running,) = executor.steps()
    decision, found = next(pair for pair in executor.encodings.codecs.items() if isinstance(pair[1], codec))
    running.overflow.late[decision] = Late(found.nbytes + 1)
    with pytest.raises(expected, match=words):
        loss.backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    step(virtual, X)


def test_the_density_that_helps_does_help() -> None:
    share = float((F.relu(X + 1) != 0).float().mean())
    virtual = trained(
        dense(X), X, strategy="gist", density=share + 0.01, hardware=ALONE, budget="1000%", costs="roofline"
    )
    assert num_too_dense(virtual) == 0
    assert_measured_as_simulated(virtual)


def test_the_report_tells_the_largest_density_that_was_found() -> None:
    virtual = trained(dense(X), X, **TOO_SMALL)
    (piece,) = vdnn.report(virtual).pieces
    assert piece.density is not None
    assert piece.density.densest == pytest.approx(float((F.relu(X + 1) != 0).float().mean()))


@pytest.mark.parametrize("budget", [None, "1000%"])
def test_a_hook_that_copies_saved_tensors_loses_a_map_that_was_too_dense_with_a_clear_error(budget: str | None) -> None:
    virtual = vdnn.virtualize(dense(X), sample=(X,), **TOO_SMALL, hardware=DISK, budget=budget, costs="roofline")
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        loss = virtual(X).sum()
    with pytest.raises(LostHandle, match="outside such hooks"):
        loss.backward()


def test_a_hook_that_copies_saved_tensors_copies_encodings_that_fit() -> None:
    model = dense(X)
    virtual = vdnn.virtualize(model, sample=(X,), strategy="gist", density=1.0, hardware=DISK)
    expected = step(model, X)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        found = step(virtual, X)
    assert_same_bits(expected, found)
