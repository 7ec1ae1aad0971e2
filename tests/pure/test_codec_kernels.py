"""The C kernels, at every level of instructions this CPU has, and those in torch ops against the numpy ones: the same
bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from codec_samples import WINDOWS, floats, indices, raw
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from torch_arrays import torch_arrays

from random_examples import examples

native = pytest.importorskip("vdnn.codecs.kernels.native", exc_type=ImportError)  # its words say how to build it

from vdnn.codecs import kernels  # noqa: E402
from vdnn.codecs.kernels import native_library, reference  # noqa: E402
from vdnn.codecs.kernels.element_types import FLOATS  # noqa: E402
from vdnn.codecs.kernels.formats import FORMATS, reduced_nbytes  # noqa: E402
from vdnn.codecs.kernels.sparse_layout import (  # noqa: E402
    CSR_FORMATS,
    MASK_FORMATS,
    csr_value_nbytes,
    largest_values_nbytes,
    mask_nbytes,
    num_blocks,
    num_rows,
)
from vdnn.codecs.kernels.tests_of_elements import Test  # noqa: E402
from vdnn.codecs.kernels.window import Window  # noqa: E402
from vdnn.units import NBYTES_PER_ELEMENT  # noqa: E402

MANY = 250_001  # elements: several chunks, so that several threads get some
SIZES = st.integers(0, 100) | st.integers(4000, 9000) | st.just(MANY)
SEEDS = st.integers(0, 2**16)
THREADS = st.integers(1, 3)
ALL = {"reference": reference, "native": native, "torch ops": torch_arrays}
FILL = 0xA5  # outputs begin as this, so that a byte nobody wrote shows
ONCE_PER_KERNELS = examples(25, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True)


@pytest.fixture(params=[*native_library.levels(), "torch ops"])
def tested(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The kernels that are held to the reference."""
    if request.param == "torch ops":
        yield torch_arrays
        return
    with native_library.using_level(request.param):
        yield native


def fresh(nbytes: int) -> np.ndarray:
    return np.full(nbytes, FILL, np.uint8)


