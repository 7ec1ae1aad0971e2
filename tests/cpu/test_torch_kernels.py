"""The codec kernels in torch ops never ask the device for a number, and keep to the room that they say they take.

That they have the reference's bits is said where the other kernels are compared: tests/pure/test_codec_kernels.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from codec_calls import calls
from vdnn import environment
from vdnn.codecs import kernels
from vdnn.codecs.kernels import reference, torch_kernels, triton_support
from vdnn.codecs.kernels.chunk_sizes import (
    LARGEST_CHUNK,
    NBYTES_PER_MASKED_ELEMENT,
    SMALLEST_CHUNK,
    chunk_size,
    workspace_nbytes,
)
from vdnn.codecs.kernels.window import Window
from vdnn.cost.op_memory import workspace_nbytes as allocated_nbytes

N = 3 * SMALLEST_CHUNK + 77  # several chunks, and a last one that is ragged everywhere


def name_of(call: tuple[Any, ...]) -> str:
    return " ".join([call[0], *(arg for arg in call[1:] if isinstance(arg, str))])


CALLS = {name_of(call): call for call in calls(N)}


class NoWaiting(TorchDispatchMode):
    """Fails where the host would have to know what the device has computed, and where bytes leave it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert torch.Tag.data_dependent_output not in func.tags, f"{func} reads a number"
        assert torch.Tag.dynamic_output_shape not in func.tags, f"the shape of what {func} returns depends on data"
        here = {x.device for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.dim() > 0}
        result = func(*args, **kwargs)
        there = {result.device} if isinstance(result, torch.Tensor) and result.dim() > 0 else set()
        assert len(here | there) <= 1, f"{func} copies from {here} to {there}"
        return result


def tensors(call: tuple[Any, ...], make: Callable[[np.ndarray], torch.Tensor]) -> list[Any]:
    given = (arg.array[: arg.count] if hasattr(arg, "count") and hasattr(arg, "array") else arg for arg in call[1:])
    return [make(arg) if isinstance(arg, np.ndarray) else arg for arg in given]


def run(call: tuple[Any, ...], make: Callable[[np.ndarray], torch.Tensor]) -> Any:
    return getattr(torch_kernels, call[0])(*tensors(call, make))


def copied(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy())


def test_no_kernel_is_left_out_of_these_calls() -> None:
    assert {name for name, *_ in CALLS.values()} == set(reference.__all__)


@pytest.mark.parametrize("name", CALLS)
def test_no_kernel_reads_a_number_or_moves_bytes(name: str) -> None:
    arguments = tensors(CALLS[name], copied)
    with NoWaiting():
        getattr(torch_kernels, CALLS[name][0])(*arguments)


@pytest.mark.parametrize("name", CALLS)
def test_every_kernel_runs_on_a_device_that_nobody_can_read(name: str) -> None:
    result = run(CALLS[name], lambda array: torch.empty(array.shape, dtype=DTYPES[str(array.dtype)], device="meta"))
    assert result is None or (result.device.type, result.dim()) == ("meta", 0)


@pytest.mark.parametrize("name", CALLS)
def test_every_kernel_runs_on_tensors_without_data(name: str) -> None:
    with FakeTensorMode():
        result = run(CALLS[name], lambda array: torch.empty(array.shape, dtype=DTYPES[str(array.dtype)]))
    assert result is None or result.dim() == 0


DTYPES = {name: getattr(torch, name) for name in ("uint8", "int64", "uint32", "float32")}


