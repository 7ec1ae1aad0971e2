"""Every codec over real bytes: how long its encoding is, what comes back, and what it says when data does not fit.

Elements are bit patterns, not numbers: NaNs with payloads, both zeros, infinities and denormals come up as often as
ordinary values. Each claim is made of the numpy kernels and, where they were built, of the C kernels.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_arrays import torch_arrays

from random_examples import examples
from vdnn.codecs import CODECS, LOSSY_FORMATS, Codec, codec_for
from vdnn.codecs.codec import ELEMENT_NBYTES
from vdnn.codecs.kernels.formats import FORMATS
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.errors import InvalidInput
from vdnn.ir import Detail, Information, Need, Role, Storage

some = examples(25)

ABOVE_ZERO: Detail = (int(Test.ABOVE), 0.0, 0.0, 1.0, 0.0)
NONZERO: Detail = (int(Test.NONZERO), 0.0, 0.0, 2.0, 0.0)
SPECIALS = np.array(
    [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x00000001, 0x807FFFFF],
    dtype=np.uint32,
)
"""Both zeros, both infinities, a quiet NaN, a signalling and a negative one with payload, two denormals."""


def available_kernels() -> list[Any]:
    reference = importlib.import_module("vdnn.codecs.kernels.reference")
    try:
        return [reference, torch_arrays, importlib.import_module("vdnn.codecs.kernels.native")]
    except ImportError:  # no compiler was there when the package was installed
        return [reference, torch_arrays]


EACH_KERNELS = pytest.mark.parametrize(
    "kernels", available_kernels(), ids=lambda module: module.__name__.rpartition(".")[2]
)


@st.composite
def elements(draw: st.DrawFn, dtype: str = "float32", density: float | None = None) -> np.ndarray:
    """Raw bytes of up to two blocks and a bit of elements, a share of them zero, some special."""
    count = draw(st.sampled_from([0, 1, 2, 3, 7, 8, 9, 255, 256, 257, 4095, 4096, 4097, 8195]))
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])) if density is None else density
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    width = ELEMENT_NBYTES[dtype]
    bits = random.integers(1, 2 ** (8 * width), count, dtype=np.uint64).astype(f"u{width}")
    special = random.random(count) < 0.3
    bits[special] = random.choice(SPECIALS.astype(f"u{width}"), int(special.sum()))
    bits[random.random(count) >= share] = 0
    return bits.view(np.uint8)


def storage(data: np.ndarray, dtype: str = "float32", alphabet: tuple[float, ...] = ()) -> Storage:
    return Storage("map", len(data), Role.FEATURE_MAP, dtype, (), alphabet)


def there_and_back(codec: Codec, data: np.ndarray, kernels: Any) -> np.ndarray:
    """What is decoded from the encoding, into memory that held something else."""
    encoding = np.full(codec.nbytes, 0xAA, np.uint8)
    assert codec.encode(data, encoding, kernels) <= codec.nbytes
    target = np.full(len(data), 0x55, np.uint8)
    codec.decode(encoding, target, kernels)
    return target


@EACH_KERNELS
@pytest.mark.parametrize("name", ["sparse", "csr"])
@given(data=elements())
@some
def test_a_sparse_encoding_gives_back_every_bit(name: str, data: np.ndarray, kernels: Any) -> None:
    codec = codec_for(name, storage(data), (1.0,))
    assert there_and_back(codec, data, kernels).tobytes() == data.tobytes()


@EACH_KERNELS
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@given(choose=st.data())
@some
def test_a_sparse_encoding_of_two_byte_elements_gives_back_every_bit(dtype: str, choose: Any, kernels: Any) -> None:
    data = choose.draw(elements(dtype))
    codec = codec_for("sparse", storage(data, dtype), (1.0,))
    assert there_and_back(codec, data, kernels).tobytes() == data.tobytes()


@EACH_KERNELS
@pytest.mark.parametrize(
    "name", ["sparse", "csr", "sparse-fp16", "sparse-bf16", "sparse-fp10", "sparse-fp8", "csr-fp8"]
)
@given(data=elements(density=0.5))
@some
def test_data_of_the_density_that_was_planned_fits(name: str, data: np.ndarray, kernels: Any) -> None:
    codec = codec_for(name, storage(data), (exact_density(data),))
    encoding = np.zeros(codec.nbytes, np.uint8)
    assert codec.encode(data, encoding, kernels) <= codec.nbytes


@EACH_KERNELS
@pytest.mark.parametrize("name", ["sparse", "csr", "sparse-fp16", "sparse-fp10", "csr-fp16"])
@given(data=elements(density=1.0).filter(lambda data: len(data) > 1000))
@some
def test_denser_data_than_planned_is_reported_and_nothing_is_written_past_the_encoding(
    name: str, data: np.ndarray, kernels: Any
) -> None:
    codec = codec_for(name, storage(data), (0.8 * exact_density(data),))
    memory = np.full(codec.nbytes + 64, 0xAA, np.uint8)
    assert codec.encode(data, memory[: codec.nbytes], kernels) > codec.nbytes
    assert (memory[codec.nbytes :] == 0xAA).all()


@EACH_KERNELS
@pytest.mark.parametrize("name", ["sparse", "csr"])
@pytest.mark.parametrize("planned", [0.2, 1.0])
def test_the_density_that_was_found_is_told_whether_it_fitted_or_not(name: str, planned: float, kernels: Any) -> None:
    data = np.zeros(10_000, np.uint32)
    data[:4_000] = 7
    codec: Any = codec_for(name, storage(data.view(np.uint8)), (planned,))
    needed = codec.encode(data.view(np.uint8), np.zeros(codec.nbytes, np.uint8), kernels)
    assert codec.density(needed) == pytest.approx(0.4)


def exact_density(data: np.ndarray) -> float:
    nonzero = int(np.count_nonzero(data.view(np.uint32)))
    return max(nonzero / max(data.size // 4, 1), 1e-9)


@EACH_KERNELS
@pytest.mark.parametrize("test", list(Test))
@given(data=elements())
@some
def test_bits_answer_the_question_for_every_element(test: Test, data: np.ndarray, kernels: Any) -> None:
    """Against Python's own comparison, element by element."""
    codec = codec_for("sign-mask", storage(data), (int(test), -1.0, 1.5, 8.0, 4.0))
    with np.errstate(invalid="ignore"):  # widening a signalling NaN is no mistake here
        values = data.view(np.float32).astype(np.float64)
    expected = {
        Test.ABOVE: [not x <= -1 for x in values],
        Test.GREATER: [x > -1 for x in values],
        Test.INSIDE: [not (x <= -1 or x >= 1.5) for x in values],
        Test.BETWEEN: [-1 < x < 1.5 for x in values],
        Test.NONZERO: [bool(bits) for bits in data.view(np.uint32)],
    }[test]
    decoded = there_and_back(codec, data, kernels).view(np.float32)
    assert decoded.tolist() == [8.0 if answer else 4.0 for answer in expected]


