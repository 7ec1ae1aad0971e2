"""The Triton kernels have the bits of the numpy reference and of torch ops, and compile for GPUs. No GPU is needed.

They run on the CPU in Triton's interpreter, in a child process. What that cannot show, a GPU's own arithmetic, is read
from the code they compile to: subnormals are not flushed, products and sums are not fused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from codec_calls import GUARD, HIGH, LOW, bits_for, calls, csr_form, filled, mask_form, raw
from triton_child import (
    First,
    Outcome,
    child,
    compile_only,
    compiled,
    interpret,
    reference_outcome,
    torch_outcome,
    triton_outcome,
)
from vdnn.codecs.kernels import reference
from vdnn.codecs.kernels.element_types import FLOATS
from vdnn.codecs.kernels.formats import FORMATS, reduced_nbytes
from vdnn.codecs.kernels.sparse_layout import (
    CSR_FORMATS,
    MASK_FORMATS,
    csr_value_nbytes,
    mask_nbytes,
)
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.codecs.kernels.window import Window
from vdnn.units import NBYTES_PER_ELEMENT

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="needs Triton, which exists for Linux: pip install triton"
)

Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Calls a Triton kernel, by name, in a child process that interprets it."""
    with child(interpret) as pool:
        yield lambda name, *args: pool.submit(triton_outcome, name, *args).result()


def same(left: Outcome, right: Outcome) -> bool:
    """Equal results and equal bytes in every array."""
    pairs = zip(left.arrays, right.arrays, strict=True)
    return left.result == right.result and all(a.tobytes() == b.tobytes() for a, b in pairs)


def agrees(run: Run, name: str, *args: Any) -> bool:
    return same(run(name, *args), reference_outcome(name, *args))


@pytest.mark.parametrize("test", list(Test), ids=lambda test: test.name)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_mask_of_floats_has_the_references_answers(run: Run, dtype: str, test: Test) -> None:
    assert agrees(run, "pack_mask", raw(dtype, 2051), dtype, test, LOW, HIGH, filled(mask_nbytes(2051)))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "int64"])
def test_a_mask_of_integers_says_which_are_not_zero(run: Run, dtype: str) -> None:
    source = raw(dtype, 2051) * (np.arange(2051 * NBYTES_PER_ELEMENT[dtype]) % 5 == 0)
    assert agrees(run, "pack_mask", source.astype(np.uint8), dtype, Test.NONZERO, 0.0, 0.0, filled(mask_nbytes(2051)))


@pytest.mark.parametrize("bound", [1e300, -0.0, float("inf"), 5e-324])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bounds_are_rounded_as_the_reference_rounds_them(run: Run, dtype: str, bound: float) -> None:
    assert agrees(run, "pack_mask", raw(dtype, 77), dtype, Test.INSIDE, -bound, bound, filled(mask_nbytes(77)))


@pytest.mark.parametrize("dtype", [*FLOATS, "bool"])
def test_a_mask_is_unpacked_into_two_values(run: Run, dtype: str) -> None:
    target = filled(2051 * NBYTES_PER_ELEMENT[dtype])
    assert agrees(run, "unpack_mask", bits_for(2051), target, dtype, 1 / 0.9, -0.0)


