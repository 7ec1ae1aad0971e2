"""Every form that writes over an input computes the bits of the op it stands for, and takes no memory for them.

Inputs hold what arithmetic is awkward about: nan, infinities, zeros of both signs, denormals, numbers near overflow.
Bits are compared, not values: a zero of the other sign or another nan is a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count, product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode

from vdnn.capture.eager_kernels import eager_kernels
from vdnn.capture.ops.in_place_forms import IN_PLACE_OF, OUT_OF
from vdnn.capture.tidy.in_place import have_same_layout
from vdnn.cost.op_memory import workspace_nbytes
from where import seeded

pytestmark = pytest.mark.any_device

aten = torch.ops.aten

AWKWARD = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 1.0, -1.0, 0.5, 3.0, 20.5)

NUMBERS: dict[str, Any] = {
    "alpha": 1.3, "beta": 1.7, "delta": 0.8, "dim": -1, "exponent": 2, "half_to_float": False, "input_scale": 0.9,
    "is_result": False, "lambd": 0.4, "max": 0.5, "max_val": 0.5, "min": -0.5, "min_val": -0.5, "negative_slope": 0.01,
    "other": 0.7, "reduction": 1, "scale": 1.1, "self_is_result": False, "threshold": 0.1, "value": 0.3, "weight": 0.3,
}  # fmt: skip
"""What an argument that is no tensor is, by its name in the schema."""

ON_BITS = {op for op in IN_PLACE_OF if "bitwise" in str(op) or "logical" in str(op)}

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "odd": lambda flat: flat[:105].view(3, 5, 7),
    "one element": lambda flat: flat[:1].view(1, 1),
    "channels_last": lambda flat: flat[:360].view(2, 5, 9, 4).permute(0, 3, 1, 2),
    "transposed": lambda flat: flat[:330].view(10, 33).t(),
    "enough for two threads": lambda flat: flat.view(2, 301, 151),
}

EVERY_FORM = pytest.mark.parametrize("op", [*dict.fromkeys([*IN_PLACE_OF, *OUT_OF])], ids=str)
EVERY_DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)


NUM_ELEMENTS = 2 * 301 * 151


@cache
def flat_floats(seed: int, dtype: torch.dtype) -> Tensor:
    """Ordinary numbers, and one awkward one in eight. Ops run on copies: nobody writes here."""
    generator = seeded(seed)
    flat = torch.randn(NUM_ELEMENTS, generator=generator) * 2
    places = torch.randperm(flat.numel(), generator=generator)[: flat.numel() // 8]
    flat[places] = torch.tensor(AWKWARD).repeat(places.numel() // len(AWKWARD) + 1)[: places.numel()]
    flat[:14] = torch.tensor(AWKWARD)
    return flat.to(dtype)


class Source:
    """Makes tensors of one layout and dtype, each with other elements."""

    def __init__(self, layout: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
        self.layout, self.dtype = layout, dtype
        self.seeds = count()

    def floats(self) -> Tensor:
        return self.layout(flat_floats(next(self.seeds), self.dtype))

    def integers(self, below: int) -> Tensor:
        generator = seeded(next(self.seeds))
        return self.layout(torch.randint(below, (NUM_ELEMENTS,), generator=generator))

    def bools(self) -> Tensor:
        return self.integers(2).bool()


def arguments(op: OpOverload, source: Source, **chosen: Any) -> dict[str, Any]:
    """A call of `op` by the names of its schema. What has a default is left at it unless it is chosen."""
    make = source.bools if op in ON_BITS else source.floats
    found: dict[str, Any] = {}
    for argument in op._schema.arguments:
        if argument.name in chosen:
            found[argument.name] = chosen[argument.name]
        elif argument.name in ("mask", "condition"):
            found[argument.name] = source.bools()
        elif argument.name == "index":
            shape = found["self"].shape
            found["index"] = source.integers(shape[-1]) if "scatter" in str(op) else torch.arange(shape[-1]).flip(0)
        elif argument.name == "indices":
            found["indices"] = [torch.arange(len(found["self"])).flip(0)]
        elif argument.name == "input_dtype":
            found["input_dtype"] = source.dtype
        elif argument.name == "value" and str(argument.type) == "Tensor":
            found["value"] = torch.tensor(0.3, dtype=source.dtype)
        elif str(argument.type) in ("Tensor", "Optional[Tensor]"):
            found[argument.name] = make()
        elif not argument.has_default_value() or argument.name in ("min", "max"):
            found[argument.name] = NUMBERS[argument.name]
    return found


Victim = tuple[str, Callable[..., Tensor], str | None]
"""The argument that is written over, the form that does it, its output argument."""


def victims(op: OpOverload, call: dict[str, Any]) -> Iterator[Victim]:
    first = op._schema.arguments[0].name
    if op in IN_PLACE_OF:
        yield first, IN_PLACE_OF[op], None
    if op in OUT_OF:
        form, out = OUT_OF[op]
        yield from ((name, form, out) for name, value in call.items() if isinstance(value, Tensor))


def with_copies(call: dict[str, Any]) -> dict[str, Any]:
    """The same call on tensors of its own, strides and all."""
    return {name: _copy(value) if isinstance(value, Tensor) else value for name, value in call.items()}


def _copy(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def bound(op: OpOverload, call: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The call as positional and keyword arguments."""
    positional = [a.name for a in op._schema.arguments if not a.kwarg_only and a.name in call]
    return [call[name] for name in positional], {n: value for n, value in call.items() if n not in positional}


