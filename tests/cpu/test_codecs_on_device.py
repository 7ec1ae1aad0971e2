"""Codecs on an accelerator: the reference's bytes, and what happens to data that does not fit if nobody looks in time.

Skipped where there is none; `pytest --device vdev` runs them on the device of `tests/device`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vdnn
from codec_calls import calls, csr_value_nbytes
from triton_child import Outcome, outcome, reference_outcome
from vdnn.codecs.kernels import kernels_of
from vdnn.errors import EncodingTooLarge, LostHandle
from vdnn.runtime.encodings import Encodings, Overflow
from where import seeded

pytestmark = pytest.mark.accelerator

CALLS = calls(5000)


def device() -> torch.device:
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def outcome_on_device(module: str, name: str, args: tuple[Any, ...]) -> Outcome:
    """As `outcome`, with the arrays as they are on the device when the kernel has run."""
    there: list[tuple[np.ndarray, torch.Tensor]] = []

    def to_device(array: np.ndarray) -> torch.Tensor:
        there.append((array, torch.from_numpy(array).to(device())))
        return there[-1][1]

    done = outcome(module, name, args, to_device)
    for array, tensor in there:
        array[...] = tensor.cpu().numpy()
    return done


def defined(done: Outcome, call: tuple[Any, ...]) -> list[bytes]:
    """What a kernel made, without what it left undefined, and any NaN that a product made as one NaN."""
    arrays = list(done.arrays)
    if call[0] == "sparse_encode":
        arrays[-1] = arrays[-1][: done.result]
    if call[0] == "csr_encode":
        arrays[-2:] = arrays[-2][: done.result], arrays[-1][: done.result * csr_value_nbytes(call[2])]
    if call[0] == "masked_gradient":
        numbers = [array.view(np.float32) for array in arrays if array.nbytes % 4 == 0]
        arrays = [np.where(np.isnan(each), np.float32(np.nan), each) for each in numbers]
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize("kernels", ["torch ops", "the device's own"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(str(a) for a in call if isinstance(a, str)))
def test_a_kernel_has_the_references_bytes(kernels: str, call: tuple[Any, ...]) -> None:
    own = kernels_of(device().type).__name__
    module = "vdnn.codecs.kernels.torch_kernels" if kernels == "torch ops" else own
    ours, theirs = outcome_on_device(module, call[0], call[1:]), reference_outcome(*call)
    assert ours.result == theirs.result
    assert defined(ours, call) == defined(theirs, call)


class Pooled(nn.Module):
    """A ReLU before a convolution, which is stored sparsely, and a max-pool, of which window indices are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mapped = self.second(nn.functional.relu(self.first(x)))
        return nn.functional.max_pool2d(mapped, 2).square().sum()


@pytest.fixture(params=["sparse", "csr"])
def encodings(request: pytest.FixtureRequest) -> Encodings:
    """Of a plan for this density, which the tests fill with data of their own."""
    torch.manual_seed(0)
    density = {"sparse": 0.5, "csr": 0.05}[request.param]
    with torch.device("cpu"):
        plan = vdnn.plan(Pooled(), (torch.randn(2, 1, 32, 32),), strategy="gist", density=density)
    return Encodings(plan, lambda: pytest.fail("nothing has a slower tier here"))


def decision_of(encodings: Encodings, kind: str) -> int:
    return next(number for number, codec in encodings.codecs.items() if type(codec).__name__ == kind)


def sparse_of(encodings: Encodings) -> int:
    return next(number for number, codec in encodings.codecs.items() if not codec.has_fixed_size)


def map_of(encodings: Encodings, density: float) -> torch.Tensor:
    count = encodings.codecs[sparse_of(encodings)].count
    drawn = torch.rand(count, generator=seeded(1))
    return torch.where(drawn < density, drawn + 1, torch.zeros(())).to(device())


def roomy(encodings: Encodings) -> Overflow:
    """A first step, whose map had few elements that are not zero: the next one need not be looked at in time."""
    step = Overflow()
    encodings.encode(sparse_of(encodings), map_of(encodings, 0.01), step)
    return step