def bytes_of_elements(n: int, seed: int, element_nbytes: int) -> np.ndarray:
    """n elements of hard bits; of 8-byte ones the two halves come from different draws, so some are wholly zero."""
    return np.resize(raw(floats(n * max(1, element_nbytes // 4), seed)), n * element_nbytes)


@ONCE_PER_KERNELS
@given(SIZES, SEEDS, THREADS, st.sampled_from(FLOATS), st.sampled_from(Test), st.sampled_from([0.0, -0.5, 6.0, 1e300]))
def test_masks_are_packed_alike(
    tested: Any, n: int, seed: int, threads: int, dtype: str, test: Test, low: float
) -> None:
    source = bytes_of_elements(n, seed, NBYTES_PER_ELEMENT[dtype])
    expected, bits = fresh(mask_nbytes(n)), fresh(mask_nbytes(n))
    reference.pack_mask(source, dtype, test, low, 6.0, expected)
    tested.pack_mask(source, dtype, test, low, 6.0, bits, threads=threads)
    assert np.array_equal(bits, expected)


@ONCE_PER_KERNELS
@given(SIZES, SEEDS, THREADS, st.sampled_from(["bool", "int8", "int16", "int32", "int64"]))
def test_non_zeros_of_any_size_are_found_alike(tested: Any, n: int, seed: int, threads: int, dtype: str) -> None:
    source = bytes_of_elements(n, seed, NBYTES_PER_ELEMENT[dtype])
    expected, bits = fresh(mask_nbytes(n)), fresh(mask_nbytes(n))
    reference.pack_mask(source, dtype, Test.NONZERO, 0.0, 0.0, expected)
    tested.pack_mask(source, dtype, Test.NONZERO, 0.0, 0.0, bits, threads=threads)
    assert np.array_equal(bits, expected)


@ONCE_PER_KERNELS
@given(
    SIZES, SEEDS, THREADS, st.sampled_from([*FLOATS, "bool"]), st.sampled_from([(1.0, 0.0), (1.1, -0.01), (1e9, -0.0)])
)
def test_masks_are_unpacked_alike(
    tested: Any, n: int, seed: int, threads: int, dtype: str, values: tuple[float, float]
) -> None:
    bits = bytes_of_elements(mask_nbytes(n), seed, 1)
    expected, target = (fresh(n * NBYTES_PER_ELEMENT[dtype]) for _ in range(2))
    reference.unpack_mask(bits, expected, dtype, *values)
    tested.unpack_mask(bits, target, dtype, *values, threads=threads)
    assert np.array_equal(target, expected)


FACTORS = [(1.0, 0.0, True), (1.25, 0.0, True), (1.0, 0.01, False), (1.25, 0.0, False), (2.0, 1.0, False)]


@ONCE_PER_KERNELS
@given(SIZES, SEEDS, THREADS, st.sampled_from(["float32", "float64"]), st.sampled_from(FACTORS), st.booleans())
def test_gradients_are_masked_alike(
    tested: Any, n: int, seed: int, threads: int, dtype: str, factors: tuple[float, float, bool], in_place: bool
) -> None:
    gradient, bits = (
        bytes_of_elements(n, seed, NBYTES_PER_ELEMENT[dtype]),
        bytes_of_elements(mask_nbytes(n), seed + 1, 1),
    )
    expected, target = fresh(len(gradient)), gradient if in_place else fresh(len(gradient))
    reference.masked_gradient(gradient, bits, expected, dtype, *factors)
    tested.masked_gradient(gradient, bits, target, dtype, *factors, threads=threads)
    assert np.array_equal(target, expected)


@ONCE_PER_KERNELS
@given(SIZES, SEEDS, THREADS, st.sampled_from(list(FORMATS)))
def test_floats_are_reduced_alike(tested: Any, n: int, seed: int, threads: int, name: str) -> None:
    expected, target = fresh(reduced_nbytes(n, name)), fresh(reduced_nbytes(n, name))
    reference.reduce(floats(n, seed), name, expected)
    tested.reduce(floats(n, seed), name, target, threads=threads)
    assert np.array_equal(target, expected)


@ONCE_PER_KERNELS
@given(SIZES, SEEDS, THREADS, st.sampled_from(list(FORMATS)))
def test_any_bytes_are_expanded_alike(tested: Any, n: int, seed: int, threads: int, name: str) -> None:
    packed = np.random.default_rng(seed).integers(0, 256, reduced_nbytes(n, name), np.uint8)
    expected, target = fresh(4 * n), fresh(4 * n)
    reference.expand(packed, name, expected.view(np.float32))
    tested.expand(packed, name, target.view(np.float32), threads=threads)
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_all_patterns_of_16_bits_are_expanded_alike(tested: Any, name: str) -> None:
    packed = raw(np.arange(2**16, dtype=np.uint16))
    n = {"fp8": 2**17, "fp10": 3 * 2**15}.get(name, 2**16)
    expected, target = fresh(4 * n), fresh(4 * n)
    reference.expand(packed, name, expected.view(np.float32))
    tested.expand(packed, name, target.view(np.float32))
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_floats_around_every_code_are_reduced_alike(tested: Any, name: str) -> None:
    """float32's upper 18 bits in all combinations, below them the patterns at which rounding turns."""
    upper = np.arange(2**18, dtype=np.uint32) << 14
    x = np.concatenate([upper, upper + 1, upper + 0x1FFF, upper + 0x2000, upper + 0x2001, upper - 1]).view(np.float32)
    expected, target = fresh(reduced_nbytes(len(x), name)), fresh(reduced_nbytes(len(x), name))
    reference.reduce(x, name, expected)
    tested.reduce(x, name, target)
    assert np.array_equal(target, expected)


def sparse_parts(kernel: Any, source: np.ndarray, width: int, name: str, capacity: int) -> tuple[np.ndarray, ...]:
    """Bits, starts, values and the bytes needed, as one tuple of arrays."""
    n = len(source) // width
    bits, starts, values = fresh(mask_nbytes(n)), fresh(8 * num_blocks(n) + 8).view(np.int64), fresh(capacity)
    needed = kernel.sparse_encode(
        source, width, name, bits, starts, values, **({} if kernel is reference else {"threads": 2})
    )
    return bits, starts, values[:needed], np.array([needed])


def equal(ours: tuple[np.ndarray, ...], theirs: tuple[np.ndarray, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@ONCE_PER_KERNELS
@given(SIZES, SEEDS, st.sampled_from([(4, name) for name in MASK_FORMATS] + [(2, "raw")]))
def test_sparse_data_is_encoded_and_decoded_alike(tested: Any, n: int, seed: int, kind: tuple[int, str]) -> None:
    width, name = kind
    source, room = bytes_of_elements(n, seed, width), largest_values_nbytes(n, width, name)
    ours, theirs = (sparse_parts(kernel, source, width, name, room) for kernel in (tested, reference))
    assert equal(ours, theirs)
    bits, starts, values, needed = theirs
    expected, target = fresh(n * width), fresh(n * width)
    reference.sparse_decode(bits, starts, values[: needed[0]], width, name, expected)
    tested.sparse_decode(bits, starts, values[: needed[0]].copy(), width, name, target, threads=2)
    assert np.array_equal(target, expected)


def csr_parts(kernel: Any, source: np.ndarray, name: str, capacity: int) -> tuple[np.ndarray, ...]:
    rows = fresh(4 * num_rows(len(source) // 4) + 4).view(np.uint32)
    columns, values = fresh(capacity), fresh(capacity * csr_value_nbytes(name))
    needed = kernel.csr_encode(source, name, rows, columns, values, threads=2)
    return rows, columns[:needed], values[: needed * csr_value_nbytes(name)], np.array([needed])


@ONCE_PER_KERNELS
@given(SIZES, SEEDS, st.sampled_from(CSR_FORMATS))
def test_csr_data_is_encoded_and_decoded_alike(tested: Any, n: int, seed: int, name: str) -> None:
    source = bytes_of_elements(n, seed, 4)
    ours, theirs = (csr_parts(kernel, source, name, n) for kernel in (tested, reference))
    assert equal(ours, theirs)
    rows, columns, values, needed = theirs
    columns, values = columns[: needed[0]].copy(), values[: needed[0] * csr_value_nbytes(name)].copy()
    expected, target = fresh(4 * n), fresh(4 * n)
    reference.csr_decode(rows, columns, values, name, expected)
    tested.csr_decode(rows, columns, values, name, target, threads=2)
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("kernel", ALL.values(), ids=ALL)
@pytest.mark.parametrize("name", MASK_FORMATS)
def test_values_that_do_not_fit_are_counted_and_not_written(kernel: Any, name: str) -> None:
    source = bytes_of_elements(MANY, 11, 4)
    whole = sparse_parts(kernel, source, 4, name, largest_values_nbytes(MANY, 4, name))
    memory = fresh(int(whole[3][0]) + 4096)
    capacity = int(whole[3][0]) - 1
    bits, starts = np.empty_like(whole[0]), np.empty_like(whole[1])
    needed = kernel.sparse_encode(source, 4, name, bits, starts, memory[:capacity], threads=2)
    assert needed == whole[3][0]
    assert (memory[capacity:] == FILL).all()


@pytest.mark.parametrize("kernel", ALL.values(), ids=ALL)
@pytest.mark.parametrize("capacity", [0, 1, 50_000])
def test_non_zeros_that_do_not_fit_are_counted_and_not_written(kernel: Any, capacity: int) -> None:
    source, rows = bytes_of_elements(MANY, 12, 4), np.empty(num_rows(MANY) + 1, np.uint32)
    columns, values = fresh(capacity + 4096), fresh(4 * capacity + 4096)
    needed = kernel.csr_encode(source, "raw", rows, columns[:capacity], values[: 4 * capacity], threads=2)
    assert needed == np.count_nonzero(source.view(np.uint32))
    assert (columns[capacity:] == FILL).all()
    assert (values[4 * capacity :] == FILL).all()


def larger(window: Window) -> Window:
    """The same pooling of so many planes that several threads get some."""
    axes = (window.kernel, window.stride, window.padding, window.dilation, window.input, window.output)
    return Window(*axes, outer=window.outer * -(-MANY // max(1, window.num_pooled)), inner=window.inner)


@pytest.mark.parametrize("many", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_windows_are_encoded_and_decoded_alike(tested: Any, window: Window, many: bool) -> None:
    window = larger(window) if many else window
    chosen, taps, expected = indices(window, 13), fresh(window.taps_nbytes), fresh(window.taps_nbytes)
    reference.pack_window(chosen, window, expected)
    tested.pack_window(chosen, window, taps, threads=3)
    assert np.array_equal(taps, expected)
    again = fresh(8 * window.num_pooled).view(np.int64)
    tested.unpack_window(taps, window, again, threads=3)
    assert np.array_equal(again, chosen)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_gradients_of_pooling_have_the_same_bits(tested: Any, window: Window, threads: int) -> None:
    window = larger(window) if threads > 1 and window.inner == 1 else window
    taps, gradient = fresh(window.taps_nbytes), floats(window.num_pooled, 14)
    gradient = np.where(np.isnan(gradient), np.float32(1), gradient)  # of two NaNs, which payload wins is the CPU's
    reference.pack_window(indices(window, 14), window, taps)
    target, expected = (fresh(4 * window.num_inputs).view(np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        reference.window_backward(gradient, taps, window, expected)
    tested.window_backward(gradient, taps, window, target, threads=threads)
    assert np.array_equal(raw(target), raw(expected))


def test_channels_of_one_large_plane_are_shared_between_threads(tested: Any) -> None:
    small = WINDOWS["3x3, channels last"]
    axes = (small.kernel, small.stride, small.padding, small.dilation)
    window = Window(*axes, input=(1, 31, 31), output=(1, 16, 16), outer=1, inner=301)
    taps, gradient = fresh(window.taps_nbytes), floats(window.num_pooled, 15)
    gradient = np.where(np.isfinite(gradient), gradient, np.float32(1))
    reference.pack_window(indices(window, 15), window, taps)
    target, expected = (fresh(4 * window.num_inputs).view(np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        reference.window_backward(gradient, taps, window, expected)
    tested.window_backward(gradient, taps, window, target, threads=3)
    assert np.array_equal(raw(target), raw(expected))


@given(st.sampled_from(sorted(WINDOWS)), SEEDS, st.integers(-3, 10**5))
@ONCE_PER_KERNELS
def test_the_same_index_is_found_to_be_the_first_outside_its_window(
    tested: Any, name: str, seed: int, index: int
) -> None:
    window = WINDOWS[name]
    chosen = indices(window, seed)
    if len(chosen) > 0:
        chosen[seed % len(chosen)] = index
    ours, theirs = (kernel.pack_window(chosen, window, fresh(window.taps_nbytes)) for kernel in (tested, reference))
    assert ours == theirs


def test_taps_of_another_pooling_are_not_unpacked() -> None:
    window = WINDOWS["3x3, stride 2, padded"]
    taps, target = np.full(window.taps_nbytes, 0xFF, np.uint8), np.empty(window.num_pooled, np.int64)
    with pytest.raises(ValueError, match=r"not positions in a kernel of \(1, 3, 3\)"):
        native.unpack_window(taps, window, target)


@pytest.mark.parametrize("tap", [0x00, 0xFF], ids=["into the padding", "past the kernel"])
def test_taps_of_another_pooling_are_not_followed(tap: int) -> None:
    window = WINDOWS["3x3, stride 2, padded"]
    taps, gradient = np.full(window.taps_nbytes, tap, np.uint8), np.ones(window.num_pooled, np.float32)
    with pytest.raises(ValueError, match=r"or lead out of an input of \(1, 7, 9\)"):
        native.window_backward(gradient, taps, window, np.empty(window.num_inputs, np.float32))


def test_an_output_that_is_too_small_is_refused_before_anything_is_written() -> None:
    with pytest.raises(ValueError, match="target has 5 elements of uint8, 6 are needed"):
        native.reduce(np.ones(3, np.float32), "bf16", np.empty(5, np.uint8))


def test_an_array_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="source must be a flat contiguous array of float32"):
        native.reduce(np.ones(8, np.float32)[::2], "bf16", np.empty(8, np.uint8))


def test_the_c_kernels_are_used_when_they_were_built() -> None:
    kernels.cpu_kernels.cache_clear()
    assert kernels.kernels_of("cpu") is native


@pytest.mark.parametrize("kernel", ALL.values(), ids=ALL)
def test_every_implementation_offers_the_same_functions(kernel: Any) -> None:
    assert all(callable(getattr(kernel, name)) for name in reference.__all__)