@pytest.mark.parametrize(
    ("on", "off", "zero_off"), [(1.0, 0.0, True), (1.0, 0.01, False), (1 / 0.9, 0.0, False), (-2.0, 1.0, False)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_masked_gradient_has_the_references_bits(run: Run, dtype: str, on: float, off: float, zero_off: bool) -> None:
    gradient = raw(dtype, 2051)
    assert agrees(run, "masked_gradient", gradient, bits_for(2051), filled(len(gradient)), dtype, on, off, zero_off)


def test_a_gradient_is_masked_in_place(run: Run) -> None:
    gradient = raw("float32", 2051)
    assert agrees(run, "masked_gradient", gradient, bits_for(2051), gradient, "float32", 1.0, 0.01, False)


def test_a_factor_of_one_keeps_every_bit_of_the_gradient(run: Run) -> None:
    gradient, all_set = raw("float32", 2051), np.full(mask_nbytes(2051), 255, np.uint8)
    done = run("masked_gradient", gradient, all_set, filled(len(gradient)), "float32", 1.0, 0.0, True)
    assert done.arrays[2].tobytes() == gradient.tobytes()


POOLINGS = {
    "halving": ((2, 2), (2, 2), (0, 0), (1, 1), (2, 3, 9, 8)),
    "overlapping": ((3, 3), (2, 2), (1, 1), (1, 1), (2, 3, 13, 10)),
    "every-position": ((3, 2), (1, 1), (1, 0), (1, 1), (1, 3, 7, 9)),
    "dilated": ((2, 3), (2, 1), (1, 1), (3, 2), (1, 2, 13, 11)),
    "gaps": ((2, 2), (4, 3), (0, 0), (1, 1), (1, 2, 13, 11)),
    "one-byte-taps": ((5, 4), (2, 3), (2, 2), (1, 1), (1, 2, 14, 13)),
    "three-dimensions": ((2, 3, 2), (1, 2, 2), (1, 1, 0), (1, 1, 2), (1, 2, 5, 6, 7)),
}
LAYOUTS = {False: "contiguous", True: "channels_last"}


class Pooled:
    """A max pooling of random numbers, flat in its memory order: aten's indices, a gradient, and the geometry."""

    def __init__(self, name: str, is_last: bool) -> None:
        kernel, stride, padding, dilation, shape = POOLINGS[name]
        pool = functional.max_pool2d if len(kernel) == 2 else functional.max_pool3d
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(shape, generator=generator)
        _, indices = pool(x, kernel, stride, padding, dilation, return_indices=True)
        outer, inner = (shape[0], shape[1]) if is_last else (shape[0] * shape[1], 1)
        extents = (in_three(e, fill) for e, fill in ((kernel, 1), (stride, 1), (padding, 0), (dilation, 1)))
        self.window = Window(*extents, in_three(shape[2:], 1), in_three(indices.shape[2:], 1), outer, inner)
        self.indices = (indices.movedim(1, -1) if is_last else indices).flatten().numpy()
        self.gradient = torch.randn(len(self.indices), generator=generator).numpy()

    @property
    def taps(self) -> np.ndarray:
        return reference_outcome("pack_window", self.indices, self.window, filled(self.window.taps_nbytes)).arrays[1]


def in_three(extents: tuple[int, ...], fill: int) -> tuple[int, int, int]:
    depth, height, width = (fill,) * (3 - len(extents)) + tuple(extents)
    return depth, height, width


@pytest.fixture(params=POOLINGS)
def pooling(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LAYOUTS, ids=LAYOUTS.get)
def pooled(request: pytest.FixtureRequest, pooling: str) -> Pooled:
    return Pooled(pooling, request.param)


def test_window_taps_are_the_references(run: Run, pooled: Pooled) -> None:
    assert agrees(run, "pack_window", pooled.indices, pooled.window, filled(pooled.window.taps_nbytes))


def test_window_taps_become_atens_indices_again(run: Run, pooled: Pooled) -> None:
    done = run("unpack_window", pooled.taps, pooled.window, np.zeros_like(pooled.indices))
    assert np.array_equal(done.arrays[1], pooled.indices)


def test_the_gradient_of_a_pooling_has_the_references_bits(run: Run, pooled: Pooled) -> None:
    target = filled(pooled.window.num_inputs, "float32")
    assert agrees(run, "window_backward", pooled.gradient, pooled.taps, pooled.window, target)


def test_gradients_that_are_not_numbers_stay_with_the_inputs_they_belong_to(run: Run) -> None:
    pooled = Pooled("overlapping", False)
    pooled.gradient[::7] = np.resize([np.inf, -np.inf, np.nan, -0.0, 1e-45], len(pooled.gradient[::7]))
    target = filled(pooled.window.num_inputs, "float32")
    assert agrees(run, "window_backward", pooled.gradient, pooled.taps, pooled.window, target)


def test_counting_in_64_bits_gives_the_same_taps_and_gradients(run: Run) -> None:
    """The tensors are the first planes of a pooling that has many more."""
    pooled = Pooled("overlapping", True)
    window, target = replace(pooled.window, outer=2**31), filled(pooled.window.num_inputs, "float32")
    assert agrees(run, "pack_window", pooled.indices, window, filled(pooled.window.taps_nbytes))
    assert agrees(run, "window_backward", pooled.gradient, pooled.taps, window, target)


def test_a_pooling_of_more_than_two_billion_elements_is_counted_in_64_bits() -> None:
    from vdnn.codecs.kernels.triton_windows import offset_of

    window = Pooled("overlapping", True).window
    assert [str(offset_of(each)) for each in (window, replace(window, outer=2**31))] == ["int32", "int64"]


@pytest.mark.parametrize("shift", [-1000, 3, 13 * 10, 2**32], ids=["negative", "beside", "next-plane", "32-bits"])
def test_the_first_index_outside_its_window_is_told(run: Run, shift: int) -> None:
    pooled = Pooled("overlapping", False)
    pooled.indices[[77, 140]] += shift
    args = "pack_window", pooled.indices, pooled.window, filled(pooled.window.taps_nbytes)
    assert [outcome(*args).result for outcome in (run, torch_outcome, reference_outcome)] == [77, 77, 77]


def test_an_index_into_the_padding_is_outside(run: Run) -> None:
    """-1 would be the column before the first, which the first window does cover."""
    pooled = Pooled("overlapping", False)
    pooled.indices[0] = -1
    args = "pack_window", pooled.indices, pooled.window, filled(pooled.window.taps_nbytes)
    assert [outcome(*args).result for outcome in (run, torch_outcome, reference_outcome)] == [0, 0, 0]


def rounding_borders(format: str) -> np.ndarray:
    """Each exponent of float32 with mantissas on, and one place beside, numbers of the format and halves between."""
    half = 1 << (22 - FORMATS[format].mantissa_bits)
    near = (np.array([0, 1, 2, 3, 4]) * half)[:, None] + np.array([-1, 0, 1])
    top = 2**23 - near
    mantissas = np.unique(np.concatenate([near, top]).clip(0, 2**23 - 1))
    magnitudes = (np.arange(256)[:, None] << 23 | mantissas).reshape(-1).astype(np.uint32)
    return np.concatenate([magnitudes, magnitudes | np.uint32(0x80000000), raw("float32", 1001).view(np.uint32)])


@pytest.mark.parametrize("format", FORMATS)
def test_floats_are_rounded_as_in_the_reference(run: Run, format: str) -> None:
    source = rounding_borders(format).view(np.float32)
    assert agrees(run, "reduce", source, format, filled(reduced_nbytes(len(source), format)))


@pytest.mark.parametrize("format", FORMATS)
def test_every_pattern_is_read_as_in_the_reference(run: Run, format: str) -> None:
    if format == "fp10":
        patterns = np.resize(np.arange(1024, dtype=np.uint32), 3 * 1024).reshape(-1, 3)
        packed = patterns[:, 0] | patterns[:, 1] << np.uint32(10) | patterns[:, 2] << np.uint32(20)
    else:
        packed = np.arange(1 << (8 * reduced_nbytes(1, format))).astype(f"u{reduced_nbytes(1, format)}")
    count = len(packed) * FORMATS[format].values_per_group
    assert agrees(run, "expand", packed.view(np.uint8), format, filled(count, "float32"))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 3073])