def test_the_first_map_is_looked_at_in_time_and_stays_where_it_does_not_fit(encodings: Encodings) -> None:
    step, data = Overflow(), map_of(encodings, 0.9)
    encoding = encodings.encode(sparse_of(encodings), data, step)
    found = encodings.decode(sparse_of(encodings), encoding, step)
    assert torch.equal(found.view(torch.float32), data)
    encodings.settle(step, is_end=True)


def test_a_map_that_fits_as_the_one_before_did_is_not_waited_for(encodings: Encodings) -> None:
    assert roomy(encodings).late == {}
    step, data = Overflow(), map_of(encodings, 0.02)
    encoding = encodings.encode(sparse_of(encodings), data, step)
    assert list(step.late) == [sparse_of(encodings)]
    assert torch.equal(encodings.decode(sparse_of(encodings), encoding, step).view(torch.float32), data)
    encodings.settle(step, is_end=True)
    assert encodings.found.density[sparse_of(encodings)] == pytest.approx(float((data != 0).float().mean()))


def test_a_map_that_was_too_dense_unexpectedly_costs_the_step_and_the_next_one_works(encodings: Encodings) -> None:
    roomy(encodings)
    step, data, decision = Overflow(), map_of(encodings, 0.9), sparse_of(encodings)
    encodings.encode(decision, data, step)
    encodings.settle(step, is_end=False)  # nothing was computed from it yet
    for _ in range(2):  # a kept graph that runs again has no other map
        with pytest.raises(EncodingTooLarge, match=r"known only after the map was gone.*density=0\.9\d"):
            encodings.settle(step, is_end=True)
    again = Overflow()
    encoding = encodings.encode(decision, data, again)
    assert torch.equal(encodings.decode(decision, encoding, again).view(torch.float32), data)
    encodings.settle(again, is_end=True)


def test_what_forward_itself_decodes_is_settled_when_forward_ends(encodings: Encodings) -> None:
    roomy(encodings)
    step = Overflow()
    encoding = encodings.encode(sparse_of(encodings), map_of(encodings, 0.9), step)
    encodings.decode(sparse_of(encodings), encoding, step)
    with pytest.raises(EncodingTooLarge):
        encodings.settle(step, is_end=False)


def test_a_backward_that_lost_its_step_knows_an_encoding_that_does_not_hold_its_map(encodings: Encodings) -> None:
    roomy(encodings)
    encoding = encodings.encode(sparse_of(encodings), map_of(encodings, 0.9), Overflow())
    with pytest.raises(LostHandle, match="outside such hooks"):
        encodings.decode(sparse_of(encodings), encoding, Overflow(is_lost=True))


def test_a_map_that_nearly_filled_its_room_is_looked_at_in_time_from_then_on(encodings: Encodings) -> None:
    codec: Any = encodings.codecs[sparse_of(encodings)]
    encodings.encode(sparse_of(encodings), map_of(encodings, 0.97 * codec.detail[0]), Overflow())
    step = Overflow()
    encodings.encode(sparse_of(encodings), map_of(encodings, 0.01), step)
    assert step.late == {}


def whole_step(encodings: Encodings, decision: int, data: torch.Tensor) -> None:
    step = Overflow()
    encodings.encode(decision, data, step)
    encodings.settle(step, is_end=True)


@pytest.mark.parametrize("is_first", [True, False])
def test_indices_of_another_pooling_are_refused(encodings: Encodings, is_first: bool) -> None:
    decision = decision_of(encodings, "WindowIndex")
    codec: Any = encodings.codecs[decision]
    right, encoding = torch.zeros(codec.count, dtype=torch.int64, device=device()), torch.zeros(codec.nbytes)
    kernels_of(device().type).unpack_window(encoding.to(device()).to(torch.uint8), codec.window, right)
    wrong = right.clone()
    wrong[7] += 5
    if not is_first:
        whole_step(encodings, decision, right)
    with pytest.raises(ValueError, match=r"element 7 of .* has an index that is not in its window"):
        whole_step(encodings, decision, wrong)