@EACH_KERNELS
@pytest.mark.parametrize(
    ("dtype", "alphabet"), [("float32", (0.0, 1 / 0.7)), ("float64", (0.0, 2.0)), ("bool", (0, 1))]
)
def test_bits_of_a_storage_of_two_numbers_give_back_every_bit(dtype: str, alphabet: Any, kernels: Any) -> None:
    kind = np.dtype("bool" if dtype == "bool" else dtype)
    data = np.array(alphabet, kind)[np.random.default_rng(0).integers(0, 2, 1001)].view(np.uint8)
    on = float(np.array(alphabet, kind)[1])
    codec = codec_for("bool-mask", storage(data, dtype, (0.0, on)), (int(Test.NONZERO), 0.0, 0.0, on, 0.0))
    assert there_and_back(codec, data, kernels).tobytes() == data.tobytes()


def pooling(kernel: int, stride: int, padding: int, dilation: int, size: int, inner: int) -> tuple[Detail, np.ndarray]:
    """The detail of a square pooling over 6 planes, and for each output an index that its windows can produce."""
    extent = dilation * (kernel - 1) + 1
    out = (size + 2 * padding - extent) // stride + 1
    outer = 6 // inner
    sides = (1, kernel, kernel, 1, stride, stride, 0, padding, padding, 1, dilation, dilation)
    detail = (*sides, 1, size, size, 1, out, out, outer, inner)
    random = np.random.default_rng(kernel * size)
    rows = [_places(position * stride - padding, kernel, dilation, size) for position in range(out)]
    indices = [
        random.choice(rows[y]) * size + random.choice(rows[x])
        for _ in range(outer)
        for y in range(out)
        for x in range(out)
        for _ in range(inner)
    ]
    return detail, np.array(indices, np.int64)


def _places(begin: int, kernel: int, dilation: int, size: int) -> list[int]:
    return [at for at in range(begin, begin + kernel * dilation, dilation) if 0 <= at < size]


POOLINGS = [(2, 2, 0, 1, 8), (3, 2, 1, 1, 9), (3, 1, 1, 2, 7), (5, 3, 2, 1, 11), (2, 2, 0, 1, 3)]


