"""The numpy kernels define the codecs, so they are held against enumeration, numpy's own types and naive loops."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from codec_samples import SPECIAL, WINDOWS, floats, indices, raw

from vdnn.codecs import kernels
from vdnn.codecs.kernels import reference
from vdnn.codecs.kernels.element_types import element_bits
from vdnn.codecs.kernels.formats import FORMATS, Format, reduced_nbytes
from vdnn.codecs.kernels.sparse_layout import largest_values_nbytes, mask_nbytes, num_blocks, num_rows
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.codecs.kernels.window import Window

SHORT = ("fp10", "fp8")
NAN, INFINITY = float("nan"), float("inf")


def reduced(x: np.ndarray, format: str) -> np.ndarray:
    target = np.empty(reduced_nbytes(len(x), format), np.uint8)
    reference.reduce(x, format, target)
    return target


def patterns_of(x: np.ndarray, format: str) -> np.ndarray:
    """One number per element, read from the packed bytes as formats.py describes them."""
    packed = reduced(x, format)
    if format == "fp10":
        words = packed.view("<u4")
        return np.stack([words >> 10 * k & 0x3FF for k in range(3)], axis=1).reshape(-1)[: len(x)]
    return packed.view(f"<u{FORMATS[format].group_nbytes}")


def round_trip(x: np.ndarray, format: str) -> np.ndarray:
    target = np.empty(len(x), np.float32)
    reference.expand(reduced(x, format), format, target)
    return target


def numbers(layout: Format) -> dict[int, float]:
    """Every positive pattern of a short float that is a number, with its value by definition; exact in float64."""
    places = 1 << layout.mantissa_bits
    patterns = range(places, layout.largest_pattern + 1)
    return {0: 0.0} | {
        pattern: (1 + pattern % places / places) * 2.0 ** (pattern // places - layout.bias) for pattern in patterns
    }


def nearest_patterns(x: np.ndarray, layout: Format) -> np.ndarray:
    """The slow way: distances to all numbers, of two equally near the even pattern; small ones by the rule for them."""
    table = numbers(layout)
    patterns = np.array(
        sorted(table, key=lambda pattern: pattern % 2)
    )  # argmin takes the first of equals: the even one
    values = np.array([table[pattern] for pattern in patterns])
    wide = x.astype(np.float64)
    chosen = patterns[np.argmin(np.abs(wide[:, None] - values[None, :]), axis=1)]
    smallest = 2.0 ** (1 - layout.bias)
    rounds_up_from = smallest * (1 - 2.0 ** -(layout.mantissa_bits + 2))  # half a place below, where places are halved
    return np.where(wide < smallest, np.where(wide >= rounds_up_from, 1 << layout.mantissa_bits, 0), chosen)


def trying_values(layout: Format) -> np.ndarray:
    """All numbers, all midpoints between them, the border to zero, and float32's neighbours of each."""
    values = np.array(sorted(numbers(layout).values()))
    border = 2.0 ** (1 - layout.bias) * (1 - 2.0 ** -(layout.mantissa_bits + 2))
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, [border, values[-1] * 1.5]]).astype(np.float32)
    return np.concatenate([points, np.nextafter(points, np.float32(INFINITY)), np.nextafter(points, np.float32(0))])