@pytest.mark.parametrize("format", FORMATS)
def test_a_last_group_that_is_not_full_is_padded_with_zeros(run: Run, format: str, n: int) -> None:
    source = raw("float32", n).view(np.float32)
    room = First(filled(reduced_nbytes(n, format) + GUARD), reduced_nbytes(n, format))
    assert agrees(run, "reduce", source, format, room)


def written(done: Outcome, *parts: int) -> Outcome:
    """The outcome with the last arrays cut to what was needed: past that their content is undefined."""
    kept = len(done.arrays) - len(parts)
    cut = [array[:part] for array, part in zip(done.arrays[kept:], parts, strict=True)]
    return Outcome(done.result, done.arrays[:kept] + cut)


VALUES = [(2, "raw"), *((4, format) for format in MASK_FORMATS)]


@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("nbytes", "format"), VALUES)
def test_the_mask_form_has_the_references_bytes(run: Run, nbytes: int, format: str, density: float) -> None:
    args = mask_form(9001, nbytes, format, density)
    ours, theirs = run("sparse_encode", *args), reference_outcome("sparse_encode", *args)
    assert same(written(ours, theirs.result), written(theirs, theirs.result))


@pytest.mark.parametrize("density", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("nbytes", "format"), VALUES)
def test_the_mask_form_is_read_as_in_the_reference(run: Run, nbytes: int, format: str, density: float) -> None:
    source, bits, starts, values = reference_outcome("sparse_encode", *mask_form(9001, nbytes, format, density)).arrays
    assert agrees(run, "sparse_decode", bits, starts, values, nbytes, format, filled(len(source)))


@pytest.mark.parametrize("room", [0.0, 0.3])
@pytest.mark.parametrize(("nbytes", "format"), VALUES)
def test_values_that_need_more_room_are_counted_and_not_written_past_it(
    run: Run, nbytes: int, format: str, room: float
) -> None:
    args = mask_form(9001, nbytes, format, 0.9, room)
    done = run("sparse_encode", *args)
    assert done.result == reference_outcome("sparse_encode", *args).result > args[-1].count
    assert done.arrays[-1][args[-1].count :].tobytes() == filled(GUARD).tobytes()


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("format", CSR_FORMATS)
def test_the_csr_form_has_the_references_bytes(run: Run, format: str, density: float) -> None:
    args = csr_form(9001, format, density)
    ours, theirs = run("csr_encode", *args), reference_outcome("csr_encode", *args)
    parts = theirs.result, theirs.result * csr_value_nbytes(format)
    assert same(written(ours, *parts), written(theirs, *parts))


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("format", CSR_FORMATS)
def test_the_csr_form_is_read_as_in_the_reference(run: Run, format: str, density: float) -> None:
    source, rows, columns, values = reference_outcome("csr_encode", *csr_form(9001, format, density)).arrays
    assert agrees(run, "csr_decode", rows, columns, values, format, filled(len(source)))