@EACH_KERNELS
@pytest.mark.parametrize("inner", [1, 3])
@pytest.mark.parametrize("geometry", POOLINGS)
def test_a_window_encoding_gives_back_every_index(geometry: tuple[int, ...], inner: int, kernels: Any) -> None:
    detail, indices = pooling(*geometry, inner)  # type: ignore[misc]
    data = indices.view(np.uint8)
    codec = codec_for("window-index", storage(data, "int64"), detail)
    assert there_and_back(codec, data, kernels).tobytes() == data.tobytes()


@EACH_KERNELS
def test_an_index_outside_its_window_is_named(kernels: Any) -> None:
    detail, indices = pooling(2, 2, 0, 1, 8, 1)
    indices[5] = 63
    codec: Any = codec_for("window-index", storage(indices.view(np.uint8), "int64"), detail)
    needed = codec.encode(indices.view(np.uint8), np.zeros(codec.nbytes, np.uint8), kernels)
    assert needed > codec.nbytes
    expected = (
        r"element 5 of 'map' has an index that is not in its window: that one begins at \(0, 2, 2\) and has kernel"
    )
    assert re.match(expected, codec.outside(needed))


@EACH_KERNELS
@pytest.mark.parametrize("format", LOSSY_FORMATS)
@given(data=elements())
@some
def test_rounding_twice_changes_nothing_more(format: str, data: np.ndarray, kernels: Any) -> None:
    codec = codec_for(format, storage(data))
    once = there_and_back(codec, data, kernels)
    assert there_and_back(codec, once, kernels).tobytes() == once.tobytes()


@EACH_KERNELS
@pytest.mark.parametrize("format", LOSSY_FORMATS)
@given(data=elements())
@some
def test_rounding_keeps_what_is_not_a_number_and_makes_none(format: str, data: np.ndarray, kernels: Any) -> None:
    rounded = there_and_back(codec_for(format, storage(data)), data, kernels).view(np.float32)
    assert (np.isnan(rounded) == np.isnan(data.view(np.float32))).all()
    assert not np.isinf(rounded).any()


@EACH_KERNELS
@pytest.mark.parametrize("format", LOSSY_FORMATS)
def test_rounding_is_off_by_half_a_place_at_most(format: str, kernels: Any) -> None:
    values = np.random.default_rng(0).uniform(0.02, 400, 5000).astype(np.float32)
    values[::2] *= -1
    rounded = there_and_back(codec_for(format, storage(values.view(np.uint8))), values.view(np.uint8), kernels)
    error = np.abs(rounded.view(np.float32) - values) / np.abs(values)
    assert error.max() <= 2.0 ** -(FORMATS[format].mantissa_bits + 1)


@EACH_KERNELS
@pytest.mark.parametrize("format", ["fp16", "bf16", "fp10", "fp8"])
@given(data=elements())
@some
def test_sparse_and_rounded_is_rounded_where_it_is_not_zero(format: str, data: np.ndarray, kernels: Any) -> None:
    rounded = there_and_back(codec_for(format, storage(data)), data, kernels)
    sparse = there_and_back(codec_for(f"sparse-{format}", storage(data), (1.0,)), data, kernels)
    assert sparse.tobytes() == rounded.tobytes()


@EACH_KERNELS
@pytest.mark.parametrize("format", ["fp16", "fp8"])
@given(data=elements())
@some
def test_both_sparse_forms_round_alike(format: str, data: np.ndarray, kernels: Any) -> None:
    forms = [codec_for(f"{form}-{format}", storage(data), (1.0,)) for form in ("sparse", "csr")]
    masked, published = (there_and_back(codec, data, kernels).tobytes() for codec in forms)
    assert masked == published


SIZES = {
    ("sign-mask", ABOVE_ZERO): 1250,
    ("bool-mask", ABOVE_ZERO): 1250,
    ("fp16", ()): 20_000,
    ("bf16", ()): 20_000,
    ("fp10", ()): 13_336,
    ("fp8", ()): 10_000,
    ("sparse", (0.5,)): 32 + 1256 + 20_000,  # three blocks of 4096 begin at four offsets
    ("sparse", (1.0,)): 32 + 1256 + 40_000,
    ("sparse-fp16", (0.5,)): 32 + 1256 + 10_000,
    ("sparse-bf16", (0.5,)): 32 + 1256 + 10_000,
    ("sparse-fp8", (0.5,)): 32 + 1256 + 5_000,
    ("sparse-fp10", (0.5,)): 32 + 1256 + 6_680,  # a word more per block, because blocks do not share words
    ("csr", (0.1,)): 168 + 1_000 + 4_000,  # forty rows begin at forty-one offsets
    ("csr-fp16", (0.1,)): 168 + 1_000 + 2_000,
    ("csr-fp8", (0.1,)): 168 + 1_000 + 1_000,
}