@contextmanager
def threads(number: int) -> Iterator[None]:
    """For the ops in question alone: copies and comparisons beside them would wait for a second thread in vain."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def functional(op: OpOverload, call: dict[str, Any], num_threads: int = 1) -> Tensor:
    args, kwargs = bound(op, with_copies(call))
    with threads(num_threads):
        return op(*args, **kwargs)


def in_place(op: OpOverload, call: dict[str, Any], victim: Victim) -> tuple[Tensor, Callable[[], Tensor]]:
    """The tensor that is written over, and the function that does it."""
    fresh = with_copies(call)
    args, kwargs = bound(op, fresh)
    name, form, out = victim
    return fresh[name], lambda: form(*args, **kwargs, **({} if out is None else {out: fresh[name]}))


def assert_same_bits(expected: Tensor, found: Tensor) -> None:
    assert (expected.stride(), expected.dtype) == (found.stride(), found.dtype)
    bits = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (expected, found)]
    assert torch.equal(*bits), f"{(bits[0] != bits[1]).sum()} of {bits[0].numel()} bytes differ"


def admitted(op: OpOverload, call: dict[str, Any], expected: Tensor) -> list[Victim]:
    """The victims that the layout rule lets go."""
    return [victim for victim in victims(op, call) if have_same_layout(_copy(call[victim[0]]), expected)]


def check_form(op: OpOverload, call: dict[str, Any], num_threads: int = 1) -> None:
    expected = functional(op, call, num_threads)
    for victim in admitted(op, call, expected):
        overwritten, run = in_place(op, call, victim)
        with threads(num_threads):
            found = run()
        assert found.data_ptr() == overwritten.data_ptr()
        assert_same_bits(expected, found)


@contextmanager
def naming(layout: str) -> Iterator[None]:
    """An error in here says in which layout it was found."""
    try:
        yield
    except Exception as error:
        error.add_note(f"layout: {layout}")
        raise


def check_with_threads(op: OpOverload, call: dict[str, Any]) -> None:
    """One thread, and two where PyTorch would use them: below 32768 elements (at::internal::GRAIN_SIZE) it does not."""
    large = any(isinstance(value, Tensor) and value.numel() > 2048 for value in call.values())
    for num_threads in (1, 2) if large else (1,):  # softmax weighs an element as 16
        check_form(op, call, num_threads)


@EVERY_FORM
@EVERY_DTYPE
def test_a_form_computes_the_bits_of_its_op(op: OpOverload, dtype: torch.dtype) -> None:
    for name, layout in LAYOUTS.items():
        with naming(name):
            check_with_threads(op, arguments(op, Source(layout, dtype)))


@EVERY_FORM
def test_a_form_is_used_on_contiguous_tensors(op: OpOverload) -> None:
    call = arguments(op, Source(LAYOUTS["odd"], torch.float32))
    assert admitted(op, call, functional(op, call))


@EVERY_FORM
def test_a_form_takes_no_memory_of_the_size_of_its_result(op: OpOverload) -> None:
    call = arguments(op, Source(LAYOUTS["enough for two threads"], torch.float32))
    expected = functional(op, call)
    taken = [workspace_nbytes(in_place(op, call, victim)[1]) for victim in admitted(op, call, expected)]
    assert max(taken) < expected.nbytes // 8


OPTIONS: dict[str, tuple[OpOverload, dict[str, Any]]] = {
    **{f"pow {e}": (aten.pow.Tensor_Scalar, {"exponent": e}) for e in (-2, -1, -0.5, 0, 0.5, 1, 2, 3, 1.7)},
    **{f"times {x}": (aten.mul.Scalar, {"other": x}) for x in (0.7, 1 / 3, 3, -0.0, math.inf)},
    **{f"over {x}": (aten.div.Scalar, {"other": x}) for x in (0.7, 1 / 3, 3, -0.0, math.inf)},
    **{f"plus {x}": (aten.add.Scalar, {"other": x, "alpha": a}) for x, a in ((0.7, 1), (1 / 3, 1.3), (3, 2))},
    **{f"minus {x}": (aten.sub.Scalar, {"other": x, "alpha": a}) for x, a in ((0.7, 1), (1 / 3, 1.3), (3, 2))},
    "a scaled sum": (aten.add.Tensor, {"alpha": 1.3}),
    "a scaled difference": (aten.sub.Tensor, {"alpha": 1.3}),
    "gelu by tanh": (aten.gelu.default, {"approximate": "tanh"}),
    "the backward of gelu by tanh": (aten.gelu_backward.default, {"approximate": "tanh"}),
    "the backward of elu by its result": (aten.elu_backward.default, {"is_result": True}),
    "clamp from below": (aten.clamp.default, {"min": -0.5, "max": None}),
    "values that are added where they meet": (aten.index_put.default, {"accumulate": True}),
}


@EVERY_DTYPE
@pytest.mark.parametrize("case", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_form_computes_the_bits_of_its_op_with(case: tuple[OpOverload, dict[str, Any]], dtype: torch.dtype) -> None:
    op, chosen = case
    for name, layout in LAYOUTS.items():
        with naming(name):
            call = arguments(op, Source(layout, dtype), **chosen)
            assert admitted(op, call, functional(op, call)), "nothing was compared"
            check_form(op, call)


ROW_BY_ROW = pytest.mark.parametrize("op", [op for op in OUT_OF if "softmax" in str(op)], ids=str)
SIZES = ((1,), (7,), (50257,), (3, 1), (129, 17), (2, 50257), (5, 3, 33), (4, 700, 33), (2, 3, 8, 65), (1, 40000, 2))


def tame(call: dict[str, Any]) -> dict[str, Any]:
    """Without awkward numbers: a row with a nan is nan all over, whatever was overwritten too early."""
    return {n: v.nan_to_num(0.5, 2, -2).clamp(-9, 9) if isinstance(v, Tensor) else v for n, v in call.items()}


@ROW_BY_ROW
@EVERY_DTYPE
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_are_read_before_they_are_written(op: OpOverload, dtype: torch.dtype, size: tuple[int, ...]) -> None:
    """Guards Note [Rows are read before they are written] over every dim, with one thread and with two."""
    source = Source(lambda flat: flat.repeat(2)[: math.prod(size)].view(size), dtype)
    for dim in range(len(size)):
        call = arguments(op, source, dim=dim)
        assert len(admitted(op, call, functional(op, call))) == sum(isinstance(v, Tensor) for v in call.values())
        check_with_threads(op, tame(call))
        check_with_threads(op, call)


@EVERY_DTYPE
def test_a_row_of_a_second_tensor_may_be_repeated(dtype: torch.dtype) -> None:
    # A bias or a mask: the victim has the shape of the result, the other argument is spread over it.
    wide, row = Source(LAYOUTS["enough for two threads"], dtype).floats(), Source(LAYOUTS["odd"], dtype).floats()[0, 0]
    for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default):
        for call in (
            {"self": wide[..., :7].contiguous(), "other": row},
            {"self": row, "other": wide[..., :7].contiguous()},
        ):
            assert admitted(op, call, functional(op, call))
            check_form(op, call)


MIXED = {name: LAYOUTS[name] for name in ("channels_last",)} | {
    "contiguous": lambda flat: flat[:360].view(2, 4, 5, 9),
    "rows and columns swapped": lambda flat: flat[:360].view(2, 4, 9, 5).transpose(2, 3),
}


@pytest.mark.cpu_only("how kernels lay results out is the device's own affair")
@EVERY_FORM
def test_a_trace_lays_results_out_as_the_op_does(op: OpOverload) -> None:
    """The result of a form lies as its victim does, so nobody would notice that the op's own lies otherwise."""
    calls = {name: arguments(op, Source(layout, torch.float32)) for name, layout in MIXED.items()}
    names = [name for name, value in calls["contiguous"].items() if isinstance(value, Tensor) and value.ndim == 4]
    for layouts in product(MIXED, repeat=len(names)):
        call = calls["contiguous"] | {name: calls[layout][name] for name, layout in zip(names, layouts, strict=True)}
        with eager_kernels(), FakeTensorMode(allow_non_fake_inputs=True):
            traced = op(**call)
        assert traced.stride() == op(**call).stride(), layouts
