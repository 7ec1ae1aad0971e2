"""How fast tensors are encoded and decoded on this CPU, beside a plain copy of the same bytes.

A codec is worth its bytes only if it costs little more than touching them. Every row states the bytes it is measured
by: the float32 tensor's, for window taps those of the int64 indices, for their backward those of the input gradient
it writes. `of copy` is the speed in those bytes over the speed of a memcpy of as many, by the same threads, into memory
that has been touched before. Rounds are interleaved and the medians of their ratios are printed, because other work on
the machine slows a copy and a kernel alike.

    python benchmarks/codecs.py
    python benchmarks/codecs.py --levels generic avx2 avx512 --rounds 5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from vdnn.codecs.kernels import native
from vdnn.codecs.kernels.formats import FORMATS, reduced_nbytes
from vdnn.codecs.kernels.native_library import LIBRARY, level, levels, using_level
from vdnn.codecs.kernels.sparse_layout import ROW, csr_value_nbytes, largest_values_nbytes, num_blocks, num_rows
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.codecs.kernels.window import Window

NBYTES = 100_000_000
ELEMENTS = NBYTES // 4 // ROW * ROW
RNG = np.random.default_rng(2018)


@dataclass(frozen=True)
class Case:
    """One kernel on prepared arrays; `run(threads)` calls it."""

    name: str
    nbytes: int
    run: Callable[[int], object]


def floats(zeros: float = 0.0) -> np.ndarray:
    """Normally distributed values of which this share is zero, in no pattern a branch predictor could learn."""
    values = RNG.standard_normal(ELEMENTS, dtype=np.float32)
    values[RNG.random(ELEMENTS, dtype=np.float32) < zeros] = 0
    return values


def touched(count: int, dtype: type = np.uint8) -> np.ndarray:
    """An output array whose pages exist."""
    return np.full(count, 1, dtype)


def raw(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


def mask_cases() -> Iterator[Case]:
    x, bits, target = floats(), touched(ELEMENTS // 8), touched(ELEMENTS, np.float32)
    native.pack_mask(raw(x), "float32", Test.ABOVE, 0.0, 0.0, bits)

    def masked(off: float, zero_off: bool) -> Callable[[int], object]:
        return lambda t: native.masked_gradient(raw(x), bits, raw(target), "float32", 1.0, off, zero_off, threads=t)

    pack = lambda t: native.pack_mask(raw(x), "float32", Test.ABOVE, 0.0, 0.0, bits, threads=t)  # noqa: E731
    inside = lambda t: native.pack_mask(raw(x), "float32", Test.INSIDE, 0.0, 6.0, bits, threads=t)  # noqa: E731
    unpack = lambda t: native.unpack_mask(bits, raw(target), "float32", 1.0, 0.0, threads=t)  # noqa: E731
    yield Case("mask, one bound: encode", x.nbytes, pack)
    yield Case("mask, two bounds: encode", x.nbytes, inside)
    yield Case("mask: decode", x.nbytes, unpack)
    yield Case("mask: gradient of ReLU", x.nbytes, masked(0.0, True))
    yield Case("mask: gradient of leaky ReLU", x.nbytes, masked(0.01, False))


def float_cases() -> Iterator[Case]:
    x, target = floats(), touched(ELEMENTS, np.float32)
    for name in FORMATS:
        packed = touched(reduced_nbytes(ELEMENTS, name))
        native.reduce(x, name, packed)
        yield Case(
            f"{name}: encode", x.nbytes, lambda t, name=name, packed=packed: native.reduce(x, name, packed, threads=t)
        )
        yield Case(
            f"{name}: decode",
            x.nbytes,
            lambda t, name=name, packed=packed: native.expand(packed, name, target, threads=t),
        )


def sparse_cases() -> Iterator[Case]:
    x, target = floats(zeros=0.5), touched(ELEMENTS, np.float32)
    for name in ("raw", *FORMATS):
        parts = touched(ELEMENTS // 8), touched(num_blocks(ELEMENTS) + 1, np.int64)
        values = touched(largest_values_nbytes(ELEMENTS, 4, name))
        encode, decode = sparse_pair(x, target, name, *parts, values)
        encode(1)
        yield Case(f"sparse {name}, 50 % zeros: encode", x.nbytes, encode)
        yield Case(f"sparse {name}, 50 % zeros: decode", x.nbytes, decode)


def sparse_pair(
    x: np.ndarray, target: np.ndarray, name: str, bits: np.ndarray, starts: np.ndarray, values: np.ndarray
) -> tuple[Callable[[int], object], Callable[[int], object]]:
    return (
        lambda t: native.sparse_encode(raw(x), 4, name, bits, starts, values, threads=t),
        lambda t: native.sparse_decode(bits, starts, values, 4, name, raw(target), threads=t),
    )


def csr_cases() -> Iterator[Case]:
    x, target = floats(zeros=0.9), touched(ELEMENTS, np.float32)
    for name in ("raw", "fp16", "fp8"):
        rows, columns = touched(num_rows(ELEMENTS) + 1, np.uint32), touched(ELEMENTS)
        values = touched(ELEMENTS * csr_value_nbytes(name))
        encode, decode = csr_pair(x, target, name, rows, columns, values)
        encode(1)
        yield Case(f"CSR {name}, 90 % zeros: encode", x.nbytes, encode)
        yield Case(f"CSR {name}, 90 % zeros: decode", x.nbytes, decode)


def csr_pair(
    x: np.ndarray, target: np.ndarray, name: str, rows: np.ndarray, columns: np.ndarray, values: np.ndarray
) -> tuple[Callable[[int], object], Callable[[int], object]]:
    return (
        lambda t: native.csr_encode(raw(x), name, rows, columns, values, threads=t),
        lambda t: native.csr_decode(rows, columns, values, name, raw(target), threads=t),
    )


def pooling(kernel: int, stride: int, padding: int, size: int, channels_last: bool, planes: int) -> Window:
    """A square 2-D pooling of `planes` planes; 64 channels where they come last."""
    pooled = (size + 2 * padding - kernel) // stride + 1
    outer, inner = (planes // 64, 64) if channels_last else (planes, 1)
    square = lambda extent, first: (first, extent, extent)  # noqa: E731
    return Window(
        square(kernel, 1),
        square(stride, 1),
        square(padding, 0),
        (1, 1, 1),
        square(size, 1),
        square(pooled, 1),
        outer,
        inner,
    )


def window_cases() -> Iterator[Case]:
    geometries = {"3x3/2": (3, 2, 1, 112), "2x2/2": (2, 2, 0, 112)}
    for name, geometry in geometries.items():
        for order in ("", ", channels last"):
            per_plane = pooling(*geometry, bool(order), 64)
            planes = NBYTES // 8 // (per_plane.num_pooled // 64) // 64 * 64
            yield from one_pooling(f"window {name}{order}", pooling(*geometry, bool(order), planes))
            backward = pooling(*geometry, bool(order), NBYTES // 4 // 112**2 // 64 * 64)
            yield backward_case(f"window {name}{order}", backward)


def random_taps(window: Window) -> np.ndarray:
    """Taps that lie in the input wherever the window does; its last row and column are always inside."""
    size = window.kernel[2]
    choices = [size * row + column for row in (size - 2, size - 1) for column in (size - 2, size - 1)]
    taps = RNG.choice(choices, window.num_pooled).astype(np.uint8)
    taps = np.append(taps, np.uint8(0)) if len(taps) % 2 else taps
    return taps[0::2] | taps[1::2] << np.uint8(4)


def one_pooling(name: str, window: Window) -> Iterator[Case]:
    taps, indices = random_taps(window), touched(window.num_pooled, np.int64)
    native.unpack_window(taps, window, indices)
    again = touched(window.num_pooled, np.int64)
    yield Case(f"{name}: encode", indices.nbytes, lambda t: native.pack_window(indices, window, taps, threads=t))
    yield Case(f"{name}: decode", indices.nbytes, lambda t: native.unpack_window(taps, window, again, threads=t))


def backward_case(name: str, window: Window) -> Case:
    taps, gradient = random_taps(window), RNG.standard_normal(window.num_pooled, dtype=np.float32)
    target = touched(window.num_inputs, np.float32)
    return Case(
        f"{name}: backward",
        target.nbytes,
        lambda t: native.window_backward(gradient, taps, window, target, threads=t),
    )


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(case: Case, threads: int, rounds: int) -> tuple[float, float]:
    """Bytes per second, and that over the copy's: medians over rounds that alternate between the two."""
    source, target = touched(case.nbytes), touched(case.nbytes)
    copy = lambda: LIBRARY.vdnn_copy(source.ctypes.data, case.nbytes, target.ctypes.data, threads)  # noqa: E731
    copy(), case.run(threads)
    pairs = [(seconds(copy), seconds(lambda: case.run(threads))) for _ in range(rounds)]
    return case.nbytes / median(own for _, own in pairs), median(copied / own for copied, own in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--levels", nargs="+", default=[level()], choices=levels())
    parser.add_argument("--only", default="", help="run the cases whose name begins so")
    options = parser.parse_args()
    columns = [f"{name}, {threads} thread(s)" for name in options.levels for threads in options.threads]
    print(f"{'GB/s, and of copy':36} " + " ".join(f"{column:>22}" for column in columns))
    for cases in (mask_cases, float_cases, sparse_cases, csr_cases, window_cases):
        for case in cases():
            if case.name.startswith(options.only):
                print(f"{case.name:36} " + " ".join(cells(case, options)), flush=True)


def cells(case: Case, options: argparse.Namespace) -> Iterator[str]:
    for name in options.levels:
        with using_level(name):
            for threads in options.threads:
                speed, ratio = measure(case, threads, options.rounds)
                yield f"{speed / 1e9:14.2f} {ratio:7.2f}"


if __name__ == "__main__":
    main()