@pytest.mark.parametrize(("codec", "detail"), SIZES)
def test_an_encoding_of_ten_thousand_floats_takes_so_many_bytes(codec: str, detail: Detail) -> None:
    assert codec_for(codec, storage(np.zeros(40_000, np.uint8)), detail).nbytes == SIZES[codec, detail]


def test_the_sparse_form_pays_from_a_few_zeros_on_and_the_published_one_from_a_fifth() -> None:
    block = storage(np.zeros(4 << 20, np.uint8))
    breaks_even = {
        name: next(z for z in range(101) if codec_for(name, block, (1 - z / 100 or 1e-9,)).nbytes < block.nbytes)
        for name in ("sparse", "csr")
    }
    assert breaks_even == {"sparse": 4, "csr": 21}


QUESTIONS = {
    "shape": Information(Need.SHAPE),
    "sign": Information(Need.SIGN, ABOVE_ZERO),
    "another sign": Information(Need.SIGN, (int(Test.GREATER), 0.0, 0.0, 1.0, 0.0)),
    "bool": Information(Need.BOOL, NONZERO),
    "all": Information(Need.ALL),
}
SERVED = {
    ("sign-mask", ABOVE_ZERO): {"shape", "sign"},
    ("bool-mask", NONZERO): {"shape", "bool"},
    ("sparse", (0.5,)): set(QUESTIONS),
    ("fp16", ()): set(QUESTIONS),
}


@pytest.mark.parametrize(("codec", "detail"), SERVED)
def test_an_encoding_serves_the_readers_whose_question_it_answers(codec: str, detail: Detail) -> None:
    bound = codec_for(codec, storage(np.zeros(400, np.uint8)), detail)
    assert {name for name, question in QUESTIONS.items() if bound.serves(question)} == SERVED[codec, detail]


def test_bits_of_two_numbers_serve_every_reader() -> None:
    bound = codec_for("bool-mask", storage(np.zeros(400, np.uint8), alphabet=(0.0, 2.0)), NONZERO)
    assert all(bound.serves(question) for question in QUESTIONS.values())


def test_a_window_encoding_serves_its_pooling_and_whoever_takes_the_indices_themselves() -> None:
    detail, indices = pooling(2, 2, 0, 1, 8, 1)
    bound = codec_for("window-index", storage(indices.view(np.uint8), "int64"), detail)
    asked = [Information(Need.WINDOW_INDEX, detail), Information(Need.ALL), Information(Need.WINDOW_INDEX, detail[:-1])]
    assert [bound.serves(question) for question in asked] == [True, True, False]


POSSIBLE = {
    ("sign-mask", "float64", ABOVE_ZERO): True,
    ("sign-mask", "bool", ABOVE_ZERO): False,
    ("bool-mask", "bool", NONZERO): True,
    ("bool-mask", "int64", NONZERO): False,
    ("sparse", "bfloat16", (0.5,)): True,
    ("sparse", "float64", (0.5,)): False,
    ("csr", "bfloat16", (0.5,)): False,
    ("sparse-fp8", "bfloat16", (0.5,)): False,
    ("fp16", "float32", ()): True,
    ("fp16", "float64", ()): False,
    ("fp16", "complex64", ()): False,
    ("window-index", "int32", ()): False,
}


@pytest.mark.parametrize(("codec", "dtype", "detail"), POSSIBLE)
def test_a_codec_knows_which_storages_it_is_for(codec: str, dtype: str, detail: Detail) -> None:
    bound = codec_for(codec, Storage("map", 400, Role.FEATURE_MAP, dtype, ()), detail)
    assert bound.is_possible is POSSIBLE[codec, dtype, detail]


def test_every_codec_has_its_size_or_its_storages_in_these_tables() -> None:
    assert {name for name, *_ in (*SIZES, *POSSIBLE)} == CODECS.keys()


def test_part_of_an_element_cannot_be_encoded() -> None:
    assert not codec_for("fp16", Storage("map", 402, Role.FEATURE_MAP, "float32", ())).is_possible


def test_only_the_named_formats_round() -> None:
    rounding = {name for name, codec in CODECS.items() if not codec.is_exact}
    assert rounding == {name for name in CODECS if name.rpartition("-")[2] in LOSSY_FORMATS}


def test_an_unknown_codec_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"there is no codec 'zip'\. Choose one of: sign-mask, bool-mask"):
        codec_for("zip", Storage("map", 400, Role.FEATURE_MAP, "float32", ()))