@pytest.mark.parametrize(
    "asks", [lambda x: int(x.sum()), lambda x: x[x > 0], torch.nonzero, lambda x: x.to("meta"), lambda x: bool(x.any())]
)
def test_what_waits_is_noticed(asks: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(AssertionError), NoWaiting():
        asks(torch.ones(8))


@pytest.mark.parametrize("asks", [lambda x: int(x.sum()), lambda x: x[x > 0]])
def test_what_depends_on_data_is_noticed_without_data(asks: Callable[[torch.Tensor], Any]) -> None:
    with FakeTensorMode(), pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        asks(torch.ones(8))


@pytest.mark.parametrize("n", [200, 5000, N], ids=["few", "some", "many"])
@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_takes_no_more_room_than_it_says(name: str, n: int) -> None:
    call = next(call for call in calls(n) if name_of(call) == name)
    arguments, function = tensors(call, copied), getattr(torch_kernels, call[0])
    window = next((x for x in arguments if isinstance(x, Window)), None)
    count = n if window is None else window.num_inputs if "backward" in name else window.num_pooled
    per_element = {"nbytes_per_element": NBYTES_PER_MASKED_ELEMENT} if "mask" in name else {}
    assert allocated_nbytes(lambda: function(*arguments)) <= workspace_nbytes(count, **per_element)


@pytest.mark.parametrize("name", ["pack_window", "unpack_window", "window_backward"])
def test_of_rows_longer_than_a_chunk_two_are_worked_on(name: str) -> None:
    window = Window((1, 1, 2), (1, 1, 2), (0, 0, 0), (1, 1, 1), (1, 4, 60_000), (1, 4, 30_000), 1, 3)
    of_pooled, of_inputs = (
        lambda dtype, n=n: torch.zeros(n, dtype=dtype) for n in (window.num_pooled, window.num_inputs)
    )
    indices, taps = of_pooled(torch.int64), torch.zeros(window.taps_nbytes, dtype=torch.uint8)
    arguments = {
        "pack_window": (indices, window, taps),
        "unpack_window": (taps, window, indices),
        "window_backward": (of_pooled(torch.float32), taps, window, of_inputs(torch.float32)),
    }[name]
    row = 3 * (60_000 if name == "window_backward" else 30_000)
    needed = allocated_nbytes(lambda: getattr(torch_kernels, name)(*arguments))
    assert workspace_nbytes(row) < needed <= workspace_nbytes(row, row)


@pytest.mark.parametrize(("kernel", "stride", "width"), [(3, 1, 2), (3, 1, 4), (5, 1, 7), (3, 2, 15), (2, 2, 28)])
def test_a_pooling_of_short_rows_takes_no_more_room_than_it_says(kernel: int, stride: int, width: int) -> None:
    pad = (kernel - 1) // 2
    output = (width + 2 * pad - kernel) // stride + 1
    per_axis = [
        (1, kernel, kernel),
        (1, stride, stride),
        (0, pad, pad),
        (1, 1, 1),
        (1, width, width),
        (1, output, output),
    ]
    window = Window(*per_axis, 512, 1)
    gradient, taps = torch.zeros(window.num_pooled), torch.zeros(window.taps_nbytes, dtype=torch.uint8)
    indices, result = torch.zeros(window.num_pooled, dtype=torch.int64), torch.zeros(window.num_inputs)
    pooled_nbytes = workspace_nbytes(window.num_pooled, output)
    assert allocated_nbytes(lambda: torch_kernels.pack_window(indices, window, taps)) <= pooled_nbytes
    assert allocated_nbytes(lambda: torch_kernels.unpack_window(taps, window, indices)) <= pooled_nbytes
    read_nbytes = workspace_nbytes(window.num_inputs, width)
    assert allocated_nbytes(lambda: torch_kernels.window_backward(gradient, taps, window, result)) <= read_nbytes


def test_the_room_of_a_kernel_is_a_small_part_of_large_data() -> None:
    assert workspace_nbytes(10**9) == workspace_nbytes(10**8) < 43 * 2**20
    assert chunk_size(10**9) == LARGEST_CHUNK


@pytest.mark.parametrize("n", [1, SMALLEST_CHUNK, 10**6 + 1, 10**7, 10**9])
def test_a_chunk_is_whole_words_blocks_and_rows(n: int) -> None:
    assert chunk_size(n) % (3 * 4096) == 0


@pytest.fixture
def anew() -> Any:
    """Nothing has been chosen yet, and nothing is afterwards."""
    kernels.accelerator_kernels.cache_clear()
    yield
    kernels.accelerator_kernels.cache_clear()


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(
    ("kind", "reason"), [("mps", "Triton knows cuda and xpu"), ("cuda", "drives no device that is here|has no Triton")]
)
def test_where_triton_does_not_run_torch_ops_do(kind: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "vdnn.codecs.kernels"):
        assert kernels.kernels_of(kind) is torch_kernels
    assert re.search(reason, caplog.text)


@pytest.mark.usefixtures("anew")
def test_triton_runs_where_it_has_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "why_not_triton", lambda kind: "")
    pytest.importorskip("triton")
    assert kernels.kernels_of("cuda").__name__ == "vdnn.codecs.kernels.triton_kernels"


@pytest.mark.usefixtures("anew")
def test_triton_is_left_out_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "why_not_triton", lambda kind: "")
    monkeypatch.setenv(environment.NATIVE, "0")
    assert kernels.kernels_of("cuda") is torch_kernels