@pytest.mark.parametrize("room", [0.0, 0.3])
@pytest.mark.parametrize("format", CSR_FORMATS)
def test_csr_values_that_need_more_room_are_counted_and_not_written_past_it(run: Run, format: str, room: float) -> None:
    args = csr_form(9001, format, 0.9, room)
    done = run("csr_encode", *args)
    assert done.result == reference_outcome("csr_encode", *args).result > args[-2].count
    past = [array[part.count :].tobytes() for array, part in zip(done.arrays[-2:], args[-2:], strict=True)]
    assert past == [filled(GUARD).tobytes()] * 2


def test_no_kernel_is_left_out_of_these_calls() -> None:
    assert {name for name, *_ in calls(0)} == set(reference.__all__)


def test_nothing_comes_of_nothing(run: Run) -> None:
    different = [call[0] for call in calls(0) if not agrees(run, *call)]
    assert different == []


@pytest.mark.parametrize("n", [1, 5000])
def test_triton_and_torch_ops_write_the_same_bytes(run: Run, n: int) -> None:
    different = [call[0] for call in calls(n) if not same(needed_part(run, call), needed_part(torch_outcome, call))]
    assert different == []


def needed_part(run: Run, call: tuple[Any, ...]) -> Outcome:
    """What a kernel made, without what it left undefined."""
    done = run(*call)
    match call[0]:
        case "sparse_encode":
            return written(done, done.result)
        case "csr_encode":
            return written(done, done.result, done.result * csr_value_nbytes(call[2]))
        case _:
            return done


def test_around_its_launches_triton_reads_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors of a device that nobody can read, with launches left out: those never wait."""
    for module in triton_modules():
        monkeypatch.setattr(module, "launch", lambda *args, **constants: None)
    for name, *args in calls(5000):
        arrays = (arg.array[: arg.count] if isinstance(arg, First) else arg for arg in args)
        given = (torch.from_numpy(arg).to("meta") if isinstance(arg, np.ndarray) else arg for arg in arrays)
        result = getattr(import_module("vdnn.codecs.kernels.triton_kernels"), name)(*given)
        assert result is None or (result.device.type, result.dim()) == ("meta", 0), name


@pytest.mark.parametrize("kernels", ["triton_kernels", "torch_kernels"])
def test_the_functions_and_their_parameters_are_the_references(kernels: str) -> None:
    module = import_module(f"vdnn.codecs.kernels.{kernels}")
    assert set(reference.__all__) <= set(module.__all__)
    for name in reference.__all__:
        ours, theirs = (inspect.signature(getattr(each, name)) for each in (module, reference))
        assert list(ours.parameters) == list(theirs.parameters), name


TARGETS = {
    "V100": (("cuda", 70, 32), ".ftz", "fma.rn"),
    "A100": (("cuda", 80, 32), ".ftz", "fma.rn"),
    "H100": (("cuda", 90, 32), ".ftz", "fma.rn"),
    "MI300": (("hip", "gfx942", 64), "float_denorm_mode_32 0", "v_fma_f32"),
}


@pytest.mark.slow
@pytest.mark.parametrize("gpu", TARGETS)
def test_every_kernel_compiles_for_a_gpu_without_flushing_or_fusing(gpu: str, tmp_path: Path) -> None:
    """A flushed subnormal or a fused multiply-add would change bits, and the interpreter would not show it. In every
    format: an older GPU has no instructions for some."""
    target, *inexact = TARGETS[gpu]
    with child(compile_only, str(tmp_path)) as pool:
        kernels = pool.submit(compiled, *target, calls(5000)).result()
    assert {name for name, assembly, size in kernels if size == 0 or any(word in assembly for word in inexact)} == set()
    assert {name for name, *_ in kernels} == all_kernels()


def triton_modules() -> list[ModuleType]:
    names = "triton_csr", "triton_floats", "triton_masks", "triton_sparse", "triton_windows"
    return [import_module(f"vdnn.codecs.kernels.{name}") for name in names]


def all_kernels() -> set[str]:
    """What is launched: the compiled functions whose names begin with an underscore; the others are parts of these."""
    from triton.runtime.jit import JITFunction

    found = ((module.__name__, name, value) for module in triton_modules() for name, value in vars(module).items())
    return {f"{module}.{name}" for module, name, value in found if isinstance(value, JITFunction) and name[0] == "_"}