@pytest.mark.parametrize("name", SHORT)
def test_every_code_of_a_short_format_survives_being_read_and_written(name: str) -> None:
    layout = FORMATS[name]
    patterns = np.array([*numbers(layout), layout.nan_pattern], np.uint32)
    patterns = np.concatenate([patterns, patterns | layout.sign_bit])
    packed = np.zeros(reduced_nbytes(len(patterns), name), np.uint8)
    words = np.zeros(3 * -(-len(patterns) // 3), np.uint32)
    words[: len(patterns)] = patterns
    packed[:] = (
        raw(words[0::3] | words[1::3] << 10 | words[2::3] << 20) if name == "fp10" else patterns.astype(np.uint8)
    )
    values = np.empty(len(patterns), np.float32)
    reference.expand(packed, name, values)
    assert np.array_equal(patterns_of(values, name), patterns)


@pytest.mark.parametrize("name", SHORT)
def test_every_code_of_a_short_format_has_the_value_its_definition_gives_it(name: str) -> None:
    x = np.array(list(numbers(FORMATS[name]).values()), np.float32)
    assert np.array_equal(round_trip(x, name), x)


@pytest.mark.parametrize("name", SHORT)
def test_rounding_finds_the_nearest_number_and_the_even_one_of_two(name: str) -> None:
    x = trying_values(FORMATS[name])
    assert np.array_equal(patterns_of(x, name), nearest_patterns(x, FORMATS[name]))
    assert np.array_equal(patterns_of(-x, name), nearest_patterns(x, FORMATS[name]) | FORMATS[name].sign_bit)


@pytest.mark.parametrize(("name", "largest"), [("fp16", 65504), ("fp10", 122880), ("fp8", 448), ("bf16", 3.3895314e38)])
def test_what_is_too_large_becomes_the_largest_number(name: str, largest: float) -> None:
    x = np.array([3.4e38, INFINITY, -INFINITY], np.float32)
    assert np.array_equal(round_trip(x, name), np.array([largest, largest, -largest], np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_every_nan_becomes_the_one_nan_of_its_sign(name: str) -> None:
    nans = np.array([0x7F800001, 0x7FFFFFFF, 0x7FC01234, 0xFF800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    layout = FORMATS[name]
    assert patterns_of(nans, name).tolist() == [layout.nan_pattern] * 3 + [layout.nan_pattern | layout.sign_bit] * 2
    assert np.isnan(round_trip(nans, name)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_keep_their_sign(name: str) -> None:
    x = np.array([0.0, -0.0, 1e-44, -1e-44], np.float32)
    assert np.signbit(round_trip(x, name)).tolist() == [False, True, False, True]


def test_fp16_is_numpys_half_wherever_that_is_finite() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    exact = halves[np.isfinite(halves)].astype(np.float32)
    x = np.concatenate(
        [exact, np.nextafter(exact, np.float32(INFINITY)), (exact[1:] + exact[:-1]) / 2, floats(5000, 1)]
    )
    with np.errstate(all="ignore"):
        expected = x.astype(np.float16)
    finite = np.isfinite(expected)
    assert np.array_equal(patterns_of(x, "fp16")[finite], expected[finite].view(np.uint16))


def test_bf16_is_the_nearest_float32_with_an_empty_lower_half() -> None:
    bits = np.concatenate([floats(20_000, 2).view(np.uint32), np.arange(0x3F800000, 0x3F840000, 0x1000, np.uint32)])
    bits = bits[(bits & 0x7FFFFFFF) < 0x7F7F0000]  # both neighbours are finite
    x, upper = bits.view(np.float32).astype(np.float64), bits & np.uint32(0xFFFF0000)
    below, above = (neighbour.view(np.float32).astype(np.float64) for neighbour in (upper, upper + np.uint32(0x10000)))
    is_nearer, is_tie = np.abs(x - below) < np.abs(x - above), np.abs(x - below) == np.abs(x - above)
    expected = np.where(is_nearer | is_tie & (upper & 0x10000 == 0), below, above)
    assert np.array_equal(round_trip(bits.view(np.float32), "bf16"), expected)


@pytest.mark.parametrize(
    ("test", "passing"),
    [
        (Test.ABOVE, [NAN, 0.5, 6.0, INFINITY]),
        (Test.GREATER, [0.5, 6.0, INFINITY]),
        (Test.INSIDE, [NAN, 0.5]),
        (Test.BETWEEN, [0.5]),
        (Test.NONZERO, [NAN, -INFINITY, -1.0, -0.0, 0.5, 6.0, INFINITY]),
    ],
)
def test_a_test_of_elements_lets_through_what_it_says(test: Test, passing: list[float]) -> None:
    x = np.array([NAN, -INFINITY, -1.0, -0.0, 0.0, 0.5, 6.0, INFINITY], np.float32)
    bits = np.empty(1, np.uint8)
    reference.pack_mask(raw(x), "float32", test, 0.0, 6.0, bits)
    chosen = x[np.unpackbits(bits, bitorder="little").astype(bool)]
    assert np.array_equal(raw(chosen), raw(np.array(passing, np.float32)))


@pytest.mark.parametrize(
    ("dtype", "value", "bits"), [("bfloat16", 1.25, 0x3FA0), ("float16", 0.1, 0x2E66), ("bool", 2.0, 1)]
)
def test_a_value_is_written_in_the_bits_of_its_type(dtype: str, value: float, bits: int) -> None:
    assert element_bits(value, dtype) == bits


def test_the_gradient_of_relu_keeps_the_bits_of_what_passes() -> None:
    gradient, target = SPECIAL.view(np.float32), np.empty(len(SPECIAL), np.float32)
    bits = np.full(mask_nbytes(len(SPECIAL)), 0b01010101, np.uint8)
    reference.masked_gradient(raw(gradient), bits, raw(target), "float32", 1.0, 0.0, True)
    assert np.array_equal(target.view(np.uint32), np.where(np.arange(len(SPECIAL)) % 2, 0, SPECIAL))


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_window_taps_give_back_the_indices(window: Window) -> None:
    chosen, taps, again = (
        indices(window, 3),
        np.empty(window.taps_nbytes, np.uint8),
        np.empty(window.num_pooled, np.int64),
    )
    reference.pack_window(chosen, window, taps)
    reference.unpack_window(taps, window, again)
    assert np.array_equal(again, chosen)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_the_gradient_of_pooling_is_that_of_a_naive_loop(window: Window) -> None:
    chosen, taps = indices(window, 4), np.empty(window.taps_nbytes, np.uint8)
    reference.pack_window(chosen, window, taps)
    gradient = np.random.default_rng(5).standard_normal(window.num_pooled).astype(np.float32)
    target, expected = np.empty(window.num_inputs, np.float32), np.zeros(window.num_inputs, np.float32)
    reference.window_backward(gradient, taps, window, target)
    planes = expected.reshape(window.outer, math.prod(window.input), window.inner)
    places = np.ndindex(window.outer, *window.output, window.inner)
    for element, (outer, _, _, _, inner) in enumerate(places):
        planes[outer, chosen[element], inner] += gradient[element]
    assert np.array_equal(target.view(np.uint32), expected.view(np.uint32))


def test_the_first_index_outside_its_window_is_told() -> None:
    window = WINDOWS["3x3, stride 2, padded"]
    chosen = indices(window, 6)
    chosen[[7, 9]] = 62
    assert reference.pack_window(chosen, window, np.empty(window.taps_nbytes, np.uint8)) == 7


def test_a_kernel_with_more_than_256_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="289 positions"):
        Window((1, 17, 17), (1, 1, 1), (0, 0, 0), (1, 1, 1), (1, 20, 20), (1, 4, 4), 1, 1)


@pytest.mark.parametrize("n", [0, 1, 4096, 10_001])
def test_sparse_data_returns_bit_for_bit(n: int) -> None:
    x, again = floats(n, 7), np.empty(n, np.float32)
    bits, starts = np.empty(mask_nbytes(n), np.uint8), np.empty(num_blocks(n) + 1, np.int64)
    values = np.empty(largest_values_nbytes(n, 4, "raw"), np.uint8)
    needed = reference.sparse_encode(raw(x), 4, "raw", bits, starts, values)
    reference.sparse_decode(bits, starts, values, 4, "raw", raw(again))
    assert (np.array_equal(raw(again), raw(x)), needed) == (True, 4 * np.count_nonzero(x.view(np.uint32)))


@pytest.mark.parametrize("n", [0, 1, 256, 10_001])
def test_csr_data_returns_bit_for_bit(n: int) -> None:
    x, again = floats(n, 8), np.empty(n, np.float32)
    rows, columns, values = np.empty(num_rows(n) + 1, np.uint32), np.empty(n, np.uint8), np.empty(4 * n, np.uint8)
    needed = reference.csr_encode(raw(x), "raw", rows, columns, values)
    reference.csr_decode(rows, columns, values, "raw", raw(again))
    assert (np.array_equal(raw(again), raw(x)), needed) == (True, np.count_nonzero(x.view(np.uint32)))


@pytest.mark.parametrize("name", FORMATS)
def test_sparse_values_are_those_of_the_dense_format(name: str) -> None:
    x, again = floats(9000, 9), np.empty(9000, np.float32)
    bits, starts = np.empty(mask_nbytes(9000), np.uint8), np.empty(num_blocks(9000) + 1, np.int64)
    values = np.empty(largest_values_nbytes(9000, 4, name), np.uint8)
    reference.sparse_encode(raw(x), 4, name, bits, starts, values)
    reference.sparse_decode(bits, starts, values, 4, name, raw(again))
    assert np.array_equal(raw(again), raw(round_trip(x, name)))


def test_the_numpy_kernels_are_used_when_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VDNN_NATIVE", "0")
    kernels.cpu_kernels.cache_clear()
    with caplog.at_level(logging.INFO):
        assert kernels.cpu_kernels() is reference
    kernels.cpu_kernels.cache_clear()
    assert "because VDNN_NATIVE=0" in caplog.text
